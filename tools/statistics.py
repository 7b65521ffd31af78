"""Simulate the guarantees of verdicts and intervals: `make statistics`.

Writes `results/statistics/README.md`.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit
from scipy.stats import binom, nct

from bench.results import stats
from bench.results.render import markdown_table
from bench.results.resolution import missed
from bench.results.retuning import tuning_variance
from bench.results.sequential import LEAST_SEEDS, MOST_SEEDS, SHARES, advice, compare, grid, least_wins
from bench.results.table import Table
from bench.tuning.design import Design, Point, Sampler, Scores, point_key
from optimizers import LogUniform

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]
T = TypeVar("T")
H = TypeVar("H")


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Standard normal numbers."""
    return rng.normal(size=shape)


def lognormal(sigma: float) -> Draw:
    """Centred log-normal numbers, with this standard deviation of the logarithm."""
    return lambda rng, shape: rng.lognormal(0, sigma, shape) - np.exp(sigma**2 / 2)


def diverging(share: float) -> Draw:
    """Differences of two equal optimizers, each with this share of diverged runs."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        first, second = (rng.random(shape) < share for _ in range(2))
        gains = np.where(first, -math.inf, np.where(second, math.inf, rng.normal(size=shape)))
        return np.where(first & second, 0.0, gains)

    return draw


def diverging_alone(share: float) -> Draw:
    """Differences of an optimizer with this share of diverged runs, at most a half, that wins on half of the seeds."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        shift = ndtri(0.5 / (1 - share))
        return np.where(rng.random(shape) < share, -math.inf, rng.normal(size=shape) + shift)

    return draw


NULLS: dict[str, Draw] = {
    "normal differences": normal,
    "exponential differences, median 0": lambda rng, shape: rng.exponential(size=shape) - math.log(2),
    "log-normal differences, sigma 1, median 0": lambda rng, shape: rng.lognormal(0, 1, shape) - 1,
    "t differences with 2 degrees": lambda rng, shape: rng.standard_t(2, shape),
    "a third of the seeds equal": lambda rng, shape: rng.normal(size=shape) * (rng.random(shape) < 2 / 3),
    "20 % of the runs of each diverge": diverging(0.2),
    "60 % of the runs of each diverge": diverging(0.6),
}
"""Pairs in which neither is better on more than half of the seeds, nor diverges more often."""
UNEQUAL: dict[str, Draw] = {
    f"{share:.0%} of the runs of one diverge, and it wins on half of the seeds": diverging_alone(share)
    for share in (0.1, 0.3)
}
"""Pairs in which neither is better on more than half of the seeds; that one diverges more often is true."""


def verdicts(gains: Array) -> NDArray[np.int8]:
    """Signs of `compare`'s verdicts on the first n of N seeds, for n = 1..N; a verdict is final.

    `gains` of the first over the second have the shape (R, N); they are infinite where one of the two diverged.
    """
    least = least_wins(gains.shape[1])[1:]
    return _final((gains > 0).cumsum(1), (gains < 0).cumsum(1), least)


def divergences(gains: Array) -> NDArray[np.int8]:
    """The same for `Comparison.diverges`."""
    least = least_wins(gains.shape[1], SHARES[1])
    less, more = np.isposinf(gains).cumsum(1), np.isneginf(gains).cumsum(1)
    return _final(less, more, least[less + more])


def _final(wins: NDArray[np.int_], losses: NDArray[np.int_], least: NDArray[np.int_]) -> NDArray[np.int8]:
    """The sign of the first decision at each number of seeds, 0 before."""
    signs = np.where(wins >= least, 1, np.where(losses >= least, -1, 0)).astype(np.int8)
    first = (signs != 0).argmax(1)
    return np.where(np.arange(signs.shape[1]) >= first[:, None], signs[np.arange(len(signs)), first][:, None], 0)


@cache
def false_verdicts(draw: Draw, most: int = 50, repeats: int = 10_000) -> dict[str, float]:
    """Shares of pairs with a verdict at n seeds, and at any number of seeds up to the most."""
    gains = draw(np.random.default_rng(0), (repeats, most))
    false = verdicts(gains) != 0
    if draw not in UNEQUAL.values():
        false |= divergences(gains) != 0
    return {str(n): float(false[:, n - 1].mean()) for n in SEEDS if n <= most} | {"any": float(false.any(1).mean())}


