"""Writing that is whole or not at all, errors of the disk, and locks that go with their process."""

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench.errors import MAKE_ROOM, RunBusy, RunFailed, UserError
from bench.text import plain


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, which takes the place of `path` in one atomic step once it is on the disk."""
    temporary = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any, **options: Any) -> None:
    """Write strict JSON in one atomic step."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        json.dump(plain(value), file, allow_nan=False, **options)


@contextmanager
def disk_errors(store: Path) -> Iterator[None]:
    """Make errors of the disk into the one line that a user sees.

    Raises:
        RunFailed: the disk is full or gone.
    """
    try:
        yield
    except OSError as error:
        todo = MAKE_ROOM if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        what = os.strerror(error.errno) if error.errno else error
        raise RunFailed(f"cannot write to the store {store}: {what}{todo}") from None


def take_lock(folder: Path, what: str) -> int:
    """Make the folder if needed and lock it for this process, until the lock is closed.

    Raises:
        RunBusy: another process holds the lock.
        UserError: the store cannot be written.
    """
    path = folder / "run.lock"
    for attempt in range(20):  # a reader that looks whether the run is alive holds the lock for an instant
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and attempt < 19:
                continue  # another has removed the folder in between
            raise UserError(
                f"cannot write to the store {folder.parent}: {error.strerror}; choose another with --store DIR"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), path.stat()):  # else its holder has just removed the folder
                return lock
        except OSError:
            pass
        os.close(lock)
        time.sleep(0.01)
    raise RunBusy(f"{what} is being trained by another process now")


@contextmanager
def unlocked(folder: Path) -> Iterator[bool]:
    """Whether no process trains what is in the folder; while the block lasts, none can begin to."""
    try:
        handle = os.open(folder / "run.lock", os.O_RDONLY)
    except OSError:
        yield True
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        free = True
    except OSError:
        free = False
    try:
        yield free
    finally:
        os.close(handle)
