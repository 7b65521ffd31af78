"""Timing on a noisy machine: two programs alternate, and only ratios of adjacent timings count."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from bench.results.render import shown
from bench.results.table import Table

Timed = Callable[[], float]
"""Does its work and returns its seconds, without set-up."""


def timed(function: Callable[[], object], times: int = 1) -> Timed:
    """Calls of the function, `times` times, as a `Timed`; a GPU's work is included."""

    def run() -> float:
        settle()
        begun = time.perf_counter()
        for _ in range(times):
            function()
        settle()
        return time.perf_counter() - begun

    return run


def settle() -> None:
    """Synchronise with the GPU, if one is in use."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


@dataclass
class Measured:
    """Seconds by round of a candidate, and of the baseline run just before it."""

    baseline: list[float] = field(default_factory=list)
    candidate: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Time of the candidate over time of the baseline, by round."""
        return [c / b for b, c in zip(self.baseline, self.candidate, strict=True)]

    @property
    def speedups(self) -> list[float]:
        """Time of the baseline over time of the candidate, by round."""
        return [1 / ratio for ratio in self.ratios]


def alternate(baseline: Timed, candidates: Mapping[str, Timed], rounds: int) -> dict[str, Measured]:
    """Run baseline and candidate in turn (A B A C, A B A C, ...), after one unmeasured run of each.

    Args:
        baseline: runs again before each candidate.
        candidates: by name.
        rounds: how often each candidate is measured, at least 1.

    Returns:
        The seconds of each candidate and of the baseline runs before it.
    """
    for run in (baseline, *candidates.values()):
        run()
    measured = {name: Measured() for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            measured[name].baseline.append(baseline())
            measured[name].candidate.append(candidate())
    return measured


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        what: what was measured.
        baseline: what it was compared with.
        values: one value for each round; the median is the result.
        bound: the limit of the result; None for information only.
        at_least: the bound is a lower one, not an upper one.
        unit: printed after every number.
    """

    what: str
    baseline: str
    values: list[float]
    bound: float | None = None
    at_least: bool = False
    unit: str = "x"

    def cells(self) -> list[str]:
        """The line's columns: what, baseline, result, spread, bound, verdict."""
        result, bound, unit = median(self.values), "", self.unit
        low, high = min(self.values), max(self.values)
        verdict = "(information)"
        if self.bound is not None:
            bound = f"{'>=' if self.at_least else '<='} {self.bound:g}{unit}"
            verdict = "within" if (result >= self.bound if self.at_least else result <= self.bound) else "outside"
        spread = f"{short(low)}-{short(high)}{unit}"
        return [self.what, self.baseline, f"{short(result)}{unit}", spread, bound, verdict]


def short(number: float) -> str:
    """The number with three digits, or rounded to an integer from 1,000 on."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def table(rows: list[Row]) -> str:
    """The rows under a header, in columns."""
    heads = ["what", "baseline", "result", "spread", "bound", "verdict"]
    return "\n".join(shown(Table.of(heads, (row.cells() for row in rows))))
