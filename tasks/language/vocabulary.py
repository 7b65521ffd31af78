"""Lossless tokens of a text: bytes, characters, or byte pairs merged by their frequency."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tasks.core.files import DataError

LEAST_PAIRS = 256  # tokens of a vocabulary of byte pairs: the bytes themselves
MOST = 2**16  # tokens of a vocabulary: each is stored in two bytes


class Vocabulary(ABC):
    """Tokens 0, 1, ... and how they encode a text; the text that it was built from has no unknown token.

    `sizes` are the bytes of each token in UTF-8, int64 of shape (V,).
    """

    sizes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sizes)

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> NDArray[np.uint16]:
        """The tokens of the texts, concatenated."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens; bytes that form no character become a replacement character."""

    @abstractmethod
    def to_str(self) -> str:
        """Everything that `read_vocabulary` needs to restore it."""


class Bytes(Vocabulary):
    """The 256 bytes of UTF-8."""

    sizes = np.ones(256, np.int64)

    def encode(self, texts: Sequence[str]) -> NDArray[np.uint16]:
        """The bytes of the texts."""
        return np.frombuffer("".join(texts).encode(), np.uint8).astype(np.uint16)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of bytes."""
        return bytes(ids).decode(errors="replace")

    def to_str(self) -> str:
        """Only the name of this tokenizer."""
        return "byte"


class Characters(Vocabulary):
    """The sorted characters of a text, in the order of their code points; more than 65,536 are a DataError."""

    def __init__(self, characters: Sequence[str]) -> None:
        if len(characters) > MOST:
            raise DataError(
                f"the text has {len(characters):,} different characters, more than {MOST:,};"
                " use --task.tokens byte or bpe"
            )
        self._characters = "".join(characters)
        self._points = _code_points(self._characters)
        self.sizes = np.array([len(c.encode()) for c in characters], np.int64)

    def encode(self, texts: Sequence[str]) -> NDArray[np.uint16]:
        """The indices of the texts' characters."""
        return np.searchsorted(self._points, _code_points("".join(texts))).astype(np.uint16)

    def decode(self, ids: Sequence[int]) -> str:
        """The characters at these indices."""
        return "".join(self._characters[i] for i in ids)

    def to_str(self) -> str:
        """The characters."""
        return json.dumps(self._characters)


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


class BytePairs(Vocabulary):
    """Byte-pair encoding of bytes, as in GPT-2, by `train_byte_pairs`: it encodes any text without loss."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        names = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        self.sizes = np.array([len(name) for name, _ in names], np.int64)  # a byte is one character there

    def encode(self, texts: Sequence[str]) -> NDArray[np.uint16]:
        """The tokens of the texts; none crosses the end of a text."""
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        return np.concatenate([np.zeros(0, np.uint16), *(np.array(text.ids, np.uint16) for text in encodings)])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens."""
        return self._tokenizer.decode(list(ids))

    def to_str(self) -> str:
        """The tokenizer's JSON."""
        return self._tokenizer.to_str()


def train_byte_pairs(texts: Iterable[str], size: int) -> BytePairs:
    """A vocabulary of these texts, of at most `size` tokens, in [256, 65536]: a function of both alone.

    `tokenizers` breaks ties between equally frequent pairs by their numbers, which follow from the alphabet. The
    alphabet is passed in order, since `tokenizers` would collect it from a hash table.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return BytePairs(tokenizer)


def read_vocabulary(text: str) -> Vocabulary:
    """The vocabulary that `Vocabulary.to_str` wrote; an invalid text is a ValueError."""
    if text == Bytes().to_str():
        return Bytes()
    content = json.loads(text)
    if isinstance(content, str):
        return Characters(content)
    try:
        return BytePairs(Tokenizer.from_str(text))
    except Exception as error:  # `tokenizers` raises nothing more specific
        raise ValueError("not a tokenizer") from error
