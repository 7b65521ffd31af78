"""Statistics over seeds and tasks: pure functions over arrays.

Intervals over seeds are Student's t and no bootstrap: a percentile bootstrap over 3 seeds covers 75 % instead of 95 %. What
they cover, and what the tests find, is simulated in `results/statistics`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, betaincinv, chdtri, nctdtr, ndtr, stdtr, stdtrit

SPACING = 0.05
"""Least distance in decades between the points of a fit against log x: at most twenty points a decade. Ours."""
WINDOW = 0.25
"""Decades over which a local exponent is fitted. Ours."""
LEAST_POINTS = 3
"""Fewest points that a line is fitted to: two always lie on one. Ours."""


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval.

    Attributes:
        mean: of the values, in their unit.
        low, high: ends of the interval; infinite where the values do not bound it.
        n: how many values.
    """

    mean: float
    low: float
    high: float
    n: int


def t_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """Student's t-interval of the mean of normal values (Student 1908).

    One value has the interval (-inf, inf), so that nothing can be decided by it; equal values have width 0.

    Args:
        values: one for each seed, shape (N,) with N >= 1, finite.
        level: share of such intervals that hold the true mean, in (0, 1).

    Raises:
        ValueError: there is no value, one is not finite, or the level is out of range.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError(f"values={values!r} must be one or more finite numbers")
    if not 0 < level < 1:
        raise ValueError(f"level={level} is out of range: it must be in (0, 1)")
    n = array.size
    if _are_equal(array):
        mean, half = float(array.max()), 0.0 if n > 1 else math.inf
    else:
        mean = float(array.mean())
        half = float(stdtrit(n - 1, (1 + level) / 2) * array.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def _are_equal(values: NDArray[np.float64]) -> bool:
    """Whether values differ by no more than the rounding of a sum or two: their deviation would be that error."""
    return bool(np.ptp(values) <= 8 * np.finfo(np.float64).eps * np.abs(values).max())


def slope(x: ArrayLike, y: ArrayLike) -> tuple[float, float, float]:
    """Least-squares line y = intercept + slope x.

    Args:
        x: shape (N,), finite, not all equal.
        y: shape (N,), finite.

    Returns:
        slope, in units of y per x; intercept, in units of y; R^2, the share of the variance of y that the line
        explains, in [0, 1], and 1 for a constant y.

    Raises:
        ValueError: the shapes differ, a value is not finite, or all of x is equal.
    """
    u, v = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if u.ndim != 1 or u.shape != v.shape or not (np.isfinite(u).all() and np.isfinite(v).all()):
        raise ValueError(f"x and y must be finite and as long as each other, not of shapes {u.shape} and {v.shape}")
    if not u.size or np.ptp(u) == 0:
        raise ValueError("x must have two different values")
    if np.ptp(v) == 0:
        return 0.0, float(v[0]), 1.0
    scale_u, scale_v = np.ptp(u), np.ptp(v)  # squares of small numbers would vanish
    du, dv = (u - u.mean()) / scale_u, (v - v.mean()) / scale_v
    product, square = du @ dv, du @ du
    gradient = product / square * (scale_v / scale_u)
    r2 = min(1.0, product / square * product / (dv @ dv))
    return float(gradient), float(v.mean() - gradient * u.mean()), float(r2)


def thin(x: NDArray[np.float64]) -> list[int]:
    """Which points to keep so that they spread evenly over log x, since of points at every step most lie at the right end.

    Args:
        x: shape (N,), positive, not decreasing.

    Returns:
        indices: the first, each that is `SPACING` decades beyond the one before, and the last.
    """
    log_x, gap, kept = np.log10(x), SPACING * (1 - 1e-9), []
    while (i := int(np.searchsorted(log_x, log_x[kept[-1]] + gap)) if kept else 0) < x.size:
        kept.append(i)
    return kept if not kept or x[kept[-1]] == x[-1] else [*kept, x.size - 1]


def power_law_decades(x: NDArray[np.float64], y: NDArray[np.float64], low: float, high: float) -> float:
    """Length of the longest stretch of x in which y goes as a power of x with a local exponent in [low, high].

    The local exponent at a point is the least-squares slope of log y on log x over the points `WINDOW` / 2 decades to
    either side, or over the nearest `LEAST_POINTS` if fewer lie there. It is taken at thinned points; a stretch goes from
    the first to the last in a row whose exponents lie in the range.

    Args:
        x: shape (N,), positive, not decreasing, with at least `LEAST_POINTS` different values.
        y: shape (N,), positive.
        low: least exponent.
        high: greatest exponent.

    Returns:
        decades, in [0, inf), to 9 digits after the point.
    """
    x, index = np.unique(x, return_index=True)
    log_x, log_y, longest, start = np.log10(x), np.log10(y)[index], 0.0, None
    for centre in log_x[thin(x)]:
        distance = np.abs(log_x - centre)
        near = np.flatnonzero(distance <= WINDOW / 2)
        if near.size < LEAST_POINTS:
            near = np.argsort(distance, kind="stable")[:LEAST_POINTS]
        if low <= slope(log_x[near], log_y[near])[0] <= high:
            start = centre if start is None else start
            longest = max(longest, float(centre - start))
        else:
            start = None
    return round(longest, 9)


# -- comparing two optimizers -----------------------------------------------------------------------------------------

Values = Sequence[float | None]
"""A value for each seed; None for a run that has none since it diverged or missed its target: worse than every number."""


@dataclass(frozen=True)
class Pair:
    """Two optimizers on the seeds that both have.

    Attributes:
        n: common seeds.
        difference: first minus second, oriented so that positive is better, with its paired t-interval; None if a run has no
            value, or there is no common seed.
        p: two-sided, of the hypothesis that the two are equal.
        lost: how many runs of each have no value.
        sign: which is better, whether that is decided or not: 1 the first, -1 the second, 0 neither.
    """

    n: int
    difference: Interval | None
    p: float
    lost: tuple[int, int]
    sign: int


def pair(first: Values, second: Values, mode: str) -> Pair:
    """Compare two optimizers on common seeds (same initialisation, same order of the batches).

    Where all runs have a value it is Student's paired t-test, which can reject from two seeds on. A run without a value is no
    number, so the counts of such runs are compared by Boschloo's exact test, and the others by the t-test; the two tests share
    the level (Bonferroni), and where they point in opposite directions nothing is decided. Differences that are all the same
    number tell no deviation; then the test is of the signs, with p = 2^(1 - n).

    Args:
        first: by common seed, shape (N,).
        second: likewise.
        mode: whether values are better when smaller ("min") or greater ("max").

    Raises:
        ValueError: the lengths differ, or a value is not finite.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} values are no pairs")
    n, lost = len(first), (sum(x is None for x in first), sum(x is None for x in second))
    both = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    d = differences([a for a, _ in both], [b for _, b in both], mode)
    if not np.isfinite(d).all():
        raise ValueError(f"{first} and {second} must be finite numbers or None")
    p_values, sign = _p_of_differences(d), int(np.sign(d.mean())) if d.size else 0
    if lost == (0, 0):
        return Pair(n, t_interval(d) if n else None, p_values, lost, sign)
    fewer = int(np.sign(lost[1] - lost[0]))
    if d.size > 1 and sign * fewer < 0:  # one pair has no direction to speak of
        return Pair(n, None, 1.0, lost, 0)
    tests = 2 if d.size > 1 else 1
    return Pair(n, None, min(1.0, tests * min(p_values, _p_of_counts(*lost, n))), lost, fewer or sign)


