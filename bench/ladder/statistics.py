"""The statistics of ladders: pure functions over float64 arrays.

A step ratio is given by its natural logarithm: 0 if two methods are equal, negative if the first needs fewer steps.
`tools/ladder_statistics.py` simulates the coverage of the intervals.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression
from scipy.special import bdtr, fdtrc, stdtr, stdtrit

from bench.results.stats import Interval, median_rank, t_interval

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
        estimate: the value with its standard error; the error is infinite if the value is a median or a bound.
        interval: the same value with the 95 % interval of the median over seeds (`median_ends`); the value is a bound
            if the median is beyond the evaluations.
        beyond: number of seeds whose ratio is beyond the evaluations.
    """

    estimate: Estimate
    interval: Interval
    beyond: int


def _quantile(df: float) -> float:
    return float(stdtrit(df, 1 - LEVEL / 2))


# -- efficiency -------------------------------------------------------------------------------------------------------


def step_ratio(
    steps: ArrayLike, own: ArrayLike, reference: ArrayLike, *, smooth: bool = True, floor: float = -math.inf
) -> StepRatio:
    """The number of steps of a method relative to a reference at equal loss, as a natural logarithm.

    The value is the Hodges-Lehmann estimate over seeds, which a seed that learns late or diverges changes little. A
    ratio beyond the evaluations, of which only the sign is known, counts as that of the first evaluation. If so many
    are beyond that the estimate depends on this (two of five), the value is the median. The interval is that of the
    median.

    Args:
        steps: as for `seed_ratios`.
        own: as for `seed_ratios`.
        reference: as for `seed_ratios`.
        smooth: as for `seed_ratios`.
        floor: as for `seed_ratios`.

    Raises:
        ValueError: as `seed_ratios`, or fewer than two seeds are left.
    """
    ratios = seed_ratios(steps, own, reference, smooth=smooth, floor=floor)
    if len(ratios) < 2:
        raise ValueError("fewer than two seeds on which one of the methods does not diverge")
    s = np.asarray(steps, dtype=np.float64)
    end = math.log(s[-1] / s[0])
    ends = (-end, end), (-2 * end, 3 * end)  # unequal, so that seeds at opposite ends do not cancel
    found, farther = (hodges_lehmann(np.clip(ratios, *each)) for each in ends)
    bound = ""
    if found.value != farther.value:
        median, bound = _median(ratios, end)
        found = Estimate(median, math.inf, found.df)
    low, high = median_ends(ratios)
    interval = Interval(found.value, min(low, found.value), max(high, found.value), len(ratios), bound)
    return StepRatio(found, interval, int(np.isinf(ratios).sum()))


def seed_ratios(
    steps: ArrayLike, own: ArrayLike, reference: ArrayLike, *, smooth: bool = True, floor: float = -math.inf
) -> Array:
    """The logarithm of the ratio of steps of each seed.

    Its loss is the worse of the two final ones. Let S be the number of steps. If the method ends below the reference,
    and its curve reaches the reference's final loss at step s, the ratio is s / S. If it ends above, and the
    reference's curve reaches the method's final loss at step s, the ratio is S / s. So nothing is extrapolated. Curves
    are smoothed (`smoothing`), and interpolated over the logarithm of the step.

    Args:
        steps: of the evaluations, shape (P,), positive and increasing, P >= 2.
        own: loss of the method by seed and evaluation, shape (N, P), finite; all infinite for a diverged seed.
        reference: loss of the reference with the same seeds, shape (N, P). A seed on which both diverge is left out.
        smooth: whether to smooth; pass False if a schedule bends the curves at their ends.
        floor: the smallest loss that can be measured. If both curves end at it, the ratio is that of the evaluations at
            which they first reach it.

    Returns:
        Shape (N',), N' <= N; infinite if only one method diverges or s is before the first evaluation.

    Raises:
        ValueError: a loss of a seed that did not diverge is not finite, or the steps are not positive and increasing.
    """
    s, a, b = (np.asarray(each, dtype=np.float64) for each in (steps, own, reference))
    lost, won = ((each == math.inf).all(1) for each in (a, b))
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
    a, b = (each[both] @ smoothing(places).T if smooth else each[both] for each in (a, b))
    ratios[both] = [_zero(candidates, _excess(places, left, *pair)) for pair in zip(a, b, strict=True)]
    beyond = [ratios == candidates[0], ratios == candidates[-1]]
    return np.where(at_floor, arrived, np.select(beyond, [-math.inf, math.inf], ratios))[~(lost & won)]


