"""A block: one or more runs that train together, in one folder of the store.

    BLOCK/lock          locked by the process that trains it
    BLOCK/runs.jsonl    records of its runs until they have finished
    BLOCK/part-STEP.TABLE.parquet, last.ckpt    rows between two checkpoints, and the last checkpoint
    BLOCK/done/         runs.jsonl; curve.parquet, measurements.parquet

`runs.jsonl` has one record per line, in the order of the lanes. One atomic rename creates `done` with all its files;
then everything else is removed. Readers take no lock for longer than a look, and ignore what a killed process left
beside `done`. A block of one run has the name of the run; the name of any other is a digest of its ids.
"""

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from bench.errors import RunBusy, UserError
from bench.store.files import Damaged, is_there, read_bytes
from bench.store.record import RunResult, parse_record
from bench.store.tables import TABLES, Columns, parts_in, read_cached

PREFIX = "block-"
RUNS, DONE, LOCK, CHECKPOINT = "runs.jsonl", "done", "lock", "last.ckpt"
TRIES, PAUSE_SECONDS = 20, 0.005
"""Readers that look whether a block is locked hold a shared lock for an instant, so taking it is repeated. Ours."""

_held: set[tuple[int, int] | None] = set()


def name_of(run_ids: Sequence[str]) -> str:
    """The name of the block of these runs."""
    if len(run_ids) == 1:
        return run_ids[0]
    return PREFIX + hashlib.sha256("\n".join(run_ids).encode()).hexdigest()[:16]


class Lock(AbstractContextManager["Lock"]):
    """The lock of a block's folder, which is created if needed, until `release`; the kernel drops it with the process.

    POSIX drops all locks of a process on a file as soon as the process closes any descriptor of that file, so a file
    whose lock this process holds is never opened a second time. A child that was forked does not have the lock.

    If it is taken, also by this process, it raises RunBusy; UserError if the file system has no locks.
    """

    def __init__(self, folder: Path, what: str = "") -> None:
        self.path = folder / LOCK
        for _ in range(TRIES):
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # a process that ends just now removes an empty folder
                if _inode(self.path) not in _held:
                    self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                    if _try_lock(self._handle, fcntl.LOCK_EX, self.path) and self.is_intact:
                        self._inode = _inode(self._handle)
                        _held.add(self._inode)
                        return
                    os.close(self._handle)  # taken, or of a file that was removed meanwhile
            time.sleep(PAUSE_SECONDS)
        raise RunBusy(f"{what or folder} is in training by another process")

    def __exit__(self, *error: object) -> None:
        self.release()

    @property
    def is_intact(self) -> bool:
        """Whether the locked file still is the one in the folder."""
        return self._handle >= 0 and _inode(self.path) == _inode(self._handle)

    def release(self) -> None:
        """Remove the file, drop the lock, and remove the folder if it is empty; does nothing the second time."""
        if self._handle >= 0:
            if self.is_intact:
                self.path.unlink(missing_ok=True)
            os.close(self._handle)
            _held.discard(self._inode)
            self._handle = -1
            with suppress(OSError):
                self.path.parent.rmdir()


def is_locked(folder: Path) -> bool:
    """Whether a process trains the block in this folder."""
    path = folder / LOCK
    if (inode := _inode(path)) is None or inode in _held:
        return inode is not None
    with suppress(OSError, UserError), path.open("rb") as file:  # it was just removed, or belongs to another user
        return not _try_lock(file.fileno(), fcntl.LOCK_SH, path)
    return False


def _try_lock(handle: int, kind: int, path: Path) -> bool:
    try:
        fcntl.lockf(handle, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        why = f"cannot lock {path} ({error.strerror}); use a disk with locks, such as a local one"
        raise UserError(why) from None
    return True


def _inode(file: Path | int) -> tuple[int, int] | None:
    with suppress(OSError):
        state = os.stat(file)  # noqa: PTH116 - also of a descriptor
        return state.st_dev, state.st_ino
    return None


@dataclass(frozen=True)
class Block:
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
        paths = [path for name in TABLES if is_there(path := self.folder / DONE / f"{name}.parquet")]
        tables = {path.stem: read_cached((path,), wanted, *_version(path)).get(run_id, {}) for path in paths}
        steps, rows = self.runs[run_id].steps, len(tables.get("curve", {}).get("step", ()))
        if rows != steps and not self.runs[run_id].thinned:
            why = f"it has {rows} rows of {run_id}, which took {steps} steps"
            raise Damaged(self.folder / DONE / "curve.parquet", why)
        return {name: columns for name, columns in tables.items() if columns}


def _version(path: Path) -> tuple[int, ...]:
    """Tells whether a file has been replaced."""
    state = path.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


def read_block(folder: Path) -> Block | None:
    """The content of a block's folder; None if there is nothing in it, `Damaged` if its records cannot be read."""
    done = folder / DONE
    for _ in range(2):  # it may have finished between the looks at its results and its records
        busy = not is_there(done / RUNS) and is_locked(folder)  # before reading: a process that ends leaves results
        with suppress(FileNotFoundError):
            if is_there(done / RUNS):
                return Block(folder, _finished_records(done / RUNS, folder.name, *_version(done / RUNS)), done=True)
            if not os.path.lexists(done):
                return Block(folder, _unfinished(folder, busy=busy), busy=busy)
    if os.path.lexists(done):
        raise Damaged(done, f"it has no {RUNS}")
    return None


def _unfinished(folder: Path, *, busy: bool) -> dict[str, RunResult]:
    runs = _records(folder / RUNS, folder.name)
    steps = max((step for step, _ in parts_in(folder)), default=0)  # the record may be older
    where = "" if is_there(folder / CHECKPOINT) else ", before its first checkpoint"
    reason = f"its process ended without a message{where}"
    for run in () if busy else [run for run in runs.values() if run.status == "running"]:
        runs[run.run_id] = replace(run, status="killed", reason=reason, steps=max(run.steps, steps))
    return runs


def _records(path: Path, name: str, *version: int) -> dict[str, RunResult]:
    """The records of the block of this name, by id; FileNotFoundError if there are none."""
    runs = {run.run_id: run for run in (parse_record(line, path) for line in read_bytes(path).splitlines())}
    if name_of(list(runs)) != name or any(run.finished != (path.parent.name == DONE) for run in runs.values()):
        raise Damaged(path, f"it has not the records of {name}, or they have an impossible status")
    return runs


_finished_records = lru_cache(maxsize=10_000)(_records)


def blocks_in(store: Path, run_ids: Set[str] | None = None) -> Iterator[Block | Damaged]:
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
