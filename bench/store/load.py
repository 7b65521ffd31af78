"""The only loader of untrusted data: records, blocks, studies, checks, plans, claims.

Size, depth, types and ranges are checked; nothing named in the data is imported or followed.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from bench.store.record import RunResult, adapter, contradiction
from bench.text import clean, located, why_wrong

T = TypeVar("T")

MOST_BYTES = 512 << 20
"""Maximum bytes of a file of records: a block of a thousand runs with twenty evaluations each has 5 MB. Ours."""
MOST_LINE = 32 << 20
"""Maximum bytes of a record: 300,000 evaluations. Ours."""


class Damaged(Exception):
    """The file or folder at a path is invalid; `why` says it in words."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(clean(f"{path}: {why}"))  # one line: file names may contain anything
        self.path, self.why = path, why


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """See `read_file`."""
    return read_file(path, most)[0]


def read_file(path: Path, most: int = MOST_BYTES) -> tuple[bytes, os.stat_result]:
    """The content of a regular file, and its `stat` result; links, pipes and devices are refused.

    Raises:
        FileNotFoundError: it does not exist.
        Damaged: it cannot be read, or is too large.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except (OSError, ValueError) as error:
        raise Damaged(path, f"it cannot be read ({getattr(error, 'strerror', None) or error})") from None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise Damaged(path, "it is not a file")
        if found.st_size > most:
            raise Damaged(path, f"it has {found.st_size:,} bytes, more than the limit of {most:,}")
        pieces, left = [], found.st_size  # `os.read` allocates as much as it is asked for
        while left and (piece := os.read(handle, left)):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces), found
    except OSError as error:
        raise Damaged(path, f"it cannot be read ({error.strerror})") from None
    finally:
        os.close(handle)


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
    except (ValueError, RecursionError) as error:
        raise Damaged(path, str(error)[:200]) from None


def parse_record(text: bytes, path: Path) -> RunResult:
    """A line as the record of a run.

    Raises:
        Damaged: it is invalid or inconsistent.
    """
    if len(text) > MOST_LINE:
        raise Damaged(path, f"a record has {len(text):,} bytes, more than the limit of {MOST_LINE:,}")
    run = parse(text, RunResult, path)
    if why := contradiction(run):
        raise Damaged(path, f"{run.run_id}: {why}")
    return run


def read(path: Path, kind: type[T], most: int = MOST_LINE) -> T:
    """A JSON file as a value of a type.

    Raises:
        FileNotFoundError: it does not exist.
        Damaged: it is invalid.
    """
    return parse(read_bytes(path, most), kind, path)


def is_there(path: Path) -> Any:
    """The `stat` result of a regular file; None if it does not exist or is a link."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None
