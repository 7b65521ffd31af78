"""Schedules: the learning rate over a run, as a pure function of the step, so that there is no state to resume."""

import math
from dataclasses import dataclass
from typing import Literal

from torch.optim import Optimizer

Kind = Literal["constant", "cosine", "linear", "inverse_sqrt", "wsd"]


@dataclass(frozen=True)
class Schedule:
    """A factor on `lr` for each step: a linear warm-up, then constant, or a decay.

    Of n steps, the first w are the warm-up, in which step t (from 0) has the factor (t + 1) / w. After it:

     - `constant`: 1;
     - `cosine`: floor + (1 - floor) (1 + cos(pi (t - w) / (n - w))) / 2 (Loshchilov and Hutter, arXiv 1608.03983,
       without restarts);
     - `linear`: floor + (1 - floor) (1 - (t - w) / (n - w));
     - `wsd` (warm-up, stable, decay): 1, and over the last d steps floor + (1 - floor) (1 - (t - n + d) / d)
       (Hu et al., arXiv 2404.06395, with a linear decay);
     - `inverse_sqrt`: sqrt(w / (t + 1)), with w at least 1 (Vaswani et al., arXiv 1706.03762), but not below the floor.
    """

    kind: Kind
    steps: int  # n, at least 1
    warmup: float = 0.0  # share of the steps, in [0, 1); w is the nearest whole number
    floor: float = 0.0  # smallest factor of a decay, in [0, 1]
    decay: float = 0.2  # share of the steps, in (0, 1 - warmup], over which `wsd` decays; d is the nearest whole number

    def factor(self, step: int) -> float:
        """The factor of a step in [0, steps)."""
        warm = round(self.warmup * self.steps)
        if step < warm:
            return (step + 1) / warm
        decaying = min(round(self.decay * self.steps), self.steps - warm) if self.kind == "wsd" else self.steps - warm
        done = max(0.0, (step - self.steps + decaying) / max(decaying, 1))
        if self.kind == "cosine":
            return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2
        if self.kind in ("linear", "wsd"):
            return self.floor + (1 - self.floor) * (1 - done)
        if self.kind == "inverse_sqrt":
            return max(self.floor, math.sqrt(max(warm, 1) / (step + 1)))
        return 1.0

    def apply(self, optimizer: Optimizer, step: int) -> None:
        """Set `lr` of all groups for a step; `initial_lr` keeps the first one, as in torch's own schedulers.

        Groups marked `unscheduled`, of methods that choose their own step size, are left alone.
        """
        factor = self.factor(step)
        for group in optimizer.param_groups:
            if not group.get("unscheduled"):
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
