"""The noise of tuning, against values computed by hand and by simulation."""

import math
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from bench.boards.quality import TUNING_NOISE
from bench.results import stats
from bench.results.retuning import draws, tuning_variance
from bench.results.selection import Mode, best_index, equal_below, seed_median
from tools.statistics import retuned_coverage

ends = st.none() | st.integers(0, 20).map(lambda x: x / 20)


def test_all_draws_are_looked_at_where_there_are_few() -> None:
    assert [of.tolist() for of in draws(2)] == [[[0, 0], [0, 1], [1, 1]], [0.25, 0.5, 0.25]]
    indices, chances = draws(5)
    assert indices.shape == (math.comb(9, 4), 5)
    assert chances[indices.tolist().index([0, 1, 2, 3, 4])] == pytest.approx(math.factorial(5) / 5**5)
    for seeds in range(1, 8):
        indices, chances = draws(seeds)
        assert chances.sum() == pytest.approx(1)
        expected = chances @ (indices[..., None] == range(seeds)).sum(1)
        assert expected == pytest.approx(np.ones(seeds), abs=0.1)  # each seed is drawn equally often


@given(st.integers(1, 3).flatmap(lambda s: st.lists(st.tuples(*[st.tuples(ends, ends)] * s), min_size=1, max_size=4)))
def test_the_variance_is_that_over_all_draws_written_out(trials: list[tuple[tuple[float | None, float | None], ...]]):
    scores = [[score for score, _ in values] for values in trials]
    finals = [[final for _, final in values] for values in trials]
    seeds, gaps = range(len(scores[0])), []
    for draw in product(seeds, repeat=len(seeds)):
        index = winner([[row[seed] for seed in draw] for row in scores], "max", "accuracy")
        if index is None or None in (*finals[index], *finals[0]):
            gaps = None
            break
        values, present = (np.array(finals[i], dtype=float) for i in (index, 0))
        gaps.append(float((values - present).mean()))
    result = tuning_variance(scores, finals, 0, "max", "accuracy")
    assert result == (None if gaps is None else pytest.approx(np.var(gaps), abs=1e-12))


def winner(scores: list[list[float | None]], mode: Mode, metric: str) -> int | None:
    """The rule of studies, written out."""
    medians = [seed_median(row, mode) for row in scores]
    return best_index(medians, mode, equal_below(medians, metric))


def test_variances_and_degrees_of_freedom_are_those_of_welch() -> None:
    """Two samples, whose difference of means is compared with another implementation."""
    first, second = [1.0, 2.0, 4.0, 3.5], [2.0, 2.5, 7.0]
    welch = reference.ttest_ind(first, second, equal_var=False).confidence_interval()
    more = float(np.var(second, ddof=1)) / 3
    result = stats.noisier_interval(first, more, 2)
    assert result.high - result.low == pytest.approx(welch.high - welch.low)


@pytest.mark.parametrize(("noise", "optimum", "correlation"), [(1, 0, 1), (1, 0, 0.5), (3, 0.5, 1)])
def test_with_the_noise_of_tuning_more_tunings_are_covered(noise: float, optimum: float, correlation: float) -> None:
    ((plain, ours),) = retuned_coverage(3, noise, optimum, correlation, [10], 1000)
    assert plain < 0.92
    assert plain + 0.04 < ours < 0.985
    assert ours > 0.84


def test_the_column_says_what_the_simulation_found() -> None:
    page = Path("results/statistics/README.md").read_text("utf-8").partition("## The noise of tuning")[2]
    shares = [f"{low} to {high} %" for low, high in re.findall(r"(\d+)% to (\d+)%", page)[:2]]
    assert re.findall(r"\d+ to \d+ %", TUNING_NOISE) == shares
