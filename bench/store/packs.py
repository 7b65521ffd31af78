"""Packs: runs that were trained together as one program, and lie in one folder of the store.

A finished pack has a line for each run in `runs.jsonl`, which is written last, and the runs' tables in `curve.parquet` and
`measurements.parquet`, sorted by run id and step. A pack in progress holds a lock on `run.lock`, names its runs in
`lanes.json`, appends its tables to `curve.raw` and `measurements.raw` and keeps `last.ckpt`.
"""

import hashlib
import json
import os
import re
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import RunBusy
from bench.store.files import disk_errors, replacing, take_lock, unlocked, write_json
from bench.store.raw_table import RawTable
from bench.store.record import RunResult, decode
from bench.store.tables import CURVE_FIELDS, TABLES
from bench.text import plain

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_PREFIX = "lanes-"
_SETTLED = 2e9  # nanoseconds after which a folder's time tells whether it has changed, on any file system


@dataclass(frozen=True)
class UnfinishedPack:
    """A pack that is being trained, or was when its process ended.

    Attributes:
        folder: where it lies.
        configs: resolved configurations by run id, in the order of the lanes.
        busy: whether a process trains it now.
    """

    folder: Path
    configs: dict[str, dict[str, Any]]
    busy: bool


class Packs:
    """The packs of a store.

    Args:
        store: the store's folder.
    """

    def __init__(self, store: Path) -> None:
        self.store = store

    def folders(self) -> list[Path]:
        """All packs, finished or not, by name."""
        try:
            now = self.store.stat()
        except OSError:
            return []
        # Looking through thousands of runs for each of them would take seconds.
        settled = time.time_ns() - now.st_mtime_ns > _SETTLED
        return _settled_folders(self.store, now.st_ino, now.st_mtime_ns) if settled else _folders(self.store)

    def run_ids(self) -> set[str]:
        """All runs in finished packs."""
        return {run_id for _, lines in self._finished() for run_id in lines}

    def find(self, run_id: str) -> tuple[Path, RunResult] | None:
        """The newest finished pack with a readable record of the run, and the record."""
        for folder, lines in self._finished():
            if run_id in lines:
                result = _record(folder, lines[run_id])
                if result is not None:
                    return folder, result
        return None

    def repeated(self) -> dict[str, list[RunResult]]:
        """Runs that lie in several finished packs, with the readable record in each, newest first."""
        packs = self._finished()
        count = Counter(run_id for _, lines in packs for run_id in lines)
        return {
            run_id: [
                record for folder, lines in packs if run_id in lines and (record := _record(folder, lines[run_id]))
            ]
            for run_id, n in count.items()
            if n > 1
        }

    def tables(self, folder: Path, run_id: str) -> dict[str, dict[str, Any]]:
        """The run's tables in this pack, as `Store.tables` gives them."""
        paths = {name: folder / f"{name}.parquet" for name in TABLES}
        return {name: _lane(path, run_id) for name, path in paths.items() if path.is_file()}

    def unfinished(self) -> list[UnfinishedPack]:
        """Packs that are being trained, or were when their process ended."""
        packs = []
        for folder in self.folders():
            configs = _configs(folder)
            if configs is not None and not (folder / "runs.jsonl").exists():
                with unlocked(folder) as free:
                    packs.append(UnfinishedPack(folder, configs, not free))
        return packs

    def damaged(self) -> list[Path]:
        """Packs that are neither in progress nor whole."""
        return [folder for folder in self.folders() if not _sound(folder)]

    def begin(self, configs: Mapping[str, dict[str, Any]]) -> "PackFolder":
        """See `Store.begin_pack`."""
        digest = hashlib.sha256("\n".join(sorted(configs)).encode()).hexdigest()
        folder = self.store / f"{_PREFIX}{digest[:10]}"
        before = _ended(folder)
        lock = take_lock(folder, f"the pack of runs {folder.name}")
        if _ended(folder) != before:  # by the process that we have waited for
            os.close(lock)
            raise RunBusy(f"the pack of runs {folder.name} has just been trained by another process")
        try:
            with disk_errors(self.store):
                known = None if (folder / "runs.jsonl").exists() else _configs(folder)
                # In another order the lanes would take over each other's data.
                resume = (folder / "last.ckpt").is_file() and list(known or ()) == list(configs)
                _clear(folder, "*.tmp" if resume else "*")
                _clear(folder, "traceback.txt")
                write_json(folder / "lanes.json", configs)
                return PackFolder(self.store, folder, list(configs), lock)
        except BaseException:
            os.close(lock)
            raise

    def _finished(self) -> list[tuple[Path, Mapping[str, tuple[int, int]]]]:
        """Finished packs, newest first, each with the places of its records."""
        found = []
        for folder in self.folders():
            with suppress(OSError):
                now = os.stat(f"{folder}/runs.jsonl")  # noqa: PTH116 - a path would double the time
                found.append((now.st_mtime_ns, folder, _lines(folder, now.st_ino, now.st_mtime_ns, now.st_size)))
        found.sort(key=lambda pack: pack[0], reverse=True)
        return [(folder, lines) for _, folder, lines in found]


