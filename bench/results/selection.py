"""Selection of the best of several settings, from the runs of each.

A seed that diverged counts as worse than all others, and a setting at which half of the seeds or more diverged is never
the best: its score holds only for the lucky half. Nor is one at which a step cap bound nearly always: its runs
are those of SGD with a fixed step, whatever the method is called.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

from bench.store.record import CAP_BINDS, Mode, RunResult

End = float | None
"""A number, or None for `diverged`."""

CONVERGED = 1e-16
"""Losses with suboptimality gaps below this, or below this itself, count as equal. Ours."""
GAP = " (suboptimality gap)"
"""Behind the name of a metric: the loss minus its infimum is shown."""
USABLE_FACTOR = 2
"""How many times the best a loss may be in the usable range: about twice the steps, where it falls as 1/t. Ours."""
USABLE_SHARE = 0.05
"""How far a metric that is maximised may be below the best there, as a share of the best. Ours."""


def final_value(run: RunResult, above: bool, at: Literal["final", "best"] = "final") -> End:
    """The metric on the reporting split, or the suboptimality gap; None for a run that diverged.

    Args:
        run: a run that has ended.
        above: take the suboptimality gap.
        at: the last step, or the best one on the selection split.
    """
    if run.status == "diverged":
        return None
    return run.excess(at) if above else run.final if at == "final" else run.best


def above_infimum(runs: Sequence[RunResult]) -> bool:
    """Whether losses are compared above their infimum: all of these ended runs know it, where they have a value.

    Not where their task says that its scale is linear.
    """
    there = [run for run in runs if run.final is not None]
    return all(run.metric == "loss" and run.excess() is not None and run.scale != "linear" for run in there)


def selected(run: RunResult, above: bool) -> End:
    """The selection value of a run: of its last evaluation during training, on the selection split.

    So the test set has no part in the choice. A run without evaluations of that value has only its final one.

    Args:
        run: a run that has ended.
        above: take the suboptimality gap.
    """
    final = final_value(run, above)
    if run.status == "diverged" or not run.validations:
        return final
    return run.validations[-1].get("excess" if above else run.metric, final)


def seed_median(values: Sequence[End], mode: Mode) -> End:
    """The median over seeds, of which those that diverged count as worse than all; None if half of them did or more."""
    there = [value for value in values if value is not None]
    lost = len(values) - len(there)
    if 2 * lost >= len(values):
        return None
    median = statistics.median([*there, *[math.inf if mode == "min" else -math.inf] * lost])
    return median if math.isfinite(median) else None  # the mean of two values may be too great for a number


def is_capped(runs: Iterable[RunResult]) -> bool:
    """Whether a step cap bound on nearly all steps, in the mean over the runs of a setting."""
    return (cap_share(runs) or 0) > CAP_BINDS


def cap_share(runs: Iterable[RunResult]) -> float | None:
    """The share of steps on which a cap bound, in [0, 1], in the mean over the runs that know it; None without any."""
    shares = [run.cap_share for run in runs if run.cap_share is not None]
    return sum(shares) / len(shares) if shares else None


def score_of(runs: Sequence[RunResult], above: bool, mode: Mode) -> End:
    """The selection score of a setting: the median of `selected`, None for one that cannot be the best.

    Args:
        runs: of the setting, ended, one for each seed.
        above: take the suboptimality gap.
        mode: of the metric.
    """
    return None if is_capped(runs) else seed_median([selected(run, above) for run in runs], mode)


def equal_below(scores: Iterable[End], metric: str) -> float:
    """Below which scores count as equal: `CONVERGED` for losses, if none is negative, else minus infinity."""
    return CONVERGED if metric == "loss" and all(score is None or score >= 0 for score in scores) else -math.inf


def best_index(scores: Sequence[End], mode: Mode, least: float) -> int | None:
    """Where the best score is: the middle one of equals, in the order given; None if there is none.

    Args:
        scores: of settings, with None if one cannot be the best.
        mode: of the metric.
        least: scores below it count as equal; minus infinity if every difference tells.
    """
    clipped = [None if score is None else max(score, least) for score in scores]
    there = [score for score in clipped if score is not None]
    if not there:
        return None
    top = min(there) if mode == "min" else max(there)
    equal = [i for i, score in enumerate(clipped) if score == top]
    return equal[(len(equal) - 1) // 2]


def good_range(scores: Sequence[End], mode: Mode, best: int) -> tuple[int, int]:
    """The ends of the stretch around the best in which scores are nearly as good.

    Args:
        scores: in the order of the setting; None for one that cannot be the best.
        mode: of the metric.
        best: index of the best, which has a score.
    """
    top = scores[best]
    assert top is not None
    limit = max(top, USABLE_FACTOR * top) if mode == "min" else top - USABLE_SHARE * abs(top)
    bad = [score is None or (score > limit if mode == "min" else score < limit) for score in scores]
    first = next((i + 1 for i in range(best, -1, -1) if bad[i]), 0)
    last = next((i - 1 for i in range(best, len(scores)) if bad[i]), len(scores) - 1)
    return first, last
