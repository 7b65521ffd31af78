"""`bench check`."""

import sys
from dataclasses import asdict
from typing import Any

from bench.check.catalogue import Kind, catalogue
from bench.check.report import Verdict, write_verdict
from bench.check.run import LIMIT, Request, reports, request_of, request_of_task
from bench.errors import UserError
from bench.grammar.parse import Args
from bench.output import answer
from bench.progress import StatusLine, say


def main(args: Args) -> int:
    """Check an optimizer: 0 passed, 1 a failure changes results or blocks a set-up.

    Raises:
        UserError: there is no such optimizer, check or option.
    """
    limit = args.limit or LIMIT
    if args.list:
        if args.json:
            kinds: tuple[Kind, ...] = ("optimizer", "task")
            answer({kind: {name: asdict(check) for name, check in catalogue(kind).items()} for kind in kinds})
        else:
            print(listing())
        return 0
    if args.task is not None:
        request = _of_task(args)
    elif wrong := [f"--{name}" for name in args.of_runs if name.startswith("task.")]:
        raise UserError(f"{wrong[0]} is an option of a task: name the task with --task TASK")
    elif args.matrix is not None:
        if args.opt is not None or args.of_runs or args.reference:
            raise UserError("--matrix uses default arguments: remove the name, --opt.* and --reference")
        from bench.check import matrix  # needs numpy

        matrix.command(args, limit)
        return 0
    else:
        request = _of_optimizer(args)
    progress = _Progress(len(request.checks))
    (report,) = reports([request], limit=limit, show=progress.show)
    progress.line.clear()
    if args.json:
        answer(report.as_json())
    else:
        print(report.text())
    if args.task is None and args.only is None and not args.quick:
        print(f"written to {write_verdict(args.store, report)}", file=sys.stderr)
    return 0 if report.ok else 1


def _of_task(args: Any) -> Request:
    wrong = [f"--{name}" for name in args.of_runs if name.startswith("opt.")]
    if args.opt is not None or args.matrix is not None or args.reference or args.out or wrong:
        raise UserError("--task checks only a task: remove the optimizer, --opt.*, --matrix, --reference and -o")
    options = {name.removeprefix("task."): value for name, value in args.of_runs.items()}
    return request_of_task(args.task, only=args.only, options=options, data=args.data)


def _of_optimizer(args: Any) -> Request:
    if args.out:
        raise UserError("-o is for --matrix; use --json > FILE")
    if args.opt is None:
        raise UserError("which optimizer? bench check NAME, module:Class or file.py:Class")
    options = {name.removeprefix("opt."): value for name, value in args.of_runs.items()}
    return request_of(args.opt, only=args.only, reference=args.reference, options=options, quick=args.quick)


def listing() -> str:
    """The list of checks."""
    return "\n".join([*_listed("optimizer"), "", "Of tasks (--task):", *_listed("task")])


def _listed(kind: Kind) -> list[str]:
    lines = []
    for check in catalogue(kind).values():
        lines += [f"{check.name}: {check.meaning}", f"    {check.group}. {check.advice}".rstrip()]
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
