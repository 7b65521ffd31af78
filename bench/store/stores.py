"""Reading stores: folders of blocks of runs (`bench/store/block.py`), merged by copying, safe to share.

A store is data: readers write nothing, lock nothing, and import no code that it names.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from bench.config.values import is_no_folder
from bench.errors import UserError, nearest
from bench.store.block import Columns, StoredBlock, block_name, blocks_in, read_block
from bench.store.files import CHECKPOINT, Damaged, is_file
from bench.store.record import RunResult
from bench.store.reports import CheckRecord, StudyRecord, reports_in
from optimizers.plugins import bare

HOW_TO_FILL = "train something first: `bench fit --task synthetic --opt ngd`, or to compare fairly `bench suite theory`"


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
        self.blocks, self.damaged, self.conflicts = dict[str, StoredBlock](), list[Damaged](), list[str]()
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

    @cached_property
    def runs(self) -> list[RunResult]:
        """All runs, by name."""
        return [block.runs[run_id] for run_id, block in sorted(self.blocks.items())]

    @property
    def finished(self) -> dict[str, RunResult]:
        """The finished runs, by id."""
        return {run_id: block.runs[run_id] for run_id, block in self.blocks.items() if block.done}

    def get(self, run_id: str) -> RunResult | None:
        """A run; None if it does not exist, or its record is unreadable."""
        return self.blocks[run_id].runs[run_id] if run_id in self.blocks else None

    def tables(self, run_id: str, wanted: str = ".*") -> dict[str, Columns]:
        """The run's tables by name (`StoredBlock.tables`); none for a missing run, UserError if one is damaged."""
        try:
            return self.blocks[run_id].tables(run_id, wanted) if run_id in self.blocks else {}
        except Damaged as error:
            advice = "copy the folder again from its source, or delete it and train again"
            raise UserError(f"cannot read the tables of run {run_id}: {error}; {advice}") from None


class Stores(Contents):
    """Runs and studies of one or more stores, read once. UserError if a folder does not exist.

    Runs that no store has are read from `reference`, the reference results if any, and from those of the `community`.

    Attributes:
        shown: the stores in words.
        shipped: the ids of the runs that are read from the reference or the community.
        community: by id of a run of the community, the name of its submission.
        studies, checks: all records; of several ones of a study, the one with the most trials.
    """

    def __init__(self, folders: Sequence[Path], reference: Path | None = None, community: Sequence[Path] = ()) -> None:
        for folder in folders:
            if is_no_folder(folder):
                raise UserError(f"the store {folder} is a file, not a folder; name another")
            if not folder.is_dir():
                raise UserError(f"there is no store {folder}; check the path, or {HOW_TO_FILL}")
        self.folders = list(dict.fromkeys(folder.resolve() for folder in folders))
        self.reference, names = reference, {path.resolve(): path.parent.name for path in community}
        shipped = [*([] if reference is None else [reference.resolve()]), *names]
        self.shown = " and ".join([*map(str, folders), *["the reference results"] * (reference is not None)])
        super().__init__(self.folders)
        others = Contents(shipped)
        self.shipped = frozenset(others.blocks.keys() - self.blocks.keys())
        self.blocks = dict(sorted((others.blocks | self.blocks).items()))
        places = {run_id: block.folder.parent for run_id, block in self.blocks.items()}
        self.community = {run_id: names[place] for run_id, place in places.items() if place in names}
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


def last_checkpoint(store: Path, run_ids: Sequence[str], *, lanes: bool = False) -> Path | None:
    """The checkpoint of an interrupted block; None without one, or if `lanes` does not match its engine."""
    path = store / block_name(run_ids) / CHECKPOINT
    with suppress(Damaged):
        if is_file(path) and (block := read_block(path.parent)) and not block.done:
            return path if all((run.engine == "lanes") == lanes for run in block.runs.values()) else None
    return None
