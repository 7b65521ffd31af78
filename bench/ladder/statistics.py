"""The statistics of ladders: pure functions over float64 arrays.

A step ratio is given by its natural logarithm: 0 if two methods are equal, negative if the first needs fewer steps.
`tools/ladder_statistics.py` simulates the coverage of the intervals.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression
from scipy.special import fdtrc, stdtr, stdtrit

from bench.results.stats import Interval, t_interval

Array = NDArray[np.float64]

FINE = 16
"""Number of points per interval between two evaluations at which curves are compared. Ours."""
SMOOTH = 0.3
"""Half-width of the smoothing window, in the natural logarithm of the step. Without smoothing, the noise between
evaluations makes intervals cover 99 % instead of 95 %. Ours."""
LEVEL = 0.05
"""Significance level. Ours."""


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error.

    Attributes:
        value: the estimate.
        error: its standard error.
        df: degrees of freedom of the error.
    """

    value: float
    error: float
    df: float

    @property
    def interval(self) -> Interval:
        """The 95 % t-interval."""
        half = _quantile(self.df) * self.error
        return Interval(self.value, self.value - half, self.value + half, round(self.df) + 1)


@dataclass(frozen=True)
class StepRatio:
    """The natural logarithm of a ratio of steps.

    Attributes:
        interval: the 95 % interval, with the estimated value as its mean.
        error: the standard error; infinite if the value is beyond the evaluations.
    """

    interval: Interval
    error: float

    @property
    def estimate(self) -> Estimate:
        """The estimate for trends and predictions."""
        return Estimate(self.interval.mean, self.error, self.interval.n - 1)


def _quantile(df: float) -> float:
    return float(stdtrit(df, 1 - LEVEL / 2))


# -- efficiency -------------------------------------------------------------------------------------------------------


def step_ratio(steps: ArrayLike, own: ArrayLike, reference: ArrayLike, *, smooth: bool = True) -> StepRatio:
    """The number of steps of a method relative to a reference at equal loss, as a natural logarithm.

    The loss is the worse of the two final ones. Let S be the number of steps. If the method ends below the reference,
    and its curve reaches the reference's final loss at step s, the ratio is s / S. If it ends above, and the
    reference's curve reaches the method's final loss at step s, the ratio is S / s. So nothing is extrapolated. Curves
    are smoothed (`smoothing`), and interpolated over the logarithm of the step.

    The 95 % interval spans the smallest to the largest ratio that a paired t-test over the seeds does not reject (an
    inverted test, as in Fieller 1954). An end is infinite if it is beyond the evaluations. The standard error is the
    root mean square of the two sides of the range in which the mean difference is at most its own standard error; a
    side beyond the evaluations counts as long as the other.

    Args:
        steps: of the evaluations, shape (P,), positive and increasing, P >= 2.
        own: loss of the method by seed and evaluation, shape (N, P), N >= 2, finite.
        reference: loss of the reference with the same seeds, shape (N, P).
        smooth: whether to smooth; pass False if a schedule bends the curves at their ends.

    Raises:
        ValueError: a loss is not finite, or the steps are not positive and increasing.
    """
    s, a, b = (np.asarray(each, dtype=np.float64) for each in (steps, own, reference))
    if not (np.isfinite(a).all() and np.isfinite(b).all() and (np.diff(s) > 0).all() and s[0] > 0):
        raise ValueError("losses must be finite, steps positive and increasing")
    places = np.log(s / s[-1])
    if smooth:
        a, b = a @ smoothing(places).T, b @ smoothing(places).T
    share = np.arange(FINE) / FINE
    left = np.append((places[:-1, None] + np.diff(places)[:, None] * share).ravel(), 0.0)
    a_fine, b_fine = (np.array([np.interp(left, places, curve) for curve in curves]) for curves in (a, b))
    ratios = np.concatenate([left, -left[-2::-1]])
    # Excess of the method's loss over the reference's at each candidate ratio; it falls with the ratio.
    gaps = np.concatenate([a_fine - b[:, -1:], (a[:, -1:] - b_fine)[:, -2::-1]], axis=1)
    n, mean = len(gaps), gaps.mean(0)
    value = _zero(ratios, isotonic_regression(mean, increasing=False).x)
    errors = gaps.std(0, ddof=1) / math.sqrt(n)
    low, high = _within(ratios, mean, _quantile(n - 1) * errors, value)
    if value in ratios[[0, -1]]:
        return StepRatio(Interval(value, low, high, n), math.inf)
    sides = np.abs(value - _within(ratios, mean, errors, value))
    known = sides[np.isfinite(sides)]
    if not known.size:
        known = np.abs(value - ratios[[0, -1]])
    return StepRatio(Interval(value, low, high, n), math.sqrt(known @ known / known.size))


