"""A block: runs that train together, from one to many, in one folder of the store.

    BLOCK/attempt-N/    claim.json while a process trains it; runs.jsonl; curve.raw, measurements.raw; last.ckpt; traceback.txt
    BLOCK/done/         runs.jsonl; curve.parquet, measurements.parquet

`runs.jsonl` has a record a line, in the order in which the runs lie beside each other. `done` comes into its place in one
atomic step, with all that is in it; then the attempts go. An attempt comes into its place the same way, so of two processes one gets it.
What a process that is killed just then leaves of its attempts is read by nobody. A block of one run has the name of the run, any other a digest of its ids.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from bench.store.claims import is_alive
from bench.store.load import Damaged, is_there, parse_record, read_bytes
from bench.store.record import FINISHED, RunResult
from bench.store.tables import TABLES, Columns, read_parquet, read_raw, rows_of

STUDIES, CHECKS = "studies", "checks"
"""The folders of a store with records that are no runs (`bench.store.reports`)."""
FOLDERS = (STUDIES, CHECKS)
PREFIX = "block-"
DONE, RUNS, CHECKPOINT, TRACEBACK = "done", "runs.jsonl", "last.ckpt", "traceback.txt"
_ATTEMPT = re.compile(r"attempt-([1-9]\d{0,8})")
_OLD = ("run.json", "lanes.json", RUNS)
"""What lay in a run's folder in the formats of before."""


