"""Averages of weights over the steps of a run, evaluated in place of the trained weights."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from optimizers.norms import cut_like, whole

Kind = Literal["ema", "lawa"]


@dataclass(frozen=True)
class Averaging:
    """The evaluated average of the weights w after each step.

    - `ema`: a <- a + (1 - d) / (1 - d^t) (w - a) after the t-th step, so that after the first one a = w (Kingma and
      Ba, arXiv 1412.6980, section 7.2);
    - `lawa`: the mean of the latest k snapshots, taken every n steps, and w before the first one (Kaddour, arXiv
      2209.14981; Sanyal et al., arXiv 2306.03241).
    """

    kind: Kind
    decay: float = 0.999  # d of `ema`, in (0, 1)
    window: int = 5  # k of `lawa`, at least 2
    every: int = 1  # n of `lawa`, at least 1


class Average:
    """A running elementwise average of lists of tensors, for the weights of one run or of many at once.

    It keeps one copy of the weights for `ema`, and up to k for `lawa`. A model's buffers are not averaged.
    """

    def __init__(self, how: Averaging) -> None:
        self.how = how
        self._count = 0  # averaged weights of `ema`; due snapshots of `lawa`
        self._kept: list[list[Tensor]] = []  # the average of `ema`; the snapshots of `lawa`, the latest last

    @torch.no_grad()
    def take(self, step: int, weights: Sequence[Tensor]) -> None:
        """Add the weights, always in the same order, after a step, counted from 1.

        `ema` does not count a step that a gradient scaler skips; a snapshot due then is taken after the next step.
        """
        if self.how.kind == "lawa":
            if step // self.how.every > self._count:
                self._count = step // self.how.every
                self._kept = [*self._kept[1 - self.how.window :], [w.detach().clone() for w in weights]]
            return
        self._count += 1
        if not self._kept:
            self._kept = [[_precise(w.detach(), copy=True) for w in weights]]
            return
        share = (1 - self.how.decay) / (1 - self.how.decay**self._count)
        torch._foreach_lerp_(self._kept[0], [_precise(w) for w in weights], share)

    @torch.no_grad()
    def of(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """The average in the dtype of these weights, read-only; the weights themselves before the first `take`."""
        if not self._kept:
            return list(weights)
        mean = self._kept[0]
        if len(self._kept) > 1:
            mean = [_precise(w, copy=True) for w in mean]
            for more in self._kept[1:]:
                torch._foreach_add_(mean, [_precise(w) for w in more])
            torch._foreach_div_(mean, len(self._kept))
        return [m.to(w.dtype) for m, w in zip(mean, weights, strict=True)]

    @contextmanager
    def in_place_of(self, weights: Sequence[Tensor]) -> Iterator[None]:
        """Put the average in place of these weights, which are restored bit for bit."""
        with torch.no_grad():
            trained = [w.detach().clone() for w in weights]
            for w, average in zip(weights, self.of(weights), strict=True):
                w.copy_(average)
        yield
        with torch.no_grad():
            for w, value in zip(weights, trained, strict=True):
                w.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint: unsharded tensors, on all ranks."""
        return {"count": self._count, "kept": [[whole(w) for w in weights] for weights in self._kept]}

    def load_state_dict(self, state: Mapping[str, Any], like: Sequence[Tensor]) -> None:
        """Restore a state, on the device of these weights and sharded as they are."""
        self._count = state["count"]
        self._kept = [
            [cut_like(kept.to(w.device), w) for kept, w in zip(weights, like, strict=True)] for weights in state["kept"]
        ]

    def to(self, device: torch.device) -> None:
        """Move the average to a device."""
        self._kept = [[w.to(device) for w in weights] for weights in self._kept]


def _precise(w: Tensor, copy: bool = False) -> Tensor:
    """In float32 at least."""
    return w.to(torch.promote_types(w.dtype, torch.float32), copy=copy)
