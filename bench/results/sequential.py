"""Which of two optimizers is better, decided so that it holds however often somebody looks and whatever the noise.

The claim is about seeds: *better* says that an optimizer gives the better value on more than half of all seeds. No test
of a mean holds for every shape of noise (Bahadur and Savage 1956); the sign test of this claim does. A run without a
value, since it diverged, is worse than every number, so it needs no test of its own; equal values count for neither.

The test is sequential: at n seeds it asks for so many wins that the probability of ever getting them, at any n, is at
most the level if neither is better (alpha spending, Lan and DeMets 1983, with a look after every seed). So seeds may be
added until something is decided, and looking costs nothing. Seeds count in their order, and what the first n have
decided stands: which seeds there are must not depend on their results.

A second, smaller test asks who diverges more often, among the seeds on which one of the two diverged and the other did
not. So no survivors can veto what the diverged runs say. `SHARES` splits the level of 5 % between the two tests.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaln

from bench.results.stats import Interval, Values, exp

Verdict = Literal["better", "worse", "no difference found", "too few seeds", "selected on these seeds"]

LEVEL = 0.05
"""Probability of a verdict on two of which neither is better, over all numbers of seeds together."""
SHARES = (0.04, 0.01)
"""How the level is split: wins of all seeds, and who diverges more often. Both tests are two-sided. Ours."""
RESERVE = 1.5
"""The level that may be spent by n seeds is the share 1 - `RESERVE` / n of it, so the rest stays for later. Ours."""
LEAST_SEEDS = 7
"""Fewest seeds that can decide anything: six in a row come by chance in 2 / 2^6 = 3 % of cases, and 4 % is not spent at
once (`RESERVE`)."""
MOST_SEEDS = 200
"""Seeds beyond which nobody asks how many would do."""
ROUNDING = 2.0**-21
"""Relative error of a model's values in float32, of which a difference may consist: four units in the last place."""


# -- the boundary -----------------------------------------------------------------------------------------------------


class _Boundaries:
    """Fewest wins at each number of seeds, by the exact distribution of the wins of those that go on.

    One for each level: what a smaller level decides every greater one does, as Holm's procedure needs.

    Args:
        share: two-sided.
        tests: the levels are the share divided by 1, 2, ... tests.
    """

    def __init__(self, share: float, tests: int) -> None:
        self._levels = share / 2 / np.arange(1, tests + 1)
        self._spent = np.zeros(tests)
        self._open = np.ones((tests, 1))  # probability of k wins so far, never at the boundary, for two that are equal
        self._least = [np.ones(tests, dtype=int)]

    def least(self, tests: int, n: int) -> NDArray[np.int_]:
        """Fewest wins that decide, by the number of seeds, shape (n + 1,); one more than the seeds if none do."""
        while len(self._least) <= n:
            self._extend()
        return np.array([of[tests - 1] for of in self._least[: n + 1]])

    def _extend(self) -> None:
        n = len(self._least)
        reached = np.zeros((len(self._levels), n + 1))
        reached[:, :-1] += self._open / 2
        reached[:, 1:] += self._open / 2
        tail = reached[:, ::-1].cumsum(axis=1)[:, ::-1]
        allowed = self._levels * (1 - RESERVE / n) - self._spent
        k = (tail > allowed[:, None]).sum(axis=1)  # the first whose tail is no more than what may be spent
        k = np.maximum.accumulate(k)
        there = k <= n
        self._spent[there] += tail[there, k[there]]
        reached[np.arange(n + 1) >= k[:, None]] = 0.0
        self._open = reached
        self._least.append(k)


_boundaries = lru_cache(maxsize=64)(_Boundaries)


def _least_wins(n: int, share: float, tests: int) -> NDArray[np.int_]:
    return _boundaries(share, 1 << (tests - 1).bit_length()).least(tests, n)


def least_wins(n: int, share: float = SHARES[0], tests: int = 1) -> int:
    """Fewest wins of n seeds that decide; n + 1 if n seeds can decide nothing.

    Args:
        n: seeds, at least 0.
        share: of the level, two-sided, in (0, 1).
        tests: by how many the share is divided (Bonferroni), at least 1.
    """
    return int(_least_wins(n, share, tests)[n])


