"""Text classification data: texts that are tokenised once, cached, and live on the device as one flat tensor of tokens.

A batch is gathered on the device and padded to its longest row. In training rows are sorted by length within pools of
batches (`tasks.core.order.BatchOrder`), so that little of a batch is padding.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from optimizers.step_size import check_range
from tasks.core.cache import cached, cached_arrays, digest_of
from tasks.core.data import TaskData
from tasks.core.files import DataError
from tasks.core.randomness import BatchRandomness
from tasks.core.split import split_hash, validation_rows
from tasks.core.tables import readable, sha256
from tasks.language.sources import CIVIL_COMMENTS, JIGSAW, MNLI, SST2, TextSource, find, here
from tasks.language.tokenizer import (
    LEAST_VOCABULARY,
    has_tokenizer,
    load_tokenizer,
    named_folder,
    pad_id_of,
    train_word_pieces,
)

_CHUNK = 20_000  # rows tokenised at once: the tokenizer's output takes a hundred times the memory of its ids
_TRAINING_ROWS = 200_000  # for training a vocabulary, at most


class TextBatch(NamedTuple):
    """Tokenised texts, or pairs of them, with labels.

    Attributes:
        ids: tokens, int64 of shape (rows, width), padded with the tokenizer's pad id.
        mask: True at tokens, shape (rows, width).
        types: 0 at the first text and 1 at the second, where the tokenizer distinguishes them, int64 of shape
            (rows, width).
        labels: int64 of shape (rows,).
        groups: which identities a text mentions, bool of shape (rows, G); None if the data have none.
    """

    ids: Tensor
    mask: Tensor
    types: Tensor
    labels: Tensor
    groups: Tensor | None


class TextData(TaskData):
    """Labelled texts from tables; validation is carved from the training file.

    Rows of "train" are in an order decided by hashes, so that a prefix is a fair sample; rows of other splits are in
    the order of their lengths, so that little of a batch is padding.

    Args:
        root: the data folder.
        seed: unused; the texts are the same for every seed.
        model: whose tokenizer is used: a local folder, or a name on the Hugging Face Hub.
        scratch: train a word-piece vocabulary on the training texts, unless `model` is a local folder with a tokenizer.
        vocab: tokens of a vocabulary from scratch, in [100, 65536]; fewer if the texts have too few words.
        max_length: tokens of a row, special ones included, in [8, 65536]; longer rows are truncated.
        n_train: use only this many of the training rows; all by default.
        dataset: one of the task's data sets, if it has several (`TaskSpec.datasets`); by default the first that exists.

    Attributes:
        source: the data set.
        digests: of its files by split (`tasks.core.tables.sha256`).
        num_classes: labels are in [0, num_classes).
        vocab_size: tokens that the tokenizer knows: one more than the largest id.
        pad_id: the token of padding.
        group_names: identities of `TextBatch.groups`; () if the data, or an evaluated split, have none.
        tokenizer: a `tokenizers.Tokenizer`.
        lengths: tokens of each row of "train", int64 on the CPU.
    """

    SOURCES: tuple[TextSource, ...]
    seeded = False

    def __init__(
        self,
        root: Path,
        seed: int = 0,
        *,
        model: str = "bert-base-uncased",
        scratch: bool = False,
        vocab: int = 8000,
        max_length: int = 128,
        n_train: int | None = None,
        dataset: str | None = None,
    ) -> None:
        check_range("vocab", vocab, LEAST_VOCABULARY, 2**16)
        check_range("max_length", max_length, 8, 2**16)
        source = self.source = find(self.SOURCES, root, dataset)
        source.require(root)
        files = source.files(root)
        self.digests = {split: sha256(*paths) for split, paths in files.items()}
        self.group_names = _groups(source, [path for paths in files.values() for path in paths])
        if scratch and not has_tokenizer(folder := named_folder(model)):
            if folder.is_dir():
                raise DataError(
                    f"there is no tokenizer in {model}, and scratch=true uses only the tokenizer of a model; remove"
                    " --task.model"
                )
            self.tokenizer = _trained_tokenizer(source, files["train"], self.digests["train"], vocab)
        else:
            self.tokenizer = load_tokenizer(model)
        self.pad_id = pad_id_of(self.tokenizer)
        self.tokenizer.no_padding()
        self._truncate(max_length)
        if not self.tokenizer.encode("").ids:
            raise DataError(
                f"the tokenizer of {model} does not mark the beginning of a text, which a classifier needs;"
                " use another model"
            )
        self.vocab_size = 1 + max(self.tokenizer.get_vocab().values())
        self.num_classes = source.num_classes
        encoded = {split: self._encoded(paths, self.digests[split]) for split, paths in files.items()}
        amounts = {split: rows for split, (_, rows) in encoded.items()}
        self._place({split: file for split, (file, _) in encoded.items()}, amounts, n_train, max_length)

    @classmethod
    def find(cls, root: Path, dataset: str | None = None) -> TextSource:
        """The data set of this name, by default the first that is in this data folder, or else the first."""
        return find(cls.SOURCES, root, dataset)

    @classmethod
    def here(cls, root: Path) -> list[str]:
        """The data sets that are in this data folder."""
        return here(cls.SOURCES, root)

    def _truncate(self, max_length: int) -> None:
        """Set how the tokenizer truncates long texts."""
        self.tokenizer.enable_truncation(max_length)

    def _encoded(self, paths: Sequence[Path], digest: str) -> "tuple[Encoded, int]":
        """The rows of a split's files, and their number."""
        source, groups, tokenizer = self.source, self.group_names, self.tokenizer
        meaning = source.texts, source.label, source.num_classes, source.threshold, groups
        arrays, rows = tokenised(
            Encoded._fields, paths, digest, meaning, tokenizer, lambda: _encode(source, paths, groups, tokenizer)
        )
        return Encoded(**arrays), rows

    def _carved(self, n: int, what: str = "rows") -> tuple[Tensor, Tensor]:
        """Held-out and remaining ones of the n training rows, or other indivisible units, by their hashes."""
        source, self._n = self.source, n
        if n < 10:
            raise DataError(
                f"{source.expected['train'][0]} has {n} {what}; at least 10 are needed, one of them for validation"
            )
        return validation_rows(n, source.held_out(n), source.salt)

    def _carved_rows(self, n: int) -> tuple[Tensor, Tensor]:
        """Held-out and remaining ones of the training file's n rows; a prefix of the latter is a fair sample."""
        return self._carved(n)

    def _places(self, rows: Tensor) -> Tensor:
        """Indices of these rows of the training file in the result of `_encoded`."""
        return rows

    def _place(
        self, files: "Mapping[str, Encoded]", amounts: Mapping[str, int], n_train: int | None, max_length: int
    ) -> None:
        """Build the splits from the files' rows and row counts."""
        source = self.source
        held_out, rest = self._carved_rows(amounts["train"])
        notes = [source.stand_in] if source.stand_in else []
        for split, (name, official) in source.expected.items():
            if not amounts[split]:
                raise DataError(f"{name} of {source.folder} has no rows to evaluate; copy it again")
            if official not in (None, amounts[split]):
                notes.append(f"{amounts[split]:,} of {official:,} rows of {name}")
        if n_train is not None:
            if not 1 <= n_train <= len(rest):
                raise ValueError(f"n_train={n_train} is out of range: it must be in [1, {len(rest)}]")
            if n_train < len(rest):
                notes.append(f"{n_train:,} of {len(rest):,} training rows")
        tables, first = {}, 0
        for split, file in files.items():
            tables[split] = file.table(first)
            first += len(file.ids)
        whole = tables.pop("train")
        others = {"val": whole[self._places(held_out)], **tables}
        by_length = {split: table[table[:, 1].argsort(stable=True)] for split, table in others.items()}
        self._tables = {"train": whole[self._places(rest[:n_train])], **by_length}
        self._lengths = {split: table[:, 1].clone() for split, table in self._tables.items()}
        self.sizes = {split: len(table) for split, table in self._tables.items()}
        self.lengths = self._lengths["train"]
        if self.group_names and (without := [split for split in by_length if not self._tables[split][:, 4].any()]):
            self.group_names = ()
            notes.append(f"no worst group, since no text of {' and '.join(without)} mentions an identity")
        self.part = "; ".join(notes) or None
        # A row is read at the width of its batch, so the last one needs padding after it.
        flat = np.concatenate([*(file.ids for file in files.values()), np.zeros(max_length, np.uint8)], dtype=np.int32)
        self._flat = torch.from_numpy(flat)
        self._columns, self._bits = torch.arange(max_length), torch.arange(len(self.group_names))

    def facts(self) -> dict[str, Any]:
        """Facts that identify rows and tokens: digests of files, held-out rows and tokenizer; vocabulary size."""
        return {
            "files": {self.source.expected[split][0]: value[:16] for split, value in self.digests.items()},
            "validation": split_hash(self._n, self.source.held_out(self._n), self.source.salt),
            "tokenizer": digest_of(self.tokenizer.to_str())[:16],
            "vocabulary": self.vocab_size,
        }

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move tokens and labels to the device."""
        self._tables = {split: table.to(device) for split, table in self._tables.items()}
        self._flat, self._columns, self._bits = (x.to(device) for x in (self._flat, self._columns, self._bits))

    def batch(self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None) -> TextBatch:
        """The texts of these rows, as wide as `randomness.width`, or else as the longest of them.

        Without that width, rows in a tensor that is not on the CPU cost a synchronisation.
        """
        width = None if randomness is None else randomness.width
        if width is None:
            width = int(self._lengths[split][rows.cpu() if isinstance(rows, Tensor) else rows].max())
        starts, lengths, second, labels, bits = self._tables[split][rows].unbind(1)
        columns = self._columns[:width]
        mask = columns < lengths[:, None]
        places = starts[:, None] + columns
        # `take` is ten times slower with more than one thread.
        ids = self._flat.index_select(0, places.view(-1)).view_as(places).long().masked_fill_(~mask, self.pad_id)
        types = (mask & (columns >= (lengths - second)[:, None])).long()
        groups = (bits[:, None] >> self._bits & 1).bool() if self.group_names else None
        return TextBatch(ids, mask, types, labels, groups)


def _groups(source: TextSource, paths: Iterable[Path]) -> tuple[str, ...]:
    """The source's group columns that all files have, which must be Parquet."""
    import pyarrow.parquet as pq

    names = set(source.groups)
    for path in paths if names else ():
        with readable(path):
            names &= set(pq.read_schema(path).names if path.suffix == ".parquet" else ())
    return tuple(name for name in source.groups if name in names)


