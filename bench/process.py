"""The life of the program's process: a start and an end for which nobody has to wait."""

import atexit
import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn

_SELDOM = 100_000
"""New objects between two collections while modules are imported, which make half a million of them that stay. Ours."""

_usual: tuple[int, int, int] | None = None
_code: int | None = None


def begin() -> None:
    """Look for garbage seldom until `ready` is called: importing torch and Lightning takes a seventh less time."""
    global _usual
    _usual = gc.get_threshold()
    gc.set_threshold(_SELDOM, *_usual[1:])
    atexit.register(_leave)  # the first to be registered is the last to be called


def ready() -> None:
    """Look for garbage as usual again, since it may hold the memory of a GPU; does nothing without `begin`.

    What is imported by now stays, and no collection looks at it any more, which would take 0.25 s, not 1 ms.
    """
    if _usual is not None and gc.get_threshold()[0] == _SELDOM:
        gc.freeze()
        gc.set_threshold(*_usual)


def end(code: int) -> NoReturn:
    """Exit with this code once threads have ended and what has been registered with `atexit` since `begin` has run.

    Python would then take all imported modules apart, which takes about a second. It would also close files that are
    still open, so this is not for a process that runs code of others, and C would flush its own.
    """
    global _code
    _code = code
    sys.exit(code)


def _leave() -> None:
    if _code is None:  # another end, by an exception for example, at which Python takes all modules apart
        gc.unfreeze()  # or bindings to C++ complain of leaks
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(_code)