def name_of(run_ids: Sequence[str]) -> str:
    """The name of the block of these runs."""
    if len(run_ids) == 1:
        return run_ids[0]
    return PREFIX + hashlib.sha256("\n".join(run_ids).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Block:
    """A block as it is found.

    Attributes:
        folder: where it lies.
        runs: records by id, in the order in which they lie; what is damaged is left out.
        attempt: the folder of the newest attempt where it has no results, else None.
        busy: whether a process trains it now.
        places: of each run among all that train together.
        total: how many those are.
        damaged: what could not be read.
    """

    folder: Path
    runs: dict[str, RunResult] = field(default_factory=dict)
    attempt: Path | None = None
    busy: bool = False
    places: dict[str, int] = field(default_factory=dict)
    total: int = 0
    damaged: tuple[Damaged, ...] = ()

    def tables(self, run_id: str) -> dict[str, Columns]:
        """A run's tables by name.

        Raises:
            Damaged: one cannot be read, or the curve of a finished run has not a row for each of its steps.
        """
        if self.attempt is not None:
            place = self.places[run_id]
            found = {name: read_raw(self.attempt / f"{name}.raw", self.total, place) for name in TABLES}
            return {name: columns for name, columns in found.items() if columns}
        found = {name: read_parquet(self.folder / DONE / f"{name}.parquet", run_id) for name in TABLES}
        run, rows = self.runs[run_id], len(found["curve"].get("step", ()))
        if rows != run.steps and not run.thinned:
            raise Damaged(
                self.folder / DONE / "curve.parquet", f"it has {rows} rows of {run_id}, which made {run.steps} steps"
            )
        return {name: columns for name, columns in found.items() if columns}

    def check_tables(self) -> None:
        """Look whether the tables of a finished block can be there, without reading their values.

        Raises:
            Damaged: one is none, or has more or fewer rows than the runs made steps.
        """
        if self.attempt is not None:
            return
        found = {name: rows_of(self.folder / DONE / f"{name}.parquet") or 0 for name in TABLES}
        if self.damaged:
            return
        steps, thinned = sum(run.steps for run in self.runs.values()), any(run.thinned for run in self.runs.values())
        for name, most in (("curve", steps), ("measurements", steps + self.total)):  # which begin at step 0
            rows, exact = found[name], name == "curve" and not thinned
            if rows > most or (exact and rows < most):
                path = self.folder / DONE / f"{name}.parquet"
                raise Damaged(path, f"it has {rows} rows, and its runs made {steps} steps")


def read_block(folder: Path) -> Block | None:
    """What is in the folder of a block; None if it is empty, as one that is about to begin.

    Raises:
        Damaged: it is no block.
    """
    done = folder / DONE
    try:
        text = read_bytes(done / RUNS)
        if os.path.islink(done):  # noqa: PTH114 - three times as fast
            raise Damaged(done, "it is a link")
    except FileNotFoundError:
        return _unfinished(folder)
    records, damaged = _records(done / RUNS, text)
    return _block(folder, records, damaged)


def attempts(folder: Path) -> list[tuple[int, Path]]:
    """The attempts at a block, newest first."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - five times as fast
    except OSError:
        return []
    found = [(int(match[1]), folder / name) for name in names if (match := _ATTEMPT.fullmatch(name))]
    return sorted(found, reverse=True)


def _unfinished(folder: Path) -> Block | None:
    newest = next(iter(attempts(folder)), None)
    if newest is None:
        if any(is_there(folder / name) for name in _OLD):
            raise Damaged(
                folder, "it is of an older format of stores, which this version does not read; train it again"
            )
        try:
            with os.scandir(folder) as entries:
                left = [entry.name for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            raise Damaged(folder, f"it cannot be read ({error.strerror})") from None
        if left:
            raise Damaged(folder, "it holds neither results nor an attempt at them")
        return None
    path = newest[1]
    alive = is_alive(path)
    try:
        text = read_bytes(path / RUNS)
    except FileNotFoundError:
        if path.exists():
            raise Damaged(path, f"it has no {RUNS}") from None
        return read_block(folder)  # it has ended in between
    records, damaged = _records(path / RUNS, text)
    if not alive:
        where = "" if is_there(path / CHECKPOINT) else ", before its first checkpoint"
        records = [
            replace(run, status="killed", reason=f"its process ended without a word{where}")
            if run is not None and run.status == "running"
            else run
            for run in records
        ]
    return _block(folder, records, damaged, path, alive)


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
    records: Sequence[RunResult | None],
    damaged: Sequence[Damaged],
    attempt: Path | None = None,
    busy: bool = False,
) -> Block:
    """The block, if its records are those of its name."""
    path = (attempt or folder / DONE) / RUNS
    runs = {run.run_id: run for run in records if run is not None}
    places = {run.run_id: place for place, run in enumerate(records) if run is not None}
    if len(records) == 1:
        right = not runs or folder.name in runs
    else:
        right = bool(damaged) or name_of(list(runs)) == folder.name
    if not records:
        raise Damaged(path, "it is empty")
    if len(runs) + len(damaged) != len(records) or not right:
        raise Damaged(path, f"its records are not those of {folder.name}")
    if wrong := [run for run in runs.values() if (run.status in FINISHED) != (attempt is None)]:
        raise Damaged(path, f"{wrong[0].run_id} cannot be {wrong[0].status} there")
    return Block(folder, runs, attempt, busy, places, len(records), tuple(damaged))


@lru_cache(maxsize=4096)
def _index(path: Path, inode: int, changed: int, size: int) -> frozenset[str]:
    """The ids that stand in a file of records; it is known by its inode, time and size."""
    try:
        text = read_bytes(path)
    except (Damaged, FileNotFoundError):
        return frozenset()
    return frozenset(
        each.decode(errors="replace") for each in re.findall(rb'^\{"run_id": "([^"]+)"', text, re.MULTILINE)
    )


def names_in(folder: Path) -> frozenset[str]:
    """The ids of the runs in a block, without looking whether their records are sound."""
    for path in (folder / DONE / RUNS, *(attempt / RUNS for _, attempt in attempts(folder)[:1])):
        if (found := is_there(path)) is not None:
            return _index(path, found.st_ino, found.st_mtime_ns, found.st_size)
    return frozenset()


def blocks_in(store: Path) -> Iterator[Block | Damaged]:
    """All blocks of a store by name, or what is wrong with them."""
    try:
        with os.scandir(store) as entries:
            there = {each.name: each.is_symlink() for each in entries if each.name[0] != "." and each.is_dir()}
    except OSError:
        return
    for name, is_link in sorted(there.items()):
        folder = store / name
        if name in FOLDERS:
            continue
        try:
            block = Damaged(folder, "it is a link; copy the folder itself") if is_link else read_block(folder)
        except Damaged as error:
            block = error
        if block is not None:
            yield block
