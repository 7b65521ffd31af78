"""The store: a folder of blocks of runs (`bench/store/block.py`), merged by copying, safe to share.

A store is data: readers write nothing, lock nothing, and import no code that it names.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

from bench.config.run_config import RunConfig, on_device
from bench.errors import UserError
from bench.store.block import CHECKPOINT, Block, blocks_in, ids_in, name_of, readable
from bench.store.files import existing, making
from bench.store.load import Damaged, is_there
from bench.store.record import RunResult
from bench.store.tables import Columns
from bench.store.writer import BlockWriter, remove_state


@dataclass
class Contents:
    """The content of a store: by run id, the blocks that contain the run, the best first; and unreadable parts."""

    blocks: dict[str, list[Block]] = field(default_factory=dict)
    damaged: list[Damaged] = field(default_factory=list)


class Store:
    """A folder of blocks of runs, created when the first run begins.

    A run in several blocks is read from a finished one, if possible one with its whole curve, then from the block of
    its name, then from the first by name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def contents(self) -> Contents:
        """The content of the store, read once."""
        blocks = list(blocks_in(self.folder))
        return Contents(
            _by_run(block for block in blocks if isinstance(block, Block)),
            [block for block in blocks if isinstance(block, Damaged)],
        )

    def runs(self) -> Iterator[RunResult]:
        """All readable runs, by name."""
        for run_id, blocks in self.contents().blocks.items():
            yield blocks[0].runs[run_id]

    def find_copies(self, run_ids: Iterable[str]) -> dict[str, list[Block]]:
        """The blocks that contain runs, by run id, as in `Contents.blocks`; without missing runs."""
        wanted, names = {*run_ids}, list[str]()
        with suppress(OSError):
            names = sorted(os.listdir(self.folder))  # noqa: PTH208 - five times as fast
        folders = [self.folder / name for name in names if not wanted.isdisjoint(ids_in(self.folder / name))]
        copies = _by_run(block for folder in folders if (block := readable(folder)) is not None)
        return {run_id: blocks for run_id, blocks in copies.items() if run_id in wanted}

    def find_all(self, run_ids: Iterable[str]) -> dict[str, Block]:
        """The blocks from which runs are read, by run id, without missing ones."""
        return {run_id: blocks[0] for run_id, blocks in self.find_copies(run_ids).items()}

    def get(self, run_id: str) -> RunResult | None:
        """The current state of a run, or None if it does not exist or its record is unreadable."""
        block = self.find_all([run_id]).get(run_id)
        return None if block is None else block.runs[run_id]

    def result_of(self, config: RunConfig) -> RunResult | None:
        """The run of this configuration, if it is stored and finished; UserError if that has other settings."""
        config = on_device(config)
        result = self.finished_all([config.run_id]).get(config.run_id)
        if result is not None and result.identity != config.identity:
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
        block = self.find_all([run_id]).get(run_id)
        return self.folder / run_id if block is None else block.folder

    def tables(self, run_id: str) -> dict[str, Columns]:
        """The run's tables by name; none for a missing run, UserError if one is damaged."""
        block = self.find_all([run_id]).get(run_id)
        return {} if block is None else tables_of(block, run_id)

    def last_checkpoint(self, run_ids: Sequence[str], *, lanes: bool = False) -> Path | None:
        """The checkpoint of an interrupted block; None without one, or if `lanes` does not match its engine."""
        block = readable(self.folder / name_of(run_ids))
        if block is None or block.done or any((run.engine == "lanes") != lanes for run in block.runs.values()):
            return None
        return block.folder / CHECKPOINT if is_there(block.folder / CHECKPOINT) else None

    def remove_obsolete(self, run_ids: Iterable[str]) -> None:
        """Remove interrupted blocks with some of these runs, if all of their runs have finished in other blocks."""
        for folder, block in {b.folder: b for blocks in self.find_copies(run_ids).values() for b in blocks}.items():
            if not (block.done or block.busy) and len(self.finished_all(block.runs)) == len(block.runs):
                remove_state(folder)

    def refuse_unwritable(self) -> None:
        """Check that runs can be stored, without leaving a trace; UserError if not."""
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


def _by_run(blocks: Iterable[Block]) -> dict[str, list[Block]]:
    """Blocks that contain a run, sorted by name, in the order of preference, by run id."""
    by_run: dict[str, list[Block]] = {}
    for block in blocks:
        for run_id in block.runs:
            by_run.setdefault(run_id, []).append(block)
    for run_id, copies in by_run.items():
        copies.sort(key=lambda block: _order(block, run_id))
    return dict(sorted(by_run.items()))


def _order(block: Block, run_id: str) -> tuple[bool, ...]:
    run = block.runs[run_id]
    return not run.finished, run.thinned, not block.busy, block.folder.name != run_id
