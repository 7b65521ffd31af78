"""Runs the checks through pytest in a process of its own: an optimizer may raise, hang, print, fork or end it."""

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from importlib.metadata import version
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
from optimizers.plugins import packed
from tasks import TASKS

LIMIT = 30.0
"""Seconds that one check may take; more in proportion on a machine with more runnable processes than processors."""
FOLDER, REQUESTS, EVENTS = "BENCH_CHECK_FOLDER", "requests", "events"
"""The environment variable with the folder of a request, and the files in it."""
Show = Callable[[Report, Verdict], None]
"""Receives the report on an optimizer so far, and the new verdict."""

_ENDED = {"verdict": "error", "note": "the process ended"}
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


class Request(NamedTuple):
    """Checks of one optimizer or task, as `request_of` and `request_of_task` take them."""

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
) -> Request:
    """A request to check an optimizer: in the registry, `module:Class` or `file.py:Class`.

    Args:
        name: of the optimizer.
        only: names of checks; all if None.
        reference: name of an optimizer, or `module:function`: see `bench.check.parametrize_with_checks`.
        options: hyperparameters, as values or as words of the command line.
        quick: whether to leave out checks that start processes and trainings.

    Raises:
        UserError: there is no such optimizer or check.
    """
    options = {key: value for key, value in (options or {}).items() if key != REST or not is_none(value)}
    return Request(_known("optimizer", name, OPTIMIZERS), checks_of("optimizer", only, quick=quick), options, reference)


def request_of_task(
    name: str, *, only: Sequence[str] | None = None, options: Mapping[str, Any] | None = None, data: Path | None = None
) -> Request:
    """A request to check a task: in the registry, `module:SPEC` or `file.py:SPEC`; else as `request_of`."""
    return Request(_known("task", name, TASKS), checks_of("task", only), dict(options or {}), kind="task", data=data)


def _known(kind: Kind, name: str, registry: Any) -> str:
    place = name.rpartition(":")[0]
    if place.endswith(".py") and not Path(place).is_file():  # said before torch is imported
        raise UserError(f"there is no file {place}")
    check_known(kind, [name], registry)
    return name


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
    with closing(_events(requests, limit)) as events:
        for event in events:
            if refuse and "refused" in event:
                raise UserError(event["refused"])
            report = collected[event["number"]]
            verdict = Verdict(**{key: event[key] for key in Verdict.__dataclass_fields__ if key in event})
            report = replace(report, about=event.get("about", report.about), verdicts=(*report.verdicts, verdict))
            collected[event["number"]] = report
            if show is not None:
                show(report, verdict)
            while done < len(collected) and len(collected[done].verdicts) == len(requests[done].checks):
                yield collected[done]
                done += 1


def _events(requests: Sequence[Request], limit: float) -> Generator[dict[str, Any], None, None]:
    """What the tests write: verdicts with the number of their request; a test without one has ended its worker."""
    if not any(request.checks for request in requests):
        return
    seconds = limit * crowding()
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile() as output:
        folder = Path(name)
        try:
            (folder / REQUESTS).write_bytes(pickle.dumps((list(requests), limit, packed())))
        except Exception as error:
            raise UserError(f"options must be plain values: {error}") from None
        (folder / EVENTS).touch()
        words = [
            *("-p", "xdist", "-p", "timeout", "-p", "no:cacheprovider", "-q"),
            *("-c", os.devnull, "--rootdir", name, "--noconftest"),
            # One worker, which xdist replaces if it ends; a timeout in C code ends it too.
            *("-n", "1", "--max-worker-restart", "1000", "--dist", "load", "--timeout", f"{seconds:g}"),
            *("-o", f"faulthandler_timeout={1.5 * seconds + 5:g}", "-o", "faulthandler_exit_on_timeout=true"),
            str(Path(__file__).with_name("suite.py")),
        ]
        # No GPU: its driver's threads would not survive the fork of ranks, and the checks are the same without.
        alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1", FOLDER: name}
        alone |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""}
        process = subprocess.Popen(
            python_with_path("import pytest; sys.exit(pytest.main(words))", words),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")} | alone,  # we may be in one
            start_new_session=True,  # its workers and forks end with it
        )
        left, running, ended = sum(len(request.checks) for request in requests), {}, False
        try:
            with (folder / EVENTS).open() as file:
                while not ended:
                    ended = process.poll() is not None
                    for event in [json.loads(line) for line in file.readlines()] + [{}] * ended:
                        verdict = event if "verdict" in event else running and running | _ENDED
                        running = {} if "verdict" in event else event
                        if verdict:
                            left -= 1
                            yield verdict
                    time.sleep(0.02)
            if left:
                output.seek(0)
                last = output.read().decode(errors="replace").strip()[-2000:]
                raise UserError(f"pytest ended before its work was done:\n{last}")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