class PackFolder:
    """The pack that this process trains.

    Attributes:
        folder: where it lies.
        checkpoint: where the state of the training is kept; the file is there if the pack goes on from before.
    """

    def __init__(self, store: Path, folder: Path, run_ids: Sequence[str], lock: int) -> None:
        self.store, self.folder, self.run_ids = store, folder, run_ids
        self.checkpoint = folder / "last.ckpt"
        self._lock: int | None = lock
        self._measurements, self._curve = (RawTable(folder / f"{name}.raw", len(run_ids)) for name in TABLES)

    def append_curve(self, rows: "NDArray[np.float64]") -> None:
        """Add the next steps.

        Args:
            rows: loss, gradient norm, raw step, applied step, shape (S, L, 4); NaN for what does not exist.

        Raises:
            RunFailed: the disk is full or gone.
        """
        first = self._curve.last_step + 1
        with disk_errors(self.store):
            self._curve.append(CURVE_FIELDS[1:], range(first, first + len(rows)), rows)

    def append_measurements(self, names: Sequence[str], steps: Sequence[int], values: "NDArray[np.float64]") -> None:
        """Add points.

        Args:
            names: what was measured, the same every time, M; none if the task measures nothing.
            steps: when, K, ascending.
            values: shape (K, L, M); NaN for what does not exist.

        Raises:
            RunFailed: the disk is full or gone, or the names have changed.
        """
        with disk_errors(self.store):
            self._measurements.append(names, steps, values)

    def truncate(self, steps: int) -> None:
        """Forget what comes after this step: it will be trained again.

        Raises:
            RunFailed: the disk is full or gone.
        """
        with disk_errors(self.store):
            self._curve.truncate(steps)
            self._measurements.truncate(steps)

    def end(self, results: Sequence[RunResult]) -> None:
        """Finish the pack: tables to Parquet, records, lock freed. If that fails, all is kept for another time.

        Args:
            results: in the order of the lanes; a run's tables end at its last step.

        Raises:
            RunFailed: the disk is full or gone.
        """
        assert [result.run_id for result in results] == list(self.run_ids)
        lanes = sorted((result.run_id, lane, result.steps) for lane, result in enumerate(results))
        try:
            with disk_errors(self.store):
                self._curve.end(lanes)
                self._measurements.end(lanes)
                with replacing(self.folder / "runs.jsonl") as temporary, temporary.open("w", encoding="utf-8") as file:
                    file.writelines(json.dumps(plain(vars(result)), allow_nan=False) + "\n" for result in results)
                for name in ("curve.raw", "measurements.raw", "last.ckpt", "lanes.json"):
                    (self.folder / name).unlink(missing_ok=True)
        finally:
            self._free()

    def keep_traceback(self, error: BaseException) -> Path:
        """Write down where the training broke; the pack then stays when it is abandoned. A full disk keeps nothing."""
        path = self.folder / "traceback.txt"
        with suppress(OSError):
            path.write_text("".join(traceback.format_exception(error)), "utf-8")
        return path

    def abandon(self) -> None:
        """Leave the pack for another time; without checkpoint or traceback nothing is left. After the end it does nothing."""
        if self._lock is not None and not any((self.folder / name).exists() for name in ("last.ckpt", "traceback.txt")):
            with suppress(OSError):
                _clear(self.folder, "*")
                (self.folder / "run.lock").unlink()  # last, so that nobody can begin in between
                self.folder.rmdir()
        self._free()

    def _free(self) -> None:
        for table in (self._curve, self._measurements):
            with suppress(OSError):  # a full disk has been told of
                table.close()
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None


