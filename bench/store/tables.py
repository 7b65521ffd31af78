"""The tables of a block: rows of float64 values per step, in parts during training, in Parquet files at the end.

During training, `part-STEP.npz` has the rows between two checkpoints, up to this step: `curve` (S, L, 4), consecutive
steps of L runs; `names` (M,), `steps` (K,) and `values` (K, L, M) of measurements. At the end, `NAME.parquet` has the
rows of each run: run_id, step, values, sorted by run and step.
"""

import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import RunFailed
from bench.store.files import replacing
from bench.store.load import Damaged, is_there

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

TABLES = ("measurements", "curve")  # a column in both is read from the first
CURVE_FIELDS = ("step", "loss", "grad_norm", "raw_step", "applied_step")

ROW_GROUP = 10_000
"""Rows of a row group: queries skip those of other runs."""
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
        """Consecutive rows as one; RunFailed if their measurements have different names."""
        import numpy as np

        measured = [rows for rows in parts if rows.names]
        names = measured[0].names if measured else ()
        if other := next((rows.names for rows in measured if rows.names != names), None):
            raise RunFailed(
                f"the measurements of the run began with {', '.join(names)}, and the task now gives {', '.join(other)};"
                " train again with --rerun"
            )
        return cls(
            np.concatenate([np.empty((0, runs, len(CURVE_FIELDS) - 1)), *(rows.curve for rows in parts)]),
            names,
            np.concatenate([np.empty(0), *(rows.steps for rows in measured)]),
            np.concatenate([np.empty((0, runs, len(names))), *(rows.values for rows in measured)]),
        )

    def tables(self, place: int, last: float = math.inf) -> dict[str, Columns]:
        """The tables of the run with this index, up to step `last`; without those of which no run has rows."""
        import numpy as np

        steps = np.arange(1.0, len(self.curve) + 1)
        tables = dict[str, Columns]()
        for table, names, at, values in (
            ("measurements", self.names, self.steps, self.values),
            ("curve", CURVE_FIELDS[1:], steps, self.curve),
        ):
            if names and len(at):
                rows = values[at <= last, place].T
                tables[table] = {"step": at[at <= last]} | {
                    name: np.where(np.isfinite(row), row, np.nan) for name, row in zip(names, rows, strict=True)
                }
        return tables


def parts_in(folder: Path) -> list[tuple[int, Path]]:
    """The parts in a block's folder with their last steps, in ascending order."""
    with suppress(OSError):
        names = ((_PART.fullmatch(path.name), path) for path in folder.iterdir())
        return sorted((int(match[1]), path) for match, path in names if match)
    return []


def write_part(folder: Path, step: int, rows: Rows) -> None:
    """Write the rows up to this step as a part, flushed to disk."""
    import numpy as np

    values = {"curve": rows.curve, "names": np.array(rows.names, str), "steps": rows.steps, "values": rows.values}
    with replacing(folder / f"part-{step:012}.npz") as temporary, temporary.open("wb") as file:
        np.savez(file, **values)


def read_parts(folder: Path, runs: int, until: float = math.inf) -> Rows:
    """The rows of a block of so many runs in training, from the parts up to this step; `Damaged` if steps are missing.

    A part that has just been removed is a FileNotFoundError.
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
    ids = sorted(tables)
    counts = [len(tables[run_id]["step"]) for run_id in ids]
    types = [pa.dictionary(pa.int32(), pa.string()), pa.int64(), *[pa.float64()] * len(names)]
    schema = pa.schema(zip(("run_id", "step", *names), types, strict=True))
    places = np.repeat(np.arange(len(ids), dtype=np.int32), counts)
    columns: list[Any] = [pa.DictionaryArray.from_arrays(places, ids)]
    for name in ("step", *names):
        parts = [tables[i].get(name, np.full(count, np.nan)) for i, count in zip(ids, counts, strict=True)]
        values = np.concatenate(parts, dtype=np.float64)
        columns.append(pa.array(values, schema.field(name).type, mask=~np.isfinite(values)))
    options: dict[str, Any] = {"row_group_size": ROW_GROUP, "compression": "zstd", "use_dictionary": ["run_id"]}
    options |= {"write_statistics": ["run_id", "step"], "write_page_checksum": True}
    with replacing(path) as temporary:
        pq.write_table(pa.table(columns, schema=schema), temporary, **options)


def read_parquet(path: Path, run_id: str) -> Columns:
    """A run's rows of a finished table; empty if there is none. `Damaged` if it cannot be read."""
    state = is_there(path)
    if state is None:
        return {}
    columns, places = _read(path, (state.st_ino, state.st_size, state.st_mtime_ns))
    return {name: values[places.get(run_id, slice(0))].copy() for name, values in columns.items()}


@lru_cache(maxsize=16)  # boards read the runs of several blocks one by one
def _read(path: Path, version: tuple[int, ...]) -> tuple[Columns, dict[str, slice]]:
    """The columns of a table, and the rows of each run."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(use_threads=False)
        names = table.column_names
        if names[:2] != ["run_id", "step"] or (path.stem == "curve" and tuple(names[1:]) != CURVE_FIELDS):
            raise Damaged(path, f"its columns are {', '.join(names)[:200]}")
        ids = table["run_id"].unify_dictionaries().combine_chunks()
        columns = {name: table[name].to_numpy().astype(np.float64) for name in names[1:]}
        codes, known = ids.indices.to_numpy(), ids.dictionary.to_pylist()
    except (OSError, ValueError, TypeError, AttributeError, MemoryError, pa.ArrowException) as error:
        raise Damaged(path, str(error).partition("\n")[0][:200]) from None
    for values in columns.values():
        values[~np.isfinite(values)] = np.nan
    starts = np.flatnonzero(np.diff(codes, prepend=-1)).tolist()
    ends = [*starts[1:], len(codes)]
    return columns, {known[codes[start]]: slice(start, end) for start, end in zip(starts, ends, strict=False)}


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
