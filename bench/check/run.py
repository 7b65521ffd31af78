"""Reports of `bench check`, which are records of a store.

Checks run in a process of their own, since an optimizer may raise, hang, print, fork or end it. Importing this file
imports no torch.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from select import select
from types import MappingProxyType
from typing import IO, Any, cast

import cloudpickle

from bench.check import GROUPS, Check, Kind, catalogue
from bench.config.options import is_none
from bench.errors import UserError, check_known, described
from bench.machine import crowding
from bench.process import ROOT, python_command, shield
from bench.store.files import Damaged, making
from bench.store.reports import CheckRecord, read_report, write_report
from bench.terminal import wrapped_lines
from bench.text import counted, plain
from optimizers import OPTIMIZERS, OptimizerSpec
from optimizers.groups import REST
from optimizers.plugins import PluginError, session
from tasks import TASKS
from tasks.core.spec import place_of

Verdict = dict[str, Any]  # of one check: `verdict_of`
_CODE = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from bench.check.run import work; work()"


def fails(verdict: Verdict) -> bool:
    """Whether the property does not hold; `error` means that the optimizer raised, ended its process or hung."""
    return verdict["verdict"] in ("fail", "error")


def group_of(verdict: Verdict) -> str:
    """What a failure of its check means."""
    return GROUPS[verdict.get("severity") or "results"]


def failed(report: CheckRecord) -> list[Verdict]:
    """The failures, the worst first."""
    return sorted(filter(fails, report.verdicts), key=lambda verdict: [*GROUPS.values()].index(group_of(verdict)))


def headline(report: CheckRecord) -> str:
    """Faults, and failures that cost speed: `1 fault (changes results: groups); costs speed: syncs`."""
    names = {group: ", ".join(v["check"] for v in failed(report) if group_of(v) == group) for group in GROUPS.values()}
    *faults, slow = (f"{group}: {members}" if members else "" for group, members in names.items())
    serious = f"{counted(len(report.serious), 'fault')} ({'; '.join(filter(None, faults))})"
    return "; ".join(filter(None, [serious if any(faults) else "no fault", slow]))


def text(report: CheckRecord) -> str:
    """A line for each check, in groups, the failures first; then how to mend them, and the headline."""
    lines = []
    for group in GROUPS.values():
        members = sorted((v for v in report.verdicts if group_of(v) == group), key=fails, reverse=True)
        rows = [f"  {v['check']:<18} {v['verdict']:<14} {v['note']}".rstrip() for v in members]
        lines += [group, *rows] if rows else []
    for v in failed(report):
        lines += ["", *wrapped_lines(f"{v['check']} ({group_of(v)}): {v['meaning']}")]
        lines += wrapped_lines(v["advice"], "  ", "  ")
    count = Counter(v["verdict"] for v in report.verdicts)
    total = ", ".join(f"{count[word]} {word}" for word in ("pass", "fail", "not applicable", "error") if count[word])
    return "\n".join([*lines, "", f"{report.name}: {headline(report)}; {total}"])


def verdict_of(check: Check, answer: Mapping[str, Any]) -> Verdict:
    """A verdict for a record, with what its check means."""
    seen = {"verdict": answer["verdict"], "measured": answer.get("measured"), "note": answer.get("note", "")}
    meaning = {"severity": check.severity, "meaning": check.meaning, "advice": check.advice}
    return plain({"check": check.name, **seen, "seconds": answer.get("seconds", 0.0), **meaning})


def report_of(
    name: str, options: Mapping[str, Any], verdicts: list[Verdict], about: Mapping[str, Any] = MappingProxyType({})
) -> CheckRecord:
    """The report on an optimizer or a task; `about` has other fields of the record."""
    report = CheckRecord(name, True, plain(written(options)), verdicts, **about)
    return replace(report, ok=not report.serious)


def written(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for a record: numbers and None as they are, all else as text."""
    return {name: value if isinstance(value, int | float | None) else str(value) for name, value in arguments.items()}


def write(store: Path, report: CheckRecord) -> Path:
    """Store a report; it replaces one on the same version of the optimizer, with the same `opt.rest`."""
    with making(store):
        return write_report(store, report)


def stored(store: Path, name: str, options: Mapping[str, Any], versions: Mapping[str, str]) -> CheckRecord | None:
    """The report on an optimizer without errors, with these `options` and `versions` and today's checks."""
    spec = OPTIMIZERS[name]
    about = {"version": spec.version, "package": spec.package}
    try:
        report = read_report(report_of(name, options, [], about).path(store), CheckRecord)
    except (FileNotFoundError, Damaged):
        return None
    holds = (report.options, report.versions) == (written(options), versions)
    same_checks = [verdict["check"] for verdict in report.verdicts] == [*catalogue()]
    return report if holds and same_checks and "error" not in [v["verdict"] for v in report.verdicts] else None


def versions() -> dict[str, str]:
    """Of what the verdicts depend on, besides the optimizer's package."""
    return {"python": python_version(), "torch": version("torch"), "bench": version("attention-optimizer-bench")}


