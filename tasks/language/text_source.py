"""Locations of labelled texts, and the texts, labels and identities in their Parquet files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.files import DataError
from tasks.core.layouts import Columns, as_parquet, find_files, is_official
from tasks.core.tables import Hub, columns_of, or_part, readable, require_tables


@dataclass(frozen=True)
class TextSource:
    """Location of a data set of labelled texts, and the meaning of its columns.

    Attributes:
        folder: below the data folder.
        expected: by split, the name of its Parquet file and the rows of the official one, None if unknown;
            "train" is always present; a file NAME_part replaces a missing one.
        texts: columns with the texts, one or two.
        label: column with the label.
        num_classes: labels are in [0, num_classes).
        n_val: training rows kept for validation; a tenth of the rows where that is less.
        salt: name that determines them (`tasks.core.split.validation_rows`).
        threshold: the label column is a share in [0, 1], and the label is 1 from this share on; None if the column is
            the label.
        groups: columns with the share of raters who saw an identity mentioned, at most 8; half or more counts. Only
            columns that all files have are used.
        hub: where to fetch it.
        stand_in: note in results if these stand in for other data.
        more: other required columns.
        also: other folders in which people have these files, such as GLUE's own.
        stems: by split, other names of its file, without ending.
        renamed: our columns by their names in such files.
        classes: the labels in words.
    """

    folder: str
    expected: Mapping[str, tuple[str, int | None]]
    texts: tuple[str, ...]
    label: str
    num_classes: int
    n_val: int
    salt: str
    threshold: float | None = None
    groups: tuple[str, ...] = ()
    hub: Hub | None = None
    stand_in: str = ""
    more: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    stems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The required columns."""
        return (*self.texts, self.label, *self.more)

    @property
    def layout(self) -> Columns:
        """The columns, and their forms in other files."""
        return Columns(self.columns, self.renamed, self.label * bool(self.classes), self.classes)

    def files(self, root: Path) -> dict[str, list[Path]]:
        """The files of each split in this data folder, in any layout; for a missing one, where it is expected."""
        folders = [root / name / inner for name in (self.folder, *self.also) for inner in ("", "data")]
        found = {}
        for split, (name, _) in self.expected.items():
            official = or_part(root / self.folder / name)
            stems = (Path(name).stem, *self.stems.get(split, ()))
            found[split] = [official] if official.is_file() else find_files(folders, stems) or [official]
        return found

    def paths(self, root: Path) -> dict[str, Path]:
        """A Parquet file for each split: the official one, or one with the rows of other files, in the cache."""
        paths, columns = {}, self.layout
        for split, files in self.files(root).items():
            as_is = len(files) == 1 and (not files[0].is_file() or is_official(files[0], columns))
            paths[split] = files[0] if as_is else as_parquet(files, columns)
        return paths

    def require(self, root: Path) -> None:
        """Make sure that the files exist; fetch missing ones from the Hub."""
        require_tables(self.paths(root), self.columns, self.hub)

    def held_out(self, n: int) -> int:
        """Number of the n training rows kept for validation."""
        return min(self.n_val, n // 10)


def groups_of(source: TextSource, paths: Iterable[Path]) -> tuple[str, ...]:
    """The source's group columns that all files have."""
    columns = [set(columns_of(path)) for path in paths] if source.groups else []
    return tuple(name for name in source.groups if all(name in names for names in columns))


def read_table(source: TextSource, path: Path, names: Iterable[str]) -> Any:
    """Columns of a file, as a pyarrow table."""
    import pyarrow.parquet as pq

    columns, names = columns_of(path), list(names)
    for name in names:
        if name not in columns:
            hint = f", as {source.hub.name} on the Hugging Face Hub does" if source.hub else ""
            raise DataError(
                f"{path} has no column {name!r}, only {', '.join(columns)}; it must have {', '.join(names)}{hint}"
            )
    with readable(path):
        return pq.read_table(path, columns=names)


def values_of(path: Path, table: Any, name: str, rows: slice = slice(None)) -> list[Any]:
    """Values of some rows of a table."""
    try:
        return table[name][rows].to_pylist()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: column {name!r} has a text that is not UTF-8 ({error.reason}); write it again"
        ) from None


def texts_of(path: Path, table: Any, name: str, rows: slice = slice(None)) -> list[str]:
    """Texts of some rows of a table."""
    texts = values_of(path, table, name, rows)
    wrong = next((i for i, text in enumerate(texts) if not isinstance(text, str)), None)
    if wrong is not None:
        row = wrong + (rows.start or 0)
        raise DataError(f"{path}: row {row} has no text in column {name!r} but {texts[wrong]!r}; remove such rows")
    return texts


def labels_of(source: TextSource, path: Path, table: Any) -> NDArray[Any]:
    """Labels of all rows, in the smallest unsigned type for all classes.

    Rows with a hidden label (-1 on the Hub) are refused, not silently dropped.
    """
    values, high = table[source.label].to_numpy(), source.num_classes - 1 if source.threshold is None else 1
    if values.dtype.kind not in "buif":
        raise DataError(
            f"{path}: column {source.label!r} holds {table[source.label].type}; it must hold numbers in [0, {high}]"
        )
    legal = (values >= 0) & (values <= high)  # NaN, also for a missing one, is not
    if source.threshold is None:
        legal &= values == np.floor(values)
    if not legal.all():
        row = int(legal.argmin())
        kind = "an integer" if source.threshold is None else "a share"
        raise DataError(
            f"{path}: row {row} has {source.label} {values[row]:g}; it must be {kind} in [0, {high}];"
            " remove such rows (-1 marks a hidden label)"
        )
    return (values if source.threshold is None else values >= source.threshold).astype(np.min_scalar_type(high))


def mentions_of(path: Path, table: Any, names: Sequence[str]) -> NDArray[np.uint8]:
    """The groups of each row as bits; a missing share counts as 0."""
    bits = np.zeros(len(table), np.uint8)
    for i, name in enumerate(names):
        values = table[name].to_numpy()
        if values.dtype.kind not in "buif":
            raise DataError(f"{path}: column {name!r} holds {table[name].type}; it must hold shares in [0, 1]")
        bits |= (values >= 0.5).astype(np.uint8) << i
    return bits
