"""`bench data`: the state of the files of a task's data, and their preparation."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import UserError, check_known
from bench.output import Answer
from bench.process import as_options
from bench.text import counted

if TYPE_CHECKING:
    from tasks import TaskSpec


@dataclass(frozen=True)
class FileState:
    """One file of a task's data.

    Attributes:
        path: where it is or should be.
        state: `whole`, `part of N rows`, `missing` or `damaged`.
        sha256: 64 hex digits, or None if it cannot be read.
        size: rows of a table, bytes of other files.
        cached: for text, the entries of the cache, one for each tokenizer and length.
    """

    path: Path
    state: str
    sha256: str | None = None
    size: str = ""
    cached: list[str] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """Whether a run could read it."""
        return self.state not in ("missing", "damaged")


@dataclass(frozen=True)
class DataSet:
    """The files of a task's data.

    Attributes:
        task: its name.
        folder: of the files.
        stand_in: why they differ from the data that the task is named after; None if they do not.
        text: whether they are texts, which are tokenised.
        files: each with its state.
    """

    task: str
    folder: Path
    stand_in: str | None
    text: bool
    files: list[FileState]


def data(what: str, task: str | None, root: Path, settings: Mapping[str, Any]) -> Answer:
    """The state of a task's files, after their preparation if asked for; exit code 1 if one is missing or damaged.

    Raises:
        UserError: a name is unknown, or data cannot be fetched.
    """
    specs = _specs(what, task)
    if what == "prepare":
        _prepare(specs[0], root, settings)
    chosen = _chosen(specs, settings, what)
    sets, lines = list[DataSet](), list[str]()
    for spec in specs:
        for options in _sets(spec, root, chosen):
            sets.append(state := _found(spec, root, options))
            lines += _lines(state)
            if not all(file.usable for file in state.files):
                lines += _advice(spec, root, options, state)
    code = int(not all(file.usable for each in sets for file in each.files))
    return Answer([asdict(each) for each in sets], lines, code)


def _specs(what: str, task: str | None) -> "list[TaskSpec]":
    from tasks import TASKS

    if task is None:
        if what == "prepare":
            raise UserError("bench data prepare: name a task with --task")
        return [spec for spec in TASKS.values() if has_files(spec)]
    check_known("task", [task], TASKS)
    spec = TASKS[task]
    if not has_files(spec):
        raise UserError(f"--task {task}: its own code makes its data, and the suite knows no files of it")
    return [spec]


def _prepare(spec: "TaskSpec", root: Path, settings: Mapping[str, Any]) -> None:
    """Build the task's data once, as a run would."""
    import inspect

    from bench.config.checks import task_errors
    from bench.config.options import task_options, task_values

    options = task_options(spec)
    values = task_values(spec, {name.removeprefix("task."): value for name, value in settings.items()})
    names = inspect.signature(spec.data_cls.__init__).parameters
    with task_errors(options):
        spec.data_cls(root, **{name: value for name, value in values.items() if name in names})


def has_files(spec: "TaskSpec") -> bool:
    """Whether a task's data are files that the suite knows."""
    return is_text(spec) or hasattr(spec.data_cls, "SOURCE")


def is_text(spec: "TaskSpec") -> bool:
    """Whether a task's data are text files to be tokenised; `find` then returns their source."""
    return hasattr(spec.data_cls, "find") and getattr(spec.data_cls, "SOURCES", True) != ()


def can_be_fetched(spec: "TaskSpec", root: Path, chosen: Mapping[str, Any] | None = None) -> bool:
    """Whether missing files of a task's data can be fetched over the network."""
    return not is_text(spec) or spec.data_cls.find(root, **(chosen or {})).hub is not None


def states(spec: "TaskSpec", root: Path, chosen: Mapping[str, Any] | None = None) -> list[FileState]:
    """The files of a task's data in this folder, chosen by options if there are several texts."""
    from tasks.core.files import DataError, md5
    from tasks.core.layouts import converted
    from tasks.core.tables import sha256

    if is_text(spec):
        source = spec.data_cls.find(root, **(chosen or {}))
        states = []
        for split, paths in source.files(root).items():
            other = converted(paths, source.layout)[0] if all(path.is_file() for path in paths) else None
            states += [_text_state(path, source.expected[split][1], len(paths), other) for path in paths]
        return states
    source, found = spec.data_cls.SOURCE, []
    for name, path in source.files(root).items():
        if not path.is_file():
            found.append(FileState(path, "missing"))
            continue
        try:
            state = "whole" if md5(path) == source.md5[name] else "damaged"
        except DataError:
            state = "damaged"
        found.append(FileState(path, state, sha256(path), f"{path.stat().st_size:,} bytes"))
    return found


