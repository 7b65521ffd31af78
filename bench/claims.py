"""Claims: what a paper says, tested on results; each test gives holds, fails or undecided, with effect and interval.

Intervals are 95 % over seeds. What all tests share: an interval that straddles the bound is undecided; a claim whose data
are missing (a run diverged, was cut off, or never got there; there is one seed) never holds; comparisons are paired by the
seeds that the arms have in common; numbers are finite or None. Of several arms all must hold, and one that fails is enough
to fail; the effect is then that of the worst one.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field, FiniteFloat, SkipValidation, ValidationError, validate_call

from bench import stats
from bench.arms import Arm, Array
from bench.errors import UserError, unknown
from bench.series import (
    common_seeds,
    common_series,
    first_reached,
    how_ended,
    points_within,
    statuses,
    too_few,
    values_at,
)
from bench.stats import Interval

Verdict = Literal["holds", "fails", "undecided"]
_WORST_FIRST: tuple[Verdict, ...] = ("fails", "undecided", "holds")

Results = Annotated[Mapping[str, Arm], SkipValidation]
Names = Annotated[list[str], Field(min_length=1)]
Number = FiniteFloat
Positive = Annotated[FiniteFloat, Field(gt=0)]
Share = Annotated[FiniteFloat, Field(gt=0, le=1)]
Range = tuple[FiniteFloat, FiniteFloat]


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


def judge(test: str, arms: Mapping[str, Arm], /, **arguments: Any) -> Finding:
    """Test a claim.

    Args:
        test: one of `CLAIMS`.
        arms: the results, by the names that the arguments use.
        arguments: of the test, as YAML gives them.

    Raises:
        UserError: the test, an arm, a column or an argument is unknown, missing or illegal.
    """
    test = str(test)
    if test not in CLAIMS:
        raise unknown("claim test", test, CLAIMS)
    try:
        return CLAIMS[test](arms, **arguments)
    except ValidationError as error:
        first = error.errors()[0]
        name, known = str(first["loc"][0]), list(signature(CLAIMS[test]).parameters)[1:]
        if first["type"] == "unexpected_keyword_argument":
            raise unknown(f"argument of {test}", name, known) from None
        if first["type"] == "missing_keyword_only_argument":
            raise UserError(f"{test} lacks the argument {name!r}; it takes {', '.join(known)}") from None
        raise UserError(f"{test}: {name}={arguments[name]!r}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


# -- the tests ------------------------------------------------------------------------------------------------------


def reaches(
    results: Results,
    /,
    *,
    measure: str,
    arms: Names,
    below: Number | None = None,
    above: Number | None = None,
    at: Number | None = None,
) -> Finding:
    """Every arm's measure is at or below (above) a level at a step, or at the end.

    Holds if the interval of every arm lies on that side. Fails if that of an arm lies wholly on the other, or one of its
    runs diverged. Else undecided; so is an arm with a run that was cut off before the step, or with one seed.

    Args:
        results: arms by name.
        measure: a column.
        arms: names.
        below: the level, in units of the measure; this or `above`.
        above: the level, in units of the measure; this or `below`.
        at: the step; the latest measurement up to it counts. A run that completed earlier, since it had converged, keeps
            its last value. None: the last value of each run, which has to have completed.
    """
    low, high = _level(below, above)
    parts = []
    for arm in _arms(results, arms):
        if diverged := how_ended(arm, "diverged"):
            parts.append(_without("fails", measure, diverged))
        else:
            x = _interval(values_at(results, arm, measure, _or(at, math.inf), _or(at, math.inf)))
            parts.append(_part(x, low, high, measure, f"{measure} of {arm.label} {_when(at)} is {_show(x)}"))
    return _all(parts)


def sooner(
    results: Results,
    /,
    *,
    measure: str,
    fast: Names,
    slow: str,
    factor: Positive,
    below: Number | None = None,
    above: Number | None = None,
) -> Finding:
    """The slow arm needs `factor` times as many steps as every fast one until a measure first reaches a level.

    The interval is that of the mean logarithm of the ratio slow / fast of the same seed. A slow run that never reached
    the level counts with its last step: the ratio is then a lower bound ("at least") and has no upper end.

    Holds if the low end is at least the factor for every fast arm. Fails if the high end is below it for one, or one of
    its runs diverged, or completed without reaching the level that the slow arm did reach. Else undecided; so is one with
    a run that was cut off before it.

    Args:
        results: arms by name.
        measure: a column.
        fast: names of the arms that are said to be sooner.
        slow: name of the other.
        factor: least ratio, in (0, inf).
        below: the level, in units of the measure; this or `above`.
        above: the level, in units of the measure; this or `below`.
    """
    level, unit, parts = _level(below, above), "times as many steps", []
    goal = f"{measure} is at most {below:g}" if below is not None else f"{measure} is at least {above:g}"
    (other,) = _arms(results, [slow])
    for arm in _arms(results, fast):
        i, j = common_seeds([arm, other])
        steps, _ = first_reached(results, arm, measure, level)
        never = [status for status, step in zip(statuses(arm), steps, strict=True) if np.isnan(step)]
        if diverged := how_ended(arm, "diverged"):
            parts.append(_without("fails", unit, diverged))
        elif never:
            text = f"{len(never)} of {len(steps)} runs of {arm.label} ended before {goal}"
            slower = not np.isnan(first_reached(results, other, measure, level)[0]).all()  # the other arm did get there
            parts.append(_without("fails" if slower and "completed" in never else "undecided", unit, text))
        else:
            slow_steps, ends = (values[j] for values in first_reached(results, other, measure, level))
            censored = np.isnan(slow_steps)
            x = stats.t_interval(np.log(np.where(censored, ends, slow_steps) / steps[i]))
            if censored.any():
                x = replace(x, high=math.inf)
            ratio = Interval(math.exp(x.mean), math.exp(x.low), math.exp(x.high), x.n)
            text = f"until {goal}, {other.label} needs {'at least ' * bool(censored.any())}{_show(ratio)} times as many"
            text += f" steps as {arm.label}" + _censored_text(censored)
            parts.append(_part(x, math.log(factor), math.inf, unit, text, shown=ratio))
    return _all(parts)


def slope(
    results: Results,
    /,
    *,
    x: str,
    y: str,
    scale: Literal["linear", "loglog", "semilogx", "semilogy", "stretched"],
    arm: str | None = None,
    arms: Names | None = None,
    window: Range | None = None,
    at_least: Number | None = None,
    at_most: Number | None = None,
    min_r2: Share | None = None,
) -> Finding:
    """The least-squares slope of y on x, one for each seed, lies in a range.

    Logarithms are natural. Against log x the points are first thinned (`stats.thin`), since with points at every step the
    right end would decide alone. Points without a logarithm are left out.

    Holds if the interval of the slopes lies in [at_least, at_most] for every arm, and R^2 is at least min_r2 for every
    seed. Fails if the interval of an arm lies wholly outside, or R^2 is less for every seed. Else undecided; so is an arm
    with fewer than 3 points for a seed (after thinning), with a run that did not complete, or with one seed.

    Args:
        results: arms by name.
        x: a column, or `step`.
        y: a column of the same table.
        scale: whether logarithms are taken: of neither, of both, of x, of y; "stretched": ln(-ln y) over ln x, whose slope
            is the exponent p of a stretched exponential y = exp(-c x^p).
        arm: a name; this or `arms`.
        arms: names; these or `arm`.
        window: ends of the range of x that is fitted, both included; None: all.
        at_least: least slope; None: any.
        at_most: greatest slope; None: any.
        min_r2: least R^2, in (0, 1]; None: any.
    """
    if (arm is None) == (arms is None):
        raise UserError(f"slope: arm={arm!r} and arms={arms!r}: give one of the two")
    if at_least is None and at_most is None and min_r2 is None:
        raise UserError("slope: nothing is claimed; give at_least, at_most or min_r2")
    low, high = _ordered("at_least and at_most", _or(at_least, -math.inf), _or(at_most, math.inf))
    first, last = _ordered("window", *(window or (-math.inf, math.inf)))
    stretched = scale == "stretched"
    log_x, log_y = stretched or scale in ("loglog", "semilogx"), scale in ("loglog", "semilogy")
    name = f"ln(-ln({y}))" if stretched else f"ln({y})" if log_y else y
    unit, parts = f"{name} per {f'ln({x})' if log_x else x}", []
    for chosen in _arms(results, arms or [str(arm)]):
        points = points_within(results, chosen, x, y, log_x, log_y or stretched, first, last)
        if stretched:
            points, log_y = [(u[v < 1], -np.log(v[v < 1])) for u, v in points], True
        if log_x:
            points = [(u[kept], v[kept]) for u, v in points for kept in [stats.thin(u)]]
        if missing := how_ended(chosen) or too_few(chosen, points):
            parts.append(_without("undecided", unit, missing))
            continue
        lines = [stats.slope(np.log(u) if log_x else u, np.log(v) if log_y else v) for u, v in points]
        gradients, _, r2 = np.array(lines).T
        limit: Verdict = "holds"
        if min_r2 is not None and (r2 < min_r2).any():
            limit = "fails" if (r2 < min_r2).all() else "undecided"
        found = stats.t_interval(gradients)
        begin, end = min(u[0] for u, _ in points), max(u[-1] for u, _ in points)
        text = f"{unit} of {chosen.label} is {_show(found)} for {x} from {begin:.4g} to {end:.4g}"
        text += f", with R^2 from {r2.min():.4f} to {r2.max():.4f}"
        parts.append(_part(found, low, high, unit, text, limit=limit))
    return _all(parts)


def lower(
    results: Results, /, *, measure: str, better: Names, worse: str, last: Share | None = None, at: Number | None = None
) -> Finding:
    """A measure is lower in every `better` arm than in `worse`, seed by seed.

    Holds if the interval of the difference better - worse lies below 0 for every better arm. Fails if it lies above 0
    for one, or one of its runs diverged. Else undecided; so is a pair whose worse arm has a run that diverged, or in which
    a run was cut off before the steps that count. A run that completed earlier, since it had converged, keeps its value.

    Args:
        results: arms by name.
        measure: a column.
        better: names of the arms that are said to be lower.
        worse: name of the other.
        last: share of the steps, counted back from the end of the longer arm, that is averaged over, in (0, 1]; 0.1 if
            neither this nor `at` is given.
        at: the step that counts instead, as for `reaches`.
    """
    _at_most_one(last=last, at=at)
    unit, parts = f"difference of {measure}", []
    (other,) = _arms(results, [worse])
    for arm in _arms(results, better):
        i, j = common_seeds([arm, other])
        end = max(common_series(results, each, measure)[0][-1] for each in (arm, other)) if at is None else at
        start = end * (1 - _or(last, 0.1)) if at is None else at
        x = _interval(
            values_at(results, arm, measure, start, end)[i] - values_at(results, other, measure, start, end)[j]
        )
        if diverged := how_ended(arm, "diverged"):
            parts.append(_without("fails", unit, diverged))
        elif diverged := how_ended(other, "diverged"):
            text = f"{diverged}, so there is no {measure} to compare that of {arm.label} with"
            parts.append(_without("undecided", unit, text))
        else:
            when = f"over steps {start:g} to {end:g}" if at is None else _when(at)
            text = f"{measure} of {arm.label} minus that of {other.label} {when} is {_show(x)}"
            parts.append(_part(x, -math.inf, 0, unit, text, ties=False))
    return _all(parts)


def trend(
    results: Results,
    /,
    *,
    measure: str,
    arms: Annotated[list[str], Field(min_length=2)],
    factor: str,
    direction: Literal["increases", "decreases"],
    at: Number | None = None,
    reach: Number | None = None,
) -> Finding:
    """A positive quantity increases (decreases) with a setting, by the slope of its logarithm on the setting's logarithm.

    The quantity is the measure at a step, or the number of steps until it is first at or below a level. A run that never
    was counts with its last step; that bounds its slope on one side, and only that side can decide.

    Holds if the interval of the slopes, one for each seed, lies on the direction's side of 0 and the means of the
    logarithms are known to go that way from each arm to the next. Fails if the interval lies wholly on the other side.
    Else undecided; so it is if a quantity is not positive, or a run diverged or was cut off before the step.

    Args:
        results: arms by name.
        measure: a column.
        arms: names of two or more that differ in the setting.
        factor: the setting, in dotted form (`task.H`), with positive numbers.
        direction: `increases` or `decreases`.
        at: the step, as for `reaches`; None: the end.
        reach: the level, in units of the measure, if the quantity is a number of steps.
    """
    _at_most_one(at=at, reach=reach)
    chosen = sorted(_arms(results, arms), key=lambda arm: _setting(arm, factor))
    settings = np.array([_setting(arm, factor) for arm in chosen])
    if len(np.unique(settings)) < len(chosen):
        raise UserError(f"trend: arms={arms}: two have the same {factor}; name arms that differ in it")
    x, rows, nevers = np.log(settings), [], []
    for arm, seeds in zip(chosen, common_seeds(chosen), strict=True):
        if reach is None:
            steps = ends = values_at(results, arm, measure, _or(at, math.inf), _or(at, math.inf))
        else:
            steps, ends = first_reached(results, arm, measure, (-math.inf, reach))
        rows.append(np.where(np.isnan(steps), ends, steps)[seeds])
        nevers.append(np.isnan(steps)[seeds] & (reach is not None))
    values, censored = np.array(rows), np.array(nevers)
    what = f"{measure} {_when(at)}" if reach is None else f"the number of steps until {measure} is at most {reach:g}"
    unit = f"ln({measure if reach is None else 'steps'}) per ln({factor})"
    if missing := "; ".join(filter(None, (how_ended(arm, "diverged") for arm in chosen))):
        return _all([_without("undecided", unit, missing)])
    for bad, lack in ((np.isnan(values), "has no value"), (values <= 0, "is not positive")):
        if bad.any():
            return _all([_without("undecided", unit, f"{what} {lack} in {bad.sum()} of {bad.size} runs")])
    found = stats.t_interval([stats.slope(x, y)[0] for y in np.log(values).T])
    side = (x - x.mean())[:, None] * censored  # where more steps would raise or lower the slope
    if censored.any():
        low, high = -math.inf if (side < 0).any() else found.low, math.inf if (side > 0).any() else found.high
        found = replace(found, low=low, high=high)
    # The mean of an arm that never got there is a lower bound: it may only be known to lie above its neighbour.
    rises, known, up = np.diff(np.log(values).mean(axis=1)), ~np.any(censored, axis=1), direction == "increases"
    monotone = np.all(np.where(known[:-1], rises, -1) > 0 if up else np.where(known[1:], rises, 1) < 0)
    text = f"{what} goes as {factor} to the power {_show(found)}; the means of the arms "
    text += f"{direction[:-1]} throughout" if monotone else f"are not known to {direction[:-1]} throughout"
    low, high = (0.0, math.inf) if up else (-math.inf, 0.0)
    limit: Verdict = "holds" if monotone else "undecided"
    return _all([_part(found, low, high, unit, text + _censored_text(censored), limit=limit)])


def slope_region(results: Results, /, *, arm: str, x: str, y: str, between: Range, decades: Positive) -> Finding:
    """Over so many decades of x without a break, the local exponent of y in x lies in a range.

    `stats.power_law_decades` says how the local exponent is taken. Points without a logarithm are left out.

    Holds if the interval of the longest length of each seed lies at or above `decades`; fails if it lies wholly below;
    else undecided. So it is with fewer than 3 points for a seed, a run that did not complete, or one seed.

    Args:
        results: arms by name.
        arm: a name.
        x: a column, or `step`.
        y: a column of the same table.
        between: range of the exponent, ends included.
        decades: least length, in powers of ten of x.
    """
    low, high = _ordered("between", *between)
    (chosen,) = _arms(results, [arm])
    points = points_within(results, chosen, x, y, True, True)
    if missing := how_ended(chosen) or too_few(chosen, points):
        return _all([_without("undecided", "decades", missing)])
    found = stats.t_interval([stats.power_law_decades(u, v, low, high) for u, v in points])
    text = f"the exponent of {y} of {chosen.label} in {x} is from {low:g} to {high:g} over {_show(found)} decades"
    return _all([_part(found, decades, math.inf, "decades", text)])


def all_of(results: Results, /, *, parts: Annotated[list[dict[str, Any]], Field(min_length=1)]) -> Finding:
    """Several claims in one.

    Holds if all parts hold, fails if one fails, else undecided; effect and interval are those of the first of the worst.

    Args:
        results: arms by name.
        parts: for each a mapping with `test` and that test's arguments.
    """
    for part in parts:
        if "test" not in part:
            raise UserError(f"all_of: part {part} has no test; give one of {', '.join(CLAIMS)}")
    return _all(
        [(0.0, judge(part["test"], results, **{k: v for k, v in part.items() if k != "test"})) for part in parts]
    )


_checked = validate_call(config=ConfigDict(arbitrary_types_allowed=True))
CLAIMS: dict[str, Callable[..., Finding]] = {
    test.__name__: _checked(test) for test in (reaches, sooner, slope, lower, trend, slope_region, all_of)
}


# -- verdicts -------------------------------------------------------------------------------------------------------


def _all(parts: Iterable[Part]) -> Finding:
    """All of them: holds if all hold, fails if one fails; numbers of the worst, by verdict, then by how far inside."""
    parts = list(parts)
    _, worst = min(parts, key=lambda part: (_WORST_FIRST.index(part[1].verdict), part[0]))
    return replace(worst, text="; ".join(dict.fromkeys(finding.text for _, finding in parts)))


def _part(
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
        return _without("undecided", unit, text)
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


def _without(verdict: Verdict, unit: str, text: str) -> Part:
    """A part without numbers."""
    return -math.inf, Finding(verdict, None, None, None, unit, text)


def _interval(values: Array) -> Interval | None:
    """The mean over seeds with its interval, or None if one has no value."""
    return stats.t_interval(values) if np.isfinite(values).all() else None


def _show(x: Interval | None) -> str:
    if x is None:
        return "unknown, since a run has no value there"
    return f"{x.mean:.4g}" + (f" [{x.low:.4g}, {x.high:.4g}]" if x.n > 1 else "")


def _when(at: float | None) -> str:
    return "at the end" if at is None else f"at step {at:g}"


def _censored_text(censored: np.ndarray) -> str:
    if not censored.any():
        return ""
    return f", where {censored.sum()} of {censored.size} runs never got there and count with their last step"


# -- arguments ------------------------------------------------------------------------------------------------------


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _level(below: float | None, above: float | None) -> tuple[float, float]:
    """The range that a level stands for."""
    if (below is None) == (above is None):
        raise UserError(f"below={below} and above={above}: give one of the two")
    return _or(above, -math.inf), _or(below, math.inf)


def _at_most_one(**values: float | None) -> None:
    if None not in values.values():
        raise UserError(f"{' and '.join(f'{k}={v:g}' for k, v in values.items())}: give one of the two")


def _ordered(name: str, low: float, high: float) -> tuple[float, float]:
    if low > high:
        raise UserError(f"{name}: {low:g} is greater than {high:g}; give the lesser one first")
    return low, high


def _arms(results: Mapping[str, Arm], names: Sequence[str]) -> list[Arm]:
    for name in names:
        if name not in results:
            raise unknown("arm", name, results)
        if not results[name].tables:
            raise UserError(f"arm {name!r} has no runs; train it first")
    return [results[name] for name in names]


def _setting(arm: Arm, name: str) -> float:
    if name not in arm.settings:
        raise unknown(f"setting of {arm.label}", name, arm.settings)
    try:
        value = float(arm.settings[name])
    except (TypeError, ValueError):
        value = math.nan
    if not 0 < value < math.inf:
        raise UserError(f"{name}={arm.settings[name]!r} of {arm.label} is no positive number; name a setting that is")
    return value
