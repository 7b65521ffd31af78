"""Several stores read as one, with their records of studies and checks: the input of boards."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from bench.config.values import is_no_folder
from bench.errors import UserError
from bench.near import nearest
from bench.store.block import Block
from bench.store.load import Damaged
from bench.store.record import RunResult
from bench.store.reports import KINDS, CheckRecord, Record, StudyRecord, reports_in
from bench.store.store import Contents, Store, tables_of
from bench.store.tables import Columns
from bench.text import plain
from optimizers.plugins import bare


class Stores:
    """Runs and studies of one or more stores; duplicates count once.

    Of two records of one run, a finished one is preferred, then one with its whole curve, then the one whose text
    sorts first, so that the order of the stores has no effect.

    Args:
        folders: of the stores.
        reference: a store of reference results, used for runs that no other store has; or None.

    Attributes:
        own: the stores except the reference.

    Raises:
        UserError: a folder does not exist.
    """

    def __init__(self, folders: Sequence[Path], reference: Path | None = None) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise no_store(folder)
        self.own = [Store(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
        self.reference = None if reference is None else Store(reference.resolve())
        self.stores = [*self.own, *([self.reference] if self.reference else [])]
        self.shown = " and ".join([*map(str, folders), *["the reference results"] * (self.reference is not None)])

    @cached_property
    def _contents(self) -> list[Contents]:
        return [store.contents() for store in self.stores]

    @cached_property
    def shipped(self) -> frozenset[str]:
        """The ids of the runs that are read from the reference."""
        if self.reference is None:
            return frozenset()
        *others, reference = self._contents
        return frozenset(reference.blocks.keys() - {run_id for contents in others for run_id in contents.blocks})

    @cached_property
    def _copies(self) -> dict[str, list[Block]]:
        """By run id, the blocks that contain a run, without those of the reference."""
        copies: dict[str, list[Block]] = {}
        for contents in self._contents[: len(self.own)]:
            for run_id, blocks in contents.blocks.items():
                copies[run_id] = copies.get(run_id, []) + blocks
        return copies

    @cached_property
    def conflicts(self) -> list[str]:
        """Ids of runs that have finished records with different results, in one store or in several."""
        conflicts = []
        for run_id, blocks in self._copies.items():
            outcomes = [block.runs[run_id].outcome for block in blocks if block.runs[run_id].finished]
            if len(outcomes) > 1 and any(outcome != outcomes[0] for outcome in outcomes):
                conflicts.append(run_id)
        return sorted(conflicts)

    @cached_property
    def blocks(self) -> dict[str, Block]:
        """By run id, the block from which the run is read."""
        copies = self._copies | {run_id: self._contents[-1].blocks[run_id][:1] for run_id in self.shipped}
        return {
            run_id: blocks[0] if len(blocks) == 1 or len(self.own) == 1 else _preferred(blocks, run_id)
            for run_id, blocks in sorted(copies.items())
        }

    @cached_property
    def runs(self) -> list[RunResult]:
        """All runs, by name."""
        return [block.runs[run_id] for run_id, block in self.blocks.items()]

    def refuse_unknown(
        self, tasks: Sequence[str] | None, opts: Sequence[str] | None, runs: Sequence[RunResult]
    ) -> None:
        """Check names of tasks and optimizers.

        Raises:
            UserError: none of these runs has one of them.
        """
        for kind, wanted, name in (("task", tasks, "task"), ("optimizer", opts, "opt")):
            there = sorted({each for run in runs for each in run.names[name]})
            for each in wanted or ():
                if bare(each) not in there:
                    near = nearest(each, there)
                    known = f"there are runs of {', '.join(there)}" if there else "there are no runs in it"
                    hint = f"did you mean {near!r}?" if near else known
                    raise UserError(f"no runs of the {kind} {each!r} in {self.shown}; {hint}")

    def tables(self, run_id: str) -> dict[str, Columns]:
        """See `Store.tables`."""
        return tables_of(self.blocks[run_id], run_id)

    def place(self, run_id: str) -> Path:
        """The folder of the block from which a run is read."""
        return self.blocks[run_id].folder

    @cached_property
    def studies(self) -> list[StudyRecord]:
        """All studies with a record, sorted by name; of several records of a study, the one with the most trials."""
        found: dict[str, StudyRecord] = {}
        for record in self._reports:
            if isinstance(record, StudyRecord):
                found[record.what] = max(found.get(record.what, record), record, key=lambda each: each.weight)
        return sorted(found.values(), key=lambda each: (each.name, each.what))

    @cached_property
    def checks(self) -> list[CheckRecord]:
        """All reports of `bench check`; stores may have several reports on one optimizer."""
        return [report for report in self._reports if isinstance(report, CheckRecord)]

    @cached_property
    def damaged(self) -> list[Damaged]:
        """Unreadable files, with the reason."""
        found = [each for contents in self._contents for each in contents.damaged]
        return found + [each for each in self._reports if isinstance(each, Damaged)]

    @cached_property
    def _reports(self) -> list[Record | Damaged]:
        return [each for kind in KINDS for store in self.stores for each in reports_in(store.folder, kind).values()]


HOW_TO_FILL = (
    "train something first: `bench fit --task synthetic --opt ngd`, or for a fair comparison `bench suite theory`"
)


def no_store(folder: Path, todo: str = HOW_TO_FILL) -> UserError:
    """The error for a missing folder, or one that is not a folder."""
    if is_no_folder(folder):
        return UserError(f"the store {folder} is a file, not a folder; name another")
    return UserError(f"there is no store {folder}; {todo}")


def _preferred(blocks: list[Block], run_id: str) -> Block:
    def order(block: Block) -> tuple[bool, bool, str]:
        run = block.runs[run_id]
        return not run.finished, run.thinned, json.dumps(plain(vars(run)), sort_keys=True)

    return min(blocks, key=order)
