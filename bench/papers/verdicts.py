"""From intervals and claims about them to a verdict, with a sentence.

An interval that straddles a bound is undecided, and so is one seed. Of several parts all must hold, and one that fails
is enough to fail; the numbers are those of the worst part. Numbers are finite or None.

`corrected` decides over all claims of an experiment together, and `said` puts a verdict into the words of a page.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import numpy as np
from scipy.special import stdtr, stdtrit

from bench.results import stats
from bench.results.chart import Array
from bench.results.stats import Interval

Verdict = Literal["holds", "fails", "faster than claimed", "undecided"]
_WORST_FIRST: tuple[Verdict, ...] = ("fails", "faster than claimed", "undecided", "holds")
LEVEL = 0.05
"""Probability of any false verdict among the claims of an experiment, at most."""
READING = "decided by our reading"
CONSTANTS = "depends on unpublished constants"
_WORDS = ("holds", "fails", "faster than claimed", "undecided", READING, CONSTANTS)


def _of_small_run(word: str) -> str:
    return "small run: " + "points to " * (word in _WORDS[:3]) + word


SAID = (*_WORDS, *map(_of_small_run, _WORDS))
"""What is said of a claim, and of one that small runs cannot settle."""
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Finding:
    """The finding on a claim.

    Attributes:
        verdict: `holds`, `fails`, `faster than claimed` (a rate that is outside its range, on the better side) or
            `undecided`.
        effect: the mean over seeds in `unit`, or None if there is no such number.
        low, high: its 95 % confidence interval; None for an end that the data do not bound.
        unit: what the effect is ("times as many steps").
        text: one sentence with our numbers.
        p: least level, in [0, 1], at which the intervals decide so; None if nothing is decided.
        readings: where the claim is read in several ways, what each came to.
    """

    verdict: Verdict
    effect: float | None
    low: float | None
    high: float | None
    unit: str
    text: str
    p: float | None = None
    readings: Mapping[str, "Finding"] = field(default_factory=dict)


Part = tuple[float, Finding]
"""How far the effect is inside its bounds, and the finding."""


def together(parts: Iterable[Part]) -> Finding:
    """All of them: holds if all hold, fails if one fails; numbers of the worst, by verdict, then by how far inside.

    That one part fails is as sure as Bonferroni's bound over the parts says; that all hold needs no correction.
    """
    parts = list(parts)
    _, worst = min(parts, key=lambda part: (_WORST_FIRST.index(part[1].verdict), part[0]))
    levels = [f.p for _, f in parts if f.verdict == worst.verdict and f.p is not None]
    if worst.verdict == "undecided":
        p = None
    elif worst.verdict == "holds":
        p = max(levels)
    else:
        p = min(1.0, len(parts) * min(levels))
    return replace(worst, text="; ".join(dict.fromkeys(finding.text for _, finding in parts)), p=p)


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
    faster: Literal["above", "below"] | None = None,
    least: Interval | None = None,
    most: Interval | None = None,
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
        faster: on which side of the range a rate is faster than claimed.
        least: interval of the smallest value that there may have been, which x has its low end from; by default x.
        most: interval of the largest, which x has its high end from.
    """
    if x is None:
        return without_numbers("undecided", unit, text)
    verdict: Verdict = "undecided"
    if x.n > 1:
        if x.high < low or x.low > high:
            verdict = "faster than claimed" if faster == ("below" if x.high < low else "above") else "fails"
        elif low <= x.low and x.high <= high and (ties or 0 not in (x.low, x.high)):
            verdict = "holds"
        verdict = _WORST_FIRST[min(map(_WORST_FIRST.index, (verdict, limit)))]
    text += f" ({x.n} seeds)" if x.n > 1 else " (one seed, so no verdict)"
    effect = shown or x
    lowest, highest = (end if x.n > 1 and math.isfinite(end) else None for end in (effect.low, effect.high))
    inside, least, most = min(x.mean - low, high - x.mean), least or x, most or x
    if verdict == "undecided":
        p = None
    elif limit == "fails":
        p = 0.0
    elif verdict == "holds":
        p = max(_level(least, least.mean - low), _level(most, high - most.mean))
    else:
        p = _level(most, low - most.mean) if x.high < low else _level(least, least.mean - high)
    return inside, Finding(verdict, effect.mean, lowest, highest, unit, text, p)


