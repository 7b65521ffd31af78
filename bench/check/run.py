"""Runs the checks through pytest in a process of its own: an optimizer may raise, hang, print, fork or end it."""

import functools
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

from bench.check.catalogue import Kind, catalogue
from bench.check.report import Report, Verdict
from bench.config.options import is_none
from bench.errors import UserError, check_known
from bench.machine import crowding
from bench.process import ROOT, python_command
from optimizers import OPTIMIZERS, OptimizerSpec
from optimizers.groups import REST
from tasks import TASKS

LIMIT = 30.0
"""Seconds that one check may take; more in proportion on a machine with more runnable processes than processors."""
Show = Callable[[Report, Verdict], None]
"""Receives the report on an optimizer so far, and the new verdict."""

_CODE = """
import json, sys
root, path, words = json.loads(sys.argv[1])
sys.path[:] = [root, *path]
"""


def python_with_path(code: str, words: Sequence[str]) -> list[str]:
    """A command that runs code with these `words` and the caller's path, with the suite's own packages first.

    A test may find its optimizer on the path.
    """
    return python_command("-c", _CODE + code, json.dumps([str(ROOT), sys.path, list(words)]))


@dataclass(frozen=True)
class Request:
    """Checks of one optimizer or task.

    Attributes:
        name: in the registry, `module:Class` or `file.py:Class`.
        checks: names.
        options: hyperparameters.
        spec: replaces the registry's entry.
        reference: as `bench.check.subject.Subject` takes it, as text.
        kind: optimizer or task.
        data: the data folder of a task; None for the default.
    """

    name: str
    checks: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    spec: OptimizerSpec | None = None
    reference: str | None = None
    kind: Kind = "optimizer"
    data: Path | None = None


def request_of(
    target: Any,
    *,
    only: Sequence[str] | None = None,
    reference: "str | Callable[..., Any] | None" = None,
    options: Mapping[str, Any] | None = None,
    quick: bool = False,
) -> Request:
    """A request to check an optimizer.

    Args:
        target: a name in the registry, `module:Class`, `file.py:Class`, a class, a partial of one, or a spec.
        only: names of checks; all if None.
        reference: see `bench.check.parametrize_with_checks`.
        options: hyperparameters, as values or as words of the command line.
        quick: whether to leave out checks that start processes and trainings.

    Raises:
        UserError: there is no such optimizer or check.
    """
    given = dict(options or {})
    if isinstance(target, functools.partial):
        return request_of(
            target.func, only=only, reference=reference, options={**target.keywords, **given}, quick=quick
        )
    spec = replace(target) if isinstance(target, OptimizerSpec) else None  # without an imported class
    name = spec.name if spec is not None else _named(target)
    if spec is None:
        check_known("optimizer", [name], OPTIMIZERS)
    formula = reference if reference is None else _named(reference)
    if is_none(given.get(REST, "")):
        del given[REST]  # a report names only an optimizer
    return Request(name, checks_of("optimizer", only, quick=quick), given, spec, formula)


def request_of_task(
    name: str, *, only: Sequence[str] | None = None, options: Mapping[str, Any] | None = None, data: Path | None = None
) -> Request:
    """A request to check a task: in the registry, `module:SPEC` or `file.py:SPEC`; else as `request_of`."""
    checks = checks_of("task", only)
    check_known("task", [_named(name)], TASKS)
    return Request(name, checks, dict(options or {}), kind="task", data=data)


def checks_of(kind: Kind, only: Sequence[str] | None, *, quick: bool = False) -> tuple[str, ...]:
    """The named checks, or all (all quick ones) if None, in their order.

    Raises:
        UserError: there is no such check, or none is named.
    """
    known = catalogue(kind)
    if only is not None and not only:
        raise UserError(f"no check is named; there are {', '.join(known)}")
    check_known("check", only or (), known)
    chosen = [name for name, check in known.items() if only is None or name in only]
    return tuple(name for name in chosen if not quick or known[name].quick)


