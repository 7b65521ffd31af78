"""The store: a folder of blocks of runs (`bench/store/block.py`), merged by copying, safe to share.

A store is data: readers write nothing, lock nothing, and import no code that it names.
"""

import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import cast

from bench.config.run_config import RunConfig, on_device
from bench.errors import UserError
from bench.store.block import CHECKPOINT, PREFIX, Block, blocks_in, ids_in, name_of, readable
from bench.store.files import existing, making
from bench.store.load import Damaged, is_there
from bench.store.record import RunResult
from bench.store.tables import Columns
from bench.store.writer import BlockWriter, remove_state


@dataclass
class Contents:
    """The content of a store at one moment.

    Attributes:
        blocks: by run id, the blocks that contain the run; it is read from the first.
        damaged: unreadable parts, which are excluded.
    """

    blocks: dict[str, list[Block]] = field(default_factory=dict)
    damaged: list[Damaged] = field(default_factory=list)


class Store:
    """A folder of blocks of runs.

    A run in several blocks is read from a finished one, if possible one with its whole curve, then from the block of
    its name, then from the first by name. The folder is created when the first run begins.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def contents(self) -> Contents:
        """The content of the store, read once."""
        was = gc.isenabled()
        gc.disable()  # records have no cycles, and collection would take a quarter of the reading time
        contents = Contents()
        try:
            for block in blocks_in(self.folder):
                if isinstance(block, Damaged):
                    contents.damaged.append(block)
                    continue
                contents.damaged += block.damaged
                for run_id in block.runs:
                    contents.blocks.setdefault(run_id, []).append(block)
        finally:
            if was:
                gc.enable()
        contents.blocks = {run_id: sort_blocks(contents.blocks[run_id], run_id) for run_id in sorted(contents.blocks)}
        return contents

    def runs(self) -> Iterator[RunResult]:
        """All readable runs, by name."""
        for run_id, blocks in self.contents().blocks.items():
            yield blocks[0].runs[run_id]

    def find_copies(self, run_ids: Iterable[str]) -> dict[str, list[Block]]:
        """The blocks that contain runs, by run id, as in `Contents.blocks`; without missing runs."""
        wanted, blocks = dict.fromkeys(run_ids), dict[str, list[Block]]()
        for name in sorted(_names(self.folder)):
            ids = ids_in(self.folder / name) if name.startswith(PREFIX) else {name}
            block = None if wanted.keys().isdisjoint(ids) else readable(self.folder / name)
            for run_id in block.runs.keys() & wanted.keys() if block is not None else ():
                blocks.setdefault(run_id, []).append(cast(Block, block))
        return {run_id: sort_blocks(blocks[run_id], run_id) for run_id in wanted if run_id in blocks}

    def find_all(self, run_ids: Iterable[str]) -> dict[str, Block]:
        """The blocks from which runs are read, by run id, without missing ones."""
        return {run_id: blocks[0] for run_id, blocks in self.find_copies(run_ids).items()}

    def find(self, run_id: str) -> Block | None:
        """The block from which a run is read; None without a readable record."""
        return self.find_all([run_id]).get(run_id)

    def get(self, run_id: str) -> RunResult | None:
        """The current state of a run, or None if it does not exist or its record is unreadable."""
        block = self.find(run_id)
        return None if block is None else block.runs[run_id]

    def result_of(self, config: RunConfig) -> RunResult | None:
        """The run of this configuration, if it is stored and finished; training code is not imported.

        Raises:
            UserError: the stored run has other settings, or the device does not exist.
        """
        config = on_device(config)
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
        runs = {run_id: block.runs[run_id] for run_id, block in self.find_all(run_ids).items()}
        return {run_id: run for run_id, run in runs.items() if run.finished}

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

    def last_checkpoint(self, run_ids: Sequence[str], *, lanes: bool = False) -> Path | None:
        """The checkpoint of an interrupted block; None without one, or if `lanes` does not match its engine."""
        block = readable(self.folder / name_of(run_ids))
        if block is None or block.done or block.damaged:
            return None
        if any((run.engine == "lanes") != lanes for run in block.runs.values()):
            return None
        path = block.at / CHECKPOINT
        return path if is_there(path) else None

    def remove_obsolete(self, run_ids: Iterable[str]) -> None:
        """Remove interrupted blocks with some of these runs, if all of their runs have finished in other blocks."""
        copies = self.find_copies(run_ids)
        left = {block.folder: block for blocks in copies.values() for block in blocks if not (block.done or block.busy)}
        for block in left.values():
            runs = self.finished_all(block.runs)
            if len(runs) == block.total:
                remove_state(block.folder)

    def refuse_unwritable(self) -> None:
        """Check that runs can be stored, without leaving a trace.

        Raises:
            UserError: the folder cannot be created or written.
        """
        with making(self.folder), TemporaryFile(dir=existing(self.folder)):
            pass

    def begin(self, runs: Sequence[RunResult], *, resume: bool = True, again: bool = False) -> BlockWriter:
        """Take the block of these runs for this process; see `BlockWriter`."""
        return BlockWriter(self.folder, runs, resume=resume, again=again)


def tables_of(block: Block, run_id: str) -> dict[str, Columns]:
    """See `Store.tables`."""
    try:
        return block.tables(run_id)
    except Damaged as error:
        raise UserError(
            f"cannot read the tables of run {run_id}: {error};"
            " copy the folder again from its source, or delete it and train again"
        ) from None


def sort_blocks(blocks: list[Block], run_id: str) -> list[Block]:
    """Blocks that contain a run, sorted by name, in the order of preference."""

    def order(block: Block) -> tuple[bool, bool, bool, bool]:
        run = block.runs[run_id]
        return not run.finished, run.thinned, not block.busy, block.folder.name != run_id

    return sorted(blocks, key=order) if len(blocks) > 1 else blocks


def _names(store: Path) -> set[str]:
    try:
        return {*os.listdir(store)}  # noqa: PTH208 - five times as fast
    except OSError:
        return set()
