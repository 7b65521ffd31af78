"""The commands on stores as a whole: sql, merge, diff."""

import json

from bench.grammar.commands import parse
from bench.output import format_of, remark, stores_of, warn_of, write


def _sql(words: list[str]) -> int:
    args = parse("sql", words)
    from bench.browse.sql import ask, written
    from bench.results.render import STREAMS
    from bench.store.stores import Stores

    kind = format_of(args, STREAMS)
    stores = Stores(stores_of(args))
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
    records = [f"{n} records of {what}" for n, what in ((merged.studies, "studies"), (merged.checks, "checks")) if n]
    print(counts + f"; {' and '.join(records)} copied" * bool(records))
    return 1 if merged.damaged else 0


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
    return {"sql": _sql, "merge": _merge, "diff": _diff}[words[0]](words[1:])
