"""Waiting for other processes."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds; starting takes two, but the machines of a CI may be slow and shared."""


def until(done: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
    """Wait until `done()` is true and return its value; raises if that takes too long."""
    give_up = time.monotonic() + seconds
    while not (found := done()):
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what}: not after {seconds:g} s")
        time.sleep(0.05)
    return found
