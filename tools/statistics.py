"""Simulate the guarantees of verdicts and intervals: `make statistics`.

Writes `results/statistics/README.md`.
"""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit
from scipy.stats import binom, nct

from bench.results import stats
from bench.results.render import markdown_table
from bench.results.retuning import tuning_variance
from bench.results.sequential import LEAST_SEEDS, MOST_SEEDS, SHARES, advice, compare, grid, least_wins
from bench.results.table import Table

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


# -- noise ------------------------------------------------------------------------------------------------------------


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Standard normal numbers."""
    return rng.normal(size=shape)


def lognormal(sigma: float) -> Draw:
    """Centred log-normal numbers, with this standard deviation of the logarithm."""
    return lambda rng, shape: rng.lognormal(0, sigma, shape) - np.exp(sigma**2 / 2)


def paired(first: Draw, second: Draw) -> Draw:
    """Differences of two optimizers."""
    return lambda rng, shape: first(rng, shape) - second(rng, shape)


def diverging(share: float) -> Draw:
    """Differences of two equal optimizers, each with this share of diverged runs."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        first, second = (rng.random(shape) < share for _ in range(2))
        found = np.where(first, -math.inf, np.where(second, math.inf, rng.normal(size=shape)))
        return np.where(first & second, 0.0, found)

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
LOOKS = (5, 10, 20, 50)
"""Declared numbers of seeds."""
EQUAL_MEANS: dict[str, Draw] = {
    "exponential differences": lambda rng, shape: rng.exponential(size=shape) - 1,
    "log-normal differences, sigma 1": lognormal(1),
    "a log-normal optimizer, sigma 1, and a normal one": paired(lognormal(1), normal),
}
"""Pairs with equal means, in which one is better on more than half of the seeds."""


# -- verdicts ---------------------------------------------------------------------------------------------------------


def verdicts(gains: Array) -> NDArray[np.int8]:
    """Signs of `compare`'s verdicts on the first n of N seeds, for n = 1..N; a verdict is final.

    Args:
        gains: of the first over the second, shape (R, N); infinite where one of the two diverged.
    """
    least = np.array([least_wins(n, SHARES[0]) for n in range(1, gains.shape[1] + 1)])
    return _final((gains > 0).cumsum(1), (gains < 0).cumsum(1), least)


def divergences(gains: Array) -> NDArray[np.int8]:
    """The same for `Comparison.diverges`."""
    least = np.array([least_wins(n, SHARES[1]) for n in range(gains.shape[1] + 1)])
    less, more = np.isposinf(gains).cumsum(1), np.isneginf(gains).cumsum(1)
    return _final(less, more, least[less + more])


def _final(wins: NDArray[np.int_], losses: NDArray[np.int_], least: NDArray[np.int_]) -> NDArray[np.int8]:
    """The sign of the first decision at each number of seeds, 0 before."""
    told = np.where(wins >= least, 1, np.where(losses >= least, -1, 0)).astype(np.int8)
    first = (told != 0).argmax(1)
    return np.where(np.arange(told.shape[1]) >= first[:, None], told[np.arange(len(told)), first][:, None], 0)


def t_tests(d: Array, levels: Array) -> NDArray[np.bool_]:
    """Whether a paired t-test on the first n seeds rejects, at a level for each n (0: no look); shape (R, N)."""
    n = np.arange(1, d.shape[1] + 1)
    mean = d.cumsum(1) / n
    with np.errstate(all="ignore"):
        deviation = np.sqrt((np.square(d).cumsum(1) - n * mean**2) / (n - 1))
        critical = np.where(levels > 0, stdtrit(np.maximum(n - 1, 1), 1 - levels / 2), math.inf)
        return np.nan_to_num(np.abs(mean) / deviation * np.sqrt(n)) > critical