def other_orders(most: int = 50, planned: int = 60, repeats: int = 2_000) -> tuple[float, float]:
    """Shares of pairs with a false verdict by `most` seeds, if they come in reverse order, and in random order."""
    rng = np.random.default_rng(0)
    gains = rng.normal(size=(repeats, planned))
    order = rng.permuted(np.tile(np.arange(planned), (repeats, 1)), axis=1)
    reverse, random = np.zeros(repeats, dtype=bool), np.zeros(repeats, dtype=bool)
    for n in range(1, most + 1):
        reverse |= verdicts(gains[:, :n][:, ::-1])[:, -1] != 0
        random |= verdicts(np.take_along_axis(gains, np.sort(order[:, :n], axis=1), axis=1))[:, -1] != 0
    return float(reverse.mean()), float(random.mean())


def power(effect: float, n: int) -> float:
    """Probability of the verdict better at n seeds, for an effect in standard deviations of the differences."""
    rng = np.random.default_rng([n, int(10 * effect)])
    return float((verdicts(rng.normal(effect, 1, (20_000, n)))[:, -1] > 0).mean())


def t_power(effect: float, n: int) -> float:
    """The same for a paired t-test with a fixed number of seeds, at 5 %."""
    return float(nct.sf(stdtrit(n - 1, 0.975), n - 1, min(effect * math.sqrt(n), 37)))


def false_words(optimizers: int, n: int, repeats: int) -> float:
    """Share of grids of equal optimizers in which any pair is distinguished; values include an effect of the seed."""
    rng, wrong = np.random.default_rng([optimizers, n]), 0
    for _ in range(repeats):
        values = (rng.normal(size=(optimizers, n)) + rng.normal(size=n)).tolist()
        wrong += any(pair.sign for pair in grid([[row] * optimizers for row in values], "max").values())
    return wrong / repeats


def coverage(draw: Draw, n: int, repeats: int = 10_000, *, log: bool = False) -> float:
    """Share of 95 % t-intervals over n seeds that contain the true mean 0, or, of logarithms, the geometric mean 1."""
    values = draw(np.random.default_rng(n), (repeats, n))
    true, interval = (1, stats.geometric_interval) if log else (0, stats.t_interval)
    return sum(x.low <= true <= x.high for x in map(interval, values)) / repeats


def effect_coverage(draw: Draw, n: int, repeats: int = 2_000) -> float:
    """Share of the intervals of an effect that contain its true median 0, of those that are shown."""
    values = draw(np.random.default_rng(n), (repeats, n)).tolist()
    first = [[None if x == -math.inf else 0.0 if x == math.inf else x for x in row] for row in values]
    second = [[None if x == math.inf else 0.0 for x in row] for row in values]
    effects = [compare(a, b, "max").effect for a, b in zip(first, second, strict=True)]
    shown = [effect for effect in effects if effect is not None]
    return sum(effect.low <= 0 <= effect.high for effect in shown) / len(shown)


SETTINGS = np.arange(-4.0, 5.0)
"""A grid, in units of its step. The reported value is the squared distance to the optimum."""
NOISE = {"small": 0.3, "equal": 1.0, "large": 3.0}
"""Standard deviations between seeds, relative to the cost of one grid step from the optimum."""


def tunings(
    rng: np.random.Generator, repeats: int, seeds: int, noise: float, optimum: float, correlation: float
) -> tuple[Array, Array, NDArray[np.int_]]:
    """Scores and reported values of simulated studies, each of shape (R, T, S), and the winners' indices, shape (R,).

    R is `repeats`, T settings, S `seeds`; the correlation is that of the noise on the two splits.
    """
    shape = repeats, len(SETTINGS), seeds
    common, other = rng.normal(0, noise, shape), rng.normal(0, noise, shape)
    true = ((SETTINGS - optimum) ** 2)[None, :, None]
    scores, finals = true + common, true + correlation * common + math.sqrt(1 - correlation**2) * other
    return scores, finals, np.median(scores, axis=2).argmin(axis=1)


def expected(seeds: int, noise: float, optimum: float) -> float:
    """Mean reported value of such studies, from 100,000 of them."""
    chosen = tunings(np.random.default_rng(1), 100_000, seeds, noise, optimum, 1)[2]
    return float(((SETTINGS[chosen] - optimum) ** 2).mean())


