"""Decisions about a run from its numbers, for one run or many lanes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bench.store.record import RunResult, parse_record
from bench.text import strict_json

DIVERGED_FACTOR = 100
"""A run has diverged when the median loss since the last check exceeds this many times (1 + first loss). Ours."""

SATURATING = 0.5
"""One step from more than this share of the full gradient's largest norm to 0 has saturated the model. Ours.

A converging method passes through all magnitudes: on the tasks of the theory the built-in ones reach 0 from less than
1e-80 of it, at their defaults and tuned settings. In float64 a saturating step is a factor of 1e154 at once, which
moves logits by more than 350. For a loss with a flat part (hinge), the last samples have a small share too.
"""


@dataclass(frozen=True)
class Summary:
    """Summary of the steps since the last check."""

    steps: int  # number of steps that count
    bad: bool  # whether the last of these gave a loss or gradient that is not finite
    first: float  # loss
    median: float  # loss
    capped: int  # steps with an active cap
    skipped: int  # steps with an overflowed gradient
    last_norm: float  # gradient norm of the last step that counts
    norm_before: float  # of the step before it; NaN if there is none
    greatest_norm: float  # the largest finite one


def summarize(rows: NDArray[np.float64], *, full_batch: bool, scaled: bool = False) -> list[Summary]:
    """Summarise the steps of runs.

    A run's steps count up to one that is not finite; for the full batch, up to the first step of a final stretch with
    gradient 0: that is convergence.

    Args:
        rows: loss, gradient norm, raw and applied step size, shape (steps, runs, 4).
        full_batch: whether a step sees all samples.
        scaled: whether there is a gradient scaler, which skips steps with an overflowed gradient.
    """
    steps = len(rows)
    losses, norms, raw, applied = np.moveaxis(rows, 2, 0)
    finite = np.isfinite(norms)
    bad = ~(np.isfinite(losses) & (finite | scaled))
    counts = np.where(bad.any(0), bad.argmax(0) + 1, steps)
    if full_batch:
        moving = (norms != 0)[::-1]
        still = np.where(moving.any(0), moving.argmax(0), steps)
        counts = np.where(bad.any(0), counts, np.minimum(steps, steps - still + 1))
    counted = np.arange(steps)[:, None] < counts
    with np.errstate(invalid="ignore"):
        capped = ((applied < raw) & counted).sum(0)
    skipped = (~finite & counted).sum(0)
    greatest = np.where(finite & counted, norms, 0).max(0)
    medians = np.sort(losses, axis=0)[steps // 2]
    return [
        Summary(
            steps=int(n),
            bad=bool(bad[n - 1, i]),
            first=float(losses[0, i]),
            median=float(medians[i] if n == steps else np.sort(losses[:n, i])[n // 2]),
            capped=int(capped[i]),
            skipped=int(skipped[i]),
            last_norm=float(norms[n - 1, i]),
            norm_before=float(norms[n - 2, i]) if n > 1 else math.nan,
            greatest_norm=float(greatest[i]),
        )
        for i, n in enumerate(counts)
    ]


class Watch:
    """Fills a run's record during training, and decides whether it has diverged, converged or reached its target.

    Args:
        result: the record; its `status` stays `running` until the run ends.
        full_batch: whether a step sees all samples.
    """

    _RECORD_FIELDS = ("status", "reason", "best_step", "validations", "steps", "evaluations", "skipped", "saturated_at")
    _RECORD_FIELDS += ("steps_to_target", "seconds_to_target", "wall_s", "train_s")
    _STATE_FIELDS = ("first_loss", "best_selected", "capped", "last_norm", "greatest_norm")

    def __init__(self, result: RunResult, full_batch: bool) -> None:
        self.result, self.full_batch = result, full_batch
        self.first_loss: float | None = None
        self.best_selected: float | None = None
        self.capped = 0
        self.last_norm = self.greatest_norm = 0.0

    def state_dict(self) -> dict[str, Any]:
        """The part of the record that a resumed run needs."""
        return {
            "result": {name: getattr(self.result, name) for name in self._RECORD_FIELDS},
            **{name: getattr(self, name) for name in self._STATE_FIELDS},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a record.

        Raises:
            Damaged: it is not a valid record.
        """
        for name in self._RECORD_FIELDS:
            setattr(self.result, name, state["result"].get(name))
        parse_record(strict_json(vars(self.result)).encode(), Path("the checkpoint"))
        for name in self._STATE_FIELDS:
            setattr(self, name, state[name])

    @property
    def running(self) -> bool:
        """Whether the run has not ended yet."""
        return self.result.status == "running"

    def take(self, summary: Summary) -> None:
        """Count steps, and end the run if it has diverged or converged."""
        result = self.result
        result.steps += summary.steps
        result.skipped += summary.skipped
        self.capped += summary.capped
        if self.first_loss is None:
            self.first_loss = summary.first
        before = summary.norm_before if summary.steps > 1 else self.last_norm
        self.last_norm, self.greatest_norm = summary.last_norm, max(self.greatest_norm, summary.greatest_norm)
        if summary.bad:
            self.diverged(f"loss or gradient is not finite at step {result.steps}")
        elif summary.median > DIVERGED_FACTOR * (1 + abs(self.first_loss)):
            self.diverged(f"the loss grew from {self.first_loss:.3g} to {summary.median:.3g} by step {result.steps}")
        elif self.full_batch and summary.last_norm == 0:
            result.status, result.reason = "completed", "converged: the norm of the gradient is 0 in this precision"
            if SATURATING * self.greatest_norm < before < math.inf:
                result.saturated_at = result.steps - 1

    def computed(self, more: int) -> None:
        """Record that the steps have computed so many gradients of the batch beyond one each."""
        self.result.evaluations = self.result.steps + more if more else None

    def validated(self, values: Mapping[str, float]) -> bool:
        """Record the values on the selection split; True if these weights are the best so far."""
        result, value = self.result, values[self.result.metric]
        if not all(map(math.isfinite, values.values())):
            self.diverged(f"the {result.select_split} metrics are not finite at step {result.steps}")
            return False
        several = {} if result.evaluations is None else {"evaluations": result.evaluations}
        result.validations.append({"step": result.steps, "train_s": result.train_s, **several, **values})
        target = result.target
        if target is not None and result.steps_to_target is None and not self.better(target, value):
            result.steps_to_target, result.seconds_to_target = result.cost, result.train_s
        if self.best_selected is not None and not self.better(value, self.best_selected):
            return False
        self.best_selected, result.best_step = value, result.steps
        return True

    def reported(
        self, which: Literal["final", "best"], values: Mapping[str, float], also: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Record the values of the final or the best weights on the reporting split, and those on other splits.

        Final ones that are not finite end the run as diverged.
        """
        if all(math.isfinite(x) for of in (values, *also.values()) for x in of.values()):
            self.result.metrics[which] = {**values, **{split: dict(of) for split, of in also.items()}}
            setattr(self.result, which, values[self.result.metric])
        elif which == "final":
            self.diverged("the final weights give values that are not finite")

    def close(self) -> None:
        """Compute what needs all steps."""
        if self.result.steps > self.result.skipped:
            self.result.cap_share = self.capped / (self.result.steps - self.result.skipped)

    def diverged(self, reason: str) -> None:
        """End the run as diverged."""
        self.result.status, self.result.reason = "diverged", reason

    def better(self, a: float, b: float) -> bool:
        """Whether metric a is strictly better than b."""
        return a > b if self.result.mode == "max" else a < b
