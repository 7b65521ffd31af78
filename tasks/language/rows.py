"""Labelled texts of the user, given as rows."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tasks.core.cache import digest_of
from tasks.core.files import DataError, splits_of
from tasks.language.labelled_text import TextData
from tasks.language.sources import TextSource

if TYPE_CHECKING:
    import pyarrow as pa


class RowTexts(TextData):
    """Labelled texts, or pairs of them, from the rows of `samples`; validation is carved from the training rows.

    Attributes:
        name: determines the validation rows, and appears in messages.
        classes: labels are in [0, classes).
        n_val: training rows kept for validation; a tenth of the rows where that is less.
    """

    report = "test"
    SOURCES: ClassVar = {}  # the suite knows no files for them in the data folder
    name: ClassVar[str]
    classes: ClassVar[int]
    n_val: ClassVar[int] = 5_000

    @staticmethod
    @abstractmethod
    def samples(root: Path) -> Mapping[str, Sequence[tuple[Any, ...]]]:
        """Rows of "train" and of "test": (text, label), or (text, second text, label), with whole numbers as labels."""

    def _open(self, root: Path, dataset: str | None) -> TextSource:
        import pyarrow as pa

        rows = self._checked(splits_of(self.name, self.samples, root))
        names = ("text", "label") if len(rows["train"][0]) == 2 else ("text", "second", "label")
        self._rows = {
            split: pa.table(dict(zip(names, zip(*of_split, strict=True), strict=True)))
            for split, of_split in rows.items()
        }
        self.digests = {split: digest_of(table.to_pydict()) for split, table in self._rows.items()}
        files = {split: (f"{split}.parquet", None) for split in ("train", "test")}
        return TextSource(".", files, names[:-1], "label", self.classes, self.n_val, self.name)

    def _read(self, split: str, names: Iterable[str]) -> "tuple[pa.Table, int]":
        return self._rows[split].select([*names]), 0

    def _checked(self, splits: Mapping[str, Any]) -> Mapping[str, Sequence[tuple[Any, ...]]]:
        """The rows, after a check of their number and values."""
        counts = {split: len(rows) for split, rows in splits.items()}
        if self.n_val < 1 or counts["train"] < 10 or not counts["test"]:
            what = f"there are {counts['train']} training and {counts['test']} test rows, n_val={self.n_val}"
            raise DataError(f"{self.name}: {what}; at least 10, 1 and 1 are needed")
        first = splits["train"][0]
        width = len(first) if isinstance(first, tuple | list) and len(first) == 3 else 2
        for split, rows in splits.items():
            for i, row in enumerate(rows):
                *texts, label = row if isinstance(row, tuple | list) and len(row) == width else (None,)
                is_label = isinstance(label, int | np.integer) and 0 <= label < self.classes
                if not (texts and is_label and all(isinstance(text, str) for text in texts)):
                    how = f"make all rows (text, label), or all (text, second text, label), label < {self.classes}"
                    raise DataError(f"{self.name}: {split} row {i} is {repr(row)[:80]}; {how}")
        return splits
