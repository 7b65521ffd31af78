"""Which optimizer is better: paired differences, tests, ranks, and intervals over tasks; pure functions over arrays."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import nctdtr, ndtr, stdtr, stdtrit

from bench.results.stats import Interval, Values, t_interval, variance


@dataclass(frozen=True)
class Pair:
    """Two optimizers on the seeds that both have.

    Attributes:
        n: common seeds.
        difference: first minus second, oriented so that positive is better, with its paired t-interval; None if a run
            has no value, or there is no common seed.
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

    Where all runs have a value it is Student's paired t-test, which can reject from two seeds on. A run without a value
    is no number, so the counts of such runs are compared by Boschloo's exact test, and the others by the t-test; the
    two tests share the level (Bonferroni), and where they point in opposite directions nothing is decided. Differences
    that are all the same number tell no deviation; then the test is of the signs, with p = 2^(1 - n).

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
"""Relative error of a model's values in float32, of which a difference may consist: four units in the last place."""


def differences(first: ArrayLike, second: ArrayLike, mode: str) -> NDArray[np.float64]:
    """Paired differences, positive where the first is better, without what rounding has made of equal ones.

    Values that agree to within `ROUNDING` have the difference 0, and differences that are the same to within it are
    made equal: else 0.82 - 0.81, 0.81 - 0.80 and 0.84 - 0.83 had a deviation of 1e-17, and a t-test would be as sure as
    that.

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

    A new group begins where every row above is better than every row below, by Holm's procedure over all pairs at the
    level. So if all are equal, the probability of more than one group is at most the level.

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
        all seeds, not those beyond the ones that are there; None if it is more than `MOST_SEEDS`, or the difference
        is 0.
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
    deviation = math.sqrt((variance(a) + variance(b)) / 2)
    if deviation == 0:
        return None if d.any() else d
    return d / deviation


def hierarchical_interval(gaps: Sequence[NDArray[np.float64]], level: float = 0.95) -> Interval:
    """Mean over tasks of the mean over seeds, with an interval by a hierarchical paired bootstrap: tasks, then seeds.

    Percentiles are widened as Hesterberg (2015, "What teachers should know about the bootstrap", 'expanded percentile')
    does, since with few tasks plain ones are too narrow. One task has the t-interval of its seeds. The numbers drawn
    depend on the shapes alone, so the same data give the same interval.

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
