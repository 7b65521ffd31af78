"""Which of two optimizers is better: a sequential test, valid under optional stopping and for any distribution.

The claim is about seeds: *better* means that an optimizer has the better value on more than half of all seeds. No test
of a mean is valid for every distribution (Bahadur and Savage 1956); the sign test of this claim is. A diverged run has
no value and counts as worse than every number; ties count for neither.

At each n, the test requires enough wins that the probability of ever reaching them, at any n, is at most the level if
neither is better (alpha spending, Lan and DeMets 1983, with a look after every seed). So seeds may be added until a
verdict is decided. Seeds count in ascending order, and a decision by the first n is final: further seeds must have
larger numbers (`results/statistics` shows what happens otherwise) and must not depend on results.

A second, smaller test makes a claim of its own: an optimizer *diverges more often* than the other, by the seeds on
which exactly one of them diverged. `SHARES` splits the level of 5 % between the two tests.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaln

from bench.results.stats import Array, Interval, Values, exp

WITHIN_TUNING = "no difference found (within tuning)"
"""The verdict if a search may have missed more than the difference (`bench.results.resolution`)."""
Verdict = Literal["better", "worse", "no difference found", "no difference found (within tuning)", "too few seeds"]

SHARES = (0.04, 0.01)
"""The split of the level, 0.05: wins over all seeds, and who diverges more often. Both tests are two-sided. Ours."""
RESERVE = 1.5  # at n seeds the share 1 - `RESERVE` / n of the level may be spent, the rest is left for later; ours
LEAST_SEEDS = 7
"""Fewest seeds that can decide a verdict: six wins in a row have probability 2 / 2^6 = 3 % by chance, and the 4 % are
not spent at once (`RESERVE`)."""
MOST_SEEDS = 200  # the largest number that is estimated in advice
OFTEN = ("diverges less often", "diverges more often")
"""Words for having a value more, or less, often: the runs without one diverged."""
ROUNDING = 2.0**-21
"""Relative difference up to which values count as equal: four units in the last place of float32."""


@lru_cache(maxsize=64)
def _boundaries(share: float, tests: int, most: int) -> NDArray[np.int_]:
    """Fewest deciding wins at each number of seeds, by the exact distribution of wins of undecided pairs."""
    levels, spent = share / 2 / np.arange(1, tests + 1), np.zeros(tests)
    reached = np.ones((tests, 1))  # probability of k wins so far without reaching the boundary, under the null
    boundaries = [np.ones(tests, dtype=int)]
    for n in range(1, most + 1):
        half, reached = reached / 2, np.zeros((tests, n + 1))
        reached[:, :-1] += half
        reached[:, 1:] += half
        tail = reached[:, ::-1].cumsum(axis=1)[:, ::-1]
        allowed = levels * (1 - RESERVE / n) - spent
        k = np.maximum.accumulate((tail > allowed[:, None]).sum(axis=1))  # the first with a tail within that level
        decidable = k <= n
        spent[decidable] += tail[decidable, k[decidable]]
        reached[np.arange(n + 1) >= k[:, None]] = 0.0
        boundaries.append(k)
    return np.array(boundaries)


def least_wins(n: int, share: float = SHARES[0], tests: int = 1) -> NDArray[np.int_]:
    """Fewest wins out of 0, 1, ..., n seeds that decide, shape (n + 1,); more than the seeds if these cannot decide.

    The two-sided share of the level, in (0, 1), is divided by the number of tests (Bonferroni).
    """
    most = (1 << n.bit_length()) - 1  # few sizes, so that one computation serves many numbers of seeds and of tests
    return _boundaries(share, 1 << (tests - 1).bit_length(), most)[: n + 1, tests - 1]


@dataclass(frozen=True)
class Comparison:
    """An optimizer against another on `n` common seeds.

    `effect` is the median over seeds of the paired difference, positive if better, or of the ratio of the values on a
    logarithmic scale; None if it is not finite. Its interval excludes zero effect if the wins decide, and covers the
    true median with probability 96 % or more, simultaneously for all numbers of seeds. Rarely (1 in 200 pairs of
    equals) it excludes the median: each end is the tightest of all.
    """

    n: int
    wins: int
    losses: int
    lost: tuple[int, int]  # number of runs of each without a value
    verdict: Verdict  # of the wins
    diverges: int  # 1 if it diverges less often than the other, -1 if more often, 0 if that is undecided
    decided_after: int | None  # number of seeds at which either was decided
    effect: Interval | None
    often: tuple[str, str] = OFTEN  # words for `diverges`

    @property
    def sign(self) -> int:
        """1 for better, -1 for worse, else 0."""
        return {"better": 1, "worse": -1}.get(self.verdict, 0)

    @property
    def words(self) -> str:
        """What was decided; words of a decision remain when seeds are added."""
        if self.lost == (self.n, self.n):
            return "no run has a value"  # such as the steps to a target
        often = {1: self.often[0], -1: self.often[1], 0: ""}[self.diverges]
        return self.verdict if not often else f"{self.verdict}, {often}" if self.sign else often


def compare(
    first: Values, second: Values, mode: str, *, log: bool = False, tests: int = 1, floor: float | None = None
) -> Comparison:
    """Compare two optimizers by their values on common seeds in order, shape (N,); None without a value.

    The `mode` says whether smaller ("min") or larger ("max") values are better. On a logarithmic scale the effect is a
    ratio, first over second, of positive values. The number of `tests` divides the level, so that the verdicts of
    several comparisons hold simultaneously. Values that equal the `floor` are upper bounds of the true ones.
    """
    n, lost = len(first), (sum(x is None for x in first), sum(x is None for x in second))
    d = _gains(first, second, mode, log)
    low, other_low = (np.array([x is not None and x == floor for x in side], dtype=bool) for side in (first, second))
    sign, decided_after = _first_decided(d > 0, d < 0, SHARES[0], tests)
    only = np.flatnonzero(np.isinf(d))  # seeds on which exactly one has a value
    diverges, of_those = _first_decided(d[only] > 0, d[only] < 0, SHARES[1], tests)
    if decided_after is None and of_those is not None:
        decided_after = int(only[of_those - 1]) + 1
    undecided: Verdict = "too few seeds" if n < LEAST_SEEDS else "no difference found"
    verdict: Verdict = "better" if sign > 0 else "worse" if sign < 0 else undecided
    effect = None if lost == (n, n) else _effect(d, low, other_low, mode, log)
    return Comparison(n, int((d > 0).sum()), int((d < 0).sum()), lost, verdict, diverges, decided_after, effect)


def _first_decided(won: NDArray[np.bool_], lost: NDArray[np.bool_], share: float, tests: int) -> tuple[int, int | None]:
    """The decided sign and the smallest deciding number of seeds; 0 and None if undecided."""
    least = least_wins(len(won), share, tests)[1:]
    reached = [(np.flatnonzero(of.cumsum() >= least), sign) for of, sign in ((won, 1), (lost, -1))]
    decisions = [(int(seeds[0]) + 1, sign) for seeds, sign in reached if seeds.size]
    n, sign = min(decisions, default=(None, 0))
    return sign, n


def differences(first: ArrayLike, second: ArrayLike, mode: str) -> Array:
    """Differences of pairs, shape (N,), positive where the first is better by the mode, and 0 within rounding."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    d = a - b if mode == "max" else b - a
    return np.where(abs(d) <= ROUNDING * np.maximum(abs(a), abs(b)), 0.0, d)