def _folders(store: Path) -> list[Path]:
    if not store.is_dir():
        return []  # what writes to it says so
    with os.scandir(store) as entries:
        return sorted(store / entry.name for entry in entries if entry.name.startswith(_PREFIX) and entry.is_dir())


@lru_cache(maxsize=64)
def _settled_folders(store: Path, inode: int, changed: int) -> list[Path]:
    return _folders(store)


@lru_cache(maxsize=4096)
def _lines(folder: Path, inode: int, changed: int, size: int) -> Mapping[str, tuple[int, int]]:
    """Where in `runs.jsonl` a run's record begins and ends; the file is known by its inode, time and size."""
    text = (folder / "runs.jsonl").read_bytes()
    found = re.finditer(rb'^\{"run_id": "([^"]+)".*$', text, re.MULTILINE)
    return {match[1].decode(errors="replace"): match.span() for match in found}


def _record(folder: Path, place: tuple[int, int]) -> RunResult | None:
    try:
        with (folder / "runs.jsonl").open("rb") as file:
            file.seek(place[0])
            return decode(file.read(place[1] - place[0]))
    except OSError:
        return None


def _lane(path: Path, run_id: str) -> dict[str, "NDArray[np.float64]"]:
    """The columns of one run; `filters` of Parquet would look through all of them, in ten times the time."""
    import numpy as np
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, memory_map=True) as file:
        ranges = [file.metadata.row_group(i).column(0).statistics for i in range(file.num_row_groups)]
        groups = [i for i, ids in enumerate(ranges) if ids is None or ids.min <= run_id <= ids.max]
        rows = file.read_row_groups(groups, use_threads=False)
        rows = rows.filter(pc.field("run_id") == run_id).drop(["run_id"])
        return {name: rows[name].to_numpy().astype(np.float64) for name in rows.column_names}


def _configs(folder: Path) -> dict[str, dict[str, Any]] | None:
    """What `lanes.json` says, or None if there is none or it is damaged."""
    try:
        configs = json.loads((folder / "lanes.json").read_bytes())
    except (OSError, ValueError):
        return None
    return configs if isinstance(configs, dict) else None


def _sound(folder: Path) -> bool:
    """Whether a pack is in progress, or all its records and tables can be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        records = [decode(line) for line in (folder / "runs.jsonl").read_bytes().splitlines()]
    except FileNotFoundError:
        return _configs(folder) is not None
    except OSError:
        return False
    tables = [path for name in TABLES if (path := folder / f"{name}.parquet").exists()]
    try:
        for path in tables:
            pq.read_metadata(path)
    except (OSError, ValueError, pa.ArrowException):
        return False
    return bool(records) and None not in records and (bool(tables) or not any(r.steps for r in records if r))


def _ended(folder: Path) -> tuple[int, int] | None:
    """What tells one end of a pack from another, or None before the first."""
    try:
        now = (folder / "runs.jsonl").stat()
    except OSError:
        return None
    return now.st_ino, now.st_mtime_ns


def _clear(folder: Path, names: str) -> None:
    """Remove the files with these names, but not the lock."""
    for path in folder.glob(names):
        if path.name != "run.lock":
            path.unlink(missing_ok=True)
