"""Statistics of boards against independent references, and by simulation."""

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from bench.results import ranking, stats
from tools.statistics import coverage, false_splits, lognormal, normal, power, tasks_coverage

numbers = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))


# -- intervals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 5, 10, 20])
@pytest.mark.parametrize("paired", [False, True], ids=["mean", "difference"])
def test_intervals_cover_95_percent_of_normal_seeds(n: int, paired: bool) -> None:
    assert 0.93 <= coverage(normal, n, paired=paired) <= 0.97


@pytest.mark.parametrize("n", [3, 5, 10, 20])
def test_intervals_of_differences_cover_log_normal_seeds(n: int) -> None:
    assert coverage(lognormal(1), n, paired=True) >= 0.88
    assert coverage(lognormal(0.5), n) >= 0.88  # a mean, not a difference


def test_a_percentile_bootstrap_over_three_seeds_would_not_cover() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(1000, 3))
    means = np.array([row[rng.integers(3, size=(500, 3))].mean(axis=1) for row in values])
    low, high = np.quantile(means, [0.025, 0.975], axis=1)
    assert np.mean((low <= 0) & (high >= 0)) < 0.85


@given(st.integers(0, 30), st.integers(1, 30))
def test_shares_have_exact_intervals(count: int, n: int) -> None:
    count = min(count, n)
    expected = reference.binomtest(count, n).proportion_ci(method="exact")
    found = stats.share_interval(count, n)
    assert (found.mean, found.n) == (count / n, n)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


@given(st.lists(numbers, min_size=3, max_size=12, unique=True))
def test_deviations_have_chi_squared_intervals(values: list[float]) -> None:
    found = stats.deviation_interval(values)
    df, sd = len(values) - 1, float(np.std(values, ddof=1))
    low, high = (sd * math.sqrt(df / reference.chi2.ppf(q, df)) for q in (0.975, 0.025))
    assert (found.mean, found.low, found.high) == pytest.approx((sd, low, high), rel=1e-9)


# -- pairs ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=12), st.sampled_from(["min", "max"]))
def test_a_pair_is_students_paired_t_test(values: list[tuple[float, float]], mode: str) -> None:
    a, b = np.array(values).T
    found = ranking.pair(list(a), list(b), mode)
    d = a - b if mode == "max" else b - a
    assert found.difference == stats.t_interval(d)
    if np.ptp(d) < 1e-9:
        assert found.p == (1 if not d.any() else pytest.approx(2.0 ** (1 - len(d)))) or np.ptp(d) > 0
    else:
        assert found.p == pytest.approx(float(reference.ttest_rel(a, b).pvalue), rel=1e-6, abs=1e-12)
    assert found.sign == np.sign(d.mean())
    swapped = ranking.pair(list(b), list(a), mode)
    assert (swapped.p, swapped.sign) == (found.p, -found.sign)


def test_a_run_without_a_value_is_worse_and_no_number() -> None:
    good, lost = [0.5, 0.6, 0.7, 0.8, 0.9], [None] * 5
    found = ranking.pair(good, lost, "max")
    assert (found.difference, found.sign, found.lost) == (None, 1, (0, 5))
    assert found.p == pytest.approx(float(reference.boschloo_exact([[0, 5], [5, 0]]).pvalue), rel=1e-6)
    assert found.p < 0.05
    assert ranking.pair(lost, good, "max").sign == -1
    both = ranking.pair(lost, lost, "max")
    assert (both.p, both.sign) == (1, 0)
    # One lost run of five decides nothing, and where the others are better nothing at all can be decided.
    one = [None, 0.1, 0.2, 0.3, 0.4]
    assert ranking.pair(good, one, "max").p < 1
    assert ranking.pair([0.0, 0.0, 0.1, 0.2, 0.3], one, "max").p == 1
    # The same number of lost runs: the rest decides, with half of the level.
    rest = ranking.pair([None, 0.6, 0.71, 0.8], [None, 0.1, 0.2, 0.3], "max")
    assert rest.p == pytest.approx(2 * float(reference.ttest_rel([0.6, 0.71, 0.8], [0.1, 0.2, 0.3]).pvalue))
    assert (rest.difference, rest.sign) == (None, 1)


