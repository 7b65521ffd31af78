"""The store: a folder of blocks of runs (`bench/store/block.py`), merged by copying, safe to share.

A store is data: readers write nothing, lock nothing, and import no code that it names.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from bench.errors import UserError
from bench.store.block import CHECKPOINT, Block, blocks_in, name_of, read_block
from bench.store.files import Damaged, is_there
from bench.store.record import RunResult
from bench.store.tables import Columns


class Contents:
    """The content of stores, or the part of it with these runs, read once.

    Of several blocks with a run, a finished one is read, else one in training; of equal ones, that of the run alone,
    else the first.

    Attributes:
        blocks: by run id, the block from which the run is read.
        damaged: unreadable files, with the reason.
        conflicts: ids of runs with finished records that differ in their results.
    """

    def __init__(self, folders: Iterable[Path], run_ids: Iterable[str] | None = None) -> None:
        self.blocks, self.damaged, self.conflicts = dict[str, Block](), list[Damaged](), list[str]()
        chosen = None if run_ids is None else {*run_ids}
        for block in (block for folder in folders for block in blocks_in(folder, chosen)):
            if isinstance(block, Damaged):
                self.damaged.append(block)
                continue
            for run_id in block.runs if chosen is None else block.runs.keys() & chosen:
                other = self.blocks.setdefault(run_id, block)
                if other.done and block.done and other.runs[run_id].outcome != block.runs[run_id].outcome:
                    self.conflicts.append(run_id)
                self.blocks[run_id] = max(other, block, key=lambda b: (b.done, b.busy, b.folder.name == run_id))

    @property
    def finished(self) -> dict[str, RunResult]:
        """The finished runs, by id."""
        return {run_id: block.runs[run_id] for run_id, block in self.blocks.items() if block.done}

    def tables(self, run_id: str, wanted: str = ".*") -> dict[str, Columns]:
        """The run's tables by name (`Block.tables`); none for a missing run, UserError if one is damaged."""
        try:
            return self.blocks[run_id].tables(run_id, wanted) if run_id in self.blocks else {}
        except Damaged as error:
            advice = "copy the folder again from its source, or delete it and train again"
            raise UserError(f"cannot read the tables of run {run_id}: {error}; {advice}") from None


class Store:
    """A folder of blocks of runs, created when the first run begins; its current content is read by each call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def runs(self) -> Iterator[RunResult]:
        """All readable runs, by name."""
        yield from (block.runs[run_id] for run_id, block in sorted(self.contents().blocks.items()))

    def contents(self, run_ids: Iterable[str] | None = None) -> Contents:
        """All runs, or these."""
        return Contents([self.folder], run_ids)

    def get(self, run_id: str) -> RunResult | None:
        """The current state of a run, or None if it does not exist or its record is unreadable."""
        block = self.contents([run_id]).blocks.get(run_id)
        return block and block.runs[run_id]

    def place(self, run_id: str) -> Path:
        """The folder of the run's block; for a missing run, that of its block if trained alone."""
        block = self.contents([run_id]).blocks.get(run_id)
        return block.folder if block else self.folder / run_id

    def tables(self, run_id: str) -> dict[str, Columns]:
        """See `Contents.tables`."""
        return self.contents([run_id]).tables(run_id)

    def last_checkpoint(self, run_ids: Sequence[str], *, lanes: bool = False) -> Path | None:
        """The checkpoint of an interrupted block; None without one, or if `lanes` does not match its engine."""
        path = self.folder / name_of(run_ids) / CHECKPOINT
        with suppress(Damaged):
            if is_there(path) and (block := read_block(path.parent)) and not block.done:
                return path if all((run.engine == "lanes") == lanes for run in block.runs.values()) else None
        return None