def retuned_coverage(
    seeds: int, noise: float, optimum: float, correlation: float, fresh: Sequence[int], repeats: int = 4_000
) -> list[tuple[float, float]]:
    """By number of fresh seeds, the shares of plain t-intervals and of those with the noise of tuning that contain it.

    "It" is the mean reported value of such studies.
    """
    rng, true = np.random.default_rng([seeds, int(10 * noise)]), expected(seeds, noise, optimum)
    scores, finals, chosen = tunings(rng, repeats, seeds, noise, optimum, correlation)
    values = ((SETTINGS[chosen] - optimum) ** 2)[:, None] + rng.normal(0, noise, (repeats, max(fresh)))
    held = np.zeros((len(fresh), 2))
    for scored, reported, index, row in zip(scores.tolist(), finals.tolist(), chosen.tolist(), values, strict=True):
        more = tuning_variance(scored, reported, index, "min", "error")
        assert more is not None
        for i, n in enumerate(fresh):
            for j, variance in enumerate((0.0, more)):
                x = stats.noisier_interval(row[:n], variance, seeds - 1)
                held[i, j] += x.low <= true <= x.high
    return [(plain, ours) for plain, ours in (held / repeats).tolist()]


class Shape(NamedTuple):
    """How a score depends on `axes` settings, searched over four decades each, and on the seed."""

    curvature: float  # cost of a squared decade of the first setting; of a second one, 0.3 times that
    noise: float  # standard deviation between seeds
    cliff: float = 0.0  # its height, a tenth of a decade above the optimum
    axes: int = 1
    plateau: float = math.inf  # cost far from the optimum, relative to the curvature

    def cost(self, places: Array, optimum: Array) -> Array:
        """The excess at places, shape (N, axes), in units of four decades."""
        away = 4 * (places - optimum)
        cost = np.array([1, 0.3])[: self.axes] @ (away**2).T
        flat = cost if self.plateau == math.inf else self.plateau * np.tanh(cost / self.plateau)
        return self.curvature * flat + self.cliff * (away[:, 0] > 0.1)


SHAPES = {
    "lm": Shape(0.14, 0.008),
    "mnist": Shape(0.037, 0.003),
    "cifar10": Shape(0.08, 0.0066),
    "sst2": Shape(0.024, 0.0085),
    "lm with a cliff": Shape(0.14, 0.008, cliff=0.5),
    "lm, two settings": Shape(0.14, 0.008, axes=2),
    "lm, two settings, flat far away": Shape(0.14, 0.008, axes=2, plateau=0.5),
}
"""Curvature and noise are those of the shipped studies of adamw: the parabola through the best point and those about
3/4 decade away, and the fresh seeds."""
SEARCHES: dict[str, tuple[Sampler, int, int]] = {
    "9 points, 1 tuning seed": ("qmc", 9, 1),
    "9 points, 3 seeds": ("qmc", 9, 3),
    "27 points, 3 seeds": ("qmc", 27, 3),
    "grid of 9, 2 seeds": ("grid", 9, 2),
    "refined grid of 9, 2 seeds": ("refine", 9, 2),
    "refined grid of 9, 3 seeds": ("refine", 9, 3),
}
"""Sampler (`bench.tuning.design`), points of its design, and tuning seeds."""


def search(
    rng: np.random.Generator, shape: Shape, sampler: Sampler, points: int, seeds: int, fresh: int = LEAST_SEEDS
) -> tuple[Array, float, float]:
    """Fresh values at the setting that a search chose, what it missed, and the bound of it.

    The best value is 0, anywhere in the middle 60 % of each axis.
    """
    design = Design({str(k): LogUniform(1.0, 1e4) for k in range(shape.axes)}, sampler)
    optimum = rng.uniform(0.2, 0.8, shape.axes)
    tried: list[Point] = []
    true, scores = np.empty(0), np.empty(0)
    while len(wanted := _wanted(design, points, tried, scores)) > len(tried):
        places = np.array([[math.log10(x) / 4 for x in point.values()] for point in wanted[len(tried) :]])
        costs = shape.cost(places, optimum)
        noise = rng.normal(0, shape.noise, (len(costs), seeds))
        true, scores = np.append(true, costs), np.append(scores, np.median(costs[:, None] + noise, axis=1))
        tried = wanted
    best = scores.argmin()
    values = true[best] + rng.normal(0, shape.noise, fresh)
    bound = missed(tried, scores.tolist(), float(values.std(ddof=1)) / math.sqrt(seeds))
    return values, float(true[best]), bound