def _within(x: Array, mean: Array, half: Array, value: float) -> Array:
    """The ends of the range around a value in which |mean| <= half; infinite beyond the first or last x."""
    beyond = np.abs(mean) - half
    kept = np.flatnonzero(beyond <= 0)
    if not kept.size:  # no noise, and the value is between two grid points
        return np.array([value, value])
    first, last = int(kept[0]), int(kept[-1])
    low = -math.inf if first == 0 else _between(x, beyond, first, first - 1)
    high = math.inf if last == x.size - 1 else _between(x, beyond, last, last + 1)
    return np.array([min(low, value), max(high, value)])


def smoothing(places: Array) -> Array:
    """The matrix of local linear regression with twicing.

    Lines are fitted by least squares with weights that fall to 0 at the distance `SMOOTH` (Cleveland 1979, without the
    robustness iterations); then the residuals are smoothed and added (Tukey 1977). Without that, the curvature of a
    power law biases ratios by up to 0.5 %, more than the noise of some methods. A value without neighbours within
    `SMOOTH` is not changed.

    Args:
        places: shape (P,).

    Returns:
        Shape (P, P); it maps a straight line to itself.
    """
    distance = places[None, :] - places[:, None]
    weights = np.maximum(0, 1 - np.abs(distance) / SMOOTH)
    rows = np.eye(len(places))
    for i in np.flatnonzero((weights > 0).sum(1) > 1):
        design = np.column_stack([np.ones(len(places)), distance[i]])
        weighted = design.T * weights[i]
        rows[i] = np.linalg.solve(weighted @ design, weighted)[0]
    return 2 * rows - rows @ rows


def _zero(x: Array, falling: Array) -> float:
    """The zero of a non-increasing curve: the middle if there are several, the nearer end if there is none."""
    above, below = np.flatnonzero(falling > 0), np.flatnonzero(falling < 0)
    i, j = (int(above[-1]) if above.size else 0), (int(below[0]) if below.size else x.size - 1)
    if j - i == 1 and above.size and below.size:
        return _between(x, falling, i, j)
    zeros = np.flatnonzero(falling == 0)
    return float(x[zeros].mean() if zeros.size else x[-1] if above.size else x[0])


def _between(x: Array, y: Array, i: int, j: int) -> float:
    """The zero of the line through two points."""
    return float(x[i] + (x[j] - x[i]) * y[i] / (y[i] - y[j])) if y[i] != y[j] else float(x[i])


# -- trends -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trend:
    """A straight line through estimates.

    Attributes:
        slope: per unit of x, with its interval.
        misfit: p-value of the residuals, if a line holds and the estimates' errors are the only noise; None below three
            points.
        widened: whether the interval comes from the residuals instead of the errors, since the misfit is below 5 %.
    """

    slope: Interval
    misfit: float | None
    widened: bool


def trend(x: ArrayLike, estimates: Sequence[Estimate]) -> Trend:
    """The least-squares line through estimates, with their errors as noise.

    The degrees of freedom are Satterthwaite's (1946). If the residuals are larger than the errors explain (F-test for
    unequal variances, Brown and Forsythe 1974, 5 %), the interval comes from the residuals if that is wider: there is
    noise beyond seeds, such as that of tuning.

    Args:
        x: shape (K,), K >= 2, not all equal.
        estimates: of y at x, with finite errors.

    Raises:
        ValueError: there are fewer than two different x.
    """
    u = np.asarray(x, dtype=np.float64)
    if u.size != len(estimates) or u.size < 2 or np.ptp(u) == 0:
        raise ValueError(f"x={x!r} must have two different values or more, one for each estimate")
    centred = u - u.mean()
    weights = centred / (centred @ centred)
    return Trend(*_combined(u, estimates, weights))


