"""Merging stores: `bench merge`.

A run's folder, or a pack, is copied into `studies/.merging` of the destination, which nothing reads, and then renamed into its place:
a process may be killed at any time, and what it leaves is removed by the next one. Nothing is written where nothing is new.
"""

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.errors import RunBusy, RunFailed, UserError
from bench.store.files import disk_errors, take_lock, unlocked
from bench.store.packs import Packs
from bench.store.record import FINISHED, RunResult, decode
from bench.store.reports import read_check, read_study
from bench.store.store import CHECKS, STUDIES
from bench.store.stores import HOW_TO_FILL
from bench.store.tables import TABLES

_WORKPLACE = ".merging"
_SECONDS = 5  # between lines on how far it is


@dataclass
class Merged:
    """What became of the runs.

    Attributes:
        copied, there, skipped: how many runs were copied, were there already, or were left where they are.
        studies, checks: how many records of studies, and of `bench check`, were copied.
        damaged: folders and files of the sources that cannot be read.
        notes: why runs were skipped.
        differing: runs that the destination keeps, although a source has another result.
    """

    copied: int = 0
    there: int = 0
    skipped: int = 0
    studies: int = 0
    checks: int = 0
    damaged: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)


def merge(sources: Sequence[Path], into: Path, say: Callable[[str], object]) -> Merged:
    """Copy what stores hold into another one. Of two records of a run a finished one stays, else that of the destination.

    Args:
        sources: stores; they are only read.
        into: the store that grows; made if needed.
        say: shows how far it is.

    Raises:
        UserError: a source is no store, the destination lies in one, or another process merges into it now.
        RunFailed: the disk is full or gone.
    """
    into = into.resolve()
    for source in sources:
        if not source.is_dir():
            raise UserError(f"there is no store {source}; {HOW_TO_FILL}")
        if source.resolve() in into.parents:
            raise UserError(
                f"{into} lies in the store {source}, which would take it for a damaged run; choose a folder outside"
            )
    for folder in (*sources, into):
        if (folder / "run.json").exists():
            raise UserError(f"{folder} is the folder of a run; name the store that it lies in")
    merging = _Merging(into)
    try:
        for source in dict.fromkeys(source.resolve() for source in sources):
            merging.store(source, say)
    finally:
        merging.close()
    return merging.merged


