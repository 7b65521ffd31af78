"""Arms of experiments from tables, without training: their records have only what arms read."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.papers.arms import Arm
from bench.results.group import Group, seed_of
from bench.store.block import Columns
from bench.store.record import RunResult


def arm_of(
    label: str,
    tables: Iterable[Sequence[Columns]],
    *,
    statuses: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    task: Mapping[str, Any] | None = None,
    reason: str | None = "converged",
) -> Arm:
    """An arm with a run for each list of tables.

    Args:
        label: of the arm.
        tables: by run.
        statuses: by run; completed by default.
        seeds: by run; 0, 1, ... by default.
        task: options of the task.
        reason: of all runs; None if they used up their budget.
    """
    tables_of = [{str(k): table for k, table in enumerate(of)} for of in tables]
    config: Any = {"task_options": dict(task or {}), "opt_options": {}, "trainer": {}}
    runs = [
        RunResult(
            label,
            config | {"seed": seed, "data_seed": seed},
            status,  # pyright: ignore[reportArgumentType]
            reason,
        )
        for seed, status in zip(seeds or range(len(tables_of)), statuses or ["completed"] * len(tables_of), strict=True)
    ]
    seeds_of = map(seed_of, runs)
    return Arm(Group.of(runs).runs, label=label, tables=dict(zip(seeds_of, tables_of, strict=True)))


def changed(source: Arm, **changes: Any) -> Arm:
    """The arm with other arguments of `arm_of`; all its runs get one reason."""
    runs = list(source.runs.values())
    same: dict[str, Any] = {
        "tables": [list(tables_of.values()) for tables_of in source.tables.values()],
        "statuses": [run.status for run in runs],
        "seeds": [run.config["seed"] for run in runs],
        "task": runs[0].config["task_options"],
    }
    return arm_of(source.label, **(same | changes))
