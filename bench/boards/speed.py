"""Speed: steps and seconds to a target. Runs that miss it are censored, not dropped."""

import math
from collections.abc import Sequence

from bench.boards.collect import Collected
from bench.boards.entries import Entry
from bench.boards.shared import VERDICTS, Verdicts, board_table
from bench.results import stats
from bench.results.group import Measure
from bench.results.selection import End, Mode
from bench.results.stats import MedianTime
from bench.results.table import Board, Column
from bench.store.record import RunResult


def reached(run: RunResult, target: float | None, mode: str) -> tuple[int | None, float | None]:
    """Steps and seconds to the target: the task's own, or any other, from the evaluations during training.

    A given target refers to the shown metric: to the suboptimality gap if the infimum is known. A run that diverged
    has not reached it. One that converged is evaluated at its end; its steps are rounded up to the next regular
    evaluation, like those of other runs.
    """
    if run.status == "diverged":
        return None, None
    if target is None:
        return _rounded(run, run.steps_to_target), run.seconds_to_target
    for row in run.validations:
        value = row.get("excess" if run.scale == "log" and "excess" in row else run.metric)
        if value is not None and (value >= target if mode == "max" else value <= target):
            return _rounded(run, int(row["step"])), row["train_s"]
    return None, None


def _rounded(run: RunResult, step: int | None) -> int | None:
    most, every = run.config["trainer"]["max_steps"], run.config["trainer"]["val_every"]
    if step is None or step < run.steps or not run.converged or most is None:
        return step
    every = every or -(-most // 20)  # `training_plan.val_every` with full batches, with which runs converge
    return -(-step // every) * every


REACHES = ("reaches the target more often", "reaches the target less often")
"""`Measure.often` of steps to a target."""


def steps_to(target: float | None, mode: Mode) -> Measure:
    """Optimizer steps to the target (the task's own if None), at least 1; none for a run that misses it."""

    def steps(run: RunResult) -> End:
        at = reached(run, target, mode)[0]
        return None if at is None else float(max(1, at))

    return Measure("steps to the target", "min", True, steps, REACHES)


def cut_short(entry: Entry, target: float | None) -> bool:
    """Whether the time limit stopped a run before the target, within the steps of other runs."""
    runs = entry.runs.values()
    return any(r.status == "timeout" and reached(r, target, entry.problem.mode)[0] is None for r in runs)


def by_steps(ref: Entry | None, target: float | None, mode: Mode) -> Verdicts:
    """Verdicts by the steps to the target; none on entries that the time limit cut short."""
    why = "a time limit ended runs before the target"
    return Verdicts(ref, steps_to(target, mode), lambda entry: why if cut_short(entry, target) else None)


def speed(collected: Collected) -> Board:
    """Steps and seconds to the target, and how many runs reach it."""
    tables, notes, target = [], [], collected.target
    for problem, entries in collected.problems.items():
        goal = problem.target if target is None else target
        if goal is None:
            more = ", or see the board `theory`" * problem.measures
            notes.append(f"{problem.name} has no target: give one with --target" + more)
            continue
        mode = problem.mode
        verdicts = by_steps(collected.reference_of(problem), target, mode)
        machines = sorted({name for entry in entries for name in entry.machines})
        rows = {}
        for entry in verdicts.ordered(entries):
            compared = verdicts.of(entry)
            runs = list(entry.runs.values())
            at = [reached(run, target, mode) for run in runs]
            count = sum(step is not None for step, _ in at)
            rows[entry] = verdicts.values(entry, compared) | {
                "reached": stats.share_interval(count, len(runs)),
                "count": f"{count} of {len(runs)}",
                "steps": median_time_to(runs, [step for step, _ in at], [run.steps for run in runs]),
                "budget": max(run.steps for run in runs),
                **{f"seconds on {name}": _seconds(entry, name, target, mode) for name in machines},
            }
        columns = [
            *verdicts.columns,
            Column("count", "reached", f"runs whose selection {problem.metric} reached {goal:g}"),
            Column("reached", "share", "share of runs that reached the target, exact 95 % interval", 2),
            Column(
                "steps",
                "median steps",
                "optimizer steps to the target, 95 % interval from 6 runs on; runs that miss it are censored at"
                " the budget",
            ),
            *(
                Column(
                    f"seconds on {name}",
                    "median seconds" + f" ({i})" * (len(machines) > 1),
                    f"training time to the target, over the runs on {name}",
                )
                for i, name in enumerate(machines, 1)
            ),
        ]
        table_notes: list[str] = []
        if all(len(run.validations) <= 1 for entry in entries for run in entry.runs.values()):
            table_notes.append(
                "runs were evaluated once, at the end: steps and seconds only show which runs reached the target by"
                " then"
            )
        table_notes.append("steps count up to the first evaluation at the target")
        numbered = [f"({i}) {name}" for i, name in enumerate(machines, 1)] if len(machines) > 1 else machines
        table_notes.append(f"machine: {'; '.join(numbered)}")
        table_notes.append("seconds are wall time, so they include waiting for other processes of the machine")
        if len(machines) > 1:
            table_notes.append("seconds are compared on one type of machine only, so each type has its own column")
        tables.append(board_table(f"{problem.name}: {problem.metric} {goal:g}", columns, rows, table_notes))
    return Board("speed", "Speed to a target", tables, [VERDICTS, *notes])


def median_time_to(runs: Sequence[RunResult], reached: Sequence[float | None], ends: Sequence[float]) -> MedianTime:
    """Median time of runs to an event, which a run that diverged, or converged before it, can never reach."""
    ended = [
        math.inf if run.status == "diverged" or (run.converged and time is None) else end
        for run, time, end in zip(runs, reached, ends, strict=True)
    ]
    return stats.median_time(reached, ended)


def _seconds(entry: Entry, machine_: str, target: float | None, mode: str) -> MedianTime | None:
    """Median seconds of the runs of one type of machine; None if it has none, or seconds are unknown."""
    runs = [run for run in entry.runs.values() if run.machine == machine_]
    at = [reached(run, target, mode) for run in runs]
    if not at or any(step is not None and seconds is None for step, seconds in at):
        return None
    return median_time_to(runs, [seconds for _, seconds in at], [run.train_s for run in runs])