def _level(x: Interval, distance: float) -> float:
    """The smallest level whose t-interval reaches no farther than so far from its mean; x is the one of 95 %."""
    half = x.mean - x.low
    if half == 0:
        return 0.0
    return float(2 * stdtr(x.n - 1, -distance / half * stdtrit(x.n - 1, 0.975)))


def without_numbers(verdict: Verdict, unit: str, text: str) -> Part:
    """A part whose numbers do not exist. Runs that diverged are no chance, so a failure by them is sure."""
    return -math.inf, Finding(verdict, None, None, None, unit, text, None if verdict == "undecided" else 0.0)


def corrected(findings: Mapping[Key, Finding], level: float = LEVEL) -> dict[Key, Finding]:
    """The findings with Holm's correction (1979) over all of them: those that it does not let stand are undecided.

    Args:
        findings: by claim.
        level: probability of any false verdict at all, at most; in (0, 1).
    """
    count = len(findings)
    levels = sorted(1.0 if found.p is None else found.p for found in findings.values())
    standing = next((i for i, p in enumerate(levels) if p > level / (count - i)), count)
    bar = level / (count - standing) if standing < count else level

    def after(found: Finding) -> Finding:
        if found.p is None or found.p <= bar:
            return found
        aside = f"; {found.verdict} without correction (p = {found.p:.2g}), not with Holm's correction over {count}"
        return replace(found, verdict="undecided", text=found.text + aside, p=None)

    return {key: after(found) for key, found in findings.items()}


def over_readings(findings: Mapping[str, Finding]) -> Finding:
    """What several readings of a claim come to: a verdict if all agree, which needs no correction, else undecided.

    Where they do not agree, Holm's correction over the readings says which of them stand.

    Args:
        findings: by reading, of which there is at least one. One alone is the finding.
    """
    first = next(iter(findings.values()))
    if len(findings) == 1:
        return first
    agree = all(found.verdict == first.verdict for found in findings.values())
    findings = findings if agree else corrected(findings)
    counts = Counter(found.verdict for found in findings.values())
    text = f"of {len(findings)} readings " + ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
    levels = [found.p for found in findings.values() if found.p is not None]
    if not agree or not levels:
        return Finding("undecided", None, None, None, "", text, None, findings)
    return Finding(first.verdict, None, None, None, "", text, max(levels), findings)


def _contradict(verdicts: Iterable[str]) -> bool:
    """Whether a claim fails somewhere and stands elsewhere."""
    found = set(verdicts) - {"undecided"}
    return "fails" in found and len(found) > 1


def said(verdict: str, readings: Iterable[str] = (), region: Iterable[str] = (), *, small: bool) -> str:
    """A verdict in the words of a page, one of `SAID`.

    Args:
        verdict: of the claim.
        readings: verdicts of the readings of the text, if there are several.
        region: verdicts at the points of a search over constants that the paper leaves open.
        small: whether data, steps, model or seeds were cut, so that the paper's claim is not settled.
    """
    word = verdict
    if _contradict(region):
        word = CONSTANTS
    if _contradict(readings):
        word = READING
    return _of_small_run(word) if small else word


def over_seeds(values: Array) -> Interval | None:
    """The mean over seeds with its interval, or None if one has no value."""
    return stats.t_interval(values) if np.isfinite(values).all() else None


def in_words(x: Interval | None) -> str:
    """The mean with its interval."""
    if x is None:
        return "unknown: a run has no value there"
    return number(x.mean) + (f" [{number(x.low)}, {number(x.high)}]" if x.n > 1 else "")


def number(x: float) -> str:
    """To four digits, and whole numbers up to a million without an exponent."""
    return f"{x:.0f}" if 1e4 <= abs(x) < 1e6 and x == round(x) else f"{x:.4g}"
