"""The commands on whole stores: sql and merge."""

from bench.grammar.parse import Args
from bench.output import answer, format_of, open_stores, remark, warn_of, write
from bench.text import counted


def run_sql(args: Args) -> int:
    """`bench sql`: 0 done, 1 a run could not be read."""
    from bench.browse.sql import STREAMS, ask, written

    kind = format_of(args, STREAMS)
    stores = open_stores(args)
    answer = ask(stores, args.query)
    code = warn_of(stores, answer.damaged)
    write(args.out, written(answer, kind, to_file=args.out is not None))
    return code


def run_merge(args: Args) -> int:
    """`bench merge`: 0 done, 1 something could not be read."""
    from bench import progress
    from bench.store.merge import merge

    merged = merge(args.source, args.dest, progress.say)
    for what in merged.damaged:
        remark("warning", f"{what}; it is not copied")
    for run_id in merged.differing:
        remark("warning", f"{run_id} has another result in {args.dest}; that one is kept")
    for said in merged.notes:
        remark("note", said)
    if args.json:
        counts = {"copied": merged.copied, "there": merged.there, "skipped": merged.skipped, **merged.records}
        answer({"dest": args.dest, **counts, "differing": merged.differing, "damaged": [*map(str, merged.damaged)]})
        return int(bool(merged.damaged))
    counts = f"{counted(merged.copied, 'run')} copied, {merged.there} already there, {merged.skipped} skipped"
    records = [f"{counted(n, 'record')} of {what}" for what, n in merged.records.items() if n]
    print(counts + f"; {' and '.join(records)} copied" * bool(records))
    return 1 if merged.damaged else 0
