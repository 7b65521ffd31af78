"""Runs the checks in separate processes, so that an optimizer may raise, hang, print, fork or end its process."""

import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.check.catalogue import CATALOGUES, Kind
from bench.check.child import INSIDE, Child, Ended
from bench.check.examiner import Examination
from bench.check.report import Report, Verdict
from bench.config.options import is_none
from bench.errors import UserError, check_known
from optimizers import OPTIMIZERS, OptimizerSpec
from optimizers.groups import REST
from tasks import TASKS

LIMIT = 30.0
"""Seconds that one check may take; more in proportion on a machine with more runnable processes than processors."""

_UNBUILT = "it does not build"
_LOST = 3  # processes that an optimizer may end before its remaining checks are skipped

Show = Callable[[Report, Verdict], None]
"""Receives the report on an optimizer so far, and the new verdict."""
Known = Mapping[str, Report]
"""Earlier results by name."""


def conformance(
    target: "str | type | OptimizerSpec",
    *,
    only: Sequence[str] | None = None,
    reference: "str | Callable[..., Any] | None" = None,
    options: Mapping[str, Any] | None = None,
    limit: float = LIMIT,
    show: Show | None = None,
) -> Report:
    """Check an optimizer.

    Args:
        target: a name in the registry, `module:Class`, `file.py:Class`, a class, or an `OptimizerSpec`.
        only: names of checks; all if None.
        reference: its steps as a float64 function, or `module:function`:
            `f(weights, gradient, loss, step, memory, **hyperparameters) -> weights`, with vectors of all elements
            (`bench.check.behaviour.reference`).
        options: hyperparameters, as values or as words of the command line.
        limit: seconds that one check may take.
        show: called with each verdict as it comes.

    Returns:
        The verdicts. `report.ok` is True without serious failures; `report.text()` is the table with advice.

    Raises:
        UserError: there is no such optimizer or check, or an option is wrong.
    """
    examination = examination_of(target, only=only, reference=reference, options=options)
    (report,) = reports([examination], limit=limit, show=show)
    return report


def examination_of(
    target: "str | type | OptimizerSpec",
    *,
    only: Sequence[str] | None = None,
    reference: "str | Callable[..., Any] | None" = None,
    options: Mapping[str, Any] | None = None,
) -> Examination:
    """An examination for `reports`; arguments and errors are those of `conformance`."""
    checks = checks_of("optimizer", only.split(",") if isinstance(only, str) else only)
    spec = replace(target) if isinstance(target, OptimizerSpec) else None  # without an imported class
    name = spec.name if spec is not None else _named(target)
    if spec is None:
        check_known("optimizer", [name], OPTIMIZERS)
    formula = reference if reference is None else _named(reference)
    given = dict(options or {})
    if is_none(given.get(REST, "")):
        del given[REST]  # a report names only an optimizer
    return Examination(name, spec, given, formula, checks)


def examination_of_task(
    name: str, *, only: Sequence[str] | None = None, options: Mapping[str, Any] | None = None, data: Path | None = None
) -> Examination:
    """An examination of a task for `reports`.

    Args:
        name: in the registry, `module:SPEC` or `file.py:SPEC`.
        only: names of checks; all if None.
        options: of the task, as values or as words of the command line.
        data: the data folder; None for the default.

    Raises:
        UserError: there is no such task or check.
    """
    checks = checks_of("task", only)
    check_known("task", [_named(name)], TASKS)
    return Examination(name, options=dict(options or {}), checks=checks, kind="task", data=data)


def checks_of(kind: Kind, only: Sequence[str] | None) -> tuple[str, ...]:
    """The named checks, or all if None, in their order.

    Raises:
        UserError: there is no such check, or none is named.
    """
    known = CATALOGUES[kind]
    if only is not None and not only:
        raise UserError(f"no check is named; there are {', '.join(known)}")
    check_known("check", only or (), known)
    return tuple(check for check in known if only is None or check in only)


