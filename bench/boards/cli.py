"""The commands that show results: leaderboard, report, plot."""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from bench.errors import UserError, unknown
from bench.output import add_output, add_stores, format_of, remark, stores_of, warn_of, write
from bench.words import Parser, names_of

BOARD_NAMES = ("quality", "speed", "tuning", "robustness", "theory")
CHART_NAMES = ("curves", "sensitivity", "profile", "steps", "budget")
FORMAT_NAMES = ("table", "md", "csv", "json", "tex", "html")


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Give a command the options that say which runs it looks at."""
    parser.add_argument("--task", type=names_of, metavar="A,B", help="only these tasks")
    parser.add_argument("--opt", type=names_of, metavar="A,B", help="only these optimizers")
    add_stores(parser)
    parser.add_argument(
        "--settings", choices=("best", "tuned", "default", "all"), default="best",
        help="of each optimizer: best takes the tuned ones, else the defaults,"
             " else those set by hand if there is one such",
    )  # fmt: skip
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME=VALUE",
        help="only runs with this setting (trainer.max_steps=1000, task.H=4),"
             " version (versions.torch=2.15.0) or engine",
    )  # fmt: skip
    parser.add_argument("--mixed-versions", action="store_true", help="compare runs of different versions all the same")
    parser.add_argument(
        "--reference", default="adam", help="optimizer that the others are compared with (default adam)"
    )
    parser.add_argument(
        "--target",
        type=_number,
        help="of the board `speed` and of profiles: a value of the metric (default: the task's)",
    )


def _number(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{word!r} is no finite number")
    return value


def asked(args: argparse.Namespace) -> tuple[Any, Any]:
    """The stores, and what boards are made of.

    Raises:
        UserError: there is nothing to show, or a word is misspelt.
    """
    from bench.boards import Asked
    from bench.boards.collect import collect
    from bench.store.stores import Stores

    only: dict[str, str] = {}
    for word in args.only:
        name, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"--only {word}: write NAME=VALUE, as in --only trainer.max_steps=1000")
        only[name.removeprefix("--")] = value
    stores = Stores(stores_of(args))
    found = collect(
        stores, tasks=args.task, opts=args.opt, only=only, settings=args.settings, mixed_versions=args.mixed_versions,
        reference=args.reference,
    )  # fmt: skip
    known = sorted({name for entry in found.chosen for name in (entry.opt, entry.name)})
    if args.reference not in known and args.reference != "adam":
        raise unknown("optimizer of --reference", args.reference, known)
    metrics = sorted({problem.metric for problem in found.problems})
    if args.target is not None and len(metrics) > 1:
        raise UserError(f"--target {args.target:g}: which of {' and '.join(metrics)}? Choose tasks with --task")
    return stores, Asked(found, stores.tables, args.reference, args.target)


def warn(stores: Any, found: Any) -> int:
    """Say on standard error what is damaged or left out; the exit code that this means."""
    code = warn_of(stores, sorted(set(found.damaged)))
    for note in found.notes:
        remark("note", note)
    return code


def _leaderboard(words: list[str]) -> int:
    parser = Parser(
        prog="bench leaderboard",
        description="Rank optimizers from the stored runs: means and intervals over seeds,"
        " and one rank for those that are not told apart.",
        epilog="Boards: quality (final metric at the tuned settings), speed (steps and seconds to the target),"
        " tuning (what a budget of trials gives), robustness (divergence, seeds), theory (alignment, rates)."
        " Exit code 1: a run could not be read.",
    )
    parser.add_argument("--board", type=names_of, default=["quality"], metavar="A,B", help="or `all`; default quality")
    add_output(parser, FORMAT_NAMES).add_argument(
        "--into", type=Path, metavar="FILE.md",
        help="write Markdown between the markers of this board in a file that has them",
    )  # fmt: skip
    add_choice(parser)
    args = parser.parse_args(words)
    from bench.boards import BOARDS
    from bench.boards.formats import FORMATS, into

    kind = format_of(args, FORMATS)
    names = BOARD_NAMES if "all" in args.board else list(dict.fromkeys(args.board))
    for name in names:
        if name not in BOARDS:
            raise unknown("board", name, [*BOARDS, "all"])
    stores, what = asked(args)
    boards = [BOARDS[name](what) for name in names]
    code = warn(stores, what.found)
    if args.into is not None:
        into(args.into, boards)
        print(f"written into {args.into}", file=sys.stderr)
    else:
        write(args.out, FORMATS[kind](boards))
    return code


def _report(words: list[str]) -> int:
    parser = Parser(
        prog="bench report",
        description="Write all boards, charts and the commands behind each row as one HTML page,"
        " which needs no network.",
        epilog="The same store gives the same bytes. Exit code 1: a run could not be read.",
    )
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("report.html"), metavar="FILE", help="default report.html"
    )
    add_choice(parser)
    args = parser.parse_args(words)
    from bench.boards.page import page, store_names

    stores, what = asked(args)
    names = store_names(store.folder for store in stores.stores)
    text = page(what, len(stores.runs), names, len(stores.damaged))
    code = warn(stores, what.found)
    write(args.out, text)
    return code


def _plot(words: list[str]) -> int:
    parser = Parser(
        prog="bench plot",
        description="Draw stored runs for a paper, a panel for each problem: PNG, PDF or SVG, as the file's name ends.",
        epilog="curves: training loss, or --y COLUMN, against optimizer steps;"
        " sensitivity: score of each trial against what was searched;"
        " profile: share of runs at the target against the budget; steps: step sizes before and after their cap;"
        " budget: expected best of k trials. Exit code 1: a run could not be read.",
    )
    parser.add_argument("chart", choices=CHART_NAMES)
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="ends in .png, .pdf or .svg")
    parser.add_argument(
        "--y", metavar="COLUMN", help="of curves: a column such as grad_norm or alignment (default loss)"
    )
    add_choice(parser)
    args = parser.parse_args(words)
    if args.y is not None and args.chart != "curves":
        raise UserError(f"--y {args.y}: only curves have columns to choose from, not {args.chart}")
    from bench.boards.chart_figure import check_ending, draw
    from bench.boards.charts import CHARTS, curves

    check_ending(args.out)
    stores, what = asked(args)
    charts = curves(what, args.y) if args.y is not None else CHARTS[args.chart](what)
    code = warn(stores, what.found)
    write(args.out, draw(args.out, charts, [entry.name for entry in what.found.chosen]))
    for chart in charts:
        if not chart.traces:
            remark("note", f"{chart.title}: not drawn, since {chart.note}")
    return code


def main(words: list[str]) -> int:
    """One of the commands, with its name first."""
    return {"leaderboard": _leaderboard, "report": _report, "plot": _plot}[words[0]](words[1:])