def t_mixture(d: Array) -> NDArray[np.bool_]:
    """Whether the confidence sequence of a mean (mixture of t-statistics, effect N(0, 4)) excludes 0 at n seeds."""
    n = np.arange(1, d.shape[1] + 1)
    mean = d.cumsum(1) / n
    with np.errstate(all="ignore"):
        deviation = np.sqrt((np.square(d).cumsum(1) - n * mean**2) / (n - 1))
        t2 = n * (mean / deviation) ** 2 / (n - 1)
        value = np.sqrt(1 / (1 + 4 * n)) * ((1 + t2) / (1 + t2 / (1 + 4 * n))) ** (n / 2)
        return (np.nan_to_num(value) >= 20) & (n > 2)


def false_verdicts(draw: Draw, most: int = 50, repeats: int = 10_000) -> dict[str, float]:
    """Shares of pairs with a verdict at n seeds, and at any number of seeds up to the most."""
    gains = draw(np.random.default_rng(0), (repeats, most))
    found = verdicts(gains) != 0
    if draw not in UNEQUAL.values():
        found |= divergences(gains) != 0
    return {str(n): float(found[:, n - 1].mean()) for n in SEEDS if n <= most} | {"any": float(found.any(1).mean())}


def other_orders(most: int = 50, planned: int = 60, repeats: int = 2_000) -> tuple[float, float]:
    """Shares of pairs with a false verdict at any number of seeds up to the most, if seeds do not come in order.

    Returns:
        If each new seed has a smaller number than the others; and if planned seeds come in random order.
    """
    rng = np.random.default_rng(0)
    gains = rng.normal(size=(repeats, planned))
    order = rng.permuted(np.tile(np.arange(planned), (repeats, 1)), axis=1)
    reverse, random = np.zeros(repeats, dtype=bool), np.zeros(repeats, dtype=bool)
    for n in range(1, most + 1):
        reverse |= verdicts(gains[:, :n][:, ::-1])[:, -1] != 0
        random |= verdicts(np.take_along_axis(gains, np.sort(order[:, :n], axis=1), axis=1))[:, -1] != 0
    return float(reverse.mean()), float(random.mean())


def alternatives(draw: Draw, most: int = 50, repeats: int = 10_000) -> list[float]:
    """Shares of pairs that other rules and ours distinguish, with looks up to the most seeds."""
    d = draw(np.random.default_rng(0), (repeats, most))
    each = np.where(np.arange(1, most + 1) >= 3, 0.05, 0.0)
    looks = np.zeros(most)
    looks[[n - 1 for n in LOOKS if n <= most]] = 0.05 / len(LOOKS)
    rules = (t_tests(d, each), t_tests(d, looks), t_mixture(d), verdicts(d) != 0)
    return [float(rule.any(1).mean()) for rule in rules]


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
        wrong += any(found.sign for found in grid([[row] * optimizers for row in values], "max").values())
    return wrong / repeats


# -- intervals --------------------------------------------------------------------------------------------------------


def coverage(draw: Draw, n: int, repeats: int = 10_000, *, log: bool = False) -> float:
    """Share of 95 % t-intervals over n seeds that contain the true mean 0, or the geometric mean 1.

    Args:
        draw: values with mean 0; positive ones around 1, if log.
        n: seeds.
        repeats: simulations.
        log: use intervals of the geometric mean.
    """
    values = draw(np.random.default_rng(n), (repeats, n))
    true, interval = (1, stats.geometric_interval) if log else (0, stats.t_interval)
    found = [interval(row) for row in values]
    return sum(each.low <= true <= each.high for each in found) / repeats


def effect_coverage(draw: Draw, n: int, repeats: int = 2_000) -> float:
    """Share of the intervals of an effect that contain its true median 0, of those that are shown."""
    values = draw(np.random.default_rng(n), (repeats, n)).tolist()
    first = [[None if x == -math.inf else 0.0 if x == math.inf else x for x in row] for row in values]
    second = [[None if x == math.inf else 0.0 for x in row] for row in values]
    found = [compare(a, b, "max").effect for a, b in zip(first, second, strict=True)]
    shown = [each for each in found if each is not None]
    return sum(each.low <= 0 <= each.high for each in shown) / len(shown)


