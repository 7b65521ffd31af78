"""Simulate what intervals cover and what ties and ranks find: `make statistics`.

It writes `results/statistics/README.md`.
"""

import sys
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.results import ranking, stats

Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Standard normal numbers."""
    return rng.normal(size=shape)


def lognormal(sigma: float) -> Draw:
    """Log-normal numbers around their mean, with this deviation of the logarithm."""
    return lambda rng, shape: rng.lognormal(0, sigma, shape) - np.exp(sigma**2 / 2)


def coverage(draw: Draw, n: int, repeats: int = 10_000, *, paired: bool = False) -> float:
    """Share of 95 % intervals over n seeds that hold the true mean 0.

    Args:
        draw: values with mean 0.
        n: seeds.
        repeats: simulations.
        paired: of the difference of two optimizers that share a seed effect, instead of one mean.
    """
    rng = np.random.default_rng(n)
    values = draw(rng, (repeats, n))
    if paired:
        values = values - draw(rng, (repeats, n))
    found = [stats.t_interval(row) for row in values]
    return sum(each.low <= 0 <= each.high for each in found) / repeats


def ranked(values: NDArray[np.float64], lost: NDArray[np.bool_] | None = None) -> tuple[list[int], set[frozenset[int]]]:
    """Ranks by optimizer, and the pairs that are told apart, of values of shape (A, S).

    Greater values are better; lost ones count as None.
    """
    rows = [
        [None if lost is not None and lost[a, s] else float(values[a, s]) for s in range(values.shape[1])]
        for a in range(len(values))
    ]
    count = [sum(v is None for v in row) for row in rows]
    mean = [np.mean([v for v in row if v is not None] or [-np.inf]) for row in rows]
    order = sorted(range(len(rows)), key=lambda a: (count[a], -mean[a]))
    pairs = {(i, j): ranking.pair(rows[order[i]], rows[order[j]], "max") for i, j in combinations(range(len(order)), 2)}
    adjusted = ranking.holm([each.p for each in pairs.values()])
    apart = {frozenset((order[i], order[j])) for (i, j), p in zip(pairs, adjusted, strict=True) if p <= 0.05}
    ranks = [0] * len(rows)
    for place, found in enumerate(ranking.ranks(pairs, len(order))):
        ranks[order[place]] = found.rank
    return ranks, apart


def false_splits(
    optimizers: int, n: int, repeats: int, draw: Draw = normal, diverging: float = 0.0
) -> tuple[float, float]:
    """Shares of tables of equal optimizers: any two have different ranks; any pair is told apart.

    Seeds have an effect of their own.

    Args:
        optimizers: that are equal.
        n: seeds.
        repeats: simulations.
        draw: of the values of an optimizer around the effect of the seed.
        diverging: probability that a run diverges.
    """
    rng = np.random.default_rng([optimizers, n])
    splits = pairs = 0
    for _ in range(repeats):
        values = draw(rng, (optimizers, n)) + rng.normal(size=n)
        ranks, apart = ranked(values, rng.random((optimizers, n)) < diverging if diverging else None)
        splits += len(set(ranks)) > 1
        pairs += bool(apart)
    return splits / repeats, pairs / repeats


def power(optimizers: int, n: int, effect: float, repeats: int) -> tuple[float, float]:
    """Shares of tables: the best optimizer has another rank than a given other; these two are told apart.

    All optimizers but the best are equal.

    Args:
        optimizers: in the table, at least 2.
        n: seeds.
        effect: mean of the paired differences in units of their standard deviation.
        repeats: simulations.
    """
    rng = np.random.default_rng([optimizers, n, int(10 * effect)])
    found = pairs = 0
    for _ in range(repeats):
        values = rng.normal(size=(optimizers, n)) + rng.normal(size=n)
        values[0] += effect * np.sqrt(2)  # the deviation of a difference of two
        ranks, apart = ranked(values)
        found += ranks[0] < ranks[1]
        pairs += frozenset((0, 1)) in apart
    return found / repeats, pairs / repeats


def tasks_coverage(tasks: int, n: int, repeats: int) -> float:
    """Share of the 95 % intervals over tasks that hold the mean over all possible tasks.

    Effects of tasks vary as seeds do.
    """
    rng = np.random.default_rng([tasks, n])
    held = 0
    for _ in range(repeats):
        gaps = [rng.normal(effect, 1, n) for effect in rng.normal(0, 1, tasks)]
        found = ranking.hierarchical_interval(gaps)
        held += found.low <= 0 <= found.high
    return held / repeats


SEEDS = (3, 5, 10, 20)


def page() -> list[str]:
    """The results as Markdown."""
    head = "| | " + " | ".join(f"n = {n}" for n in SEEDS) + " |"
    line = "|---" * (len(SEEDS) + 1) + "|"

    def row(name: str, shares: Sequence[float] | Sequence[tuple[float, float]]) -> str:
        cells = [f"{s[0]:.1%} / {s[1]:.1%}" if isinstance(s, tuple) else f"{s:.1%}" for s in shares]
        return f"| {name} | " + " | ".join(cells) + " |"

    lines = [
        "# What the statistics do, simulated", "",
        "Made by `make statistics` (`tools/statistics.py`, fixed random numbers; no training is involved).", "",
        "## Coverage of 95 % intervals over n seeds (10,000 simulations)", "", head, line,
        row("mean of normal values", [coverage(normal, n) for n in SEEDS]),
        row("paired difference of normal values", [coverage(normal, n, paired=True) for n in SEEDS]),
        row("mean of log-normal values, sigma 0.5", [coverage(lognormal(0.5), n) for n in SEEDS]),
        row("mean of log-normal values, sigma 1", [coverage(lognormal(1), n) for n in SEEDS]),
        row("paired difference of log-normal values, sigma 1", [coverage(lognormal(1), n, paired=True) for n in SEEDS]),
        "",
        ("What boards compare is the paired difference. A mean of values as skewed as a log-normal with sigma 1 is"
         " covered less often than 95 %."), "",
        ("## Equal optimizers: how often any two get different ranks / any pair is told apart (4,000 simulations,"
         " at most 5 % wanted)"), "", head, line,
        *(row(f"{a} optimizers", [false_splits(a, n, 4000) for n in SEEDS]) for a in (2, 4, 10)),
        row("10 optimizers, log-normal values, sigma 1", [false_splits(10, n, 4000, lognormal(1)) for n in SEEDS]),
        row("10 optimizers, of whose runs 20 % diverge", [false_splits(10, n, 4000, diverging=0.2) for n in SEEDS]), "",
        "## Power (4,000 simulations)", "",
        "One optimizer is better than the others, which are equal, by so many standard deviations of the paired"
        " difference. How often it has another rank than a given other one / these two are told apart (column"
        " `could be`). A rank is shared along a chain of ties, so it takes all pairs across the gap:", "",
    ]  # fmt: skip
    for effect in (1.0, 2.0, 3.0):
        lines += [f"A difference of {effect:g} standard deviations:", "", head, line]
        lines += [row(f"{a} optimizers", [power(a, n, effect, 4000) for n in SEEDS]) for a in (2, 4, 10)] + [""]
    lines += [
        ("Five seeds tell a pair with 2 standard deviations apart, but not one among ten optimizers:"
         " that takes ten seeds or more, or a table of fewer (`--opt A,B`, decided before looking)."), "",
        "## Over tasks", "",
        "Coverage of the interval of the overall gap by a hierarchical bootstrap,"
        " if tasks are a sample of all tasks and differ among each other as much as seeds do (1,000 simulations,"
        " 5 seeds; the fewer tasks, the less it says about others):", "",
        "| tasks | " + " | ".join(map(str, TASKS)) + " |", "|---" * (len(TASKS) + 1) + "|",
        row("coverage", [tasks_coverage(t, 5, 1000) for t in TASKS]), "",
    ]  # fmt: skip
    return lines


TASKS = (2, 3, 5, 10, 20)

if __name__ == "__main__":
    path = Path("results/statistics/README.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(page()), "utf-8")
    print(path.read_text("utf-8"), file=sys.stderr)
