"""The only loader of a store's data: records, blocks, studies, checks, plans, claims.

Types are checked; nothing named in the data is imported, and links are ignored.
"""

import json
import stat
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from bench.store.record import RunResult, adapter, contradiction
from bench.text import clean, located, why_wrong

T = TypeVar("T")


class Damaged(Exception):
    """The file or folder at a path is invalid; `why` says it in words."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(clean(f"{path}: {why}"))  # one line: file names may contain anything
        self.path, self.why = path, why


def read_bytes(path: Path) -> bytes:
    """The content of a regular file; a link counts as missing.

    Raises:
        FileNotFoundError: it does not exist.
        Damaged: it cannot be read.
    """
    if is_there(path) is None:
        raise FileNotFoundError(path)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(path, f"it cannot be read ({error.strerror})") from None


def parse(text: bytes, kind: type[T], path: Path) -> T:
    """JSON as a value of a type.

    Raises:
        Damaged: it is invalid.
    """
    try:
        return adapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, located(first, json.loads(text)) if first["loc"] else []))[:100]
        raise Damaged(path, f"{where + ': ' if where else ''}{why_wrong(first['msg'])[:200]}") from None


def parse_record(text: bytes, path: Path) -> RunResult:
    """A line as the record of a run.

    Raises:
        Damaged: it is invalid or inconsistent.
    """
    run = parse(text, RunResult, path)
    if why := contradiction(run):
        raise Damaged(path, f"{run.run_id}: {why}")
    return run


def read(path: Path, kind: type[T]) -> T:
    """A JSON file as a value of a type.

    Raises:
        FileNotFoundError: it does not exist.
        Damaged: it is invalid.
    """
    return parse(read_bytes(path), kind, path)


def is_there(path: Path) -> Any:
    """The `stat` result of a regular file; None if it does not exist or is a link."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None
