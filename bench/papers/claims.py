"""Tests of papers' claims: each returns holds, fails or undecided, with an effect and its interval.

Intervals are 95 % over seeds. An interval that contains the bound is undecided; a claim with missing data (a run
diverged, was cut off or never reached the level; there is only one seed) never holds; comparisons are paired by common
seeds. A claim on several arms holds if it holds for all and fails if it fails for one.

A test judges one arm; `CLAIMS` has the names of the arguments that name the arms and what they are compared with.
Further arguments: `measure`, `x` and `y`, columns of one table, or `step`; `below` or `above`, a level in units of the
measure.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.config.run_config import settings_of
from bench.errors import UserError, check_known
from bench.papers import arms as of
from bench.papers.arms import Arm, Arms, chosen, how_ended, paired, values_at
from bench.papers.verdicts import Finding, Part, Verdict, in_words, together, within, without_numbers
from bench.results import stats
from bench.results.group import mean_interval
from bench.results.stats import UNBOUNDED, Array, Range
from bench.text import number

Level = float | None
_LOGS = {"loglog": (1, 1), "semilogy": (0, 1), "stretched": (1, 2), "logarithmic": (2, 1)}
"""How often a scale of `slope` takes the logarithm of x and of y; twice is ln(ln x) of x and ln(-ln y) of y."""


def judge(test: str, results: Arms, /, **arguments: Any) -> Finding:
    """Test a claim on arms by label, with arguments as in YAML; a UserError if one is unknown, illegal or missing."""
    check_known("claim test", [test], CLAIMS)
    function, names, other = CLAIMS[test]
    try:
        compared = chosen(results, arguments.pop(names))
        others = chosen(results, [arguments.pop(other)] if other else [])
        if test == "trend":
            return together([trend(results, compared, **arguments)])
        return together(function(results, arm, *others, **arguments) for arm in compared)
    except (KeyError, TypeError) as error:
        raise UserError(f"claim test {test}: {error}; correct its arguments") from None


def reaches(
    results: Arms, arm: Arm, *, measure: str, below: Level = None, above: Level = None, at: Level = None
) -> Part:
    """The measure is at or below (above) a level at step `at`, or at the end of completed runs.

    Fails if the interval is entirely on the other side, or a run diverged. At a step, the latest measurement up to it
    counts, and a run that converged earlier keeps its last value.
    """
    low, high = _level(below, above)
    if diverged := how_ended(arm, "diverged"):
        return without_numbers("fails", measure, diverged)
    x = mean_interval(values_at(results, arm, measure, at, at).tolist())
    return within(x, low, high, measure, f"{measure} of {arm.label} {_when(at)} is {in_words(x)}")


def sooner(
    results: Arms, arm: Arm, other: Arm, *, measure: str, factor: float, below: Level = None, above: Level = None
) -> Part:
    """The other arm needs `factor` times as many steps as this one until a measure first reaches a level.

    The interval is that of the mean logarithm of the ratio other / this, paired by seed. Steps between two measurements
    are unknown, so its ends come from the smallest and the largest possible ratios. A slow run that never reached the
    level counts with its last step: the ratio is then a lower bound ("at least") without an upper end. Fails if the
    high end is below the factor, or if a fast run diverged, or completed without reaching what the slow arm reached.
    """
    level, unit = _level(below, above), "times as many steps"
    goal = f"{measure} was at most {below:g}" if below is not None else f"{measure} was at least {above:g}"
    slow_steps, slow_earliest, ends = of.first_reached(results, other, measure, level)
    steps, earliest, _ = of.first_reached(results, arm, measure, level)
    i, j = paired(arm, other)
    never = [run.status for run, step in zip(arm.runs.values(), steps, strict=True) if np.isnan(step)]
    if diverged := how_ended(arm, "diverged"):
        return without_numbers("fails", unit, diverged)
    if never:
        slower = "completed" in never and not np.isnan(slow_steps).all()
        text = f"{len(never)} of {len(steps)} runs of {arm.label} ended before {goal}"
        return without_numbers("fails" if slower else "undecided", unit, text)
    censored = np.isnan(slow_steps)[j]
    last, first = (np.where(censored, ends[j], first_at[j]) for first_at in (slow_steps, slow_earliest))
    ratios = last / steps[i], first / steps[i], last / earliest[i]
    x, least, most = (stats.t_interval(np.log(ratio)) for ratio in ratios)
    x = replace(x, low=least.low, high=math.inf if censored.any() else most.high)
    ratio = stats.of_logarithms(x)
    text = f"{other.label} needed {'at least ' * bool(censored.any())}{in_words(ratio)} times as many steps as"
    text += f" {arm.label} until {goal}"
    if censored.any():
        some = f"{censored.sum()} of {censored.size} runs"
        text += f"; in {some} {other.label} never reached it, and the last step counts"
    return within(x, math.log(factor), math.inf, unit, text, shown=ratio, least=least, most=most)


def slope(
    results: Arms, arm: Arm, *, x: str, y: str, scale: str, window: Range = UNBOUNDED,
    at_least: Level = None, at_most: Level = None, min_r2: Level = None, faster: str | None = None,
) -> Part:  # fmt: skip
    """The least-squares slope of y on x, one for each seed, is in [at_least, at_most].

    `scale` says which natural logarithms are taken: of both, of y; "stretched": ln(-ln y) over ln x, whose slope is the
    exponent p of y = exp(-c x^p); "logarithmic": ln y over ln ln x, whose slope is the exponent q of y = c (ln x)^q.
    `window` is the fitted range of x, ends included. For fits against log x the points are thinned first
    (`stats.thin`), since points at every step would give nearly all weight to the right end.

    R^2 is to be at least min_r2 for every seed, and fails if it is smaller for all. A slope entirely on the side named
    by `faster` (above, below) is faster than claimed. Arms with fewer than 3 points for a seed or with a run that did
    not complete are undecided.
    """
    low, high = _range(at_least, at_most)
    logs_x, logs_y = _LOGS[scale]
    name = (y, f"ln({y})", f"ln(-ln({y}))")[logs_y]
    per = (x, f"ln({x})", f"ln(ln({x}))")[logs_x]
    unit = f"{name} per {per}"
    points = of.points_within(results, arm, x, y, log_x=logs_x > 0, window=window)
    if logs_y == 2:
        points = [(u[v < 1], v[v < 1]) for u, v in points]
    if logs_x:
        points = [(u[kept], v[kept]) for u, v in points for kept in [stats.thin(u)]]
    if logs_x == 2:
        points = [(u[u > 1], v[u > 1]) for u, v in points]
    if missing := how_ended(arm) or of.too_few(arm, points):
        return without_numbers("undecided", unit, missing)
    gradients, _, r2 = np.array([stats.slope(_log(u, logs_x), _log(v, logs_y, -1)) for u, v in points]).T
    limit: Verdict = "holds"
    if min_r2 is not None and (r2 < min_r2).any():
        limit = "fails" if (r2 < min_r2).all() else "undecided"
    gradient = stats.t_interval(gradients)
    begin, end = min(u[0] for u, _ in points), max(u[-1] for u, _ in points)
    if logs_y == 2:
        text = f"{y} of {arm.label} goes as exp(-c {x}^p) with p = {in_words(gradient)}"
    elif logs_x:
        text = f"{y} of {arm.label} goes as {f'ln({x})' if logs_x == 2 else x} to the power {in_words(gradient)}"
    else:
        text = f"{name} of {arm.label} changes by {in_words(gradient)} per unit of {per}"
    text += f", for {x} from {number(begin)} to {number(end)}, with R^2 from {r2.min():.4f} to {r2.max():.4f}"
    return within(gradient, low, high, unit, text, limit=limit, faster=faster)


def lower(results: Arms, arm: Arm, other: Arm, *, measure: str, last: float | None = 0.1, floor: Level = None) -> Part:
    """A measure is lower than in the other arm, seed by seed.

    `last` is the fraction of the steps that is averaged over, back from the end of the longer arm, in (0, 1]; None: the
    last value of each run. Fails if a run of this arm diverged. Pairs with a diverged run in the other arm, or a run
    that was cut off before the steps that count, are undecided. So are two arms that learned nothing: the interval of
    neither is below `floor`, the loss of a model that predicts the frequencies of the classes.
    """
    unit, steps, start, end = f"difference of {measure}", "at the end of each run", None, None
    i, j = paired(arm, other)
    if last is not None:
        end = max(of.series(results, side, measure)[0][-1] for side in (arm, other))
        start = end * (1 - last)
        steps = f"over steps {number(start)} to {number(end)}"
    values, others = (values_at(results, side, measure, start, end) for side in (arm, other))
    if diverged := how_ended(arm, "diverged"):
        return without_numbers("fails", unit, diverged)
    if diverged := how_ended(other, "diverged"):
        return without_numbers("undecided", unit, f"{diverged}, so {arm.label} has no {measure} to compare with")
    intervals = [mean_interval(ends.tolist()) for ends in (values, others)]
    if floor is not None and all(mean is not None and mean.n > 1 and mean.high >= floor for mean in intervals):
        text = f"{measure} of {arm.label} and {other.label} {steps} is {' and '.join(map(in_words, intervals))}"
        return without_numbers("undecided", unit, f"{text}, not below {floor:g}, so neither learned anything")
    x = mean_interval((values[i] - others[j]).tolist())
    means = "" if x is None else f"; means {number(values[i].mean())} and {number(others[j].mean())}"
    text = f"{measure} of {arm.label} minus that of {other.label} {steps} is {in_words(x)}{means}"
    return within(x, -math.inf, 0, unit, text, ties=False)


def trend(results: Arms, arms: Sequence[Arm], *, measure: str, factor: str, direction: str, at: Level = None) -> Part:
    """A positive measure increases (decreases) with a setting, by the slope of its log on the setting's log.

    `factor` is the setting, in dotted form (`task.H`), with positive numbers that differ by arm; `at` as for `reaches`;
    `direction` is increases or decreases. To hold, the means of the logarithms must also change in that direction from
    each arm to the next. With a value that is not positive, or a run that diverged or was cut off before the step, it
    is undecided.
    """
    compared = sorted(arms, key=lambda arm: _setting(arm, factor))
    settings = np.array([_setting(arm, factor) for arm in compared])
    pairs = zip(compared, paired(*compared), strict=True)
    values = np.array([values_at(results, arm, measure, at, at)[seeds] for arm, seeds in pairs])
    what, unit = f"{measure} {_when(at)}", f"ln({measure}) per ln({factor})"
    missing = "; ".join(filter(None, (how_ended(arm, "diverged") for arm in compared)))
    for bad, lack in ((~np.isfinite(values), "has no value"), (values <= 0, "is not positive")):
        if bad.any() and not missing:
            missing = f"{what} {lack} in {bad.sum()} of {bad.size} runs"
    if missing:
        return without_numbers("undecided", unit, missing)
    exponent = stats.t_interval([stats.slope(np.log(settings), y)[0] for y in np.log(values).T])
    rises, up = np.diff(np.log(values).mean(axis=1)), direction == "increases"
    monotone = bool(np.all(rises > 0 if up else rises < 0))
    text = f"{what} goes as {factor} to the power {in_words(exponent)}; the means of the arms"
    text += f" {direction[:-1]} throughout" if monotone else f" do not {direction[:-1]} monotonically"
    low, high = (0.0, math.inf) if up else (-math.inf, 0.0)
    return within(exponent, low, high, unit, text, limit="holds" if monotone else "undecided")


def slope_region(results: Arms, arm: Arm, *, x: str, y: str, between: Range, decades: float) -> Part:
    """The local exponent of y in x (`stats.power_law_decades`) stays in a range over so many decades of x or more."""
    points = of.points_within(results, arm, x, y, log_x=True)
    if missing := how_ended(arm) or of.too_few(arm, points):
        return without_numbers("undecided", "decades", missing)
    length = stats.t_interval([stats.power_law_decades(u, v, *between) for u, v in points])
    text = f"{y} of {arm.label} goes as {x} to a power from {between[0]:g} to {between[1]:g} over {in_words(length)}"
    return within(length, decades, math.inf, "decades", f"{text} decades of {x}")


CLAIMS: dict[str, tuple[Callable[..., Part], str, str | None]] = {
    "reaches": (reaches, "arms", None),
    "sooner": (sooner, "fast", "slow"),
    "slope": (slope, "arms", None),
    "lower": (lower, "better", "worse"),
    "trend": (trend, "arms", None),
    "slope_region": (slope_region, "arms", None),
}
"""Tests by name, with the arguments that name the judged arms, and the one with which each is compared."""


def _when(at: float | None) -> str:
    return "at the end" if at is None else f"at step {number(at)}"


def _log(values: Array, times: int, sign: int = 1) -> Array:
    """The values, their logarithms, or the logarithms of these times the sign."""
    return values if times == 0 else np.log(values) if times == 1 else np.log(sign * np.log(values))


def _level(below: float | None, above: float | None) -> Range:
    if (below is None) == (above is None):
        raise UserError(f"below={below} and above={above}: give exactly one")
    return _range(above, below)


def _range(low: float | None, high: float | None) -> Range:
    return -math.inf if low is None else low, math.inf if high is None else high


def _setting(arm: Arm, name: str) -> float:
    value = settings_of(next(iter(arm.runs.values())).config).get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"{name}={value!r} of {arm.label} is not a positive number; name a setting that is")
    return float(value)
