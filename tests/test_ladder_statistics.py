"""The statistics of ladders: against independent formulas, and on simulated ladders with known truth."""

import itertools
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from bench.ladder.statistics import (
    Estimate,
    exponent,
    final_from,
    hodges_lehmann,
    kendall,
    median_ends,
    predict,
    regret,
    seed_ratios,
    smoothing,
    step_ratio,
    told,
    trend,
)
from bench.results.stats import Interval, t_interval
from tools.ladder_statistics import Noise, power_law, simulated

Array = NDArray[np.float64]
STEPS = np.arange(10.0, 201.0, 10.0)
falling = partial(power_law, end=2.0, fall=3.0, exponent=0.5)


# -- the ratio of steps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.3, 0.71, 1.0, 1.4, 3.0])
def test_the_ratio_of_shifted_curves_is_their_shift(ratio: float):
    own, reference = falling(STEPS / ratio), falling(STEPS)
    found = step_ratio(STEPS, [own, own], [reference, reference], smooth=False)
    assert math.exp(found.interval.mean) == pytest.approx(ratio, rel=2e-3)


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_smoothing_moves_the_ratio_little(ratio: float):
    own, reference = falling(STEPS / ratio), falling(STEPS)
    found = step_ratio(STEPS, [own, own], [reference, reference])
    assert math.exp(found.interval.mean) == pytest.approx(ratio, rel=3e-3)


def test_against_each_other_the_ratio_turns_around():
    rng = np.random.default_rng(0)
    own, other = (falling(STEPS / r) + 0.01 * rng.normal(size=(5, 1)) for r in (0.6, 1.0))
    one, turned = step_ratio(STEPS, own, other), step_ratio(STEPS, other, own)
    assert one.interval.mean == pytest.approx(-turned.interval.mean, abs=1e-9)
    assert one.interval.low == pytest.approx(-turned.interval.high, abs=1e-9)
    assert one.estimate.error == pytest.approx(turned.estimate.error, abs=1e-9)


def test_it_is_the_hodges_lehmann_estimate_of_the_ratios_of_the_seeds():
    """If the curves of a seed differ by a constant, its ratio has a closed form."""
    shifts = np.array([0.02, -0.05, 0.01, 0.04, -0.01])
    own, reference = falling(STEPS / 0.6) + shifts[:, None], np.tile(falling(STEPS), (5, 1))
    found = step_ratio(STEPS, own, reference, smooth=False)
    end = falling(STEPS[-1])
    # The method reaches the reference's final loss, or the reference reaches the method's.
    below = 0.6 * (3 / (end - shifts - 2)) ** 2 / STEPS[-1]
    above = STEPS[-1] / (3 / (falling(STEPS[-1] / 0.6) + shifts - 2)) ** 2
    expected = np.sort(np.log(np.where(below < 1, below, above)))
    pairs = [(x + y) / 2 for x, y in itertools.combinations_with_replacement(expected, 2)]
    assert found.interval.mean == found.estimate.value == pytest.approx(np.median(pairs), abs=2e-3)
    assert found.interval.ends == pytest.approx((expected[0], expected[-1]), abs=2e-3)


@pytest.mark.parametrize("seeds", [5, 7])
def test_a_seed_that_learns_late_or_diverges_changes_the_ratio_little(seeds: int):
    rng = np.random.default_rng(1)
    own, reference = (falling(STEPS / r) + 0.01 * rng.normal(size=(seeds, 1)) for r in (0.6, 1.0))
    late, lost = own.copy(), own.copy()
    late[0], lost[0] = 5.0, math.inf
    before, after = step_ratio(STEPS, own, reference), [step_ratio(STEPS, each, reference) for each in (late, lost)]
    assert after[0].interval.mean == pytest.approx(after[1].interval.mean)
    assert after[0].interval.low == pytest.approx(after[1].interval.low)
    assert after[0].estimate.error == pytest.approx(after[1].estimate.error)
    assert before.interval.mean <= after[0].interval.mean < before.interval.high
    assert after[0].interval.high == math.inf
    assert math.isfinite(after[0].estimate.error)
    turned = step_ratio(STEPS, reference, lost)
    assert turned.interval.mean == pytest.approx(-after[0].interval.mean)
    assert turned.interval.low == -math.inf