def test_equal_differences_are_tested_by_their_signs() -> None:
    assert ranking.pair([1.0] * 5, [0.0] * 5, "max").p == pytest.approx(2 * 0.5**5)
    assert ranking.pair([1.0] * 5, [1.0] * 5, "max").p == 1
    assert ranking.pair([1.0], [0.0], "max").p == 1
    assert ranking.pair([], [], "max") == ranking.Pair(0, None, 1.0, (0, 0), 0)


def test_values_of_different_length_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="3 and 2 values are no pairs"):
        ranking.pair([1, 2, 3], [1, 2], "max")
    with pytest.raises(ValueError, match="finite"):
        ranking.pair([math.nan, 1], [1, 2], "max")


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.001, 0.999))
def test_holm_rejects_step_by_step(p: list[float], alpha: float) -> None:
    rejected, left = set[int](), sorted(range(len(p)), key=p.__getitem__)
    while left and p[left[0]] * len(left) <= alpha:
        rejected.add(left.pop(0))
    assert {i for i, adjusted in enumerate(ranking.holm(p)) if adjusted <= alpha} == rejected


def decided(n: int, *better: tuple[int, int]) -> dict[tuple[int, int], ranking.Pair]:
    """Pairs of n rows, of which these are decided, the first of each being better."""
    pairs = {}
    for i, j in combinations(range(n), 2):
        sign = 1 if (i, j) in better else -1 if (j, i) in better else 0
        pairs[i, j] = ranking.Pair(9, stats.t_interval([sign, sign, sign + 0.0]), 0.0 if sign else 1.0, (0, 0), sign)
    return pairs


@pytest.mark.parametrize(
    ("better", "expected"),
    [
        ([], [(1, 1, 3), (1, 1, 3), (1, 1, 3)]),
        ([(0, 1), (0, 2), (1, 2)], [(1, 1, 1), (2, 2, 2), (3, 3, 3)]),
        ([(0, 1), (0, 2)], [(1, 1, 1), (2, 2, 3), (2, 2, 3)]),
        # The first and the last are told apart, but both are tied with the second.
        ([(0, 2)], [(1, 1, 2), (1, 1, 3), (1, 2, 3)]),
    ],
)
def test_rows_that_are_not_told_apart_share_a_rank(
    better: list[tuple[int, int]], expected: list[tuple[int, ...]]
) -> None:
    found = ranking.ranks(decided(3, *better), 3)
    assert [(each.rank, each.low, each.high) for each in found] == expected


@pytest.mark.matrix(keep=2)
@pytest.mark.parametrize(
    ("optimizers", "n", "repeats", "options"),
    [
        (10, 5, 600, {}),
        (10, 3, 400, {}),
        (10, 5, 400, {"draw": lognormal(1)}),
        (10, 5, 400, {"diverging": 0.2}),
        (2, 5, 3000, {}),  # a single test, exact at 5 %
    ],
)
def test_equal_optimizers_are_rarely_told_apart(optimizers: int, n: int, repeats: int, options: dict[str, Any]) -> None:
    splits, pairs = false_splits(optimizers, n, repeats, **options)
    assert splits <= pairs <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / repeats)  # with the error of the simulation
    assert splits <= 0.05 or optimizers == 2


def test_a_pair_that_differs_by_two_deviations_is_split_by_five_seeds() -> None:
    assert min(power(2, 5, 2.0, 1000)) >= 0.8


@given(st.floats(0.2, 5), st.integers(3, 30), st.sampled_from([0.05, 0.05 / 45]))
def test_seeds_that_resolve_a_difference(effect: float, n: int, level: float) -> None:
    half = reference.t.ppf(0.975, n - 1) / math.sqrt(n)
    found = ranking.seeds_to_resolve(stats.Interval(effect, effect - half, effect + half, n), level)
    assert found is not None

    def power_of(n: int) -> float:
        critical, shift = reference.t.ppf(1 - level / 2, n - 1), effect * math.sqrt(n)
        found = 1 - reference.nct.cdf(critical, n - 1, shift)
        return found if math.isfinite(found) else reference.norm.cdf(shift - critical)  # scipy gives up

    assert power_of(found) >= 0.8 - 1e-6
    assert found == 2 or power_of(found - 1) < 0.8 + 1e-6


def test_a_difference_of_nothing_is_never_resolved() -> None:
    assert ranking.seeds_to_resolve(stats.t_interval([1.0, -1.0])) is None
    assert ranking.seeds_to_resolve(stats.t_interval([1.0])) is None
    assert ranking.seeds_to_resolve(stats.t_interval([1e-9, 1.0, -1.0])) is None
    assert ranking.seeds_to_resolve(stats.t_interval([0.5, 0.5, 0.5])) == 6  # 2 / 2^6 < 5 %