# -- the noise of tuning ----------------------------------------------------------------------------------------------

SETTINGS = np.arange(-4.0, 5.0)
"""A grid, in units of its step. The reported value is the squared distance to the optimum."""
NOISE = {"small": 0.3, "equal": 1.0, "large": 3.0}
"""Standard deviations between seeds, relative to the cost of one grid step from the optimum."""


def tunings(
    rng: np.random.Generator, repeats: int, seeds: int, noise: float, optimum: float, correlation: float
) -> tuple[Array, Array, NDArray[np.int_]]:
    """Scores and reported values of simulated studies, each of shape (R, T, S), and the winners' indices, shape (R,).

    Args:
        rng: random generator.
        repeats: number of studies R.
        seeds: number of tuning seeds S.
        noise: standard deviation between seeds.
        optimum: its position on the grid.
        correlation: between the noise on the selection split and on the reporting split.
    """
    shape = repeats, len(SETTINGS), seeds
    own, other = rng.normal(0, noise, shape), rng.normal(0, noise, shape)
    true = ((SETTINGS - optimum) ** 2)[None, :, None]
    scores, finals = true + own, true + correlation * own + math.sqrt(1 - correlation**2) * other
    return scores, finals, np.median(scores, axis=2).argmin(axis=1)


def expected(seeds: int, noise: float, optimum: float) -> float:
    """Mean reported value of such studies, from 100,000 of them."""
    chosen = tunings(np.random.default_rng(1), 100_000, seeds, noise, optimum, 1)[2]
    return float(((SETTINGS[chosen] - optimum) ** 2).mean())


def retuned_coverage(
    seeds: int, noise: float, optimum: float, correlation: float, fresh: Sequence[int], repeats: int = 4_000
) -> list[float]:
    """Shares of intervals that contain the mean reported value of such studies.

    Returns:
        For each number of fresh seeds, the shares of plain t-intervals and of intervals with the noise of tuning.
    """
    rng, true = np.random.default_rng([seeds, int(10 * noise)]), expected(seeds, noise, optimum)
    scores, finals, chosen = tunings(rng, repeats, seeds, noise, optimum, correlation)
    values = ((SETTINGS[chosen] - optimum) ** 2)[:, None] + rng.normal(0, noise, (repeats, max(fresh)))
    held = np.zeros((len(fresh), 2))
    for own, reported, index, row in zip(scores.tolist(), finals.tolist(), chosen.tolist(), values, strict=True):
        more = tuning_variance(own, reported, index, "min", "error")
        assert more is not None
        for i, n in enumerate(fresh):
            for j, parts in enumerate(([], [(more, seeds - 1)])):
                found = stats.noisier_interval(row[:n], parts)
                held[i, j] += found.low <= true <= found.high
    return (held / repeats).ravel().tolist()


def retuning_lines() -> list[str]:
    """The coverage of intervals with the noise of tuning, as Markdown."""
    optima = {"at a setting": 0.0, "between two": 0.5}
    cases = [
        (f"{name} noise, optimum {where}", noise, at) for name, noise in NOISE.items() for where, at in optima.items()
    ]
    tuning, fresh = (2, 3, 5), (5, 10, 20)
    rows = [
        (f"{name}, correlation {of:g}", [x for s in tuning for x in retuned_coverage(s, noise, at, of, fresh)])
        for name, noise, at in cases
        for of in (1, 0.5)
    ]
    plain, ours = (
        f"{min(map(min, of)):.0%} to {max(map(max, of)):.0%}"
        for of in ([row[::2] for _, row in rows], [row[1::2] for _, row in rows])
    )
    return [
        "## The noise of tuning (4,000 simulations)",
        "",
        "How often an interval contains the mean result of an optimizer *with its tuning*, over tunings and seeds. Of"
        f" {len(SETTINGS)} settings on a grid, tuning chooses the one with the best median over the tuning seeds; the"
        " result grows with the squared distance to the optimum. The noise between seeds is 0.3, 1 or 3 times the"
        " cost of one grid step next to the optimum, with this correlation between the selection and the reporting"
        " split. S are tuning seeds, n fresh ones. The column `with the noise of tuning` covers, from one study:",
        "",
        *table([f"S = {s}, n = {n}" for s in tuning for n in fresh], [(name, row[1::2]) for name, row in rows]),
        f"These cover {ours}, where the t-interval over the fresh seeds covers {plain}: not 95 %, but closer."
        " Coverage is lowest where tuning rarely misses a clear optimum, since most studies then show no other"
        " choice, and highest where neighbouring settings are equally good, since the noise of their runs then counts"
        " as noise of the choice.",
        "",
    ]


