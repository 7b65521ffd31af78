"""`bench check`."""

import sys
from dataclasses import asdict
from typing import Any

from bench.check.catalogue import CATALOGUES, CHECKS, Kind
from bench.check.report import Report, Verdict, write_verdict
from bench.check.supervisor import LIMIT, conformance, examination_of_task, run
from bench.errors import UserError
from bench.grammar.commands import parse
from bench.output import answer
from bench.progress import StatusLine, say


def main(words: list[str]) -> int:
    """Check an optimizer: 0 passed, 1 a failure changes results or blocks a set-up.

    Raises:
        UserError: there is no such optimizer, check or option.
    """
    args = parse("check", words)
    args.limit = args.limit or LIMIT
    if args.list:
        if args.json:
            answer({kind: {name: asdict(check) for name, check in own.items()} for kind, own in CATALOGUES.items()})
        else:
            print(listing())
        return 0
    if args.task is not None:
        return _task(args)
    if of_task := [f"--{name}" for name in args.of_runs if name.startswith("task.")]:
        raise UserError(f"{of_task[0]} is an option of a task: name the task with --task TASK")
    if args.matrix is not None:
        if args.name is not None or args.of_runs or args.reference:
            raise UserError("--matrix uses default arguments: remove the name, --opt.* and --reference")
        from bench.check import matrix  # needs numpy

        matrix.command(args.matrix, args.only, args.limit, args.out, "json" if args.json else "md", args.store)
        return 0
    if args.out:
        raise UserError("-o is for --matrix; use --json > FILE")
    if args.name is None:
        raise UserError("which optimizer? bench check NAME, module:Class or file.py:Class")
    options = {name.removeprefix("opt."): value for name, value in args.of_runs.items()}
    progress = _Progress(len(args.only or CHECKS))
    report = conformance(
        args.name, only=args.only, reference=args.reference, options=options, limit=args.limit, show=progress.show
    )
    progress.line.clear()
    _show(report, as_json=args.json)
    if args.only is None:
        print(f"written to {write_verdict(args.store, report)}", file=sys.stderr)
    return 0 if report.ok else 1


def _task(args: Any) -> int:
    """Check a task."""
    wrong = [f"--{name}" for name in args.of_runs if name.startswith("opt.")]
    if args.name is not None or args.matrix is not None or args.reference or args.out or wrong:
        raise UserError("--task checks only a task: remove the optimizer, --opt.*, --matrix, --reference and -o")
    options = {name.removeprefix("task."): value for name, value in args.of_runs.items()}
    examination = examination_of_task(args.task, only=args.only, options=options, data=args.data)
    progress = _Progress(len(examination.checks))
    (report,) = run([examination], limit=args.limit, show=progress.show)
    progress.line.clear()
    _show(report, as_json=args.json)
    return 0 if report.ok else 1


def _show(report: Report, *, as_json: bool) -> None:
    if as_json:
        answer(report.as_json())
    else:
        print(report.text())


def listing() -> str:
    """The list of checks."""
    return "\n".join([*_listed("optimizer"), "", "Of tasks (--task):", *_listed("task")])


def _listed(kind: Kind) -> list[str]:
    lines = []
    for check in CATALOGUES[kind].values():
        bound = "reported" if check.tolerance is None else f"at most {check.tolerance:g}"
        failure = f"; a failure: {check.consequence}" if check.severity else ""
        lines += [f"{check.name}: {check.meaning}", f"    {bound} ({check.because}){failure}"]
    return lines


class _Progress:
    """One updated line on a terminal, a line for each check elsewhere."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.line = total, 0, StatusLine()

    def show(self, _: Any, verdict: Verdict) -> None:
        """Show a verdict."""
        self.done += 1
        text = f"{self.done}/{self.total} {verdict.check}: {verdict.verdict} ({verdict.seconds:.1f} s)"
        if self.line.live:
            self.line.show(text)
        else:
            say(text)
