"""The tables of a block: one row of float64 values per step during training; one Parquet file at the end.

During training, `NAME.raw` has a line with the names, then rows of float64: step, values (L, M). A killed process
leaves a valid table, except for a truncated last row. At the end, `NAME.parquet` has the rows of each run: run_id,
step, values, sorted by run and step.
"""

import json
import math
import os
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.errors import RunFailed
from bench.store.files import replacing
from bench.store.load import Damaged, is_there

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

TABLES = ("measurements", "curve")  # a column in both is read from the first
CURVE_FIELDS = ("step", "loss", "grad_norm", "raw_step", "applied_step")

ROW_GROUP = 10_000
"""Rows of a row group, or one run if longer: a run of 1,000 steps is read in 3 ms; with 50,000 rows it takes 7."""
MISSING = "it does not exist, or is not a regular file"
"""What is wrong with the table of a run that must have one."""
_MAGIC = b"PAR1"  # first and last bytes of a Parquet file; the footer's length precedes the last ones

Columns = dict[str, "NDArray[np.float64]"]
"""A run's table: columns by name, NaN for non-finite values; `step` comes first and ascends."""


class RawTable:
    """A raw table, to which the training process appends.

    Args:
        path: of the file; existing rows are kept.
        runs: how many train together, L.
        mode: `rb` only reads.

    Attributes:
        names: of the M values; empty before the first row.
        last_step: step of the last row; 0 without a valid one.
    """

    def __init__(self, path: Path, runs: int, mode: Literal["a+b", "rb"] = "a+b") -> None:
        self.path, self.runs = path, runs
        self._file = path.open(mode)
        self._file.seek(0)
        header = self._file.readline()
        names: Any = []
        with suppress(ValueError):
            names = json.loads(header) if header.endswith(b"\n") else []
        good = isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)
        self.names, self._offset = (tuple(names), len(header)) if good else ((), 0)
        rows = self._count()
        if mode != "rb":
            self._cut(rows)  # the last row may be truncated
        last = self._step(rows - 1) if rows else 0.0
        self.last_step = int(last) if 0 <= last < 2**53 else 0

    def append(self, names: Sequence[str], steps: Sequence[int], values: "NDArray[np.float64]") -> None:
        """Append values of shape (S, L, M) of M names at S ascending steps; the first call writes the names.

        Raises:
            RunFailed: the names are invalid or differ from those in the file, or the file was changed or deleted.
            OSError: it cannot be written.
        """
        import numpy as np

        if not names:
            return
        self._refuse_if_changed()
        if not self.names:
            header = json.dumps(names)
            if not _can_be_columns(names):
                raise RunFailed(
                    f"a table cannot have the columns {', '.join(names)[:500]}: names must differ in more than"
                    " capitals, and step, run_id and filename are reserved; rename the task's measurements"
                )
            padding = " " * (-(len(header) + 1) % 8)  # aligns the numbers
            self.names = tuple(names)
            self._size = self._offset = self._file.write(f"{header}{padding}\n".encode())
        if tuple(names) != self.names:
            raise RunFailed(
                f"{self.path} began with the columns {', '.join(self.names)}, and the task now gives"
                f" {', '.join(names)}; train again with --rerun"
            )
        rows = np.empty((len(steps), self._width))
        rows[:, 0], rows[:, 1:] = steps, values.reshape(len(steps), self._width - 1)
        self._size += self._file.write(rows.data)
        self._file.flush()
        self.last_step = max(steps, default=self.last_step)

    def truncate(self, steps: int) -> None:
        """Remove the rows after this step; further rows follow it."""
        self._cut(bisect_right(range(self._count()), steps, key=self._step))
        self.last_step = steps

    def read(self, which: int) -> Columns:
        """The rows of the run with this index; empty before the first one.

        Raises:
            Damaged: the names or steps are invalid.
            OSError: they cannot be read.
        """
        import numpy as np

        if not self.names:
            return {}
        _check_curve(self.path, self.names)
        rows = self._rows()
        _check_steps(self.path, rows[:, 0])
        first = 1 + which * len(self.names)
        columns = np.hstack([rows[:, :1], rows[:, first : first + len(self.names)]]).T.copy()
        columns[~np.isfinite(columns)] = np.nan
        return dict(zip(("step", *self.names), columns, strict=True))

    def write(self, path: Path, runs: Sequence[tuple[str, int, int]]) -> dict[str, int]:
        """Write a Parquet file, flushed to disk, and return the number of rows by run id; nothing without rows.

        Args:
            path: of the Parquet file.
            runs: id, index in the block, and last step to keep.

        Raises:
            OSError: a file cannot be read or written.
        """
        if not self.names:
            return {}
        rows = self._rows()
        tables = dict[str, Columns]()
        for run_id, place, last in runs:
            own = rows[: rows[:, 0].searchsorted(last, "right")]
            values = own[:, 1 + place * len(self.names) :]
            tables[run_id] = {"step": own[:, 0], **{name: values[:, i] for i, name in enumerate(self.names)}}
        write_columns(path, tables)
        return {run_id: len(table["step"]) for run_id, table in tables.items()}

    def sync(self) -> None:
        """Flush all rows to disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file without removing it."""
        self._file.close()

    def _rows(self) -> "NDArray[np.float64]":
        """All complete rows, of shape (S, 1 + L M)."""
        import numpy as np

        rows = np.fromfile(self.path, np.float64, offset=self._offset)
        return rows[: len(rows) // self._width * self._width].reshape(-1, self._width)

    @property
    def _width(self) -> int:
        return 1 + self.runs * len(self.names)

    def _count(self) -> int:
        size = os.fstat(self._file.fileno()).st_size - self._offset
        return size // (8 * self._width) if self.names else 0

    def _step(self, row: int) -> float:
        text = os.pread(self._file.fileno(), 8, self._offset + 8 * self._width * row)
        return struct.unpack("=d", text)[0] if len(text) == 8 else math.nan

    def _cut(self, rows: int) -> None:
        self._size = self._offset + 8 * self._width * rows
        self._file.truncate(self._size)

    def _refuse_if_changed(self) -> None:
        """Refuse to append to a file that another process deleted or changed."""
        own = os.fstat(self._file.fileno())
        try:
            gone = not os.path.samestat(own, self.path.lstat())
        except OSError:
            gone = True
        if gone or own.st_size != self._size:
            what = "deleted or replaced" if gone else "changed"
            raise RunFailed(f"{self.path} was {what} while the run trained; train it again with --rerun")


def read_raw(path: Path, runs: int, which: int) -> Columns:
    """The rows of one of the runs of a raw table, by its index; empty if there are none.

    Raises:
        Damaged: it is not such a table.
    """
    if is_there(path) is None:
        return {}
    try:
        with closing(RawTable(path, runs, "rb")) as table:
            return table.read(which)
    except OSError as error:
        raise Damaged(path, f"it cannot be read ({error.strerror})") from None


def last_step(path: Path, runs: int) -> int:
    """The last step of a raw table of so many runs, from its last row alone; 0 without a readable one."""
    with suppress(OSError):
        if is_there(path):
            with closing(RawTable(path, runs, "rb")) as table:
                return table.last_step
    return 0


def write_columns(path: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the tables of runs as one Parquet file of a block; write nothing if there are no columns.

    The tables have columns by run id and name: `step` and any others. Missing ones are filled with nulls.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for table in tables.values() for name in table if name != "step"))
    if not names:
        return
    parts, rows = [list[str]()], 0  # a row group each
    for run_id in sorted(tables):
        rows += len(tables[run_id]["step"])
        if parts[-1] and rows > ROW_GROUP:
            parts.append([])
            rows = len(tables[run_id]["step"])
        parts[-1].append(run_id)
    types = [pa.dictionary(pa.int32(), pa.string()), pa.int64(), *[pa.float64()] * len(names)]
    schema = pa.schema(zip(("run_id", "step", *names), types, strict=True))
    options: dict[str, Any] = {
        "compression": "zstd",
        "use_dictionary": ["run_id"],
        "write_statistics": ["run_id", "step"],
        "write_page_checksum": True,
    }
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, **options) as file:
        for ids in parts:
            steps = [np.asarray(tables[run_id]["step"], np.int64) for run_id in ids]
            places = np.repeat(np.arange(len(ids), dtype=np.int32), [len(own) for own in steps])
            columns: list[Any] = [pa.DictionaryArray.from_arrays(places, ids), np.concatenate(steps)]
            for name in names:
                nothing = ([np.nan] * len(own) for own in steps)
                own = [tables[run_id].get(name, none) for run_id, none in zip(ids, nothing, strict=True)]
                column = np.concatenate([np.asarray(part, np.float64) for part in own])
                columns.append(pa.array(column, mask=~np.isfinite(column)))
            file.write_table(pa.table(columns, schema=schema))


