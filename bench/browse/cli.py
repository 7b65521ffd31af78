"""The commands on stores as a whole: sql, merge, bundle, diff."""

import json

from bench.errors import UserError, unknown
from bench.grammar.commands import parse
from bench.output import format_of, open_stores, remark, stores_of, warn_of, write
from optimizers.plugins import bare


def _sql(words: list[str]) -> int:
    args = parse("sql", words)
    from bench.browse.sql import ask, written
    from bench.results.render import STREAMS

    kind = format_of(args, STREAMS)
    stores = open_stores(args)
    answer = ask(stores, args.query)
    code = warn_of(stores, answer.damaged)
    write(args.out, written(answer, kind, args.out))
    return code


def _merge(words: list[str]) -> int:
    args = parse("merge", words)
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
    counted = (merged.studies, "studies"), (merged.checks, "checks"), (merged.ladders, "ladders")
    records = [f"{n} records of {what}" for n, what in counted if n]
    print(counts + f"; {' and '.join(records)} copied" * bool(records))
    return 1 if merged.damaged else 0


def _bundle(words: list[str]) -> int:
    args = parse("bundle", words)
    if args.out is None:
        raise UserError("--out is missing; write bench bundle -o results.zip")
    from bench.store.bundle import bundle
    from bench.store.stores import Stores

    stores = Stores(stores_of(args))
    wanted = {"task": args.task, "opt": args.opt}
    for kind, given in wanted.items():
        there = {name for run in stores.runs for name in run.names[kind]}
        for name in given or ():
            if bare(name) not in there:
                raise unknown(f"{kind} in {stores.shown}", name, sorted(there))
    runs = [
        run
        for run in stores.runs
        if all(given is None or run.names[kind] & {*map(bare, given)} for kind, given in wanted.items())
    ]
    plugins = [*(args.task or ()), *(args.opt or ())]
    made = bundle(stores, runs, args.out, points=args.points, tuned=args.tuned, plugins=plugins)
    code = warn_of(stores, made.damaged)
    print(
        f"written to {args.out}: {made.runs} runs, {made.studies} studies, {made.tuned} files of tuned settings,"
        f" {made.sources} sources of plug-ins"
    )
    return code


def _diff(words: list[str]) -> int:
    args = parse("diff", words)
    from bench.browse.compare import compare, find, lines

    one, other = (find(word, stores_of(args)) for word in args.run)
    found = compare(one, other)
    text = json.dumps(found, allow_nan=False) if args.json else "\n".join(lines(found))
    print(text.encode("utf-8", "replace").decode())  # a record may hold half a character
    return 0


def main(words: list[str]) -> int:
    """One of the commands, with its name first."""
    return {"sql": _sql, "merge": _merge, "bundle": _bundle, "diff": _diff}[words[0]](words[1:])
