"""Quality: the final metric at the tuned settings and a fixed budget, against a fixed reference."""

from bench.boards.collect import Collected
from bench.boards.entries import Entry, Seed
from bench.boards.shared import (
    EVERY,
    RANK,
    WHO,
    budget_notes,
    common_seeds,
    compare,
    find_reference,
    gaps_by_problem,
    listed,
    lost,
    mean_interval,
    metric_of,
    rank_values,
    unresolved,
    who,
)  # fmt: skip
from bench.results import ranking
from bench.results.selection import CONVERGED, End
from bench.results.stats import Interval
from bench.results.table import Board, Column, Table


def quality(found: Collected, reference: str = "adam") -> Board:
    """Final metric on the reporting split at the tuned settings and a fixed budget.

    Args:
        found: entries.
        reference: optimizer that the others are compared with.
    """
    tables = []
    for problem, entries in found.problems.items():
        ref = find_reference(found, problem, reference)
        metric, above = metric_of(problem, entries, ref)
        mode = problem.mode

        def final(entry: Entry, seed: Seed, above: bool = above) -> End:
            return entry.value(seed, above)

        order, ranks, pairs = compare(entries, final, mode)
        rows = []
        for i, rank in zip(order, ranks, strict=True):
            entry = entries[i]
            seeds = sorted(entry.runs)
            rows.append(
                who(entry) | rank_values(rank) | {
                    "final": mean_interval(entry.values(seeds, above)) or lost(entry),
                    "difference": _difference(entry, ref, above, mode),
                    "best": mean_interval(entry.values(seeds, above, best=True)),
                    "trials": len(entry.study.trials) if entry.study else None,
                    "is_reference": entry is ref,
                }
            )  # fmt: skip
        named = f"{ref.name} ({ref.kind})" if ref is not None else "none"
        better = "positive is better"
        columns = [
            *RANK, *WHO,
            Column("final", metric, ("at the last step, mean over seeds with 95 % t-interval;"
                                     f" {'greater' if mode == 'max' else 'smaller'} is better")),
            Column("difference", f"against {named}", f"paired by seed, mean with 95 % t-interval; {better}"),
            Column("best", "at the best step",
                   "the same at the step that was best on the selection split: secondary, and flattered by the choice"),
            Column("trials", "trials", "settings that were tried to find these"),
            *EVERY,
        ]  # fmt: skip
        pairs_shown = listed(entries, pairs)
        notes = unresolved(pairs_shown, [entries[i].name for i in order], "have no value")
        notes += budget_notes(entries)
        if ref is None:
            notes.append(f"the reference {reference} has no runs here, so there are no differences")
        elif ref.kind != "tuned":
            notes.append(f"the reference {ref.name} is not tuned ({ref.kind}), so differences flatter what is tuned")
        if any(isinstance(v, float) and v == CONVERGED for e in entries for v in e.values(e.runs, above)):
            notes.append(f"losses below {CONVERGED:g} count as equal to it")
        tables.append(Table(problem.name, columns, rows, notes, pairs_shown))
    if len(tables) > 1 and any(find_reference(found, problem, reference) for problem in found.problems):
        tables.insert(0, _overall(found, reference))
    notes = [
        (
            "rows that share a rank are not told apart by paired t-tests over common seeds (Holm over all pairs of a"
            " table, 5 % a table)"
        ),
        "a run that diverged is worse than any number, so a row with one has no mean",
        (
            "tuned settings were chosen by the metric on the selection split,"
            " which for tasks without one is the training split"
        ),
    ]
    return Board("quality", "Quality at a fixed budget", tables, notes)


def _difference(entry: Entry, ref: Entry | None, above: bool, mode: str) -> Interval | str | None:
    """The paired difference, or why there is none."""
    if ref is None or entry is ref or None in entry.values(entry.runs, above):
        return None
    seeds = common_seeds(entry, ref)
    if not seeds:
        return "no common seeds"
    return (
        ranking.pair(entry.values(seeds, above), ref.values(seeds, above), mode).difference
        or "the reference has no value"
    )


def _overall(found: Collected, reference: str) -> Table:
    problems, gaps = gaps_by_problem(found, reference)
    rows = []
    for name, own in gaps.items():
        there = {problem: own.get(problem, "no runs") for problem in problems}
        lacking = [f"{problem.name}: {why}" for problem, why in there.items() if isinstance(why, str)]
        known = [each for each in there.values() if not isinstance(each, str)]
        interval = None if lacking else ranking.hierarchical_interval(known)
        rows.append({"opt": name, "gap": interval, "tasks": len(own), "lacking": lacking})
    rows.sort(key=lambda row: (row["gap"] is None, -row["gap"].mean if row["gap"] else 0.0, row["opt"]))
    columns = [
        Column("opt", "optimizer", "name"),
        Column(
            "gap",
            f"gap to {reference} (in seed deviations)",
            "paired difference in units of the deviation over seeds, mean over tasks; positive is better;"
            " 95 % interval by a hierarchical paired bootstrap (tasks, then seeds)",
            3,
        ),
        Column("tasks", "tasks", f"problems with runs of it, of the {len(problems)} that the reference has"),
        Column("lacking", "no number, since", "an entry that lacks a task or diverged on it has no overall gap"),
    ]
    few = f"{len(problems)} tasks say little about others"
    few += ": the interval covers about 90 % (see results/statistics)" * (len(problems) == 2)
    return Table("over all tasks", columns, rows, [few] * (1 < len(problems) < 10))
