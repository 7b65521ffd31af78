"""Tasks on a user's data: images or texts with labels, with the family's model, budget, batch and metric."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tasks.core.files import DataError, digest_of, splits_of
from tasks.core.spec import TaskSpec
from tasks.language.labelled_text import TextData
from tasks.language.sources import TextSource
from tasks.registry import image_spec, text_spec
from tasks.vision.images import ImageData, Labelled

if TYPE_CHECKING:
    import pyarrow as pa


def image_task(
    name: str, samples: Callable[[Path], Mapping[str, Labelled]], *, classes: int, n_val: int | None = None, **spec: Any
) -> TaskSpec:
    """A ViT-small that classifies images.

    Its options are those of `mnist`. Validation images are carved from the training set by the hashes of their rows
    (`tasks.core.order`).

    Args:
        name: of the task, as boards show it. It determines which images are kept for validation.
        samples: takes the data folder (`--data`) and returns {"train": (images, labels), "test": (images, labels)}.
            Images are uint8 of shape (N, H, W) or (N, H, W, C) with C in [1, 4], labels integers of shape (N,):
            arrays, or paths of IDX files, compressed (.gz) or not. A run with other samples fails before it starts,
            with a `tasks.DataError` that names row and value.
        classes: labels are in [0, classes).
        n_val: training images kept for validation, in [1, N); by default a tenth of them, but at most 5,000.
        spec: other attributes of the `TaskSpec`, in place of those of the family: `title`, `target`, `budget`.
    """
    data = type("Images", (ImageData,), _attributes(name, samples, classes, n_val))
    return image_spec(**{"name": name, "title": f"ViT-small on {name}", "data": data, **spec})


def text_task(
    name: str,
    rows: Callable[[Path], Mapping[str, Sequence[tuple[Any, ...]]]],
    *,
    classes: int,
    n_val: int = 5_000,
    **spec: Any,
) -> TaskSpec:
    """A small BERT from random weights that classifies texts, or pairs of texts.

    Its options are those of `sst2`, by default `--task.scratch true`; `--task.preset pretrained` fine-tunes
    `--task.model`. Validation rows are carved from the training rows by their hashes (`tasks.core.order`).

    Args:
        name: of the task, as boards show it. It determines which rows are kept for validation.
        rows: takes the data folder (`--data`) and returns {"train": rows, "test": rows}, each (text, label), or each
            (text, second text, label), with integers as labels; at least 10 and 1 of them. A run with other rows fails
            before it starts, with a `tasks.DataError` that names row and value.
        classes: labels are in [0, classes).
        n_val: training rows kept for validation, at least 1; a tenth of the rows where that is less.
        spec: other attributes of the `TaskSpec`, in place of those of the family: `title`, `target`, `budget`.
            `derived` has `init_std`, unless `module` is another.
    """
    data = type("Texts", (RowTexts,), _attributes(name, rows, classes, n_val))
    presets = {"scratch": {"scratch": True}, "pretrained": {"scratch": False}}
    values = {"name": name, "title": f"BERT on {name}", "data": data, "presets": presets}
    values |= {"derived": {}} if "module" in spec else {}  # another module may lack the options
    return text_spec(**{**values, **spec})


def _attributes(name: str, samples: Callable[[Path], Any], classes: int, n_val: int | None) -> dict[str, Any]:
    return {"name": name, "samples": staticmethod(samples), "classes": classes, "n_val": n_val}


class RowTexts(TextData):
    """Labelled texts, or pairs of them: `samples`, `name`, `classes` and `n_val` are those of `tasks.text_task`."""

    report = "test"
    SOURCES: ClassVar = {}  # the suite knows no files for them in the data folder
    samples: ClassVar[Any]
    name: ClassVar[str]
    classes: ClassVar[int]
    n_val: ClassVar[int]

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
