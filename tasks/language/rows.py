"""Labelled texts of the user, given as rows."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np

from tasks.core.files import DataError, splits_of
from tasks.language.labelled_text import TextData
from tasks.language.sources import TextSource

_TEXTS, _LABEL = ("text", "second"), "label"


class RowTexts(TextData):
    """Labelled texts, or pairs of them, from the rows of `samples`; validation is carved from the training rows.

    Args:
        root: the data folder.
        seed: unused; the texts are the same for every seed.
        model: whose tokenizer is used: a local folder, or a name on the Hugging Face Hub.
        scratch: train a word-piece vocabulary on the training texts, unless `model` is a local folder with a tokenizer.
        vocab: tokens of a vocabulary from scratch, in [100, 65536]; fewer if the texts have too few words.
        max_length: tokens of a row, special ones included, in [8, 65536]; longer rows are truncated.
        n_train: use only this many of the training rows, the first in the order of their hashes; all by default.

    Attributes:
        name: determines the validation rows, and appears in messages.
        classes: labels are in [0, classes).
        n_val: training rows kept for validation; a tenth of the rows where that is less.
    """

    report = "test"
    SOURCES = ()  # the suite knows no files for them in the data folder
    name: ClassVar[str]
    classes: ClassVar[int]
    n_val: ClassVar[int] = 5_000

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
    ) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = splits_of(self.name, self.samples, root)
        for split, given in rows.items():
            if not isinstance(given, list | tuple):
                raise DataError(f"{self.name}: {split} is of type {type(given).__name__}; give a list of rows")
        columns = self._columns_of(rows)
        files = {split: (f"{split}.parquet", None) for split in ("train", "test")}
        self.SOURCES = (TextSource(".", files, columns[:-1], _LABEL, self.classes, self.n_val, self.name),)
        with TemporaryDirectory() as folder:  # the cache is keyed by the files' content
            for split, given in rows.items():
                values = dict(zip(columns, zip(*given, strict=True), strict=True))
                pq.write_table(pa.table(values), Path(folder) / f"{split}.parquet")
            super().__init__(
                Path(folder), seed, model=model, scratch=scratch, vocab=vocab, max_length=max_length, n_train=n_train
            )

    @staticmethod
    @abstractmethod
    def samples(root: Path) -> Mapping[str, Sequence[tuple[Any, ...]]]:
        """Rows of "train" and of "test": (text, label), or (text, second text, label), with whole numbers as labels."""

    def _columns_of(self, rows: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
        """The columns that all rows have."""
        if self.n_val < 1:
            raise DataError(f"{self.name}: n_val={self.n_val}; at least one row is needed for validation")
        if len(rows["train"]) < 10 or not rows["test"]:
            raise DataError(
                f"{self.name}: there are {len(rows['train'])} training and {len(rows['test'])} test rows; at least 10"
                " and 1 are needed, since a tenth of the training rows is used for validation"
            )
        first = rows["train"][0]
        width = len(first) if isinstance(first, tuple | list) and len(first) in (2, 3) else 2
        for split, given in rows.items():
            for i, row in enumerate(given):
                fits = isinstance(row, tuple | list) and len(row) == width
                if not fits or not all(isinstance(text, str) for text in row[:-1]):
                    raise DataError(
                        f"{self.name}: {split} row {i} is {repr(row)[:80]}; make all rows (text, label), or all"
                        " (text, second text, label)"
                    )
                label = row[-1]
                if not isinstance(label, int | np.integer) or not 0 <= label < self.classes:
                    raise DataError(
                        f"{self.name}: {split} row {i} has the label {label!r}; it must be an integer in"
                        f" [0, {self.classes - 1}]; correct it, or set the number of classes"
                    )
        return (*_TEXTS[: width - 1], _LABEL)
