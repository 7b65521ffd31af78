"""Files of a store: atomic writes, disk errors, and a loader that checks types and imports nothing."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from bench.errors import MAKE_ROOM, RunFailed, UserError
from bench.text import clean, why_wrong

T = TypeVar("T")
_adapter = cache(TypeAdapter)  # building one takes longer than reading a record
is_there = os.path.isfile  # before Python 3.14, `Path.is_file` raises an error where a folder cannot be read


class Damaged(Exception):
    """The file or folder at `path` is invalid; `why` says it in words."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(clean(f"{path}: {why}"))  # one line: file names may contain anything
        self.path, self.why = path, why


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, which atomically replaces `path` once it is on disk."""
    temporary = path.with_name(f".{uuid4().hex}.tmp")  # a longer name might be too long
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot flush folders
            raise
    finally:
        os.close(handle)


def existing(path: Path) -> Path:
    """The path, or its nearest parent that exists, even as a broken link."""
    return next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))


def remove(path: Path) -> None:
    """Remove an obsolete folder, link or file; failures are ignored."""
    with suppress(OSError):
        (shutil.rmtree if path.is_dir() and not path.is_symlink() else Path.unlink)(path)


@contextmanager
def disk_errors(store: Path, advice: str = "") -> Iterator[None]:
    """Convert disk errors into one line: RunFailed, or with advice UserError unless the disk is full."""
    try:
        yield
    except OSError as error:
        what = f"cannot write to the store {store}: {os.strerror(error.errno) if error.errno else error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunFailed(what + MAKE_ROOM) from None
        raise (UserError(f"{what}; {advice}") if advice else RunFailed(what)) from None


def making(store: Path) -> Any:
    """`disk_errors` for the first write to a store."""
    return disk_errors(store, "choose another with --store DIR")


def read_bytes(path: Path) -> bytes:
    """The content of a file; FileNotFoundError if there is none, `Damaged` if it cannot be read."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except OSError as error:
        raise Damaged(path, f"it cannot be read ({error.strerror})") from None


def parse(text: bytes, kind: type[T], path: Path) -> T:
    """JSON as a value of a type; `Damaged` if it is invalid."""
    try:
        return _adapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = "".join(f"{field}: "[:100] for field in first["loc"][:1])
        raise Damaged(path, where + why_wrong(first["msg"])[:200]) from None
