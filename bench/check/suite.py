"""The tests that `bench check` runs by pytest: one for each check of each requested optimizer or task."""

import os
import pickle
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.check.catalogue import catalogue
from bench.check.plugin import REQUEST, skip_if_lost
from bench.check.report import written
from bench.check.run import versions
from bench.check.steps import seed
from bench.check.subject import Subject
from optimizers import OptimizerSpec
from tasks.core.spec import place_of

_requests = pickle.loads(Path(os.environ[REQUEST], "request").read_bytes())
_limit = float(os.environ["BENCH_CHECK_LIMIT"])
_unbuilt: set[int] = set()

torch.set_num_threads(1)
torch.compiler.set_stance("force_eager")  # to compile a step takes longer than all checks
torch.optim.SGD([torch.ones(1)]).step()  # the first optimizer of a process imports torch's compiler


@cache
def _subject(number: int) -> Any:
    request = _requests[number]
    if request.kind == "task":
        from bench.check.task import TaskSubject

        return TaskSubject(request.name, request.options, request.data)
    return Subject(request.spec or request.name, request.options, request.reference, limit=_limit)


def _about(subject: Any) -> dict[str, Any]:
    spec = subject.spec
    return {
        "target": spec.target if isinstance(spec, OptimizerSpec) else ":".join(place_of(spec.module)),
        "version": spec.version,
        "package": spec.package,
        "versions": versions(),
        "arguments": written(subject.arguments),
    }


_cells = [(number, check) for number, request in enumerate(_requests) for check in request.checks]


@pytest.mark.parametrize(("number", "check"), _cells, ids=[f"{number}-{check}" for number, check in _cells])
def test_check(number: int, check: str, record_property: Any) -> None:
    """One check of one optimizer."""
    process, subject = os.getpid(), None
    if number in _unbuilt:
        pytest.skip("it does not build")
    skip_if_lost(number)
    try:
        subject = _subject(number)
        record_property("about", _about(subject))
        seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            record_property("result", catalogue(_requests[number].kind)[check].function(subject))
    except pytest.skip.Exception:
        raise
    except BaseException:
        if subject is None or check == "builds":
            _unbuilt.add(number)
        raise
    finally:
        if os.getpid() != process:
            os._exit(0)  # a process that the optimizer has forked
