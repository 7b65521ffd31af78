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
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.store.claims import is_alive
from bench.store.load import Damaged, is_there, parse_record, read_bytes
from bench.store.record import RunResult
from bench.store.tables import TABLES, Columns, has_ends, last_step, read_parquet, read_raw, rows_of

STUDIES, CHECKS, LADDERS, PLANS = "studies", "checks", "ladders", "plans"
"""The folders of a store with records other than runs (`bench.store.reports`)."""
SOURCES = "sources"
"""The folder with the source code of classes passed to the Python API. Readers never import it."""
FOLDERS = (STUDIES, CHECKS, LADDERS, PLANS, SOURCES)
PREFIX = "block-"
DONE, REPLACED = "done", "replaced"
RUNS, CHECKPOINT, TRACEBACK = "runs.jsonl", "last.ckpt", "traceback.txt"
_ATTEMPT = re.compile(r"attempt-([1-9]\d{0,8})")
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
        at: its subfolder with records and tables: the results, or the newest attempt.
        runs: records by id, in the order of the file, without damaged ones.
        done: whether `at` holds results.
        busy: whether a process trains it now.
        places: index of each run in the block, by id.
        total: number of runs in the block, with damaged ones.
        damaged: unreadable parts.
    """

    folder: Path
    at: Path
    runs: dict[str, RunResult] = field(default_factory=dict)
    done: bool = True
    busy: bool = False
    places: dict[str, int] = field(default_factory=dict)
    total: int = 0
    damaged: tuple[Damaged, ...] = ()

    def tables(self, run_id: str) -> dict[str, Columns]:
        """A run's tables by name; the final ones if the block has finished since it was read.

        An unfinished block that was removed meanwhile has none.

        Raises:
            Damaged: a table cannot be read, or the curve of a finished run lacks rows for some steps.
        """
        try:
            found, damaged = self._read_tables(run_id), None
        except Damaged as error:
            found, damaged = {}, error
        if len(found) < len(TABLES) and not self._is_current():
            now = read_block(self.folder)
            if now is not None and run_id in now.runs:
                return now.tables(run_id)
            if not self.done:
                return {}
        if damaged is not None:
            raise damaged
        return found

    def _read_tables(self, run_id: str) -> dict[str, Columns]:
        if not self.done:
            place = self.places[run_id]
            found = {name: read_raw(self.at / f"{name}.raw", self.total, place) for name in TABLES}
            return {name: columns for name, columns in found.items() if columns}
        found = {name: read_parquet(self.at / f"{name}.parquet", run_id) for name in TABLES}
        run, rows = self.runs[run_id], len(found["curve"].get("step", ()))
        if rows != run.steps and not run.thinned:
            raise Damaged(self.at / "curve.parquet", f"it has {rows} rows of {run_id}, which took {run.steps} steps")
        return {name: columns for name, columns in found.items() if columns}

    def _is_current(self) -> bool:
        """Whether the block would still be read from the same folder."""
        if self.done:
            return results_in(self.folder) == self.at
        return results_in(self.folder) is None and any(path == self.at for _, path in attempts(self.folder)[:1])

    def check_ends(self) -> None:
        """Check quickly that the tables of a finished block exist and are not truncated.

        Raises:
            Damaged: one is missing or truncated.
        """
        if not self.done:
            return
        there = {name: has_ends(self.at / f"{name}.parquet") for name in TABLES}
        if not there["curve"] and any(run.steps and not run.thinned for run in self.runs.values()):
            raise Damaged(self.at / "curve.parquet", "it does not exist")

    def check_tables(self) -> None:
        """Check the tables of a finished block without reading their values.

        Raises:
            Damaged: one is not a table, has rows of other runs, or a number of rows that does not match the steps.
        """
        if not self.done:
            return
        ids = None if self.damaged else self.runs
        found = {name: rows_of(self.at / f"{name}.parquet", ids) for name in TABLES}
        if self.damaged:
            return
        steps, thinned = sum(run.steps for run in self.runs.values()), any(run.thinned for run in self.runs.values())
        for name, most in (("curve", steps), ("measurements", steps + self.total)):  # measurements include step 0
            rows, exact = found[name], name == "curve" and not thinned
            if rows > most or (exact and rows < most):
                path = self.at / f"{name}.parquet"
                raise Damaged(path, f"it has {rows} rows, and its runs took {steps} steps")


def read_block(folder: Path) -> Block | None:
    """The content of a block's folder; None if it does not exist or is empty, as before training.

    Raises:
        Damaged: it is not a block.
    """
    if os.path.islink(folder):  # noqa: PTH114 - three times as fast
        raise Damaged(folder, "it is a symbolic link; copy the folder itself")
    try:
        return _finished(folder, folder / DONE)
    except FileNotFoundError:
        return _unfinished(folder)


def results_in(folder: Path) -> Path | None:
    """The folder with the results of a block; None if it has none."""
    return next((folder / name for name in (DONE, REPLACED) if is_there(folder / name / RUNS)), None)


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


def _finished(folder: Path, results: Path) -> Block:
    """The block with these results; FileNotFoundError if there are none."""
    path = results / RUNS
    text = read_bytes(path)
    if os.path.islink(results):  # noqa: PTH114 - three times as fast
        raise Damaged(results, "it is a link")
    records, damaged = _records(path, text)
    return _block(folder, results, records, damaged)


def _unfinished(folder: Path) -> Block | None:
    """The block without `done`; read again if it finishes meanwhile."""
    with suppress(FileNotFoundError):
        return _finished(folder, folder / REPLACED)
    newest = next(iter(attempts(folder)), None)
    if newest is None:
        return _begun(folder)
    path = newest[1]
    alive = is_alive(path)
    try:
        text = read_bytes(path / RUNS)
    except FileNotFoundError:
        text = None
    if not alive or text is None:
        if results_in(folder) or attempts(folder)[:1] != [newest]:
            return read_block(folder)
        if text is None:
            raise Damaged(path, f"it has no {RUNS}")
    assert text is not None
    records, damaged = _records(path / RUNS, text)
    if not alive:
        where = "" if is_there(path / CHECKPOINT) else ", before its first checkpoint"
        steps = last_step(path / "curve.raw", len(records))  # the record may be older than the table
        reason = f"its process ended without a message{where}"
        records = [
            replace(run, status="killed", reason=reason, steps=max(run.steps, steps))
            if run is not None and run.status == "running"
            else run
            for run in records
        ]
    return _block(folder, path, records, damaged, done=False, busy=alive)


def _begun(folder: Path) -> Block | None:
    """A block without results or attempts: None if it is empty or missing."""
    if any(is_there(folder / name) for name in _OLD):
        raise Damaged(folder, "it has an older store format, which this version cannot read; train it again")
    try:
        with os.scandir(folder) as entries:
            left = [entry.name for entry in entries if not entry.name.startswith(".")]
    except FileNotFoundError:  # the process that trained it has just dropped it
        return None
    except OSError as error:
        raise Damaged(folder, f"it cannot be read ({error.strerror})") from None
    if not left:
        return None
    if results_in(folder) or attempts(folder):
        return read_block(folder)
    raise Damaged(folder, "it contains neither results nor an attempt")


def _records(path: Path, text: bytes) -> tuple[list[RunResult | None], list[Damaged]]:
    records: list[RunResult | None] = []
    damaged, lines = [], text.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            records.append(parse_record(line, path))
        except Damaged as error:
            records.append(None)
            damaged.append(Damaged(path, f"line {number}: {error.why}" if len(lines) > 1 else error.why))
    return records, damaged


def _block(
    folder: Path,
    at: Path,
    records: Sequence[RunResult | None],
    damaged: Sequence[Damaged],
    *,
    done: bool = True,
    busy: bool = False,
) -> Block:
    """The block, if its records match its name."""
    runs = {run.run_id: run for run in records if run is not None}
    places = {run.run_id: place for place, run in enumerate(records) if run is not None}
    if len(records) == 1:
        right = not runs or folder.name in runs
    else:
        right = folder.name.startswith("block-") if damaged else name_of(list(runs)) == folder.name
    if not records:
        raise Damaged(at / RUNS, "it is empty")
    if len(runs) + len(damaged) != len(records) or not right:
        raise Damaged(at / RUNS, f"its records do not belong to {folder.name}")
    if wrong := [run for run in runs.values() if run.finished != done]:
        raise Damaged(at / RUNS, f"{wrong[0].run_id} has the impossible status {wrong[0].status}")
    return Block(folder, at, runs, done, busy, places, len(records), tuple(damaged))


def names_in(folder: Path) -> tuple[list[str], bool]:
    """The ids of the runs in a block, and whether they are final: the block's name is the digest of these ids."""
    newest = attempts(folder)[:1]
    for at in (results_in(folder), *(path for _, path in newest)):
        with suppress(Damaged, FileNotFoundError):
            found = _RUN_ID.findall(read_bytes(at / RUNS)) if at is not None else []
            ids = [each.decode() for each in found]
            if ids and name_of(ids) == folder.name:
                return ids, True
    with suppress(Damaged):  # a record is damaged, or another program wrote it
        block = read_block(folder)
        return list(block.runs) if block is not None else [], False
    return [], False


def _may_be_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: to be reported
        return True


def blocks_in(store: Path) -> Iterator[Block | Damaged]:
    """All blocks of a store, sorted by name; for unreadable ones, what is wrong."""
    try:
        with os.scandir(store) as entries:
            there = [each.name for each in entries if each.name[0] != "." and _may_be_folder(each)]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield Damaged(store, f"it cannot be read ({error.strerror})")
        return
    for name in sorted(there):
        folder = store / name
        if name in FOLDERS:
            continue
        try:
            block = read_block(folder)
        except Damaged as error:
            block = error
        if block is not None:
            yield block
