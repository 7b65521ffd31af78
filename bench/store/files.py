"""Files of a store: locks, atomic writes, disk errors, and a loader that checks types and imports nothing."""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from bench.errors import MAKE_ROOM, RunBusy, RunFailed, UserError
from bench.text import clean, why_wrong

RUNS, DONE, LOCK, CHECKPOINT = "runs.jsonl", "done", "lock", "last.ckpt"
TRIES, PAUSE_SECONDS = 20, 0.005
"""Readers that look whether a block is locked hold a shared lock for an instant, so taking it is repeated. Ours."""

T = TypeVar("T")
_held: set[tuple[int, int] | None] = set()
_adapter = cache(TypeAdapter)  # building one takes longer than reading a record
is_file = os.path.isfile  # before Python 3.14, `Path.is_file` raises an error where a folder cannot be read


class Damaged(Exception):
    """The file or folder at `path` is invalid; `why` says it in words."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(clean(f"{path}: {why}"))  # one line: file names may contain anything
        self.path, self.why = path, why


class Lock(AbstractContextManager["Lock"]):
    """The lock of a block's folder, which is created if needed, until `release`; the kernel drops it with the process.

    POSIX drops all locks of a process on a file as soon as the process closes any descriptor of that file, so a file
    whose lock this process holds is never opened a second time. A child that was forked does not have the lock.

    If it is taken, also by this process, it raises RunBusy; UserError if the file system has no locks.
    """

    def __init__(self, folder: Path, what: str = "") -> None:
        self.path = folder / LOCK
        for _ in range(TRIES):
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # a process that ends just now removes an empty folder
                if _inode(self.path) not in _held:
                    self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                    if _try_lock(self._handle, fcntl.LOCK_EX, self.path) and self.is_intact:
                        self._inode = _inode(self._handle)
                        _held.add(self._inode)
                        return
                    os.close(self._handle)  # taken, or of a file that was removed meanwhile
            time.sleep(PAUSE_SECONDS)
        raise RunBusy(f"{what or folder} is in training by another process")

    def __exit__(self, *error: object) -> None:
        self.release()

    @property
    def is_intact(self) -> bool:
        """Whether the locked file still is the one in the folder."""
        return self._handle >= 0 and _inode(self.path) == _inode(self._handle)

    def release(self) -> None:
        """Remove the file, drop the lock, and remove the folder if it is empty; does nothing the second time."""
        if self._handle >= 0:
            if self.is_intact:
                self.path.unlink(missing_ok=True)
            os.close(self._handle)
            _held.discard(self._inode)
            self._handle = -1
            with suppress(OSError):
                self.path.parent.rmdir()


def is_locked(folder: Path) -> bool:
    """Whether a process trains the block in this folder."""
    path = folder / LOCK
    if (inode := _inode(path)) is None or inode in _held:
        return inode is not None
    with suppress(OSError, UserError), path.open("rb") as file:  # it was just removed, or belongs to another user
        return not _try_lock(file.fileno(), fcntl.LOCK_SH, path)
    return False


def _try_lock(handle: int, kind: int, path: Path) -> bool:
    try:
        fcntl.lockf(handle, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        why = f"cannot lock {path} ({error.strerror}); use a disk with locks, such as a local one"
        raise UserError(why) from None
    return True


def _inode(file: Path | int) -> tuple[int, int] | None:
    with suppress(OSError):
        state = os.stat(file)  # noqa: PTH116 - also of a descriptor
        return state.st_dev, state.st_ino
    return None


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


making = partial(disk_errors, advice="choose another with --store DIR")
"""`disk_errors` for the first write to a store."""


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
