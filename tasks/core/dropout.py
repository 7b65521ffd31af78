"""Dropout with masks that depend on the sample, not on the program's history.

`torch.nn.Dropout` draws from a global stream: the mask of a sample depends on the division of the batch into
micro-batches and ranks, and resuming needs the stream's state. Here the mask of a sample is a function of (seed, step,
layer, place in the batch). So micro-batches, ranks, resuming and other optimizers change nothing.
"""

from torch import Tensor, nn

from tasks.core.randomness import BatchRandomness, exact_rate


class BatchDropout(nn.Module):
    """Dropout of rate p, in [0, 1), on inputs of shape (rows of the micro-batch, ...).

    The rate is rounded to a multiple of 2^-16, so that one word of 64 random bits decides on four elements.
    """

    def __init__(self, p: float, randomness: BatchRandomness, stream: int) -> None:
        super().__init__()
        self.p = p
        self.randomness = randomness
        self.stream = stream

    def forward(self, x: Tensor) -> Tensor:
        """Return x with elements zeroed with probability p, others scaled by 1 / (1 - p); x itself in eval mode."""
        rate = exact_rate(self.p)
        if not self.training or rate == 0:
            return x
        return x * self.randomness.keep(self.stream, x, rate).mul_(1 / (1 - rate))


def use_batch_dropout(model: nn.Module, randomness: BatchRandomness) -> None:
    """Replace every `nn.Dropout` of the model by a `BatchDropout` with the same rate."""
    stream = 0
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout):
                stream += 1
                setattr(module, name, BatchDropout(child.p, randomness, stream))