@pytest.mark.parametrize("points", [8, 20, 60])
def test_two_of_five_seeds_beyond_the_evaluations_leave_the_median(points: int):
    """Then no number depends on where the first evaluation is."""
    steps = np.geomspace(200 / points, 200, points)
    own, reference = (falling(steps / r) + 0.01 * np.arange(5)[:, None] for r in (1.6, 1.0))
    alone = seed_ratios(steps, own, reference)
    own[3:] = math.inf
    found = step_ratio(steps, own, reference)
    assert found.interval.mean == found.estimate.value == np.sort(alone[:3])[2]
    assert (found.interval.bound, found.interval.high, found.beyond) == ("", math.inf, 2)
    assert math.isinf(found.estimate.error)


def test_seeds_beyond_the_evaluations_on_both_sides_leave_the_median():
    own, reference = (falling(STEPS / r) + 0.01 * np.arange(5)[:, None] for r in (1.6, 1.0))
    middle = seed_ratios(STEPS, own, reference)[2]
    own[:2] = reference[3:] = math.inf
    found = step_ratio(STEPS, own, reference)
    assert found.interval.mean == middle
    assert (found.beyond, found.estimate.error) == (4, math.inf)


@pytest.mark.parametrize(("seeds", "lost"), [(5, 3), (6, 3), (6, 4)])
def test_a_median_beyond_the_evaluations_is_a_bound(seeds: int, lost: int):
    own, reference = (falling(STEPS / r) + 0.01 * np.arange(seeds)[:, None] for r in (1.6, 1.0))
    known = seed_ratios(STEPS, own, reference)[lost:]
    own[:lost] = math.inf
    found, turned = step_ratio(STEPS, own, reference), step_ratio(STEPS, reference, own)
    least = known.max() if seeds == 2 * lost else math.log(200 / 10)
    assert (found.interval.bound, turned.interval.bound) == (">=", "<=")
    assert found.interval.mean == pytest.approx(least)
    assert turned.interval.mean == pytest.approx(-least)


@pytest.mark.parametrize(("one", "other"), [(0.3, 0.5), (0.5, 0.3), (0.3, 0.95), (0.4, 0.4)])
def test_two_methods_at_the_floor_are_compared_by_their_arrival(one: float, other: float):
    steps = np.arange(1.0, 101.0)
    own, reference = (np.maximum(-16.0, -16 * steps / (100 * share)) for share in (one, other))
    found = seed_ratios(steps, own[None], reference[None], floor=-16 + 1e-9)
    assert math.exp(found[0]) == pytest.approx(one / other)


def test_a_seed_on_which_both_diverge_is_left_out():
    own, reference = (
        np.vstack([falling(STEPS / r) + 0.01 * np.arange(5)[:, None], np.full(20, math.inf)]) for r in (0.6, 1)
    )
    assert step_ratio(STEPS, own, reference) == step_ratio(STEPS, own[:5], reference[:5])


@pytest.mark.parametrize(
    ("n", "low", "high"), [(5, 0.9375, 0.9375), (6, 0.93, 0.97), (7, 0.93, 0.97), (10, 0.93, 0.97)]
)
@pytest.mark.parametrize("skewed", [False, True])
def test_the_interval_of_the_median_covers_it_for_any_distribution(n: int, low: float, high: float, skewed: bool):
    rng, sims = np.random.default_rng(2), 4000
    values = np.exp(3 * rng.normal(size=(sims, n))) - 1 if skewed else rng.normal(size=(sims, n))
    ends = [median_ends(each) for each in values]
    assert within(float(np.mean([one <= 0 <= other for one, other in ends])), low, high, sims)


def test_fewer_than_five_seeds_have_no_interval_of_the_median():
    assert median_ends(np.arange(4.0)) == (-math.inf, math.inf)
    assert median_ends(np.arange(5.0)) == (0, 4)
    assert median_ends(np.array([-math.inf, 1, 2, 3, 4, 5, math.inf])) == (-math.inf, math.inf)


@pytest.mark.parametrize("n", [2, 3, 5, 7, 8])
def test_the_error_of_the_estimate_is_right_for_normal_values(n: int):
    rng = np.random.default_rng(3)
    found = [hodges_lehmann(values) for values in 2 + 0.5 * rng.normal(size=(4000, n))]
    errors = np.array([each.error for each in found])
    assert np.mean(errors**2) == pytest.approx(np.var([each.value for each in found]), rel=0.1)
    assert within(float(np.mean([each.interval.low <= 2 <= each.interval.high for each in found])), 0.95, 0.95, 4000)


def test_one_value_of_five_moves_the_estimate_only_to_the_range_of_the_others():
    rng = np.random.default_rng(4)
    for values in rng.normal(size=(50, 5)):
        values[0] = 1e6
        assert hodges_lehmann(values).value <= values[1:].max()


