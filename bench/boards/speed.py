"""Speed: steps and seconds to a target. Runs that miss it are censored, not dropped."""

import math
from collections.abc import Sequence

from bench.boards.collect import Collected
from bench.boards.entries import Entry, Problem
from bench.boards.shared import VERDICTS, Verdicts, board_table
from bench.results import stats
from bench.results.group import Measure
from bench.results.selection import Mode
from bench.results.stats import MedianTime
from bench.results.table import Board, Column, Table
from bench.store.record import RunResult

REACHES = ("reaches the target more often", "reaches the target less often")
"""`Measure.often` of steps to a target."""
_STEPS = "optimizer steps to the target, 95 % interval from 6 runs on; runs that miss it are censored at the budget"


def reached(run: RunResult, target: float | None, mode: str) -> tuple[int | None, float | None]:
    """Steps and seconds to the target: the task's own (None), or any other, from the evaluations during training.

    A given target refers to the shown metric: to the suboptimality gap if the infimum is known. A run that diverged
    has not reached it. One that converged is evaluated at its end; its steps are rounded up to the next regular
    evaluation, like those of other runs.
    """

    def rounded(step: int | None) -> int | None:
        most, every = run.config["trainer"]["max_steps"], run.config["trainer"]["val_every"]
        if step is None or step < run.steps or not run.converged or most is None:
            return step
        every = every or -(-most // 20)  # `training_plan.val_every` with full batches, with which runs converge
        return -(-step // every) * every

    if run.status == "diverged":
        return None, None
    if target is None:
        return rounded(run.steps_to_target), run.seconds_to_target
    for row in run.validations:
        value = row.get("excess" if run.scale == "log" and "excess" in row else run.metric)
        if value is not None and (value >= target if mode == "max" else value <= target):
            return rounded(int(row["step"])), row["train_s"]
    return None, None


def by_steps(ref: Entry | None, target: float | None, mode: Mode) -> Verdicts:
    """Verdicts by the steps to the target; none on entries that the time limit stopped before it."""

    def steps(run: RunResult) -> float | None:
        at = reached(run, target, mode)[0]
        return None if at is None else float(max(1, at))

    def obstacle(entry: Entry) -> str | None:
        cut = any(run.status == "timeout" and steps(run) is None for run in entry.runs.values())
        return "a time limit ended runs before the target" if cut else None

    return Verdicts(ref, Measure("steps to the target", "min", True, steps, REACHES), obstacle)


def speed(collected: Collected) -> Board:
    """Steps and seconds to the target, and how many runs reach it."""
    tables, notes, target = [], [], collected.target
    for problem, entries in collected.problems.items():
        goal = problem.target if target is None else target
        if goal is None:
            more = ", or see the board `theory`" * problem.measures
            notes.append(f"{problem.name} has no target: give one with --target" + more)
        else:
            tables.append(_table(collected, problem, entries, goal))
    return Board("speed", "Speed to a target", tables, [VERDICTS, *notes])


def _table(collected: Collected, problem: Problem, entries: Sequence[Entry], goal: float) -> Table:
    target, mode = collected.target, problem.mode
    verdicts = by_steps(collected.reference_of(problem), target, mode)
    machines = sorted({name for entry in entries for name in entry.machines})
    rows = {}
    for entry in verdicts.ordered(entries):
        runs = list(entry.runs.values())
        at = {run.run_id: reached(run, target, mode) for run in runs}
        count = sum(step is not None for step, _ in at.values())
        rows[entry] = verdicts.values(entry, verdicts.of(entry)) | {
            "reached": stats.share_interval(count, len(runs)),
            "count": f"{count} of {len(runs)}",
            "steps": median_time_to(runs, [at[run.run_id][0] for run in runs], [run.steps for run in runs]),
            "budget": max(run.steps for run in runs),
        }
        for name in machines:  # None if an entry has no runs on a machine, or seconds are unknown
            on_it = [run for run in runs if run.machine == name]
            seconds = [at[run.run_id][1] for run in on_it]
            known = all(time is not None or at[run.run_id][0] is None for run, time in zip(on_it, seconds, strict=True))
            time = median_time_to(on_it, seconds, [run.train_s for run in on_it]) if on_it and known else None
            rows[entry][f"seconds on {name}"] = time
    several, notes = len(machines) > 1, ["steps count up to the first evaluation at the target"]
    if all(len(run.validations) <= 1 for entry in entries for run in entry.runs.values()):
        once = "runs were evaluated once, at the end: steps and seconds only show which runs reached the target by then"
        notes.insert(0, once)
    numbered = [f"({i}) {name}" for i, name in enumerate(machines, 1)] if several else machines
    notes += [
        f"machine: {'; '.join(numbered)}",
        "seconds are wall time, so they include waiting for other processes of the machine",
        *["seconds are compared on one type of machine only, so each type has its own column"] * several,
    ]
    columns = [
        *verdicts.columns,
        Column("count", "reached", f"runs whose selection {problem.metric} reached {goal:g}"),
        Column("reached", "share", "share of runs that reached the target, exact 95 % interval", 2),
        Column("steps", "median steps", _STEPS),
    ]
    about, title = "training time to the target, over the runs on", "median seconds"
    for i, name in enumerate(machines, 1):
        columns.append(Column(f"seconds on {name}", title + f" ({i})" * several, f"{about} {name}"))
    return board_table(f"{problem.name}: {problem.metric} {goal:g}", columns, rows, notes)


def median_time_to(runs: Sequence[RunResult], times: Sequence[float | None], ends: Sequence[float]) -> MedianTime:
    """Median time of runs to an event, which a run that diverged, or converged before it, can never reach.

    The `times` are those of the event, the `ends` those of the observation.
    """
    never = (run.status == "diverged" or (run.converged and at is None) for run, at in zip(runs, times, strict=True))
    return stats.median_time(times, [math.inf if no else end for no, end in zip(never, ends, strict=True)])