def _wanted(design: Design, points: int, tried: Sequence[Point], scores: Array) -> list[Point]:
    known = dict(zip(map(point_key, tried), scores.tolist(), strict=True))
    return [trial.point for trial in design.wanted(points, 0, Scores(known))]


@cache
def within_tuning(shape: str, of: str, repeats: int = 200) -> dict[str, float]:
    """Shares of verdicts about two searches, by their effect in standard deviations: plain, and those beyond tuning.

    Without an effect any verdict is false. Also how often the bound holds.
    """
    rng, counts = np.random.default_rng(0), Counter[str]()
    sampler, points, seeds = SEARCHES[of]
    for _ in range(repeats):
        first, lost, bound = search(rng, SHAPES[shape], sampler, points, seeds)
        second, _, other_bound = search(rng, SHAPES[shape], sampler, points, seeds)
        counts["bound"] += lost <= bound
        for effect in (0, 2, 4, 8):
            better = second + effect * SHAPES[shape].noise - first
            plain, lower, upper = verdicts(np.array([better, better - other_bound, better + bound]))[:, -1]
            within = (plain > 0 and lower > 0) or (plain < 0 and upper < 0)
            counts[f"plain {effect}"] += bool(plain if effect == 0 else plain > 0)
            counts[f"within {effect}"] += bool(within if effect == 0 else within and plain > 0)
    return {name: count / repeats for name, count in counts.items()}


EFFECTS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Effects in standard deviations of the paired differences, equally likely."""


def true_times(n: int, wins: int, chance: float) -> Array:
    """Probability of a first verdict at each number of seeds, if each seed is won with a known probability."""
    ways, decided = np.ones(1), np.zeros(MOST_SEEDS + 1)
    for later in range(n + 1, MOST_SEEDS + 1):
        grown = np.zeros(len(ways) + 1)
        grown[:-1] += ways * (1 - chance)
        grown[1:] += ways * chance
        total, least = wins + np.arange(len(grown)), least_wins(later)[-1]
        over = (total >= least) | (later - total >= least)
        decided[later] = grown[over].sum()
        grown[over] = 0.0
        ways = grown
    return decided


@cache
def advised(n: int) -> tuple[float, float]:
    """Exact probabilities over `EFFECTS` that an undecided pair with n seeds gets advice, and that it is right."""
    left = given = right = 0.0
    for effect in EFFECTS:
        chance = float(ndtr(effect))
        for wins in range(n + 1):
            share = float(binom.pmf(wins, n, chance)) / len(EFFECTS)
            if max(wins, n - wins) >= least_wins(n)[-1] or share < 1e-12:
                continue
            left += share
            if (span := advice(n, wins, n - wins)) is not None:
                given += share
                right += share * float(true_times(n, wins, chance)[span[0] : span[1] + 1].sum())
    return given / left, right / given if given else math.nan


SEEDS, FEW = (3, 5, 7, 10, 20, 50), (5, LEAST_SEEDS, 10, 15, 20, 30)
PAGE = """# Simulations of the statistics

Made by `make statistics` (`tools/statistics.py`, fixed random numbers; no training is involved).
[Statistics](../../docs/concepts/statistics.md) says what a verdict guarantees.

## False verdicts where neither is better on more than half of the seeds (10,000 simulations)

{false}

Seeds count in ascending order. If each new seed has a smaller number than all others, {reverse:.0%} of the pairs with
normal differences get a false verdict by 50 seeds; if 60 seeds come in random order, {random:.0%}.

## Power (20,000 simulations)

Mean difference in standard deviations of the paired differences, which are normal:

{power}

The t-test is paired and has a fixed number of seeds; it is valid only for normal differences and one look.

## All pairs: grids of equal optimizers with any significant difference (2,000 simulations)

{grids}

## Coverage of intervals

Means of one row: 95 % t-intervals (10,000 simulations). Suboptimality gaps and steps have geometric means.

{means}
{geometric}

A mean of values as skewed as a log-normal with sigma 1 is covered less often than 95 %.

Effects: intervals of the median of paired differences, from 7 seeds on (2,000 simulations; they hold simultaneously for
all numbers of seeds, so they are wide for any one):

{effects}

## The noise of tuning (4,000 simulations)

How often an interval contains the mean result of an optimizer *with its tuning*, over tunings and seeds. Of 9 settings
on a grid, tuning chooses the one with the best median over the tuning seeds; the result grows with the squared distance
to the optimum. The noise between seeds is 0.3, 1 or 3 times the cost of one grid step next to the optimum, with this
correlation between the selection and the reporting split. S are tuning seeds, n fresh ones. The column `with the noise
of tuning` covers, from one study:

{tuning}

These cover {ours[0]:.0%} to {ours[1]:.0%}, where the t-interval over the fresh seeds covers
{plain[0]:.0%} to {plain[1]:.0%}: not 95 %, but closer. Coverage is lowest where tuning rarely misses a clear optimum.

## Verdicts about optimizers with their searches (200 pairs of searches)

Two optimizers, each searched on its own and compared on {least} fresh seeds. They are equally good at their best
settings (columns of 0), or one is better there by 2, 4 or 8 standard deviations between seeds. *Plain* verdicts compare
the two chosen settings; boards show those that also hold *within* tuning: if the search of the worse optimizer missed
as much as it may have (`bench/results/resolution.py`). *Bound* is the share of searches that missed no more than that.
Curvature and noise are those of the shipped studies.

{within}

## Advice on seeds

How often an undecided row estimates the number of seeds that decides it, and how often that range is right (exact), for
normal differences of 0, 0.5, 1, 2, 4 deviations, equally likely:

{advice}
"""


def table(rows: Mapping[str, T], heads: Sequence[H], share: Callable[[T, H], float], unit: str = "n = ") -> str:
    """A Markdown table of shares by the value of a row and of a column."""
    lines = [
        (name, *(f"{x:.1%}".replace("nan%", "-") for x in map(partial(share, row), heads)))
        for name, row in rows.items()
    ]
    return "\n".join(markdown_table(Table.of(["", *(f"{unit}{head}" for head in heads)], lines)))


def page() -> str:
    """The results as Markdown."""
    reverse, random = other_orders()
    tests = {"": power, ", t-test": t_power}
    effects = {f"{e:g} deviations{name}": (test, e) for name, test in tests.items() for e in EFFECTS[1:]}
    means = {"mean of normal values": normal} | {
        f"mean of log-normal values, sigma {sigma:g}": lognormal(sigma) for sigma in (0.5, 1)
    }
    geometric = {"geometric mean of log-normal values, sigma 1": lambda rng, shape: rng.lognormal(0, 1, shape)}
    tuning = [f"S = {s}, n = {n}" for s in (2, 3, 5) for n in (5, 10, 20)]
    retuned = {
        f"{name} noise, optimum {where}, correlation {of:g}": dict(
            zip(
                tuning,
                (pair for s in (2, 3, 5) for pair in retuned_coverage(s, noise, at, of, (5, 10, 20))),
                strict=True,
            )
        )
        for name, noise in NOISE.items()
        for where, at in {"at a setting": 0.0, "between two": 0.5}.items()
        for of in (1, 0.5)
    }
    plain, ours = np.array([list(pairs.values()) for pairs in retuned.values()]).reshape(-1, 2).T
    return PAGE.format(
        false=table(NULLS | UNEQUAL, [*map(str, SEEDS), "any"], lambda draw, n: false_verdicts(draw)[n]).replace(
            "n = any", "at any n up to 50"
        ),
        reverse=reverse,
        random=random,
        power=table(effects, FEW, lambda of, n: of[0](of[1], n)),
        grids=table({f"{a} optimizers": a for a in (2, 4, 8)}, (10, 20), lambda a, n: false_words(a, n, 2000)),
        means=table(means, SEEDS, coverage),
        geometric=table(geometric, SEEDS, partial(coverage, log=True)).splitlines()[-1],
        effects=table(dict(list(NULLS.items())[:6]), FEW[1:], effect_coverage),
        tuning=table(retuned, tuning, lambda pairs, of: pairs[of][1], ""),
        plain=(plain.min(), plain.max()),
        ours=(ours.min(), ours.max()),
        least=LEAST_SEEDS,
        within=table(
            {f"{shape}: {of}": (shape, of) for shape in SHAPES for of in SEARCHES},
            ["plain 0", "within 0", *(f"{kind} {e}" for e in (2, 4, 8) for kind in ("plain", "within")), "bound"],
            lambda row, name: within_tuning(*row)[name],
            "",
        ),
        advice=table({"says something": 0, "is right": 1}, FEW, lambda i, n: advised(n)[i]),
    )


if __name__ == "__main__":
    path = Path("results/statistics/README.md")
    path.write_text(page(), "utf-8")
