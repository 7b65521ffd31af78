"""Merging stores: `bench merge`.

Only files that the suite writes are copied, and only from blocks with valid records and the number of rows that these
declare. Copies are written to a hidden folder of the destination and then renamed, so the process may be killed at any
time; the same command continues. Nothing is written if nothing is new.
"""

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from bench.errors import RunBusy, UserError
from bench.store.attempt import commit, prepare, write_block, write_records
from bench.store.block import CHECKPOINT, DONE, RUNS, Block, attempts, blocks_in, ended, name_of, read_block, readable
from bench.store.claims import beating, is_alive
from bench.store.files import copy, disk_errors, making, move, remove, remove_empty, replacing
from bench.store.load import Damaged, is_there, read_bytes
from bench.store.reports import KINDS, Record, read_report, reports_in
from bench.store.store import Store
from bench.store.stores import no_store
from bench.store.tables import TABLES
from bench.text import counted

_WORKPLACE = ".merging-"
_SECONDS = 5  # between progress lines


@dataclass
class Merged:
    """Result of a merge.

    Attributes:
        copied, there, skipped: how many runs were copied, existed already, or were skipped.
        records: how many records of studies and of `bench check` were copied, by folder.
        damaged: unreadable parts of the sources.
        notes: why runs were skipped.
        differing: runs that the destination keeps, although a source has another result.
    """

    copied: int = 0
    there: int = 0
    skipped: int = 0
    records: Counter[str] = field(default_factory=lambda: Counter({kind.folder: 0 for kind in KINDS}))
    damaged: list[Damaged] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)


def merge(sources: Sequence[Path], into: Path, say: Callable[[str], object]) -> Merged:
    """Copy the content of stores, which are only read, into another one.

    A finished and undamaged run of the destination stays, whatever the sources have; only an equal run with its whole
    curve replaces one with a thinned curve.

    Raises:
        UserError: a source is not a store; or the destination is a source, is inside one, or cannot be written.
        RunFailed: the disk is full or unavailable.
    """
    into = into.resolve()
    for source in sources:
        if not source.is_dir():
            raise no_store(source, "name an existing one")
        if source.resolve() == into:
            raise UserError(f"{source} is both source and destination; change one of them")
        if source.resolve() in into.parents:
            raise UserError(
                f"{into} is inside the store {source}, which would read it as a damaged run; choose a folder outside"
            )
    for folder in (*sources, into):
        if any(is_there(path / RUNS) for path in (folder / DONE, *(path for _, path in attempts(folder)))):
            raise UserError(f"{folder} is the folder of a run; name its store")
    with _Merging(into) as merging:
        for source in dict.fromkeys(source.resolve() for source in sources):
            merging.store(source, say)
    return merging.merged