def _named(value: Any) -> str:
    """Name under which another process finds a class or function.

    Raises:
        UserError: there is no such file, which is said before torch is imported; or it is defined inside a function.
    """
    if isinstance(value, str):
        place = value.rpartition(":")[0]
        if place.endswith(".py") and not Path(place).is_file():
            raise UserError(f"there is no file {place}")
        return value
    module, name = value.__module__, value.__qualname__
    if "<" in name:
        raise UserError(
            f"{name} is defined inside a function, where other processes cannot find it: move it to the top of its"
            f" module"
        )
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return f"{file}:{name}" if module == "__main__" and file else f"{module}:{name}"


def versions() -> dict[str, str]:
    """Of what the verdicts depend on, besides the optimizer's package."""
    return {"python": python_version(), "torch": version("torch"), "bench": version("attention-optimizer-bench")}


def reports(
    requests: Sequence[Request], *, limit: float = LIMIT, show: Show | None = None, refuse: bool = True
) -> Generator[Report, None, None]:
    """Check several optimizers, in one process; yields each report when complete, in their order.

    Args:
        requests: what to check.
        limit: seconds that one check may take.
        show: called with each verdict as it comes.
        refuse: whether an optimizer that cannot be loaded or built raises an error; else it gets a verdict.

    Raises:
        UserError: see `refuse`.
    """
    collected: list[Report] = [Report(r.name, r.options, {}, (), r.kind) for r in requests]
    done = 0
    if any(request.checks for request in requests):
        for event in _events(requests, limit):
            if refuse and "refused" in event:
                raise UserError(event["refused"])
            number, values = event["verdict"]
            verdict, report = Verdict(**values), collected[number]
            about = event.get("about", report.about)
            collected[number] = replace(report, about=about, verdicts=(*report.verdicts, verdict))
            if show is not None:
                show(collected[number], verdict)
            while done < len(collected) and len(collected[done].verdicts) == len(requests[done].checks):
                yield collected[done]
                done += 1
    yield from collected[done:]


def _events(requests: Sequence[Request], limit: float) -> Iterator[dict[str, Any]]:
    """What the plugin writes: verdicts with the number of their request."""
    seconds = limit * crowding()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        try:
            Path(folder, "request").write_bytes(pickle.dumps(list(requests)))
        except Exception as error:
            raise UserError(f"options must be plain values: {error}") from None
        read, write = os.pipe()
        words = [
            *("-p", "bench.check.plugin", "-p", "xdist", "-p", "timeout", "-p", "no:cacheprovider"),
            *("-c", os.devnull, "--rootdir", folder, "--noconftest", "--bench-pipe", str(write), "-q"),
            # One worker, which xdist replaces if it ends; a timeout in C code ends it too.
            *("-n", "1", "--max-worker-restart", "1000", "--dist", "load", "--timeout", f"{seconds:g}"),
            *("-o", f"faulthandler_timeout={1.5 * seconds + 5:g}", "-o", "faulthandler_exit_on_timeout=true"),
            str(Path(__file__).with_name("suite.py")),
        ]
        # No GPU: its driver's threads would not survive the fork of ranks, and the checks are the same without.
        alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1"}
        alone |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""}
        alone |= {"BENCH_CHECK_REQUEST": folder, "BENCH_CHECK_LIMIT": str(limit)}
        process = subprocess.Popen(
            python_with_path("import pytest; sys.exit(pytest.main(words))", words),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(write,),
            env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")} | alone,  # we may be in one
            start_new_session=True,  # its workers and forks end with it
        )
        os.close(write)
        count = 0
        try:
            with open(read) as pipe:  # noqa: PTH123 - a descriptor
                for line in pipe:
                    count += 1
                    yield json.loads(line)
            process.wait(10)
            if count < sum(len(request.checks) for request in requests):
                output.seek(0)
                said = output.read().decode(errors="replace").strip()[-2000:]
                raise UserError(f"pytest ended before its work was done:\n{said}")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