def _text_state(path: Path, official: int | None, shards: int, other: Path | None) -> FileState:
    """The state of one of a split's files.

    Args:
        path: the file.
        official: number of rows (Parquet) or bytes (texts) of the official file, if known.
        shards: number of the split's files.
        other: where their rows would be cached if they were converted.
    """
    from tasks.core.cache import cached_tokens
    from tasks.core.files import DataError
    from tasks.core.layouts import dropped_rows
    from tasks.core.tables import amount, sha256

    if not path.is_file():
        return FileState(path, "missing")
    digest, unit = sha256(path), "rows" if path.suffix == ".parquet" else "bytes"
    try:
        found = amount(path)
    except DataError:
        return FileState(path, "damaged", digest, f"{path.stat().st_size:,} bytes")
    cached = [
        f"{entry['vocabulary']:,} tokens"
        + (f", rows up to {entry['max_length']}" if "max_length" in entry else "")
        + f" ({entry['bytes'] / 2**20:.1f} MiB)"
        for entry in cached_tokens(sha256(other) if other is not None and other.is_file() else digest)
    ]
    dropped = dropped_rows(other) if other is not None and other.is_file() else 0
    is_comparable = shards == 1 and path.suffix in (".parquet", ".txt")
    state = "whole" if not is_comparable or official in (None, found) else f"part of {official:,} {unit}"
    state += f", {counted(dropped, 'row')} without a label left out" * bool(dropped)
    return FileState(path, state, digest, f"{found:,} {unit}", cached)


def _chosen(specs: "list[TaskSpec]", settings: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The settings that select a task's texts.

    Raises:
        UserError: `status` was given others.
    """
    names = _naming(specs[0]) if len(specs) == 1 and is_text(specs[0]) else set()
    chosen = {key.removeprefix("task."): value for key, value in settings.items() if key.removeprefix("task.") in names}
    if what == "status" and (others := [key for key in settings if key.removeprefix("task.") not in chosen]):
        raise UserError(f"--{min(others)}: `bench data status` takes only task options that name files")
    return chosen


def _naming(spec: "TaskSpec") -> set[str]:
    """The options that select a task's texts."""
    import inspect

    return set(inspect.signature(spec.data_cls.find).parameters) - {"root"}


def _sets(spec: "TaskSpec", root: Path, chosen: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Options that select the task's data: the given ones, or those of each existing set, or none."""
    if chosen or not is_text(spec):
        return [chosen]
    (option,) = _naming(spec)
    return [{option: name} for name in spec.data_cls.here(root)] or [{}]


def _found(spec: "TaskSpec", root: Path, chosen: Mapping[str, Any]) -> DataSet:
    from bench.config.checks import option_error
    from tasks.core.files import DataError

    try:
        found = states(spec, root, chosen)
    except ValueError as error:
        raise option_error("task", error, chosen) from None
    except (DataError, OSError) as error:
        raise UserError(f"{spec.name}: {error}") from None
    text = is_text(spec)
    stand_in = (spec.data_cls.find(root, **chosen).stand_in or None) if text else None
    return DataSet(spec.name, found[0].path.parent, stand_in, text, found)


def _lines(found: DataSet) -> list[str]:
    """The states of a task's files, for a terminal."""
    from bench.results.render import shown
    from bench.results.table import Table

    rows = []
    for state in found.files:
        tokenised = f"tokenised: {'; '.join(state.cached) or 'not yet'}" if found.text and state.usable else ""
        rows.append((state.path.name, state.size, state.state, state.sha256 or "", tokenised))
    lines = [f"{found.task}: {found.folder}", *([f"  {found.stand_in}"] if found.stand_in else [])]
    return [*lines, *shown(Table.of([""] * 5, rows), "  ")]


def _advice(spec: "TaskSpec", root: Path, chosen: Mapping[str, Any], found: DataSet) -> list[str]:
    """What to do about missing and damaged files."""
    from bench.config.options import task_options

    own = as_options({f"task.{name}": value for name, value in chosen.items() if name in task_options(spec)})
    fetch = shlex.join(["bench", "data", "prepare", "--task", spec.name, *own, "--data", str(root)])
    first = ["  delete damaged files first"] * any(state.state == "damaged" for state in found.files)
    return [*first, "  copy missing files there" + f", or fetch them: {fetch}" * can_be_fetched(spec, root, chosen)]