def read_parquet(path: Path, run_id: str) -> Columns:
    """A run's rows of a finished table; empty if there is none.

    Raises:
        Damaged: it is not such a table.
    """
    import numpy as np
    import pyarrow.compute as pc

    if is_there(path) is None:
        return {}
    with _opened(path) as file:
        # pyarrow's `filters` would scan all row groups and take ten times as long.
        groups = [i for i, ids in enumerate(_ids(file)) if ids is None or ids[0] <= run_id <= ids[1]]
        rows = file.read_row_groups(groups, use_threads=False)
        ids = rows["run_id"]
        if ids.null_count or any(part.dictionary.to_pylist() != [run_id] for part in ids.chunks):  # of several runs
            rows = rows.filter(pc.field("run_id") == run_id)
        rows = rows.drop(["run_id"])
        columns = {name: rows[name].to_numpy().astype(np.float64) for name in rows.column_names}
    for column in columns.values():
        column[~np.isfinite(column)] = np.nan
    _check_steps(path, columns["step"])
    return columns


def has_ends(path: Path) -> bool:
    """Whether a finished table exists, judged by its first and last bytes, since importing pyarrow is slow.

    Raises:
        Damaged: it is empty or truncated.
    """
    found = is_there(path)
    if found is None:
        return False
    try:
        with path.open("rb") as file:
            first = file.read(4)
            file.seek(max(0, found.st_size - 8))
            last = file.read()
    except OSError as error:
        raise Damaged(path, f"it cannot be read ({error.strerror})") from None
    footer = int.from_bytes(last[:4], "little")
    if first != _MAGIC or last[4:] != _MAGIC or footer + 12 > found.st_size:
        raise Damaged(path, "it is empty, truncated, or not a Parquet file")
    return True


