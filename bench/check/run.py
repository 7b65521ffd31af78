"""Runs checks in a process of its own, since an optimizer may raise, hang, print, fork or end it."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from importlib.metadata import version
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from platform import python_version
from typing import Any, NamedTuple

from bench.check.catalogue import Kind, catalogue
from bench.check.report import Report, Verdict, written
from bench.config.options import is_none
from bench.config.plugins import adopt, packed
from bench.errors import UserError, check_known, described
from bench.machine import crowding
from bench.process import ROOT, python_command
from optimizers import OPTIMIZERS, OptimizerSpec
from optimizers.groups import REST
from optimizers.plugins import PluginError
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

    `only` names checks (default: all), `quick` leaves out those that start processes and trainings; `options` are
    hyperparameters or those of the task, as values or as words of the command line; `reference` is an optimizer whose
    steps must be equal; `data` is the data folder for a task.

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
    """The named checks, or all (all quick ones) if None, in their order; UserError for an unknown one."""
    known = catalogue(kind)
    check_known("check", only or (), known)
    return tuple(name for name in known if (only is None or name in only) and (known[name].quick or not quick))


def versions() -> dict[str, str]:
    """Of what the verdicts depend on, besides the optimizer's package."""
    return {"python": python_version(), "torch": version("torch"), "bench": version("attention-optimizer-bench")}


def reports(
    requests: Sequence[Request], *, limit: float = LIMIT, show: Show | None = None, refuse: bool = True
) -> Generator[Report, None, None]:
    """Check several optimizers one after the other, in one process that is replaced when it ends or hangs.

    `limit` is in seconds for one check; `show` is called with each verdict as it comes.

    Raises:
        UserError: an optimizer cannot be loaded or built; without `refuse`, it gets such a verdict instead.
    """
    with closing(Worker(limit)) as worker:
        for request in requests:
            report, ended, reason = Report(request.name, request.options, kind=request.kind), 0, ""
            for check in request.checks:
                answer: dict[str, Any] = {"verdict": "not applicable", "note": reason}
                if not reason:
                    answer = worker.call(verdict_on, request, check, limit)
                if refuse and "refused" in answer:
                    raise UserError(answer["refused"])
                verdict = Verdict(check, **{k: v for k, v in answer.items() if k in Verdict.__dataclass_fields__})
                report = replace(report, about=answer.get("about", report.about), verdicts=(*report.verdicts, verdict))
                if show is not None:
                    show(report, verdict)
                ended += "ended" in answer
                if "unbuilt" in answer or (check == "builds" and not verdict.ok):
                    reason = "it does not build"
                elif ended == _MOST_ENDED:
                    reason = reason or f"not run: {_MOST_ENDED} checks before ended the process"
            yield report


class Worker:
    """A process that runs functions of this package; another one replaces it when it ends or takes too long."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.process: subprocess.Popen[bytes] | None = None

    def call(self, function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
        """The answer of a function, with its `seconds`; or a verdict and that the process has `ended`."""
        seconds = self.limit * crowding()
        begun, note = time.monotonic(), f"not finished after {seconds:.2g} s"
        try:
            process = self.process or self._start()
            begun = time.monotonic()  # the limit does not count that it imports torch
            self.pipe.send((function, arguments))
            while time.monotonic() < begun + seconds:
                if self.pipe.poll(0.1):
                    return self.pipe.recv()
                if process.poll() is not None:  # a child that it has forked may hold the pipe open
                    raise EOFError
        except (EOFError, OSError):
            note = "the process ended"
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(f"options must be plain values: {error}") from None
        self.close()
        return {"verdict": "error", "note": note, "seconds": round(time.monotonic() - begun, 3), "ended": True}

    def _start(self) -> "subprocess.Popen[bytes]":
        self.pipe, theirs = Pipe()
        # No GPU: its driver's threads would not survive the fork of ranks, and the checks are the same without.
        alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1"}
        # A test may find its optimizer on the caller's path; `shield` lets Python find the suite's packages first.
        code = (
            "import json, sys\nroot, path, descriptor = json.loads(sys.argv[1])\nsys.path[:] = [root, *path]\n"
            "from bench.process import shield\nshield()\nsys.path[:] = path\n"
            "from bench.check.run import work\nwork(descriptor)"
        )
        self.process = subprocess.Popen(
            python_command("-c", code, json.dumps([str(ROOT), sys.path, theirs.fileno()])),
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=os.environ | alone,
            start_new_session=True,  # its forks end with it
        )
        theirs.close()
        self.pipe.send(packed())
        self.pipe.recv()
        return self.process

    def close(self) -> None:
        """End the process and its children."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.pipe.close()
            self.process = None


# ---- In the other process --------------------------------------------------------------------------------------------


def work(descriptor: int) -> None:
    """Call functions for a `Worker` at the other end of a pipe until it is closed; what optimizers print is lost."""
    import torch

    torch.set_num_threads(1)
    torch.compiler.set_stance("force_eager")  # to compile a step takes longer than all checks
    torch.optim.SGD([torch.ones(1)]).step()  # the first optimizer of a process imports torch's compiler
    pipe, process = Connection(descriptor), os.getpid()
    adopt(pipe.recv())
    for standard in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), standard)
    pipe.send("ready")
    with suppress(EOFError):
        while True:
            function, arguments = pipe.recv()
            begun = time.monotonic()
            answer = function(*arguments)
            if os.getpid() != process:
                break  # a process that the optimizer has forked
            pipe.send(answer | {"seconds": round(time.monotonic() - begun, 3)})
    os._exit(0)


_subjects: dict[str, Any] = {}
"""The last subject, by its request."""


def verdict_on(request: Request, check: str, limit: float) -> dict[str, Any]:
    """The fields of a verdict; `about` the optimizer, or that it is `unbuilt`; why a request is `refused`."""
    import pytest

    from bench.check.steps import Fault, seed

    more = dict[str, Any](unbuilt=True)
    try:
        if repr(request) not in _subjects:
            _subjects.clear()
            _subjects[repr(request)] = _subject(request, limit)
        subject = _subjects[repr(request)]
        more = {"about": _about(subject)}
        seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            note = catalogue(request.kind)[check].function(subject)
        return more | {"verdict": "pass", "note": note or ""}
    except pytest.skip.Exception as skip:
        return more | {"verdict": "not applicable", "note": str(skip)}
    except Fault as fault:  # with the line of the optimizer's file, if any
        note = described(fault).removeprefix("Fault: ")
        return more | {"verdict": "fail", "note": note, "measured": fault.measured}
    except (UserError, PluginError) as error:
        return more | {"verdict": "error", "note": str(error), "refused": str(error)}
    except BaseException as error:
        return more | {"verdict": "error", "note": "; ".join([described(error), *getattr(error, "__notes__", [])])}


def _subject(request: Request, limit: float) -> Any:
    if request.kind == "task":
        from bench.check.task import TaskSubject

        return TaskSubject(request.name, request.options, request.data)
    from bench.check.subject import Subject

    return Subject(request.name, request.options, request.reference, limit=limit)


def _about(subject: Any) -> dict[str, Any]:
    from tasks.core.spec import place_of

    spec = subject.spec
    target = spec.target if isinstance(spec, OptimizerSpec) else ":".join(place_of(spec.module))
    about = {"target": target, "version": spec.version, "package": spec.package}
    return about | {"versions": versions(), "arguments": written(subject.arguments)}
