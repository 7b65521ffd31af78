"""The pytest plugin of `bench check`: it turns pytest's reports into verdicts, and writes them to a pipe.

The controller of pytest-xdist has the pipe and imports no torch; its worker runs the checks (`suite.py`) and is
replaced if it ends.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench.process import ROOT, shield

shield()
if sys.path[0] == str(ROOT):  # which `run.py` put there, so that nothing shadows the suite before this line
    sys.path[:] = [*sys.path[1:], *[sys.path[0]] * (sys.path[0] not in sys.path[1:])]

from bench.check.report import Verdict  # noqa: E402
from bench.errors import UserError, described  # noqa: E402
from optimizers.plugins import PluginError  # noqa: E402

REQUEST = "BENCH_CHECK_REQUEST"
"""The environment variable with the folder of the request; the controller notes there what has ended a worker."""
_LOST = 3  # workers that an optimizer may end before its remaining checks are skipped


def pytest_addoption(parser: pytest.Parser) -> None:
    """The descriptor of the pipe."""
    parser.addoption("--bench-pipe", type=int)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    """In the worker: note the verdict of a check, with the place in the user's file."""
    report = (yield).get_result()
    if call.when == "teardown" or (call.when == "setup" and call.excinfo is None):
        return
    error = call.excinfo.value if call.excinfo else None
    word, note = "error", ""
    measured: Any = getattr(error, "measured", None)
    if error is None:
        result: Any = dict(item.user_properties).get("result")
        word, measured, note = ("pass", result, "") if isinstance(result, float) else ("pass", None, result or "")
    elif isinstance(error, pytest.skip.Exception):
        word, note = "not applicable", str(error)
    elif type(error).__name__ == "Fault":
        word, note = "fail", str(error)
    elif isinstance(error, pytest.fail.Exception) and str(error).startswith("Timeout (>"):
        note = f"not finished after {float(str(error)[10:].partition('s')[0]):.2g} s"
    elif isinstance(error, UserError | PluginError):
        note = str(error)
        report.user_properties.append(("refused", note))
    else:
        here = error.__traceback__
        while here is not None and Path(here.tb_frame.f_code.co_filename).name != "suite.py":
            here = here.tb_next  # frames of pytest
        note = "; ".join([described(error.with_traceback(here)), *getattr(error, "__notes__", [])])
    number, check = _place(item.nodeid)
    verdict = Verdict(check, word, measured, note, round(call.duration, 3))
    report.user_properties.append(("verdict", (number, vars(verdict))))


def _place(nodeid: str) -> tuple[int, str]:
    number, _, check = nodeid.partition("[")[2].rstrip("]").partition("-")
    return int(number), check


def pytest_runtest_logreport(report: Any) -> None:
    """In the controller: write the verdict; a report without one tells that the worker has ended."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return
    properties = dict(report.user_properties)
    if "verdict" not in properties:
        if report.when != "???":
            return
        number, check = _place(report.nodeid)
        properties["verdict"] = number, vars(Verdict(check, "error", note="the process ended"))
        with Path(os.environ[REQUEST], "ended").open("a") as file:
            file.write(f"{number} {check}\n")
    os.write(_pipe, json.dumps(properties).encode() + b"\n")


_pipe: int = -1


def pytest_configure(config: pytest.Config) -> None:
    """Know the pipe."""
    global _pipe
    _pipe = int(config.getoption("--bench-pipe") or -1)


def skip_if_lost(number: int) -> None:
    """Skip the remaining checks of an optimizer that does not build or that has ended too many workers."""
    path = Path(os.environ[REQUEST], "ended")
    lines = path.read_text().splitlines() if path.exists() else []
    ended = Counter(line.partition(" ")[0] for line in lines)
    if f"{number} builds" in lines:
        pytest.skip("it does not build")
    if ended[str(number)] >= _LOST:
        pytest.skip(f"not run: {_LOST} checks before ended the process")
