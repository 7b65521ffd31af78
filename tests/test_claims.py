"""Claims: each test on arms with known truth, its behaviour with missing data, and every refusal."""

import math

import numpy as np
import pytest
import scipy.stats

from bench.errors import UserError
from bench.papers.claims import judge
from bench.papers.verdicts import PAGE_WORDS, Finding, corrected, over_readings, page_word
from bench.results import stats
from bench.results.stats import t_interval
from tests.arms import arm_of, changed

STEPS = np.arange(1, 1001.0)
SPREAD = (0.98, 1.0, 1.02)  # factor of each seed


def run(loss, step=None, **more):
    """One run's tables."""
    loss = np.asarray(loss, dtype=float)
    return [
        {"step": np.arange(1, 1.0 + len(loss)) if step is None else np.asarray(step, dtype=float), "loss": loss, **more}
    ]


def arm(label, *runs, statuses=None, **options):
    return arm_of(label, runs, statuses=statuses, task=options)


def flat(label, *values, statuses=None, **options):
    """An arm whose loss is constant over 10 steps, with a value for each seed."""
    return arm(label, *(run(np.full(10, v)) for v in values), statuses=statuses, **options)


def power(label, exponent, scale=1.0, spread=SPREAD, **options):
    return arm(label, *(run(scale * k * STEPS**exponent) for k in spread), **options)


def verdict(test, *arms, **arguments):
    return finding(test, *arms, **arguments).verdict


def finding(test, *arms, **arguments) -> Finding:
    result = judge(test, {a.label: a for a in arms}, **arguments)
    assert result.verdict in ("holds", "fails", "faster than claimed", "undecided")
    assert (result.p is None) == (result.verdict == "undecided")
    for value in (result.effect, result.low, result.high):
        assert value is None or math.isfinite(value)
    assert result.text
    assert "\n" not in result.text
    assert "nan" not in result.text.split()
    return result


def test_a_broken_power_law_is_as_long_as_its_longest_piece():
    x = np.logspace(0, 6, 601)
    y = 10 ** np.interp(np.log10(x), [0, 1, 2, 5, 5.5, 6], [0, -1, -1, -4, -5.5, -6])  # exponents -1, 0, -1, -3, -1
    assert stats.power_law_decades(x, y, -1.1, -0.9) == pytest.approx(3, abs=0.25)
    assert stats.power_law_decades(x, y, 0.5, 1) == 0


# -- reaches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "expected"),
    [((0.1, 0.11, 0.09), "holds"), ((0.9, 0.91, 0.89), "fails"), ((0.1, 0.9, 0.2), "undecided"), ((0.1,), "undecided")],
)
def test_reaches(losses, expected):
    assert verdict("reaches", flat("GD", *losses), measure="loss", arms=["GD"], below=0.5) == expected
    opposite = {"holds": "fails", "fails": "holds"}.get(expected, "undecided")
    assert verdict("reaches", flat("GD", *losses), measure="loss", arms=["GD"], above=0.5) == opposite


def test_reaches_uses_the_latest_measurement_before_the_step():
    falling = arm("GD", *(run([0.9, 0.5, 0.1], [0, 100, 200]) for _ in range(2)))
    for at, expected in ((0, 0.9), (99, 0.9), (100, 0.5), (150, 0.5), (200, 0.1), (None, 0.1)):
        assert finding("reaches", falling, measure="loss", arms=["GD"], below=1, at=at).effect == expected


@pytest.mark.parametrize("status", ["timeout", "killed", "failed", "running"])
def test_a_cut_off_run_counts_only_for_its_steps(status):
    cut = arm("GD", run([0.1, 0.1]), run([0.1, 0.1, 0.1]), statuses=[status, "completed"])
    for at, expected in ((1, "holds"), (2, "holds"), (3, "undecided"), (None, "undecided")):
        assert verdict("reaches", cut, measure="loss", arms=["GD"], below=0.2, at=at) == expected


@pytest.mark.parametrize("tables", [[], [{"step": np.zeros(0), "loss": np.zeros(0)}], [{"step": STEPS, "norm": STEPS}]])
def test_a_run_without_the_measurement_is_missing(tables):
    broken = arm("GD", run(np.full(1000, 0.1)), tables)
    assert verdict("reaches", broken, measure="loss", arms=["GD"], below=0.2) == "undecided"
    assert verdict("sooner", broken, measure="loss", fast=["GD"], slow="GD", below=0.2, factor=1) == "fails"
    broken = changed(broken, statuses=["completed", "diverged"])
    assert verdict("reaches", broken, measure="loss", arms=["GD"], below=0.2) == "fails"
    both = arm("GD", tables, tables), flat("other", 0.1, 0.1)
    assert verdict("reaches", *both, measure="loss", arms=["GD"], below=0.2) == "undecided"
    assert verdict("slope", *both, arms=["GD"], x="step", y="loss", scale="loglog", at_most=1) == "undecided"


