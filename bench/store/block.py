"""A block: one or more runs that train together, in one folder of the store.

    BLOCK/attempt-N/    claim.json while a process trains it; runs.jsonl; curve.raw, measurements.raw; last.ckpt;
                        traceback.txt
    BLOCK/done/         runs.jsonl; curve.parquet, measurements.parquet

`runs.jsonl` has one record per line, in the order of the lanes. One atomic rename creates `done` with all its files;
then the attempts are removed. An attempt is also created by a rename, so that only one of two processes gets it.
Results that are being replaced (`--rerun`) are in `replaced` for a moment, and count until `done` exists. A `done`
without readable results of the block is renamed to `done.unreadable`. Readers ignore it, and attempts that remain
beside `done` after a kill. A block of one run has the name of the run; the name of any other is a digest of its ids.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench.store.claims import is_alive
from bench.store.load import Damaged, is_there, parse_record, read_bytes
from bench.store.record import RunResult
from bench.store.tables import MISSING, TABLES, Columns, has_ends, last_step, read_parquet, read_raw, rows_of

STUDIES, CHECKS, CUTS = "studies", "checks", "cuts"
"""The folders of a store with records other than runs (`bench.store.reports`, `bench.execute.plan`)."""
SOURCES = "sources"
"""The folder with the source code of classes passed to the Python API. Readers never import it."""
FOLDERS = (STUDIES, CHECKS, CUTS, SOURCES)
PREFIX = "block-"
DONE, REPLACED = "done", "replaced"
RUNS, CHECKPOINT, TRACEBACK = "runs.jsonl", "last.ckpt", "traceback.txt"
_ATTEMPT = re.compile(r"attempt-([1-9][0-9]*)")
_RUN_ID = re.compile(rb'^\{"run_id": "([\w.+-]+)"', re.MULTILINE | re.ASCII)
_OLD = ("run.json", "lanes.json", RUNS)
"""Files in a run's folder in older store formats."""


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
        at: its subfolder with records and tables (`current`).
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
        """A run's tables by name; the current ones if the block has finished or was trained again since it was read.

        An unfinished block that was removed meanwhile has none.

        Raises:
            Damaged: a table cannot be read, the curve of a finished run lacks rows for some steps, or the results were
                removed meanwhile.
        """
        try:
            found, damaged = self._read_tables(run_id), None
        except Damaged as error:
            found, damaged = {}, error
        changed = len(found) < len(TABLES) and (current(self.folder) != self.at or ended(self.folder) != self.results)
        if changed:  # it has other results or another attempt than when it was read
            now = read_block(self.folder)
            if now is not None and run_id in now.runs:
                return now.tables(run_id)
            if not self.done:
                return {}
            damaged = Damaged(self.folder, "it was removed while it was being read")
        if damaged is not None:
            raise damaged
        return found

    def _read_tables(self, run_id: str) -> dict[str, Columns]:
        if self.done:
            found = {name: read_parquet(self.at / f"{name}.parquet", run_id) for name in TABLES}
            run, path = self.runs[run_id], self.at / "curve.parquet"
            steps = found["curve"].get("step")
            rows, last = (len(steps), steps[-1]) if steps is not None and len(steps) else (0, 0)
            if rows != run.steps and not run.thinned:
                raise _misfit(path, f"it has {rows} rows of {run_id}, which took {run.steps} steps")
            if last > run.steps:
                raise Damaged(path, f"it has step {last:g} of {run_id}, which took {run.steps} steps")
        else:
            place = self.places[run_id]
            found = {name: read_raw(self.at / f"{name}.raw", self.total, place) for name in TABLES}
        return {name: columns for name, columns in found.items() if columns}

    def check_ends(self) -> None:
        """Check quickly that the tables of a finished block exist and are not truncated.

        Raises:
            Damaged: one is missing or truncated.
        """
        there = {name: has_ends(self.at / f"{name}.parquet") for name in TABLES if self.done}
        if not there.get("curve", True) and any(run.steps and not run.thinned for run in self.runs.values()):
            raise Damaged(self.at / "curve.parquet", MISSING)

    def check_tables(self, *, values: bool = False) -> None:
        """Check the tables of a finished block: their metadata, or also their values.

        Raises:
            Damaged: one is not a table, has rows of other runs, or a number of rows that does not match the steps.
        """
        if not self.done:
            return
        steps, thinned = sum(run.steps for run in self.runs.values()), any(run.thinned for run in self.runs.values())
        limits = {"measurements": (0, steps + self.total), "curve": (0 if thinned else steps, steps)}  # also at step 0
        for name, (least, most) in limits.items():
            path = self.at / f"{name}.parquet"
            rows = rows_of(path, values=values)
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
    at, damaged = current(folder), None
    try:
        found = _without_results(folder) if at is None else _block(folder, at)
        if found is not None and (found.done or found.busy):
            return found
    except FileNotFoundError:
        found, damaged = None, Damaged(at or folder, f"it has no {RUNS}")
    except Damaged as error:
        found, damaged = None, error
    if current(folder) != at:  # it has just ended, or begun again
        return read_block(folder)
    if damaged is not None:
        raise damaged
    return found


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


def attempts(folder: Path) -> list[tuple[int, Path]]:
    """The attempts at a block, newest first."""
    try:
        with os.scandir(folder) as entries:
            found = [
                (int(match[1]), folder / each.name)
                for each in entries
                if (match := _ATTEMPT.fullmatch(each.name)) and each.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []
    return sorted(found, reverse=True)


def current(folder: Path) -> Path | None:
    """The subfolder from which a block is read: its results, else its newest attempt, if any."""
    return results_in(folder) or next((path for _, path in attempts(folder)), None)


def _without_results(folder: Path) -> None:
    """A folder without results or attempts must be empty or missing."""
    if any(is_there(folder / name) for name in _OLD):
        raise Damaged(folder, "it has an older store format, which this version cannot read; train it again")
    try:
        with os.scandir(folder) as entries:
            left = any(not entry.name.startswith(".") for entry in entries)
    except FileNotFoundError:  # the process that trained it has just dropped it
        return
    except OSError as error:
        raise Damaged(folder, f"it cannot be read ({error.strerror})") from None
    if left:
        raise Damaged(folder, "it contains neither results nor an attempt")


def _block(folder: Path, at: Path) -> Block:
    """The block with these results or this attempt.

    Raises:
        FileNotFoundError: there are no records.
        Damaged: its records do not match its name or their place.
    """
    done = at.name in (DONE, REPLACED)
    busy = not done and is_alive(at)  # before its records are read
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
        steps = last_step(at / "curve.raw", len(lines))  # the record may be older than the table
        reason = f"its process ended without a message{where}"
        for run in [run for run in runs.values() if run.status == "running"]:
            runs[run.run_id] = replace(run, status="killed", reason=reason, steps=max(run.steps, steps))
    return Block(folder, at, runs, done, busy, places, len(lines), damaged, _state(found) if done and found else None)


def names_in(folder: Path) -> tuple[list[str], bool]:
    """The ids of the runs in a block, and whether they are final: the block's name is the digest of these ids."""
    with suppress(Damaged, FileNotFoundError):
        found = _RUN_ID.findall(read_bytes((current(folder) or folder) / RUNS))
        ids = [each.decode() for each in found]
        if ids and name_of(ids) == folder.name:
            return ids, True
    block = readable(folder)  # a record is damaged, or another program wrote it
    return list(block.runs) if block is not None else [], False


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
