"""Dropout whose mask belongs to the sample, not to the program's history.

`torch.nn.Dropout` draws from a global stream: the mask of a sample depends on how the batch was cut into micro-batches
and ranks, and a resumed run needs the stream's state. Here the mask of a sample is a function of (seed, step, layer,
place in the batch). So micro-batches, ranks, resuming and other optimizers change nothing.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tasks.seeding import derive_seed

_BLOCK = 128
"""Samples whose numbers are drawn together."""


class BatchRandomness:
    """Where in the run a micro-batch stands; shared by everything random in one model.

    Attributes:
        seed: of the whole run's randomness beyond initialisation and order.
        step: the optimizer step, from 0.
        rows: the micro-batch's rows within the batch.
        batch_size: rows of the whole batch, over micro-batches and ranks.
        width: tokens that all rows of the batch are padded to; None where rows have no lengths.
        drawn: whether anything random was ever asked for.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.step = 0
        self.rows = slice(0, 0)
        self.batch_size = 0
        self.width: int | None = None
        self.drawn = False

    def draw(self, stream: int, numbers: Tensor, fill: Callable[[Tensor, torch.Generator], object]) -> Tensor:
        """Random numbers for the micro-batch, the same however the batch is cut.

        Args:
            stream: one number for each use in the model.
            numbers: what to draw like, of shape (rows of the micro-batch, ...); its values do not matter.
            fill: fills a tensor of shape (rows, ...) in place from a generator.

        Returns:
            A tensor like `numbers`.
        """
        self.drawn = True
        first, last = self.rows.start, self.rows.stop
        blocks = []
        # Block by block: to draw the whole batch for each of its micro-batches would cost the square of their number.
        for block in range(first // _BLOCK, -(-last // _BLOCK)):
            start, stop = block * _BLOCK, min((block + 1) * _BLOCK, self.batch_size)
            seed = derive_seed(self.seed, self.step, stream, *((block,) if block else ()))
            # Not `new_empty`: under `torch.func.vmap` that would be drawn for each of its points.
            drawn = torch.empty((stop - start, *numbers.shape[1:]), dtype=numbers.dtype, device=numbers.device)
            fill(drawn, torch.Generator(numbers.device).manual_seed(seed))
            blocks.append(drawn[max(first - start, 0) : last - start])
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


class BatchDropout(nn.Module):
    """Dropout of rate p, in [0, 1), on inputs of shape (rows of the micro-batch, ...)."""

    def __init__(self, p: float, randomness: BatchRandomness, stream: int) -> None:
        super().__init__()
        self.p = p
        self.randomness = randomness
        self.stream = stream

    def forward(self, x: Tensor) -> Tensor:
        """Return x with elements zeroed with probability p, others scaled by 1 / (1 - p); x itself in eval mode."""
        if not self.training or self.p == 0:
            return x
        keep = self.randomness.draw(self.stream, x, lambda mask, source: mask.bernoulli_(1 - self.p, generator=source))
        return x * keep.div_(1 - self.p)


def use_batch_dropout(model: nn.Module, randomness: BatchRandomness) -> None:
    """Replace every `nn.Dropout` of the model by a `BatchDropout` with the same rate."""
    stream = 0
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout):
                stream += 1
                setattr(module, name, BatchDropout(child.p, randomness, stream))
