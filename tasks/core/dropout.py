"""Dropout with masks that depend on the sample, not on the program's history.

`torch.nn.Dropout` draws from a global stream: the mask of a sample depends on the division of the batch into
micro-batches and ranks, and resuming needs the stream's state. Here the mask of a sample is a function of (seed, step,
layer, place in the batch). So micro-batches, ranks, resuming and other optimizers change nothing.
"""

from torch import Tensor, nn

from tasks.core.randomness import BatchRandomness, exact_rate

_WHOLE = nn.Dropout1d, nn.Dropout2d, nn.Dropout3d


class BatchDropout(nn.Module):
    """Dropout of rate p, in [0, 1), on inputs of shape (rows of the micro-batch, ...).

    The rate is rounded to a multiple of 2^-16, so that one word of 64 random bits decides on four elements. The stream
    is the number of this dropout in the model; with `whole`, channels of inputs (rows, channels, ...) are dropped
    whole.
    """

    def __init__(self, p: float, randomness: BatchRandomness, stream: int, *, whole: bool = False) -> None:
        super().__init__()
        self.p = p
        self.randomness = randomness
        self.stream = stream
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        """Return x with elements zeroed with probability p, others scaled by 1 / (1 - p); x itself in eval mode."""
        rate = exact_rate(self.p)
        if not self.training or rate == 0:
            return x
        like = x[:, :, *[slice(1)] * (x.ndim - 2)] if self.whole else x
        return x * self.randomness.keep(self.stream, like, rate).mul_(1 / (1 - rate))


def use_batch_dropout(model: nn.Module, randomness: BatchRandomness) -> nn.Module:
    """Replace every `nn.Dropout`, or `nn.Dropout1d` to `3d`, by a `BatchDropout` with the same rate; return the model.

    A dropout with several names gets several replacements, since its uses have different masks.
    """
    root, stream = nn.Sequential(model), 0
    for module in list(root.modules()):
        for name, child in list(module._modules.items()):  # `named_children` leaves out a second name
            if isinstance(child, (nn.Dropout, *_WHOLE)):
                stream += 1
                setattr(module, name, BatchDropout(child.p, randomness, stream, whole=isinstance(child, _WHOLE)))
    return root[0]
