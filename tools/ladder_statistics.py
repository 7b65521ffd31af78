"""Simulate the intervals of ladders with the noise of shipped runs: `make statistics`.

Writes `results/statistics/ladder.md`.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.ladder.statistics import Estimate, predict, step_ratio, trend
from bench.results.stats import Interval
from bench.store.stores import Stores
from tools.statistics import table

Array = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], tuple[Array, Array]]
"""Draws the noise of n pairs of runs: two arrays of shape (n, evaluations)."""

PATH = Path("results/statistics/ladder.md")
LADDER, REFERENCE = Path("results/ladder/lm/runs"), Path("results/reference/runs")
LADDERS = 2_000
TRUTHS = {"no trend": (-0.35, 0.0), "rises": (-0.35, 0.2), "falls": (0.25, -0.1)}
"""Logarithm of the true ratio at the first rung, and its change per decade of size."""


def falling(steps: Array) -> Array:
    """A loss that falls by a power law."""
    return 2.0 + 3.0 * np.asarray(steps) ** -0.5


def drawn(*deviations: tuple[Array, Array], normal: bool = False) -> Noise:
    """Draws the noise of pairs of runs from deviations of stored runs from their mean curve.

    Args:
        deviations: of two optimizers with the same seeds, shape (seeds, evaluations); of several such pairs, each draw
            takes one.
        normal: draw normal noise with the covariance of the deviations instead of the deviations themselves.
    """

    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        own, reference = deviations[rng.integers(len(deviations))]
        if not normal:
            seeds = rng.integers(0, len(own), n)
            return own[seeds], reference[seeds]
        weights = rng.normal(size=(n, len(own))) / math.sqrt(len(own))
        return weights @ own, weights @ reference

    return draw


class _Stored(NamedTuple):
    """Evaluations of the fresh runs of one task and length.

    Attributes:
        steps: of the evaluations.
        pairs: deviations of each optimizer and of the reference. n curves deviate less from their own mean than from
            the true one, so they are multiplied by sqrt(n / (n - 1)).
    """

    steps: Array
    pairs: list[tuple[Array, Array]]


def _stored(folder: Path, task: str, reference: str, scale: float = 1.0) -> list[_Stored]:
    """The fresh runs of a task in a store, by their length."""
    curves: dict[int, dict[str, dict[int, list[tuple[int, float]]]]] = {}
    for run in Stores([folder]).runs:
        rows = [(row["step"], row["loss"]) for row in run.validations]
        if run.config["task"] == task and len(rows) > 1:  # trials are evaluated once
            curves.setdefault(run.steps, {}).setdefault(run.config["opt"], {})[run.config["seed"]] = rows
    found = []
    for length in sorted(curves):
        deviations = {}
        for opt, own in curves[length].items():
            losses = np.array([[loss for _, loss in own[seed]] for seed in sorted(own)])
            deviations[opt] = scale * (losses - losses.mean(0)) * math.sqrt(len(losses) / (len(losses) - 1))
        at = np.array([step for step, _ in next(iter(curves[length][reference].values()))], dtype=np.float64)
        pairs = [(own, deviations[reference]) for opt, own in deviations.items() if opt != reference]
        found.append(_Stored(at, pairs))
    return found


def simulated(steps: Array, noise: Noise, first: float, slope: float, ladders: int, seeds: int = 5) -> dict[str, float]:
    """Simulates ladders of four rungs whose losses fall by a power law.

    Args:
        steps: of the evaluations.
        noise: of pairs of runs.
        first: logarithm of the true ratio at the first rung.
        slope: by which it changes per decade.
        ladders: how many.
        seeds: of each method.

    Returns:
        How often the interval of the ratio and that of the trend contain the truth (`ratio`, `trend`), a trend is
        reported (`called`), and the measured ratio of the last rung is in the predicted interval (`predicted`).
    """
    rng = np.random.default_rng(0)
    x = np.log10(2e4 * 3.0 ** np.arange(4))
    truths = first + slope * (x - x[0])
    held = dict[str, list[bool]]({name: [] for name in ("ratio", "trend", "called", "predicted")})
    for _ in range(ladders):
        found = list[Interval]()
        for truth in truths:
            one, other = noise(rng, seeds)
            found.append(step_ratio(steps, falling(steps / math.exp(truth)) + one, falling(steps) + other))
            held["ratio"].append(found[-1].low <= truth <= found[-1].high)
        if not all(math.isfinite(end) for each in found for end in (each.low, each.high)):
            continue
        estimates = [Estimate.of(each) for each in found]
        line = trend(x, estimates).slope
        held["trend"].append(line.low <= slope <= line.high)
        held["called"].append(not line.low <= 0 <= line.high)
        said = predict(x[:3], estimates[:3], float(x[3]))
        held["predicted"].append(said.low <= found[3].mean <= said.high)
    return {name: float(np.mean(each)) for name, each in held.items()}


def page() -> list[str]:
    """The results as Markdown."""
    noises = {
        f"lm, rung {k}": (found.steps, drawn(*found.pairs, normal=True))
        for k, found in enumerate(_stored(LADDER, "lm", "adamw"), 1)
    }
    (planted,) = _stored(REFERENCE, "mha_planted", "gd", scale=1 / 20)
    noises["mha_planted"] = planted.steps, drawn(*planted.pairs)
    rows = [
        (f"{name}; {what}; {seeds} seeds", list(simulated(*noise, *truth, LADDERS, seeds).values()))
        for name, noise in noises.items()
        for what, truth in TRUTHS.items()
        for seeds in (5, 7)
    ]
    truths = "; ".join(
        f"*{what}*: {math.exp(first):.2f} at the first rung, times {math.exp(slope):.2f} per decade of size"
        for what, (first, slope) in TRUTHS.items()
    )
    return [
        "# Simulations of ladders",
        "",
        "Made by `make statistics` (`tools/ladder_statistics.py`, fixed random numbers; no training is involved).",
        "",
        f"Each row is {LADDERS:,} ladders of four rungs, three times as large each. The true losses of both methods"
        f" fall by a power law. True ratios of steps: {truths}. The noise comes from shipped runs:",
        "",
        f"* `lm`: normal, with the covariance over evaluations and between the two optimizers that the fresh runs of"
        f" `{LADDER}` have (drawing from these five seeds themselves would repeat some in each ladder);",
        f"* `mha_planted`: drawn from the ten fresh seeds of `{REFERENCE}`, a twentieth of it. With `adam` and `adamw`,"
        " one seed of ten learns much later.",
        "",
        *table(
            ["ratio in its interval", "trend in its interval", "a trend is reported", "next rung in its prediction"],
            rows,
        ),
        "95 % is intended in the first, second and fourth column, and at most 5 % in the third without a trend. With"
        " the noise of `mha_planted` the intervals of the ratio fail: few seeds often include none that learns late, so"
        " they cannot show how much such a seed would change.",
    ]


if __name__ == "__main__":
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text("\n".join(page()).rstrip() + "\n", "utf-8")
    print(PATH.read_text("utf-8"), file=sys.stderr)
