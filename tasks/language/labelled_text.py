"""Text classification data: texts that are tokenised once, cached, and live on the device as one flat tensor of tokens.

A batch is gathered on the device and padded to its longest row. In training rows are sorted by length within pools of
batches (`tasks.core.order.BatchOrder`), so that little of a batch is padding.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from optimizers.step_size import check_range
from tasks.core.cache import Entry, cached
from tasks.core.data import TaskData
from tasks.core.files import DataError, digest_of
from tasks.core.order import split_hash, validation_rows
from tasks.core.randomness import BatchRandomness
from tasks.core.tables import sha256
from tasks.language.sources import MNLI, SST2, TOXICITY, TextSource, find
from tasks.language.tokenizer import (
    LEAST_VOCABULARY,
    has_tokenizer,
    load_tokenizer,
    named_folder,
    pad_id_of,
    train_word_pieces,
)

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK = 20_000  # rows tokenised at once: the tokenizer's output takes a hundred times the memory of its ids
_TRAINING_ROWS = 200_000  # for training a vocabulary, at most
Rows = Mapping[str, NDArray[Any]]  # of a file: see `TextData._encode`


class TextBatch(NamedTuple):
    """Tokenised texts, or pairs of them, with labels; all but the mask are int64."""

    ids: Tensor  # tokens, (rows, width), padded with the tokenizer's pad id
    mask: Tensor  # True at tokens, (rows, width)
    types: Tensor  # 0 at the first text and 1 at the second, where the tokenizer distinguishes them, (rows, width)
    labels: Tensor  # (rows,)


class TextData(TaskData):
    """Labelled texts from tables; validation is carved from the training file.

    Rows of "train" are in an order decided by hashes, so that a prefix is a fair sample; rows of other splits are in
    the order of their lengths, so that little of a batch is padding.

    Args:
        model: whose tokenizer is used: a local folder, or a name on the Hugging Face Hub.
        scratch: train a word-piece vocabulary on the training texts, unless `model` is a local folder with a tokenizer.
        vocab: tokens of a vocabulary from scratch, in [100, 65536]; fewer if the texts have too few words.
        max_length: tokens of a row, special ones included, in [8, 65536]; longer rows are truncated.
        n_train: use only this many of the training rows, the first in the order of their hashes; all by default.
        dataset: one of the task's data sets, if it has several (`TaskSpec.datasets`); by default the first that exists.

    Attributes:
        SOURCES: the data sets that `dataset` chooses from.
        digests: of the texts by split.
        vocab_size: one more than the tokenizer's largest id.
    """

    SOURCES: ClassVar[Mapping[str, TextSource]]
    digests: Mapping[str, str]
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
        source = self.source = self._open(root, dataset)
        if scratch and not has_tokenizer(folder := named_folder(model)):
            if folder.is_dir():
                raise DataError(f"there is no tokenizer in {model}; remove --task.model to train one")
            self.tokenizer = self._trained_tokenizer(vocab)
        else:
            self.tokenizer = load_tokenizer(model)
        self.pad_id = pad_id_of(self.tokenizer)
        self.tokenizer.no_padding()
        self._truncate(max_length)
        if not self.tokenizer.encode("").ids:
            raise DataError(f"the tokenizer of {model} does not mark the beginning of a text; use another model")
        self.vocab_size = 1 + max(self.tokenizer.get_vocab().values())
        self.num_classes = source.num_classes
        self._kind: Any = np.uint16 if self.vocab_size <= 2**16 else np.int32  # the smallest that holds all tokens
        self._dropped = dict[str, int]()
        self._place({split: self._encoded(split) for split in source.expected}, n_train, max_length)

    def _open(self, root: Path, dataset: str | None) -> TextSource:
        """The data set, whose files exist; sets the digests."""
        source: TextSource = find(self.SOURCES, root, dataset)
        source.require(root)
        self._files = source.files(root)
        self.digests = {split: sha256(*paths) for split, paths in self._files.items()}
        return source

    def _read(self, split: str, names: Iterable[str]) -> "tuple[pa.Table, int]":
        """Columns of a split, and how many rows were left out."""
        return self.source.read(self._files[split], names)

    def _trained_tokenizer(self, size: int) -> Tokenizer:
        """A word-piece tokenizer of the training texts, equal on every machine; trained once, then cached."""

        def make() -> Entry:
            table = self._read("train", self.source.texts)[0][:_TRAINING_ROWS]
            texts = [text for name in self.source.texts for text in table[name].to_pylist()]
            return {}, {"tokenizer": train_word_pieces(texts, size).to_str()}

        _, record = cached(self.digests["train"], ("word pieces", self.source.texts, size), make)
        return Tokenizer.from_str(record["tokenizer"])

    def _truncate(self, max_length: int) -> None:
        self.tokenizer.enable_truncation(max_length)

    def _encoded(self, split: str) -> Rows:
        """The result of `_encode`, through the cache."""
        source, tokenizer = self.source, self.tokenizer

        def make() -> Entry:
            table, dropped = self._read(split, source.columns)
            return self._encode(split, table), {"dropped": dropped}

        meaning = source.columns, source.num_classes, source.threshold, tokenizer.to_str()
        rows, record = cached(self.digests[split], meaning, make)
        self._dropped[source.expected[split][0]] = record["dropped"]
        return rows

    def _encode(self, split: str, table: "pa.Table") -> Rows:
        """The rows of a split, by name.

        - `ids`: tokens of all rows, concatenated, uint16 (int32 where ids are greater);
        - `ends`: where each row ends in them, int64 of shape (n,);
        - `second`: how many of a row's tokens, at its end, belong to the second text, uint16 of shape (n,);
        - `labels`: of shape (n,), or (n, k) for k labels of a row.
        """
        source, kind = self.source, self._kind
        parts, lengths, second = [np.zeros(0, kind)], list[int](), list[int]()
        for start in range(0, len(table), _CHUNK):
            columns = [table[name][start : start + _CHUNK].to_pylist() for name in source.texts]
            rows: Any = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
            encodings = self.tokenizer.encode_batch_fast(rows)
            lengths += map(len, encodings)
            second += (sum(text.type_ids) for text in encodings) if len(columns) > 1 else [0] * len(encodings)
            parts.append(np.fromiter(chain.from_iterable(text.ids for text in encodings), kind))
        return {
            "ids": np.concatenate(parts),
            "ends": np.cumsum(lengths, dtype=np.int64),
            "second": np.array(second, np.uint16),
            "labels": table[source.label].to_numpy().astype(np.min_scalar_type(source.num_classes - 1)),
        }

    def _carved(self, n: int, what: str = "rows") -> tuple[Tensor, Tensor]:
        """Held-out and remaining ones of the n training rows, by their hashes; a prefix of the latter is fair."""
        source, self._n = self.source, n
        if n < 10:
            raise DataError(f"{source.expected['train'][0]} has {n} {what}; at least 10 are needed")
        return validation_rows(n, source.held_out(n), source.salt)

    def _places(self, rows: Tensor) -> Tensor:
        """Indices of these rows of the training file in the result of `_encoded`."""
        return rows

    def _place(self, files: Mapping[str, Rows], n_train: int | None, length: int) -> None:
        """Build the splits from the files' rows."""
        source, amounts = self.source, {k: len(file.get("articles", file["ends"])) for k, file in files.items()}
        held_out, rest = self._carved(amounts["train"])
        notes = [source.stand_in] if source.stand_in else []
        for split, (name, official) in source.expected.items():
            if not amounts[split]:
                raise DataError(f"{name} of {source.folder} has no rows to evaluate; copy it again")
            if official not in (None, amounts[split]):
                notes.append(f"{amounts[split]:,} of {official:,} rows of {name}")
        if n_train is not None:
            check_range("n_train", n_train, 1, len(rest))
            if n_train < len(rest):
                notes.append(f"{n_train:,} of {len(rest):,} training rows")
        self.part = "; ".join(notes) or None
        tables, first = dict[str, Tensor](), 0
        for split, file in files.items():
            # Start among the tokens of all files, length, tokens of the second text, labels.
            lengths = np.diff(file["ends"], prepend=0)
            columns = first + file["ends"] - lengths, lengths, file["second"], file["labels"]
            tables[split] = torch.from_numpy(np.column_stack(columns).astype(np.int64))
            first += len(file["ids"])
        whole = tables.pop("train")
        others = {"val": whole[self._places(held_out)], **tables}
        by_length = {split: table[table[:, 1].argsort(stable=True)] for split, table in others.items()}
        self._tables = {"train": whole[self._places(rest[:n_train])], **by_length}
        self._lengths = {split: table[:, 1].clone() for split, table in self._tables.items()}
        self.sizes = {split: len(table) for split, table in self._tables.items()}
        self.lengths = self._lengths["train"]
        # A row is read at the width of its batch, so the last one needs padding after it.
        ids = [*(file["ids"] for file in files.values()), np.zeros(length, np.uint8)]
        self._flat = torch.from_numpy(np.concatenate(ids, dtype=np.int32))
        self._columns = torch.arange(length)

    def facts(self) -> dict[str, Any]:
        """Facts that identify rows and tokens, and by file the number of rows left out for want of a label, if any."""
        dropped = {name: n for name, n in self._dropped.items() if n}
        return ({"unlabelled": dropped} if dropped else {}) | {
            "files": {self.source.expected[split][0]: value[:16] for split, value in self.digests.items()},
            "validation": split_hash(self._n, self.source.held_out(self._n), self.source.salt),
            "tokenizer": digest_of(self.tokenizer.to_str())[:16],
            "vocabulary": self.vocab_size,
        }

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move tokens and labels to the device."""
        self._tables = {split: table.to(device) for split, table in self._tables.items()}
        self._flat, self._columns = self._flat.to(device), self._columns.to(device)

    def batch(self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None) -> TextBatch:
        """The texts of these rows, as wide as `randomness.width`, or else as the longest of them.

        Without that width, rows in a tensor that is not on the CPU cost a synchronisation.
        """
        width = None if randomness is None else randomness.width
        if width is None:
            width = int(self._lengths[split][rows.cpu() if isinstance(rows, Tensor) else rows].max())
        table = self._tables[split][rows]
        starts, lengths, second = table[:, :3].unbind(1)
        columns = self._columns[:width]
        mask = columns < lengths[:, None]
        places = starts[:, None] + columns
        # `take` is ten times slower with more than one thread.
        ids = self._flat.index_select(0, places.view(-1)).view_as(places).long().masked_fill_(~mask, self.pad_id)
        return TextBatch(ids, mask, (mask & (columns >= (lengths - second)[:, None])).long(), table[:, 3:].squeeze(1))


class MNLIData(TextData):
    """Multi-genre natural language inference (Williams, Nangia, Bowman 2018) from tables in `<root>/mnli`.

    Labels are 0 entailment, 1 neutral, 2 contradiction. The labels of the test set are hidden, so results are reported
    on the validation set of the training genres, and in addition on that of other genres ("mismatched").
    """

    report = "matched"
    also = ("mismatched",)
    SOURCES: ClassVar = {"mnli": MNLI}


class SST2Data(TextData):
    """The Stanford sentiment treebank with two classes, as in GLUE, from tables in `<root>/sst2`.

    Labels are 0 negative, 1 positive. Training rows are phrases, so some that are held out for selection are parts of
    training sentences; results are reported on GLUE's validation set of whole sentences.
    """

    report = "validation"
    SOURCES: ClassVar = {"sst2": SST2}


class CivilCommentsData(TextData):
    """Civil Comments (Borkan et al. 2019) from tables in `<root>/civil_comments`.

    A comment is toxic, label 1, where at least half of its raters said so (`toxicity` >= 0.5). Jigsaw's comments in
    `<root>/jigsaw_toxicity` stand in for missing Civil Comments.
    """

    SOURCES = TOXICITY
