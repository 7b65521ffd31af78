"""Derived seeds, the validation split, and the order of the training samples: the same on every machine."""

from functools import lru_cache
from hashlib import blake2b, sha256
from math import ceil

import numpy as np
import torch
from torch import Tensor

_POOL = 64
"""Number of batches sorted by length together: more give less padding, but less randomness."""


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2^63) that depends on all the parts and their order."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest()) >> 1


@lru_cache
def validation_rows(n: int, n_val: int, salt: str) -> tuple[Tensor, Tensor]:
    """Validation rows of n training samples, ascending, and training rows in hashed order; a prefix is a fair sample.

    Rows are put in the order of SHA-256 of "salt:row", with the dataset's name as salt; the first n_val, in [1, n), are
    the validation set. No random generator is involved, so the split cannot change with a library's version.
    """
    order = sorted(range(n), key=lambda row: sha256(f"{salt}:{row}".encode()).digest())
    return torch.from_numpy(np.sort(np.array(order[:n_val]))), torch.tensor(order[n_val:])


def split_hash(n: int, n_val: int, salt: str) -> str:
    """First 16 hex digits of SHA-256 over the ascending validation rows as decimal numbers joined by commas."""
    rows = validation_rows(n, n_val, salt)[0].tolist()
    return sha256(",".join(map(str, rows)).encode()).hexdigest()[:16]


def micro_batches_per_rank(batch_size: int, ranks: int, micro_batch_size: int) -> int:
    """Number of micro-batches of each rank's share of a batch, the same on all ranks."""
    return ceil(ceil(batch_size / ranks) / micro_batch_size)


class BatchOrder:
    """Rows of each batch: every epoch is a new permutation, and a last incomplete batch is dropped.

    Rows with lengths, int64 of shape (n,) on the CPU, are batched with rows of similar length: the permutation is cut
    into pools of 64 batches, each pool is sorted by length and cut into batches, and the epoch's batches are shuffled.
    """

    def __init__(self, n: int, batch_size: int, seed: int, device: torch.device, lengths: Tensor | None = None) -> None:
        self.batches_per_epoch = n // batch_size
        self.batch_size = batch_size
        self._n, self._seed, self._device, self._lengths = n, seed, device, lengths
        self._epoch = -1
        self._permutation = torch.arange(n, device=device)  # the full batch needs no shuffling
        self._widths = [] if lengths is None else [int(lengths.max())]

    def rows(self, step: int) -> Tensor:
        """The rows of the batch of this step (from 0), int64 of shape (batch_size,)."""
        start = self._place(step) * self.batch_size
        return self._permutation[start : start + self.batch_size]

    def width(self, step: int) -> int | None:
        """The largest length in the batch of this step; None without lengths."""
        place = self._place(step)  # first: it may update the widths
        return self._widths[place] if self._lengths is not None else None

    def _place(self, step: int) -> int:
        """The batch of the epoch at this step; also prepares the epoch's order."""
        if self.batch_size == self._n:
            return 0
        epoch, batch = divmod(step, self.batches_per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            generator = torch.Generator().manual_seed(derive_seed(self._seed, epoch))
            permutation = torch.randperm(self._n, generator=generator)
            if self._lengths is not None:
                permutation = self._alike(permutation, self._lengths, generator)
            self._permutation = permutation.to(self._device)
        return batch

    def _alike(self, permutation: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
        """The permutation without a last incomplete batch, with rows of similar length in a batch; sets the widths."""
        permutation = permutation[: self.batches_per_epoch * self.batch_size]
        pools = torch.arange(len(permutation)) // (_POOL * self.batch_size)
        by_length = (pools * (int(lengths.max()) + 1) + lengths[permutation]).argsort(stable=True)
        batches = permutation[by_length].view(-1, self.batch_size)
        batches = batches[torch.randperm(len(batches), generator=generator)]
        self._widths = lengths[batches].amax(1).tolist()
        return batches.flatten()
