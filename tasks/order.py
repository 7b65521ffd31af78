"""In which order training samples are seen: a function of the data seed and the step alone."""

from math import ceil

import torch
from torch import Tensor

from tasks.seeding import derive_seed


def micro_batches_per_rank(batch_size: int, ranks: int, micro_batch_size: int) -> int:
    """Into how many micro-batches every rank cuts its share of a batch: the same number, whatever its share."""
    return ceil(ceil(batch_size / ranks) / micro_batch_size)


class BatchOrder:
    """Rows of each batch: every epoch is a fresh permutation, and a last incomplete batch is left out.

    Args:
        n: number of training samples, at least 1.
        batch_size: samples of one optimizer step, in [1, n].
        seed: data seed; with the epoch it decides the permutation.
        device: where the row numbers live.
    """

    def __init__(self, n: int, batch_size: int, seed: int, device: torch.device) -> None:
        self.batches_per_epoch = n // batch_size
        self.batch_size = batch_size
        self._n, self._seed, self._device = n, seed, device
        self._epoch = -1
        self._permutation = torch.arange(n, device=device)  # the full batch needs no shuffling

    def rows(self, step: int) -> Tensor:
        """The rows of the batch of this step (from 0), int64 of shape (batch_size,)."""
        if self.batch_size == self._n:
            return self._permutation
        epoch, batch = divmod(step, self.batches_per_epoch)
        start = batch * self.batch_size
        if epoch != self._epoch:
            self._epoch = epoch
            generator = torch.Generator().manual_seed(derive_seed(self._seed, epoch))
            self._permutation = torch.randperm(self._n, generator=generator).to(self._device)
        return self._permutation[start : start + self.batch_size]