ROUNDING = 2.0**-21
"""Relative error of values that a model computed in float32, of which a difference may consist: four units in the last place."""


def differences(first: ArrayLike, second: ArrayLike, mode: str) -> NDArray[np.float64]:
    """Paired differences, positive where the first is better, without what rounding has made of equal ones.

    Values that agree to within `ROUNDING` have the difference 0, and differences that are the same to within it are made equal: else
    0.82 - 0.81, 0.81 - 0.80 and 0.84 - 0.83 had a deviation of 1e-17, and a t-test would be as sure as that.

    Args:
        first: by common seed, shape (N,).
        second: likewise.
        mode: whether values are better when smaller ("min") or greater ("max").
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    d = a - b if mode == "max" else b - a
    error = ROUNDING * np.maximum(abs(a), abs(b))
    d = np.where(abs(d) <= error, 0.0, d)
    middle = np.median(d) if d.size else 0.0
    return np.full_like(d, middle) if (abs(d - middle) <= error).all() else d


def _p_of_differences(d: NDArray[np.float64]) -> float:
    """Two-sided p of Student's t-test that the mean of these differences is 0."""
    if d.size < 2 or not d.any():
        return 1.0
    if np.ptp(d) == 0:
        return 2.0 ** (1 - d.size)
    return float(2 * stdtr(d.size - 1, -abs(d.mean()) / d.std(ddof=1) * math.sqrt(d.size)))


