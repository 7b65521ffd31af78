"""Several stores read as one, with their records of studies and checks: the input of boards."""

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
from bench.store.store import Contents, read, tables_of
from bench.store.tables import Columns
from optimizers.plugins import bare

HOW_TO_FILL = (
    "train something first: `bench fit --task synthetic --opt ngd`, or for a fair comparison `bench suite theory`"
)


class Stores:
    """Runs and studies of one or more stores, read once. UserError if a folder does not exist.

    Of several copies of a run, the best is used (`bench.store.store.read`), of equal ones that of the first store.
    Runs that no store has are read from `reference`, a store of reference results, if any.
    """

    def __init__(self, folders: Sequence[Path], reference: Path | None = None) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise no_store(folder)
        self.folders = list(dict.fromkeys(folder.resolve() for folder in folders))
        self.reference = reference
        self.shown = " and ".join([*map(str, folders), *["the reference results"] * (reference is not None)])
        self._all = [*self.folders, *([reference.resolve()] if reference else [])]

    @cached_property
    def _contents(self) -> tuple[Contents, Contents]:
        return read(self.folders), read(self._all[len(self.folders) :])

    @cached_property
    def shipped(self) -> frozenset[str]:
        """The ids of the runs that are read from the reference."""
        given, reference = self._contents
        return frozenset(reference.blocks.keys() - given.blocks.keys())

    @cached_property
    def conflicts(self) -> list[str]:
        """Ids of runs that have finished records with different results, in one store or in several."""
        blocks = self._contents[0].blocks.items()
        finished = {run_id: [block.runs[run_id].outcome for block in copies if block.done] for run_id, copies in blocks}
        return sorted(run_id for run_id, outcomes in finished.items() if any(one != outcomes[0] for one in outcomes))

    @cached_property
    def blocks(self) -> dict[str, Block]:
        """By run id, the block from which the run is read."""
        given, reference = self._contents
        return {run_id: blocks[0] for run_id, blocks in sorted((reference.blocks | given.blocks).items())}

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

    def tables(self, run_id: str, wanted: str = ".*") -> dict[str, Columns]:
        """A run's tables by name (`Block.tables`); UserError if one is damaged."""
        return tables_of(self.blocks[run_id], run_id, wanted)

    def place(self, run_id: str) -> Path:
        """The folder of the block from which a run is read."""
        return self.blocks[run_id].folder

    @cached_property
    def studies(self) -> list[StudyRecord]:
        """All studies with a record, sorted by name; of several records of a study, the one with the most trials."""
        records = sorted((r for r in self._reports if isinstance(r, StudyRecord)), key=lambda study: len(study.trials))
        return [study for _, study in sorted({study.name: study for study in records}.items())]

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
        return [report for folder in self._all for report in reports_in(folder)]


def no_store(folder: Path, todo: str = HOW_TO_FILL) -> UserError:
    """The error for a missing folder, or one that is not a folder."""
    if is_no_folder(folder):
        return UserError(f"the store {folder} is a file, not a folder; name another")
    return UserError(f"there is no store {folder}; {todo}")
