"""Lossless tokens of a text: bytes, characters, or byte pairs merged by their frequency."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tasks.core.files import DataError

LEAST_PAIRS = 256  # tokens of a vocabulary of byte pairs: the bytes themselves
MOST = 2**16  # tokens of a vocabulary: each is stored in two bytes


@dataclass(frozen=True)
class Vocabulary:
    """Tokens 0, 1, ... and how they encode a text; the text that it was built from has no unknown token."""

    sizes: NDArray[np.int64]  # bytes of each token in UTF-8, (V,)
    encode: Callable[[Sequence[str]], NDArray[np.uint16]]  # the tokens of texts, joined; none crosses a text's end
    text: str  # all that `read_vocabulary` needs to restore it

    def __len__(self) -> int:
        return len(self.sizes)


BYTES = Vocabulary(
    np.ones(256, np.int64),
    lambda texts: np.frombuffer("".join(texts).encode(), np.uint8).astype(np.uint16),
    "byte",
)
"""The 256 bytes of UTF-8."""


def characters(of: Sequence[str]) -> Vocabulary:
    """These characters, in the order of their code points; more than 65,536 are a DataError."""
    if len(of) > MOST:
        raise DataError(f"the text has {len(of):,} different characters, not {MOST:,}; use --task.tokens byte or bpe")
    points = _code_points("".join(of))
    return Vocabulary(
        np.array([len(c.encode()) for c in of], np.int64),
        lambda texts: np.searchsorted(points, _code_points("".join(texts))).astype(np.uint16),
        json.dumps("".join(of)),
    )


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


def byte_pairs(tokenizer: Tokenizer) -> Vocabulary:
    """Byte-pair encoding of bytes, as in GPT-2, by `train_byte_pairs`: it encodes any text without loss."""

    def encode(texts: Sequence[str]) -> NDArray[np.uint16]:
        ids = (np.array(text.ids, np.uint16) for text in tokenizer.encode_batch_fast(list(texts)))
        return np.concatenate([np.zeros(0, np.uint16), *ids])

    names = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    sizes = np.array([len(name) for name, _ in names], np.int64)  # a byte is one character there
    return Vocabulary(sizes, encode, tokenizer.to_str())


def train_byte_pairs(texts: Iterable[str], size: int) -> Vocabulary:
    """A vocabulary of these texts, of at most `size` tokens, in [256, 65536]: a function of both alone.

    `tokenizers` breaks ties between equally frequent pairs by their numbers, which follow from the alphabet. The
    alphabet is passed in order, since `tokenizers` would collect it from a hash table.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()  # part of the tokenizer's text, whose digest is a fact of runs
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return byte_pairs(tokenizer)


def read_vocabulary(text: str) -> Vocabulary:
    """The vocabulary with this `text`."""
    if text == BYTES.text:
        return BYTES
    content = json.loads(text)
    return characters(content) if isinstance(content, str) else byte_pairs(Tokenizer.from_str(text))