@lru_cache(maxsize=10_000)
def _p_of_counts(first: int, second: int, n: int) -> float:
    """Two-sided p of Boschloo's test that of n runs each as many are lost."""
    from scipy.stats import boschloo_exact  # takes half a second to import

    return float(min(1.0, boschloo_exact([[first, second], [n - first, n - second]]).pvalue))


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p-values: those at most alpha are rejected with a family-wise error rate of alpha (Holm 1979).

    Args:
        p: of all hypotheses of the family, in [0, 1].
    """
    adjusted, highest = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        highest = max(highest, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = highest
    return adjusted


@dataclass(frozen=True)
class Rank:
    """A place in an order in which not all is decided.

    Attributes:
        rank: 1 + the number of rows before the group of rows that are tied with each other, directly or through others.
        low, high: the first and the last place that the decided pairs leave open.
    """

    rank: int
    low: int
    high: int


def ranks(pairs: Mapping[tuple[int, int], Pair], n: int, level: float = 0.05) -> list[Rank]:
    """Ranks of n rows in the order of their score: rows whose difference is not resolved share one.

    A new group begins where every row above is better than every row below, by Holm's procedure over all pairs at the level. So
    if all are equal, the probability of more than one group is at most the level.

    Args:
        pairs: for all i < j, row i against row j; i comes first.
        n: rows.
        level: family-wise error rate, in (0, 1).
    """
    keys = list(pairs)
    decided = {
        key for key, p in zip(keys, holm([pairs[key].p for key in keys]), strict=True) if p <= level and pairs[key].sign
    }
    better = {(i, j) if pairs[i, j].sign > 0 else (j, i) for i, j in decided}
    found: list[Rank] = []
    for row in range(n):
        starts = all((i, j) in better for i in range(row) for j in range(row, n))
        rank = row + 1 if starts else found[-1].rank
        above = sum((other, row) in better for other in range(n))
        below = sum((row, other) in better for other in range(n))
        found.append(Rank(rank, 1 + above, n - below))
    return found


MOST_SEEDS = 10_000
"""Seeds beyond which nobody asks how many would do."""


def seeds_to_resolve(difference: Interval, level: float = 0.05, power: float = 0.8) -> int | None:
    """How many seeds a paired t-test needs to find a difference as large as the one observed, with its deviation.

    Args:
        difference: observed, with at least two seeds and a 95 % interval.
        level: of the test, in (0, 1).
        power: wanted, in (0, 1).

    Returns:
        all seeds, not those beyond the ones that are there; None if it is more than `MOST_SEEDS`, or the difference is 0.
    """
    if difference.n < 2 or difference.mean == 0:
        return None
    half = difference.high - difference.mean
    if half == 0:
        return max(2, math.ceil(1 - math.log2(level)))  # the test of signs
    deviation = half / float(stdtrit(difference.n - 1, 0.975)) * math.sqrt(difference.n)
    effect = abs(difference.mean) / deviation

    def enough(n: int) -> bool:
        critical, shift = float(stdtrit(n - 1, 1 - level / 2)), effect * math.sqrt(n)
        missed = float(nctdtr(n - 1, shift, critical))
        if math.isnan(missed):  # scipy gives up beyond a shift of about 38
            missed = float(ndtr(critical - shift))
        return missed <= 1 - power

    if not enough(MOST_SEEDS):
        return None
    low, high = 1, MOST_SEEDS  # low is not enough, high is
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


# -- over tasks -------------------------------------------------------------------------------------------------------

RESAMPLES = 10_000
"""Of the bootstrap. Ours."""


def standardised_gap(first: ArrayLike, second: ArrayLike, mode: str) -> NDArray[np.float64] | None:
    """Paired differences in units of the seed deviation: of the root of the mean of the two variances (Cohen's d_av).

    It is a function of the two alone, so that nobody else's results change it.

    Args:
        first: by common seed, shape (N,), N >= 2, finite.
        second: likewise.
        mode: "min" or "max"; positive differences are better.

    Returns:
        shape (N,); None if the deviation is 0 and the difference is not.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    d = differences(a, b, mode)
    deviation = math.sqrt((_variance(a) + _variance(b)) / 2)
    if deviation == 0:
        return None if d.any() else d
    return d / deviation


def _variance(values: NDArray[np.float64]) -> float:
    """Of a sample; of equal values it is 0 and not a rounding error."""
    return 0.0 if _are_equal(values) else float(values.var(ddof=1))


def hierarchical_interval(gaps: Sequence[NDArray[np.float64]], level: float = 0.95) -> Interval:
    """Mean over tasks of the mean over seeds, with an interval by a hierarchical paired bootstrap: tasks, then seeds.

    Percentiles are widened as Hesterberg (2015, "What teachers should know about the bootstrap", 'expanded percentile') does,
    since with few tasks plain ones are too narrow. One task has the t-interval of its seeds. The numbers drawn depend on the
    shapes alone, so the same data give the same interval.

    Args:
        gaps: by task, of each common seed, shape (N_t,) with N_t >= 2, finite.
        level: of the interval, in (0, 1).
    """
    if len(gaps) == 1:
        return t_interval(gaps[0], level)
    tasks, draw = len(gaps), np.random.default_rng(0)
    which = draw.integers(tasks, size=(RESAMPLES, tasks))
    means = np.stack(
        [gap[draw.integers(gap.size, size=(RESAMPLES, tasks, gap.size))].mean(axis=2) for gap in gaps], axis=2
    )
    found = np.take_along_axis(means, which[:, :, None], axis=2)[:, :, 0].mean(axis=1)
    tail = float(ndtr(math.sqrt(tasks / (tasks - 1)) * stdtrit(tasks - 1, (1 - level) / 2)))
    low, high = np.quantile(found, [tail, 1 - tail])
    return Interval(float(np.mean([gap.mean() for gap in gaps])), float(low), float(high), tasks)


# -- shares, times, budgets -------------------------------------------------------------------------------------------


def share_interval(count: int, n: int, level: float = 0.95) -> Interval:
    """A share with its exact interval (Clopper and Pearson 1934).

    Args:
        count: in [0, n].
        n: of how many, at least 1.
        level: of the interval, in (0, 1).
    """
    tail = (1 - level) / 2
    low = 0.0 if count == 0 else float(betaincinv(count, n - count + 1, tail))
    high = 1.0 if count == n else float(betaincinv(count + 1, n - count, 1 - tail))
    return Interval(count / n, low, high, n)


def deviation_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """The standard deviation of normal values with its interval (chi-squared).

    Args:
        values: shape (N,), N >= 2, finite.
        level: of the interval, in (0, 1).
    """
    array = np.asarray(values, dtype=np.float64)
    square, df = _variance(array), array.size - 1
    low, high = (math.sqrt(df * square / float(chdtri(df, tail))) for tail in ((1 - level) / 2, (1 + level) / 2))
    return Interval(math.sqrt(square), low, high, array.size)


@dataclass(frozen=True)
class MedianTime:
    """Median time to an event that some runs miss.

    Attributes:
        median: infinite if more than half of the runs miss it.
        low, high: ends of the interval, infinite where it reaches runs that miss it; None if there are too few runs for one.
        last: until when the runs were seen.
    """

    median: float
    low: float | None
    high: float | None
    last: float


def median_time(reached: Sequence[float | None], ended: Sequence[float]) -> MedianTime:
    """Median time to an event, by Kaplan and Meier's estimate, with an interval by order statistics.

    The interval holds the median with at least 95 % whatever the distribution, from 6 runs on. For its lower end a run that was
    cut off early counts as if it had reached the event then, for its upper end as if it never did.

    Args:
        reached: when the event came, positive; None where it has not.
        ended: until when it could have been seen; infinite for a run that diverged and can reach nothing any more.
    """
    seen = [time for time in (*reached, *ended) if time is not None and math.isfinite(time)]
    last, n = max(seen, default=math.inf), len(reached)
    cut = [end if math.isfinite(end) and end < last else math.inf for end in ended]
    early = sorted(end if time is None else time for time, end in zip(reached, cut, strict=True))
    late = sorted(math.inf if time is None else time for time in reached)
    # The median lies outside of k-th smallest and k-th greatest only if fewer than k of n fair coins show heads, or tails.
    k = int((bdtr(np.arange(n), n, 0.5) <= 0.025).sum())
    bounds = (early[k - 1], late[n - k]) if k else (None, None)
    if early == late:
        return MedianTime(late[(n - 1) // 2], *bounds, last)
    from scipy.stats import CensoredData, ecdf  # takes half a second to import

    censored = [min(end, last) for time, end in zip(reached, ended, strict=True) if time is None]
    survival = ecdf(CensoredData(uncensored=[time for time in reached if time is not None], right=censored)).sf
    there = np.flatnonzero(survival.probabilities <= 0.5 + 1e-12)
    return MedianTime(float(survival.quantiles[there[0]]) if there.size else math.inf, *bounds, last)


def expected_best(scores: Values, mode: str) -> list[float | None]:
    """Expected score of the best of k settings that are drawn from these without replacement, for k = 1..N (exact).

    After Dodge et al. (2019, "Show your work"), who draw with replacement.

    Args:
        scores: of all settings, None for one that diverged.
        mode: of the score.

    Returns:
        by k; None while all k may be settings that diverged, since that is no number.
    """
    good = sorted((score for score in scores if score is not None), reverse=mode == "max")
    n, lost, expected = len(scores), len(scores) - len(good), []
    for k in range(1, n + 1):
        if k <= lost:
            expected.append(None)
            continue
        # The i-th best is the best of k if the k - 1 others come after it.
        weights = [math.comb(n - 1 - i, k - 1) / math.comb(n, k) for i in range(len(good))]
        expected.append(math.fsum(w * score for w, score in zip(weights, good, strict=True)))
    return expected
