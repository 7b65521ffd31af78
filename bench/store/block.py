"""A block: one or more runs that train together, in one folder of the store.

    BLOCK/lock          locked by the process that trains it
    BLOCK/runs.jsonl    records of its runs until they have finished; traceback.txt
    BLOCK/part-STEP.npz, last.ckpt    rows between two checkpoints, and the last checkpoint
    BLOCK/done/         runs.jsonl; curve.parquet, measurements.parquet

`runs.jsonl` has one record per line, in the order of the lanes. One atomic rename creates `done` with all its files;
then everything else is removed. Results that are being replaced (`--rerun`) are in `replaced` for a moment, and count
until `done` exists. Readers take no lock for longer than a look, and ignore what a killed process left beside `done`.
A block of one run has the name of the run; the name of any other is a digest of its ids.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench.store.load import Damaged, is_there, parse_record, read_bytes
from bench.store.lock import is_locked
from bench.store.record import RunResult
from bench.store.reports import CHECKS, STUDIES
from bench.store.tables import TABLES, Columns, parts_in, read_parquet, read_parts

SOURCES = "sources"
"""The folder with the source code of classes passed to the Python API. Readers never import it."""
PREFIX = "block-"
DONE, REPLACED = "done", "replaced"
RUNS, CHECKPOINT, TRACEBACK = "runs.jsonl", "last.ckpt", "traceback.txt"
_RUN_ID = re.compile(rb'^\{"run_id": "([\w.+-]+)"', re.MULTILINE | re.ASCII)


def name_of(run_ids: Sequence[str]) -> str:
    """The name of the block of these runs."""
    if len(run_ids) == 1:
        return run_ids[0]
    return PREFIX + hashlib.sha256("\n".join(run_ids).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Block:
    """A block as found in a store.

    Attributes:
        folder: of the block.
        at: the folder with its records and tables: its results, else the block itself.
        runs: records by id, in the order of the lanes.
        busy: whether a process trains it now.
    """

    folder: Path
    at: Path
    runs: dict[str, RunResult]
    busy: bool

    @property
    def done(self) -> bool:
        """Whether it has results."""
        return self.at != self.folder

    def tables(self, run_id: str) -> dict[str, Columns]:
        """A run's tables by name, also if the block has finished since it was read; `Damaged` if one is not whole."""
        try:
            if self.done:
                return self._finished_tables(run_id)
            rows = read_parts(self.folder, len(self.runs))
            if results_in(self.folder) is None:
                return rows.tables(list(self.runs).index(run_id))
        except (Damaged, FileNotFoundError) as error:  # a part may have just been removed
            if isinstance(error, Damaged) and results_in(self.folder) in (None, self.at):
                raise
        block = read_block(self.folder)
        return {} if block is None or run_id not in block.runs else block.tables(run_id)

    def _finished_tables(self, run_id: str) -> dict[str, Columns]:
        tables = {name: read_parquet(self.at / f"{name}.parquet", run_id) for name in TABLES}
        run, rows = self.runs[run_id], len(tables["curve"].get("step", ()))
        if rows != run.steps and not run.thinned:
            raise Damaged(self.at / "curve.parquet", f"it has {rows} rows of {run_id}, which took {run.steps} steps")
        return {name: columns for name, columns in tables.items() if columns}


def read_block(folder: Path) -> Block | None:
    """The content of a block's folder; None if there is nothing in it, `Damaged` if its records cannot be read."""
    with suppress(FileNotFoundError):
        return _block(folder, folder / DONE)
    busy = is_locked(folder)  # before the rest: a process that has ended meanwhile has left its results
    for at in (folder / DONE, folder / REPLACED, folder):
        with suppress(FileNotFoundError):
            return _block(folder, at, busy=busy and at == folder)
    if os.path.lexists(folder / DONE):
        raise Damaged(folder / DONE, f"it has no {RUNS}")
    return None


def readable(folder: Path) -> Block | None:
    """The content of a block's folder; None if it is not a block."""
    try:
        return read_block(folder)
    except Damaged:
        return None


def results_in(folder: Path) -> Path | None:
    """The folder with the results of a block; None if it has none."""
    return next((folder / name for name in (DONE, REPLACED) if is_there(folder / name / RUNS)), None)


def _block(folder: Path, at: Path, *, busy: bool = False) -> Block:
    """The block with the records in `at`, its results or the block itself; FileNotFoundError without records."""
    path = at / RUNS
    lines = read_bytes(path).splitlines()
    runs = {run.run_id: run for run in (parse_record(line, path) for line in lines)}
    if not lines:
        raise Damaged(path, "it is empty")
    if name_of(list(runs)) != folder.name:
        raise Damaged(path, f"its records do not belong to {folder.name}")
    if wrong := [run for run in runs.values() if run.finished != (at != folder)]:
        raise Damaged(path, f"{wrong[0].run_id} has the impossible status {wrong[0].status}")
    if at == folder and not busy:
        where = "" if is_there(at / CHECKPOINT) else ", before its first checkpoint"
        steps = max((step for step, _ in parts_in(folder)), default=0)  # the record may be older
        reason = f"its process ended without a message{where}"
        for run in [run for run in runs.values() if run.status == "running"]:
            runs[run.run_id] = replace(run, status="killed", reason=reason, steps=max(run.steps, steps))
    return Block(folder, at, runs, busy)


_ids = dict[Path, frozenset[str]]()
"""The ids of the runs in blocks whose name is the digest of these ids, so they stay valid."""


def ids_in(folder: Path) -> frozenset[str]:
    """The ids of the runs in a block."""
    if not folder.name.startswith(PREFIX):
        return frozenset([folder.name])
    if folder not in _ids:
        try:
            ids = [run_id.decode() for run_id in _RUN_ID.findall(read_bytes((results_in(folder) or folder) / RUNS))]
        except (Damaged, FileNotFoundError):
            return frozenset()
        if name_of(ids) != folder.name:
            return frozenset(ids)
        _ids[folder] = frozenset(ids)
    return _ids[folder]


def blocks_in(store: Path) -> Iterator[Block | Damaged]:
    """All blocks of a store, sorted by name; for unreadable ones, what is wrong."""
    try:
        with os.scandir(store) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield Damaged(store, f"it cannot be read ({error.strerror})")
        return
    for name in names:
        if name[0] != "." and name not in (STUDIES, CHECKS, SOURCES):
            try:
                block = read_block(store / name)
            except Damaged as error:
                block = error
            if block is not None:
                yield block
