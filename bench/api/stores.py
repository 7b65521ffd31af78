"""Functions on whole stores: sql, load and merge."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from bench.api.calls import Place, Stores, folders, path_of, public
from bench.config.values import place
from bench.errors import UserError
from bench.output import Answer, format_of, note, open_stores, remark, warn_of, write
from bench.text import counted

if TYPE_CHECKING:
    from bench.api.results import Runs


@public
def sql(
    query: str,
    *,
    no_reference: bool = False,
    out: Place | None = None,
    store: Stores = None,
    progress: bool = True,
) -> Answer:
    """Query runs, curves, measurements and trials of studies with DuckDB's SQL.

    Views: runs, evaluations, curves, measurements, trials; `bench sql 'describe runs'` lists the columns of one.
    settings->>'opt.lr' is a setting of a run. Example: bench sql "select opt, count(final), avg(final) from runs where
    task = 'synthetic' and study is null group by opt". Exit code 1: something could not be read and was left out.

    Args:
        query: one read-only statement.
        out: write to this file: .md, .csv, .json or .txt.
    """
    from bench.browse.sql import STREAMS, ask, written

    file = path_of(out)
    kind = "table" if file is None else format_of(file, STREAMS)
    stores = open_stores(folders(store), reference=not no_reference)
    answer = ask(stores, query)
    code, text = warn_of(stores, answer.damaged), written(answer, kind, to_file=file is not None)
    if file is not None:
        write(file, text)
        return Answer(None, [], code)
    return Answer(lambda: json.loads(written(answer, "json", to_file=False)), text.split("\n"), code)


@public
def load(store: Stores = None) -> "Runs":
    """All runs of a store, or of several read as one; plug-ins named in them are not imported.

    `Runs.damaged` lists what could not be read.

    Args:
        store: one folder or several; $BENCH_STORE by default, else `./runs`.
    """
    from bench.api.results import Run, Runs
    from bench.store.stores import Stores

    stores = Stores(folders(store) or [place("store")])
    runs = [Run(run, stores.place(run.run_id).parent) for run in stores.runs]
    return Runs(runs, list(map(str, stores.damaged)))


@public
def merge(*folders: Place) -> Answer:
    """Copy the runs of stores, and their records of studies and checks, into another store, the last one given.

    Runs in the destination are kept, but a finished run replaces an unfinished one. The same call continues an
    interrupted merge. Exit code 1: something could not be read.

    Args:
        folders: stores, which are only read, and last the destination.
    """
    from bench.store.merge import merge as copy

    if len(folders) < 2:
        raise UserError("bench merge needs a store and a destination: bench merge SOURCE ... DEST")
    *sources, destination = map(Path, folders)
    merged = copy(sources, destination)
    for what in merged.damaged:
        remark("warning", f"{what}; it is not copied")
    for run_id in dict.fromkeys(merged.differing):
        remark("warning", f"{run_id} has another result in {destination}; that one is kept")
    for text in dict.fromkeys(merged.notes):
        note(f"note: {text}")
    counts = {"copied": merged.copied, "there": merged.existing, "skipped": merged.skipped, **merged.records}
    data = {"dest": destination, **counts, "differing": merged.differing, "damaged": [*map(str, merged.damaged)]}
    records = [f"{counted(n, 'record')} of {what}" for what, n in merged.records.items() if n]
    line = f"{counted(merged.copied, 'run')} copied, {merged.existing} already there, {merged.skipped} skipped"
    return Answer(data, [line + f"; {' and '.join(records)} copied" * bool(records)], int(bool(merged.damaged)))
