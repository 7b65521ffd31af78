"""The process that imports an optimizer and runs the checks on it.

Input is a pickle on standard input. Verdicts are lines of JSON on a separate file descriptor, so that the
optimizer's output does not mix with them.
"""

import json
import os
import pickle
import sys
import time
import warnings
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

from bench import process
from bench.check.catalogue import CATALOGUES, Check, Kind
from bench.check.findings import Concluded
from bench.check.report import Verdict, Word, told
from bench.errors import UserError, described, unknown
from optimizers import OPTIMIZERS, OptimizerSpec
from optimizers.plugins import PluginError, load, load_module, provenance
from tasks.core.spec import place_of

_SUITE = "attention-optimizer-bench"


@dataclass(frozen=True)
class Examination:
    """Checks of one optimizer or task.

    Attributes:
        name: in the registry, `module:Class` or `file.py:Class`.
        spec: replaces the registry's entry.
        options: hyperparameters.
        reference: `module:function`, or None.
        checks: names.
        kind: optimizer or task.
        data: the data folder of a task; None for the default.
        asked: only list the optimizers of `name`, which may also be a module or a file.
    """

    name: str
    spec: OptimizerSpec | None = None
    options: dict[str, Any] = field(default_factory=dict)
    reference: str | None = None
    checks: tuple[str, ...] = ()
    kind: Kind = "optimizer"
    data: Path | None = None
    asked: bool = False


class Examiner:
    """Runs examinations and reports events.

    Args:
        fd: where to write.
        limit: seconds that one check may take.
    """

    def __init__(self, fd: int, limit: float) -> None:
        self.fd, self.limit, self.pid = fd, limit, os.getpid()
        os.set_inheritable(fd, False)

    def tell(self, event: str, **more: Any) -> None:
        """Write an event; a process forked by an optimizer ends here."""
        if os.getpid() != self.pid:
            os._exit(0)
        os.write(self.fd, json.dumps({"event": event, **more}).encode() + b"\n")

    def run(self, examinations: dict[int, Examination]) -> None:
        """Run examinations, by number."""
        for number, examination in examinations.items():
            self.tell("examination", examination=number)
            if examination.asked:
                self._look_into(examination.name)
            elif examination.checks:
                self._run(examination)
        self.tell("end")

    def _look_into(self, name: str) -> None:
        try:
            module = name.removesuffix(":")
            names = [name] if name == module and name in OPTIMIZERS else _members(module)
            if ":" in module:
                load(name)
            self.tell("members", packages={name: _package(name) for name in names})
        except PluginError as error:
            self.tell("refused", why=str(error))

    def _run(self, examination: Examination) -> None:
        from bench.check.subject import Subject

        first, *_ = examination.checks
        try:
            self._warm_up()
            self.tell("check", check=first)  # loading counts as one
            if examination.kind == "task":
                from bench.check.task import TaskSubject

                subject = TaskSubject(examination.name, examination.options, examination.data)
            else:
                spec = examination.spec or OPTIMIZERS.get(examination.name)
                if spec is None:
                    raise unknown("optimizer", examination.name, OPTIMIZERS)
                reference = load(examination.reference) if examination.reference else None
                subject = Subject(spec, examination.options, reference, limit=self.limit)
        except (UserError, PluginError) as error:
            self.tell("refused", why=str(error))
            return
        except BaseException as error:
            self._verdict(Verdict(first, "error", note=described(error)))
            return
        self.tell("about", about=_about(subject))
        for name in examination.checks:
            self.tell("check", check=name)
            verdict = judged(CATALOGUES[examination.kind][name], subject)
            self._verdict(verdict)
            if name == "builds" and not verdict.ok:
                return

    def _warm_up(self) -> None:
        """The first optimizer of a process imports torch's compiler, which takes as long as torch itself."""
        import torch

        self.tell("ready")
        torch.set_num_threads(1)
        torch.compiler.set_stance("force_eager")  # to compile a step takes longer than all checks
        torch.optim.SGD([torch.ones(1)]).step()
        process.ready()

    def _verdict(self, verdict: Verdict) -> None:
        self.tell("verdict", verdict=asdict(verdict))


def judged(check: Check, subject: Any) -> Verdict:
    """Run one check."""
    from bench.check.steps import seed

    module, _, function = check.target.partition(":")
    measure = getattr(import_module(module), function)
    seed(0)
    begun = time.perf_counter()
    measured = None
    try:
        finding = measure(subject)
        measured, note = finding.measured, finding.note
        good = check.tolerance is None or measured is None or measured <= check.tolerance
        word: Word = "pass" if good else "fail"
    except Concluded as error:
        word, note = error.word, str(error)
    except BaseException as error:
        word, note = "error", described(error)
    return Verdict(check.name, word, measured, note, round(time.perf_counter() - begun, 3))


def _package(name: str) -> str:
    """Distribution and version, or a digest of the file."""
    if name in OPTIMIZERS.own:
        return f"{_SUITE} {version(_SUITE)}"
    return OPTIMIZERS.describe(name) or provenance(name)


def _members(name: str) -> list[str]:
    """Public optimizer classes of a module, each under its first name; torch's own only if requested."""
    from torch.optim import Optimizer

    found: dict[Any, str] = {}
    for own, value in sorted(vars(load_module(name)).items(), key=lambda item: item[0].lower()):
        if own.startswith("_") or not isinstance(value, type) or not issubclass(value, Optimizer) or value is Optimizer:
            continue
        if value.__module__.startswith("torch.") <= name.startswith("torch."):
            found.setdefault(value, f"{name}:{own}")
    return list(found.values())


def versions() -> dict[str, str]:
    """Of what the verdicts depend on, besides the optimizer's package."""
    return {"python": python_version(), "torch": version("torch"), "bench": version(_SUITE)}


def _about(subject: Any) -> dict[str, Any]:
    spec = subject.spec
    return {
        "target": spec.target if isinstance(spec, OptimizerSpec) else ":".join(place_of(spec.module)),
        "version": spec.version,
        "package": spec.package,
        "versions": versions(),
        "arguments": told(subject.arguments),
    }


def main() -> None:
    """Process standard input; the first argument is the file descriptor."""
    process.begin()
    limit, examinations = pickle.load(sys.stdin.buffer)
    examiner = Examiner(int(sys.argv[1]), limit)
    warnings.simplefilter("ignore")
    import torch  # noqa: F401 - before the first limit

    examiner.run(examinations)
    os._exit(0)  # regardless of an optimizer's remaining threads
