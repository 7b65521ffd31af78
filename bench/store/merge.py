"""Merging stores: `bench merge` copies the results that the destination lacks.

Only files that the suite writes are copied, and only from blocks with valid records and tables. Copies are written to
a hidden folder of the destination's block, under its lock, and then renamed, so the process may be killed at any time;
the same command continues. Nothing is written if nothing is new.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.errors import RunBusy, UserError
from bench.store.block import RUNS, Block, blocks_in, name_of, readable, results_in
from bench.store.files import copy, disk_errors, making, replacing
from bench.store.load import Damaged, is_there, read_bytes
from bench.store.reports import KINDS, Record, read_report, reports_in
from bench.store.store import Store
from bench.store.stores import no_store
from bench.store.tables import TABLES
from bench.store.writer import new_results, write_block
from bench.text import counted

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
        if results_in(folder) is not None or is_there(folder / RUNS):
            raise UserError(f"{folder} is the folder of a run; name its store")
    merging = _Merging(into)
    for source in dict.fromkeys(source.resolve() for source in sources):
        merging.store(source, say)
    return merging.merged


class _Merging:
    """A merge into a store."""

    def __init__(self, into: Path) -> None:
        self.into, self.merged = into, Merged()
        self._there = Store(into).contents().runs
        self._sound: dict[Path, bool] = {}

    def store(self, source: Path, say: Callable[[str], object]) -> None:
        """Copy the content of a store: blocks of one run first, then others by name."""
        blocks = list(blocks_in(source))
        said = time.monotonic()
        for n, block in enumerate(sorted(blocks, key=lambda block: isinstance(block, Block) and block.total > 1)):
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
        """Copy the results of a block, unless the destination has all of its runs."""
        if isinstance(block, Damaged):
            raise block
        self.merged.damaged += block.damaged
        if not block.done:
            self._skip(f"{block.folder} {'is in training' if block.busy else 'has not finished'}", len(block.runs))
            return
        present = {run_id: self._finished(run_id) for run_id in block.runs}
        for run_id, old in present.items():
            if old is not None and old.runs[run_id].outcome != block.runs[run_id].outcome:
                self.merged.differing.append(run_id)
        new = self._lacking(block)
        self.merged.there += len(block.runs) - len(new)
        if not new:
            return
        block.check_tables(values=True)
        target = self.into / name_of(new)
        try:
            with new_results(target, RunBusy(f"{target} is in training")) as out:
                now = readable(target)
                if now is not None and now.done:  # another process may have just stored it
                    self._there |= {run_id: now for run_id in now.runs if run_id not in self._there}
                if self._lacking(block) != new:  # it has; the same command copies the rest, if any
                    return
                if len(new) == block.total:
                    for name in (RUNS, *(f"{table}.parquet" for table in TABLES)):
                        _take(block.at / name, out / name)
                else:  # the destination keeps its other runs
                    write_block(out, [(block.runs[run_id], block.tables(run_id)) for run_id in new])
        except RunBusy as error:
            self._skip(str(error), len(new))
            return
        if (copied := readable(target)) is not None:
            self._there |= dict.fromkeys(new, copied)
        self._sound[target] = True
        self.merged.copied += len(new)

    def _lacking(self, block: Block) -> list[str]:
        """The runs of a finished block that the destination lacks, or has with a thinned curve only."""
        present = {run_id: self._finished(run_id) for run_id in block.runs}
        return [run_id for run_id, old in present.items() if old is None or _is_fuller(block, old, run_id)]

    def _finished(self, run_id: str) -> Block | None:
        """The destination's block with undamaged results of a run, or None."""
        block = self._there.get(run_id)
        if block is None or not block.runs[run_id].finished:
            return None
        if block.folder not in self._sound:
            try:
                block.check_tables(values=True)
                self._sound[block.folder] = True
            except Damaged:
                self._sound[block.folder] = False
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


def _is_fuller(new: Block, old: Block, run_id: str) -> bool:
    """Whether a block has the whole curve of a run, and another one only a thinned curve of the same result."""
    one, other = new.runs[run_id], old.runs[run_id]
    return other.thinned and not one.thinned and one.outcome == other.outcome


def _take(path: Path, to: Path) -> None:
    """Copy a regular file of a source, if it exists; if it cannot be read, it is `Damaged`."""
    if is_there(path) is None:
        return
    if not os.access(path, os.R_OK):
        raise Damaged(path, "it cannot be read")
    copy(path, to)