# -- over tasks -------------------------------------------------------------------------------------------------------


def test_a_standardised_gap_depends_on_the_two_alone_and_not_on_the_unit() -> None:
    a, b = [0.91, 0.93, 0.95], [0.7, 0.75, 0.74]
    found = ranking.standardised_gap(a, b, "max")
    assert found is not None
    deviation = math.sqrt((np.var(a, ddof=1) + np.var(b, ddof=1)) / 2)
    assert found == pytest.approx((np.array(a) - b) / deviation)
    assert ranking.standardised_gap(100 * np.array(a), 100 * np.array(b), "max") == pytest.approx(found)
    assert ranking.standardised_gap(a, b, "min") == pytest.approx(-found)
    assert ranking.standardised_gap([1, 1], [1, 1], "max") == pytest.approx([0, 0])
    assert ranking.standardised_gap([1, 1], [2, 2], "max") is None


def test_the_overall_gap_is_the_mean_over_tasks() -> None:
    gaps = [np.array([1.0, 2.0, 3.0]), np.array([5.0, 5.5, 6.0, 6.5]), np.array([0.0, 0.5, -0.5])]
    found = ranking.hierarchical_interval(gaps)
    assert found.mean == pytest.approx(np.mean([2, 5.75, 0]))
    assert found.low < found.mean < found.high
    assert found == ranking.hierarchical_interval(gaps)
    assert ranking.hierarchical_interval(gaps[:1]) == stats.t_interval(gaps[0])
    assert ranking.hierarchical_interval([gaps[0]] * 10).high < found.high


@pytest.mark.deep
def test_more_tasks_make_the_overall_interval_cover() -> None:
    found = [tasks_coverage(tasks, 5, 150) for tasks in (3, 10)]
    assert found[1] > 0.88
    assert found[0] > 0.6


# -- times and budgets ------------------------------------------------------------------------------------------------


def test_median_time_counts_misses_and_does_not_drop_them() -> None:
    assert stats.median_time([4, 1, 3, 2, 5], [9] * 5) == stats.MedianTime(3, None, None, 9)
    assert stats.median_time([4, None, None, 2, 5], [9] * 5).median == 5  # and not the 4 of those that are there
    assert stats.median_time([4, None, None, None, 5], [9] * 5).median == math.inf
    assert stats.median_time([None, None], [9, 9]).median == math.inf
    # A run that was cut off at 1 says nothing of what comes then; one that diverged will never get there.
    assert stats.median_time([2, 3, 4, None, None], [9, 9, 9, 1, 1]).median == 3
    assert stats.median_time([2, 3, 4, None, None], [9, 9, 9, math.inf, math.inf]).median == 4
    # Order statistics: the second of ten is below the median with 98.9 %.
    assert stats.median_time(list(range(1, 11)), [30] * 10) == stats.MedianTime(5, 2, 9, 30)
    assert stats.median_time([20] * 10, [30] * 10) == stats.MedianTime(20, 20, 20, 30)
    assert stats.median_time([1, 2, 3, 4, 5, 6, 7, None, None, None], [30] * 10) == stats.MedianTime(5, 2, math.inf, 30)
    cut = stats.median_time([2, 3, 4, 5, 6, 7, 8, 9, 10, None], [30] * 9 + [1])
    assert (cut.median, cut.low, cut.high) == (6, 2, 10)


@given(st.lists(st.integers(1, 40), min_size=6, max_size=30))
def test_median_times_hold_the_true_median(times: list[int]) -> None:
    found = stats.median_time(times, [50] * len(times))
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.median <= found.high
    below = reference.binom.cdf(sum(t < found.low for t in times), len(times), 0.5)
    assert below <= 0.025 or found.low == min(times)


@given(st.lists(st.none() | numbers, min_size=1, max_size=7), st.sampled_from(["min", "max"]))
def test_expected_best_is_the_mean_over_all_draws(scores: list[float | None], mode: str) -> None:
    best = max if mode == "max" else min
    for k, found in enumerate(stats.expected_best(scores, mode), 1):
        draws = [[score for score in draw if score is not None] for draw in combinations(scores, k)]
        if all(draws):
            assert found == pytest.approx(np.mean([best(draw) for draw in draws]), abs=1e-9)
        else:
            assert found is None
