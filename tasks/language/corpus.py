"""Corpora for language models: a text as one stream of tokens, packed once, cached, cut into windows of equal length.

A split of N tokens has N - 1 predictions: every token but the first, from those before it. With windows of T
predictions there are ceil((N - 1) / T) rows. Row i predicts the tokens iT + 1 to iT + T; the last row starts earlier,
so that it is full, and counts only tokens that no earlier row predicts. So every token is predicted once, in training
and in evaluation.
"""

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from optimizers.step_size import check_range
from tasks.core.cache import Entry, cached
from tasks.core.data import TaskData
from tasks.core.files import DataError, digest_of, open_bytes
from tasks.core.randomness import BatchRandomness
from tasks.core.tables import amount, kind_of, sha256
from tasks.language.sources import CORPORA, TextSource, find
from tasks.language.vocabulary import (
    BYTES,
    LEAST_PAIRS,
    MOST,
    Vocabulary,
    characters,
    read_vocabulary,
    train_byte_pairs,
)

IGNORED = -100
"""The target that torch's cross-entropy ignores."""

_CHUNK = 2**16  # characters tokenised as one text, at least; a chunk ends at the end of a line or row
_CHUNKS = 16  # tokenised at once: the tokenizer's output takes a hundred times the memory of its tokens
_TRAINING_CHUNKS = 800  # for training a vocabulary of byte pairs, at most


class TokenBatch(NamedTuple):
    """Windows of the stream; all but `per_row` are int64."""

    ids: Tensor  # tokens, (rows, T)
    targets: Tensor  # the next tokens, (rows, T); `IGNORED` where another row predicts it
    sizes: Tensor  # number of predictions of each row, and their bytes, (rows, 2)
    per_row: Tensor  # mean number of predictions per row of the split, ()