class _Merging:
    """Copies into a store.

    Args:
        into: its folder.
    """

    def __init__(self, into: Path) -> None:
        self.into, self.merged = into, Merged()
        self._packs = Packs(into)
        self._in_packs = self._packs.run_ids()  # to look for the others would take seconds in a store that changes
        self._workplace = into / STUDIES / _WORKPLACE
        self._lock: int | None = None
        self._moves = 0

    def store(self, source: Path, say: Callable[[str], object]) -> None:
        """Copy what a store holds: runs in folders of their own first, which come before packs, then newest packs first."""
        if self._workplace.exists():
            self._free_place()  # which removes what a killed process left
        packs = Packs(source)
        damaged, of_packs = set(packs.damaged()), sorted(packs.folders(), key=_age)
        own = sorted(
            path
            for path in source.glob("*/")
            if path.is_dir() and path not in {*of_packs, source / STUDIES, source / CHECKS}
        )
        said = time.monotonic()
        for n, folder in enumerate([*own, *of_packs]):
            if time.monotonic() - said > _SECONDS:
                said = time.monotonic()
                say(f"bench: {source}: {n} of {len(own) + len(of_packs)} folders, {self.merged.copied} runs copied")
            with unlocked(folder) as free:
                records = _records(folder)
                if not free:
                    self._skip(f"{folder} is being trained now", max(len(records), 1))
                elif folder in damaged or not _sound(records, folder.name if n < len(own) else None):
                    self.merged.damaged.append(folder)
                else:
                    with disk_errors(self.into):
                        self._folder(folder, records)
        for path in sorted((source / STUDIES).glob("*.json")):
            with disk_errors(self.into):
                self._study(path)
        for path in sorted((source / CHECKS).glob("*.json")):
            with disk_errors(self.into):
                self._check(path)

    def close(self) -> None:
        """Leave no trace of the work."""
        with suppress(OSError):
            if self._lock is None:
                self._workplace.rmdir()  # there only if the lock could not be made, or of a process that is just beginning
            else:
                shutil.rmtree(self._workplace)
            (self.into / STUDIES).rmdir()  # which it does if it is empty
        if self._lock is not None:
            os.close(self._lock)

    def _folder(self, folder: Path, records: Mapping[str, RunResult]) -> None:
        """Copy a run's folder or a pack, if something in it is wanted."""
        target = self.into / folder.name
        there = _records(target)
        known = {run_id: self._known(run_id) or there.get(run_id) for run_id in records}
        wanted = {run_id for run_id, run in records.items() if _is_better(run, known[run_id])}
        self.merged.differing += [
            run_id
            for run_id, run in records.items()
            if (other := known[run_id]) and {run.status, other.status} <= {*FINISHED} and run.outcome != other.outcome
        ]
        finished = {run_id for run_id, run in there.items() if run.status in FINISHED}
        if wanted and not finished:
            if not self._copy(folder, target, records.keys() - wanted):
                return
            finished = {*records}
            self._in_packs |= finished - {folder.name}
        elif wanted - finished:
            self._skip(f"{target} is damaged, and holds finished runs; delete it and merge again", len(wanted))
            self.merged.there += len(records) - len(wanted)
            return
        for run_id in wanted - {folder.name}:
            self._uncover(run_id)
        self.merged.copied += len(wanted)
        self.merged.there += len(records) - len(wanted)

    def _known(self, run_id: str) -> RunResult | None:
        """The run as readers of the destination see it; one whose process is gone may still say that it runs."""
        own = _records(self.into / run_id).get(run_id)
        found = self._packs.find(run_id) if own is None and run_id in self._in_packs else None
        return found[1] if found else own

    def _copy(self, folder: Path, target: Path, kept: set[str]) -> bool:
        """Put a copy of a folder in the place of whatever unfinished or damaged one is there; whether that was possible.

        Args:
            folder: what is copied.
            target: where to.
            kept: its runs for which those that the destination has must go on to be seen.
        """
        copy = self._free_place()
        try:
            _copy_files(folder, copy)
            if folder.name == next(iter(_records(copy)), None):
                _check_tables(copy)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and not _is_of(error, folder):
                raise
            self.merged.damaged.append(folder)
            return False
        if (copy / "runs.jsonl").exists():
            older = [_time(found[0]) for found in map(self._packs.find, kept) if found]
            if older and min(older) <= _time(copy):
                os.utime(copy / "runs.jsonl", ns=(min(older) - 1, min(older) - 1))
        try:
            aside = self._take_away(target)
        except RunBusy:
            self._skip(f"{target} is being trained now", len(_records(copy)))
            return False
        try:
            copy.rename(target)
        except OSError as error:
            if aside:
                with suppress(OSError):  # another may have begun the run in between
                    aside.rename(target)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._skip(f"{target} is being trained now", len(_records(copy)))
            return False
        if aside:
            shutil.rmtree(aside)
        return True

    def _take_away(self, target: Path) -> Path | None:
        """Move an unfinished or damaged run, or pack, out of its place; None if there is none.

        Raises:
            RunBusy: it is being trained, or has just been.
        """
        if not target.exists():
            return None
        lock = _take_lock(target)
        try:
            if any(run.status in FINISHED for run in _records(target).values()):
                raise RunBusy(f"{target} has just been trained by another process")
            return target.rename(self._free_place())
        finally:
            os.close(lock)

    def _uncover(self, run_id: str) -> None:
        """Take an unfinished run away that would come before the finished one in a pack."""
        own = self.into / run_id
        if run_id in _records(own):
            try:
                aside = self._take_away(own)
            except RunBusy:
                self.merged.notes.append(f"{own} is being trained now, and is seen before the finished run in its pack")
                return
            if aside:
                shutil.rmtree(aside)

    def _study(self, path: Path) -> None:
        record, target = read_study(path), self.into / STUDIES / path.name
        if record is None:
            self.merged.damaged.append(path)
            return
        there = read_study(target)
        if there is not None and there.what != record.what:  # two machines gave one name to different studies
            target = target.with_stem(f"{path.stem}-{hashlib.sha256(record.what.encode()).hexdigest()[:8]}")
            there = read_study(target)
        if there is None or there.order() < record.order():
            self._copy_record(path, target)
            self.merged.studies += 1

    def _check(self, path: Path) -> None:
        report, target = read_check(path), self.into / CHECKS / path.name
        if report is None:
            self.merged.damaged.append(path)
            return
        there = read_check(target)
        if there is None or len(there.failed) < len(report.failed):  # as boards do, the worse one counts
            self._copy_record(path, target)
            self.merged.checks += 1

    def _copy_record(self, path: Path, target: Path) -> None:
        shutil.copy2(path, copy := self._free_place())
        target.parent.mkdir(exist_ok=True)
        copy.replace(target)

    def _skip(self, why: str, runs: int) -> None:
        self.merged.notes.append(why)
        self.merged.skipped += runs

    def _free_place(self) -> Path:
        """A path that is not there, in the folder where this process alone works."""
        if self._lock is None:
            with disk_errors(self.into):
                self._workplace.mkdir(parents=True, exist_ok=True)
            try:
                self._lock = _take_lock(self._workplace)
            except RunBusy:
                raise UserError(f"another process merges into {self.into} now; wait until it has ended") from None
            for left in self._workplace.iterdir():
                if left.is_dir():
                    shutil.rmtree(left)
                elif left.name != "run.lock":
                    left.unlink()
        self._moves += 1
        return self._workplace / str(self._moves)


