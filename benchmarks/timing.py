"""Timing on a noisy machine: two programs alternate, and only ratios of adjacent timings count."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

Timed = Callable[[], float]
"""Does its work and returns its seconds, without set-up."""
Cases = Iterator["Case"]


@dataclass(frozen=True)
class Case:
    """What was measured, by round; the median is the result.

    Attributes:
        what: what was measured.
        baseline: what it was compared with.
        values: one for each round.
        bound: the limit of the result; None for information only.
        at_least: the bound is a lower one: a speed-up.
        unit: printed after every number.
    """

    what: str
    baseline: str
    values: list[float]
    bound: float | None = None
    at_least: bool = False
    unit: str = "x"

    def __str__(self) -> str:
        result, low, high = median(self.values), min(self.values), max(self.values)
        text = f"{self.what}, against {self.baseline}" if self.baseline else self.what
        text += f": {short(result)}{self.unit} [{short(low)}, {short(high)}]"
        if self.bound is None:
            return text
        within = result >= self.bound if self.at_least else result <= self.bound
        limit = f"{'>=' if self.at_least else '<='} {self.bound:g}{self.unit}"
        return f"{text}, bound {limit}: {'within' if within else 'OUTSIDE'}"


def short(number: float) -> str:
    """The number with three digits, or rounded to an integer from 1,000 on."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def settle() -> None:
    """Synchronise with the GPU, if one is in use."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def timed(function: Callable[[], object], times: int = 1) -> Timed:
    """Calls of the function, `times` times; a GPU's work is included."""

    def run() -> float:
        settle()
        begun = time.perf_counter()
        for _ in range(times):
            function()
        settle()
        return time.perf_counter() - begun

    return run


def ratios(candidate: Timed, baseline: Timed, rounds: int) -> list[float]:
    """Time of the candidate over that of the baseline just before it, by round, after one unmeasured run of each."""
    pairs = [(baseline(), candidate()) for _ in range(rounds + 1)]
    return [time_of_candidate / time_of_baseline for time_of_baseline, time_of_candidate in pairs[1:]]


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder."""
    with TemporaryDirectory() as name:
        yield Path(name)


def data(name: str) -> Path:
    """The folder of data sets, which must have this one."""
    root = Path(os.environ.get("BENCH_DATA", "data"))
    if not (root / name).exists():
        raise FileNotFoundError(f"there is no {name} in {root}; name its folder with BENCH_DATA")
    return root