def _trained_tokenizer(source: TextSource, paths: Sequence[Path], digest: str, size: int) -> Tokenizer:
    """A word-piece tokenizer of the training texts, equal on every machine; trained once, then cached."""

    def trained() -> str:
        table = source.read(paths, source.texts)[0][:_TRAINING_ROWS]
        texts = [text for name in source.texts for text in table[name].to_pylist()]
        return train_word_pieces(texts, size).to_str()

    return cached(("word pieces", digest, source.texts, size), Tokenizer.from_str, trained)


# -- cache ------------------------------------------------------------------------------------------------------------


class Encoded(NamedTuple):
    """The rows of a file as they are cached.

    Attributes:
        ids: tokens of all rows, concatenated, uint16 (int32 where ids are greater).
        ends: where each row ends in them, int64 of shape (n,).
        second: how many of a row's tokens, at its end, belong to the second text, uint16 of shape (n,).
        labels: of shape (n,).
        groups: bit i is set where a row mentions the i-th group, uint8 of shape (n,).
    """

    ids: NDArray[Any]
    ends: NDArray[np.int64]
    second: NDArray[np.uint16]
    labels: NDArray[Any]
    groups: NDArray[np.uint8]

    def table(self, first: int) -> Tensor:
        """Start, length, tokens of the second text, label and groups of each row, int64 of shape (n, 5).

        Starts are among the tokens of all files, with this file's from `first` on.
        """
        lengths = np.diff(self.ends, prepend=0)
        columns = [first + self.ends - lengths, lengths, self.second, self.labels, self.groups]
        return torch.from_numpy(np.stack(columns, axis=1, dtype=np.int64))


