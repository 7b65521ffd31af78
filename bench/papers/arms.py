"""Arms of experiments: groups of runs with their tables, and the values that claims and figures take from them."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.errors import UserError, check_known
from bench.results.group import Group, Seed
from bench.results.stats import LEAST_POINTS, UNBOUNDED, Array, Range
from bench.store.block import Columns
from bench.text import cell


@dataclass(kw_only=True, eq=False)
class Arm(Group):
    """One side of a comparison: runs with the same settings, and their tables."""

    label: str
    # By seed and kind (`curve`, `measurements`, `validations`); columns are as long as `step`, NaN is a missing value.
    tables: dict[Seed, Mapping[str, Columns]] = field(default_factory=dict)

    @property
    def every_table(self) -> Iterator[Columns]:
        """The tables of all runs."""
        return (table for tables in self.tables.values() for table in tables.values())


Arms = Mapping[str, Arm]  # by label


def chosen(arms: Arms, labels: Collection[str]) -> list[Arm]:
    """The arms with these labels, which must exist and have runs."""
    check_known("arm", labels, arms)
    for label in labels:
        if not arms[label].runs:
            raise UserError(f"arm {label!r} has no runs; train it first")
    return [arms[label] for label in labels]


def series(arms: Arms, arm: Arm, *names: str) -> tuple[Array, ...]:
    """Step numbers, shape (P,), and for each name its values, shape (S, P), all from one table; P is at least 1.

    Rows are in the order of `arm.runs`. A run that ended early has NaN after its end, and everywhere if it has no such
    table. A `UserError` if no table of the experiment has all these columns.
    """
    tables = [table for other in arms.values() for table in other.every_table]
    check_known("column", names, sorted({name for table in tables for name in table}))
    empty = {name: np.full(1, np.nan) for name in names} | {"step": np.zeros(1)}
    per_run = [
        next((t for t in arm.tables[seed].values() if len(t["step"]) and all(name in t for name in names)), empty)
        for seed in arm.runs
    ]
    steps = np.unique(np.concatenate([table["step"] for table in per_run]))
    values = np.full((len(names), len(per_run), len(steps)), np.nan)
    for s, table in enumerate(per_run):
        values[:, s, np.searchsorted(steps, table["step"])] = [table[name] for name in names]
    return (steps, *values)


def how_ended(arm: Arm, *which: str) -> str:
    """How many runs ended with one of these statuses, or did not complete, in words; empty if none did."""
    counts = {s: n for s, n in arm.statuses.items() if (s in which if which else s != "completed")}
    lost = f"{sum(counts.values())} of {len(arm.runs)} runs of {arm.label} did not complete"
    return f"{lost} ({cell(counts)})" if counts else ""


def too_few(arm: Arm, points: Sequence[tuple[Array, Array]]) -> str:
    """How many runs have too few points for a line, in words; empty if none has."""
    runs = sum(len(np.unique(x)) < LEAST_POINTS for x, _ in points)
    return f"{runs} of {len(points)} runs of {arm.label} have fewer than {LEAST_POINTS} points" if runs else ""


def paired(*arms: Arm) -> list[list[int]]:
    """For each arm, the indices of its runs on the common seeds, in the order of the seeds."""
    seeds = arms[0].common_seeds(*arms[1:])
    if not seeds:
        raise UserError(f"arms {', '.join(arm.label for arm in arms)} have no common seed; train the same seeds")
    return [[list(arm.runs).index(seed) for seed in seeds] for arm in arms]


def values_at(arms: Arms, arm: Arm, measure: str, first: float | None, last: float | None) -> Array:
    """The mean of a measure over the steps from first to last, shape (S,); its last value if the steps are None.

    Without a measurement in this range, the latest one before it counts. A run that converged keeps its last value up
    to the last step of any arm; other runs have NaN if they ended before the range does, or did not complete.
    """
    first, last = (math.inf if step is None else step for step in (first, last))
    steps, values, at = series(arms, arm, measure, "step")
    latest = np.maximum.accumulate(np.where(np.isnan(at), 0, np.arange(steps.size)), axis=1)
    held = np.take_along_axis(values, latest, axis=1)
    inside = (steps >= first) & (steps <= last)
    inside = inside if inside.any() else steps == np.max(steps, where=steps <= last, initial=-1)
    if not inside.any():
        return np.full(len(held), np.nan)
    at_end, runs = last == math.inf, arm.runs.values()
    end = max(np.max(table["step"], initial=0) for other in arms.values() for table in other.every_table)
    stays = np.array([run.status == "completed" if at_end else run.converged and last <= end for run in runs])
    covered = np.max(at, axis=1, where=~np.isnan(at), initial=-1) >= last
    return np.where(stays | covered, held[:, inside].mean(axis=1), np.nan)


def first_reached(arms: Arms, arm: Arm, measure: str, level: Range) -> tuple[Array, Array, Array]:
    """When a measure is first in a range: three arrays of steps, shape (S,) each. Step 0 counts as 1.

    The first measurement there, or NaN; the earliest step at which it may have been there; the measure's last step.
    """
    steps, values = series(arms, arm, measure)
    inside = np.asarray((values >= level[0]) & (values <= level[1]))
    first = np.where(inside.any(axis=1), steps[np.argmax(inside, axis=1)], np.nan)
    ends = np.max(np.broadcast_to(steps, values.shape), axis=1, where=~np.isnan(values), initial=1)
    before = np.where(~np.isnan(values) & (steps < first[:, None]), steps, 0).max(axis=1)
    return np.maximum(first, 1), np.minimum(before + 1, np.maximum(first, 1)), ends


def points_within(
    arms: Arms, arm: Arm, x: str, y: str, *, log_x: bool, window: Range = UNBOUNDED
) -> list[tuple[Array, Array]]:
    """By seed, the points with x in the window and y > 0, sorted by x; x is positive too if its logarithm is taken."""
    runs = []
    _, xs, ys = series(arms, arm, x, y)
    for u, v in zip(xs, ys, strict=True):
        kept = np.isfinite(u) & np.isfinite(v) & (u >= window[0]) & (u <= window[1])
        kept &= (u > (0 if log_x else -math.inf)) & (v > 0)
        order = np.argsort(u[kept], kind="stable")
        runs.append((u[kept][order], v[kept][order]))
    return runs
