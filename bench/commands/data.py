"""`bench data`: the state of the files of a task's data, and their preparation."""

import inspect
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import UserError, check_known
from bench.output import Answer
from bench.process import as_options

if TYPE_CHECKING:
    from tasks import TaskSpec


@dataclass(frozen=True)
class FileState:
    """One file of a task's data, `whole`, `part of N rows`, `missing` or `damaged`, and its size in rows or bytes."""

    path: Path
    state: str
    size: str = ""


@dataclass(frozen=True)
class DataSet:
    """The files of a task's data."""

    task: str
    folder: Path
    files: list[FileState]

    @property
    def states(self) -> set[str]:
        """The first words of the files' states."""
        return {file.state.split()[0] for file in self.files}

    @property
    def is_usable(self) -> bool:
        """Whether no file is missing or damaged."""
        return self.states.isdisjoint(("missing", "damaged"))


def data(what: str, task: str | None, root: Path, settings: Mapping[str, Any]) -> Answer:
    """The state of a task's files, after their preparation if `what` is `prepare`; exit code 1 if one is not usable.

    Raises:
        UserError: a name is unknown, or data cannot be fetched.
    """
    from bench.config.checks import task_errors
    from bench.config.options import task_values
    from tasks import TASKS

    if task is None and (settings or what == "prepare"):
        raise UserError(f"bench data {what}: name a task with --task")
    check_known("task", [] if task is None else [task], TASKS)
    specs = [spec for spec in ([TASKS[task]] if task else TASKS.values()) if has_files(spec)]
    if not specs:
        raise UserError(f"--task {task}: its own code makes its data, and the suite knows no files of it")
    options = {name.removeprefix("task."): value for name, value in settings.items()}
    values = task_values(specs[0], options) if task else {}
    with task_errors(values):
        if what == "prepare":  # build the data once, as a run would
            names = inspect.signature(specs[0].data_cls.__init__).parameters
            specs[0].data_cls(root, **{name: value for name, value in values.items() if name in names})
        sets = [data_set(spec, root, choice) for spec in specs for choice in _choices(spec, root, options)]
    lines = [line for part in sets for line in _lines(part, root, settings)]
    return Answer([asdict(part) for part in sets], lines, int(not all(part.is_usable for part in sets)))


def has_files(spec: "TaskSpec") -> bool:
    """Whether a task's data are files that the suite knows."""
    return _is_text(spec) or hasattr(spec.data_cls, "SOURCE")


def _is_text(spec: "TaskSpec") -> bool:
    return hasattr(spec.data_cls, "find") and getattr(spec.data_cls, "SOURCES", True) != ()


def _choices(spec: "TaskSpec", root: Path, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options that select each text of a task: the given one, else those in the data folder, else the default."""
    if not _is_text(spec):
        return [{}]
    selecting = {*inspect.signature(spec.data_cls.find).parameters} - {"root"}
    given = {name: value for name, value in options.items() if name in selecting}
    return [given] if given else [dict.fromkeys(selecting, name) for name in spec.data_cls.here(root)] or [{}]


def data_set(spec: "TaskSpec", root: Path, chosen: Mapping[str, Any]) -> DataSet:
    """The files of a task's data in a folder, chosen by options if there are several texts.

    Raises:
        DataError: of the task's source, or a file cannot be read.
    """
    from tasks.core.files import DataError

    source: Any = spec.data_cls.find(root, **chosen) if _is_text(spec) else spec.data_cls.SOURCE
    several = {name: [place] if isinstance(place, Path) else place for name, place in source.files(root).items()}
    try:
        files = [_state(source, name, path, len(paths) == 1) for name, paths in several.items() for path in paths]
    except OSError as error:
        raise DataError(f"{spec.name}: cannot read {error.filename or root}: {error.strerror}") from None
    return DataSet(spec.name, files[0].path.parent, files)


def _state(source: Any, name: str, path: Path, is_alone: bool) -> FileState:
    """The state of a file; one that is not alone is a shard, whose official size is not known."""
    from tasks.core.files import DataError, md5
    from tasks.core.tables import amount

    if not path.is_file():
        return FileState(path, "missing")
    unit = "rows" if path.suffix == ".parquet" else "bytes"
    try:
        size = f"{(count := amount(path)):,} {unit}"
        if hasattr(source, "md5"):
            return FileState(path, "whole" if md5(path) == source.md5[name] else "damaged", size)
    except DataError:
        return FileState(path, "damaged", f"{path.stat().st_size:,} bytes")
    official = source.expected[name][1]  # which is None if it is not known
    is_whole = not is_alone or path.suffix not in (".parquet", ".txt") or official in (None, count)
    return FileState(path, "whole" if is_whole else f"part of {official:,} {unit}", size)


def _lines(files: DataSet, root: Path, settings: Mapping[str, Any]) -> list[str]:
    """The states of a task's files, and what to do about missing and damaged ones."""
    from bench.results.render import shown
    from bench.results.table import Table

    rows = [(file.path.name, file.size, file.state) for file in files.files]
    lines = [f"{files.task}: {files.folder}", *shown(Table.of([""] * 3, rows), "  ")]
    if files.is_usable:
        return lines
    fetch = shlex.join(["bench", "data", "prepare", "--task", files.task, *as_options(settings), "--data", str(root)])
    return [*lines, f"  delete damaged files, and copy missing ones there, or fetch them: {fetch}"]
