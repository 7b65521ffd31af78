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

from bench.results import stats
from bench.results.selection import End, Mode
from bench.results.stats import Interval
from bench.text import CONVERGED

EXACT = 5
"""Tuning seeds up to which all draws are enumerated: 3125. Ours."""
DRAWS = 1000
"""Number of random draws for more seeds. Ours."""

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


def winners(scores: Ends, mode: Mode, metric: str) -> NDArray[np.int_]:
    """The winning trial of each of `draws`, by the rule of studies, shape (D,); -1 if none has a score."""
    worst = math.inf if mode == "min" else -math.inf
    array = np.array([[worst if value is None else value for value in row] for row in scores], dtype=np.float64)
    drawn = array[:, draws(len(scores[0]))[0]]
    with np.errstate(invalid="ignore", over="ignore"):
        medians = np.median(drawn, axis=2)
    lost = ~np.isfinite(medians) | (2 * np.isinf(drawn).sum(2) >= drawn.shape[2])
    if metric == "loss":
        medians = np.where((medians >= 0).all(0, where=~lost), np.maximum(medians, CONVERGED), medians)
    medians[lost] = worst
    best = (medians == (medians.min(0) if mode == "min" else medians.max(0))) & ~lost
    middle = (best.sum(0) + 1) // 2
    return np.where(best.any(0), (best.cumsum(0) == middle).argmax(0), -1)


def tuning_variance(scores: Ends, finals: Ends, chosen: int, mode: Mode, metric: str) -> float | None:
    """Variance of the reported value due to the choice of the winner; None (unbounded) if a draw may lack a value.

    For each draw of the tuning seeds it uses the difference between its winner and the actual one (`chosen`), paired
    by seed over all tuning seeds. `scores` are on the selection split, `finals` on the reporting split (logarithms for
    ratios), by trial in the order of the setting.
    """
    indices = winners(scores, mode, metric)
    values = np.array([[math.nan if value is None else value for value in row] for row in finals], dtype=np.float64)
    gaps, chances = (values - values[chosen]).mean(1)[indices], draws(len(scores[0]))[1]
    if indices.min() < 0 or np.isnan(gaps).any():
        return None
    return float((gaps - gaps @ chances) ** 2 @ chances)


def retuned_interval(
    scores: Ends, finals: Ends, chosen: int, fresh: Sequence[float], mode: Mode, metric: str, *, log: bool = False
) -> Interval | None:
    """Mean over `fresh` seeds with an interval that includes the noise of tuning, from one study; None if unbounded.

    The other arguments are those of `tuning_variance`; finals and fresh values are positive if log (geometric mean).
    """
    scaled = [[math.log(x) if log and x is not None else x for x in row] for row in finals]
    variance = tuning_variance(scores, scaled, chosen, mode, metric)
    return None if variance is None else stats.noisier_interval(fresh, [(variance, len(scores[0]) - 1)], log=log)
