"""`bench check`."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench.check.catalogue import CHECKS
from bench.check.report import Verdict, write_verdict
from bench.check.runner import LIMIT, conformance
from bench.errors import UserError
from bench.progress import StatusLine, say
from bench.words import Parser, add_places, dotted_apart, names_of, split


def main(words: list[str]) -> int:
    """Check an optimizer: 0 all is well, 1 a check failed.

    Raises:
        UserError: there is no such optimizer, check or option.
    """
    parser = Parser(
        prog="bench check",
        description="Check that an optimizer does what training code expects: resume, groups, schedules, odd tensors,"
        " closures, DDP, FSDP2, ...",
        epilog="--opt.lr 0.1 and the like set its hyperparameters. Exit code 1: a check failed.",
        usage="bench check [-h] NAME | module:Class | file.py:Class | --matrix A,B [--opt.NAME VALUE ...] [options]",
    )
    parser.add_argument(
        "name", nargs="?", help="an optimizer of `bench list optimizers`, module:Class or file.py:Class"
    )
    parser.add_argument(
        "--matrix",
        type=names_of,
        metavar="A,B",
        help="check many, each a row of a table: all optimizer classes of a module (torch.optim) or file,"
        " module:Class, names",
    )
    parser.add_argument(
        "-o", dest="outputs", type=Path, metavar="FILE", action="append", default=[],
        help="where the matrix is written: .html, .md, .csv, .json, .tex or .txt (default:"
        " Markdown on standard output); may be given again",
    )  # fmt: skip
    parser.add_argument("--only", type=names_of, metavar="A,B", help="only these checks")
    parser.add_argument(
        "--reference", metavar="MODULE:FUNCTION", help="its steps as a float64 function, to compare with"
    )
    parser.add_argument(
        "--limit", type=_seconds, default=LIMIT, metavar="SECONDS", help=f"for one check (default {LIMIT:g})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_places(parser, store="where the verdicts of all checks are kept, for the leaderboard")
    parser.add_argument("--list", action="store_true", help="say what is checked, and how closely")
    own, dotted = dotted_apart(words)
    args = parser.parse_args(own)
    if args.list:
        print(listing())
        return 0
    if args.matrix is not None:
        if args.name is not None or dotted or args.reference:
            raise UserError("--matrix checks optimizers as they are: leave the name, --opt.* and --reference away")
        from bench.check import matrix  # which needs numpy

        matrix.command(args.matrix, args.only, args.limit, args.outputs, "json" if args.json else "md")
        return 0
    if args.outputs:
        raise UserError("-o is for --matrix; use --json > FILE")
    if args.name is None:
        raise UserError("which optimizer? bench check NAME, module:Class or file.py:Class")
    settings, _ = split(dotted, set(), set())
    for name in settings:
        if not name.startswith("opt."):
            raise UserError(f"--{name}: a check has no such setting; an optimizer's are written --opt.NAME VALUE")
    options = {name.removeprefix("opt."): value for name, value in settings.items()}
    progress = _Progress(len(args.only or CHECKS))
    report = conformance(
        args.name, only=args.only, reference=args.reference, options=options, limit=args.limit, show=progress.show
    )
    progress.line.clear()
    print(json.dumps(report.as_json(), indent=1, allow_nan=False) if args.json else report.text())
    if args.only is None:
        print(f"written to {write_verdict(args.store, report)}", file=sys.stderr)
    return 0 if report.ok else 1


def listing() -> str:
    """What is checked."""
    lines = []
    for check in CHECKS.values():
        bound = "reported" if check.tolerance is None else f"at most {check.tolerance:g}"
        lines += [f"{check.name}: {check.meaning}", f"    {bound} ({check.because})"]
    return "\n".join(lines)


class _Progress:
    """A line on a terminal, a line for each check elsewhere."""

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


def _seconds(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{word!r} is no time; write seconds, as in --limit 30")
    return value
