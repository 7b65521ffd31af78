"""Random numbers of a batch, as a function of (seed, step, use, row): however it is cut, and whenever it is resumed."""

from collections.abc import Callable

import torch
from torch import Tensor

from tasks.core.seeding import derive_seed

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