def _gains(first: Values, second: Values, mode: str, log: bool) -> Array:
    """Gain of the first by seed; infinite where only one of the two has a value, 0 where neither has."""
    present = np.array([[x is not None for x in side] for side in (first, second)], dtype=bool).reshape(2, -1)
    both = present.all(0)
    a, b = (np.array([math.nan if x is None else x for x in side], dtype=np.float64)[both] for side in (first, second))
    if not np.isfinite([a, b]).all() or (log and min(a.min(initial=1), b.min(initial=1)) <= 0):
        raise ValueError(f"{first} and {second} must be finite, and positive on a logarithmic scale, or None")
    d = differences(a, b, mode)
    if log:
        d = np.where(d == 0, 0.0, np.log(a / b) * (1 if mode == "max" else -1))
    gains = np.select([present[0] & ~present[1], present[1] & ~present[0]], [math.inf, -math.inf], 0.0)
    gains[both] = d
    return gains


def _effect(d: Array, first: NDArray[np.bool_], second: NDArray[np.bool_], mode: str, log: bool) -> Interval | None:
    """The median gain, with the interval of values that the sign test does not reject."""
    n = len(d)
    if not n:
        return None
    pair = _middle(d)
    if not np.isfinite(pair).all():
        return None
    # A value at the floor may be smaller; two of them count as equal.
    smaller, larger = (first & ~second, second & ~first)[:: 1 if mode == "max" else -1]
    least, most = np.where(smaller, -math.inf, d), np.where(larger, math.inf, d)
    low, middle, high = _bounds(least)[0], float(pair.mean()), _bounds(most)[1]
    below, above = (bool((_middle(gains) != pair).any()) for gains in (least, most))
    if log and mode == "min":  # a larger gain is a smaller ratio
        low, middle, high, below, above = -high, -middle, -low, above, below
    bound = "<=" if below and not above else ">=" if above and not below else ""
    if log:
        middle = exp(middle)
        low, high = (low, high) if low == -math.inf and high == math.inf else (exp(low), exp(high))
    return Interval(middle, low, high, n, bound)


