"""The store: a folder of blocks of runs (`bench/store/block.py`), merged by copying, safe to share.

A store is data: readers write nothing, lock nothing, and import no code that it names.
"""

import gc
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile

from bench.config.run_config import RunConfig, on_device
from bench.errors import RunFailed, UserError
from bench.store.block import CHECKPOINT, PREFIX, Block, blocks_in, ended, name_of, names_in, readable
from bench.store.files import existing, making
from bench.store.load import Damaged, is_there
from bench.store.record import RunResult
from bench.store.tables import Columns
from bench.store.writer import BlockWriter

_SETTLED = 2e9  # nanoseconds after which a modification time reveals further changes, on any file system


@dataclass
class Contents:
    """The content of a store at one moment.

    Attributes:
        runs: by run id, the block from which the run is read.
        repeated: by run id, all records of a run that is in several blocks.
        damaged: unreadable parts, which are excluded.
    """

    runs: dict[str, Block] = field(default_factory=dict)
    repeated: dict[str, list[RunResult]] = field(default_factory=dict)
    damaged: list[Damaged] = field(default_factory=list)


class Store:
    """A folder of blocks of runs.

    A run in several blocks is read from a finished one, if possible one with its whole curve, then from its own, then
    from the first by name. The folder is created when the first run begins.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def contents(self) -> Contents:
        """The content of the store, read once."""
        was = gc.isenabled()
        gc.disable()  # records have no cycles, and collection would take a quarter of the reading time
        try:
            return self._read_all()
        finally:
            if was:
                gc.enable()

    def _read_all(self) -> Contents:
        found = Contents()
        for block in blocks_in(self.folder):
            if isinstance(block, Damaged):
                found.damaged.append(block)
                continue
            found.damaged += block.damaged
            for run_id, run in block.runs.items():
                known = found.runs.get(run_id)
                if known is not None:
                    found.repeated.setdefault(run_id, [known.runs[run_id]]).append(run)
                if known is None or _order(block, run_id) < _order(known, run_id):
                    found.runs[run_id] = block
        found.runs = dict(sorted(found.runs.items()))
        return found

    def runs(self) -> Iterator[RunResult]:
        """All readable runs, by name."""
        for run_id, block in self.contents().runs.items():
            yield block.runs[run_id]

    def find(self, run_id: str) -> Block | None:
        """The block from which a run is read; None without a readable record."""
        own = _block_with(run_id, readable(self.folder / run_id))
        if _is_best(own, run_id):
            return own
        index = _indices[self.folder]
        index.look(self.folder)
        return index.first(run_id, self.folder, own)

    def find_all(self, run_ids: Iterable[str]) -> dict[str, Block]:
        """The blocks from which runs are read, by run id, without missing ones.

        The folder is listed once, and each block is read once.
        """
        there, index, once = _names(self.folder), _indices[self.folder], lru_cache(None)(readable)
        index.look(self.folder, there)
        found = {}
        for run_id in run_ids:
            own = _block_with(run_id, readable(self.folder / run_id)) if run_id in there else None
            found[run_id] = own if _is_best(own, run_id) else index.first(run_id, self.folder, own, once)
        return {run_id: block for run_id, block in found.items() if block is not None}

    def get(self, run_id: str) -> RunResult | None:
        """The current state of a run, or None if it does not exist or its record is unreadable."""
        block = self.find(run_id)
        return None if block is None else block.runs[run_id]

    def result_of(self, config: RunConfig) -> RunResult | None:
        """The run of this configuration, if it is stored and finished.

        Raises:
            UserError: the stored run has other settings.
        """
        result = self.get(config.run_id)
        if result is None or not result.finished:
            return None
        if result.identity != config.identity:
            raise UserError(
                f"the record of run {config.run_id} in {self.folder} has other settings; --rerun trains it again"
            )
        return result

    def finished_all(self, run_ids: Iterable[str]) -> dict[str, RunResult]:
        """The stored and finished runs, by id."""
        found = {run_id: block.runs[run_id] for run_id, block in self.find_all(run_ids).items()}
        return {run_id: result for run_id, result in found.items() if result.finished}

    def place(self, run_id: str) -> Path:
        """The folder of the run's block; for a missing run, that of its block if trained alone."""
        block = self.find(run_id)
        return self.folder / run_id if block is None else block.folder

    def tables(self, run_id: str) -> dict[str, Columns]:
        """The run's tables by name; none for a missing run.

        Raises:
            UserError: a table is damaged.
        """
        block = self.find(run_id)
        return {} if block is None else tables_of(block, run_id)

    def checkpoint(self, run_id: str) -> Path | None:
        """The checkpoint of a run that was interrupted while training alone, if any."""
        return self.last_checkpoint([run_id])

    def last_checkpoint(self, run_ids: Sequence[str], *, lanes: bool = False) -> Path | None:
        """The checkpoint of an interrupted block; None without one, or if `lanes` does not match its engine."""
        block = readable(self.folder / name_of(run_ids))
        if block is None or block.done or block.damaged:
            return None
        if any((run.engine == "lanes") != lanes for run in block.runs.values()):
            return None
        path = block.at / CHECKPOINT
        return path if is_there(path) else None

    def unfinished(self) -> list[Block]:
        """Blocks of several runs that are in training or were interrupted."""
        names = sorted(name for name in _names(self.folder) if name.startswith(PREFIX))
        blocks = (readable(self.folder / name) for name in names if ended(self.folder / name) is None)
        return [block for block in blocks if block is not None and not block.done and not block.damaged]

    def refuse_unwritable(self) -> None:
        """Check that runs can be stored, without leaving a trace.

        Raises:
            UserError: the folder cannot be created or written.
        """
        with making(self.folder), TemporaryFile(dir=existing(self.folder)):
            pass

    def begin(
        self, runs: Sequence[RunResult], *, resume: bool = True, again: bool = False, steps: int = 0
    ) -> BlockWriter:
        """Take the block of these runs for this process; see `BlockWriter`."""
        return BlockWriter(self.folder, runs, resume=resume, again=again, steps=steps)


