"""From intervals and what is claimed of them to a verdict, with the sentence that says so.

An interval that straddles a bound is undecided, and so is one seed. Of several parts all must hold, and one that fails
is enough to fail; the numbers are those of the worst part. Numbers are finite or None.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from bench.papers.arms import Array
from bench.results import stats
from bench.results.stats import Interval

Verdict = Literal["holds", "fails", "undecided"]
_WORST_FIRST: tuple[Verdict, ...] = ("fails", "undecided", "holds")


@dataclass(frozen=True)
class Finding:
    """What a claim came to.

    Attributes:
        verdict: `holds`, `fails` or `undecided`.
        effect: the mean over seeds in `unit`, or None where there is no such number.
        low, high: its 95 % confidence interval; None for an end that the data do not bound.
        unit: what the effect is ("times as many steps").
        text: one sentence with our numbers.
    """

    verdict: Verdict
    effect: float | None
    low: float | None
    high: float | None
    unit: str
    text: str


Part = tuple[float, Finding]
"""How far the effect is inside its bounds, and the finding."""


def together(parts: Iterable[Part]) -> Finding:
    """All of them: holds if all hold, fails if one fails; numbers of the worst, by verdict, then by how far inside."""
    parts = list(parts)
    _, worst = min(parts, key=lambda part: (_WORST_FIRST.index(part[1].verdict), part[0]))
    return replace(worst, text="; ".join(dict.fromkeys(finding.text for _, finding in parts)))


def within(
    x: Interval | None,
    low: float,
    high: float,
    unit: str,
    text: str,
    *,
    shown: Interval | None = None,
    ties: bool = True,
    limit: Verdict = "holds",
) -> Part:
    """Whether the mean is in [low, high].

    Args:
        x: interval of the mean; None if a run has no value.
        low: least value of what is claimed.
        high: greatest value.
        unit: of the effect.
        text: the sentence, without the number of seeds.
        shown: the interval in the unit of the effect, if that is not x's.
        ties: whether an end of the interval that is exactly 0 is inside if 0 is a bound.
        limit: the best verdict there can be.
    """
    if x is None:
        return without_numbers("undecided", unit, text)
    verdict: Verdict = "undecided"
    if x.n > 1:
        if x.high < low or x.low > high:
            verdict = "fails"
        elif low <= x.low and x.high <= high and (ties or 0 not in (x.low, x.high)):
            verdict = "holds"
        verdict = _WORST_FIRST[min(map(_WORST_FIRST.index, (verdict, limit)))]
    text += f" ({x.n} seeds)" if x.n > 1 else " (one seed, so nothing is decided)"
    effect = shown or x
    lowest, highest = (end if x.n > 1 and math.isfinite(end) else None for end in (effect.low, effect.high))
    return min(x.mean - low, high - x.mean), Finding(verdict, effect.mean, lowest, highest, unit, text)


def without_numbers(verdict: Verdict, unit: str, text: str) -> Part:
    """A part whose numbers do not exist."""
    return -math.inf, Finding(verdict, None, None, None, unit, text)


def over_seeds(values: Array) -> Interval | None:
    """The mean over seeds with its interval, or None if one has no value."""
    return stats.t_interval(values) if np.isfinite(values).all() else None


def in_words(x: Interval | None) -> str:
    """The mean with its interval."""
    if x is None:
        return "unknown, since a run has no value there"
    return number(x.mean) + (f" [{number(x.low)}, {number(x.high)}]" if x.n > 1 else "")


def number(x: float) -> str:
    """To four digits, and whole numbers up to a million without an exponent."""
    return f"{x:.0f}" if 1e4 <= abs(x) < 1e6 and x == round(x) else f"{x:.4g}"