# -- sooner ---------------------------------------------------------------------------------------------------------


def step_down(label, *at, length=1000, statuses=None):
    """An arm whose loss falls from 1 to 0 at a given step for each seed; never if that is None."""
    runs = [run(np.where(np.arange(1, length + 1) >= (length + 1 if s is None else s), 0.0, 1.0)) for s in at]
    return arm(label, *runs, statuses=statuses)


def sooner(fast, slow, factor=5, **more):
    return finding("sooner", fast, slow, measure="loss", fast=["fast"], slow="slow", below=0.5, factor=factor, **more)


def test_sooner_holds_with_the_interval_of_the_paired_ratio():
    result = sooner(step_down("fast", 10, 20, 30), step_down("slow", 100, 220, 280))
    log = t_interval(np.log([10, 11, 280 / 30]))
    assert (result.verdict, result.unit) == ("holds", "times as many steps")
    assert (result.effect, result.low, result.high) == pytest.approx(tuple(np.exp([log.mean, log.low, log.high])))
    assert result.text.startswith("slow needed 10.09 [")
    assert result.text.endswith("] times as many steps as fast until loss was at most 0.5 (3 seeds)")


def test_a_slow_run_that_misses_gives_a_lower_bound():
    fast = step_down("fast", 10, 20, 30)
    result = sooner(fast, step_down("slow", 300, None, None))
    assert result.verdict == "holds"
    assert result.effect == pytest.approx((30 * 50 * 1000 / 30) ** (1 / 3))
    assert result.high is None
    assert result.text.startswith("slow needed at least ")
    assert "; in 2 of 3 runs slow never reached it, and the last step counts" in result.text
    assert sooner(fast, step_down("slow", None, None, None), 1000).verdict == "undecided"
    assert sooner(fast, step_down("slow", None, None, None, statuses=["killed"] * 3)).verdict == "holds"
    diverged = step_down("slow", None, None, None, statuses=["diverged"] * 3, length=20)
    assert sooner(fast, diverged).verdict == "undecided"


def test_a_fast_run_that_misses_fails_unless_cut_off():
    slow = step_down("slow", 100, 200)
    result = sooner(step_down("fast", 10, None), slow)
    assert (result.verdict, result.effect) == ("fails", None)
    assert result.text == "1 of 2 runs of fast ended before loss was at most 0.5"
    assert sooner(step_down("fast", 10, None, statuses=["completed", "timeout"]), slow).verdict == "undecided"
    assert sooner(step_down("fast", None, None, statuses=["completed", "timeout"]), slow).verdict == "fails"
    assert sooner(step_down("fast", 10, 20, statuses=["completed", "diverged"]), slow).verdict == "fails"


def seen_every(label, every, reached):
    """An arm that is measured at this interval, and reached the level between two measurements."""
    steps = np.arange(0, 201, every)
    return arm(label, *(run(np.where(steps >= at, 0.5, 2.0), step=steps) for at in reached))


def test_a_step_between_two_measurements_is_not_known():
    """Both are at the level at their first measurement after the start: the ratio may be 1/10 or 20."""
    a, b = seen_every("fast", 10, [10] * 3), seen_every("slow", 20, [20] * 3)
    result = finding("sooner", a, b, measure="loss", fast=["fast"], slow="slow", factor=1.5, below=1)
    assert (result.verdict, result.effect) == ("undecided", pytest.approx(2))
    assert (result.low, result.high) == (pytest.approx(1 / 10), pytest.approx(20))


# -- slope ----------------------------------------------------------------------------------------------------------


def slope(*arms, **more):
    return finding("slope", *arms, **{"arms": [arms[0].label], "x": "step", "y": "loss", "scale": "loglog"} | more)


def exponents(label, *values):
    return arm(label, *(run(STEPS**v) for v in values))


