"""The interface of a task's data."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from tasks.core.randomness import BatchRandomness


class TaskData(ABC):
    """Samples that live on the training device.

    Attributes:
        sizes: number of samples by split; "train" is always there.
        select: the split that chooses: settings in tuning, and a run's best step. Held-out samples that are not those
            of `report`; "train" where the task has no others, or ranks the training loss (`TaskSpec.ranks_training`).
        report: the split whose metric is the run's result. Boards rank it.
        also: splits that are evaluated in the end beside `report`.
        part: what part of the data this is ("10,000 of 55,000 training samples"), or None for the whole.
        lengths: tokens of each row of "train", int64 on the CPU, for samples that are padded to their batch's longest;
            or None.
        seeded: whether the samples depend on the seed; where they do not, runs of several seeds share them.
        f_star: least value of the training loss, where it is known.
        loss_offset: by split, the mean over its samples of what `loss` leaves out, so that a loss near its minimum
            keeps its digits. Added back to what is recorded; for a mini-batch that is the mean's, not its own.
    """

    sizes: dict[str, int]
    select: str = "val"
    report: str = "test"
    also: Sequence[str] = ()
    part: str | None = None
    lengths: Tensor | None = None
    seeded: bool = True
    f_star: float | None = None
    loss_offset: Mapping[str, float] = MappingProxyType({})

    def facts(self) -> dict[str, Any]:
        """What is known of this instance of the problem and belongs into the run's record; plain numbers and words."""
        return {}

    @abstractmethod
    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the samples to the device; floating-point ones also to the dtype."""

    @abstractmethod
    def batch(self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None) -> Any:
        """The samples of these rows of the split, ready for the model.

        `randomness` is given in training and decides augmentation; without it the samples come as they are.
        """
