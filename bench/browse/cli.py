"""The commands on whole stores: sql, merge, bundle."""

from contextlib import ExitStack
from pathlib import Path

from bench.errors import UserError
from bench.grammar.parse import Args
from bench.output import answer, format_of, note, open_stores, remark, stores_of, warn_of, write
from bench.text import counted, listed
from optimizers.plugins import bare


def run_sql(args: Args) -> int:
    """`bench sql`: 0 done, 1 a run could not be read."""
    from bench.browse.sql import ask, written
    from bench.results.render import STREAMS

    kind = format_of(args, STREAMS)
    stores = open_stores(args)
    answer = ask(stores, args.query)
    code = warn_of(stores, answer.damaged)
    write(args.out, written(answer, kind, args.out))
    return code


def run_merge(args: Args) -> int:
    """`bench merge`: 0 done, 1 something could not be read."""
    from bench import progress
    from bench.store.bundle import opened, store_in
    from bench.store.merge import merge

    with ExitStack() as unpacked:
        folders = [unpacked.enter_context(opened(path)) if path.is_file() else path for path in args.source]
        merged = merge([store_in(folder) for folder in folders], args.dest, progress.say)
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


def run_bundle(args: Args) -> int:
    """`bench bundle`: 0 done, 1 a run could not be read."""
    if args.out is None:
        raise UserError("--out is missing; write bench bundle -o results.zip")
    from bench.store.bundle import bundle
    from bench.store.stores import Stores

    stores = Stores(stores_of(args))
    stores.refuse_unknown(args.task, args.opt, stores.runs)
    runs = [run for run in stores.runs if run.is_of(args.task, args.opt)]
    used = {bare(run.config[kind]) for run in runs for kind in ("task", "opt") if ".py:" in run.config[kind]}
    plugins = [*(args.task or ()), *(args.opt or ())]
    for path in map(Path, args.source or ()):
        own = [f"{path.parent / name}" for name in sorted(used) if name.rpartition(":")[0] == path.name]
        if not own or not path.is_file():
            why = "no run names it" if path.is_file() else "there is no such file"
            raise UserError(f"--source {path}: {why}; plug-ins of these runs: {listed(sorted(used)) or 'none'}")
        plugins += own
    if args.tuned and not args.tuned.is_dir():
        raise UserError(f"--tuned {args.tuned}: there is no such folder")
    tuned = [args.tuned] if args.tuned else [Path("tuned"), *sorted(Path("compared").glob("*/*/tuned"))]
    made = bundle(stores, runs, args.out, points=args.points, tuned=tuned, plugins=plugins)
    code = warn_of(stores, made.damaged)
    if left := sorted(used - {*map(bare, plugins)}):
        files = ",".join(dict.fromkeys(name.rpartition(":")[0] for name in left))
        note(f"without the source of {', '.join(left)}, which `bench verify` needs: add --source {files}")
    if args.json:
        counts = {name: getattr(made, name) for name in ("runs", "studies", "tuned", "sources")}
        answer({"out": args.out, **counts, "damaged": [str(each) for each in (*stores.damaged, *made.damaged)]})
        return code
    print(
        f"written to {args.out}: {counted(made.runs, 'run')}, {made.studies} stud{'y' if made.studies == 1 else 'ies'},"
        f" {counted(made.tuned, 'file')} of tuned settings, {counted(made.sources, 'source')} of plug-ins"
    )
    return code
