"""The tables of a block: rows of float64 values per step, in parts during training, in Parquet files at the end.

During training, `part-STEP.npz` has the rows between two checkpoints, up to this step: `curve` (S, L, 4), consecutive
steps of L runs; `names` (M,), `steps` (K,) and `values` (K, L, M) of measurements. At the end, `NAME.parquet` has the
rows of each run: run_id, step, values, sorted by run and step.
"""

import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.errors import RunFailed
from bench.store.files import Damaged, is_there, replacing

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

TABLES = ("measurements", "curve")  # a column in both is read from the first
CURVE_FIELDS = ("step", "loss", "grad_norm", "raw_step", "applied_step")
ROW_GROUP = 10_000
"""Rows of a row group: queries skip those of other runs."""

Columns = dict[str, "NDArray[np.float64]"]
"""A run's table: columns by name, NaN for non-finite values; `step` comes first and ascends."""


class Rows(NamedTuple):
    """Rows of a table of L runs in training: M names, K ascending steps, and values of shape (K, L, M)."""

    names: tuple[str, ...]
    steps: "NDArray[np.float64]"
    values: "NDArray[np.float64]"

    def of(self, place: int, last: float = math.inf) -> Columns:
        """The table of the run with this index, up to step `last`."""
        import numpy as np

        values = self.values[self.steps <= last, place].T
        values = np.where(np.isfinite(values), values, np.nan)
        return {"step": self.steps[self.steps <= last], **dict(zip(self.names, values, strict=True))}


def with_last(table: Columns, step: int, values: Mapping[str, float]) -> Columns:
    """A run's measurements with those after its last step, unless it has them."""
    import numpy as np

    if len(table["step"]) and table["step"][-1] == step:
        return table
    return {name: np.append(column, {"step": step, **values}[name]) for name, column in table.items()}


def joined(parts: Sequence[Mapping[str, Rows]]) -> dict[str, Rows]:
    """The rows of consecutive parts, by table; RunFailed if a table has different names."""
    import numpy as np

    tables = dict[str, Rows]()
    for table in TABLES:
        rows = [part[table] for part in parts if table in part]
        if other := next((piece.names for piece in rows if piece.names != rows[0].names), None):
            before, now = ", ".join(rows[0].names), ", ".join(other)
            why = f"the measurements of the run began with {before}, and the task now gives {now}"
            raise RunFailed(f"{why}; train again with --rerun")
        if rows:
            steps, values = (np.concatenate([piece[i] for piece in rows]) for i in (1, 2))
            tables[table] = Rows(rows[0].names, steps, values)
    return tables


def parts_in(folder: Path) -> list[tuple[int, Path]]:
    """The parts in a block's folder with their last steps, in ascending order."""
    return sorted((int(path.stem[5:]), path) for path in folder.glob(f"part-{'[0-9]' * 12}.npz"))


def write_part(folder: Path, step: int, tables: Mapping[str, Rows]) -> None:
    """Write the rows up to this step as a part, flushed to disk."""
    import numpy as np

    curve = tables["curve"].values
    names, steps, values = tables.get("measurements", ((), np.empty(0), np.empty((0, curve.shape[1], 0))))
    with replacing(folder / f"part-{step:012}.npz") as temporary, temporary.open("wb") as file:
        np.savez(file, curve=curve, names=np.array(names, str), steps=steps, values=values)


def read_parts(folder: Path, runs: int, until: float = math.inf) -> dict[str, Rows]:
    """The rows of a block of so many runs in training, from the parts up to this step; `Damaged` if steps are missing.

    A part that has just been removed is a FileNotFoundError.
    """
    import numpy as np

    parts, last = list[dict[str, Rows]](), 0
    for step, path in parts_in(folder):
        if step > until:
            break
        try:
            with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
                curve, measured = file["curve"], Rows(tuple(map(str, file["names"])), file["steps"], file["values"])
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise Damaged(path, f"it cannot be read ({str(error).partition(chr(10))[0][:200]})") from None
        if curve.shape != (step - last, runs, len(CURVE_FIELDS) - 1):
            raise Damaged(path, f"its curve has the shape {curve.shape}, and the part before ends at step {last}")
        parts += [{"curve": curve_rows(last, curve)}, {"measurements": measured} if measured.names else {}]
        last = step
    return joined(parts)


def curve_rows(before: int, values: "NDArray[np.float64]") -> Rows:
    """The curves of the steps after `before`, from values of shape (steps, runs, 4)."""
    import numpy as np

    return Rows(CURVE_FIELDS[1:], np.arange(before + 1.0, before + len(values) + 1), values)


def as_arrow(run_id: str, columns: Mapping[str, Any]) -> "pa.Table":
    """A run's table as an Arrow table, with nulls for values that are not finite."""
    import numpy as np
    import pyarrow as pa

    values = {name: np.asarray(column, np.float64) for name, column in columns.items() if name != "step"}
    nullable = {name: pa.array(column, mask=~np.isfinite(column)) for name, column in values.items()}
    steps = np.asarray(columns["step"]).astype(np.int64)
    return pa.table({"run_id": pa.repeat(run_id, len(steps)), "step": steps, **nullable})


def write_columns(path: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the tables of runs, by id, as one Parquet file of a block; nothing if they have no columns but `step`.

    Columns that only some of them have are filled with nulls.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [as_arrow(run_id, tables[run_id]) for run_id in sorted(tables)]
    if not any(table.num_columns > 2 for table in rows):
        return
    options: dict[str, Any] = {"row_group_size": ROW_GROUP, "compression": "zstd", "use_dictionary": ["run_id"]}
    options |= {"write_statistics": ["run_id", "step"], "write_page_checksum": True}
    with replacing(path) as temporary:
        pq.write_table(pa.concat_tables(rows, promote_options="default"), temporary, **options)


def read_parquet(path: Path, run_id: str, wanted: str) -> Columns:
    """A run's rows of a finished table, of `step` and the columns that match; empty if there is none.

    `Damaged` if it cannot be read.
    """
    if not is_there(path):
        return {}
    state = path.stat()
    names, values, rows = _read(path, wanted, state.st_ino, state.st_size, state.st_mtime_ns)
    return dict(zip(names, values[:, rows.get(run_id, [])], strict=True))


@lru_cache(maxsize=16)  # boards read the runs of several blocks one by one
def _read(path: Path, wanted: str, *version: int) -> "tuple[list[str], NDArray[np.float64], Any]":
    """The names and values, shape (columns, rows), of a table, and the indices of the rows of each run."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            run_id, *names = file.schema_arrow.names
            if [run_id, *names[:1]] != ["run_id", "step"] or (path.stem == "curve" and (*names,) != CURVE_FIELDS):
                raise Damaged(path, f"its columns are {', '.join([run_id, *names])[:200]}")
            names = ["step", *(name for name in names[1:] if re.fullmatch(wanted, name))]
            table = file.read([run_id, *names], use_threads=False)
        runs = table[run_id].combine_chunks().dictionary_encode()
        places = runs.indices.to_numpy()
        parts = np.split(np.argsort(places, kind="stable"), np.cumsum(np.bincount(places))[:-1])
        rows = dict(zip(runs.dictionary.to_pylist(), parts, strict=False))  # no runs have one part
        return names, np.array([table[name].to_numpy() for name in names], np.float64), rows
    except (OSError, ValueError, TypeError, MemoryError, pa.ArrowException) as error:
        raise Damaged(path, str(error).partition("\n")[0][:200]) from None
