"""Dropout whose mask belongs to the sample, not to the program's history.

`torch.nn.Dropout` draws from a global stream: the mask of a sample depends on how the batch was cut into micro-batches
and ranks, and a resumed run needs the stream's state. Here the mask of the whole batch is a function of (seed, step,
layer), and a micro-batch takes its rows of it. So micro-batches, ranks, resuming and other optimizers change nothing.
"""

import torch
from torch import Tensor, nn

from tasks.seeding import derive_seed


class BatchRandomness:
    """Where in the run a micro-batch stands; shared by everything random in one model.

    Attributes:
        seed: of the whole run's randomness beyond initialisation and order.
        step: the optimizer step, from 0.
        rows: the micro-batch's rows within the batch.
        batch_size: rows of the whole batch, over micro-batches and ranks.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.step = 0
        self.rows = slice(0, 0)
        self.batch_size = 0

    def generator(self, stream: int, device: torch.device) -> torch.Generator:
        """A generator that depends on seed, step and stream (one number for each use in the model) alone."""
        seed = derive_seed(self.seed, self.step, stream)
        return torch.Generator(device).manual_seed(seed)


class BatchDropout(nn.Module):
    """Dropout of rate p, in [0, 1), on inputs of shape (rows of the micro-batch, ...)."""

    def __init__(self, p: float, randomness: BatchRandomness, stream: int) -> None:
        super().__init__()
        self.p = p
        self.randomness = randomness
        self.stream = stream

    def forward(self, x: Tensor) -> Tensor:
        """Return x with elements zeroed with probability p and the others scaled by 1 / (1 - p); x itself in eval mode."""
        if not self.training or self.p == 0:
            return x
        where = self.randomness
        keep = torch.empty((where.batch_size, *x.shape[1:]), dtype=x.dtype, device=x.device)
        keep.bernoulli_(1 - self.p, generator=where.generator(self.stream, x.device))
        return x * keep[where.rows].div_(1 - self.p)


def use_batch_dropout(model: nn.Module, randomness: BatchRandomness) -> None:
    """Replace every `nn.Dropout` of the model by a `BatchDropout` with the same rate."""
    stream = 0
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout):
                stream += 1
                setattr(module, name, BatchDropout(child.p, randomness, stream))
