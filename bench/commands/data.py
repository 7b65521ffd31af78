"""`bench data`: the state of the files of a task's data, and their preparation."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.config.checks import task_errors
from bench.config.options import imported_options, task_values
from bench.errors import UserError, check_known
from bench.output import Answer
from bench.process import as_options
from bench.results.render import shown
from bench.results.table import Table
from tasks import TASKS, TaskSpec
from tasks.core.files import DataError, md5
from tasks.core.tables import amount, kind_of
from tasks.language.sources import find, here


class FileState(NamedTuple):
    """One file of a task's data, `whole`, `part of N rows`, `missing` or `damaged`, and its size in rows or bytes."""

    path: Path
    state: str
    size: str = ""
    why: str = ""  # it is damaged, if more is known


def data(what: str, task: str | None, root: Path, settings: Mapping[str, Any]) -> Answer:
    """The state of a task's files, after their preparation if `what` is `prepare`; exit code 1 if one is not usable.

    UserError if a name is unknown, or data cannot be fetched.
    """
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
            names = imported_options(specs[0].data_cls, 2)
            specs[0].data_cls(root, **{name: value for name, value in values.items() if name in names})
        chosen = options.get("dataset") or options.get("corpus")
        places = {spec.name: [chosen] if chosen else here(spec.data_cls.SOURCES, root) or [None] for spec in specs}
        texts = [(spec.name, states(spec, root, name)) for spec in specs for name in places[spec.name]]
    answers, lines, code = list[dict[str, Any]](), list[str](), 0
    for name, files in texts:
        folder = files[0].path.parent
        answers.append({"task": name, "folder": folder, "files": [file._asdict() for file in files]})
        rows = [(file.path.name, file.size, file.state) for file in files]
        lines += [f"{name}: {folder}", *shown(Table.of([""] * 3, rows), "  ")]
        lines += [f"  {file.why}" for file in files if file.why]
        if {"missing", "damaged"} & {file.state for file in files}:
            words = ["bench", "data", "prepare", "--task", name, *as_options(settings), "--data", str(root)]
            lines.append(f"  delete damaged files, and copy missing ones there, or fetch them: {shlex.join(words)}")
            code = 1
    return Answer(answers, lines, code)


def has_files(spec: TaskSpec) -> bool:
    """Whether a task's data are files that the suite knows."""
    return bool(getattr(spec.data_cls, "SOURCES", None))


def states(spec: TaskSpec, root: Path, name: str | None = None) -> list[FileState]:
    """The files in a folder of a task's data, of this data set or the default one; DataError if one cannot be read."""
    source = find(spec.data_cls.SOURCES, root, name)
    several = {split: [place] if isinstance(place, Path) else place for split, place in source.files(root).items()}
    try:
        return [_state(source, split, path, len(paths) == 1) for split, paths in several.items() for path in paths]
    except OSError as error:
        raise DataError(f"{spec.name}: cannot read {error.filename or root}: {error.strerror}") from None


def _state(source: Any, name: str, path: Path, is_alone: bool) -> FileState:
    """The state of a file; one that is not alone is a shard, whose official size is not known."""
    if not path.is_file():
        return FileState(path, "missing")
    try:
        if hasattr(source, "md5"):
            state = "whole" if md5(path) == source.md5[name] else "damaged"
            return FileState(path, state, f"{path.stat().st_size:,} bytes")
        count, unit, dropped = amount(path), "bytes", 0
        if kind := kind_of(path) or source.label:
            unit = "rows"
            if kind != "parquet":
                rows, dropped = source.read([path], source.columns)
                count = len(rows)
    except DataError as error:
        return FileState(path, "damaged", f"{path.stat().st_size:,} bytes", str(error))
    official = source.expected[name][1]  # which is None if it is not known
    is_whole = not is_alone or path.suffix == ".gz" or official in (None, count)
    size = f"{count:,} {unit}" + f", and {dropped:,} without a label" * (dropped > 0)
    return FileState(path, "whole" if is_whole else f"part of {official:,} {unit}", size)
