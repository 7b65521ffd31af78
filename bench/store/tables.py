"""The tables of runs: Parquet files with the columns run_id, step and values, sorted by run and step.

`done/NAME.parquet` has the rows of all runs of a block. While it trains, `part-STEP.NAME.parquet` has those between two
checkpoints, up to this step.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.store.files import Damaged, replacing

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


def parts_in(folder: Path, table: str = "*") -> list[tuple[int, Path]]:
    """The parts of a table, or of all, in a block's folder with their last steps, in ascending order."""
    return sorted((int(path.name[5:17]), path) for path in folder.glob(f"part-{'[0-9]' * 12}.{table}.parquet"))


def read_parts(folder: Path, until: float = math.inf) -> dict[str, dict[str, Columns]]:
    """The tables of a block in training by name and run, from its parts up to this step; errors as for `read_table`."""
    paths = {name: [path for step, path in parts_in(folder, name) if step <= until] for name in TABLES}
    return {name: read_table(parts) for name, parts in paths.items() if parts}


def as_arrow(run_id: str, columns: Mapping[str, Any]) -> "pa.Table":
    """A run's table as an Arrow table, with nulls for values that are not finite."""
    import numpy as np
    import pyarrow as pa

    values = {name: np.asarray(column, np.float64) for name, column in columns.items() if name != "step"}
    nullable = {name: pa.array(column, mask=~np.isfinite(column)) for name, column in values.items()}
    steps = np.asarray(columns["step"]).astype(np.int64)
    return pa.table({"run_id": pa.repeat(run_id, len(steps)), "step": steps, **nullable})


def write_table(path: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a table of runs, by id, as one Parquet file, flushed to disk; nothing if it has no columns but `step`.

    Columns that only some of them have are filled with nulls.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [as_arrow(run_id, runs[run_id]) for run_id in sorted(runs)]
    if not any(table.num_columns > 2 for table in rows):
        return
    options: dict[str, Any] = {"row_group_size": ROW_GROUP, "compression": "zstd", "use_dictionary": ["run_id"]}
    options |= {"write_statistics": ["run_id", "step"], "write_page_checksum": True}
    with replacing(path) as temporary:
        pq.write_table(pa.concat_tables(rows, promote_options="default"), temporary, **options)


def read_table(paths: Sequence[Path], wanted: str = ".*", *version: int) -> dict[str, Columns]:
    """The rows of files by run: `step` and the columns whose names match the regular expression.

    `Damaged` if a file cannot be read, FileNotFoundError if it does not exist. The `version` is for a cache.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, tables = paths[0], list[pa.Table]()
    try:
        for path in paths:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                names = file.schema_arrow.names
                is_curve = path.name.endswith("curve.parquet")
                if names[:2] != ["run_id", "step"] or (is_curve and (*names[1:],) != CURVE_FIELDS):
                    raise Damaged(path, f"its columns are {', '.join(names)[:200]}")
                columns = [*names[:2], *(name for name in names[2:] if re.fullmatch(wanted, name))]
                tables.append(file.read(columns, use_threads=False))
        table = pa.concat_tables(tables, promote_options="default")
        runs = table["run_id"].combine_chunks().dictionary_encode()
        order, ends = np.argsort(runs.indices, kind="stable"), np.cumsum(np.bincount(runs.indices))[:-1]
        values = {name: np.split(table[name].to_numpy().astype(float)[order], ends) for name in table.column_names[1:]}
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, MemoryError, pa.ArrowException) as error:
        raise Damaged(path, str(error).partition("\n")[0][:200]) from None
    return {run_id: {name: values[name][i] for name in values} for i, run_id in enumerate(runs.dictionary.to_pylist())}


read_cached = lru_cache(maxsize=16)(read_table)  # boards read the runs of several blocks one by one