def _median(ratios: Array, end: float) -> tuple[float, str]:
    """The median of ratios, some of them infinite, and how it bounds the true one (`Interval.bound`).

    It is 0 if one half is at each end; the interval of the median is infinite then.
    """
    ordered = np.sort(ratios)
    middle = ordered[[(len(ordered) - 1) // 2, len(ordered) // 2]]
    values, (first, second) = np.clip(middle, -end, end), np.isinf(middle)
    if first == second:
        at = float(values.mean())
        return at, "" if abs(at) < end else ">=" if at > 0 else "<="
    return float(values[0 if second else 1]), ">=" if second else "<="


def _excess(places: Array, left: Array, own: Array, reference: Array) -> Array:
    """How much the loss of a method exceeds the reference's at each candidate ratio, made non-increasing."""
    below = np.interp(left, places, own) - reference[-1]
    above = own[-1] - np.interp(left, places, reference)
    return isotonic_regression(np.append(below, above[-2::-1]), increasing=False).x


def median_ends(values: Array) -> tuple[float, float]:
    """The ends of a 95 % interval for the median of any distribution.

    They interpolate between two order statistics (Hettmansperger and Sheather 1986). For five values they are the
    smallest and the largest, which covers 93.75 %; for fewer they are infinite.

    Args:
        values: shape (N,), possibly infinite.
    """
    n, ordered = len(values), np.sort(values).tolist()
    if n < 5:
        return -math.inf, math.inf
    k = median_rank(n)
    if not k:
        return ordered[0], ordered[-1]
    inner, outer = (1 - 2 * float(bdtr(rank - 1, n, 0.5)) for rank in (k + 1, k))
    share = (outer - 1 + LEVEL) / (outer - inner)
    weight = (n - k) * share / (k + (n - 2 * k) * share)

    def between(far: float, near: float) -> float:
        return far if math.isinf(far) else (1 - weight) * far + weight * near

    return between(ordered[k - 1], ordered[k]), between(ordered[n - k], ordered[n - 1 - k])


def hodges_lehmann(values: Array) -> Estimate:
    """The median of the means of all pairs of values, each also with itself (Hodges and Lehmann 1963).

    For normal values its variance is 5 % larger than that of the mean, that of the median 57 %, but one value among
    five can move it only to the range of the others. The standard error comes from the distance between the quartiles
    of those means; error and degrees of freedom are right for normal values (`_normal`). Ours.

    Args:
        values: shape (N,), N >= 2, finite.
    """
    (value,), (spread,) = _of_pairs(values[None])
    scale, df = _normal(len(values))
    return Estimate(float(value), scale * float(spread), df)


def _of_pairs(samples: Array) -> tuple[Array, Array]:
    """The median of the means of all pairs of each row, and the distance between their quartiles."""
    i, j = np.triu_indices(samples.shape[1])
    low, middle, high = np.quantile((samples[:, i] + samples[:, j]) / 2, (0.25, 0.5, 0.75), axis=1)
    return middle, high - low


@cache
def _normal(n: int) -> tuple[float, float]:
    """The standard error of `hodges_lehmann` for n normal values as a multiple of the spread; its degrees of freedom.

    The squared error is unbiased, and the value is within a t-quantile times its error with 95 %. From simulated
    samples: 80,000 of five values, 40,816 of seven.
    """
    draws = max(4_000, 2_000_000 // n**2)
    values, spreads = _of_pairs(np.random.default_rng(0).normal(size=(draws, n)))
    scale = math.sqrt(values.var() / np.mean(spreads**2))
    dfs = np.geomspace(0.5, 1e4, 1000)
    quantile = np.quantile(np.abs(values) / (scale * spreads), 1 - LEVEL)
    return scale, float(np.interp(-quantile, -stdtrit(dfs, 1 - LEVEL / 2), dfs))


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

    The slope is that of a least-squares line through the logarithms. Each rung searches around the winner of the
    previous one, so the errors of the best values may be independent or accumulate from rung to rung. The interval is
    the wider one of these two cases, with K - 2 degrees of freedom. A grid resolves the best value up to a step, so
    errors count as at least step / sqrt(12), the standard deviation of a uniform distribution of that width. Ours.

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
    weights = centred / square
    cases = [  # residuals, and how much each counts in the slope
        (y - y.mean() - slope * centred, weights),
        (np.diff(y) - slope * np.diff(x), np.cumsum(weights[::-1])[::-1][1:]),
    ]
    least = step**2 / 12
    squares = [max(float(errors @ errors) / left, least) * float(each @ each) for errors, each in cases]
    half = _quantile(left) * math.sqrt(max(squares))
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
