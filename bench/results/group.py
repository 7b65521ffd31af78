"""Groups: runs that differ only in their seeds, and the measures that compare them.

The rows of boards, the points of sweeps and the fresh runs of studies are groups; an arm of a paper is one with its
curves. A run that diverged has no value, which is worse than every number, and runs of equal seeds are paired.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

from bench.results import stats
from bench.results.selection import CONVERGED, End, Mode, final_value
from bench.results.sequential import Comparison, compare
from bench.results.stats import Interval
from bench.store.record import RunResult

Seed = tuple[int, int]
"""Of initialisation and of the order of the samples: runs that share both are paired."""

HUGE = 1e100
"""Greater values have no squares that are numbers, so they count as none. Ours."""


@dataclass(eq=False)
class Group:
    """Runs that differ only in their seeds.

    Attributes:
        runs: those that ended, by seed.
        others: how many did not end, by status.
    """

    runs: dict[Seed, RunResult] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, runs: Iterable[RunResult]) -> "Group":
        """The group of these runs, which have ended; of several with one seed the last."""
        return cls({seed_of(run): run for run in runs})

    @cached_property
    def statuses(self) -> dict[str, int]:
        """How many runs there are, by status."""
        return dict(sorted((Counter(run.status for run in self.runs.values()) + self.others).items()))

    @cached_property
    def diverged(self) -> int:
        """Runs that diverged."""
        return sum(run.status == "diverged" for run in self.runs.values())

    @cached_property
    def machines(self) -> list[str]:
        """Types of machine: only within one can seconds be compared."""
        return sorted({run.machine for run in self.runs.values()})

    def common_seeds(self, *others: "Group") -> list[Seed]:
        """The seeds that it shares with all the others, sorted."""
        return sorted(set(self.runs).intersection(*(other.runs for other in others)))


def seed_of(run: RunResult) -> Seed:
    """The seeds of a run."""
    return run.config["seed"], run.config["data_seed"]


@dataclass(frozen=True)
class Measure:
    """A number of a run, by which groups are compared.

    Attributes:
        words: what it is, with its split.
        mode: whether it is better when smaller ("min") or greater ("max").
        log: whether it is shown and compared on a logarithmic scale; it is positive then.
        of: the number; None if a run has none, which is worse than every number.
    """

    words: str
    mode: Mode
    log: bool
    of: Callable[[RunResult], End]

    def values(self, group: Group, seeds: Iterable[Seed] | None = None) -> list[End]:
        """Those of a group's runs, in the order of their seeds, or of these seeds."""
        return [self.of(group.runs[seed]) for seed in (sorted(group.runs) if seeds is None else seeds)]

    def mean(self, group: Group) -> Interval | None:
        """Mean with its t-interval, geometric on a logarithmic scale; None if a value is missing, or there is none."""
        return mean_interval(self.values(group), self.log)

    def compare(self, first: Group, second: Group, tests: int = 1) -> Comparison | None:
        """A group against another on the seeds that both have (`sequential.compare`); None if they have none."""
        seeds = first.common_seeds(second)
        if not seeds:
            return None
        return compare(self.values(first, seeds), self.values(second, seeds), self.mode, log=self.log, tests=tests)

    def order(self, group: Group) -> tuple[float, float]:
        """Sort key of groups, best first: the share of runs without a value, then the mean of the others."""
        values = self.values(group)
        there = [math.log(v) if self.log else v for v in values if v is not None]
        mean = math.fsum(there) / len(there) if there else math.inf
        return 1 - len(there) / max(1, len(values)), -mean if self.mode == "max" and there else mean


def final(words: str, mode: Mode, above: bool, *, best: bool = False) -> Measure:
    """The final metric on the reporting split.

    Losses below `CONVERGED` count as equal to it, those below a presumed infimum too, and values beyond `HUGE` as none.

    Args:
        words: what the metric is called.
        mode: of the metric.
        above: take a suboptimality gap, on a logarithmic scale.
        best: at the best step on the selection split instead of the last.
    """

    def value(run: RunResult) -> End:
        found = final_value(run, above, "best" if best else "final")
        if found is None or not abs(found) <= HUGE:
            return None
        return max(found, CONVERGED) if above or (run.metric == "loss" and found >= 0) else found

    return Measure(words, mode, above, value)


def mean_interval(values: Iterable[End], log: bool = False) -> Interval | None:
    """Mean with its t-interval, geometric on a logarithmic scale; None if a value is missing, or there is none."""
    every = list(values)
    there = [value for value in every if value is not None]
    if not there or len(there) < len(every):
        return None
    return stats.geometric_interval(there) if log else stats.t_interval(there)
