"""The tests that `bench check` runs by pytest: one for each check of each requested optimizer or task.

Each appends to a file that it begins, and its verdict. pytest-xdist replaces a worker that a check has ended.
"""

import json
import os
import pickle
import sys
import time
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from bench.process import ROOT, shield

shield()
if sys.path[0] == str(ROOT):  # first until here, so that nothing shadows the suite
    sys.path[:] = [*sys.path[1:], *[sys.path[0]] * (sys.path[0] not in sys.path[1:])]

import pytest  # noqa: E402
import torch  # noqa: E402

from bench.check.catalogue import catalogue  # noqa: E402
from bench.check.report import written  # noqa: E402
from bench.check.run import EVENTS, FOLDER, REQUESTS, versions  # noqa: E402
from bench.check.steps import Fault, seed  # noqa: E402
from bench.check.subject import Subject  # noqa: E402
from bench.errors import UserError, described  # noqa: E402
from optimizers import OptimizerSpec  # noqa: E402
from optimizers.plugins import PluginError, adopt  # noqa: E402
from tasks.core.spec import place_of  # noqa: E402

_folder = Path(os.environ[FOLDER])
_requests, _limit, _session = pickle.loads((_folder / REQUESTS).read_bytes())
adopt(_session)
_unbuilt: set[int] = set()
_LOST = 3  # workers that an optimizer may end before its remaining checks are skipped

torch.set_num_threads(1)
torch.compiler.set_stance("force_eager")  # to compile a step takes longer than all checks
torch.optim.SGD([torch.ones(1)]).step()  # the first optimizer of a process imports torch's compiler


@cache
def _subject(number: int) -> Any:
    request = _requests[number]
    if request.kind == "task":
        from bench.check.task import TaskSubject

        return TaskSubject(request.name, request.options, request.data)
    return Subject(request.name, request.options, request.reference, limit=_limit)


def _about(subject: Any) -> dict[str, Any]:
    spec = subject.spec
    return {
        "target": spec.target if isinstance(spec, OptimizerSpec) else ":".join(place_of(spec.module)),
        "version": spec.version,
        "package": spec.package,
        "versions": versions(),
        "arguments": written(subject.arguments),
    }


def _why_skipped(number: int) -> str:
    """Why the remaining checks of an optimizer are not run: it does not build, or has ended too many workers."""
    lines = [json.loads(line) for line in (_folder / EVENTS).read_text().splitlines()]
    count = Counter(line["check"] for line in lines if line["number"] == number)
    ended = [check for check, lines in count.items() if lines == 1]
    if number in _unbuilt or "builds" in ended:
        return "it does not build"
    return f"not run: {_LOST} checks before ended the process" if len(ended) >= _LOST else ""


def _verdict(number: int, check: str) -> dict[str, Any]:
    """The verdict of a check, with the place in the user's file, and what is known about the optimizer."""
    subject, more = None, dict[str, Any]()
    try:
        subject = _subject(number)
        more["about"] = _about(subject)
        seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            note = catalogue(_requests[number].kind)[check].function(subject)
        return more | {"verdict": "pass", "note": note or ""}
    except pytest.skip.Exception as skip:
        return more | {"verdict": "not applicable", "note": str(skip)}
    except BaseException as error:
        if subject is None or check == "builds":
            _unbuilt.add(number)
        if isinstance(error, Fault):
            return more | {"verdict": "fail", "note": str(error), "measured": error.measured}
        if isinstance(error, pytest.fail.Exception) and str(error).startswith("Timeout (>"):
            note = f"not finished after {float(str(error)[10:].partition('s')[0]):.2g} s"
        elif isinstance(error, UserError | PluginError):
            note = more["refused"] = str(error)
        else:
            note = "; ".join([described(error), *getattr(error, "__notes__", [])])
        return more | {"verdict": "error", "note": note}


_cells = [(number, check) for number, request in enumerate(_requests) for check in request.checks]


@pytest.mark.parametrize(("number", "check"), _cells, ids=[f"{number}-{check}" for number, check in _cells])
def test_check(number: int, check: str) -> None:
    """One check of one optimizer."""
    process, begun, event = os.getpid(), time.monotonic(), {"number": number, "check": check}
    with (_folder / EVENTS).open("a", buffering=1) as file:
        why = _why_skipped(number)
        file.write(json.dumps(event) + "\n")
        verdict = {"verdict": "not applicable", "note": why} if why else _verdict(number, check)
        if os.getpid() != process:
            os._exit(0)  # a process that the optimizer has forked
        file.write(json.dumps(event | verdict | {"seconds": round(time.monotonic() - begun, 3)}) + "\n")