def stored_result(config: RunConfig) -> RunResult | None:
    """The finished run of this configuration, found without importing training code; None if it is not stored.

    Raises:
        UserError: the stored run has other settings, or the device does not exist.
        RunFailed: its tables are damaged.
    """
    store = Store(config.store)
    result = store.result_of(on_device(config))
    block = store.find(result.run_id) if result is not None else None
    try:
        if block is not None:
            block.check_ends()
    except Damaged as error:
        raise RunFailed(f"run {config.run_id} is stored but damaged: {error}; --rerun trains it again") from None
    return result


def tables_of(block: Block, run_id: str) -> dict[str, Columns]:
    """See `Store.tables`."""
    try:
        return block.tables(run_id)
    except Damaged as error:
        raise UserError(
            f"cannot read the tables of run {run_id}: {error};"
            " copy the folder again from its source, or delete it and train again"
        ) from None


def _order(block: Block, run_id: str) -> tuple[bool, bool, bool, bool]:
    """Sort key for blocks that contain a run: the run is read from the smallest."""
    run = block.runs[run_id]
    return not run.finished, run.thinned, not block.busy, block.folder.name != name_of([run_id])


def _is_best(own: Block | None, run_id: str) -> bool:
    """Whether no other block can precede the run's own."""
    return own is not None and own.done and not own.runs[run_id].thinned


def _names(store: Path) -> set[str]:
    try:
        return {*os.listdir(store)}  # noqa: PTH208 - five times as fast
    except OSError:
        return set()


def _block_with(run_id: str, block: Block | None) -> Block | None:
    return block if block is not None and run_id in block.runs else None


@lru_cache(maxsize=16)
def _results(folder: Path, state: tuple[int, int]) -> Block | None:
    """A block whose results (`ended`) have this state, cached: other runs of it are usually needed too."""
    return readable(folder)


class _Index:
    """Which blocks of several runs contain a run; some may have been deleted since.

    Entries stay valid, since a block's name is a digest of its ids.
    """

    def __init__(self) -> None:
        self.blocks: dict[str, set[str]] = {}
        self._known: set[str] = set()
        self._complete: tuple[int, int] | None = None

    def look(self, store: Path, names: set[str] | None = None) -> None:
        """Read the ids of new blocks among these names; by default, list the folder if it has changed.

        Listing thousands of names for each of thousands of runs would take seconds.
        """
        try:
            now = store.stat()
        except OSError:
            return
        state = now.st_ino, now.st_mtime_ns
        if state == self._complete:
            return
        wide = {name for name in (_names(store) if names is None else names) if name.startswith(PREFIX)}
        for name in wide - self._known:
            ids, for_ever = names_in(store / name)
            for run_id in ids:
                self.blocks.setdefault(run_id, set()).add(name)
            if for_ever:
                self._known.add(name)
        if wide <= self._known and time.time_ns() - now.st_mtime_ns > _SETTLED:
            self._complete = state

    def first(
        self, run_id: str, store: Path, own: Block | None, read: Callable[[Path], Block | None] = readable
    ) -> Block | None:
        """The block from which a run is read, among its own and the blocks of several runs that contain it.

        Blocks without results are read by `read`.
        """
        found = [own]
        for folder in (store / name for name in sorted(self.blocks.get(run_id, ()))):
            state = ended(folder)
            found.append(_block_with(run_id, read(folder) if state is None else _results(folder, state)))
        blocks = (block for block in found if block is not None)
        return min(blocks, key=lambda block: _order(block, run_id), default=None)


_indices: defaultdict[Path, _Index] = defaultdict(_Index)