def _take_lock(folder: Path) -> int:
    try:
        return take_lock(folder, str(folder))
    except RunBusy:
        raise
    except UserError as error:
        raise RunFailed(str(error).rpartition(";")[0]) from None  # its advice is for those who train


def _records(folder: Path) -> dict[str, RunResult]:
    """What is readable of the runs in a folder of one run or of a pack; those of a pack in progress have no result."""
    try:
        if (folder / "runs.jsonl").exists():
            records = [decode(line) for line in (folder / "runs.jsonl").read_bytes().splitlines()]
        elif (folder / "lanes.json").exists():
            configs = json.loads((folder / "lanes.json").read_bytes())
            records = [RunResult(run_id, config) for run_id, config in configs.items()]
        else:
            records = [decode((folder / "run.json").read_bytes())]
    except (OSError, ValueError, AttributeError):
        return {}
    return {run.run_id: run for run in records if run is not None and isinstance(run.run_id, str)}


def _sound(records: Mapping[str, RunResult], name: str | None) -> bool:
    """Whether records are there, and of runs that can lie in a store: of this one, if it is no pack."""
    names = all(Path(run_id).name == run_id != ".." for run_id in records)
    return bool(records) and names and name in (None, *records)


def _is_better(run: RunResult, known: RunResult | None) -> bool:
    return known is None or (run.status in FINISHED and known.status not in FINISHED)


def _time(pack: Path) -> int:
    return (pack / "runs.jsonl").stat().st_mtime_ns


def _age(pack: Path) -> tuple[int, str]:
    """By which packs are sorted, newest first."""
    try:
        return -_time(pack), pack.name
    except OSError:
        return 0, pack.name


def _copy_files(folder: Path, to: Path) -> None:
    to.mkdir()
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise ValueError(f"{path} is no file that the suite has written")
        if path.is_dir():
            _copy_files(path, to / path.name)
        elif path.suffix != ".tmp":
            shutil.copy2(path, to / path.name)


def _check_tables(run: Path) -> None:
    """Look whether a run's tables can be read.

    Raises:
        ValueError: one cannot.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in (run / f"{table}.parquet" for table in TABLES):
        try:
            if path.exists():
                pq.read_metadata(path)
        except (OSError, pa.ArrowException) as error:
            raise ValueError(path) from error


def _is_of(error: OSError, folder: Path) -> bool:
    """Whether something in the folder could not be read; when a copy breaks, both names are told."""
    return (
        error.filename2 is None
        and isinstance(error.filename, str | Path)
        and Path(error.filename).is_relative_to(folder)
    )
