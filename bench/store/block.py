"""A block: one or more runs that train together, in one folder of the store.

    BLOCK/lock          locked by the process that trains it
    BLOCK/runs.jsonl    records of its runs until they have finished; traceback.txt
    BLOCK/part-STEP.npz, last.ckpt    rows between two checkpoints, and the last checkpoint
    BLOCK/done/         runs.jsonl; curve.parquet, measurements.parquet

`runs.jsonl` has one record per line, in the order of the lanes. One atomic rename creates `done` with all its files;
then everything else is removed. Results that are being replaced (`--rerun`) are in `replaced` for a moment, and count
until `done` exists. Readers take no lock for longer than a look, and ignore what a
killed process left beside `done`. A block of one run has the name of the
run; the name of any other is a digest of its ids.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench.store.load import Damaged, is_there, parse_record, read_bytes
from bench.store.lock import LOCK, is_locked
from bench.store.record import RunResult
from bench.store.tables import MISSING, TABLES, Columns, parts_in, read_parquet, read_parts, rows_of

STUDIES, CHECKS = "studies", "checks"
"""The folders of a store with records other than runs (`bench.store.reports`)."""
SOURCES = "sources"
"""The folder with the source code of classes passed to the Python API. Readers never import it."""
FOLDERS = (STUDIES, CHECKS, SOURCES)
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
        at: the folder with its records and tables (`current`).
        runs: records by id, in the order of the file, without damaged ones.
        done: whether `at` holds results.
        busy: whether a process trains it now.
        places: index of each run in the block, by id.
        total: number of runs in the block, with damaged ones.
        damaged: unreadable parts.
        results: identifies the results (`ended`); None if it has none.
    """

    folder: Path
    at: Path
    runs: dict[str, RunResult]
    done: bool
    busy: bool
    places: dict[str, int]
    total: int
    damaged: list[Damaged]
    results: tuple[int, int] | None

    def tables(self, run_id: str) -> dict[str, Columns]:
        """A run's tables by name; the current ones if the block was trained further or again since it was read.

        An unfinished block that was removed meanwhile has none.

        Raises:
            Damaged: a table cannot be read, the curve of a finished run lacks rows for some steps, or the results were
                removed meanwhile.
        """
        tables, damaged = dict[str, Columns](), None
        try:
            tables = self._finished_tables(run_id) if self.done else self._parts(run_id)
        except (Damaged, FileNotFoundError) as error:  # a part may have just been dropped
            damaged = error
        if current(self.folder) != self.at or ended(self.folder) != self.results:
            now = read_block(self.folder)
            if now is not None and run_id in now.runs:
                return now.tables(run_id)
            damaged = Damaged(self.folder, "it was removed while it was being read") if self.done else None
        if isinstance(damaged, Damaged):
            raise damaged
        return tables

    def _parts(self, run_id: str) -> dict[str, Columns]:
        import numpy as np

        tables = read_parts(self.folder, self.total).tables(self.places[run_id])
        return {
            name: {column: np.where(np.isfinite(values), values, np.nan) for column, values in columns.items()}
            for name, columns in tables.items()
        }

    def _finished_tables(self, run_id: str) -> dict[str, Columns]:
        tables = {name: read_parquet(self.at / f"{name}.parquet", run_id) for name in TABLES}
        run, path = self.runs[run_id], self.at / "curve.parquet"
        steps = tables["curve"].get("step")
        rows, last = (len(steps), steps[-1]) if steps is not None and len(steps) else (0, 0)
        if rows != run.steps and not run.thinned:
            raise _misfit(path, f"it has {rows} rows of {run_id}, which took {run.steps} steps")
        if last > run.steps:
            raise Damaged(path, f"it has step {last:g} of {run_id}, which took {run.steps} steps")
        return {name: columns for name, columns in tables.items() if columns}

    def check_tables(self) -> None:
        """Check the metadata of the tables of a finished block.

        Raises:
            Damaged: one is not a table, or has a number of rows that does not match the steps.
        """
        if not self.done:
            return
        steps, thinned = sum(run.steps for run in self.runs.values()), any(run.thinned for run in self.runs.values())
        limits = {"measurements": (0, steps + self.total), "curve": (0 if thinned else steps, steps)}  # also at step 0
        for name, (least, most) in limits.items():
            path = self.at / f"{name}.parquet"
            rows = rows_of(path)
            if not self.damaged and not least <= rows <= most:
                raise _misfit(path, f"it has {rows} rows, and its runs took {steps} steps")


def _misfit(path: Path, why: str) -> Damaged:
    """What is wrong with a table whose rows do not match the records, or that is missing."""
    return Damaged(path, why if is_there(path) else MISSING)


