"""Several stores read as one, with their records of studies and checks: the input of boards."""

from collections.abc import Sequence
from pathlib import Path

from bench.config.values import is_no_folder
from bench.errors import UserError, nearest
from bench.store.files import Damaged
from bench.store.record import RunResult
from bench.store.reports import CheckRecord, StudyRecord, reports_in
from bench.store.store import Contents
from optimizers.plugins import bare

HOW_TO_FILL = (
    "train something first: `bench fit --task synthetic --opt ngd`, or for a fair comparison `bench suite theory`"
)


class Stores(Contents):
    """Runs and studies of one or more stores, read once. UserError if a folder does not exist.

    Runs that no store has are read from `reference`, a store of reference results, if any, and from those of the
    `community`.

    Attributes:
        shown: the stores in words.
        runs: all, by name.
        shipped: the ids of the runs that are read from the reference or the community.
        community: by id of a run of the community, the name of its submission.
        studies, checks: all records; of several ones of a study, the one with the most trials.
    """

    def __init__(self, folders: Sequence[Path], reference: Path | None = None, community: Sequence[Path] = ()) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise no_store(folder)
        self.folders = list(dict.fromkeys(folder.resolve() for folder in folders))
        self.reference, names = reference, {path.resolve(): path.parent.name for path in community}
        shipped = [*([] if reference is None else [reference.resolve()]), *names]
        self.shown = " and ".join([*map(str, folders), *["the reference results"] * (reference is not None)])
        super().__init__(self.folders)
        others = Contents(shipped)
        self.shipped = frozenset(others.blocks.keys() - self.blocks.keys())
        self.blocks = dict(sorted((others.blocks | self.blocks).items()))
        self.runs = [block.runs[run_id] for run_id, block in self.blocks.items()]
        of_block = {run_id: names.get(block.folder.parent) for run_id, block in self.blocks.items()}
        self.community = {run_id: name for run_id, name in of_block.items() if name is not None}
        reports = [report for folder in [*self.folders, *shipped] for report in reports_in(folder)]
        self.damaged += others.damaged + [report for report in reports if isinstance(report, Damaged)]
        self.checks = [report for report in reports if isinstance(report, CheckRecord)]
        studies = sorted((r for r in reports if isinstance(r, StudyRecord)), key=lambda study: len(study.trials))
        self.studies = [study for _, study in sorted({study.name: study for study in studies}.items())]

    def selected(self, tasks: Sequence[str] | None, opts: Sequence[str] | None) -> list[RunResult]:
        """The runs of these tasks and optimizers, without names of all; UserError if no run has one of the names."""
        runs = self.runs
        for kind, names, key in (("task", tasks, "task"), ("optimizer", opts, "opt")):
            known = sorted({name for run in self.runs for name in run.names[key]})
            for name in names or ():
                if bare(name) not in known:
                    near = nearest(name, known)
                    hint = f"did you mean {near!r}?" if near else f"there are runs of {', '.join(known) or 'none'}"
                    raise UserError(f"no runs of the {kind} {name!r} in {self.shown}; {hint}")
            runs = [run for run in runs if not names or run.names[key] & {*map(bare, names)}]
        return runs


def no_store(folder: Path, todo: str = HOW_TO_FILL) -> UserError:
    """The error for a missing folder, or one that is not a folder."""
    if is_no_folder(folder):
        return UserError(f"the store {folder} is a file, not a folder; name another")
    return UserError(f"there is no store {folder}; {todo}")
