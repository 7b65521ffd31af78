"""Values of arms that claims compare: at a step, over steps, and when a level is first reached."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from bench.errors import UserError, check_known
from bench.papers.arms import Arm
from bench.results.stats import LEAST_POINTS, Array
from bench.text import cell


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
    """For each arm, the indices of its runs on the common seeds, in the order of the seeds.

    Raises:
        UserError: there are no common seeds.
    """
    seeds = arms[0].common_seeds(*arms[1:])
    if not seeds:
        raise UserError(f"arms {', '.join(arm.label for arm in arms)} have no common seed; train the same seeds")
    return [[list(arm.runs).index(seed) for seed in seeds] for arm in arms]


def common_series(results: Mapping[str, Arm], arm: Arm, *names: str) -> tuple[Array, ...]:
    """`Arm.series` with NaN for runs without the columns.

    Raises:
        UserError: no run of the experiment has such a column, or no table has all of them.
    """
    tables = [table for other in results.values() for table in other.every_table]
    check_known("column", names, sorted({name for table in tables for name in table}))
    if not any(all(name in table for name in names) for table in tables):
        raise UserError(f"columns {' and '.join(names)} are of different tables; name columns of one table")
    return arm.series(*names, lenient=True)


def values_at(results: Mapping[str, Arm], arm: Arm, measure: str, first: float | None, last: float | None) -> Array:
    """The mean of a measure over the steps from first to last, shape (S,).

    Without a measurement in this range, the latest one before it counts. A run that converged keeps its last value up
    to the last step of any arm; other runs have NaN if they ended before the range does. If the steps are None, the
    last value of every completed run counts.
    """
    first, last = (math.inf if step is None else step for step in (first, last))
    steps, values, at = common_series(results, arm, measure, "step")
    latest = np.maximum.accumulate(np.where(np.isnan(at), 0, np.arange(steps.size)), axis=1)
    held = np.take_along_axis(values, latest, axis=1)
    chosen = (steps >= first) & (steps <= last)
    if not chosen.any():
        chosen = steps == np.max(steps, where=steps <= last, initial=-1)
    if not chosen.any():
        return np.full(len(held), np.nan)
    at_end, runs = last == math.inf, arm.runs.values()
    end = max(np.max(table["step"], initial=0) for other in results.values() for table in other.every_table)
    stays = np.array([run.status == "completed" if at_end else run.converged and last <= end for run in runs])
    covered = np.max(at, axis=1, where=~np.isnan(at), initial=-1) >= last
    return np.where(stays | covered, held[:, chosen].mean(axis=1), np.nan)


def first_reached(
    results: Mapping[str, Arm], arm: Arm, measure: str, level: tuple[float, float]
) -> tuple[Array, Array, Array]:
    """When a measure is first in a range: three arrays of steps, shape (S,) each. Step 0 counts as 1.

    Returns:
        the step of the first measurement in the range, or NaN; the earliest step at which it may have been there, one
        after the measurement before; the last step of the measure.
    """
    steps, values = common_series(results, arm, measure)
    inside = np.asarray((values >= level[0]) & (values <= level[1]))
    first = np.where(inside.any(axis=1), steps[np.argmax(inside, axis=1)], np.nan)
    ends = np.max(np.broadcast_to(steps, values.shape), axis=1, where=~np.isnan(values), initial=1)
    before = np.where(~np.isnan(values) & (steps < first[:, None]), steps, 0).max(axis=1)
    return np.maximum(first, 1), np.minimum(before + 1, np.maximum(first, 1)), ends


def points_within(
    results: Mapping[str, Arm],
    arm: Arm,
    x: str,
    y: str,
    *,
    log_x: bool,
    log_y: bool,
    window: tuple[float, float] = (-math.inf, math.inf),
) -> list[tuple[Array, Array]]:
    """By seed, the finite points with x in the window, sorted by x; positive where a logarithm is taken."""
    runs = []
    _, xs, ys = common_series(results, arm, x, y)
    for u, v in zip(xs, ys, strict=True):
        chosen = np.isfinite(u) & np.isfinite(v) & (u >= window[0]) & (u <= window[1])
        chosen &= (u > (0 if log_x else -math.inf)) & (v > (0 if log_y else -math.inf))
        order = np.argsort(u[chosen], kind="stable")
        runs.append((u[chosen][order], v[chosen][order]))
    return runs
