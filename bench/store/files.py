"""Atomic writes, and disk errors."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench.errors import MAKE_ROOM, RunFailed, UserError
from bench.text import plain


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


def existing(path: Path) -> Path:
    """The path, or its nearest parent that exists, even as a broken link."""
    return next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))


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


def write_json(path: Path, value: Any, **options: Any) -> None:
    """Write strict JSON atomically; the folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        json.dump(plain(value), file, allow_nan=False, **options)


@contextmanager
def disk_errors(store: Path, todo: str = "") -> Iterator[None]:
    """Convert disk errors into one line for the user: RunFailed, or UserError if `todo` says what to do."""
    try:
        yield
    except OSError as error:
        what = f"cannot write to the store {store}: {os.strerror(error.errno) if error.errno else error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunFailed(what + MAKE_ROOM) from None
        raise (UserError(f"{what}; {todo}") if todo else RunFailed(what)) from None


def making(store: Path, todo: str = "choose another with --store DIR") -> AbstractContextManager[None]:
    """`disk_errors` for the first write to a store."""
    return disk_errors(store, todo)


def remove(path: Path) -> None:
    """Remove an obsolete folder, link or file; failures are ignored."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
