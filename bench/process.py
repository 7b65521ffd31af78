"""The program's process and its children: their import path, and fast start and exit.

No folder may take the place of the suite: a paper's repository often holds `optimizers/`, `tasks.py` or `bench.py`. So
`shield` sets the path of this process, and an environment that each child inherits, whoever starts it: Lightning its
ranks, multiprocessing, a compiler. What starts a process of the suite itself takes its words from
`bench_command` or `python_command`.
"""

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NoReturn

PACKAGES = ("bench", "tasks", "optimizers")
"""The suite's packages."""
ROOT = Path(__file__).absolute().parents[1]
"""The folder in which they lie."""

_SELDOM = 100_000
"""New objects between two collections while modules are imported, which make half a million of them that stay. Ours."""

GROUP = Path("/proc/self/autogroup")
"""By which Linux schedules the processes of a session together; some kernels lack it."""

_usual: tuple[int, int, int] | None = None
_code: int | None = None


class _Own:
    """Finds the suite's packages beside this one, whatever comes before them on the path."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """What `sys.meta_path` asks for."""
        return PathFinder.find_spec(name, [str(ROOT)]) if name in PACKAGES else None


def shield() -> None:
    """Let no module of the working folder, or of PYTHONPATH, take the place of the suite, here and in children."""
    os.environ["PYTHONSAFEPATH"] = "1"
    if _Own not in sys.meta_path:
        sys.meta_path.insert(0, _Own)
    # `python -m` and `python -c` put the working folder first.
    if not sys.flags.safe_path and sys.path[:1] in ([""], [str(Path.cwd())]):
        del sys.path[0]
        if str(ROOT) not in sys.path:
            sys.path.append(str(ROOT))


def python_command(*words: str) -> list[str]:
    """The words that start Python without the working folder on its path."""
    return [sys.executable, "-P", *words]


def bench_command(*words: str) -> list[str]:
    """The words that start `bench` as a separate process, in any folder."""
    return python_command("-m", "bench", *words)


def begin() -> None:
    """Look for garbage seldom until `ready` is called: importing torch and Lightning takes a seventh less time."""
    global _usual
    shield()
    _keep_priority()
    _usual = gc.get_threshold()
    gc.set_threshold(_SELDOM, *_usual[1:])
    atexit.register(_leave)  # the first to be registered is the last to be called


def _keep_priority() -> None:
    """Make the priority that `nice` gave hold in a session of this process's own, which Linux schedules as a group."""
    if sys.platform == "linux" and (own := os.nice(0)) > 0 and os.getsid(0) == os.getpid():
        with suppress(OSError), GROUP.open("r+") as group:
            group.write(str(own))


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