def test_slope_holds_fails_and_is_undecided():
    gd = exponents("GD", -0.98, -1.0, -1.02)
    result = slope(gd, at_least=-1.1, at_most=-0.9, min_r2=0.99)
    expected = t_interval([-0.98, -1.0, -1.02])
    assert (result.verdict, result.unit) == ("holds", "ln(loss) per ln(step)")
    assert (result.effect, result.low, result.high) == pytest.approx((expected.mean, expected.low, expected.high))
    assert result.text.endswith("for step from 1 to 1000, with R^2 from 1.0000 to 1.0000 (3 seeds)")
    assert slope(gd, at_most=-0.9).verdict == "holds"
    assert slope(gd, at_least=-0.9).verdict == "fails"
    assert slope(gd, at_most=-1.1).verdict == "fails"
    assert slope(gd, at_least=-1).verdict == "undecided"
    assert slope(exponents("GD", -1.0), at_least=-2, at_most=0, min_r2=0.5).verdict == "undecided"


def test_a_poor_fit_does_not_hold():
    wiggle = 10.0 ** (np.arange(1000) % 2)
    poor, good = run(wiggle / STEPS**0.01), run(STEPS**-0.01)
    at_most = dict(at_most=1, min_r2=0.9)
    result = slope(arm("GD", poor, poor), **at_most)
    assert (result.verdict, result.p) == ("fails", 0.25)  # of a sign test, so two seeds do not survive the correction
    assert corrected({"poor": result})["poor"].verdict == "undecided"
    assert slope(arm("GD", poor, good), **at_most).verdict == "undecided"
    assert slope(arm("GD", good, good), **at_most).verdict == "holds"
    assert slope(arm("GD", poor), **at_most).verdict == "undecided"
    assert slope(arm("GD", good, good), at_least=0.5, min_r2=0.9).verdict == "fails"
    assert slope(arm("GD", good, good), min_r2=0.9).verdict == "holds"


@pytest.mark.parametrize("power", [1 / 3, 1.0])
def test_the_exponent_of_a_stretched_exponential_is_found(power):
    decaying = arm("a", *(run(np.exp(-0.3 * k * STEPS**power)) for k in SPREAD))
    claim = {"arms": ["a"], "x": "step", "y": "loss", "scale": "stretched"}
    result = finding("slope", decaying, **claim, at_least=power - 0.01, at_most=power + 0.01)
    assert result.verdict == "holds"
    assert result.effect == pytest.approx(power, rel=1e-9)
    assert result.unit == "ln(-ln(loss)) per ln(step)"
    assert result.text.startswith(f"loss of a goes as exp(-c step^p) with p = {power:.4g} [")
    assert verdict("slope", decaying, **claim, at_least=power + 0.01) == "fails"
    # Values of 1 and more have no such logarithm and are left out; without values nothing is decided.
    assert verdict("slope", flat("a", 1.0, 2.0), **claim, at_least=0) == "undecided"


# -- lower ----------------------------------------------------------------------------------------------------------


def lower(*arms, **more):
    return finding("lower", *arms, **{"measure": "loss", "better": ["a"], "worse": "b"} | more)


def test_lower_is_paired():
    a, b = flat("a", 0.1, 1.1, 2.1), flat("b", 0.2, 1.21, 2.19)
    result = lower(a, b)
    expected = t_interval(np.array([0.1, 1.1, 2.1]) - np.array([0.2, 1.21, 2.19]))
    assert (result.verdict, result.unit) == ("holds", "difference of loss")
    assert (result.effect, result.low, result.high) == pytest.approx((expected.mean, expected.low, expected.high))
    assert result.text.startswith("loss of a minus that of b over steps 9 to 10 is -0.1 [")
    assert lower(a, b, better=["b"], worse="a").verdict == "fails"
    assert lower(a, changed(b, seeds=[2, 0, 1])).verdict == "undecided"
    assert lower(flat("a", 0.1), flat("b", 0.2)).verdict == "undecided"


def test_arms_at_the_floor_decide_nothing():
    low, high = flat("a", 0.9, 0.91, 0.92), flat("b", 1.09, 1.1, 1.11)
    at_floor = lower(flat("a", 1.079, 1.089, 1.1), high, floor=1.0986)
    assert at_floor.verdict == "undecided"
    assert at_floor.text.endswith("not below 1.0986, so neither learned anything")
    assert lower(flat("a", 1.079, 1.089, 1.1), high).verdict == "holds"
    assert lower(low, high, floor=1.0986).verdict == "holds"
    assert lower(low, high, floor=1.0986, better=["b"], worse="a").verdict == "fails"