# -- two optimizers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """An optimizer against another, on the seeds that both have.

    Attributes:
        n: common seeds.
        wins, losses: seeds on which it gives the better, or the worse value; the others are ties.
        lost: how many runs of each have no value.
        verdict: see the module.
        told: after how many seeds; None if nothing is decided.
        effect: median over seeds of the paired difference, oriented so that positive is better, or of the ratio of the
            values on a logarithmic scale. Its ends exclude no effect where the wins decide, and hold the true median
            with at least 96 %, at all numbers of seeds together; they are infinite where the seeds do not bound it.
            None if the median is not a number.
    """

    n: int
    wins: int
    losses: int
    lost: tuple[int, int]
    verdict: Verdict
    told: int | None
    effect: Interval | None

    @property
    def sign(self) -> int:
        """1 for better, -1 for worse, else 0."""
        return {"better": 1, "worse": -1}.get(self.verdict, 0)

    @property
    def selected(self) -> "Comparison":
        """Without a verdict and an interval, which promise nothing of settings that were chosen on these seeds."""
        effect = self.effect and replace(self.effect, low=-math.inf, high=math.inf)
        return replace(self, verdict="selected on these seeds", told=None, effect=effect)


def compare(first: Values, second: Values, mode: str, *, log: bool = False, tests: int = 1) -> Comparison:
    """Compare two optimizers on common seeds (same initialisation, same order of the batches).

    Args:
        first: by common seed in their order, shape (N,); None for a run without a value.
        second: likewise.
        mode: whether values are better when smaller ("min") or greater ("max").
        log: whether the effect is a ratio, first over second; values must then be positive.
        tests: by how many the level is divided; verdicts of several comparisons then hold together.

    Raises:
        ValueError: the lengths differ, a value is not finite, or not positive on a logarithmic scale.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} values do not form pairs")
    n, lost = len(first), (sum(x is None for x in first), sum(x is None for x in second))
    d = _gains(first, second, mode, log)
    sign, told = _first_told(d > 0, d < 0, SHARES[0], tests)
    if not sign:  # who diverges more often, among the seeds on which one of the two did
        only = np.flatnonzero(np.isinf(d))
        sign, told = _first_told(d[only] > 0, d[only] < 0, SHARES[1], tests)
        told = told and int(only[told - 1]) + 1
    undecided: Verdict = "too few seeds" if n < LEAST_SEEDS else "no difference found"
    verdict: Verdict = "better" if sign > 0 else "worse" if sign < 0 else undecided
    return Comparison(n, int((d > 0).sum()), int((d < 0).sum()), lost, verdict, told, _effect(d, mode, log))


def _first_told(won: NDArray[np.bool_], lost: NDArray[np.bool_], share: float, tests: int) -> tuple[int, int | None]:
    """The sign that the first n seeds decide, for the smallest such n, and that n; 0 and None if none do."""
    least = _least_wins(len(won), share, tests)[1:]
    reached = [(np.flatnonzero(of.cumsum() >= least), sign) for of, sign in ((won, 1), (lost, -1))]
    told = [(int(there[0]) + 1, sign) for there, sign in reached if there.size]
    n, sign = min(told, default=(None, 0))
    return sign, n


def differences(first: ArrayLike, second: ArrayLike, mode: str) -> NDArray[np.float64]:
    """Paired differences, positive where the first is better, and 0 where rounding may have made them.

    Args:
        first: by common seed, shape (N,).
        second: likewise.
        mode: whether values are better when smaller ("min") or greater ("max").
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    d = a - b if mode == "max" else b - a
    return np.where(abs(d) <= ROUNDING * np.maximum(abs(a), abs(b)), 0.0, d)


def _gains(first: Values, second: Values, mode: str, log: bool) -> NDArray[np.float64]:
    """By seed, how much better the first is; infinite where only one of the two has a value, 0 where none has."""
    both = [a is not None and b is not None for a, b in zip(first, second, strict=True)]
    a = np.array([x for x, there in zip(first, both, strict=True) if there], dtype=np.float64)
    b = np.array([x for x, there in zip(second, both, strict=True) if there], dtype=np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError(f"{first} and {second} must be finite numbers or None")
    if log and not ((a > 0).all() and (b > 0).all()):
        raise ValueError(f"{first} and {second} must be positive on a logarithmic scale")
    d = differences(a, b, mode)
    if log:
        d = np.where(d == 0, 0.0, np.log(a / b) * (1 if mode == "max" else -1))
    found = np.array(
        [
            math.inf * ((x is not None) - (y is not None)) if (x is None) != (y is None) else 0.0
            for x, y in zip(first, second, strict=True)
        ],
        dtype=np.float64,
    )
    found[both] = d
    return found


def _effect(d: NDArray[np.float64], mode: str, log: bool) -> Interval | None:
    """The median gain, with the ends that the sign test does not reject."""
    n = len(d)
    if not n:
        return None
    ordered = np.sort(d)
    pair = ordered[(n - 1) // 2], ordered[n // 2]
    if not np.isfinite(pair).all():
        return None
    middle, (low, high) = float((pair[0] + pair[1]) / 2), _bounds(d)
    if not log:
        return Interval(middle, low, high, n)
    if low == -math.inf and high == math.inf:
        return Interval(exp(middle if mode == "max" else -middle), low, high, n)
    ends = (low, middle, high) if mode == "max" else (-high, -middle, -low)
    return Interval(exp(ends[1]), exp(ends[0]), exp(ends[2]), n)


def _bounds(d: NDArray[np.float64]) -> tuple[float, float]:
    """Ends of the values that the sign test has rejected after no number of seeds: a confidence sequence."""
    low, high = -math.inf, math.inf
    least = _least_wins(len(d), SHARES[0], 1)
    for n in range(LEAST_SEEDS, len(d) + 1):
        k = int(least[n])
        if k <= n:
            ordered = np.sort(d[:n])
            ends = max(low, float(ordered[n - k])), min(high, float(ordered[k - 1]))
            if ends[0] > ends[1]:  # less than 4 % of all sequences; the first verdict stands
                break
            low, high = ends
    return low, high


# -- many of them -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """What the decided pairs leave open of a row's rank: the first place and the last."""

    low: int
    high: int