class CorpusData(TaskData):
    """A corpus as windows of its tokens.

    Where a corpus has no file for validation, the last tenth of its characters is kept for it. Results are reported on
    the test file, or on the validation split if there is no test file.

    Args:
        corpus: `tiny_shakespeare`, `wikitext103`, `wiki_quac`, or your own file: UTF-8 text, or Parquet
            with a column `text`.
        tokens: `character`, the characters of all splits; `byte`; or `bpe`, byte pairs trained on the training text.
        vocab: tokens of `bpe`, in [256, 65536]; fewer if the text has too few pairs.
        length: tokens T predicted in each row, each from the preceding tokens of the row; at least 1.
        n_val: use only the first rows of the validation split, at most this many; all by default.
    """

    seeded = False
    SOURCES = CORPORA

    def __init__(
        self,
        root: Path,
        seed: int = 0,
        *,
        corpus: str = "tiny_shakespeare",
        tokens: Literal["character", "byte", "bpe"] = "character",
        vocab: int = 8000,
        length: int = 64,
        n_val: int | None = None,
    ) -> None:
        check_range("vocab", vocab, LEAST_PAIRS, MOST)
        check_range("length", length, 1)
        check_range("n_val", 1 if n_val is None else n_val, 1)
        source: TextSource = find(CORPORA, root, corpus)
        source.require(root)
        files = source.files(root)
        digests = {split: sha256(*paths) for split, paths in files.items()}
        self._digests = {paths[0].name: digests[split] for split, paths in files.items()}
        texts = _splits(source, files)
        self.vocabulary = _vocabulary(texts, tokens, vocab, digests)
        arrays, self._packed = dict[str, NDArray[np.uint16]](), dict[str, Any]()
        for split, text in texts.items():
            digest = digests.get(split, digests["train"])
            arrays[split], self._packed[split] = _packed(digest, text, self.vocabulary)
        for split, ids in arrays.items():
            if len(ids) < length + 1:
                why = f"the {split} split of {texts[split].paths[0]} has {len(ids):,} tokens, and needs {length + 1:,}"
                raise DataError(f"{why}: use a longer text, or a smaller --task.length")
        if len(self.vocabulary) < 2:
            raise DataError(f"the text of {files['train'][0]} has only one distinct character; use another")
        notes = list[str]()
        for split, paths in files.items():
            (name, official), size = source.expected[split], sum(map(amount, paths))
            if official not in (None, size) and all(path.suffix == Path(name).suffix for path in paths):
                notes.append(f"{size:,} of {official:,} {'rows' if name.endswith('.parquet') else 'bytes'} of {name}")
        if n_val is not None and n_val < (rows := -(-(len(arrays["val"]) - 1) // length)):
            arrays["val"] = arrays["val"][: n_val * length + 1]
            size = int(self.vocabulary.sizes[arrays["val"].astype(np.int64)].sum())
            self._packed = {**self._packed, "val": {**self._packed["val"], "bytes": size}}
            notes.append(f"{n_val:,} of {rows:,} rows of the validation split")
        self.part = "; ".join(notes) or None
        self._place(arrays, length)

    def _place(self, streams: Mapping[str, NDArray[np.uint16]], length: int) -> None:
        """Cut the streams into rows."""
        self.vocab_size, self.length = len(self.vocabulary), length
        self.report = "test" if "test" in streams else "val"
        self._ids = {split: torch.from_numpy(ids.view(np.int16)) for split, ids in streams.items()}
        predictions = {split: len(ids) - 1 for split, ids in streams.items()}
        self.sizes = {split: -(-n // length) for split, n in predictions.items()}
        self._per_row = {
            split: torch.tensor(n / self.sizes[split], dtype=torch.float64) for split, n in predictions.items()
        }
        self._bytes, self._columns = torch.from_numpy(self.vocabulary.sizes), torch.arange(length)

    def facts(self) -> dict[str, Any]:
        """Facts that identify the stream: digests of files, validation text and tokenizer; tokens and bytes."""
        return {
            "files": {name: value[:16] for name, value in self._digests.items()},
            "validation": self._packed["val"]["sha256"][:16],
            "tokenizer": digest_of(self.vocabulary.text)[:16],
            "vocabulary": self.vocab_size,
            "tokens": {split: len(ids) for split, ids in self._ids.items()},
            "bytes": {split: self._packed[split]["bytes"] for split in self._ids},
        }

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the streams to the device; on the CPU they stay mapped files."""
        self._ids = {split: ids.to(device) for split, ids in self._ids.items()}
        self._per_row = {split: n.to(device, dtype) for split, n in self._per_row.items()}
        self._bytes, self._columns = self._bytes.to(device), self._columns.to(device)

    def batch(self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None) -> TokenBatch:
        """The windows of these rows."""
        stream, T = self._ids[split], self.length
        if isinstance(rows, slice):
            rows = torch.arange(*rows.indices(self.sizes[split]), device=stream.device)
        last = len(stream) - 1 - T
        wanted = rows * T
        starts = wanted.clamp(max=last)
        # Window i of this view begins at token i, so that only the batch's tokens are copied.
        windows = stream.as_strided((last + 1, T + 1), (1, 1)).index_select(0, starts)
        windows = windows.long() & 0xFFFF  # stored as unsigned 16 bits, for which torch has few operations
        ids, targets = windows[:, :-1], windows[:, 1:]
        counted = self._columns >= (wanted - starts)[:, None]
        bytes_ = (self._bytes[targets] * counted).sum(1)
        sizes = torch.stack([counted.sum(1), bytes_], 1)
        return TokenBatch(ids, targets.masked_fill(~counted, IGNORED), sizes, self._per_row[split])


class _Text(NamedTuple):
    """Characters from `start` up to `stop` of some files."""

    source: TextSource
    paths: Sequence[Path]
    start: int = 0
    stop: int | None = None

    def chunks(self) -> Iterator[str]:
        """The text in pieces of about equal length."""
        place = 0
        for path in self.paths:
            for chunk in _chunks(self.source, path):
                cut = chunk[max(0, self.start - place) : None if self.stop is None else max(0, self.stop - place)]
                place += len(chunk)
                if cut:
                    yield cut


def _splits(source: TextSource, files: Mapping[str, Sequence[Path]]) -> dict[str, _Text]:
    texts = {split: _Text(source, paths) for split, paths in files.items()}
    if "val" not in texts:
        whole = texts["train"]
        cut = sum(map(len, whole.chunks())) * 9 // 10
        texts |= {"train": whole._replace(stop=cut), "val": whole._replace(start=cut)}
    return texts


def _chunks(source: TextSource, path: Path) -> Iterator[str]:
    """The text of a file in pieces that end with a line or a row, without loss."""
    if not kind_of(path):
        # Universal line ends: a text with CRLF is the same text.
        with open_bytes(path) as raw, io.TextIOWrapper(raw, "utf-8-sig") as file:
            while chunk := file.read(_CHUNK):
                yield chunk + file.readline()
        return
    rows, size = list[str](), 0
    for batch in source.read([path], ["text"])[0].to_batches(1000):
        for text in batch["text"].to_pylist():
            rows += text, source.separator
            size += len(text)
            if size >= _CHUNK:
                yield "".join(rows)
                rows, size = [], 0
    yield "".join(rows)


def _vocabulary(texts: Mapping[str, _Text], kind: str, size: int, digests: Mapping[str, str]) -> Vocabulary:
    """Tokens of a corpus: a function of its text, equal on every machine; computed once, then cached."""
    if kind == "byte":
        return BYTES
    train = texts["train"]

    def make() -> Entry:
        if kind == "bpe":
            return {}, {"tokenizer": train_byte_pairs(islice(train.chunks(), _TRAINING_CHUNKS), size).text}
        every = {c for text in texts.values() for chunk in text.chunks() for c in set(chunk)}
        return {}, {"tokenizer": characters(sorted(every)).text}

    meaning = kind, digests, train.source.separator, size if kind == "bpe" else None
    return read_vocabulary(cached(digests["train"], meaning, make)[1]["tokenizer"])


def _packed(digest: str, text: _Text, vocabulary: Vocabulary) -> tuple[NDArray[np.uint16], dict[str, Any]]:
    """The tokens of a text in files with this digest, and the text's `bytes` and `sha256`, through the cache."""

    def make() -> Entry:
        sha, size, parts, chunks = hashlib.sha256(), 0, [np.zeros(0, np.uint16)], text.chunks()
        while piece := list(islice(chunks, _CHUNKS)):
            raw = "".join(piece).encode()
            sha.update(raw)
            size += len(raw)
            parts.append(vocabulary.encode(piece))
        return {"ids": np.concatenate(parts)}, {"bytes": size, "sha256": sha.hexdigest()}

    arrays, record = cached(digest, (text.source.separator, text.start, text.stop, vocabulary.text), make)
    return arrays["ids"], record