class _Merging(ExitStack):
    """A merge into a store."""

    def __init__(self, into: Path) -> None:
        super().__init__()
        self.into, self.merged = into, Merged()
        self._there = Store(into).contents().runs
        self._sound: dict[Path, bool] = {}
        self._workplace: Path | None = None

    def store(self, source: Path, say: Callable[[str], object]) -> None:
        """Copy the content of a store: blocks of one run first, then others by name."""
        for left in self.into.glob(f"{_WORKPLACE}*"):  # by killed processes
            if left != self._workplace and not is_alive(left):
                remove(left)
        blocks = list(blocks_in(source))
        said = time.monotonic()
        for n, block in enumerate(sorted(blocks, key=lambda each: isinstance(each, Block) and each.total > 1)):
            if time.monotonic() - said > _SECONDS:
                said = time.monotonic()
                say(f"bench: {source}: {n} of {len(blocks)} folders, {counted(self.merged.copied, 'run')} copied")
            with self._copying():
                self._block(block)
        for path, record in (item for kind in KINDS for item in reports_in(source, kind).items()):
            with self._copying():
                self._report(path, record)

    @contextmanager
    def _copying(self) -> Iterator[None]:
        """Note damage, and convert disk errors into one line, which suggests another destination at first."""
        begun = self.merged.copied or self.merged.records.total()
        try:
            with disk_errors(self.into) if begun else making(self.into, "name another DEST"):
                yield
        except Damaged as error:
            self.merged.damaged.append(error)

    def _block(self, block: Block | Damaged) -> None:
        """Copy the needed part of a block."""
        if isinstance(block, Damaged):
            raise block
        self.merged.damaged += block.damaged
        if block.busy:
            self._skip(f"{block.folder} is in training", len(block.runs))
            return
        block.check_tables()
        if not block.done:
            if not block.damaged:  # with a damaged record, the others can be neither read nor resumed
                self._unfinished(block)
            return
        known = {run_id: self._finished(run_id) for run_id in block.runs}
        for run_id, there in known.items():
            if there is not None and there.runs[run_id].outcome != block.runs[run_id].outcome:
                self.merged.differing.append(run_id)
        wanted = [run_id for run_id, there in known.items() if there is None or _is_fuller(block, there, run_id)]
        self.merged.there += len(block.runs) - len(wanted)
        if not wanted:
            return
        for run_id in wanted:
            block.tables(run_id)  # reads and checks all values
        out = self._free_place()
        if len(wanted) == block.total:
            for name in (RUNS, *(f"{table}.parquet" for table in TABLES)):
                _take(block.at / name, out / name)
        else:
            write_block(out, [(block.runs[run_id], block.tables(run_id)) for run_id in wanted])
        target = self.into / name_of(wanted)
        before, now = ended(target), readable(target)
        if now is not None and now.done and all(_keeps(now, block, run_id) for run_id in wanted) and _is_sound(now):
            self._there |= dict.fromkeys(wanted, now)  # another process has just stored them
            self.merged.there += len(wanted)
            return
        if any(is_alive(path) for _, path in attempts(target)):
            self._skip(f"{target} is in training", len(wanted))
            return
        late = f"{target} was just stored by another process"
        if self._placed(target, late, wanted, lambda: commit(out, target, before)):
            for _, path in attempts(target):
                if not is_alive(path):
                    remove(path)
            self._sound[target] = True

    def _placed(self, target: Path, busy: str, run_ids: Collection[str], place: Callable[[], None]) -> bool:
        """Move runs into their block; whether no other process has taken it."""
        target.mkdir(parents=True, exist_ok=True)
        try:
            place()
        except RunBusy:
            self._skip(busy, len(run_ids))
            return False
        finally:
            remove_empty(target)
        block = read_block(target)
        assert block is not None
        self._there |= dict.fromkeys(run_ids, block)
        self.merged.copied += len(run_ids)
        return True

    def _unfinished(self, block: Block) -> None:
        """Copy interrupted runs, if the destination has none of them."""
        target = self.into / block.folder.name
        if any(run_id in self._there for run_id in block.runs) or (target.exists() and any(target.iterdir())):
            self.merged.there += len(block.runs)
            return
        for run_id in block.runs:
            block.tables(run_id)
        out = self._free_place()
        write_records(out / RUNS, list(block.runs.values()))
        for name in (CHECKPOINT, *(f"{table}.raw" for table in TABLES)):
            _take(block.at / name, out / name)
        busy = f"{target} is in training"
        self._placed(target, busy, block.runs, lambda: move(out, target / "attempt-1", RunBusy(busy)))

    def _finished(self, run_id: str) -> Block | None:
        """The destination's block with undamaged results of a run, or None."""
        block = self._there.get(run_id)
        if block is None or not block.runs[run_id].finished:
            return None
        if block.folder not in self._sound:
            self._sound[block.folder] = _is_sound(block)
        return block if self._sound[block.folder] else None

    def _report(self, path: Path, record: Record | Damaged) -> None:
        """Copy the record of a study or of `bench check`, if it outweighs the destination's."""
        if isinstance(record, Damaged):
            raise record
        for target in record.places(self.into):
            there = None
            with suppress(FileNotFoundError, Damaged):
                there = read_report(target, type(record))
            if there is None or (there.what == record.what and record.weight > there.weight):
                text = read_bytes(path)
                target.parent.mkdir(parents=True, exist_ok=True)
                with replacing(target) as temporary:
                    temporary.write_bytes(text)
                self.merged.records[record.folder] += 1
                return
            if there.what == record.what:
                return

    def _skip(self, why: str, runs: int) -> None:
        self.merged.notes.append(why)
        self.merged.skipped += runs

    def _free_place(self) -> Path:
        """A new empty folder for this process alone."""
        if self._workplace is None:
            if self.into.is_file():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            self.into.mkdir(parents=True, exist_ok=True)
            self._workplace, _ = prepare(self.into, _WORKPLACE)
            self.callback(remove, self._workplace)
            self.enter_context(beating(self._workplace))
        place = self._workplace / uuid4().hex
        place.mkdir()
        return place


def _is_fuller(new: Block, old: Block, run_id: str) -> bool:
    """Whether a block has the whole curve of a run, and another one only a thinned curve of the same result."""
    one, other = new.runs[run_id], old.runs[run_id]
    return other.thinned and not one.thinned and one.outcome == other.outcome


def _keeps(now: Block, new: Block, run_id: str) -> bool:
    """Whether a finished block of the destination keeps its result of a run."""
    return run_id in now.runs and not _is_fuller(new, now, run_id)


def _is_sound(block: Block) -> bool:
    try:
        block.check_tables(values=True)
    except Damaged:
        return False
    return True


def _take(path: Path, to: Path) -> None:
    """Copy a regular file of a source, if it exists; if it cannot be read, it is `Damaged`."""
    if is_there(path) is None:
        return
    if not os.access(path, os.R_OK):
        raise Damaged(path, "it cannot be read")
    copy(path, to)
