"""Selection of the best of several settings, from the runs of each.

A seed that diverged counts as worse than all others. A setting at which half of the seeds or more diverged is never the
best.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

from bench.store.record import Mode, RunResult
from bench.text import CONVERGED

End = float | None
"""A number, or None for `diverged`."""
GAP = " (suboptimality gap)"  # after a metric's name if the loss minus its infimum is shown


def final_value(run: RunResult, above: bool, at: Literal["final", "best"] = "final") -> End:
    """An ended run's metric (`above` its infimum) on the reporting split; None if it diverged."""
    if run.status == "diverged":
        return None
    return run.excess(at) if above else run.final if at == "final" else run.best


def above_infimum(runs: Sequence[RunResult]) -> bool:
    """Whether suboptimality gaps are compared: all ended runs with a value have an infimum, and no linear scale."""
    valued = [run for run in runs if run.final is not None]
    known = (run.metric == "loss" and run.excess() is not None and run.scale != "linear" for run in valued)
    return bool(valued) and all(known)


def selection_value(run: RunResult, above: bool) -> End:
    """The selection value of a run: its last evaluation on the selection split, not the test set, else its final."""
    final = final_value(run, above)
    if run.status == "diverged" or not run.validations:
        return final
    return run.validations[-1].get("excess" if above else run.metric, final)


def seed_median(values: Sequence[End], mode: Mode) -> End:
    """The median over seeds; diverged ones count as worse than all others; None if half of them or more diverged."""
    present = [value for value in values if value is not None]
    lost = len(values) - len(present)
    if 2 * lost >= len(values):
        return None
    median = statistics.median([*present, *[math.inf if mode == "min" else -math.inf] * lost])
    return median if math.isfinite(median) else None  # the mean of two values may overflow


def score_of(runs: Sequence[RunResult], above: bool, mode: Mode) -> End:
    """The score of a setting with these ended runs: the median of `selection_value`; None if it cannot be the best."""
    return seed_median([selection_value(run, above) for run in runs], mode)


def equal_below(scores: Iterable[End], metric: str) -> float:
    """Threshold below which scores are equal: `CONVERGED` for losses, if none is negative, else minus infinity."""
    return CONVERGED if metric == "loss" and all(score is None or score >= 0 for score in scores) else -math.inf


def score_text(score: float, metric: str) -> str:
    """A score in words; one that counts as equal to the floor is shown as `<=1e-16`."""
    return f"<={CONVERGED:g}" if metric == "loss" and 0 <= score <= CONVERGED else f"{score:.4g}"


def best_index(scores: Sequence[End], mode: Mode, least: float) -> int | None:
    """Index of the best score, the first one of ties; scores below `least` count as equal, None is never the best."""
    clipped = [None if score is None else max(score, least) for score in scores]
    present = [score for score in clipped if score is not None]
    if not present:
        return None
    top = min(present) if mode == "min" else max(present)
    return clipped.index(top)
