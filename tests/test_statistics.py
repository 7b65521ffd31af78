"""Statistics of boards against independent references, and by simulation."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.results import stats
from bench.results.sequential import LEAST_SEEDS, SHARES, advice, compare, decided_at, grid, least_wins, places
from tools.statistics import NULLS, UNEQUAL, advised, coverage, divergences, false_verdicts, lognormal, normal, verdicts

numbers = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))


# -- intervals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 5, 10, 20])
def test_intervals_cover_95_percent_of_normal_seeds(n: int) -> None:
    assert 0.93 <= coverage(normal, n) <= 0.97
    assert coverage(lognormal(0.5), n) >= 0.88


# -- verdicts ---------------------------------------------------------------------------------------------------------

gains = st.lists(st.sampled_from([-math.inf, -2.0, -1.0, 0.0, 1.0, 2.0, math.inf]), max_size=30)


def values_of(d: list[float]) -> tuple[list[float | None], list[float | None]]:
    """Values of two optimizers with these differences."""
    first = [None if x == -math.inf else 0.0 if x == math.inf else x for x in d]
    return first, [None if x == math.inf else 0.0 for x in d]


@pytest.mark.parametrize(("share", "tests"), [(SHARES[0], 1), (SHARES[1], 1), (SHARES[0], 45)])
def test_chance_wins_cross_the_boundary_less_often_than_allowed(share: float, tests: int) -> None:
    """Against all sequences of 14 coin flips, and 2,000 flips by another recursion."""
    coins = np.array(list(product([0, 1], repeat=14))).cumsum(1)
    least = least_wins(14, share, tests)[1:]
    wins, losses = coins >= least, np.arange(1, 15) - coins >= least
    assert (wins | losses).any(1).mean() <= share / tests
    longest, spent = 2000 if tests == 1 else 200, 0.0
    alive = np.zeros(longest + 2)  # probability of so many wins without a decision
    alive[0] = 1.0
    for least_that_decide in least_wins(longest, share, tests)[1:]:
        alive[1:] = (alive[1:] + alive[:-1]) / 2
        alive[0] /= 2
        spent += alive[least_that_decide:].sum()
        alive[least_that_decide:] = 0
    assert 0.9 * share < 2 * spent * tests <= share + 1e-12 or tests > 1
    assert 2 * spent * tests <= share + 1e-12


@given(gains)
def test_a_verdict_is_that_of_the_first_seeds_that_decide(d: list[float]) -> None:
    result = compare(*values_of(d), "max")
    expected = verdicts(np.array([d]))[0] if d else [0]
    often = divergences(np.array([d]))[0] if d else [0]
    assert (result.sign, result.diverges) == (expected[-1], often[-1])
    deciding = expected if result.sign else often
    assert result.decided_after == next((n for n, sign in enumerate(deciding, 1) if sign), None)
    assert (result.wins, result.losses) == (sum(x > 0 for x in d), sum(x < 0 for x in d))
    assert result.verdict in (
        ("too few seeds",) if len(d) < LEAST_SEEDS else ("better", "worse", "no difference found")
    )


@given(gains, gains)
def test_a_verdict_stands_when_seeds_are_added(d: list[float], more: list[float]) -> None:
    before = compare(*values_of(d), "max")
    after = compare(*values_of([*d, *more]), "max")
    assert before.sign in (0, after.sign)
    assert before.diverges in (0, after.diverges)
    if before.decided_after is not None:
        assert {*before.words.split(", ")} <= {"no difference found", *after.words.split(", ")}


@given(st.lists(st.tuples(st.floats(1e-9, 1e3), st.floats(1e-9, 1e3)), min_size=1, max_size=20))
def test_a_scale_changes_no_verdict_and_ratios_are_positive(values: list[tuple[float, float]]) -> None:
    first, second = map(list, zip(*values, strict=True))
    plain, log = compare(first, second, "min"), compare(first, second, "min", log=True)
    assert (plain.verdict, plain.wins, plain.decided_after) == (log.verdict, log.wins, log.decided_after)
    assert log.effect is not None
    # The interval holds for all numbers of seeds at once, so that of fewer seeds may exclude the median of all.
    assert 0 <= log.effect.low <= log.effect.high or not log.effect.bounded
    assert log.effect.mean > 0
    ratios = [1.0 if abs(a - b) <= 2**-21 * max(a, b) else a / b for a, b in values]
    assert log.effect.mean == pytest.approx(math.exp(float(np.median(np.log(ratios)))))


@given(st.lists(st.tuples(st.floats(-6, 6), st.floats(-6, 6)), min_size=1, max_size=20), st.floats(-3, 0))
def test_a_value_at_the_floor_bounds_an_effect(values: list[tuple[float, float]], floor: float) -> None:
    """The interval of the values at the floor contains that of the values below it, whatever they are."""
    first, second = ([math.exp(pair[k]) for pair in values] for k in (0, 1))
    lowest = math.exp(floor)
    cut = [[max(x, lowest) for x in side] for side in (first, second)]
    pairs = [i for i, ends in enumerate(zip(*cut, strict=True)) if max(ends) > lowest]  # two at the floor are equal
    true = compare([first[i] for i in pairs], [second[i] for i in pairs], "min", log=True)
    result = compare([cut[0][i] for i in pairs], [cut[1][i] for i in pairs], "min", log=True, floor=lowest)
    if not pairs:
        return
    assert result.effect is not None
    assert true.effect is not None
    near = 1 + 1e-6
    assert result.effect.low <= true.effect.low * near or not result.effect.bounded
    assert result.effect.high * near >= true.effect.high or not result.effect.bounded
    if result.effect.bound == "<=":
        assert true.effect.mean <= result.effect.mean * near
    if result.effect.bound == ">=":
        assert true.effect.mean * near >= result.effect.mean


@pytest.mark.parametrize("name", NULLS | UNEQUAL)
def test_equal_methods_rarely_get_a_verdict_under_optional_stopping(name: str) -> None:
    result = false_verdicts((NULLS | UNEQUAL)[name], most=40, repeats=3000)
    assert result["any"] <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 3000)  # plus the simulation error
    assert result["3"] == result["5"] == 0


# -- all pairs --------------------------------------------------------------------------------------------------------


@example([[2.0, *[0.0] * 13], *[[1.0] * 14] * 4])  # 13 of 14 wins decide none of ten pairs
@example([[1.0] * 14, [0.0] * 2 + [2.0] * 12, [3.0] * 14, [4.0] * 14, [5.0] * 14])  # 12 of 14 decide the last one
@given(st.lists(st.lists(st.integers(0, 3).map(float), min_size=14, max_size=14), min_size=2, max_size=5))
def test_a_grid_is_holms_procedure(rows: list[list[float]]) -> None:
    result = grid([[row] * len(rows) for row in rows], "max")
    left = dict.fromkeys(result)
    while True:  # step down, with the level divided by the number of remaining pairs
        decided = [pair for pair in left if compare(rows[pair[0]], rows[pair[1]], "max", tests=len(left)).sign]
        if not decided:
            break
        for pair in decided:
            del left[pair]
    assert {pair for pair, item in result.items() if not item.sign} == set(left)
    for i, place in enumerate(places(result, len(rows))):
        better = sum(item.sign * (1 if pair[1] == i else -1) > 0 for pair, item in result.items() if i in pair)
        worse = sum(item.sign * (1 if pair[0] == i else -1) > 0 for pair, item in result.items() if i in pair)
        assert place == (1 + better, len(rows) - worse)


# -- more seeds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "wins"), [(5, 5), (8, 7), (15, 12)])
def test_the_probability_of_a_decision_is_that_of_a_simulation(n: int, wins: int) -> None:
    rng = np.random.default_rng(0)
    chance = rng.beta(wins + 0.5, n - wins + 0.5, 4000)[:, None]
    won = wins + (rng.random((4000, 40 - n)) < chance).cumsum(1)
    seeds = np.arange(n + 1, 41)
    least = least_wins(40)[seeds]
    decided = (won >= least) | (seeds - won >= least)
    first = np.where(decided.any(1), seeds[decided.argmax(1)], 0)
    result = decided_at(n, wins, n - wins, 40)
    assert result.sum() == pytest.approx(decided.any(1).mean(), abs=0.03)
    assert result[n + 1 :] == pytest.approx([(first == m).mean() for m in seeds], abs=0.03)


@pytest.mark.parametrize("n", [5, 8, 15])
def test_advice_on_seeds_is_right_in_80_percent_or_silent(n: int) -> None:
    given_, right = advised(n)
    assert given_ == 0 or right >= 0.8
    assert advice(n, n // 2, n - n // 2) is None
    assert advice(5, 0, 0) is None  # all seeds equal


# -- times and budgets ------------------------------------------------------------------------------------------------


def test_median_time_counts_misses_and_does_not_drop_them() -> None:
    assert stats.median_time([4, 1, 3, 2, 5], [9] * 5) == stats.MedianTime(3, None, None, 9)
    assert stats.median_time([4, None, None, 2, 5], [9] * 5).median == 5  # not 4, the median of the finished ones
    assert stats.median_time([4, None, None, None, 5], [9] * 5).median == math.inf
    assert stats.median_time([None, None], [9, 9]).median == math.inf
    # A run that was censored at 1 says nothing about later times; a diverged run will never get there.
    assert stats.median_time([2, 3, 4, None, None], [9, 9, 9, 1, 1]).median == 3
    assert stats.median_time([2, 3, 4, None, None], [9, 9, 9, math.inf, math.inf]).median == 4
    # It is the time from which half of the runs or fewer remain: 7 of 14, whose share is rounded to 0.5000000000000001.
    assert stats.median_time([2, 3, *[4] * 5, *[None] * 8], [*[9] * 14, 1]).median == 4
    # Order statistics: the second of ten is below the median with probability 98.9 %.
    assert stats.median_time(list(range(1, 11)), [30] * 10) == stats.MedianTime(5, 2, 9, 30)
    assert stats.median_time([20] * 10, [30] * 10) == stats.MedianTime(20, 20, 20, 30)
    assert stats.median_time([1, 2, 3, 4, 5, 6, 7, None, None, None], [30] * 10) == stats.MedianTime(5, 2, math.inf, 30)
    cut = stats.median_time([2, 3, 4, 5, 6, 7, 8, 9, 10, None], [30] * 9 + [1])
    assert (cut.median, cut.low, cut.high) == (6, 2, 10)
