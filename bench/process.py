"""The program's process and its children: their import path, and fast start and exit.

No folder may shadow the suite: a paper's repository often has `optimizers/`, `tasks.py` or `bench.py`. So `shield` sets
the path of this process, and an environment that every child inherits: ranks of Lightning, multiprocessing, a compiler.
Code that starts a process of the suite uses `bench_command` or `python_command`.
"""

import atexit
import gc
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType
from typing import NoReturn

PACKAGES = ("bench", "tasks", "optimizers")
"""The suite's packages."""
ROOT = Path(__file__).absolute().parents[1]
"""The folder with these packages."""

WAIT_POLICY = "OMP_WAIT_POLICY"
"""Torch's threads spin while they wait for each other, unless this is PASSIVE when torch is imported. Where other
programs run, that takes up the processor that the thread waited for needs. A value set by the user stays."""

_SELDOM = 10_000_000
"""New objects between two collections during imports and the reading of records, whose objects stay. Ours."""

_usual: tuple[int, int, int] | None = None
_code: int | None = None


class _Own:
    """Finds the suite's packages next to this one, whatever precedes them on the path."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """The interface of `sys.meta_path`."""
        return PathFinder.find_spec(name, [str(ROOT)]) if name in PACKAGES else None


def shield() -> None:
    """Let no module of the working folder shadow the suite, here and in children."""
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ.setdefault(WAIT_POLICY, "PASSIVE")
    if _Own not in sys.meta_path:
        sys.meta_path.insert(0, _Own)
    # `python -m` and `python -c` put the working folder first.
    if not sys.flags.safe_path and sys.path[:1] in ([""], [str(Path.cwd())]):
        del sys.path[0]
        if str(ROOT) not in sys.path:
            sys.path.append(str(ROOT))


def python_command(*words: str) -> list[str]:
    """The command that starts Python without the working folder on its path."""
    return [sys.executable, "-P", *words]


def bench_command(*words: str) -> list[str]:
    """The command that starts `bench` as a separate process, in any folder."""
    return python_command("-m", "bench", *words)


def as_options(values: Mapping[str, object]) -> list[str]:
    """Values by name as arguments of a command: `--name value` each."""
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def begin() -> None:
    """Prepare the process; until `ready`, garbage is seldom collected: imports of torch take a seventh less time.

    SIGTERM interrupts as Ctrl-C does, unless there are other handlers.
    """
    global _usual
    shield()
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) == usual:
            signal.signal(number, interrupt)
    _usual = gc.get_threshold()
    gc.set_threshold(_SELDOM, *_usual[1:])
    atexit.register(_leave)  # the first one registered is called last


def interrupt(number: int, frame: FrameType | None) -> None:
    """The signal handler outside of training, where `bench.train.stop` has its own: a KeyboardInterrupt.

    An interrupted import leaves half a module, and libraries catch whatever it raises; so it ends the process.
    """
    if importing(frame):
        with suppress(OSError):  # whoever read it may have ended
            os.write(2, b"bench: interrupted\n")
        os._exit(130)
    raise KeyboardInterrupt


def importing(frame: FrameType | None) -> bool:
    """Whether this frame is within an import."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def ready() -> None:
    """Collect garbage as usual again, since it may hold GPU memory; does nothing without `begin`.

    Objects imported so far are excluded from collections, which then take 1 ms instead of 0.25 s.
    """
    if _usual is not None and gc.get_threshold()[0] == _SELDOM:
        gc.freeze()
        gc.set_threshold(*_usual)


def end(code: int) -> NoReturn:
    """Exit after threads and functions of `atexit`, but without Python's teardown of modules, which takes a second.

    That teardown would also close open files, so this is not for a process that runs plug-ins.
    """
    global _code
    _code = code
    sys.exit(code)


def _leave() -> None:
    if _code is None:  # another exit, such as an exception: Python tears down all modules
        gc.unfreeze()  # else C++ bindings report leaks
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(_code)
