"""A run's tables: growing as JSON lines while it trains, Parquet when it has ended."""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from bench.errors import RunFailed
from bench.store.files import replacing

TABLES = ("measurements", "curve")  # a column that both have is read from the first
CURVE_FIELDS = ("step", "loss", "grad_norm", "raw_step", "applied_step")


class GrowingTable:
    """A table that grows in `name.jsonl`, a list of names and then a list for each row, and ends as `name.parquet`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._rewrite(*_read_table(folder, name))

    def append(self, names: Sequence[str], rows: Sequence[Sequence[float | None]]) -> None:
        """Add rows; the names head the file."""
        if not self.names and names:
            self.names = tuple(names)
            self._file.write(json.dumps(self.names) + "\n")
        if rows:
            check_names(self.folder / self.name, self.names, names)
        # As json.dumps would write it, in a third of the time.
        lines = (
            "[" + ", ".join([repr(x) if x is not None and isfinite(x) else "null" for x in row]) + "]" for row in rows
        )
        self._file.write("".join(f"{line}\n" for line in lines))
        self._file.flush()

    def truncate(self, steps: int) -> None:
        """Forget the rows after this step."""
        self._file.close()
        names, rows = _read_table(self.folder, self.name)
        self._rewrite(names, [row for row in rows if row[0] <= steps])

    def _rewrite(self, names: Sequence[str], rows: Sequence[Sequence[float | None]]) -> None:
        """Go on with these rows as all of the table; the old one stands until they are written."""
        temporary = self.folder / f"{self.name}.jsonl.tmp"
        self._file = temporary.open("w", encoding="utf-8")
        self.names: tuple[str, ...] = ()
        self.append(names, rows)
        temporary.replace(self.folder / f"{self.name}.jsonl")
        (self.folder / f"{self.name}.parquet").unlink(missing_ok=True)

    def end(self) -> None:
        """Close it as Parquet; a table without rows leaves nothing."""
        self._file.close()
        names, rows = _read_table(self.folder, self.name)
        if names:
            columns = list(zip(*rows, strict=True)) or [()] * len(names)
            write_parquet(self.folder / f"{self.name}.parquet", dict(zip(names, columns, strict=True)))
        (self.folder / f"{self.name}.jsonl").unlink(missing_ok=True)


def write_parquet(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write a table in one atomic step. Columns of numbers are float64, but `step` and `seed` int64; others are text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def kind(name: str, values: Sequence[Any]) -> Any:
        if name in ("step", "seed"):
            return pa.int64()
        return pa.string() if len(values) and isinstance(values[0], str) else pa.float64()

    table = pa.table({name: pa.array(values, kind(name, values)) for name, values in columns.items()})
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def check_names(path: Path, begun: Sequence[str], names: Sequence[str]) -> None:
    """Refuse rows of other columns than a table was begun with.

    Raises:
        RunFailed: the names differ.
    """
    if tuple(names) != tuple(begun):
        raise RunFailed(
            f"{path} was begun with the columns {', '.join(begun)}, and the task now gives {', '.join(names)};"
            " train again with --rerun"
        )


def read_curve(folder: Path) -> list[tuple[Any, ...]]:
    """A run's curve as tuples of `CURVE_FIELDS`; None stands for a value that is not finite."""
    return _read_table(folder, "curve")[1]


def read_tables(folder: Path) -> dict[str, dict[str, Any]]:
    """The tables in a run's own folder, as `Store.tables` gives them."""
    import numpy as np

    tables = {}
    for table in TABLES:
        path = folder / f"{table}.parquet"
        if path.is_file() and not (folder / f"{table}.jsonl").is_file():
            tables[table] = _columns(path)
            continue
        names, rows = _read_table(folder, table)
        if names:
            tables[table] = {name: np.array([row[i] for row in rows], dtype=np.float64) for i, name in enumerate(names)}
    return tables


def _columns(path: Path) -> dict[str, Any]:
    """The columns of a table as arrays; by way of lists it would take three times the time."""
    import numpy as np
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        rows = file.read(use_threads=False)
    return {name: rows[name].to_numpy().astype(np.float64) for name in rows.column_names}


def _read_table(folder: Path, name: str) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Names and rows of a table, growing or ended; no names if there is none."""
    lines, table = folder / f"{name}.jsonl", folder / f"{name}.parquet"
    if lines.is_file():
        rows = []
        for line in lines.read_text("utf-8").splitlines():
            try:
                rows.append(tuple(json.loads(line)))
            except ValueError:
                break  # the last line of a killed run
        names, *rows = rows or [()]
        return names, [row for row in rows if len(row) == len(names)]
    if table.is_file():
        import pyarrow.parquet as pq

        columns = pq.read_table(table).to_pydict()
        return tuple(columns), list(zip(*columns.values(), strict=True))
    return (), []
