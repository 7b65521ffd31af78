"""Random numbers of a batch: a function of (seed, step, use, row, element), whatever the micro-batches and restarts.

They come from a hash of counters (SplitMix64: Steele, Lea, Flood, OOPSLA 2014), as operations on integer tensors: the
same bits on every device, any rows without the others, and no generator state to keep.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tasks.core.batching import with_batching_rule

_WORD = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None))
_PIECES = 1 << 16
_WHOLE = nn.Dropout1d, nn.Dropout2d, nn.Dropout3d


def _signed(word: int) -> int:
    """The int64 with the bits of a word in [0, 2^64)."""
    return word - ((word >> 63) << 64)


def _key(*parts: int) -> int:
    """A word in [0, 2^64) that depends on all the parts and their order."""
    word = 0
    for part in parts:
        word = (word + _GAMMA * (part + 1)) & _WORD
        for shift, factor in _STEPS:
            word ^= word >> shift
            word = word * (factor or 1) & _WORD
    return word


def _mix(words: Tensor) -> Tensor:
    """Each word of int64 hashed, in place."""
    for shift, factor in _STEPS:
        # int64 shifts in copies of the sign, which are masked out.
        words.bitwise_xor_(words.bitwise_right_shift(shift).bitwise_and_((1 << (64 - shift)) - 1))
        if factor is not None:
            words.mul_(_signed(factor))
    return words


def _kept_in_lanes(lanes: int, in_dims: tuple[int | None, ...], words: Tensor, threshold: int) -> Tensor:
    """`_kept` of all lanes: torch has no rule for `view` before 2.15, and calls `ge_` for each lane."""
    return _kept(words.movedim(in_dims[0] or 0, 0), threshold)


@with_batching_rule(_kept_in_lanes)
def _kept(words: Tensor, threshold: int) -> Tensor:
    """Words of 64 bits as four int16 each, 1 where one is at least `threshold`, else 0; the words are overwritten."""
    # In place: torch vectorises neither int16 comparison into bool nor bool to float, which take 8 times as long.
    return words.view(torch.int16).ge_(threshold)


class BatchRandomness:
    """The position of a micro-batch in the run; shared by all random parts of a model.

    Each method takes a `stream`, one number for each use in the model, and a tensor `like`, of shape (rows of the
    micro-batch, ...), for shape, dtype and device; its values do not matter.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed  # of the run's randomness except initialisation and order
        self.step = 0  # of the optimizer
        self.rows = slice(0, 0)  # of the micro-batch within the batch
        self.width: int | None = None  # tokens that all rows of the batch are padded to; None if rows have no lengths
        self.drawn = False  # whether any random numbers have been drawn
        self._held: tuple[int, Tensor, Tensor] | None = None

    def position(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """A hash of seed and step, and the first row, int64 of shape () each."""
        if self._held is not None:
            return self._held[1:]
        # Not `torch.tensor`, which synchronises with a GPU.
        parts = _signed(_key(self.seed, self.step)), self.rows.start
        before, first = (torch.full((), part, dtype=torch.int64, device=device) for part in parts)
        return before, first

    @contextmanager
    def at(self, before: Tensor, first: Tensor) -> Iterator[None]:
        """Read a `position` from tensors within, so that one recorded or compiled program serves all steps."""
        self._held = self.rows.stop - self.rows.start, before, first
        try:
            yield
        finally:
            self._held = None

    def words(self, stream: int, per_row: int, device: torch.device | None = None) -> Tensor:
        """Random words of 64 bits for the rows of the micro-batch: int64 of shape (rows, per_row)."""
        self.drawn = True
        if self._held is None:
            count = self.rows.stop - self.rows.start
            words = torch.arange(self.rows.start * per_row, self.rows.stop * per_row, device=device)
            words.mul_(_signed(_GAMMA)).add_(_signed(_key(self.seed, self.step, stream)))
        else:
            count, before, first = self._held
            words = (torch.arange(count * per_row, device=device) + first * per_row).mul_(_signed(_GAMMA))
            words.add_(_mix(before + _signed(_GAMMA * (stream + 1) & _WORD)))
        return _mix(words).view(count, per_row)

    def keep(self, stream: int, like: Tensor, rate: float) -> Tensor:
        """1 where a dropout of this rate, in [0, 1), keeps an element, 0 where it drops it: shape and dtype of `like`.

        Each is 0 with probability `exact_rate(rate)`, decided by 16 separate bits.
        """
        elements = like.shape[1:].numel()
        words = self.words(stream, -(-elements // 4), like.device)
        pieces = _kept(words, round(exact_rate(rate) * _PIECES) - _PIECES // 2)
        return pieces[:, :elements].to(like.dtype).reshape(like.shape)

    def uniform(self, stream: int, like: Tensor) -> Tensor:
        """Numbers in [0, 1) of the shape of `like`: of 53 bits where that is float64, else of 24 bits in float32."""
        bits, dtype = (53, like.dtype) if like.dtype == torch.float64 else (24, torch.float32)
        words = self.words(stream, like.shape[1:].numel(), like.device)
        words.bitwise_right_shift_(64 - bits).bitwise_and_((1 << bits) - 1)
        return words.to(dtype).mul_(2.0**-bits).view(like.shape)


def exact_rate(rate: float) -> float:
    """The probability with which `BatchRandomness.keep` drops an element: a multiple of 2^-16, less than 1."""
    return min(round(rate * _PIECES), _PIECES - 1) / _PIECES


class BatchDropout(nn.Module):
    """Dropout of rate p, in [0, 1), on inputs of shape (rows of the micro-batch, ...), with masks by `BatchRandomness`.

    `torch.nn.Dropout` draws from a global stream: the mask of a sample depends on the division of the batch into
    micro-batches and ranks, and resuming needs the stream's state. The rate is rounded to a multiple of 2^-16, so that
    one word of 64 random bits decides on four elements. The stream is the number of this dropout in the model; with
    `whole`, channels of inputs (rows, channels, ...) are dropped whole.
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