def test_a_method_that_leads_from_the_first_evaluation_on_has_no_lower_end():
    own, reference = np.full((5, 20), 1.0), np.tile(falling(STEPS), (5, 1))
    found = step_ratio(STEPS, own + np.arange(5)[:, None] * 0.01, reference)
    assert found.interval.mean == pytest.approx(math.log(10 / 200))
    assert math.isinf(found.estimate.error)
    assert found.interval.low == -math.inf


@pytest.mark.parametrize(
    ("steps", "own", "reference"),
    [
        (STEPS[::-1], np.ones((2, 20)), np.ones((2, 20))),
        (STEPS, np.full((2, 20), np.nan), np.ones((2, 20))),
        (STEPS, np.full((2, 20), np.inf), np.full((2, 20), np.inf)),
    ],
)
def test_illegal_curves_are_refused(steps: Array, own: Array, reference: Array):
    with pytest.raises(ValueError, match=r"steps|finite|fewer than two seeds"):
        step_ratio(steps, own, reference)


def test_smoothing_keeps_straight_lines_and_lone_values():
    places = np.log(STEPS)
    matrix = smoothing(places)
    assert np.allclose(matrix @ (2 - 3 * places), 2 - 3 * places)
    assert np.array_equal(smoothing(np.array([0.0, 5.0])), np.eye(2))


# -- trends -----------------------------------------------------------------------------------------------------------


def test_a_line_through_points_is_least_squares():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=5), rng.normal(size=5)
    found = trend(x, [Estimate(value, 10.0, 4) for value in y])
    assert found.slope.mean == pytest.approx(scipy_stats.linregress(x, y).slope)
    assert not found.widened
    error = 10 / math.sqrt(((x - x.mean()) ** 2).sum())
    # Satterthwaite: (sum c^2)^2 / sum c^4 times the degrees of freedom of each.
    c = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    df = 4 * (c**2).sum() ** 2 / (c**4).sum()
    assert found.slope.high - found.slope.mean == pytest.approx(scipy_stats.t.ppf(0.975, df) * error)


def test_a_scatter_that_seeds_do_not_explain_widens_the_trend():
    x, y = [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 0.0, 1.0]
    found = trend(x, [Estimate(value, 0.01, 4) for value in y])
    line = scipy_stats.linregress(x, y)
    assert found.widened
    assert found.slope.high - found.slope.mean == pytest.approx(scipy_stats.t.ppf(0.975, 2) * line.stderr)


def test_a_scatter_that_seeds_explain_is_seldom_called_a_misfit():
    """With few degrees of freedom and unequal errors, the share is near 5 %."""
    rng = np.random.default_rng(3)
    errors, called = np.array([0.1, 0.2, 0.1, 0.3]), 0
    for _ in range(2000):
        values = errors * rng.normal(size=4)
        found = [Estimate(v, e * math.sqrt(rng.chisquare(4) / 4), 4) for v, e in zip(values, errors, strict=True)]
        called += (trend([0.0, 1.0, 2.0, 3.0], found).misfit or 0) < 0.05
    assert within(called / 2000, 0.03, 0.06, 2000)


def test_a_prediction_goes_on_along_the_line():
    estimates = [Estimate(value, 0.1, 4) for value in (1.0, 2.0, 3.0)]
    found = predict([0.0, 1.0, 2.0], estimates, 3.0)
    assert found.mean == pytest.approx(4.0)
    weights = np.array([-2 / 3, 1 / 3, 4 / 3])
    half = 0.1 * math.sqrt((weights**2).sum() + 1)
    assert 2 < (found.high - found.mean) / half < 2.7  # a t-quantile
    alone = predict([0.0], estimates[:1], 3.0)
    assert alone.mean == 1.0
    assert alone.high - 1.0 == pytest.approx(scipy_stats.t.ppf(0.975, 8) * 0.1 * math.sqrt(2))


def test_an_exponent_is_the_slope_of_the_logarithms_and_a_grid_tells_no_more_than_its_step():
    sizes = [1e4, 3e4, 9e4, 2.7e5]
    best = [0.1 * size**-0.5 for size in sizes]
    found = exponent(sizes, best, 0.5)
    assert found.mean == pytest.approx(-0.5)
    x = np.log10(sizes)
    walks = np.array([np.polyfit(x, np.arange(4) >= k, 1)[0] for k in (1, 2, 3)])  # an error stays from rung k on
    half = scipy_stats.t.ppf(0.975, 2) * 0.5 / math.sqrt(12) * np.linalg.norm(walks)
    assert found.high - found.mean == pytest.approx(half)
    assert not exponent(sizes[:2], best[:2], 0.5).bounded


