"""Several stores read as one, with their records of studies and checks: the input of boards."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from bench.config.values import is_no_folder
from bench.errors import UserError
from bench.near import nearest
from bench.store.block import Block
from bench.store.files import Damaged
from bench.store.record import RunResult
from bench.store.reports import CheckRecord, Record, StudyRecord, reports_in
from bench.store.store import Contents, Store, order, tables_of
from bench.store.tables import Columns
from bench.text import plain
from optimizers.plugins import bare

HOW_TO_FILL = (
    "train something first: `bench fit --task synthetic --opt ngd`, or for a fair comparison `bench suite theory`"
)


class Stores:
    """Runs and studies of one or more stores; duplicates count once. UserError if a folder does not exist.

    Runs that no store has are read from `reference`, a store of reference results, if any. Among several records of a
    run, `bench.store.store.order` decides, then their text: not the order of the stores.
    """

    def __init__(self, folders: Sequence[Path], reference: Path | None = None) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise no_store(folder)
        self.own = [Store(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
        self.reference = None if reference is None else Store(reference.resolve())
        self.shown = " and ".join([*map(str, folders), *["the reference results"] * (self.reference is not None)])

    @cached_property
    def _contents(self) -> list[Contents]:
        """Of each store, and of the reference at the end."""
        return [*(store.contents() for store in self.own), self.reference.contents() if self.reference else Contents()]

    @cached_property
    def _copies(self) -> dict[str, list[Block]]:
        """By run id, the blocks that contain a run, without those of the reference."""
        copies: dict[str, list[Block]] = {}
        for contents in self._contents[:-1]:
            for run_id, blocks in contents.blocks.items():
                copies[run_id] = copies.get(run_id, []) + blocks
        return copies

    @cached_property
    def shipped(self) -> frozenset[str]:
        """The ids of the runs that are read from the reference."""
        return frozenset(self._contents[-1].blocks.keys() - self._copies.keys())

    @cached_property
    def conflicts(self) -> list[str]:
        """Ids of runs that have finished records with different results, in one store or in several."""
        finished = {run_id: [b.runs[run_id] for b in blocks if b.done] for run_id, blocks in self._copies.items()}
        return sorted(i for i, runs in finished.items() if any(run.outcome != runs[0].outcome for run in runs))

    @cached_property
    def blocks(self) -> dict[str, Block]:
        """By run id, the block from which the run is read."""
        copies = self._copies | {run_id: self._contents[-1].blocks[run_id][:1] for run_id in self.shipped}

        def key(block: Block, run_id: str) -> tuple[object, ...]:
            return *order(block, run_id), json.dumps(plain(vars(block.runs[run_id])), sort_keys=True)

        return {
            run_id: min(blocks, key=lambda block: key(block, run_id)) if len(blocks) > 1 else blocks[0]
            for run_id, blocks in sorted(copies.items())
        }

    @cached_property
    def runs(self) -> list[RunResult]:
        """All runs, by name."""
        return [block.runs[run_id] for run_id, block in self.blocks.items()]

    def refuse_unknown(
        self, tasks: Sequence[str] | None, opts: Sequence[str] | None, runs: Sequence[RunResult]
    ) -> None:
        """Check names of tasks and optimizers: UserError if none of these runs has one of them."""
        for kind, names, key in (("task", tasks, "task"), ("optimizer", opts, "opt")):
            known = sorted({name for run in runs for name in run.names[key]})
            for name in names or ():
                if bare(name) not in known:
                    near = nearest(name, known)
                    hint = f"did you mean {near!r}?" if near else f"there are runs of {', '.join(known) or 'none'}"
                    raise UserError(f"no runs of the {kind} {name!r} in {self.shown}; {hint}")

    def tables(self, run_id: str) -> dict[str, Columns]:
        """See `Store.tables`."""
        return tables_of(self.blocks[run_id], run_id)

    def place(self, run_id: str) -> Path:
        """The folder of the block from which a run is read."""
        return self.blocks[run_id].folder

    @cached_property
    def studies(self) -> list[StudyRecord]:
        """All studies with a record, sorted by name; of several records of a study, the one with the most trials."""
        studies = sorted((r for r in self._reports if isinstance(r, StudyRecord)), key=lambda study: study.weight)
        return sorted({study.subject: study for study in studies}.values(), key=lambda study: study.subject)

    @cached_property
    def checks(self) -> list[CheckRecord]:
        """All reports of `bench check`; stores may have several reports on one optimizer."""
        return [report for report in self._reports if isinstance(report, CheckRecord)]

    @cached_property
    def damaged(self) -> list[Damaged]:
        """Unreadable files, with the reason."""
        parts = [part for contents in self._contents for part in contents.damaged]
        return parts + [report for report in self._reports if isinstance(report, Damaged)]

    @cached_property
    def _reports(self) -> list[Record | Damaged]:
        stores = [*self.own, *([self.reference] if self.reference else [])]
        return [report for store in stores for report in reports_in(store.folder)]


def no_store(folder: Path, todo: str = HOW_TO_FILL) -> UserError:
    """The error for a missing folder, or one that is not a folder."""
    if is_no_folder(folder):
        return UserError(f"the store {folder} is a file, not a folder; name another")
    return UserError(f"there is no store {folder}; {todo}")
