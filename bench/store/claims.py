"""Claims: a file in an attempt names the process that trains the block; its modification time is a heartbeat.

The kernel knows whether a process of this machine is alive. For a process of another machine the modification time
decides; the file system sets it, so different clocks do not matter.
"""

import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Annotated, cast
from uuid import uuid4

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from bench.machine import lives, this_process
from bench.store.files import write_json
from bench.store.load import Damaged, read

CLAIM = "claim.json"
BEAT_SECONDS = 15
"""Seconds between heartbeats. Ours."""
DAY = 86_400
PATIENCE_SECONDS = 300
"""Seconds without a heartbeat after which another machine's claim is dead. Ours."""


@with_config(ConfigDict(extra="forbid", strict=True))
class Owner(TypedDict):
    """A process (`bench.machine.this_process`) and a token that distinguishes its claims."""

    host: str
    boot: str
    space: int
    pid: Annotated[int, Field(gt=0, lt=2**31)]
    started: str | None
    token: str


def write_claim(folder: Path) -> Owner:
    """Claim this folder for this process."""
    owner = cast("Owner", {**this_process(), "token": uuid4().hex})
    write_json(folder / CLAIM, owner)
    return owner


def owner_of(folder: Path) -> Owner | None:
    """The claimant of an attempt; None if it was released or is unreadable."""
    try:
        return read(folder / CLAIM, Owner)
    except (Damaged, FileNotFoundError):
        return None


def is_alive(folder: Path, now: float | None = None) -> bool:
    """Whether the claimant of an attempt still works on it.

    Args:
        folder: of the attempt.
        now: the file system's time, if known; by default this machine's, which is accurate enough for display.
    """
    owner = owner_of(folder)
    if owner is None:
        return False
    alive = lives(owner)
    if alive is not None:
        return alive
    try:
        silent = (time.time() if now is None else now) - (folder / CLAIM).stat().st_mtime
    except OSError:
        return False
    return -DAY < silent < PATIENCE_SECONDS  # a date far in the future comes from a copy or a wrong clock


_claimed: set[Path] = set()
"""The current attempts of this process."""


@cache
def start_beating() -> None:
    """Start the heartbeat thread for all attempts of this process.

    Raises:
        MemoryError: there is too little memory for a thread.
    """
    done = threading.Event()

    def beat() -> None:
        while not done.wait(BEAT_SECONDS):
            for folder in tuple(_claimed):
                with suppress(OSError):  # the training thread will report it
                    os.utime(folder / CLAIM)

    thread = threading.Thread(target=beat, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise MemoryError(f"not enough memory for a thread ({error})") from None
    atexit.register(thread.join)  # with a thread left, Python exits without closing files
    atexit.register(done.set)  # called first: atexit runs in reverse order


os.register_at_fork(after_in_child=start_beating.cache_clear)  # a child does not inherit threads


@contextmanager
def beating(folder: Path) -> Iterator[None]:
    """Send heartbeats while the context lasts; see `start_beating`."""
    start_beating()
    _claimed.add(folder)
    try:
        yield
    finally:
        _claimed.discard(folder)
