"""`bench data`: the state of the files of a task's data, and their preparation."""

import inspect
import shlex
from collections.abc import Iterator, Mapping
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
        can_be_fetched: whether missing files can be fetched over the network.
        files: each with its state.
    """

    task: str
    folder: Path
    stand_in: str | None
    text: bool
    can_be_fetched: bool
    files: list[FileState]


def data(what: str, task: str | None, root: Path, settings: Mapping[str, Any]) -> Answer:
    """The state of a task's files, after their preparation if `what` is `prepare`; exit code 1 if one is not usable.

    Raises:
        UserError: a name is unknown, or data cannot be fetched.
    """
    from tasks import TASKS

    if task is None and what == "prepare":
        raise UserError("bench data prepare: name a task with --task")
    check_known("task", [] if task is None else [task], TASKS)
    specs = [spec for spec in ([TASKS[task]] if task else TASKS.values()) if has_files(spec)]
    if not specs:
        raise UserError(f"--task {task}: its own code makes its data, and the suite knows no files of it")
    options = {name.removeprefix("task."): value for name, value in settings.items()}
    if what == "prepare":
        _prepare(specs[0], root, options)
    naming = _naming(specs[0]) if task else set()
    if what == "status" and (others := options.keys() - naming):
        raise UserError(f"--task.{min(others)}: `bench data status` takes only task options that name files")
    chosen = {name: value for name, value in options.items() if name in naming}
    sets, lines = list[DataSet](), list[str]()
    for spec in specs:
        for choice in [chosen] if chosen or not _is_text(spec) else _present(spec, root):
            sets.append(_read(spec, root, choice))
            lines += _lines(sets[-1], choice, root)
    code = int(not all(file.usable for each in sets for file in each.files))
    return Answer([asdict(each) for each in sets], lines, code)


def _prepare(spec: "TaskSpec", root: Path, options: Mapping[str, Any]) -> None:
    """Build the task's data once, as a run would."""
    from bench.config.checks import task_errors
    from bench.config.options import task_options, task_values

    values = task_values(spec, options)
    names = inspect.signature(spec.data_cls.__init__).parameters
    with task_errors(task_options(spec)):
        spec.data_cls(root, **{name: value for name, value in values.items() if name in names})


def has_files(spec: "TaskSpec") -> bool:
    """Whether a task's data are files that the suite knows."""
    return _is_text(spec) or hasattr(spec.data_cls, "SOURCE")


def _is_text(spec: "TaskSpec") -> bool:
    return hasattr(spec.data_cls, "find") and getattr(spec.data_cls, "SOURCES", True) != ()


def _naming(spec: "TaskSpec") -> set[str]:
    """The options that select a task's texts."""
    return set(inspect.signature(spec.data_cls.find).parameters) - {"root"} if _is_text(spec) else set()


def _present(spec: "TaskSpec", root: Path) -> list[dict[str, Any]]:
    """Options that select each existing set of texts; no options if there is none."""
    (option,) = _naming(spec)
    return [{option: name} for name in spec.data_cls.here(root)] or [{}]


def data_set(spec: "TaskSpec", root: Path, chosen: Mapping[str, Any]) -> DataSet:
    """The files of a task's data in a folder, chosen by options if there are several texts.

    Raises:
        DataError: of the task's source.
        OSError: a file cannot be read.
    """
    text = _is_text(spec)
    source: Any = spec.data_cls.find(root, **chosen) if text else spec.data_cls.SOURCE
    files = list(_texts(source, root) if text else _images(source, root))
    stand_in = (source.stand_in or None) if text else None
    return DataSet(spec.name, files[0].path.parent, stand_in, text, not text or source.hub is not None, files)


def _images(source: Any, root: Path) -> Iterator[FileState]:
    from tasks.core.files import DataError, md5
    from tasks.core.tables import sha256

    for name, path in source.files(root).items():
        if not path.is_file():
            yield FileState(path, "missing")
            continue
        try:
            state = "whole" if md5(path) == source.md5[name] else "damaged"
        except DataError:
            state = "damaged"
        yield FileState(path, state, sha256(path), f"{path.stat().st_size:,} bytes")


def _texts(source: Any, root: Path) -> Iterator[FileState]:
    from tasks.core.cache import cached_tokens
    from tasks.core.files import DataError
    from tasks.core.layouts import converted, dropped_rows
    from tasks.core.tables import amount, sha256

    for split, paths in source.files(root).items():
        official, table = source.expected[split][1], None  # rows (Parquet) or bytes (texts), if known
        if all(path.is_file() for path in paths):
            table = next(filter(Path.is_file, converted(paths, source.layout)[:1]), None)
        for path in paths:
            if not path.is_file():
                yield FileState(path, "missing")
                continue
            digest, unit = sha256(path), "rows" if path.suffix == ".parquet" else "bytes"
            try:
                size = amount(path)
            except DataError:
                yield FileState(path, "damaged", digest, f"{path.stat().st_size:,} bytes")
                continue
            cached = [
                f"{entry['vocabulary']:,} tokens"
                + (f", rows up to {entry['max_length']}" if "max_length" in entry else "")
                + f" ({entry['bytes'] / 2**20:.1f} MiB)"
                for entry in cached_tokens(digest if table is None else sha256(table))
            ]
            dropped = 0 if table is None else dropped_rows(table)
            is_whole = len(paths) > 1 or path.suffix not in (".parquet", ".txt") or official in (None, size)
            state = "whole" if is_whole else f"part of {official:,} {unit}"
            state += f", {counted(dropped, 'row')} without a label left out" * bool(dropped)
            yield FileState(path, state, digest, f"{size:,} {unit}", cached)


def _read(spec: "TaskSpec", root: Path, chosen: Mapping[str, Any]) -> DataSet:
    """The data set.

    Raises:
        UserError: an option is wrong, or a file cannot be read.
    """
    from bench.config.checks import option_error
    from tasks.core.files import DataError

    try:
        return data_set(spec, root, chosen)
    except ValueError as error:
        raise option_error("task", error, chosen) from None
    except (DataError, OSError) as error:
        raise UserError(f"{spec.name}: {error}") from None


def _lines(files: DataSet, chosen: Mapping[str, Any], root: Path) -> list[str]:
    """The states of a task's files, and what to do about missing and damaged ones."""
    from bench.results.render import shown
    from bench.results.table import Table

    rows = []
    for file in files.files:
        tokenised = f"tokenised: {'; '.join(file.cached) or 'not yet'}" if files.text and file.usable else ""
        rows.append((file.path.name, file.size, file.state, file.sha256 or "", tokenised))
    lines = [f"{files.task}: {files.folder}", *([f"  {files.stand_in}"] if files.stand_in else [])]
    lines += shown(Table.of([""] * 5, rows), "  ")
    if all(file.usable for file in files.files):
        return lines
    words = as_options({f"task.{name}": value for name, value in chosen.items()})
    fetch = shlex.join(["bench", "data", "prepare", "--task", files.task, *words, "--data", str(root)])
    lines += ["  delete damaged files first"] * any(file.state == "damaged" for file in files.files)
    return [*lines, "  copy missing files there" + f", or fetch them: {fetch}" * files.can_be_fetched]