@pytest.mark.parametrize("rungs", [3, 4])
@pytest.mark.parametrize("noise", [0.0, 0.2, 0.5])
def test_the_interval_of_the_exponent_covers_with_a_grid_and_with_the_noise_of_tuning(rungs: int, noise: float):
    rng = np.random.default_rng(8)
    sizes, step = 2e4 * 3.0 ** np.arange(rungs), 0.25
    held = list[bool]()
    for _ in range(1000):
        best = -0.5 * np.log10(sizes) + noise * rng.normal(size=rungs)
        phase = rng.uniform(0, step)
        found = exponent(sizes, 10 ** (np.round((best - phase) / step) * step + phase), step)
        held.append(found.low <= -0.5 <= found.high)
    assert np.mean(held) > 0.93


@pytest.mark.parametrize("rungs", [4, 6])
@pytest.mark.parametrize(("noise", "least"), [(1.0, 0.93), (3.0, 0.93), (1e9, 0.89)])
def test_the_interval_of_the_exponent_covers_although_each_rung_searches_around_the_last_winner(
    rungs: int, noise: float, least: float
):
    """With a score that is a parabola plus noise; at 1e9 winners are a random walk."""
    rng, held = np.random.default_rng(11), list[bool]()
    first, later = np.linspace(-2, 2, 9), np.linspace(-1, 1, 6)
    for _ in range(1000):
        best = list[float]()
        for _ in range(rungs):
            tried = best[-1] + later if best else first
            best.append(tried[np.argmin(tried**2 + noise * rng.normal(size=tried.size))])
        found = exponent(2e4 * 3.0 ** np.arange(rungs), 10 ** np.array(best), 0.5)
        held.append(found.low <= 0 <= found.high)
    assert np.mean(held) > least


# -- rankings ---------------------------------------------------------------------------------------------------------


def test_tau_is_that_of_scipy():
    rng = np.random.default_rng(3)
    for _ in range(20):
        one, other = rng.normal(size=(6, 4)), rng.normal(size=(6, 4))
        found = kendall(one, other)
        assert found.mean == pytest.approx(scipy_stats.kendalltau(one.mean(1), other.mean(1)).statistic)
        assert -1 <= found.low <= found.mean <= found.high <= 1


def test_significant_differences_are_seldom_wrong():
    rng, wrong, sims = np.random.default_rng(4), 0, 400
    for _ in range(sims):
        wrong += any(np.any(each) for each in told(rng.normal(size=(4, 5)), rng.normal(size=(4, 5))))
    assert wrong <= scipy_stats.binom.ppf(0.999, sims, 0.05)


def test_the_interval_of_tau_holds_the_true_one():
    rng, held, sims = np.random.default_rng(5), 0, 300
    one, other = np.array([0.0, 0.3, 1.0, 3.0, 6.0]), np.array([0.3, 0.0, 6.0, 1.0, 3.0])
    truth = scipy_stats.kendalltau(one, other).statistic
    for _ in range(sims):
        found = kendall(*(each[:, None] + rng.normal(size=(5, 5)) for each in (one, other)))
        held += found.low <= truth <= found.high
    assert held >= scipy_stats.binom.ppf(0.001, sims, 0.95)


def test_the_ranking_is_final_from_the_rung_after_the_last_that_differs():
    noise = np.array([-0.001, 0.0, 0.001])
    rungs = [
        np.array(means)[:, None] + noise * [[1], [2], [3]] for means in ([1, 2, 3], [2, 1, 3], [1, 2, 3], [1, 2, 9])
    ]
    assert final_from(rungs) == (2, 2)
    assert final_from(rungs[2:]) == (0, 0)
    # A tie is another ranking by means, but no significant difference.
    tie = np.array([[1.0, 1.0], [1.0, 1.0]])
    assert final_from([tie, np.array([[1.0, 1.0], [2.0, 2.0]])]) == (1, 0)
    assert final_from([tie, tie]) == (0, 0)
    assert kendall(tie, tie).mean == 1
    assert kendall(tie, np.array([[1.0, 1.0], [2.0, 2.0]])).mean == 0


