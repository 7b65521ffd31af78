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
    """The files of a task's data; `stand_in` says why they differ from the data that the task is named after."""

    task: str
    folder: Path
    stand_in: str | None
    files: list[FileState]

    @property
    def states(self) -> set[str]:
        """The first words of the files' states."""
        return {file.state.split()[0] for file in self.files}


def data(what: str, task: str | None, root: Path, settings: Mapping[str, Any]) -> Answer:
    """The state of a task's files, after their preparation if `what` is `prepare`; exit code 1 if one is not usable.

    Raises:
        UserError: a name is unknown, or data cannot be fetched.
    """
    from bench.config.checks import task_errors
    from bench.config.options import task_values
    from tasks import TASKS

    if task is None and what == "prepare":
        raise UserError("bench data prepare: name a task with --task")
    check_known("task", [] if task is None else [task], TASKS)
    specs = [spec for spec in ([TASKS[task]] if task else TASKS.values()) if has_files(spec)]
    if not specs:
        raise UserError(f"--task {task}: its own code makes its data, and the suite knows no files of it")
    options = {name.removeprefix("task."): value for name, value in settings.items()}
    selecting = _selecting(specs[0]) if task else set()
    if what == "prepare":  # build the data once, as a run would
        values, names = task_values(specs[0], options), inspect.signature(specs[0].data_cls.__init__).parameters
        with task_errors(values):
            specs[0].data_cls(root, **{name: value for name, value in values.items() if name in names})
    elif others := options.keys() - selecting:
        raise UserError(f"--task.{min(others)}: `bench data status` takes only task options that name files")
    chosen = {name: value for name, value in options.items() if name in selecting}
    sets, lines = list[DataSet](), list[str]()
    for spec in specs:
        folders = spec.data_cls.here(root) if _is_text(spec) and not chosen else []
        for choice in [dict.fromkeys(_selecting(spec), folder) for folder in folders] or [chosen]:
            with task_errors(choice):
                sets.append(data_set(spec, root, choice))
            lines += _lines(sets[-1], choice, root)
    is_usable = all(part.states.isdisjoint(("missing", "damaged")) for part in sets)
    return Answer([asdict(part) for part in sets], lines, int(not is_usable))


def has_files(spec: "TaskSpec") -> bool:
    """Whether a task's data are files that the suite knows."""
    return _is_text(spec) or hasattr(spec.data_cls, "SOURCE")


def _is_text(spec: "TaskSpec") -> bool:
    return hasattr(spec.data_cls, "find") and getattr(spec.data_cls, "SOURCES", True) != ()


def _selecting(spec: "TaskSpec") -> set[str]:
    """The option that selects a task's texts, if any."""
    return set(inspect.signature(spec.data_cls.find).parameters) - {"root"} if _is_text(spec) else set()


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
    return DataSet(spec.name, files[0].path.parent, getattr(source, "stand_in", None) or None, files)


def _state(source: Any, name: str, path: Path, is_alone: bool) -> FileState:
    """The state of a file; one that is not alone is a shard, whose official size is not known."""
    from tasks.core.files import DataError, md5
    from tasks.core.tables import amount

    if not path.is_file():
        return FileState(path, "missing")
    unit = "rows" if path.suffix == ".parquet" else "bytes"
    try:
        if hasattr(source, "md5"):
            return FileState(path, "whole" if md5(path) == source.md5[name] else "damaged", f"{amount(path):,} {unit}")
        count, official = amount(path), source.expected[name][1]  # which is None if it is not known
    except DataError:
        return FileState(path, "damaged", f"{path.stat().st_size:,} bytes")
    is_whole = not is_alone or path.suffix not in (".parquet", ".txt") or official in (None, count)
    return FileState(path, "whole" if is_whole else f"part of {official:,} {unit}", f"{count:,} {unit}")


def _lines(files: DataSet, chosen: Mapping[str, Any], root: Path) -> list[str]:
    """The states of a task's files, and what to do about missing and damaged ones."""
    from bench.results.render import shown
    from bench.results.table import Table

    rows = [(file.path.name, file.size, file.state) for file in files.files]
    lines = [f"{files.task}: {files.folder}", *([f"  {files.stand_in}"] if files.stand_in else [])]
    lines += shown(Table.of([""] * 3, rows), "  ")
    if files.states.isdisjoint(("missing", "damaged")):
        return lines
    words = as_options({f"task.{name}": value for name, value in chosen.items()})
    fetch = shlex.join(["bench", "data", "prepare", "--task", files.task, *words, "--data", str(root)])
    return [*lines, f"  delete damaged files, and copy missing ones there, or fetch them: {fetch}"]
