"""Several stores read as one, with their records of studies and checks: the input of boards."""

from collections.abc import Sequence
from pathlib import Path

from bench.config.values import is_no_folder
from bench.errors import UserError, nearest
from bench.store.files import Damaged
from bench.store.reports import CheckRecord, StudyRecord, reports_in
from bench.store.store import read, tables_of
from bench.store.tables import Columns
from optimizers.plugins import bare

HOW_TO_FILL = (
    "train something first: `bench fit --task synthetic --opt ngd`, or for a fair comparison `bench suite theory`"
)


class Stores:
    """Runs and studies of one or more stores, read once. UserError if a folder does not exist.

    Of several copies of a run, the best is used (`bench.store.store.read`), of equal ones that of the first store.
    Runs that no store has are read from `reference`, a store of reference results, if any, and from those of the
    `community`.

    Attributes:
        shown: the stores in words.
        blocks, runs: by run id, the block from which the run is read; all runs, by name.
        shipped: the ids of the runs that are read from the reference or the community.
        community: by id of a run of the community, the name of its submission.
        conflicts: ids of runs with finished records that differ in their results, in one store or in several.
        studies, checks: all records; of several ones of a study, the one with the most trials.
        damaged: unreadable files, with the reason.
    """

    def __init__(self, folders: Sequence[Path], reference: Path | None = None, community: Sequence[Path] = ()) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise no_store(folder)
        self.folders = list(dict.fromkeys(folder.resolve() for folder in folders))
        self.reference, names = reference, {path.resolve(): path.parent.name for path in community}
        shipped = [*([] if reference is None else [reference.resolve()]), *names]
        self.shown = " and ".join([*map(str, folders), *["the reference results"] * (reference is not None)])
        given, others = read(self.folders), read(shipped)
        self.blocks = dict(sorted((others.blocks | given.blocks).items()))
        self.runs = [block.runs[run_id] for run_id, block in self.blocks.items()]
        of_block = {run_id: names.get(block.folder.parent) for run_id, block in self.blocks.items()}
        self.community = {run_id: name for run_id, name in of_block.items() if name is not None}
        self.shipped, self.conflicts = frozenset(others.blocks.keys() - given.blocks.keys()), given.conflicts
        reports = [report for folder in [*self.folders, *shipped] for report in reports_in(folder)]
        self.damaged = given.damaged + others.damaged + [report for report in reports if isinstance(report, Damaged)]
        self.checks = [report for report in reports if isinstance(report, CheckRecord)]
        studies = sorted((r for r in reports if isinstance(r, StudyRecord)), key=lambda study: len(study.trials))
        self.studies = [study for _, study in sorted({study.name: study for study in studies}.items())]

    def refuse_unknown(self, tasks: Sequence[str] | None, opts: Sequence[str] | None) -> None:
        """Check names of tasks and optimizers: UserError if no run has one of them."""
        for kind, names, key in (("task", tasks, "task"), ("optimizer", opts, "opt")):
            known = sorted({name for run in self.runs for name in run.names[key]})
            for name in names or ():
                if bare(name) not in known:
                    near = nearest(name, known)
                    hint = f"did you mean {near!r}?" if near else f"there are runs of {', '.join(known) or 'none'}"
                    raise UserError(f"no runs of the {kind} {name!r} in {self.shown}; {hint}")

    def tables(self, run_id: str, wanted: str = ".*") -> dict[str, Columns]:
        """The tables of a finished run by name (`Block.tables`); UserError if one is damaged."""
        return tables_of(self.blocks[run_id], run_id, wanted)

    def place(self, run_id: str) -> Path:
        """The folder of the block from which a run is read."""
        return self.blocks[run_id].folder


def no_store(folder: Path, todo: str = HOW_TO_FILL) -> UserError:
    """The error for a missing folder, or one that is not a folder."""
    if is_no_folder(folder):
        return UserError(f"the store {folder} is a file, not a folder; name another")
    return UserError(f"there is no store {folder}; {todo}")