def predict(x: ArrayLike, estimates: Sequence[Estimate], at: float) -> Interval:
    """The prediction of a measurement at a new x, with a 95 % prediction interval.

    With one point it is that point's value, with more the least-squares line. The variance of the new measurement is
    taken as the mean of the old ones.

    Args:
        x: shape (K,), K >= 1, all different.
        estimates: of y at x, with finite errors.
        at: the new x.

    Raises:
        ValueError: x is empty or has equal values.
    """
    u = np.asarray(x, dtype=np.float64)
    if not u.size or u.size != len(estimates) or np.unique(u).size < u.size:
        raise ValueError(f"x={x!r} must have different values, one for each estimate")
    centred = u - u.mean()
    weights = np.full(u.size, 1 / u.size)
    if u.size > 1:
        weights = weights + (at - u.mean()) * centred / (centred @ centred)
    return _combined(u, estimates, weights, new=True)[0]


def _combined(
    x: Array, estimates: Sequence[Estimate], weights: Array, *, new: bool = False
) -> tuple[Interval, float | None, bool]:
    """A weighted sum of estimates, such as the value of a line through them.

    Args:
        x: positions of the estimates.
        estimates: independent estimates.
        weights: of the sum.
        new: add the noise of a new measurement.

    Returns:
        The sum; the p-value of the line's misfit, None below three points; whether the residuals set the error.
    """
    y = np.array([each.value for each in estimates])
    squares, dfs = np.array([each.error**2 for each in estimates]), np.array([each.df for each in estimates])
    parts, part_dfs = weights**2 * squares, dfs
    if new:  # with the mean variance of the others
        parts, part_dfs = np.append(parts, squares / len(y)), np.append(dfs, dfs)
    total = parts.sum()
    shares = parts / total if total else parts
    df = 1 / float((shares**2 / part_dfs).sum()) if total else float(dfs.sum())
    found, misfit = Estimate(float(weights @ y), math.sqrt(total), df), None
    if len(y) > 2:
        design = np.column_stack([np.ones_like(x), x - x.mean()])
        rest = np.eye(len(y)) - design @ np.linalg.pinv(design)
        residual, left = rest @ y, len(y) - 2
        misfit = _misfit(residual, rest, squares, dfs)
        if misfit < LEVEL:
            variance = float(residual @ residual) / left
            other = Estimate(found.value, math.sqrt(variance * (weights @ weights + new)), left)
            if other.error * _quantile(left) > found.error * _quantile(df):
                return other.interval, misfit, True
    return found.interval, misfit, False


def _misfit(residual: Array, rest: Array, squares: Array, dfs: Array) -> float:
    """The p-value of residuals if estimates scatter by their errors only (Brown and Forsythe 1974).

    The sum of squared residuals is compared with its expectation; both have Satterthwaite's degrees of freedom.
    """
    parts, product = rest.diagonal() * squares, rest * squares
    expected, total = float(parts.sum()), float(residual @ residual)
    if not expected or not total:
        return float(not total)
    own, others = expected**2 / float((product * product.T).sum()), expected**2 / float((parts**2 / dfs).sum())
    return float(fdtrc(own, others, total / expected))


def exponent(sizes: ArrayLike, best: ArrayLike, step: float) -> Interval:
    """The exponent a of best ~ size^a, from the best values on grids.

    The interval is that of a least-squares line through the logarithms, with K - 2 degrees of freedom. A grid resolves
    the best value up to a step, so the residuals count as at least step / sqrt(12), the standard deviation of a uniform
    distribution of that width.

    Args:
        sizes: shape (K,), positive, K >= 2, not all equal.
        best: shape (K,), positive.
        step: of the grid, in decades.

    Raises:
        ValueError: there are fewer than two different sizes.
    """
    x, y = (np.log10(np.asarray(each, dtype=np.float64)) for each in (sizes, best))
    if x.size != y.size or x.size < 2 or np.ptp(x) == 0:
        raise ValueError(f"sizes={sizes!r} must have two different values or more, one for each of best")
    centred = x - x.mean()
    square, left = float(centred @ centred), x.size - 2
    slope = round(float(centred @ y) / square, 12) + 0.0  # no -0
    if not left:
        return Interval(slope, -math.inf, math.inf, x.size)
    residual = y - y.mean() - slope * centred
    variance = max(float(residual @ residual) / left, step**2 / 12)
    half = _quantile(left) * math.sqrt(variance / square)
    return Interval(slope, slope - half, slope + half, x.size)


# -- rankings ---------------------------------------------------------------------------------------------------------