def tokenised(
    names: Sequence[str],
    paths: Sequence[Path],
    digest: str,
    meaning: Any,
    tokenizer: Tokenizer,
    encode: Callable[[], tuple[Mapping[str, NDArray[Any]], int, int]],
) -> tuple[Mapping[str, NDArray[Any]], int]:
    """The arrays that `encode` computes from a split's texts, and its rows, through the cache (`cached_arrays`).

    `encode` also returns the numbers of rows, and of rows left out. `meaning` has the plain values that the arrays
    depend on besides files and tokenizer, whose truncation counts.
    """

    def make() -> tuple[Mapping[str, NDArray[Any]], dict[str, Any]]:
        assert tokenizer.truncation is not None
        arrays, rows, dropped = encode()
        sizes = {"vocabulary": tokenizer.get_vocab_size(), "max_length": tokenizer.truncation["max_length"]}
        return arrays, {**sizes, "rows": rows, "dropped": dropped}

    arrays, record = cached_arrays(paths[0], digest, (meaning, tokenizer.to_str()), names, make)
    return arrays, record["rows"]


def kind_of(tokenizer: Tokenizer) -> Any:
    """The smallest type that holds all tokens."""
    return np.uint16 if max(tokenizer.get_vocab().values()) < 2**16 else np.int32


