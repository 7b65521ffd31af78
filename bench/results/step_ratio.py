"""Steps of a method relative to a reference at equal loss: pure functions over float64 arrays."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import isotonic_regression
from scipy.special import bdtr

from bench.results.stats import Array, Interval

FINE = 16  # points per interval between two evaluations at which curves are compared; ours
SMOOTH = 0.3  # half-width of the smoothing window, in the natural logarithm of the step; ours


def step_ratio(
    steps: ArrayLike, method: ArrayLike, reference: ArrayLike, *, smooth: bool = True, floor: float = -math.inf
) -> Interval:
    """The natural logarithm of the ratio of steps; arguments as for `seed_ratios`.

    The value is the Hodges-Lehmann estimate over seeds (the median of the means of all pairs), which a seed that learns
    late changes little. Ratios beyond the evaluations count as that of the first evaluation. If so many are beyond that
    the estimate depends on this (two of five), the value is the median, or a bound of it. The interval is that of the
    median (`median_ends`). Its coverage is simulated in `results/statistics/ladder.md`. ValueError for fewer than two
    seeds.
    """
    ratios = seed_ratios(steps, method, reference, smooth=smooth, floor=floor)
    if len(ratios) < 2:
        raise ValueError("fewer than two seeds on which one of the methods does not diverge")
    first, *_, last = np.asarray(steps, dtype=np.float64)
    end = math.log(last / first)
    value, bound = _hodges_lehmann(np.clip(ratios, -end, end)), ""
    if value != _hodges_lehmann(np.clip(ratios, -2 * end, 3 * end)):  # unequal, so that opposite ends do not cancel
        value, bound = _median(ratios, end)
    low, high = median_ends(ratios)
    return Interval(value, min(low, value), max(high, value), len(ratios), bound)


def seed_ratios(
    steps: ArrayLike, method: ArrayLike, reference: ArrayLike, *, smooth: bool = True, floor: float = -math.inf
) -> Array:
    """The natural logarithm of the ratio of steps of each seed, shape (N',), N' <= N.

    It is taken at the worse of the two final losses, so nothing is extrapolated: with S steps in all, it is s / S if
    the method reaches the reference's final loss at step s, and S / s if the reference reaches the method's at step s.
    Curves are smoothed (`smoothing`) and interpolated over the logarithm of the step. A ratio is infinite if only one
    method diverges, or if s is before the first evaluation; a seed on which both diverge is left out.

    Args:
        steps: of the evaluations, shape (P,), positive and increasing, P >= 2.
        method: losses by seed and evaluation, shape (N, P), finite; all infinite for a diverged seed.
        reference: losses of the reference with the same seeds, shape (N, P).
        smooth: False if a schedule bends the curves at their ends.
        floor: the smallest measurable loss. If both curves end at it, the ratio is that of their arrivals there.

    Raises:
        ValueError: a loss of a seed that did not diverge is not finite, or the steps are not positive and increasing.
    """
    s, a, b = (np.asarray(values, dtype=np.float64) for values in (steps, method, reference))
    lost, won = ((values == math.inf).all(1) for values in (a, b))
    both = ~(lost | won)
    if not (np.isfinite(a[~lost]).all() and np.isfinite(b[~won]).all() and (np.diff(s) > 0).all() and s[0] > 0):
        raise ValueError("losses must be finite, steps positive and increasing")
    places = np.log(s / s[-1])
    share = np.arange(FINE) / FINE
    left = np.append((places[:-1, None] + np.diff(places)[:, None] * share).ravel(), 0.0)
    candidates = np.concatenate([left, -left[-2::-1]])
    ratios = np.where(lost, candidates[-1], candidates[0])
    arrived = places[np.argmax(a <= floor, 1)] - places[np.argmax(b <= floor, 1)]
    at_floor = (a[:, -1] <= floor) & (b[:, -1] <= floor)
    a, b = (values[both] @ smoothing(places).T if smooth else values[both] for values in (a, b))
    ratios[both] = [_zero(candidates, _excess(places, left, *pair)) for pair in zip(a, b, strict=True)]
    beyond = [ratios == candidates[0], ratios == candidates[-1]]
    return np.where(at_floor, arrived, np.select(beyond, [-math.inf, math.inf], ratios))[~(lost & won)]


def median_ends(values: Array) -> tuple[float, float]:
    """The ends of a 95 % interval for the median of any distribution, from values of shape (N,), possibly infinite.

    They interpolate between two order statistics (Hettmansperger and Sheather 1986). For five values they are the
    smallest and the largest, which covers 93.75 %; for fewer they are infinite.
    """
    n, ordered = len(values), np.sort(values).tolist()
    if n < 5:
        return -math.inf, math.inf
    k = int((bdtr(np.arange(n), n, 0.5) <= 0.025).sum())
    if not k:
        return ordered[0], ordered[-1]
    inner, outer = (1 - 2 * float(bdtr(rank - 1, n, 0.5)) for rank in (k + 1, k))
    share = (outer - 0.95) / (outer - inner)
    weight = (n - k) * share / (k + (n - 2 * k) * share)
    pairs = (ordered[k - 1], ordered[k]), (ordered[n - k], ordered[n - 1 - k])
    low, high = (far if math.isinf(far) else (1 - weight) * far + weight * near for far, near in pairs)
    return low, high


def smoothing(places: Array) -> Array:
    """The matrix of local linear regression with twicing, shape (P, P), for `places` of shape (P,).

    Lines are fitted with weights that fall to 0 at the distance `SMOOTH` (Cleveland 1979, without robustness); then
    the residuals are smoothed and added (Tukey 1977), since the curvature of a power law would bias ratios by 0.5 %. It
    maps a straight line to itself.
    """
    distance = places[None, :] - places[:, None]
    weights = np.maximum(0, 1 - np.abs(distance) / SMOOTH)
    rows = np.eye(len(places))
    for i in np.flatnonzero((weights > 0).sum(1) > 1):
        design = np.column_stack([np.ones(len(places)), distance[i]])
        weighted = design.T * weights[i]
        rows[i] = np.linalg.solve(weighted @ design, weighted)[0]
    return 2 * rows - rows @ rows


def _hodges_lehmann(values: Array) -> float:
    i, j = np.triu_indices(len(values))
    return float(np.median((values[i] + values[j]) / 2))


def _median(ratios: Array, end: float) -> tuple[float, str]:
    """The median of ratios, some infinite, and how it bounds the true one; 0 if half are at each end."""
    ordered = np.sort(ratios)
    middle = ordered[[(len(ordered) - 1) // 2, len(ordered) // 2]]
    values, (first, second) = np.clip(middle, -end, end), np.isinf(middle)
    if first == second:
        mean = float(values.mean())
        return mean, "" if abs(mean) < end else ">=" if mean > 0 else "<="
    return float(values[0 if second else 1]), ">=" if second else "<="


def _excess(places: Array, left: Array, method: Array, reference: Array) -> Array:
    """How much the loss of a method exceeds the reference's at each candidate ratio, made non-increasing."""
    below = np.interp(left, places, method) - reference[-1]
    above = method[-1] - np.interp(left, places, reference)
    return isotonic_regression(np.append(below, above[-2::-1]), increasing=False).x


def _zero(x: Array, falling: Array) -> float:
    """The zero of a non-increasing curve: the middle if there are several, the nearer end if there is none."""
    above, zeros, below = (np.flatnonzero(np.sign(falling) == sign) for sign in (1, 0, -1))
    if above.size and below.size and not zeros.size:
        i, j = above[-1], below[0]
        return float(x[i] + (x[j] - x[i]) * falling[i] / (falling[i] - falling[j]))
    return float(x[zeros].mean() if zeros.size else x[-1] if above.size else x[0])
