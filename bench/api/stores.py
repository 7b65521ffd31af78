"""Functions on whole stores: sql and merge."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.output import Answer, format_of, open_stores, remark, warn_of, write
from bench.text import counted


def sql(query: str, folders: Sequence[Path], out: Path | None, format: str | None, *, reference: bool) -> Answer:
    """The answer to a query, written to a file if given.

    Raises:
        UserError: the statement is invalid.
    """
    from bench.browse.sql import STREAMS, ask, written

    kind = format or ("table" if out is None else format_of(out, STREAMS))
    stores = open_stores(folders, reference=reference)
    answer = ask(stores, query)
    code = warn_of(stores, answer.damaged)
    if out is not None:
        write(out, written(answer, kind, to_file=True))
        return Answer(None, [], code)
    text = written(answer, kind, to_file=False)
    rows = partial(_as_rows, answer)
    return Answer(rows, text.rstrip("\n").split("\n"), code)


def _as_rows(answer: Any) -> Any:
    from bench.browse.sql import written

    return json.loads(written(answer, "json", to_file=False))


def merge(sources: Sequence[Path], destination: Path) -> Answer:
    """Copy the runs of stores into another one."""
    from bench.store.merge import merge as copy

    merged = copy(sources, destination)
    for what in merged.damaged:
        remark("warning", f"{what}; it is not copied")
    for run_id in merged.differing:
        remark("warning", f"{run_id} has another result in {destination}; that one is kept")
    for text in merged.notes:
        remark("note", text)
    counts = {"copied": merged.copied, "there": merged.there, "skipped": merged.skipped, **merged.records}
    data = {"dest": destination, **counts, "differing": merged.differing, "damaged": [*map(str, merged.damaged)]}
    records = [f"{counted(n, 'record')} of {what}" for what, n in merged.records.items() if n]
    line = f"{counted(merged.copied, 'run')} copied, {merged.there} already there, {merged.skipped} skipped"
    return Answer(data, [line + f"; {' and '.join(records)} copied" * bool(records)], int(bool(merged.damaged)))