def grid(values: Sequence[Sequence[Values]], mode: str) -> dict[tuple[int, int], Comparison]:
    """All pairs, with Holm's correction over them (1979): any false verdict at all has a probability of 5 % at most.

    Args:
        values: values[i][j] are those of row i on the seeds that it shares with row j.
        mode: of the values.
    """
    rows = range(len(values))
    pairs = [(i, j) for i in rows for j in rows if i < j]
    found = {pair: compare(*_of(values, pair), mode, tests=len(pairs)) for pair in pairs}
    while any(found[pair].sign for pair in pairs):
        pairs = [pair for pair in pairs if not found[pair].sign]
        found |= {pair: compare(*_of(values, pair), mode, tests=len(pairs)) for pair in pairs}
    return found


def _of(values: Sequence[Sequence[Values]], pair: tuple[int, int]) -> tuple[Values, Values]:
    return values[pair[0]][pair[1]], values[pair[1]][pair[0]]


def places(pairs: Mapping[tuple[int, int], Comparison], n: int) -> list[Place]:
    """Rank intervals of n rows: how many are decided to be better, and how many worse.

    Args:
        pairs: for all i < j, row i against row j.
        n: rows.
    """
    better = {pair if found.sign > 0 else pair[::-1] for pair, found in pairs.items() if found.sign}
    return [
        Place(1 + sum((j, i) in better for j in range(n)), n - sum((i, j) in better for j in range(n)))
        for i in range(n)
    ]


# -- more seeds -------------------------------------------------------------------------------------------------------


def next_look(n: int, wins: int, losses: int) -> int:
    """The smallest number of seeds at which a pair could be decided, if the leading one won all that remain.

    Args:
        n: seeds that are there.
        wins: of one.
        losses: of it.
    """
    lead, later = max(wins, losses), n + 1
    while lead + later - n < least_wins(later):
        later += 1
    return later


def decided_at(n: int, wins: int, losses: int, most: int) -> NDArray[np.float64]:
    """Probability that the wins are first decided at each number of seeds up to the most, given what is seen.

    The probability that the leading one wins has the prior Beta(1/2, 1/2) (Jeffreys); equal values count as losses of
    it.

    Args:
        n: seeds that are there.
        wins: of one.
        losses: of it.
        most: seeds.

    Returns:
        shape (most + 1,), by number of seeds; the sum is the probability of a decision.
    """
    lead, other = max(wins, losses), min(wins, losses)
    a, b = lead + 0.5, n - lead + 0.5
    least = _least_wins(most, SHARES[0], 1)
    ways, found = np.ones(1), np.zeros(most + 1)  # in how many orders the further wins of the leading one come
    for m in range(1, most - n + 1):
        grown = np.zeros(m + 1)
        grown[:-1] += ways
        grown[1:] += ways
        further = np.arange(m + 1)
        over = (lead + further >= least[n + m]) | (other + m - further >= least[n + m])
        share = np.exp(np.log(np.maximum(grown, 1e-300)) + betaln(a + further, b + m - further) - betaln(a, b))
        found[n + m] = share[over & (grown > 0)].sum()
        grown[over] = 0.0
        ways = grown
    return found


@lru_cache(maxsize=10_000)
def advice(n: int, wins: int, losses: int) -> tuple[int, int] | None:
    """Between how many seeds in all the wins would be decided, with a probability of 80 %; None if nobody can say.

    Args:
        n: seeds that are there.
        wins: of one.
        losses: of it.
    """
    reached = decided_at(n, wins, losses, MOST_SEEDS).cumsum()
    if n < 2 or 2 * (wins + losses) < n or reached[-1] < 0.9:
        return None
    low, high = (int(np.searchsorted(reached, share)) for share in (0.1, 0.9))
    return low, high


GIVE_UP = 0.2
"""Probability of a decision below which a race adds no seeds to a pair. Ours: it spends least for its power."""


def next_seeds(n: int, wins: int, losses: int, most: int) -> int | None:
    """How many seeds a race gives to an open pair next, so that it can be decided at once; None for no more.

    Args:
        n: seeds that are there.
        wins: of one.
        losses: of it.
        most: seeds that a pair may have.
    """
    if n >= most or 2 * (wins + losses) < n or decided_at(n, wins, losses, most).sum() < GIVE_UP:
        return None
    return min(most, next_look(n, wins, losses))