def report_on(
    name: str,
    *,
    only: Sequence[str] | None = None,
    quick: bool = False,
    options: Mapping[str, Any] | None = None,
    reference: str | None = None,
    kind: Kind = "optimizer",
    data: Path | None = None,
    limit: float = 30.0,
    show: Callable[[str, Verdict], None] = lambda place, verdict: None,
) -> CheckRecord:
    """Check an optimizer or a task: a name of the registry, `module:Object` or `file.py:Object`.

    `only` names checks (default: all), `quick` leaves out those that start processes and trainings; `options` are
    values or words of the command line; `reference` is an optimizer whose steps must be equal; `limit` is in seconds
    for a check, more on a crowded machine; `show` is called with `2/28` and each verdict as it comes.
    """
    check_known(kind, [name], TASKS if kind == "task" else OPTIMIZERS)
    known = catalogue(kind)
    check_known("check", only or (), known)
    checks = [c for c in known if (only is None or c in only) and (known[c].quick or not quick)]
    options = {key: value for key, value in (options or {}).items() if key != REST or not is_none(value)}
    verdicts, about = list[Verdict](), dict[str, Any]()
    unbuilt = {"verdict": "not applicable", "note": "it does not build"}
    while left := checks[len(verdicts) :]:  # another process continues where one has ended
        with closing(_answers((kind, name, options, reference, data), left, limit)) as answers:
            for check, answer in zip(left, answers, strict=False):
                if "refused" in answer:
                    raise UserError(answer["refused"])
                about = answer.get("about", about)
                verdicts.append(verdict_of(known[check], answer))
                show(f"{len(verdicts)}/{len(checks)}", verdicts[-1])
                if fails(verdicts[-1]) and (check == "builds" or "unbuilt" in answer):
                    verdicts += [verdict_of(known[name], unbuilt) for name in checks[len(verdicts) :]]
                    break
    return report_of(name, options, verdicts, about)


def _answers(subject: tuple[Any, ...], checks: Sequence[str], limit: float) -> Generator[dict[str, Any]]:
    """The answers of another process to checks of a subject; the last one says if it ended or took too long."""
    process = subprocess.Popen(
        python_command("-c", _CODE),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        # No GPU: its driver's threads would not survive the fork of ranks, and the checks are the same without.
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1"},
        start_new_session=True,  # its forks end with it
    )
    stdin, stdout = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
    try:
        with stdin:
            pickle.dump((sys.path, cloudpickle.dumps(session), subject, checks), stdin)
        stdout.readline()  # the limit does not count that it imports torch
        for _ in checks:
            begun, seconds = time.monotonic(), limit * crowding()
            line = _line(process, stdout, begun + seconds)
            note = f"not finished after {seconds:.2g} s" if line is None else "the process ended"
            answer = json.loads(line) if line else {"verdict": "error", "note": note}
            yield answer | {"seconds": round(time.monotonic() - begun, 3)}
            if not line:
                return
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        stdout.close()


def _line(process: "subprocess.Popen[bytes]", stdout: IO[bytes], end: float) -> bytes | None:
    """The next line of a process; empty if it has ended, None if it takes too long."""
    while not select([stdout], [], [], 0.1)[0]:
        if process.poll() is not None:  # a child that it has forked may hold the pipe open
            return b""
        if time.monotonic() > end:
            return None
    return stdout.readline()


def work() -> None:
    """Answer each check by a line on standard output; what optimizers print is lost."""
    shield()
    # A test may find its optimizer on the caller's path.
    sys.path[:], objects, subject, checks = pickle.load(sys.stdin.buffer)
    import torch

    torch.set_num_threads(1)
    torch.compiler.set_stance("force_eager")  # to compile a step takes longer than all checks
    torch.optim.SGD([torch.ones(1)]).step()  # the first optimizer of a process imports torch's compiler
    session.update(pickle.loads(objects))
    out, process, built = os.dup(1), os.getpid(), list[Any]()
    for standard in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), standard)
    os.write(out, b"ready\n")
    for check in checks:
        answer = _answer(subject, check, built)
        if os.getpid() != process:
            break  # a process that the optimizer has forked
        os.write(out, json.dumps(answer).encode() + b"\n")
    os._exit(0)


def _answer(subject: tuple[Any, ...], check: str, built: list[Any]) -> dict[str, Any]:
    """The fields of a verdict; `about` the optimizer, or that it is `unbuilt`; why it is `refused`."""
    import pytest

    from bench.check.steps import Fault, seed

    (kind, name, options, reference, data), answer = subject, dict[str, Any](unbuilt=True)
    try:
        if not built and kind == "task":
            from bench.check.task import TaskSubject

            built.append(TaskSubject(name, options, data))
        elif not built:
            from bench.check.subject import Subject

            built.append(Subject(name, options, reference))
        spec, arguments = built[0].spec, plain(written(built[0].arguments))
        target = spec.target if isinstance(spec, OptimizerSpec) else ":".join(place_of(spec.module))
        about = {"target": target, "version": spec.version, "package": spec.package, "versions": versions()}
        answer = {"about": {**about, "arguments": arguments}}
        seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            note = catalogue(kind)[check].function(built[0])
        return answer | {"verdict": "pass", "note": note or ""}
    except pytest.skip.Exception as skip:
        return answer | {"verdict": "not applicable", "note": str(skip)}
    except Fault as fault:  # with the line of the optimizer's file, if any
        note = described(fault).removeprefix("Fault: ")
        return answer | {"verdict": "fail", "note": note, "measured": fault.measured}
    except (UserError, PluginError) as error:
        return answer | {"verdict": "error", "note": str(error), "refused": str(error)}
    except BaseException as error:
        return answer | {"verdict": "error", "note": described(error)}
