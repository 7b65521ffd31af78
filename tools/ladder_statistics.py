"""Simulate the intervals of ladders with the noise of shipped runs: `make statistics`.

Writes `results/statistics/ladder.md`.
"""

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import curve_fit

from bench.ladder.statistics import StepRatio, predict, seed_ratios, step_ratio, trend
from bench.store.stores import Stores
from tools.statistics import table

Array = NDArray[np.float64]

PATH = Path("results/statistics/ladder.md")
LADDER, REFERENCE = Path("results/ladder/lm/runs"), Path("results/reference/runs")
LADDERS = 10_000
TRUTHS = {"no trend": (-0.35, 0.0), "rises": (-0.35, 0.2), "falls": (0.25, -0.1)}
"""Logarithm of the true ratio at the first rung, and its change per decade of size."""


def power_law(steps: ArrayLike, end: float, fall: float, exponent: float) -> Array:
    """A loss that falls to `end` by a power law."""
    return end + fall * np.asarray(steps, dtype=np.float64) ** -exponent


@dataclass(frozen=True)
class Noise:
    """Noise of pairs of runs, from deviations of stored runs from their mean curves.

    Attributes:
        own: deviations of an optimizer by seed, shape (seeds, evaluations).
        reference: those of the reference with the same seeds.
        normal: draw normal noise with the covariance of the deviations instead of the deviations themselves.
    """

    own: Array
    reference: Array
    normal: bool = False

    def draw(self, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        """The noise of n pairs of runs: two arrays of shape (n, evaluations)."""
        if not self.normal:
            seeds = rng.integers(0, len(self.own), n)
            return self.own[seeds], self.reference[seeds]
        weights = rng.normal(size=(n, len(self.own))) / math.sqrt(len(self.own))
        return weights @ self.own, weights @ self.reference

    def population(self, steps: Array, curve: Callable[[Array], Array], ratio: float) -> tuple[float, float]:
        """The median and the Hodges-Lehmann estimate of the ratios of all possible runs, as logarithms.

        `ratio` is that of the curves without noise, around which normal noise is nearly symmetric.
        """
        if self.normal:
            return ratio, ratio
        curves = curve(steps / math.exp(ratio)) + self.own, curve(steps) + self.reference
        return float(np.median(seed_ratios(steps, *curves))), step_ratio(steps, *curves).estimate.value


class _Stored(NamedTuple):
    """Evaluations of the fresh runs of one task and length.

    Attributes:
        steps: of the evaluations, as shares of the length.
        curve: the power law that fits the mean curve of the reference.
        pairs: deviations of each optimizer and of the reference. n curves deviate less from their own mean than from
            the true one, so they are multiplied by sqrt(n / (n - 1)).
    """

    steps: Array
    curve: Callable[[Array], Array]
    pairs: dict[str, tuple[Array, Array]]


def _stored(folder: Path, task: str, reference: str, *, log: bool = False) -> list[_Stored]:
    """The fresh runs of a task in a store, by their length; `log` takes the logarithms of losses, as ladders do."""
    curves: dict[int, dict[str, dict[int, list[tuple[int, float]]]]] = {}
    for run in Stores([folder]).runs:
        rows = [(row["step"], row["loss"]) for row in run.validations]
        if run.config["task"] == task and len(rows) > 1:  # trials are evaluated once
            curves.setdefault(run.steps, {}).setdefault(run.config["opt"], {})[run.config["seed"]] = rows
    found = []
    for length in sorted(curves):
        at = np.array([step for step, _ in next(iter(curves[length][reference].values()))]) / length
        deviations, means = {}, {}
        for opt, own in curves[length].items():
            if own.keys() != curves[length][reference].keys():
                continue  # a seed diverged, so there are no pairs for it
            losses = np.array([[loss for _, loss in own[seed]] for seed in sorted(own)])
            losses = np.log10(losses) if log else losses
            means[opt] = losses.mean(0)
            deviations[opt] = (losses - means[opt]) * math.sqrt(len(losses) / (len(losses) - 1))
        bounds = ([-np.inf, 0, 0], np.inf)
        fitted, _ = curve_fit(power_law, at, means[reference], (means[reference][-1], 0.1, 0.5), bounds=bounds)
        pairs = {opt: (own, deviations[reference]) for opt, own in deviations.items() if opt != reference}
        curve = partial(power_law, end=fitted[0], fall=fitted[1], exponent=fitted[2])
        found.append(_Stored(at, curve, pairs))
    return found


def simulated(
    steps: Array,
    curve: Callable[[Array], Array],
    noises: Sequence[Noise],
    first: float,
    slope: float,
    ladders: int,
    seeds: int = 5,
    tuning: float = 0.0,
) -> dict[str, float]:
    """Simulates ladders of four rungs.

    Args:
        steps: of the evaluations.
        curve: the reference's true loss after so many steps.
        noises: of pairs of runs; each ladder has one of them.
        first: logarithm of the true ratio at the first rung.
        slope: by which it changes per decade.
        ladders: how many.
        seeds: of each method.
        tuning: standard deviation of what tuning adds to the logarithm of the true ratio of each rung, as a multiple of
            the standard error that comes from seeds; only with normal noise.

    Returns:
        How often the interval of the ratio and that of the trend contain the truth (`ratio`, `trend`), a trend is
        reported (`called`), and the measured ratio of the last rung is in the predicted interval (`predicted`). As in
        ladders, trends and predictions are without rungs whose ratio has no error; ladders with such a rung have the
        share `beyond`.
    """
    rng = np.random.default_rng(0)
    x = np.log10(2e4 * 3.0 ** np.arange(4))
    shifts = first + slope * (x - x[0])
    truths = [np.array([noise.population(steps, curve, shift) for shift in shifts]).T for noise in noises]
    slopes = [float(np.polyfit(x, values, 1)[0]) for _, values in truths]
    spread = 0.0
    if tuning:
        own, reference = curve(steps / math.exp(first)), curve(steps)
        drawn = [noises[k % len(noises)].draw(rng, seeds) for k in range(200)]
        errors = [step_ratio(steps, own + one, reference + other).estimate.error for one, other in drawn]
        spread = tuning * math.sqrt(np.mean(np.square(errors)))
    held = dict[str, list[bool]]({name: [] for name in ("ratio", "trend", "called", "predicted", "beyond")})
    for k in range(ladders):
        which, found = k % len(noises), list[StepRatio]()
        for shift, truth in zip(shifts, truths[which][0], strict=True):
            tuned = spread * rng.normal() if tuning else 0.0
            one, other = noises[which].draw(rng, seeds)
            found.append(step_ratio(steps, curve(steps / math.exp(shift + tuned)) + one, curve(steps) + other))
            held["ratio"].append(found[-1].interval.low <= truth + tuned <= found[-1].interval.high)
        kept = [i for i, each in enumerate(found) if math.isfinite(each.estimate.error)]
        estimates = [found[i].estimate for i in kept]
        held["beyond"].append(len(kept) < len(found))
        if len(kept) > 1:
            line = trend(x[kept], estimates).slope
            held["trend"].append(line.low <= slopes[which] <= line.high)
            held["called"].append(not line.low <= 0 <= line.high)
        if len(kept) > 1 and kept[-1] == len(found) - 1:
            said = predict(x[kept[:-1]], estimates[:-1], float(x[-1]))
            held["predicted"].append(said.low <= estimates[-1].value <= said.high)
    return {name: float(np.mean(each)) for name, each in held.items()}


def page() -> list[str]:
    """The results as Markdown."""
    noises = {
        f"lm, rung {k}": (found.steps, found.curve, [Noise(*pair, normal=True) for pair in found.pairs.values()])
        for k, found in enumerate(_stored(LADDER, "lm", "adamw"), 1)
    }
    (planted,) = _stored(REFERENCE, "mha_planted", "gd", log=True)
    for name, opts, normal in (
        ("mha_planted, normal", tuple(planted.pairs), True),
        ("mha_planted, drawn, adam and adamw", ("adam", "adamw"), False),
        ("mha_planted, drawn, ngd and ps", ("ngd", "ps"), False),
    ):
        noises[name] = planted.steps, planted.curve, [Noise(*planted.pairs[opt], normal) for opt in opts]
    cells = [(*each, 0.0) for each in itertools.product(noises, TRUTHS, (5, 7))]
    cells += [("lm, rung 2", "no trend", 5, tuning) for tuning in (0.5, 1.0, 2.0)]
    rows = list[tuple[str, list[float]]]()
    for name, what, seeds, tuning in cells:
        own = f"{name}; {what}; {seeds} seeds{f'; tuning varies, {tuning:g}' * bool(tuning)}"
        rows.append((own, list(simulated(*noises[name], *TRUTHS[what], LADDERS, seeds, tuning).values())))
        print(own, file=sys.stderr)  # a row takes some 30 s
    truths = "; ".join(
        f"*{what}*: {math.exp(first):.2f} at the first rung, times {math.exp(slope):.2f} per decade of size"
        for what, (first, slope) in TRUTHS.items()
    )
    return [
        "# Simulations of ladders",
        "",
        "Made by `make statistics` (`tools/ladder_statistics.py`, fixed random numbers; no training is involved).",
        "",
        f"Each row is {LADDERS:,} ladders of four rungs, three times as large each, so a share of 5 % has a standard"
        f" error of {math.sqrt(0.05 * 0.95 / LADDERS):.1%}. True ratios of steps: {truths}."
        " The reference's true loss is the power law that fits its mean curve in shipped runs; the noise comes from the"
        " same runs:",
        "",
        f"* `lm`, from `{LADDER}`, and `mha_planted`, from `{REFERENCE}`: normal noise with the covariance that the"
        " fresh runs have over evaluations and between two optimizers with the same seed, equally many ladders for each"
        " optimizer without a diverged seed. (Drawing from the five seeds of `lm` would repeat some in each ladder.)",
        "* `mha_planted`, drawn: from its ten seeds themselves. With `adam` and `adamw`, one learns much later, so the"
        " true ratio is the median of the ten seeds' ratios, and the true trend that of their Hodges-Lehmann estimate.",
        "* *tuning varies, s*: tuning changes the true ratio at each rung. Its logarithm has a standard deviation of s"
        " times the standard error that comes from seeds. The intervals do not include this; these rows show how far"
        " they are wrong. In the first column, the truth includes the change.",
        "",
        "Trends and predictions are without rungs whose ratio has no error, since too many of its seeds are beyond the"
        " evaluations. The last column has the share of ladders with such a rung.",
        "",
        *table(
            [
                "ratio in its interval",
                "trend in its interval",
                "a trend is reported",
                "next rung in its prediction",
                "a ratio has no error",
            ],
            rows,
        ),
        "95 % is intended in the second and fourth column, and at most 5 % in the third without a trend, unless tuning"
        " varies. The intervals of the ratio are intended to cover 93.75 % with five seeds and 95 % with seven.",
    ]


if __name__ == "__main__":
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text("\n".join(page()).rstrip() + "\n", "utf-8")
    print(PATH.read_text("utf-8"), file=sys.stderr)
