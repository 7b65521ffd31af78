"""The noise of tuning: intervals for an optimizer together with the tuning that chose its settings.

A mean over fresh seeds is conditional on the settings that one study happened to choose; with other seeds it might have
chosen others. So the tuning seeds are resampled with replacement (bootstrap), and the winner is chosen again from each
draw. The coverage of these intervals is simulated in `results/statistics`.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from bench.results.selection import End, Mode, best_index, equal_below, seed_median

EXACT, DRAWS = 5, 1000  # up to so many tuning seeds all draws are enumerated, else so many random ones; ours

Ends = Sequence[Sequence[End]]
"""Values by trial and tuning seed, shape (T, S); None for a run without a value."""


@lru_cache(maxsize=32)
def draws(seeds: int) -> tuple[NDArray[np.int_], NDArray[np.float64]]:
    """Sorted indices of as many seeds, drawn with replacement, shape (D, S), and probabilities of draws, shape (D,)."""
    if seeds <= EXACT:
        every = np.array(list(product(range(seeds), repeat=seeds)))
    else:
        every = np.random.default_rng(0).integers(seeds, size=(DRAWS, seeds))
    distinct, counts = np.unique(np.sort(every, axis=1), axis=0, return_counts=True)
    return distinct, counts / len(every)


def tuning_variance(scores: Ends, finals: Ends, chosen: int, mode: Mode, metric: str) -> float | None:
    """Variance of the reported value due to the choice of the winner; None (unbounded) if a draw may lack a value.

    Of each draw of the tuning seeds it takes the difference between its winner and the actual one (`chosen`), paired
    by seed. `scores` are on the selection split, `finals` (logarithms for ratios) on the reporting split, by trial.
    """
    values = np.array([[math.nan if value is None else value for value in row] for row in finals], dtype=np.float64)
    means, (drawn, chances) = (values - values[chosen]).mean(1), draws(len(scores[0]))

    def gap(seeds: list[int]) -> float:
        medians = [seed_median([row[seed] for seed in seeds], mode) for row in scores]
        winner = best_index(medians, mode, equal_below(medians, metric))
        return math.nan if winner is None else float(means[winner])

    gaps = np.array([gap(seeds) for seeds in drawn.tolist()])
    return None if np.isnan(gaps).any() else float((gaps - gaps @ chances) ** 2 @ chances)