# -- more seeds -------------------------------------------------------------------------------------------------------

EFFECTS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Effects in standard deviations of the paired differences, equally likely."""


def true_times(n: int, wins: int, chance: float) -> Array:
    """Probability of a first verdict at each number of seeds, if each seed is won with a known probability."""
    ways, found = np.ones(1), np.zeros(MOST_SEEDS + 1)
    for later in range(n + 1, MOST_SEEDS + 1):
        grown = np.zeros(len(ways) + 1)
        grown[:-1] += ways * (1 - chance)
        grown[1:] += ways * chance
        total, least = wins + np.arange(len(grown)), least_wins(later)
        over = (total >= least) | (later - total >= least)
        found[later] = grown[over].sum()
        grown[over] = 0.0
        ways = grown
    return found


def advised(n: int) -> tuple[float, float]:
    """Exact probabilities over `EFFECTS` that an undecided pair with n seeds gets advice, and that it is right."""
    left = given = right = 0.0
    for effect in EFFECTS:
        chance = float(ndtr(effect))
        for wins in range(n + 1):
            share = float(binom.pmf(wins, n, chance)) / len(EFFECTS)
            if max(wins, n - wins) >= least_wins(n) or share < 1e-12:
                continue
            left += share
            if (said := advice(n, wins, n - wins)) is not None:
                given += share
                right += share * float(true_times(n, wins, chance)[said[0] : said[1] + 1].sum())
    return given / left, right / given if given else math.nan


# -- the page ---------------------------------------------------------------------------------------------------------

SEEDS = (3, 5, 7, 10, 20, 50)


def table(heads: Sequence[str], rows: Sequence[tuple[str, Sequence[float | str]]]) -> list[str]:
    """A Markdown table of shares."""

    def word(share: float | str) -> str:
        return share if isinstance(share, str) else "-" if math.isnan(share) else f"{share:.1%}"

    return [*markdown_table(Table.of(["", *heads], [(name, *map(word, shares)) for name, shares in rows])), ""]


def page() -> list[str]:
    """The results as Markdown."""
    reverse, random = other_orders()
    n_heads = [f"n = {n}" for n in SEEDS]
    wins = {name: float((draw(np.random.default_rng(1), (10**6,)) > 0).mean()) for name, draw in EQUAL_MEANS.items()}
    few = (5, LEAST_SEEDS, 10, 15, 20, 30)
    return [
        "# Simulations of the statistics",
        "",
        "Made by `make statistics` (`tools/statistics.py`, fixed random numbers; no training is involved).",
        "",
        "## What a verdict guarantees",
        "",
        "*Better* means: it gives the better value on more than half of all seeds, and a diverged run is worse than"
        " every number. *Diverges more often* is a claim of its own. A row makes a false claim with a probability of"
        " at most 5 %, whatever the distribution of the values, and however often one looks and adds seeds with larger"
        " numbers. Nothing else is guaranteed: nothing about means, and nothing about a table as a whole (see the board"
        " `pairs`).",
        "",
        "## False verdicts where neither is better on more than half of the seeds (10,000 simulations)",
        "",
        *table(
            [*n_heads, "at any n up to 50"],
            [(name, list(false_verdicts(draw).values())) for name, draw in (NULLS | UNEQUAL).items()],
        ),
        f"Seeds count in ascending order. If each new seed has a smaller number than all others, {reverse:.0%} of the"
        f" pairs with normal differences get a false verdict by 50 seeds; if 60 seeds come in random order,"
        f" {random:.0%}.",
        "",
        "## Other rules, with a look after every seed up to 50 (10,000 simulations)",
        "",
        "Share of pairs with a significant difference. The t-tests and the confidence sequence compare means, which"
        " are equal in all rows.",
        "",
        *table(
            [
                "t-test after every seed",
                "t-tests at 5, 10, 20, 50, level spent evenly",
                "confidence sequence of the mean (t)",
                "ours",
            ],
            [
                ("normal differences", alternatives(normal)),
                *(
                    (f"{name}; won on {wins[name]:.0%} of the seeds", alternatives(draw))
                    for name, draw in EQUAL_MEANS.items()
                ),
            ],
        ),
        "With skewed noise, equal means are not equal chances: the last column then correctly finds the optimizer"
        " that is better on more than half of the seeds. The others violate their own guarantee.",
        "",
        "## Power (20,000 simulations)",
        "",
        "Mean difference in standard deviations of the paired differences, which are normal:",
        "",
        *table(
            [f"n = {n}" for n in few],
            [(f"{effect:g} deviations", [power(effect, n) for n in few]) for effect in EFFECTS[1:]],
        ),
        "A paired t-test with a fixed number of seeds, which is valid only for normal differences and one look:",
        "",
        *table(
            [f"n = {n}" for n in few],
            [(f"{effect:g} deviations", [t_power(effect, n) for n in few]) for effect in EFFECTS[1:]],
        ),
        "## All pairs: grids of equal optimizers with any significant difference (2,000 simulations)",
        "",
        *table(
            [f"n = {n}" for n in (10, 20)],
            [(f"{a} optimizers", [false_words(a, n, 2000) for n in (10, 20)]) for a in (2, 4, 8)],
        ),
        "## Coverage of intervals",
        "",
        "Means of one row: 95 % t-intervals (10,000 simulations). Suboptimality gaps and steps have geometric means.",
        "",
        *table(
            n_heads,
            [
                ("mean of normal values", [coverage(normal, n) for n in SEEDS]),
                ("mean of log-normal values, sigma 0.5", [coverage(lognormal(0.5), n) for n in SEEDS]),
                ("mean of log-normal values, sigma 1", [coverage(lognormal(1), n) for n in SEEDS]),
                (
                    "geometric mean of log-normal values, sigma 1",
                    [coverage(lambda rng, shape: rng.lognormal(0, 1, shape), n, log=True) for n in SEEDS],
                ),
            ],
        ),
        "A mean of values as skewed as a log-normal with sigma 1 is covered less often than 95 %.",
        "",
        f"Effects: intervals of the median of paired differences, from {LEAST_SEEDS} seeds on (2,000 simulations;"
        " they hold simultaneously for all numbers of seeds, so they are wide for any one):",
        "",
        *table(
            [f"n = {n}" for n in few[1:]],
            [(name, [effect_coverage(draw, n) for n in few[1:]]) for name, draw in list(NULLS.items())[:6]],
        ),
        *retuning_lines(),
        "## Advice on seeds",
        "",
        "How often an undecided row estimates the number of seeds that decides it, and how often that range is right"
        f" (exact), for normal differences of {', '.join(f'{effect:g}' for effect in EFFECTS)} deviations, equally"
        " likely:",
        "",
        *table(
            [f"n = {n}" for n in few],
            [("says something", [advised(n)[0] for n in few]), ("is right", [advised(n)[1] for n in few])],
        ),
    ]


if __name__ == "__main__":
    path = Path("results/statistics/README.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(page()).rstrip() + "\n", "utf-8")
    print(path.read_text("utf-8"), file=sys.stderr)
