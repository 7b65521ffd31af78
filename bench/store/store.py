"""The store: a folder of blocks of runs (`bench/store/block.py`), merged by copying, safe to share.

A store is data: readers write nothing, lock nothing and import nothing that it names.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.store import attempt
from bench.store.block import (
    CHECKPOINT,
    CHECKS,
    PREFIX,
    STUDIES,
    Block,
    attempts,
    blocks_in,
    name_of,
    names_in,
    read_block,
)
from bench.store.load import Damaged, is_there
from bench.store.record import FINISHED, RunResult

__all__ = ["CHECKS", "STUDIES", "Contents", "Store"]

_SETTLED = 2e9  # nanoseconds after which a folder's time tells whether it has changed, on any file system


@dataclass
class Contents:
    """What a store holds at one moment.

    Attributes:
        runs: the block that each run is read from, by run id.
        repeated: all records of the runs that lie in several blocks.
        damaged: what could not be read, and was left out.
    """

    runs: dict[str, Block] = field(default_factory=dict)
    repeated: dict[str, list[RunResult]] = field(default_factory=dict)
    damaged: list[Damaged] = field(default_factory=list)


class Store:
    """A folder of blocks of runs.

    Of a run that lies in several blocks the finished one is read, then the one that it has for itself, then the first by name.

    Args:
        folder: made when the first run begins.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def contents(self) -> Contents:
        """All that is there, read once."""
        found = Contents()
        for block in blocks_in(self.folder):
            if isinstance(block, Damaged):
                found.damaged.append(block)
            elif block is not None:
                found.damaged += block.damaged
                for run_id in block.runs:
                    known = found.runs.get(run_id)
                    if known is not None:
                        several = found.repeated.setdefault(run_id, [known.runs[run_id]])
                        several.append(block.runs[run_id])
                    if known is None or _order(block, run_id) < _order(known, run_id):
                        found.runs[run_id] = block
        found.runs = dict(sorted(found.runs.items()))
        return found

    def runs(self) -> Iterator[RunResult]:
        """All readable runs, by name."""
        for run_id, block in self.contents().runs.items():
            yield block.runs[run_id]

    def find(self, run_id: str) -> Block | None:
        """The block that a run is read from, or None if there is no record of it that can be read."""
        own = self._read(self.folder / run_id, run_id)
        if own is not None and own.attempt is None:
            return own
        found = [own] if own is not None else []
        for folder in self._wide():
            if run_id in names_in(folder) and (block := self._read(folder, run_id)) is not None:
                found.append(block)
        return min(found, key=lambda block: _order(block, run_id), default=None)

    def get(self, run_id: str) -> RunResult | None:
        """The run as it is now, or None if there is none or its record cannot be read."""
        block = self.find(run_id)
        return None if block is None else block.runs[run_id]

    def finished(self, run_id: str) -> RunResult | None:
        """The run, if it is there and needs no more training."""
        result = self.get(run_id)
        return result if result is not None and result.status in FINISHED else None

    def place(self, run_id: str) -> Path:
        """The folder of the block where the run lies, or would lie if it were trained for itself."""
        block = self.find(run_id)
        return self.folder / run_id if block is None else block.folder

    def tables(self, run_id: str) -> dict[str, dict[str, Any]]:
        """The run's tables by name, each a numpy column by name; NaN stands for a value that is not finite.

        Raises:
            UserError: a table is damaged.
        """
        block = self.find(run_id)
        return {} if block is None else tables_of(block, run_id)

    def checkpoint(self, run_id: str) -> Path | None:
        """The state of a run that was interrupted while it trained for itself, if it got so far."""
        return self.last_checkpoint([run_id])

    def last_checkpoint(self, run_ids: Sequence[str]) -> Path | None:
        """The same of the block of these runs."""
        for _, path in attempts(self.folder / name_of(run_ids))[:1]:
            if is_there(path / CHECKPOINT):
                return path / CHECKPOINT
        return None

    def unfinished(self) -> list[Block]:
        """Blocks of several runs that are being trained, or were when their process ended."""
        found = []
        for folder in self._wide():
            try:
                block = read_block(folder)
            except Damaged:
                continue
            if block is not None and block.attempt is not None and not block.damaged:
                found.append(block)
        return found

    def begin(self, runs: Sequence[RunResult], *, resume: bool = True, again: bool = False) -> attempt.Attempt:
        """Take the block of these runs for this process; see `bench.store.attempt.begin`."""
        return attempt.begin(self.folder, runs, resume=resume, again=again)

    def _read(self, folder: Path, run_id: str) -> Block | None:
        try:
            block = read_block(folder)
        except Damaged:
            return None
        return block if block is not None and run_id in block.runs else None

    def _wide(self) -> list[Path]:
        """The folders of blocks of several runs, by name."""
        try:
            now = self.folder.stat()
        except OSError:
            return []
        # Looking through thousands of names for each of as many runs would take seconds.
        settled = time.time_ns() - now.st_mtime_ns > _SETTLED
        return _settled_wide(self.folder, now.st_ino, now.st_mtime_ns) if settled else _wide(self.folder)


def tables_of(block: Block, run_id: str) -> dict[str, dict[str, Any]]:
    """See `Store.tables`."""
    try:
        return block.tables(run_id)
    except Damaged as error:
        raise UserError(
            f"cannot read the tables of run {run_id}: {error}; copy the folder again from where it came, or delete it and train again"
        ) from None


def _order(block: Block, run_id: str) -> tuple[bool, bool]:
    """By which of two blocks with a run the first is read."""
    return block.runs[run_id].status not in FINISHED, block.folder.name != name_of([run_id])


def _wide(store: Path) -> list[Path]:
    try:
        with os.scandir(store) as entries:
            return sorted(store / each.name for each in entries if each.name.startswith(PREFIX) and each.is_dir())
    except OSError:
        return []


@lru_cache(maxsize=64)
def _settled_wide(store: Path, inode: int, changed: int) -> list[Path]:
    return _wide(store)
