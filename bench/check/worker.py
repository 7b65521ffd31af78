"""The process that runs checks for `bench.check.run`."""

import os
import time
import warnings
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

from bench.check.catalogue import catalogue
from bench.check.report import written
from bench.check.run import Request, versions
from bench.check.steps import Fault, seed
from bench.check.subject import Subject
from bench.errors import UserError, described
from optimizers import OptimizerSpec
from optimizers.plugins import PluginError
from tasks.core.spec import place_of

_subjects: dict[str, Any] = {}


def work(descriptor: int) -> None:
    """Answer requests from a pipe until it is closed; what optimizers print is lost."""
    torch.set_num_threads(1)
    torch.compiler.set_stance("force_eager")  # to compile a step takes longer than all checks
    torch.optim.SGD([torch.ones(1)]).step()  # the first optimizer of a process imports torch's compiler
    pipe, process = Connection(descriptor), os.getpid()
    for standard in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), standard)
    pipe.send("ready")
    with suppress(EOFError):
        while True:
            request, check, limit = pipe.recv()
            begun = time.monotonic()
            answer = _verdict(request, check, limit)
            if os.getpid() != process:
                break  # a process that the optimizer has forked
            pipe.send(answer | {"seconds": round(time.monotonic() - begun, 3)})
    os._exit(0)


def _subject(request: Request, limit: float) -> Any:
    key = repr(request)
    if key not in _subjects:
        _subjects.clear()
        if request.kind == "task":
            from bench.check.task import TaskSubject  # Lightning takes seconds to import

            _subjects[key] = TaskSubject(request.name, request.options, request.data)
        else:
            _subjects[key] = Subject(request.name, request.options, request.reference, limit=limit)
    return _subjects[key]


def _about(subject: Any) -> dict[str, Any]:
    spec = subject.spec
    return {
        "target": spec.target if isinstance(spec, OptimizerSpec) else ":".join(place_of(spec.module)),
        "version": spec.version,
        "package": spec.package,
        "versions": versions(),
        "arguments": written(subject.arguments),
    }


def _verdict(request: Request, check: str, limit: float) -> dict[str, Any]:
    """The fields of a verdict; `about` the optimizer, or `unbuilt`; why a request is `refused`."""
    more = dict[str, Any](unbuilt=True)
    try:
        subject = _subject(request, limit)
        more = {"about": _about(subject)}
        seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            note = catalogue(request.kind)[check].function(subject)
        return more | {"verdict": "pass", "note": note or ""}
    except pytest.skip.Exception as skip:
        return more | {"verdict": "not applicable", "note": str(skip)}
    except Fault as fault:
        return more | {"verdict": "fail", "note": fault_text(fault), "measured": fault.measured}
    except (UserError, PluginError) as error:
        return more | {"verdict": "error", "note": str(error), "refused": str(error)}
    except BaseException as error:
        return more | {"verdict": "error", "note": "; ".join([described(error), *getattr(error, "__notes__", [])])}


def fault_text(fault: Fault) -> str:
    """The message of a fault, with the line of the optimizer's file in which it appeared, if any."""
    return described(fault).removeprefix("Fault: ")
