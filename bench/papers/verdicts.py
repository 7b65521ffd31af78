"""Verdicts on claims from intervals, each with a sentence, and their correction for the number of claims."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from scipy.special import stdtr, stdtrit

from bench.results.stats import Interval
from bench.text import cell

Verdict = Literal["holds", "fails", "faster than claimed", "undecided"]
_WORST_FIRST: tuple[Verdict, ...] = ("fails", "faster than claimed", "undecided", "holds")
LEVEL = 0.05
"""Probability of any false verdict among the claims of an experiment, readings of a claim, or points of a search."""
READING = "decided by our reading"
CONSTANTS = "depends on unpublished constants"
NOT_TESTED = "not tested at this scale"
PAGE_WORDS = ("holds", "fails", "faster than claimed", "undecided", READING, CONSTANTS, NOT_TESTED)
"""Verdicts on a page; the last one is that of all small runs, which settle no claim."""
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Finding:
    """The finding on a claim: a verdict, and one sentence with our numbers.

    `effect` is the mean over seeds in `unit`, `low` and `high` are its 95 % interval; None without one, or where it is
    unbounded. `p` is the smallest level, in [0, 1], at which the intervals decide so; None if nothing is decided.
    """

    verdict: Verdict
    effect: float | None
    low: float | None
    high: float | None
    unit: str
    text: str
    p: float | None = None
    readings: Mapping[str, "Finding"] = field(default_factory=dict)


Part = tuple[float, Finding]  # how far the effect is inside its bounds, and the finding


def together(parts: Iterable[Part]) -> Finding:
    """Combine parts: holds if all hold, fails if one fails; numbers of the worst, by verdict, then by how far inside.

    That one part fails is subject to Bonferroni's correction over the parts; that all hold needs none.
    """
    parts = list(parts)
    _, worst = min(parts, key=lambda part: (_WORST_FIRST.index(part[1].verdict), part[0]))
    levels = [f.p for _, f in parts if f.verdict == worst.verdict and f.p is not None]
    p = max(levels, default=None) if worst.verdict in ("holds", "undecided") else min(1.0, len(parts) * min(levels))
    return replace(worst, text="; ".join(dict.fromkeys(finding.text for _, finding in parts)), p=p)


def within(
    x: Interval | None, low: float, high: float, unit: str, text: str, *, shown: Interval | None = None,
    ties: bool = True, limit: Verdict = "holds", faster: str | None = None, least: Interval | None = None,
    most: Interval | None = None,
) -> Part:  # fmt: skip
    """Whether the mean, with interval x (None if a run has no value), is in [low, high].

    `text` is the sentence without the number of seeds, `shown` the interval in the unit of the effect. `least` and
    `most` are intervals of the smallest and largest possible value, if x has its ends from them. Without `ties`, an
    interval that ends exactly at 0 is not inside. `limit` is the best possible verdict; "fails" if another condition
    fails with every seed, at the level of a sign test, 2^-n. `faster` is the side on which a rate is faster.
    """
    if x is None:
        return without_numbers("undecided", unit, text)
    reached: Verdict = "undecided"
    if x.high < low or x.low > high:
        reached = "faster than claimed" if faster == ("below" if x.high < low else "above") else "fails"
    elif low <= x.low and x.high <= high and (ties or 0 not in (x.low, x.high)):
        reached = "holds"
    verdict = _WORST_FIRST[min(map(_WORST_FIRST.index, (reached, limit)))] if x.n > 1 else "undecided"
    text += f" ({x.n} seeds)" if x.n > 1 else " (one seed, so no verdict)"
    effect, least, most = shown or x, least or x, most or x
    if verdict == "undecided":
        p = None
    elif verdict == "holds":
        p = max(_level(least, least.mean - low), _level(most, high - most.mean))
    else:
        levels = [0.5**x.n] * (limit == "fails")
        if reached == verdict:
            levels.append(_level(most, low - most.mean) if x.high < low else _level(least, least.mean - high))
        p = min(1.0, len(levels) * min(levels))
    return min(x.mean - low, high - x.mean), Finding(verdict, effect.mean, *effect.ends, unit, text, p)


def _level(x: Interval, distance: float) -> float:
    """The smallest level whose t-interval extends no farther than `distance` from the mean; x is that of 95 %."""
    half = x.mean - x.low
    if half == 0:
        return 0.0
    return float(2 * stdtr(x.n - 1, -distance / half * stdtrit(x.n - 1, 0.975)))


def without_numbers(verdict: Verdict, unit: str, text: str) -> Part:
    """A part without numbers. Divergence is not a chance event, so a failure caused by it has p = 0."""
    return -math.inf, Finding(verdict, None, None, None, unit, text, None if verdict == "undecided" else 0.0)


def corrected(findings: Mapping[Key, Finding]) -> dict[Key, Finding]:
    """The findings with Holm's correction (1979) over all of them; those that do not survive it become undecided."""
    count = len(findings)
    levels = sorted(1.0 if finding.p is None else finding.p for finding in findings.values())
    standing = next((i for i, p in enumerate(levels) if p > LEVEL / (count - i)), count)
    bar = LEVEL / (count - standing) if standing < count else LEVEL

    after = dict(findings)
    for key, finding in findings.items():
        if finding.p is not None and finding.p > bar:
            alone = f"{finding.text}; {finding.verdict} without correction (p = {finding.p:.2g})"
            text = f"{alone}, not with Holm's correction over {count}"
            after[key] = replace(finding, verdict="undecided", text=text, p=None)
    return after


def over_readings(findings: Mapping[str, Finding]) -> Finding:
    """Combine the readings of a claim: their verdict if all agree, else undecided, each with Holm's correction."""
    first = next(iter(findings.values()))
    if len(findings) == 1:
        return first
    agree = all(finding.verdict == first.verdict for finding in findings.values())
    findings = findings if agree else corrected(findings)
    counts = Counter(finding.verdict for finding in findings.values())
    text = ", ".join(f"{verdict} in {n}" for verdict, n in counts.most_common()) + f" of {len(findings)} readings"
    levels = [finding.p for finding in findings.values() if finding.p is not None]
    verdict, p = (first.verdict, max(levels, default=None)) if agree else ("undecided", None)
    return Finding(verdict, None, None, None, "", text, p, findings)


def page_word(verdict: str, readings: Iterable[str] = (), region: Iterable[str] = (), *, small: bool) -> str:
    """A verdict in the words of a page, one of `PAGE_WORDS`.

    The verdicts of its readings, or at the points of a search, contradict each other if some are failures and others
    are not; undecided ones do not count. `small`: data, steps, model or seeds were reduced, so no claim is settled.
    """
    if small:
        return NOT_TESTED
    word = verdict
    for why, verdicts in ((CONSTANTS, [*region, verdict]), (READING, readings)):
        decided = set(verdicts) - {"undecided"}
        if "fails" in decided and len(decided) > 1:
            word = why
    return word


def in_words(x: Interval | None) -> str:
    """The mean with its interval."""
    return "unknown: a run has no value there" if x is None else cell(x)
