"""The only loader of a store: types are checked, nothing named in the data is imported, linked files are not read."""

import json
import os
import stat
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from bench.config.run_config import id_of
from bench.store.record import RunResult
from bench.text import clean, located, why_wrong

T = TypeVar("T")


class Damaged(Exception):
    """The file or folder at a path is invalid; `why` says it in words."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(clean(f"{path}: {why}"))  # one line: file names may contain anything
        self.path, self.why = path, why


def is_there(path: Path) -> os.stat_result | None:
    """The `stat` result of a regular file; None if it does not exist or is a link; `Damaged` if it is not permitted."""
    try:
        state = path.lstat()
    except PermissionError as error:
        raise Damaged(path, f"it cannot be read ({error.strerror})") from None
    except OSError:
        return None
    return state if stat.S_ISREG(state.st_mode) else None


def read_bytes(path: Path) -> bytes:
    """The content of a regular file; FileNotFoundError if there is none, `Damaged` if it cannot be read."""
    if is_there(path) is None:
        raise FileNotFoundError(path)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(path, f"it cannot be read ({error.strerror})") from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)  # building it takes longer than reading a record


def parse(text: bytes, kind: type[T], path: Path) -> T:
    """JSON as a value of a type; `Damaged` if it is invalid."""
    try:
        return _adapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, located(first, json.loads(text)) if first["loc"] else []))[:100]
        raise Damaged(path, f"{where + ': ' if where else ''}{why_wrong(first['msg'])[:200]}") from None


def parse_record(text: bytes, path: Path) -> RunResult:
    """A line as the record of a run; `Damaged` if it is invalid, or its id is not the hash of its identity."""
    run = parse(text, RunResult, path)
    if not all({"step", "train_s"} <= row.keys() for row in run.validations):
        raise Damaged(path, f"{run.run_id}: an evaluation lacks its step or seconds")
    if run.identity and id_of(run.config["task"], run.config["opt"], run.identity) != run.run_id:
        raise Damaged(path, f"{run.run_id}: run_id is not the hash of its identity")
    return run


def read(path: Path, kind: type[T]) -> T:
    """A JSON file as a value of a type; FileNotFoundError if there is none, `Damaged` if it is invalid."""
    return parse(read_bytes(path), kind, path)