def _named(value: Any) -> str:
    """Name under which another process finds a class or function.

    Raises:
        UserError: there is no such file, which is told before torch is imported; or it is defined inside a function.
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


def reports(
    examinations: Sequence[Examination],
    *,
    limit: float = LIMIT,
    show: Show | None = None,
    refuse: bool = True,
    known: Known | None = None,
) -> Generator[Report, None, None]:
    """Check several optimizers, in one process while it lives; yields each report when complete, in their order.

    Args:
        examinations: what to check.
        limit: seconds that one check may take.
        show: called with each verdict as it comes.
        refuse: whether an optimizer that cannot be loaded or built raises an error; else it gets a verdict.
        known: earlier results, which are not repeated.

    Raises:
        UserError: see `refuse`.
    """
    if os.environ.get(INSIDE):
        raise UserError(
            "conformance() runs while it imports the optimizer: put the call under `if __name__ == '__main__':`"
        )
    known = known or {}
    states = {number: _State(each, show, known.get(each.name)) for number, each in enumerate(examinations)}
    told = 0
    while open_ := {number: state for number, state in states.items() if state.left}:
        for _ in _one_process(open_, limit, refuse):
            while told < len(states) and not states[told].left:
                yield states[told].report()
                told += 1
    for number in range(told, len(states)):
        yield states[number].report()


class _State:
    """State of an examination."""

    def __init__(self, examination: Examination, show: Show | None = None, known: Report | None = None) -> None:
        self.examination, self.show, self.lost = examination, show, 0
        known = known or Report(examination.name)
        self.about = known.about
        self.verdicts = {verdict.check: verdict for verdict in known.verdicts if verdict.check in examination.checks}
        if "builds" in self.verdicts and not self.verdicts["builds"].ok:
            self.close(_UNBUILT)

    @property
    def left(self) -> tuple[str, ...]:
        """Names of the remaining checks."""
        return tuple(check for check in self.examination.checks if check not in self.verdicts)

    def judge(self, verdict: Verdict) -> None:
        """Add a verdict; an optimizer that does not build is checked no further."""
        self.verdicts[verdict.check] = verdict
        if self.show is not None:
            self.show(self.report(), verdict)
        if verdict.check == "builds" and not verdict.ok:
            self.close(_UNBUILT)

    def close(self, why: str) -> None:
        """Finish the report."""
        for check in self.left:
            self.judge(Verdict(check, "not applicable", note=why))

    def lose(self, check: str | None, why: str, seconds: float) -> None:
        """Note that a process ended during a check."""
        self.lost += 1
        check = check if check in self.left else next(iter(self.left), None)
        if check is not None:
            self.judge(Verdict(check, "error", note=why, seconds=round(seconds, 3)))
        if self.lost == _LOST:
            self.close(f"not run: {_LOST} checks before ended the process or did not end")

    def report(self) -> Report:
        """The report so far."""
        verdicts = tuple(self.verdicts[check] for check in self.examination.checks if check in self.verdicts)
        return Report(self.examination.name, self.examination.options, self.about, verdicts, self.examination.kind)


def _one_process(states: Mapping[int, _State], limit: float, refuse: bool) -> Iterator[None]:
    """Run the remaining checks until done or until the process must end; yields after each event."""
    examinations = {number: replace(state.examination, checks=state.left) for number, state in states.items()}
    current: _State | None = None
    check: str | None = None
    begun = time.monotonic()
    with Child(examinations, limit) as child:
        try:
            for event in child.events():
                if event["event"] in ("examination", "end"):
                    if current is not None:
                        current.close(_UNBUILT)
                    current, check = states.get(event.get("examination", -1)), None
                elif current is not None:
                    match event:
                        case {"event": "check", "check": check}:
                            begun = time.monotonic()
                        case {"event": "about", "about": about}:
                            current.about = about
                        case {"event": "verdict", "verdict": verdict}:
                            current.judge(Verdict(**verdict))
                        case {"event": "refused", "why": why}:
                            if refuse:
                                raise UserError(why)
                            current.judge(Verdict(current.left[0], "error", note=why))
                yield
        except Ended as ended:
            blamed = current or next(iter(states.values()))
            blamed.lose(check, str(ended), time.monotonic() - begun)
