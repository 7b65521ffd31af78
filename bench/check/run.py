"""Runs checks in a process of its own, since an optimizer may raise, hang, print, fork or end it."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from importlib.metadata import version
from multiprocessing import Pipe
from pathlib import Path
from platform import python_version
from typing import Any, NamedTuple

from bench.check.catalogue import Kind, catalogue
from bench.check.report import Report, Verdict
from bench.config.options import is_none
from bench.errors import UserError, check_known
from bench.machine import crowding
from bench.process import ROOT, python_command
from optimizers import OPTIMIZERS
from optimizers.groups import REST
from tasks import TASKS

LIMIT = 30.0
"""Seconds that one check may take; more in proportion on a machine with more runnable processes than processors."""
_MOST_ENDED = 3
"""Processes that an optimizer may end or block before its remaining checks are skipped. Ours."""
Show = Callable[[Report, Verdict], None]
"""Receives the report on an optimizer so far, and the new verdict."""


class Request(NamedTuple):
    """Checks of one optimizer or task, as `request_of` takes them."""

    name: str
    checks: tuple[str, ...]
    options: dict[str, Any]
    reference: str | None = None
    kind: Kind = "optimizer"
    data: Path | None = None


def request_of(
    name: str,
    *,
    only: Sequence[str] | None = None,
    reference: str | None = None,
    options: Mapping[str, Any] | None = None,
    quick: bool = False,
    kind: Kind = "optimizer",
    data: Path | None = None,
) -> Request:
    """A request to check an optimizer or a task: a name of the registry, `module:Object` or `file.py:Object`.

    Args:
        name: of the optimizer or task.
        only: names of checks; all if None.
        reference: an optimizer whose steps this one's must equal.
        options: hyperparameters or options of the task, as values or as words of the command line.
        quick: whether to leave out checks that start processes and trainings.
        kind: whether it is an optimizer or a task.
        data: the data folder, for a task.

    Raises:
        UserError: there is no such optimizer, task or check.
    """
    place = name.rpartition(":")[0]
    if place.endswith(".py") and not Path(place).is_file():  # before torch is imported
        raise UserError(f"there is no file {place}")
    check_known(kind, [name], TASKS if kind == "task" else OPTIMIZERS)
    options = {key: value for key, value in (options or {}).items() if key != REST or not is_none(value)}
    return Request(name, checks_of(kind, only, quick=quick), options, reference, kind, data)


def checks_of(kind: Kind, only: Sequence[str] | None, *, quick: bool = False) -> tuple[str, ...]:
    """The named checks, or all (all quick ones) if None, in their order.

    Raises:
        UserError: there is no such check, or none is named.
    """
    known = catalogue(kind)
    if only is not None and not only:
        raise UserError(f"no check is named; there are {', '.join(known)}")
    check_known("check", only or (), known)
    return tuple(name for name in known if (only is None or name in only) and (known[name].quick or not quick))


def versions() -> dict[str, str]:
    """Of what the verdicts depend on, besides the optimizer's package."""
    return {"python": python_version(), "torch": version("torch"), "bench": version("attention-optimizer-bench")}


def reports(
    requests: Sequence[Request], *, limit: float = LIMIT, show: Show | None = None, refuse: bool = True
) -> Generator[Report, None, None]:
    """Check several optimizers one after the other, in one process that is replaced when it ends or hangs.

    Args:
        requests: what to check.
        limit: seconds that one check may take.
        show: called with each verdict as it comes.
        refuse: whether an optimizer that cannot be loaded or built raises an error; else it gets a verdict.

    Raises:
        UserError: see `refuse`.
    """
    with closing(_Worker(limit)) as worker:
        for request in requests:
            report, ended, reason = Report(request.name, request.options, kind=request.kind), 0, ""
            for check in request.checks:
                answer = worker.verdict(request, check) if not reason else {"verdict": "not applicable", "note": reason}
                if refuse and "refused" in answer:
                    raise UserError(answer["refused"])
                verdict = Verdict(check, **{k: v for k, v in answer.items() if k in Verdict.__dataclass_fields__})
                report = replace(report, about=answer.get("about", report.about), verdicts=(*report.verdicts, verdict))
                if show is not None:
                    show(report, verdict)
                ended += "ended" in answer
                if "unbuilt" in answer or (check == "builds" and not verdict.ok):
                    reason = "it does not build"
                elif ended == _MOST_ENDED and not reason:
                    reason = f"not run: {_MOST_ENDED} checks before ended the process"
            yield report


class _Worker:
    """A process with `bench.check.worker`; another one replaces it when it ends or takes too long."""

    def __init__(self, limit: float) -> None:
        self.limit, self.process = limit, None

    def verdict(self, request: Request, check: str) -> dict[str, Any]:
        """The answer to a request: fields of a verdict, and what `bench.check.worker` adds."""
        if self.process is None:
            self._start()
        seconds = self.limit * crowding()
        begun, note = time.monotonic(), f"not finished after {seconds:.2g} s"
        try:
            self.pipe.send((request, check, self.limit))
            while time.monotonic() < begun + seconds:
                if self.pipe.poll(0.1):
                    return self.pipe.recv()
                if self.process.poll() is not None:  # a child that it has forked may hold the pipe open
                    raise EOFError
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(f"options must be plain values: {error}") from None
        except (EOFError, OSError):
            note = "the process ended"
        self.close()
        return {"verdict": "error", "note": note, "seconds": round(time.monotonic() - begun, 3), "ended": True}

    def _start(self) -> None:
        self.pipe, theirs = Pipe()
        # No GPU: its driver's threads would not survive the fork of ranks, and the checks are the same without.
        alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1"}
        self.process = subprocess.Popen(
            python_with_path("from bench.check.worker import work; work(int(words[0]))", [str(theirs.fileno())]),
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=os.environ | alone,
            start_new_session=True,  # its forks end with it
        )
        theirs.close()
        try:
            self.pipe.recv()  # it has imported torch, which the limit does not count
        except EOFError:
            raise UserError(f"the process of the checks ended with code {self.process.wait()}; see above") from None

    def close(self) -> None:
        """End the process and its children."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.pipe.close()
            self.process = None


def python_with_path(code: str, words: Sequence[str]) -> list[str]:
    """A command that runs code with these `words` and the caller's path, on which a test may find its optimizer."""
    begin = (
        f"import json, sys\npath, words = json.loads(sys.argv[1])\nsys.path[:] = [{str(ROOT)!r}, *path]\n"
        "from bench.process import shield\nshield()\nsys.path[:] = path\n"  # it finds the suite's packages first
    )
    return python_command("-c", begin + code, json.dumps([sys.path, list(words)]))
