"""Groups: runs that differ only in their seeds, and the measures that compare them.

A run that diverged has no value, which is worse than every number. Runs of equal seeds are paired.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from bench.results import stats
from bench.results.selection import GAP, End, Mode, final_value
from bench.results.sequential import LEAST_SEEDS, OFTEN, Comparison, compare
from bench.results.stats import UNBOUNDED, Interval, Range
from bench.store.record import RunResult
from bench.text import CONVERGED, cell

Seed = tuple[int, int]
"""Seeds of the initialisation and of the order of the samples; runs that share both are paired."""

HUGE = 1e100  # larger values count as missing, since their squares overflow; ours
FAR = 200.0  # larger logarithms of factors are like infinite ones; ours
COLLAPSE = 2.0  # seven normal values have such a gap in 3 % of cases; ours
RANGES: dict[str, Range] = {"accuracy": (0.0, 1.0), "f1": (0.0, 100.0), "exact_match": (0.0, 100.0)}
"""Ends of bounded metrics (SQuAD's are in percent): an interval of their mean is cut there, at no cost in coverage."""


@dataclass(eq=False)
class Group:
    """Finished runs that differ only in their seeds, by seed, and the number of unfinished `others` by status."""

    runs: dict[Seed, RunResult] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)
    pending: Seed | None = None  # the smallest seed of a run in training

    @classmethod
    def of(cls, runs: Iterable[RunResult]) -> "Group":
        """The group of these finished runs; of several with the same seeds, the last."""
        return cls({seed_of(run): run for run in runs})

    @cached_property
    def statuses(self) -> dict[str, int]:
        """Number of runs by status, finished or not."""
        return dict(sorted((Counter(run.status for run in self.runs.values()) + self.others).items()))

    @property
    def lost(self) -> str:
        """The reason why it has no number, in words."""
        diverged = self.statuses.get("diverged")
        return f"{diverged} of {len(self.runs)} diverged" if diverged else "a run without a value"

    @cached_property
    def machines(self) -> list[str]:
        """Types of machine; seconds are comparable only within one."""
        return sorted({run.machine for run in self.runs.values()})

    def common_seeds(self, *others: "Group") -> list[Seed]:
        """The seeds that it shares with all others, sorted, below any whose run is still in training.

        Which runs finish first may depend on their results, and the test looks at seeds in ascending order.
        """
        shared = sorted(set(self.runs).intersection(*(other.runs for other in others)))
        pending = [group.pending for group in (self, *others) if group.pending is not None]
        return [seed for seed in shared if not pending or seed < min(pending)]


def seed_of(run: RunResult) -> Seed:
    """The seeds of a run."""
    return run.config["seed"], run.config["data_seed"]


@dataclass(frozen=True)
class Measure:
    """A number of a run, by which groups are compared; positive on a logarithmic scale."""

    words: str  # description with its split
    mode: Mode
    log: bool
    of: Callable[[RunResult], End]  # the value of a run; None, if it has none, is worse than every number
    often: tuple[str, str] = OFTEN  # what it means to have a value more, or less, often
    ends: Range = UNBOUNDED  # the smallest and largest possible value

    def values(self, group: Group, seeds: Iterable[Seed] | None = None) -> list[End]:
        """The values of a group's runs, in the order of all its seeds or of these."""
        return [self.of(group.runs[seed]) for seed in (sorted(group.runs) if seeds is None else seeds)]

    def scaled(self, value: End) -> End:
        """The value on the scale of the measure."""
        return math.log(value) if self.log and value is not None else value

    def mean(self, group: Group) -> Interval | None:
        """The mean over a group's runs (`mean_interval`, `within`)."""
        values = self.values(group)
        mean = mean_interval(values, self.log)
        return mean and self.within(mean, values)

    def summary(self, group: Group) -> Interval | str:
        """The mean; the median and the number of collapsed runs, if there are some; else why there is none.

        The k worst runs, fewer than half, have collapsed if they are separated from the others by more than `COLLAPSE`
        times the range of these. At least `LEAST_SEEDS` runs are needed to tell.
        """
        if (mean := self.mean(group)) is None:
            return group.lost
        if mean.bound:
            return mean  # values at the floor have no distances
        values = np.sort([value for value in self.values(group) if value is not None])
        values = values if self.mode == "max" else values[::-1]  # the worst first
        scaled, n = np.log(values) if self.log else values, len(values)
        for k in range(1, (n + 1) // 2 if n >= LEAST_SEEDS else 1):
            if abs(scaled[k - 1] - scaled[k]) > COLLAPSE * abs(scaled[k] - scaled[-1]) > 0:
                return f"median {cell(float(np.median(values)))}, {k} of {n} collapsed"
        return mean

    def within(self, mean: Interval, values: Iterable[End]) -> Interval:
        """The interval of these values' mean without impossible ones; an upper bound if a value is at the floor."""
        return replace(stats.within(mean, *self.ends), bound="<=" * (self.log and CONVERGED in values))

    def compare(self, first: Group, second: Group, *, ahead: float = 0.0) -> Comparison | None:
        """Compare two groups on their common seeds (`sequential.compare`); None if there are none.

        The values of the second count as better by `ahead`; on a logarithmic scale, their logarithms do.
        """
        seeds = first.common_seeds(second)
        if not seeds:
            return None
        values, other, floor = self.values(first, seeds), self.values(second, seeds), CONVERGED if self.log else None
        if ahead:
            by = ahead if self.mode == "max" else -ahead
            by = max(-FAR, min(FAR, by)) if self.log else by
            moved = [value if value is None else value * math.exp(by) if self.log else value + by for value in other]
            other = [value if value is None else min(max(value, self.ends[0]), self.ends[1]) for value in moved]
        comparison = compare(values, other, self.mode, log=self.log, floor=floor)
        return replace(comparison, often=self.often)

    def order(self, group: Group) -> tuple[float, float]:
        """Sort key of groups, best first: the share of runs without a value, then the mean of the others."""
        values = self.values(group)
        present = [value for value in map(self.scaled, values) if value is not None]
        mean = math.fsum(present) / len(present) if present else math.inf
        return 1 - len(present) / max(1, len(values)), -mean if self.mode == "max" and present else mean


def final(metric: str, mode: Mode, above: bool, *, split: str = "", best: bool = False) -> Measure:
    """The final metric on the reporting split (named `split`); at the best step on the selection split if `best`.

    Losses below `CONVERGED`, and below a presumed infimum, count as equal to it; values beyond `HUGE` as missing. The
    suboptimality gap (`above`) is on a logarithmic scale.
    """

    def value(run: RunResult) -> End:
        number = final_value(run, above, "best" if best else "final")
        if number is None or not abs(number) <= HUGE:
            return None
        return max(number, CONVERGED) if above or (run.metric == "loss" and number >= 0) else number

    words = f"{split} {metric}{GAP * above}".strip()
    return Measure(words, mode, above, value, ends=(CONVERGED, math.inf) if above else RANGES.get(metric, Measure.ends))


def mean_interval(values: Iterable[End], log: bool = False, ends: Range = UNBOUNDED) -> Interval | None:
    """Mean with its t-interval, cut at the ends; geometric on a logarithmic scale; None if a value is missing."""
    numbers = [math.nan if value is None else value for value in values]
    if not numbers or not all(map(math.isfinite, numbers)):
        return None
    return stats.within(stats.geometric_interval(numbers) if log else stats.t_interval(numbers), *ends)