def rows_of(path: Path, *, values: bool = False) -> int:
    """The number of rows of a finished table, from its metadata; 0 without a table.

    Args:
        path: of the table.
        values: also read the values and compare their checksums, which older tables lack.

    Raises:
        Damaged: it is not such a table.
    """
    if is_there(path) is None:
        return 0
    with _opened(path) as file:
        for _ in file.iter_batches() if values else ():
            pass
        return int(file.metadata.num_rows)


@contextmanager
def _opened(path: Path) -> Iterator["pq.ParquetFile"]:
    """An open Parquet file with checked metadata; every error while it is open becomes `Damaged`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = [("run_id", pa.dictionary(pa.int32(), pa.string())), ("step", pa.int64())]
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            found = [(field.name, field.type) for field in file.schema_arrow]
            if found[:2] != first or not all(kind == pa.float64() for _, kind in found[2:]):
                raise Damaged(path, "its columns are not run_id, step and numbers")
            _check_curve(path, [name for name, _ in found[2:]])
            yield file
    except FileNotFoundError:
        raise Damaged(path, MISSING) from None
    except (OSError, ValueError, TypeError, MemoryError, pa.ArrowException) as error:
        raise Damaged(path, str(error).partition("\n")[0][:200]) from None


def _ids(file: "pq.ParquetFile") -> list[tuple[str, str] | None]:
    """The first and last run id of each row group; None for a group without statistics."""
    found = [file.metadata.row_group(i).column(0).statistics for i in range(file.num_row_groups)]
    return [(own.min, own.max) if own is not None and own.has_min_max else None for own in found]


def _check_steps(path: Path, steps: "NDArray[np.float64]") -> None:
    import numpy as np

    if not (np.diff(steps) > 0).all():
        raise Damaged(path, "its steps do not increase")


def _check_curve(path: Path, names: Sequence[str]) -> None:
    if path.stem == "curve" and tuple(names) != CURVE_FIELDS[1:]:
        raise Damaged(path, f"its columns are not {', '.join(CURVE_FIELDS)}")


def _can_be_columns(names: Sequence[str]) -> bool:
    """Whether names differ from each other and from reserved ones (also DuckDB's), ignoring case."""
    return len({name.casefold() for name in (*names, "step", "run_id", "filename")}) == len(names) + 3


def as_arrow(columns: Columns, **same: str | int) -> "pa.Table":
    """Columns as an Arrow table with nulls for NaN, after columns with one value each (`same`)."""
    import numpy as np
    import pyarrow as pa

    first = {name: pa.repeat(value, len(columns["step"])) for name, value in same.items()}
    rest = {name: pa.array(values, from_pandas=True) for name, values in columns.items()}
    return pa.table({**first, **rest, "step": columns["step"].astype(np.int64)})
