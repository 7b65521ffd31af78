"""The commands on stores as a whole: sql, merge, diff."""

import json

from bench.output import add_output, add_stores, format_of, remark, stores_of, warn_of, write
from bench.words import Parser, folder


def _sql(words: list[str]) -> int:
    parser = Parser(
        prog="bench sql",
        description="Ask about runs, curves, measurements and trials of studies with SQL (DuckDB's).",
        epilog="Views: runs, curves, measurements, trials; `bench sql 'describe runs'` lists the columns of one."
        " settings->>'opt.lr' is a setting of a run. Example: bench sql \"select opt, avg(final) from runs where task ="
        " 'synthetic' and study is null group by opt\". Exit code 1: something could not be read, and was left out.",
    )
    parser.add_argument("query", help="one statement that reads; it can change nothing")
    add_stores(parser)
    add_output(parser, ("table", "md", "csv", "json"))
    args = parser.parse_args(words)
    from bench.store.sql import FORMATS, ask
    from bench.store.stores import Stores

    kind = format_of(args, FORMATS)
    stores = Stores(stores_of(args))
    answer = ask(stores, args.query)
    code = warn_of(stores, answer.damaged)
    write(args.out, FORMATS[kind](answer))
    return code


def _merge(words: list[str]) -> int:
    parser = Parser(
        prog="bench merge",
        description="Copy the runs of stores, and their records of studies and checks, into another one.",
        epilog="What is there already stays, but a finished run takes the place of an unfinished one. A merge that was"
        " stopped goes on with the same command. Databases of studies (studies.db) are not merged. Exit code 1:"
        " something could not be read.",
    )
    parser.add_argument("source", nargs="+", type=folder, help="a store; it is only read")
    parser.add_argument("dest", type=folder, help="the store that they are copied into; made if it is not there")
    args = parser.parse_args(words)
    from bench import progress
    from bench.store.merge import merge

    merged = merge(args.source, args.dest, progress.say)
    for what in merged.damaged:
        remark("warning", f"{what}; it is not copied")
    for run_id in merged.differing:
        remark("warning", f"{run_id} has another result in {args.dest}, which stays")
    for note in merged.notes:
        remark("note", note)
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
    add_stores(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args(words)
    from bench.store.compare import compare, find, lines

    one, other = (find(word, stores_of(args)) for word in args.run)
    found = compare(one, other)
    text = json.dumps(found, allow_nan=False) if args.json else "\n".join(lines(found))
    print(text.encode("utf-8", "replace").decode())  # a record may hold half a character
    return 0


def main(words: list[str]) -> int:
    """One of the commands, with its name first."""
    return {"sql": _sql, "merge": _merge, "diff": _diff}[words[0]](words[1:])