def told(*values: ArrayLike) -> list[NDArray[np.int8]]:
    """Significant differences between all pairs of methods, with a family-wise error rate of 5 %.

    Paired t-tests with Holm's correction (1979) over all pairs of all arrays.

    Args:
        values: by method and seed, shape (M, N), N >= 2, finite; smaller is better.

    Returns:
        For each array, shape (M, M): -1 if the first is better, 1 if the second is, 0 without significant difference.
    """
    arrays = [np.asarray(each, dtype=np.float64) for each in values]
    tests = list[tuple[float, int, int, int, int]]()
    for k, array in enumerate(arrays):
        for i, j in itertools.combinations(range(len(array)), 2):
            gaps = array[i] - array[j]
            mean, error = float(gaps.mean()), float(gaps.std(ddof=1)) / math.sqrt(gaps.size)
            p = 2 * float(stdtr(gaps.size - 1, -abs(mean) / error)) if error > 0 else float(mean == 0)
            tests.append((p, k, i, j, -1 if mean < 0 else 1))
    found = [np.zeros((len(array), len(array)), dtype=np.int8) for array in arrays]
    for rank, (p, k, i, j, sign) in enumerate(sorted(tests)):
        if p * (len(tests) - rank) > LEVEL:
            break
        found[k][i, j], found[k][j, i] = sign, -sign
    return found


def kendall(first: ArrayLike, second: ArrayLike) -> Interval:
    """Kendall's tau between the rankings of two groups of runs, in [-1, 1], with a 95 % interval for the true one.

    tau is the share of pairs of methods in equal order minus the share in opposite order, by means over seeds. A pair
    without a significant difference in at least one group (`told`) may be in either order; this gives the interval,
    which contains the tau of the true means with a probability of at least 95 %.

    Args:
        first: by method and seed, shape (M, N), M >= 2, N >= 2, finite; smaller is better.
        second: shape (M, N'), the same methods.
    """
    one, other = told(first, second)
    pairs = np.triu_indices(len(one), 1)
    same, count = (one * other)[pairs], len(pairs[0])
    open_pairs, sure = int((same == 0).sum()), int(same.sum())
    a, b = (_order(each)[pairs] for each in (first, second))
    tau = float((a == b).sum() - (a * b < 0).sum()) / count  # a tie in both is the same order
    low, high = (sure - open_pairs) / count, (sure + open_pairs) / count
    return Interval(tau, min(low, tau), max(high, tau), count)


def final_from(rungs: Sequence[ArrayLike]) -> tuple[int, int]:
    """The first rung from which on the ranking equals that of the last one: by means, and by significant differences.

    By means, two rankings differ if a pair of methods is in different orders, of which a tie is one; by significant
    differences, if it is in opposite orders significantly in both (`told`).

    Args:
        rungs: values by method and seed, shape (M, N) each, of the same methods; smaller is better.

    Returns:
        Two indices of rungs.
    """
    means, sure = list(map(_order, rungs)), told(*rungs)
    first = max((k + 1 for k, one in enumerate(means) if (one != means[-1]).any()), default=0)
    return first, max((k + 1 for k, one in enumerate(sure) if (one * sure[-1] < 0).any()), default=0)


def _order(values: ArrayLike) -> Array:
    """The signs of the differences between the means of all pairs of methods, shape (M, M), as in `told`."""
    means = np.asarray(values, dtype=np.float64).mean(1)
    return np.sign(means[:, None] - means)


def regret(values: ArrayLike, chosen: int) -> Interval:
    """Regret of a chosen method: its true mean minus that of the best method, with a 95 % interval.

    The interval is valid although the same seeds choose the best method (Hsu 1984, multiple comparisons with the best):
    it ends at the largest upper end of the paired t-intervals of the differences to the other methods, and starts at
    their largest lower end with Bonferroni's correction. The regret of equal methods is overestimated.

    Args:
        values: by method and seed, shape (M, N), M >= 1, finite; smaller is better.
        chosen: index of a method.
    """
    array = np.asarray(values, dtype=np.float64)
    gaps = np.delete(array[chosen] - array, chosen, axis=0)
    lows = [t_interval(each, 1 - LEVEL / len(gaps)).low for each in gaps]
    highs = [t_interval(each).high for each in gaps]
    value, low, high = (max([0.0, *map(float, ends)]) for ends in (gaps.mean(1), lows, highs))
    return Interval(value, low, high, array.shape[1])
