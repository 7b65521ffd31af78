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
        sizes: number of samples by split; it always has "train".
        select: the split for selection of settings in tuning and of a run's best step. Held-out samples other than
            those of `report`; "train" if the task has none, or ranks the training loss (`TaskSpec.ranks_training`).
        report: the split of the run's result, ranked by boards.
        also: further splits evaluated at the end.
        part: the used part of the data ("10,000 of 55,000 training samples"), or None for the whole.
        lengths: tokens of each row of "train", int64 on the CPU, for samples padded to the longest of their batch;
            or None.
        seeded: whether the samples depend on the seed; if not, runs of several seeds share them.
        f_star: infimum of the training loss, if known.
        loss_offset: by split, the mean over its samples of the part that `loss` subtracts, so that a loss near its
            minimum keeps its precision. It is added back to recorded values; for a mini-batch this is the split's mean,
            not its own.
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
        """Facts about this instance of the problem for the run's record; plain numbers and words."""
        return {}

    @abstractmethod
    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the samples to the device; floating-point ones also to the dtype."""

    @abstractmethod
    def batch(self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None) -> Any:
        """The samples of these rows of the split, ready for the model.

        `randomness` is given in training and determines augmentation; without it samples are unchanged.
        """


class TensorData(TaskData):
    """Samples by split, each split a named tuple of tensors with a row for each sample."""

    def __init__(self, splits: dict[str, Any]) -> None:
        self.splits = splits
        self.sizes = {split: len(samples[0]) for split, samples in splits.items()}

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the samples to the device."""
        for split, samples in self.splits.items():
            parts = (x.to(device, dtype if x.is_floating_point() else x.dtype) for x in samples)
            self.splits[split] = samples._make(parts)

    def batch(self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None) -> Any:
        """The samples of these rows; the full batch keeps its order, so nothing needs gathering."""
        samples = self.splits[split]
        if isinstance(rows, Tensor) and len(rows) == self.sizes[split]:
            return samples
        return samples._make(part[rows] for part in samples)
