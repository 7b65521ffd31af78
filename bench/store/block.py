"""A block: one or more runs that train together, in one folder of the store.

    BLOCK/lock          locked by the process that trains it
    BLOCK/runs.jsonl    records of its runs until they have finished
    BLOCK/part-STEP.TABLE.parquet, last.ckpt    rows between two checkpoints, up to STEP, and the last checkpoint
    BLOCK/done/         runs.jsonl; curve.parquet, measurements.parquet: run_id, step, values; sorted by run and step

`runs.jsonl` has one record per line, in the order of the lanes. One atomic rename creates `done` with all its files;
then everything else is removed. Readers take no lock for longer than a look, and ignore what a killed process left
beside `done`. A block of one run has the name of the run; the name of any other is a digest of its ids.
"""

import hashlib
import math
import os
import re
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from bench.store.files import CHECKPOINT, DONE, RUNS, Damaged, is_file, is_locked, read_bytes
from bench.store.record import RunResult, parse_record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PREFIX = "block-"
TABLES = ("measurements", "curve")  # a column in both is read from the first
CURVE_FIELDS = ("step", "loss", "grad_norm", "raw_step", "applied_step")

Columns = dict[str, "NDArray[np.float64]"]
"""A run's table: columns by name, NaN for non-finite values; `step` comes first and ascends."""


def block_name(run_ids: Sequence[str]) -> str:
    """The name of the block of these runs."""
    if len(run_ids) == 1:
        return run_ids[0]
    return PREFIX + hashlib.sha256("\n".join(run_ids).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class StoredBlock:
    """A block as read from a store."""

    folder: Path
    runs: dict[str, RunResult]  # by id, in the order of the lanes
    done: bool = False  # whether it has results
    busy: bool = False  # whether a process trains it now

    def tables(self, run_id: str, wanted: str = ".*") -> dict[str, Columns]:
        """The tables of a finished run by name, none for others; `Damaged` if one is not whole.

        Only the columns whose names match the regular expression are read, and `step`.
        """
        if not self.done:
            return {}
        paths = [path for name in TABLES if is_file(path := self.folder / DONE / f"{name}.parquet")]
        tables = {path.stem: _cached_table((path,), wanted, *_version(path)).get(run_id, {}) for path in paths}
        steps, rows = self.runs[run_id].steps, len(tables.get("curve", {}).get("step", ()))
        if rows != steps and not self.runs[run_id].thinned:
            why = f"it has {rows} rows of {run_id}, which took {steps} steps"
            raise Damaged(self.folder / DONE / "curve.parquet", why)
        return {name: columns for name, columns in tables.items() if columns}


def _version(path: Path) -> tuple[int, ...]:
    """Tells whether a file has been replaced."""
    state = path.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


def read_block(folder: Path) -> StoredBlock | None:
    """The content of a block's folder; None if there is nothing in it, `Damaged` if its records cannot be read."""
    done = folder / DONE
    for _ in range(2):  # it may have finished between the looks at its results and its records
        busy = not is_file(done / RUNS) and is_locked(folder)  # before reading: a process that ends leaves results
        with suppress(FileNotFoundError):
            if is_file(done / RUNS):
                return StoredBlock(folder, _finished(done / RUNS, folder.name, *_version(done / RUNS)), done=True)
            if not os.path.lexists(done):
                return StoredBlock(folder, _unfinished(folder, busy=busy), busy=busy)
    if os.path.lexists(done):
        raise Damaged(done, f"it has no {RUNS}")
    return None


def _unfinished(folder: Path, *, busy: bool) -> dict[str, RunResult]:
    runs = _records(folder / RUNS, folder.name)
    steps = max((step for step, _ in parts_in(folder)), default=0)  # the record may be older
    where = "" if is_file(folder / CHECKPOINT) else ", before its first checkpoint"
    reason = f"its process ended without a message{where}"
    for run in () if busy else [run for run in runs.values() if run.status == "running"]:
        runs[run.run_id] = replace(run, status="killed", reason=reason, steps=max(run.steps, steps))
    return runs


def _records(path: Path, name: str, *version: int) -> dict[str, RunResult]:
    """The records of the block of this name, by id; FileNotFoundError if there are none."""
    runs = {run.run_id: run for run in (parse_record(line, path) for line in read_bytes(path).splitlines())}
    if block_name(list(runs)) != name or any(run.finished != (path.parent.name == DONE) for run in runs.values()):
        raise Damaged(path, f"it has not the records of {name}, or they have an impossible status")
    return runs


_finished = lru_cache(maxsize=10_000)(_records)


def blocks_in(store: Path, run_ids: Set[str] | None = None) -> Iterator[StoredBlock | Damaged]:
    """The blocks of a store by name, or those that may have some of these runs; what is wrong with unreadable ones."""
    try:
        with os.scandir(store) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield Damaged(store, f"it cannot be read ({error.strerror})")
        return
    for name in names:
        if name[0] == "." or not (run_ids is None or name in run_ids or name.startswith(PREFIX)):
            continue
        try:
            if (block := read_block(store / name)) is not None:
                yield block
        except Damaged as error:
            yield error


def parts_in(folder: Path, table: str = "*") -> list[tuple[int, Path]]:
    """The parts of a table, or of all, in a block's folder with their last steps, in ascending order."""
    return sorted((int(path.name[5:17]), path) for path in folder.glob(f"part-{'[0-9]' * 12}.{table}.parquet"))


def read_parts(folder: Path, until: float = math.inf) -> dict[str, dict[str, Columns]]:
    """The tables of a block in training by name and run, from its parts up to this step; errors as for `read_table`."""
    paths = {name: [path for step, path in parts_in(folder, name) if step <= until] for name in TABLES}
    return {name: read_table(parts) for name, parts in paths.items() if parts}


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


_cached_table = lru_cache(maxsize=64)(read_table)  # boards read the runs of some twenty blocks one by one
