"""The resolution of a search: how much better the best setting may be than the one that the search chose.

A verdict about optimizers, not about the few settings that were tried, must allow for what a search missed: the best
setting lies between its points, and noise may have hidden it. A Gaussian process with a Matérn 5/2 kernel (Rasmussen
and Williams 2006, chapter 2) models the scores, averaged over length scales and amplitudes by their likelihood.
`results/statistics` simulates how often the bound holds, and how often verdicts that exceed it are false.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from bench.results.stats import Array
from bench.text import is_number

CONFIDENCE = 0.85
"""Probability that a search missed no more than the bound: enough for 5 % of false verdicts. Ours."""
LENGTHS, AMPLITUDES = (0.1, 4.0), (0.5, 4.0)
"""Ranges of the length scale of each axis, in widths of the searched box, and of the amplitude, in units of the
transformed scores; log-uniform. Ours."""
PROCESSES, PLACES, DRAWS = 256, 64, 128
"""Numbers of processes with random scales, of places in the box, and of draws there. Ours."""
TRIALS = (2, 64)
"""Fewer scores say nothing; of more, the best count. Ours."""
LEAST_VALUES = 4
"""An axis with fewer tried numbers counts as a list, whose values have no values between them. Ours."""


def missed(points: Sequence[Mapping[str, Any]], scores: Sequence[float], noise: float) -> float:
    """An upper bound of the difference between the best of the scores and the lowest one in the searched box.

    Args:
        points: the settings of T trials; numbers on a log scale.
        scores: their scores, shape (T,); the smallest is the best.
        noise: standard deviation of a score, at least 0.

    Returns:
        The bound, at least 0; infinite if there is one trial, or they differ in what they set.
    """
    best = sorted(range(len(scores)), key=lambda i: scores[i])[: TRIALS[1]]
    names = {tuple(points[i]) for i in best}
    if len(best) < TRIALS[0] or names == {()} or len(names) > 1:
        return math.inf
    axes = [_unit([points[i][name] for i in best]) for name in points[0]]
    return _missed(tuple(axes), tuple(scores[i] for i in best), noise)


def _unit(values: Sequence[Any]) -> tuple[bool, tuple[float, ...]]:
    """Whether an axis is a range, and its values between 0 and 1, those of a list by their order."""
    keys = [(float(value), "") if is_number(value) else (math.inf, str(value)) for value in values]
    order = sorted({*keys})
    is_range = len(order) >= LEAST_VALUES and all(0 < number < math.inf for number, _ in keys)
    at = [math.log(key[0]) if is_range else float(order.index(key)) for key in keys]
    return is_range, tuple((x - min(at)) / (max(at) - min(at) or 1.0) for x in at)


@lru_cache(maxsize=1_000)  # several boards ask for the same study
def _missed(axes: tuple[tuple[bool, tuple[float, ...]], ...], scores: tuple[float, ...], noise: float) -> float:
    from scipy.stats import qmc

    tried, y = np.array([values for _, values in axes]).T, np.array(scores) - min(scores)
    places = qmc.Halton(len(axes), scramble=False).random(PLACES + 1)[1:]
    for k, (is_range, values) in enumerate(axes):
        if not is_range:
            known = np.unique(values)
            places[:, k] = known[(places[:, k] * len(known)).astype(int)]
    places = np.vstack([tried[y.argmin()], places])
    # Scores far from the best would hide the shape around it: they enter logarithmically.
    unit = max(noise, float(np.median(np.sort(y)[:5])), 1e-12)
    z, errors = np.arcsinh(y / unit), noise / np.hypot(unit, y)
    rng, ends = np.random.default_rng(0), np.log([AMPLITUDES, *[LENGTHS] * len(axes)]).T
    amplitudes, *lengths = np.exp(rng.uniform(*ends, size=(PROCESSES, len(axes) + 1))).T
    scales = np.stack(lengths, 1)[:, None], amplitudes[:, None, None] ** 2
    roots = np.linalg.cholesky(_matern(tried, tried, *scales) + np.diag(errors**2 + 1e-8))
    white = np.linalg.solve(roots, np.broadcast_to((z - z.mean())[:, None], (PROCESSES, len(z), 1)))
    fits = -(white**2).sum((1, 2)) / 2 - np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(1)
    weights = np.exp(fits - fits.max())
    drawn = rng.choice(PROCESSES, size=DRAWS, p=weights / weights.sum())
    scales, roots, white = (scales[0][drawn], scales[1][drawn]), roots[drawn], white[drawn]
    across = np.linalg.solve(roots, _matern(tried, places, *scales)).mT
    spread = _matern(places, places, *scales) - across @ across.mT + 1e-6 * scales[1] * np.eye(len(places))
    curves = across @ white + np.linalg.cholesky(spread) @ rng.normal(size=(DRAWS, len(places), 1))
    values = unit * np.sinh(z.mean() + curves[:, :, 0])
    return float(np.quantile(values[:, 0] - values.min(1), CONFIDENCE))


def _matern(first: Array, second: Array, lengths: Array, variance: Array) -> Array:
    """The Matérn 5/2 kernel of places, shape (M, N), or of as many processes, which comes first."""
    a, b = first / lengths, second / lengths
    r = np.sqrt(5 * ((a[..., :, None, :] - b[..., None, :, :]) ** 2).sum(-1))
    return variance * (1 + r + r**2 / 3) * np.exp(-r)