def test_lower_at_the_end_of_runs_of_unequal_length():
    short = arm("a", *(run(np.linspace(1, 0.5 + k, 10)) for k in (0, 1)))
    long = arm("b", *(run(np.linspace(1, 0.6 + k, 30)) for k in (0, 1)))
    result = lower(changed(short, reason=None), changed(long, reason=None), last=None)  # neither converged
    assert (result.verdict, result.effect) == ("holds", pytest.approx(-0.1))
    assert result.text.startswith("loss of a minus that of b at the end of each run is -0.1 [")
    assert lower(changed(short, reason=None), changed(long, reason=None)).verdict == "undecided"
    cut = changed(short, reason=None, statuses=["completed", "killed"])
    assert lower(cut, changed(long, reason=None), last=None).verdict == "undecided"


# -- trend ----------------------------------------------------------------------------------------------------------


def heads(*losses, direction="increases", names=None, **more):
    """Arms with 1, 2, 4, ... heads and a loss for each seed."""
    arms = [flat(f"H{2**k}", *row, H=2**k) for k, row in enumerate(losses)]
    return trend(arms, direction=direction, names=names, **more)


def trend(arms, direction="increases", names=None, **more):
    names = names or [a.label for a in arms]
    return finding("trend", *arms, measure="loss", arms=names, factor="task.H", direction=direction, **more)


def test_trend_is_the_exponent_in_the_factor():
    result = heads((1, 1.1), (2, 2.2), (4, 4.4))
    assert (result.verdict, result.unit) == ("holds", "ln(loss) per ln(task.H)")
    assert result.effect == pytest.approx(1)
    assert "the means of the arms increase throughout" in result.text
    assert heads((1, 1.1), (2, 2.2), (4, 4.4), direction="decreases").verdict == "fails"
    assert heads((4, 4.4), (2, 2.2), (1, 1.1), direction="decreases").verdict == "holds"
    assert heads((1, 1.1), (2, 2.2), (4, 4.4), names=["H4", "H1", "H2"]).verdict == "holds"


# -- every test -----------------------------------------------------------------------------------------------------

EVERY = {
    "reaches": {"measure": "loss", "arms": ["a"], "below": 9},
    "sooner": {"measure": "loss", "fast": ["a"], "slow": "b", "below": 9, "factor": 0.1},
    "slope": {"arms": ["a"], "x": "step", "y": "loss", "scale": "loglog", "at_most": 1},
    "lower": {"measure": "loss", "better": ["a"], "worse": "b"},
    "trend": {"measure": "loss", "arms": ["a", "b"], "factor": "task.H", "direction": "increases"},
    "slope_region": {"arms": ["a"], "x": "step", "y": "loss", "between": [-2, 0], "decades": 1},
}
PAIR = {"a": power("a", -1, H=1), "b": power("b", -1, 2, H=2)}


def seeds(source, n):
    return changed(source, seeds=range(n), tables=[[table] for table in source.every_table][:n], statuses=None)


@pytest.mark.parametrize("test", EVERY)
def test_one_seed_decides_nothing(test):
    result = finding(test, *(seeds(a, 1) for a in PAIR.values()), **EVERY[test])
    assert (result.verdict, result.low, result.high) == ("undecided", None, None)
    assert result.effect is not None
    assert "(one seed, so no verdict)" in result.text
    assert "[" not in result.text


@pytest.mark.parametrize("status", ["diverged", "timeout", "failed", "killed", "running"])
@pytest.mark.parametrize("test", EVERY)
def test_no_claim_holds_for_a_run_that_broke_off(test, status):
    *whole, last = PAIR["a"].every_table
    cut = {name: column[:1] for name, column in last.items()} | {"loss": np.full(1, 99.0)}
    tables = [[table] for table in (*whole, cut)]
    broken = changed(PAIR["a"], tables=tables, statuses=["completed", "completed", status])
    assert finding(test, broken, PAIR["b"], **EVERY[test]).verdict != "holds"


# -- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "change", "message"),
    [
        ("reachs", {}, "unknown claim test 'reachs'; did you mean 'reaches'?"),
        ("reaches", {"arms": ["a", "A1"]}, "unknown arm 'A1'; did you mean 'a'?"),
        ("slope", {"y": "los"}, "unknown column 'los'; did you mean 'loss'?"),
        ("reaches", {"belo": 1}, "claim test reaches: reaches() got an unexpected keyword argument 'belo'"),
        ("reaches", {"below": 1, "above": 0}, "below=1 and above=0: give exactly one"),
    ],
)
def test_illegal_claims_are_refused(test, change, message):
    with pytest.raises(UserError) as error:
        judge(test, PAIR, **EVERY.get(test, {}) | change)
    assert str(error.value).startswith(message)