def read_block(folder: Path) -> Block | None:
    """The content of a block's folder; None if it does not exist or is empty, as before training.

    Raises:
        Damaged: it is not a block.
    """
    if os.path.islink(folder):  # noqa: PTH114 - three times as fast
        raise Damaged(folder, "it is a symbolic link, and links are ignored; copy the folder itself")
    with suppress(FileNotFoundError):
        return _block(folder, folder / DONE)
    busy = is_locked(folder)  # before the rest: a process that has ended meanwhile has left its results
    for at in (folder / DONE, folder / REPLACED, folder):
        with suppress(FileNotFoundError):
            return _block(folder, at, busy=busy)
    try:
        names = [name for name in os.listdir(folder) if name[0] != "."]  # noqa: PTH208 - names are enough
    except FileNotFoundError:  # the process that trained it has just dropped it
        return None
    except OSError as error:
        raise Damaged(folder, f"it cannot be read ({error.strerror})") from None
    if names in ([], [LOCK]) or busy:
        return None
    raise Damaged(folder, f"it has neither results nor {RUNS}")


def readable(folder: Path) -> Block | None:
    """The content of a block's folder; None if it is not a block."""
    try:
        return read_block(folder)
    except Damaged:
        return None


def results_in(folder: Path) -> Path | None:
    """The folder with the results of a block; None if it has none."""
    return next((folder / name for name in (DONE, REPLACED) if is_there(folder / name / RUNS)), None)


def ended(folder: Path) -> tuple[int, int] | None:
    """Identifies the current results of a block; None if it has none."""
    results = results_in(folder)
    found = None if results is None else is_there(results / RUNS)
    return None if found is None else _state(found)


def _state(found: os.stat_result) -> tuple[int, int]:
    return found.st_ino, found.st_mtime_ns


def current(folder: Path) -> Path:
    """The folder from which a block is read: its results, else the block itself."""
    return results_in(folder) or folder


def _block(folder: Path, at: Path, *, busy: bool = False) -> Block:
    """The block with the records in `at`, its results or the block itself.

    Raises:
        FileNotFoundError: there are no records.
        Damaged: its records do not match its name or their place.
    """
    done = at != folder
    busy = busy and not done
    path = at / RUNS
    found = is_there(path)  # before the content: a later change shows
    lines = read_bytes(path).splitlines()
    if os.path.islink(at):  # noqa: PTH114 - three times as fast
        raise Damaged(at, "it is a link")
    runs, places, damaged = dict[str, RunResult](), dict[str, int](), list[Damaged]()
    for place, line in enumerate(lines):
        try:
            run = parse_record(line, path)
        except Damaged as error:
            damaged.append(Damaged(path, f"line {place + 1}: {error.why}" if len(lines) > 1 else error.why))
        else:
            runs[run.run_id], places[run.run_id] = run, place
    if not lines:
        raise Damaged(path, "it is empty")
    if len(lines) == 1:
        right = not runs or folder.name in runs
    else:
        right = folder.name.startswith(PREFIX) if damaged else name_of(list(runs)) == folder.name
    if len(runs) + len(damaged) != len(lines) or not right:
        raise Damaged(path, f"its records do not belong to {folder.name}")
    if wrong := [run for run in runs.values() if run.finished != done]:
        raise Damaged(path, f"{wrong[0].run_id} has the impossible status {wrong[0].status}")
    if not (done or busy):
        where = "" if is_there(at / CHECKPOINT) else ", before its first checkpoint"
        steps = max((step for step, _ in parts_in(folder)), default=0)  # the record may be older
        reason = f"its process ended without a message{where}"
        for run in [run for run in runs.values() if run.status == "running"]:
            runs[run.run_id] = replace(run, status="killed", reason=reason, steps=max(run.steps, steps))
    return Block(folder, at, runs, done, busy, places, len(lines), damaged, _state(found) if done and found else None)


_ids = dict[Path, frozenset[str]]()
"""The ids of the runs in blocks whose name is the digest of these ids, so they stay valid."""


def ids_in(folder: Path) -> frozenset[str]:
    """The ids of the runs in a block of several runs."""
    if folder not in _ids:
        try:
            ids = [run_id.decode() for run_id in _RUN_ID.findall(read_bytes(current(folder) / RUNS))]
        except (Damaged, FileNotFoundError):
            return frozenset()
        if name_of(ids) != folder.name:  # a record is damaged, or another program wrote it
            block = readable(folder)
            return frozenset(block.runs if block is not None else ())
        _ids[folder] = frozenset(ids)
    return _ids[folder]


def blocks_in(store: Path) -> Iterator[Block | Damaged]:
    """All blocks of a store, sorted by name; for unreadable ones, what is wrong."""
    try:
        with os.scandir(store) as entries:
            there = [each.name for each in entries if each.name[0] != "." and (each.is_symlink() or each.is_dir())]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield Damaged(store, f"it cannot be read ({error.strerror})")
        return
    for name in sorted({*there}.difference(FOLDERS)):
        try:
            block = read_block(store / name)
        except Damaged as error:
            block = error
        if block is not None:
            yield block
