"""The commands on stores as a whole: sql, merge, diff."""

import argparse
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from bench.errors import UserError
from bench.words import Parser


def _add_stores(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store", action="append", type=Path, metavar="DIR",
        help="where runs are kept; several are read as one (default: $BENCH_STORE, else ./runs)",
    )  # fmt: skip


def _stores(args: argparse.Namespace) -> list[Path]:
    return args.store or [Path(os.environ.get("BENCH_STORE", "runs"))]


def _sql(words: list[str]) -> int:
    parser = Parser(
        prog="bench sql",
        description="Ask about runs, curves, measurements and trials of studies with SQL (DuckDB's).",
        epilog="Views: runs, curves, measurements, trials; `bench sql 'describe runs'` lists the columns of one. settings->>'opt.lr'"
        " is a setting of a run. Example: bench sql \"select opt, avg(final) from runs where task = 'synthetic' group by opt\"."
        " Exit code 1: something could not be read, and was left out.",
    )
    parser.add_argument("query", help="one statement that reads; it can change nothing")
    _add_stores(parser)
    parser.add_argument(
        "--format", choices=("table", "md", "csv", "json"), help="default table, or what the name of the file says"
    )
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write there instead of to standard output")
    args = parser.parse_args(words)
    from bench.storage.sql import FORMATS, ask
    from bench.storage.stores import Stores

    by_ending = {".md": "md", ".csv": "csv", ".json": "json"}
    kind = args.format or by_ending.get(args.out.suffix if args.out else "", "table")
    stores = Stores(_stores(args))
    answer = ask(stores, args.query)
    damaged = dict.fromkeys([*stores.unreadable, *answer.damaged])
    for path in damaged:
        _warn(f"{path} is damaged or not whole, so it is left out; copy it again or delete it")
    for run_id in stores.conflicts:
        _warn(f"{run_id} has different results in different stores; one is taken")
    if args.out is not None:
        _write(args.out, FORMATS[kind](answer))
        print(f"written to {args.out}", file=sys.stderr)
    else:
        sys.stdout.writelines(FORMATS[kind](answer))
    return 1 if damaged else 0


def _merge(words: list[str]) -> int:
    parser = Parser(
        prog="bench merge",
        description="Copy the runs of stores, and their records of studies and checks, into another one.",
        epilog="What is there already stays, but a finished run takes the place of an unfinished one. A merge that was stopped goes on"
        " with the same command. Databases of studies (studies.db) are not merged. Exit code 1: something could not be read.",
    )
    parser.add_argument("source", nargs="+", type=Path, help="a store; it is only read")
    parser.add_argument("dest", type=Path, help="the store that they are copied into; made if it is not there")
    args = parser.parse_args(words)
    from bench.progress import say
    from bench.storage.merge import merge

    merged = merge(args.source, args.dest, say)
    for path in merged.damaged:
        _warn(f"{path} is damaged or not whole, so it is not copied; copy it again from where it came or delete it")
    for run_id in merged.differing:
        _warn(f"{run_id} has another result in {args.dest}, which stays")
    for note in merged.notes:
        print(f"bench: note: {note}", file=sys.stderr)
    counts = f"{merged.copied} runs copied, {merged.there} already there, {merged.skipped} skipped"
    records = [f"{n} records of {what}" for n, what in ((merged.studies, "studies"), (merged.checks, "checks")) if n]
    print(counts + f"; {' and '.join(records)} copied" * bool(records))
    return 1 if merged.damaged else 0


def _diff(words: list[str]) -> int:
    parser = Parser(
        prog="bench diff",
        description="Show what differs between two runs: settings, versions, machine, results, curve.",
        epilog="Seconds are not compared.",
    )
    parser.add_argument("run", nargs=2, metavar="RUN", help="the id of a run, or the path of its folder")
    _add_stores(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args(words)
    from bench.storage.compare import compare, find, lines

    one, other = (find(word, _stores(args)) for word in args.run)
    found = compare(one, other)
    text = json.dumps(found, allow_nan=False) if args.json else "\n".join(lines(found))
    print(text.encode("utf-8", "replace").decode())  # a record may hold half a character
    return 0


def _warn(text: str) -> None:
    print(f"bench: warning: {text}", file=sys.stderr)


def _write(path: Path, pieces: Iterable[str]) -> None:
    from bench.storage.store import replacing

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.writelines(pieces)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another file with -o") from None


def main(words: list[str]) -> int:
    """One of the commands, with its name first."""
    return {"sql": _sql, "merge": _merge, "diff": _diff}[words[0]](words[1:])