def test_regret_is_the_largest_paired_difference():
    rng = np.random.default_rng(6)
    values = np.array([1.0, 1.5, 3.0])[:, None] + rng.normal(size=(3, 5)) * 0.1
    assert regret(values, 0) == Interval(0.0, 0.0, 0.0, 5)
    found, alone = regret(values, 2), t_interval(values[2] - values[0])
    assert (found.mean, found.high) == (alone.mean, alone.high)
    assert found.low == t_interval(values[2] - values[0], 0.975).low


@pytest.mark.parametrize("means", [(0.0,) * 6, (0.0, 0.2, 0.5, 1.0, 1.0, 2.0)])
def test_the_interval_of_the_regret_covers_although_the_seeds_choose_the_best(means: tuple[float, ...]):
    rng = np.random.default_rng(7)
    held = list[bool]()
    for _ in range(500):
        values = np.array(means)[:, None] + rng.normal(size=(6, 5)) + rng.normal(size=5)
        found = [regret(values, chosen) for chosen in range(6)]
        held += [each.low <= mean <= each.high for mean, each in zip(means, found, strict=True)]
    assert np.mean(held) > 0.94


# -- simulated ladders ------------------------------------------------------------------------------------------------


def stored_curves(folder: Path) -> tuple[Array, Array, Array]:
    """Steps, and losses on the selection split by seed, of stored runs of two optimizers on a language model."""
    from bench.config.run_config import resolve
    from bench.execute import Effort
    from bench.execute.execute import execute
    from bench.progress import SweepProgress
    from bench.store.store import Store
    from tasks import TASKS
    from tests.tiny_lm import SIZES, TINY_LM

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "tiny_lm", TINY_LM)
        words = {
            "task": "tiny_lm",
            **SIZES,
            "trainer.max_steps": 200,
            "trainer.val_every": 10,
            "device": "cpu",
            "store": folder,
            "data": folder,
        }
        own = {"sgd": {"opt.lr": 0.3}, "adam": {"opt.lr": 0.003}}
        configs = [
            resolve({**words, **settings, "opt": opt, "seed": seed})
            for (opt, settings), seed in itertools.product(own.items(), range(40))
        ]
        assert execute(configs, SweepProgress("noise", "min", enabled=False), Effort("lanes", 20))
        there = Store(folder).finished_all(config.run_id for config in configs)
        runs = [there[config.run_id] for config in configs]
    losses = np.array([[row["loss"] for row in run.validations] for run in runs])
    steps = np.array([float(row["step"]) for row in runs[0].validations])
    return steps, losses[:40], losses[40:]


def within(share: float, low: float, high: float, n: int) -> bool:
    """Whether an observed rate of n simulations is consistent with a true rate in this range (at 99.9 %)."""
    return scipy_stats.binom.ppf(0.001, n, low) / n <= share <= scipy_stats.binom.ppf(0.999, n, high) / n


@pytest.mark.parametrize("first", [-0.35, 0.25])
def test_intervals_cover_on_a_simulated_ladder(first: float):
    """Normal noise per run and per evaluation, part of which is shared within a pair."""

    rng = np.random.default_rng(9)
    shared = 0.02 * rng.normal(size=(200, 1))
    one, other = (shared + 0.01 * rng.normal(size=(200, 1)) + 0.01 * rng.normal(size=(200, 20)) for _ in range(2))
    noise = Noise(one, other, normal=True)
    found = simulated(STEPS, falling, [noise], first, 0.0, 100)
    assert within(found["ratio"], 0.93, 0.97, 400)
    assert within(found["trend"], 0.93, 0.97, 100)
    assert found["beyond"] == 0
    assert within(found["called"], 0.0, 0.05, 100)


@pytest.mark.deep
@pytest.mark.parametrize(("first", "slope"), [(-0.35, 0.0), (-0.35, 0.2), (0.25, -0.1)])
def test_intervals_cover_with_the_noise_of_stored_runs(noisy: tuple[Array, Array, Array], first: float, slope: float):
    steps, own, reference = noisy
    noise = Noise(own - own.mean(0), reference - reference.mean(0))
    found = simulated(steps, falling, [noise], first, slope, 400)
    assert within(found["ratio"], 0.93, 0.97, 1600)
    assert within(found["trend"], 0.93, 0.97, 400)
    assert within(found["predicted"], 0.90, 0.99, 400)
    if slope == 0:
        assert within(found["called"], 0.0, 0.05, 400)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Array, Array, Array]:
    """Curves of stored runs."""
    return stored_curves(tmp_path_factory.mktemp("noise"))