def _encode(
    source: TextSource, paths: Sequence[Path], groups: Sequence[str], tokenizer: Tokenizer
) -> tuple[Mapping[str, NDArray[Any]], int, int]:
    table, dropped = source.read(paths, (*source.texts, source.label, *groups))
    labels = table[source.label].to_numpy().astype(np.min_scalar_type(source.num_classes - 1))
    mentions = np.zeros(len(table), np.uint8)
    for i, name in enumerate(groups):
        mentions |= (table[name].to_numpy() >= 0.5).astype(np.uint8) << i  # a missing share counts as 0
    kind = kind_of(tokenizer)
    ids: list[NDArray[Any]] = []
    lengths: list[int] = []
    second: list[int] = []
    for start in range(0, len(table), _CHUNK):
        columns = [table[name][start : start + _CHUNK].to_pylist() for name in source.texts]
        rows: Any = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        encodings = tokenizer.encode_batch_fast(rows)
        lengths += map(len, encodings)
        second += (sum(text.type_ids) for text in encodings) if len(columns) > 1 else [0] * len(encodings)
        ids.append(np.fromiter(chain.from_iterable(text.ids for text in encodings), kind))
    flat = np.concatenate([np.zeros(0, kind), *ids])
    encoded = Encoded(flat, np.cumsum(lengths, dtype=np.int64), np.array(second, np.uint16), labels, mentions)
    return encoded._asdict(), len(table), dropped


# -- data sets --------------------------------------------------------------------------------------------------------


class MNLIData(TextData):
    """Multi-genre natural language inference (Williams, Nangia, Bowman 2018) from tables in `<root>/mnli`.

    Labels are 0 entailment, 1 neutral, 2 contradiction. The labels of the test set are hidden, so results are reported
    on the validation set of the training genres, and in addition on that of other genres ("mismatched").
    """

    report = "matched"
    also = ("mismatched",)
    SOURCES = (MNLI,)


class SST2Data(TextData):
    """The Stanford sentiment treebank with two classes, as in GLUE, from tables in `<root>/sst2`.

    Labels are 0 negative, 1 positive. Training rows are phrases, so some that are held out for selection are parts of
    training sentences; results are reported on GLUE's validation set of whole sentences.
    """

    report = "validation"
    SOURCES = (SST2,)


class CivilCommentsData(TextData):
    """Civil Comments (Borkan et al. 2019) from tables in `<root>/civil_comments`.

    A comment is toxic, label 1, where at least half of its raters said so (`toxicity` >= 0.5). Identity columns, if
    present, are read likewise. Jigsaw's comments in `<root>/jigsaw_toxicity` stand in for missing Civil Comments.
    """

    SOURCES = (CIVIL_COMMENTS, JIGSAW)
