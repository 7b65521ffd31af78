"""Speed: steps and seconds to a target. Runs that miss it are censored, not dropped."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from bench.boards.collect import Collected, Entry, Problem
from bench.boards.shared import VERDICTS, Verdicts, board_table
from bench.results import stats
from bench.results.group import Measure
from bench.results.selection import Mode
from bench.results.stats import MedianTime
from bench.results.table import Board, Column, Table
from bench.store.record import RunResult

REACHES = ("reaches the target more often", "reaches the target less often")  # `Measure.often`
_STEPS = "optimizer steps to the target, 95 % interval from 6 runs on; runs that miss it are censored at the budget"


def reached(run: RunResult, target: float | None, mode: str) -> tuple[int | None, float | None]:
    """Steps and seconds to the target: the task's own (None), or any other, from the evaluations during training.

    A given target refers to the shown metric: to the suboptimality gap if the infimum is known. A run that diverged
    has not reached it. One that converged is evaluated at its end; its steps are rounded up to the next regular
    evaluation, like those of other runs.
    """
    step, seconds = run.steps_to_target, run.seconds_to_target
    if target is not None:
        name = "excess" if run.scale == "log" and any("excess" in row for row in run.validations) else run.metric
        rows = [row for row in run.validations if name in row]
        values = [(row.get("evaluations", row["step"]), row["train_s"], row[name]) for row in rows]
        hits = [(int(step), s) for step, s, value in values if (value >= target if mode == "max" else value <= target)]
        step, seconds = hits[0] if hits else (None, None)
    if run.status == "diverged" or step is None:
        return None, None
    most, every = run.config["trainer"]["max_steps"], run.config["trainer"]["val_every"]
    if step >= run.cost and run.converged and most is not None:
        every = every or -(-most // 20)  # `training_plan.val_every` with full batches, with which runs converge
        step = -(-step // every) * every
    return step, seconds


def by_steps(ref: Entry | None, target: float | None, mode: Mode) -> Verdicts:
    """Verdicts by the steps to the target; none on entries that the time limit stopped before it."""

    def steps(run: RunResult) -> float | None:
        at = reached(run, target, mode)[0]
        return None if at is None else float(max(1, at))

    def obstacle(entry: Entry) -> str:
        cut = any(run.status == "timeout" and steps(run) is None for run in entry.runs.values())
        return "a time limit ended runs before the target" * cut

    return Verdicts(ref, Measure("steps to the target", "min", True, steps, REACHES), obstacle)


def speed(collected: Collected) -> Board:
    """Steps and seconds to the target, and how many runs reach it."""
    tables, notes, target = [], [], collected.target
    for problem, entries in collected.problems.items():
        if problem.target is None and target is None:
            more = ", or see the board `theory`" * problem.measures
            notes.append(f"{problem.name} has no target: give one with --target" + more)
        else:
            tables.append(_table(collected, problem, entries))
    return Board("speed", "Speed to a target", tables, [VERDICTS, *notes])


def _table(collected: Collected, problem: Problem, entries: Sequence[Entry]) -> Table:
    target, mode = collected.target, problem.mode
    goal = problem.target if target is None else target
    verdicts, rows = by_steps(collected.reference_of(problem), target, mode), dict[Entry, dict[str, Any]]()
    machines = sorted({name for entry in entries for name in entry.machines})
    for entry in verdicts.ordered(entries):
        runs = [*entry.runs.values()]
        steps, seconds = zip(*(reached(run, target, mode) for run in runs), strict=True)
        count = sum(step is not None for step in steps)
        rows[entry] = verdicts.values(entry) | {
            "reached": stats.share_interval(count, len(runs)),
            "count": f"{count} of {len(runs)}",
            "steps": median_time_to(runs, steps, [run.cost for run in runs]),
            "budget": max(run.cost for run in runs),
        }
        for name in machines:  # None if an entry has no runs on a machine, or seconds are unknown
            on_it = [i for i, run in enumerate(runs) if run.machine == name]
            known = on_it and all(seconds[i] is not None or steps[i] is None for i in on_it)
            times = [seconds[i] for i in on_it], [runs[i].train_s for i in on_it]
            rows[entry][f"seconds on {name}"] = median_time_to([runs[i] for i in on_it], *times) if known else None
    several, notes = len(machines) > 1, ["steps count up to the first evaluation at the target"]
    if all(len(run.validations) <= 1 for entry in entries for run in entry.runs.values()):
        once = "runs were evaluated once, at the end: steps and seconds only show which runs reached the target by then"
        notes.insert(0, once)
    notes += [
        f"machine: {'; '.join(f'({i}) {name}' if several else name for i, name in enumerate(machines, 1))}",
        "seconds are wall time, so they include waiting for other processes of the machine",
        *["seconds are compared on one type of machine only, so each type has its own column"] * several,
    ]
    columns = [
        *verdicts.columns,
        Column("count", "reached", f"runs whose selection {problem.metric} reached {goal:g}"),
        Column("reached", "share", "share of runs that reached the target, exact 95 % interval", 2),
        Column("steps", "median steps", _STEPS),
    ]
    for i, name in enumerate(machines, 1):
        about = f"training time to the target, over the runs on {name}"
        columns.append(Column(f"seconds on {name}", "median seconds" + f" ({i})" * several, about))
    return board_table(f"{problem.name}: {problem.metric} {goal:g}", columns, rows, notes)


def median_time_to(runs: Sequence[RunResult], times: Iterable[float | None], ends: Iterable[float]) -> MedianTime:
    """Median of `times` to an event, observed until `ends`; never for a run that diverged or converged before it."""
    times = [*times]
    never = (run.status == "diverged" or (run.converged and at is None) for run, at in zip(runs, times, strict=True))
    return stats.median_time(times, [math.inf if no else end for no, end in zip(never, ends, strict=True)])
