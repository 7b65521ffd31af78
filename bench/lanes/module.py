"""Lanes under a Lightning Trainer."""

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from bench.lanes.engine import Lanes
from bench.lanes.optimizers import Weights

MEASURED_AT_ONCE = 128  # lanes times steps in one batch of measurements at most


class LanesModule(pl.LightningModule):
    """A LightningModule of lanes: a "batch" is a range of optimizer steps.

    Attributes:
        history: results of the steps of the last batch (`Lanes.step`), shape (steps, 4, G, R).
        measured: new measurements: steps, and values by name, shape (steps, G, R).
    """

    history: Tensor

    def __init__(self, lanes: Lanes) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.lanes, self.plan = lanes, lanes.plan
        self.measured: list[tuple[list[int], dict[str, Tensor]]] = []
        self._noted: list[tuple[int, Weights]] = []

    def configure_optimizers(self) -> list[Any]:
        """No optimizers for Lightning: the lanes step themselves."""
        return []

    def training_step(self, steps: tuple[int, int]) -> None:
        """Take the optimizer steps from steps[0] to steps[1] (exclusive)."""
        lanes = self.lanes
        if steps[0] == 0:
            self._note(0)
        # Allocated at once: small long-lived tensors between large short-lived ones would fragment the memory.
        self.history = torch.empty(steps[1] - steps[0], 4, *lanes.shape, dtype=lanes.dtype, device=lanes.device)
        for row, step in zip(self.history, range(*steps), strict=True):
            row.copy_(lanes.step())
            self._note(step + 1)
        self._measure()

    def _note(self, done: int) -> None:
        """Observe the weights after `done` steps, and keep a copy if a measurement is due."""
        if (values := self.lanes.observe(done)) is not None:
            self.measured.append(([done], values))
        every = self.plan.measure_every
        if every and (done % every == 0 or done == self.plan.total_steps):
            self._noted.append((done, self.lanes.snapshot()))
            if len(self._noted) == max(1, MEASURED_AT_ONCE // self.lanes.alive.size):
                self._measure()

    def _measure(self) -> None:
        """Measure all kept weights at once, which is cheaper for small models."""
        if self._noted:
            steps, points = zip(*self._noted, strict=True)
            self._noted.clear()
            self.measured.append((list(steps), self.lanes.measure(points)))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the state of the lanes. Data order, dropout and augmentation depend on the step alone."""
        checkpoint["lanes"] = self.lanes.state_dict()
        checkpoint.pop("loops", None)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the state of the lanes."""
        self.lanes.load_state_dict(checkpoint["lanes"])