def _middle(d: Array) -> Array:
    """The two values around the median; equal ones if their number is odd."""
    return np.sort(d)[[(len(d) - 1) // 2, len(d) // 2]]


def _bounds(d: Array) -> tuple[float, float]:
    """Ends of the values that the sign test never rejected, at any number of seeds: a confidence sequence."""
    low, high = -math.inf, math.inf
    least = least_wins(len(d))
    for n in range(LEAST_SEEDS, len(d) + 1):
        k = int(least[n])
        if k <= n:
            ordered = np.sort(d[:n])
            ends = max(low, float(ordered[n - k])), min(high, float(ordered[k - 1]))
            if ends[0] > ends[1]:  # in less than 4 % of all sequences; the first verdict stands
                break
            low, high = ends
    return low, high


def grid(values: Sequence[Sequence[Values]], mode: str) -> dict[tuple[int, int], Comparison]:
    """All pairs with Holm's correction (1979): the family-wise error rate is at most 5 %.

    values[i][j] are those of row i on the common seeds with row j.
    """
    still = list(combinations(range(len(values)), 2))
    comparisons: dict[tuple[int, int], Comparison] = {}
    before = -1
    while len(still) != before:
        comparisons |= {(i, j): compare(values[i][j], values[j][i], mode, tests=len(still)) for i, j in still}
        before, still = len(still), [pair for pair in still if not comparisons[pair].sign]
    return comparisons


def places(pairs: Mapping[tuple[int, int], Comparison], n: int) -> list[tuple[int, int]]:
    """The lowest and highest rank of each of n rows that is compatible with the decided ones of all pairs i < j."""
    better = {pair if comparison.sign > 0 else pair[::-1] for pair, comparison in pairs.items() if comparison.sign}
    rows = range(n)
    return [(1 + sum((j, i) in better for j in rows), n - sum((i, j) in better for j in rows)) for i in rows]


def decided_at(n: int, wins: int, losses: int, most: int) -> Array:
    """Posterior probability that the wins are first decided at each number of seeds up to `most`, shape (most + 1,).

    The probability that the leader wins a seed has the prior Beta(1/2, 1/2) (Jeffreys); ties count as its losses.
    """
    lead, other = max(wins, losses), min(wins, losses)
    a, b = lead + 0.5, n - lead + 0.5
    least = least_wins(most)
    ways, chances = np.ones(1), np.zeros(most + 1)  # number of undecided orders by further wins of the leader
    for m in range(1, most - n + 1):
        grown = np.zeros(m + 1)
        grown[:-1] += ways
        grown[1:] += ways
        further = np.arange(m + 1)
        over = (lead + further >= least[n + m]) | (other + m - further >= least[n + m])
        share = np.exp(np.log(np.maximum(grown, 1e-300)) + betaln(a + further, b + m - further) - betaln(a, b))
        chances[n + m] = share[over & (grown > 0)].sum()
        grown[over] = 0.0
        ways = grown
    return chances


@lru_cache(maxsize=10_000)
def advice(n: int, wins: int, losses: int) -> tuple[int, int] | None:
    """The range of total seeds in which the wins will be decided with probability 80 %; None if unknown."""
    reached = decided_at(n, wins, losses, MOST_SEEDS).cumsum()
    if n < 2 or 2 * (wins + losses) < n or reached[-1] < 0.9:
        return None
    low, high = (int(np.searchsorted(reached, share)) for share in (0.1, 0.9))
    return low, high
