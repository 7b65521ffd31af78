"""The lock of a block: held with `fcntl.lockf` by the process that trains it; the kernel drops it when that ends.

POSIX drops all locks of a process on a file as soon as the process closes any descriptor of that file, so a file whose
lock this process holds is never opened a second time. A child that was forked does not have the lock.
"""

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from bench.errors import RunBusy, UserError
from bench.store.load import is_there

LOCK = "lock"
TRIES, PAUSE_SECONDS = 20, 0.005
"""Readers that look whether a block is locked hold a shared lock for an instant, so taking it is repeated. Ours."""

_held: set[tuple[int, int] | None] = set()


class Lock:
    """The lock of a block's folder, which is created if needed, until `release`.

    If it is taken, also by this process, it raises `busy`; UserError if the file system has no locks.
    """

    def __init__(self, folder: Path, busy: RunBusy) -> None:
        self.path = folder / LOCK
        for _ in range(TRIES):
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # a process that ends just now removes an empty folder
                if (key := _key(self.path)) is not None and key in _held:
                    break
                self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
                try:
                    fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if self.is_intact:
                        self._id = _key(self.path)
                        _held.add(self._id)
                        return
                except OSError as error:
                    if error.errno not in (errno.EAGAIN, errno.EACCES):
                        os.close(self._handle)
                        why = f"cannot lock {self.path} ({error.strerror}); use a disk with locks, such as a local one"
                        raise UserError(why) from None
                os.close(self._handle)  # taken, or of a file that was removed meanwhile
            time.sleep(PAUSE_SECONDS)
        raise busy

    @property
    def is_intact(self) -> bool:
        """Whether the locked file still is the one in the folder."""
        try:
            return self._handle >= 0 and os.path.samestat(os.fstat(self._handle), self.path.lstat())
        except OSError:
            return False

    def release(self) -> None:
        """Remove the file, drop the lock, and remove the folder if it is empty; does nothing the second time."""
        if self._handle < 0:
            return
        with suppress(OSError):
            if self.is_intact:
                self.path.unlink()
        os.close(self._handle)
        _held.discard(self._id)
        self._handle = -1
        with suppress(OSError):
            self.path.parent.rmdir()


def is_locked(folder: Path) -> bool:
    """Whether a process trains the block in this folder."""
    path = folder / LOCK
    if (key := _key(path)) is None or key in _held:
        return key is not None
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # it was just removed, or belongs to another user
        return False
    try:
        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EACCES)
    finally:
        os.close(handle)
    return False


def _key(path: Path) -> tuple[int, int] | None:
    state = is_there(path)
    return None if state is None else (state.st_dev, state.st_ino)
