"""The tables of a block: rows of float64 values per step, in parts during training, in Parquet files at the end.

During training, `part-STEP.npz` has the rows between two checkpoints, up to this step: `curve` (S, L, 4), consecutive
steps of L runs; `names` (M,), `steps` (K,) and `values` (K, L, M) of measurements. At the end, `NAME.parquet` has the
rows of each run: run_id, step, values, sorted by run and step.
"""

import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
_PART = re.compile(r"part-([0-9]{12})\.npz")

Columns = dict[str, "NDArray[np.float64]"]
"""A run's table: columns by name, NaN for non-finite values; `step` comes first and ascends."""


@dataclass
class Rows:
    """Rows of a block of L runs in training.

    Attributes:
        curve: of steps 1 to S, shape (S, L, 4), in the order of `CURVE_FIELDS`.
        names: of the M measurements; empty before the first.
        steps, values: of the measurements, shapes (K,) and (K, L, M).
    """

    curve: "NDArray[np.float64]"
    names: tuple[str, ...]
    steps: "NDArray[np.float64]"
    values: "NDArray[np.float64]"

    @classmethod
    def joined(cls, parts: Sequence["Rows"], runs: int) -> "Rows":
        """Consecutive rows as one."""
        import numpy as np

        names = next((rows.names for rows in parts if rows.names), ())
        measured = [rows for rows in parts if rows.names]
        return cls(
            np.concatenate([np.empty((0, runs, len(CURVE_FIELDS) - 1)), *(rows.curve for rows in parts)]),
            names,
            np.concatenate([np.empty(0), *(rows.steps for rows in measured)]),
            np.concatenate([np.empty((0, runs, len(names))), *(rows.values for rows in measured)]),
        )

    def tables(self, place: int, last: int | None = None) -> dict[str, Columns]:
        """The tables of the run with this index, up to step `last`; without those of which no run has rows."""
        import numpy as np

        steps = np.arange(1.0, len(self.curve) + 1)
        named = {"measurements": (self.names, self.steps, self.values), "curve": (CURVE_FIELDS[1:], steps, self.curve)}
        tables = dict[str, Columns]()
        for table, (names, at, values) in named.items():
            rows = len(at) if last is None else int(np.searchsorted(at, last, "right"))
            if names and len(at):
                tables[table] = {"step": at[:rows], **dict(zip(names, values[:rows, place].T, strict=True))}
        return tables


def parts_in(folder: Path) -> list[tuple[int, Path]]:
    """The parts in a block's folder with their last steps, in ascending order."""
    with suppress(OSError):
        names = ((_PART.fullmatch(path.name), path) for path in folder.iterdir())
        return sorted((int(match[1]), path) for match, path in names if match and is_there(path))
    return []


def write_part(folder: Path, step: int, rows: Rows) -> None:
    """Write the rows up to this step as a part, flushed to disk.

    Raises:
        OSError: it cannot be written.
    """
    import numpy as np

    values = {"curve": rows.curve, "names": np.array(rows.names, str), "steps": rows.steps, "values": rows.values}
    with replacing(folder / f"part-{step:012}.npz") as temporary, temporary.open("wb") as file:
        np.savez(file, **values)


def read_parts(folder: Path, runs: int, until: float = math.inf) -> Rows:
    """The rows of a block of so many runs in training, from the parts up to this step.

    Raises:
        Damaged: a part cannot be read, or steps are missing.
        FileNotFoundError: a part has just been removed.
    """
    import numpy as np

    parts, last = list[Rows](), 0
    for step, path in parts_in(folder):
        if step > until:
            break
        try:
            with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
                rows = Rows(file["curve"], tuple(map(str, file["names"])), file["steps"], file["values"])
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise Damaged(path, f"it cannot be read ({str(error).partition(chr(10))[0][:200]})") from None
        if rows.curve.shape != (step - last, runs, len(CURVE_FIELDS) - 1):
            raise Damaged(path, f"its curve has the shape {rows.curve.shape}, and the part before ends at step {last}")
        if rows.values.shape != (len(rows.steps), runs, len(rows.names)):
            raise Damaged(path, f"its measurements have the shape {rows.values.shape}")
        parts.append(rows)
        last = step
    return Rows.joined(parts, runs)


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

    found = is_there(path)
    if found is None:
        return {}
    version = found.st_ino, found.st_size, found.st_mtime_ns
    # pyarrow's `filters` would scan all row groups and take ten times as long.
    groups = [i for i, ids in enumerate(_ends(path, version)) if ids is None or ids[0] <= run_id <= ids[1]]
    rows, places = _row_groups(path, version, tuple(groups))
    rows = rows.slice(*places.get(run_id, (0, 0)))
    columns = {name: rows[name].to_numpy().astype(np.float64) for name in rows.column_names}
    for column in columns.values():
        column[~np.isfinite(column)] = np.nan
    _check_steps(path, columns["step"])
    return columns


@lru_cache(maxsize=256)
def _ends(path: Path, version: tuple[int, ...]) -> list[tuple[str, str] | None]:
    """The first and last run id of each row group; None for a group without statistics."""
    with _opened(path) as file:
        found = [file.metadata.row_group(i).column(0).statistics for i in range(file.num_row_groups)]
    return [(own.min, own.max) if own is not None and own.has_min_max else None for own in found]


@lru_cache(maxsize=4)  # boards read the runs of a block one by one
def _row_groups(
    path: Path, version: tuple[int, ...], groups: tuple[int, ...]
) -> "tuple[pa.Table, dict[str, tuple[int, int]]]":
    """The rows of row groups without run ids, and the first row and the number of rows of each run."""
    with _opened(path) as file:
        rows = file.read_row_groups(groups, use_threads=False)
    places, first = dict[str, tuple[int, int]](), 0
    for run_id, own in groupby(rows["run_id"].to_pylist()):
        count = len(list(own))
        if run_id in places:
            raise Damaged(path, "its rows are not sorted by run")
        places[run_id], first = (first, count), first + count
    return rows.drop(["run_id"]), places


def rows_of(path: Path) -> int:
    """The number of rows of a finished table, from its metadata; 0 without a table.

    Raises:
        Damaged: it is not such a table.
    """
    if is_there(path) is None:
        return 0
    with _opened(path) as file:
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


def _check_steps(path: Path, steps: "NDArray[np.float64]") -> None:
    import numpy as np

    if not (np.diff(steps) > 0).all():
        raise Damaged(path, "its steps do not increase")


def _check_curve(path: Path, names: Sequence[str]) -> None:
    if path.stem == "curve" and tuple(names) != CURVE_FIELDS[1:]:
        raise Damaged(path, f"its columns are not {', '.join(CURVE_FIELDS)}")


def can_be_columns(names: Sequence[str]) -> bool:
    """Whether names differ from each other and from reserved ones (also DuckDB's), ignoring case."""
    return len({name.casefold() for name in (*names, "step", "run_id", "filename")}) == len(names) + 3


def as_arrow(columns: Columns, **same: str | int) -> "pa.Table":
    """Columns as an Arrow table with nulls for NaN, after columns with one value each (`same`)."""
    import numpy as np
    import pyarrow as pa

    first = {name: pa.repeat(value, len(columns["step"])) for name, value in same.items()}
    rest = {name: pa.array(values, from_pandas=True) for name, values in columns.items()}
    return pa.table({**first, **rest, "step": columns["step"].astype(np.int64)})
