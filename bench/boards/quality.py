"""Quality: the final metric at the tuned settings and a fixed budget, with a verdict against a fixed reference."""

from collections import defaultdict
from collections.abc import Sequence
from math import inf
from typing import Any

from bench.boards.collect import Collected, Entry, Problem
from bench.boards.shared import COLORS, NAME, VERDICTS, Verdicts, board_table, may_have_missed, with_tuning_noise
from bench.boards.speed import by_steps
from bench.results.group import Measure, final
from bench.results.resolution import CONFIDENCE
from bench.results.selection import above_infimum
from bench.results.stats import exp
from bench.results.table import Board, Column, Table
from bench.text import CONVERGED, listed

TUNING_NOISE = (
    "mean over repetitions of the whole tuning with other seeds, estimated by resampling the tuning seeds. In"
    " simulations the interval covers 74 to 98 %; the plain interval covers 63 to 96 %"
)
"""Help of the column; the numbers are from `results/statistics`."""
MISSED = f"how much better the best setting of the searched box may be than the chosen one ({100 * CONFIDENCE:g} %)"
_BEST = "the same at the step that is best on the selection split: secondary and optimistic"
_TUNING = (
    "better and worse also hold if the worse optimizer's search missed as much as it may have, else no"
    " difference is found (within tuning)"
)
_CHOICE = (
    "tuned settings were chosen by the metric on the selection split, which for tasks without one is the training split"
)


def quality(collected: Collected) -> Board:
    """Final metric on the reporting split at the tuned settings and a fixed budget."""
    tables = [_table(collected, problem, entries) for problem, entries in collected.problems.items()]
    compared_on = [problem for problem in collected.problems if collected.reference_of(problem) is not None]
    if len(compared_on) > 1:
        tables.insert(0, _over_tasks(collected, compared_on, tables))
    return Board("quality", "Quality at a fixed budget", tables, [VERDICTS, _TUNING, _CHOICE])


def _table(collected: Collected, problem: Problem, entries: Sequence[Entry]) -> Table:
    metric, verdicts, at_floor = measure_and_verdicts(collected, problem)
    ref, at_best = verdicts.ref, final(problem.metric, problem.mode, metric.log, best=True)
    rows, silent = dict[Entry, dict[str, Any]](), defaultdict[str, list[str]](list)
    for entry in verdicts.ordered(entries):
        retuned, why = with_tuning_noise(collected, entry, metric)
        if why:
            silent[why].append(entry.name)
        missed = may_have_missed(entry, metric)
        rows[entry] = verdicts.values(entry) | {
            "final": metric.summary(entry),
            "final_tuned": retuned,
            "best": at_best.mean(entry),
            "trials": len(entry.study.trials) if entry.study else None,
            "missed": None if missed in (None, inf) else exp(missed) if metric.log else missed,
        }
    mean, better = "geometric mean" if metric.log else "mean", "larger" if problem.mode == "max" else "smaller"
    about = f"at the last step, {mean} over seeds with 95 % t-interval; {better} is better"
    columns = [
        Column("final", metric.words, about),
        *verdicts.columns,
        Column("final_tuned", "with the noise of tuning", TUNING_NOISE),
        Column("best", "at the selected step", _BEST),
        Column("trials", "trials", "tried settings"),
        Column("missed", "may have missed", MISSED + (", as a factor" if metric.log else "")),
    ]
    notes = [at_floor] if at_floor else []
    notes += [f"{opt} is not compared: {why}" for opt, why in collected.excluded(problem).items()]
    trials = {entry.name: len(entry.study.trials) for entry in entries if entry.study}
    if len({*trials.values()}) > 1:
        words = ", ".join(f"{name} {n}" for name, n in trials.items())
        notes.append(f"tuning budgets differ (trials: {words}): `bench suite` makes them equal")
    if trials and (untuned := [entry.name for entry in entries if entry.kind != "tuned"]):
        notes.append(f"not tuned, so at a disadvantage: {', '.join(untuned)}")
    words = "; ".join(f"{listed(names)} ({why})" for why, names in silent.items())
    notes += [f"no interval with the noise of tuning: {words}"] * bool(words)
    if ref is None:
        notes.append(f"no verdicts, since {collected.no_reference(problem)}")
    elif ref.kind != "tuned":
        notes.append(f"the reference {ref.name} is not tuned ({ref.kind}), so verdicts favour tuned optimizers")
    notes += [f"losses below {CONVERGED:g} count as equal to it"] * any(CONVERGED in metric.values(e) for e in entries)
    return board_table(problem.name, columns, rows, notes)


def measure_and_verdicts(collected: Collected, problem: Problem) -> tuple[Measure, Verdicts, str | None]:
    """The final metric, the verdicts, and the reason if they use another measure.

    The metric is a suboptimality gap, on a logarithmic scale, if the infimum of the reference's runs (of all runs
    without a reference) is known, unless their task declares a linear scale. If the reference reaches the floor of the
    metric on half of its seeds or more, final values carry no information: the measure is then the number of steps to
    the target; runs that miss it have no value.
    """
    ref, entries = collected.reference_of(problem), collected.problems[problem]
    splits = sorted({run.split for entry in entries for run in entry.runs.values() if run.final is not None})
    runs = [run for entry in (entries if ref is None else [ref]) for run in entry.runs.values()]
    metric = final(problem.metric, problem.mode, above_infimum(runs), split="/".join(splits))

    def at_floor(entry: Entry) -> int:
        """The number of runs at the floor, if they are half of an entry's runs or more."""
        count = metric.values(entry).count(CONVERGED)
        return count if 2 * count >= len(entry.runs) else 0

    if ref is None or not at_floor(ref):
        return metric, Verdicts(ref, metric, within_tuning=True), None
    seeds = f"{at_floor(ref)} of {len(ref.runs)} seeds"
    note = f"the reference {ref.name} is at the floor of the metric ({CONVERGED:g}) on {seeds}"
    if problem.target is not None:
        return metric, by_steps(ref, None, problem.mode), f"{note}, so rows are compared by the steps to the target"
    note += ", where differences vanish, and the task has no target: use another task, or the steps to a target that"
    note += " you choose (--board speed --target)" + ", or the directions (--board theory)" * problem.measures
    why = "at the floor of the metric, like the reference"
    return metric, Verdicts(ref, metric, lambda e: why if e is not ref and at_floor(e) else None, True), note


def _over_tasks(collected: Collected, problems: Sequence[Problem], tables: Sequence[Table]) -> Table:
    """The verdicts of each optimizer, task by task; effects of different tasks have no mean."""
    absent: dict[str, Any] = {problem.name: "no runs" for problem in problems}
    by_opt, named = defaultdict[str, dict[str, Any]](absent.copy), {table.title: table for table in tables}
    for problem in problems:
        for opt, why in collected.excluded(problem).items():
            by_opt[opt][problem.name] = f"not compared: {why}"
        for row in named[problem.name].rows:
            effect = {f"effect on {problem.name}": row["effect"]} if "effect" in row else {}
            by_opt[row["opt"]] |= {problem.name: row["verdict"]} | effect
    about = "verdict against the reference of the task; see the task's table"
    columns = [NAME, *(Column(problem.name, problem.name, about, colors=COLORS) for problem in problems)]
    return Table("over all tasks", columns, [{"opt": name} | by_opt[name] for name in sorted(by_opt)])