# -- over claims, readings and constants ----------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0.5, 1.5])
def test_p_is_the_level_at_which_the_interval_just_decides(bound):
    """Against scipy's t-test: p is the two-sided p-value for the bound."""
    result = finding("reaches", flat("a", 0.9, 1.0, 1.2), arms=["a"], measure="loss", below=bound)
    expected = scipy.stats.ttest_1samp([0.9, 1.0, 1.2], bound).pvalue
    assert result.p == pytest.approx(expected, rel=1e-9)
    assert result.verdict == ("holds" if bound > 1 else "fails")


def test_p_of_several_arms():
    """For "all hold", p is the largest one; for "one fails", p is corrected by Bonferroni over the arms."""
    arms = {"a": flat("a", 0.9, 1.0, 1.2), "b": flat("b", 1.9, 2.0, 2.1)}
    alone = {name: finding("reaches", arm, arms=[name], measure="loss", below=3).p for name, arm in arms.items()}
    both = finding("reaches", *arms.values(), arms=["a", "b"], measure="loss", below=3)
    assert (both.verdict, both.p) == ("holds", max(alone.values()))
    one = finding("reaches", arms["b"], arms=["b"], measure="loss", below=1.5)
    both = finding("reaches", *arms.values(), arms=["a", "b"], measure="loss", below=1.5)
    assert (both.verdict, both.p) == ("fails", 2 * one.p)


def found_at(p, verdict="holds"):
    return Finding(verdict if p is not None else "undecided", 1.0, 0.5, 1.5, "", "text", p)


def test_holms_correction():
    levels = {"a": 0.010, "b": 0.016, "c": 0.03, "d": None}
    after = corrected({name: found_at(p) for name, p in levels.items()})
    # 0.05/4 = 0.0125, 0.05/3 = 0.0167, 0.05/2 = 0.025: the third is not significant.
    verdicts = {"a": "holds", "b": "holds", "c": "undecided", "d": "undecided"}
    assert {name: result.verdict for name, result in after.items()} == verdicts
    assert after["c"].text == "text; holds without correction (p = 0.03), not with Holm's correction over 4"
    assert after["a"] == found_at(0.010)
    assert corrected({}) == {}


def test_readings_that_agree_are_a_verdict_and_others_are_not():
    assert over_readings({"": found_at(0.01)}) == found_at(0.01)
    both = over_readings({"x": found_at(0.01), "y": found_at(0.04)})
    assert (both.verdict, both.p, both.text) == ("holds", 0.04, "holds in 2 of 2 readings")
    mixed = over_readings({"x": found_at(0.01), "y": found_at(0.01, "fails"), "z": found_at(None)})
    assert (mixed.verdict, mixed.p) == ("undecided", None)
    assert [result.verdict for result in mixed.readings.values()] == ["holds", "fails", "undecided"]
    unsure = over_readings({"x": found_at(0.01), "y": found_at(0.04, "fails"), "z": found_at(None)})
    assert [result.verdict for result in unsure.readings.values()] == ["holds", "undecided", "undecided"]
    assert over_readings({"x": found_at(None), "y": found_at(None)}).verdict == "undecided"


@pytest.mark.parametrize(
    ("verdict", "readings", "region", "small", "expected"),
    [
        ("holds", [], [], False, "holds"),
        ("fails", [], [], True, "not tested at this scale"),
        ("fails", [], ["holds", "undecided"], False, "depends on unpublished constants"),
        ("fails", [], ["fails", "undecided"], False, "fails"),
        ("holds", [], ["fails", "undecided"], False, "depends on unpublished constants"),
        ("fails", [], ["holds", "fails"], False, "depends on unpublished constants"),
        ("undecided", ["holds", "undecided"], [], False, "undecided"),
        ("undecided", ["holds", "fails"], ["holds", "fails"], False, "decided by our reading"),
        ("undecided", ["holds", "fails"], [], True, "not tested at this scale"),
        ("undecided", ["fails", "faster than claimed"], [], False, "decided by our reading"),
        ("holds", [], ["holds", "faster than claimed"], False, "holds"),
    ],
)
def test_the_words_of_a_claim(verdict, readings, region, small, expected):
    assert page_word(verdict, readings, region, small=small) == expected
    assert expected in PAGE_WORDS


@pytest.mark.parametrize(
    ("exponent", "faster", "expected"),
    [(-2, "below", "faster than claimed"), (-2, "above", "fails"), (-0.2, "below", "fails")],
)
def test_a_rate_may_be_faster_than_claimed(exponent, faster, expected):
    bounds = {"at_least": -1.1, "at_most": -0.9, "faster": faster}
    result = finding("slope", power("a", exponent), arms=["a"], x="step", y="loss", scale="loglog", **bounds)
    assert result.verdict == expected
