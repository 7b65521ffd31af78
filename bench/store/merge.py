"""Merging stores: `bench merge` copies the results that the destination lacks.

Only records and tables that can be read are copied. Each block appears by one rename, under its lock, so the process
may be killed at any time; the same command continues. Nothing is written if nothing is new.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.errors import RunBusy
from bench.store.block import Block, blocks_in, name_of
from bench.store.files import making, write_json
from bench.store.load import Damaged, read
from bench.store.record import RunResult
from bench.store.reports import KINDS, Record, reports_in
from bench.store.store import Store
from bench.store.stores import no_store
from bench.store.writer import new_results, write_block
from bench.text import counted

_SECONDS = 5  # between progress lines


@dataclass
class Merged:
    """Result of a merge.

    Attributes:
        copied, there, skipped: how many runs were copied, existed already, or were skipped.
        records: how many records of studies and of `bench check` were copied, by folder.
        damaged: unreadable parts of the sources.
        notes: why runs were skipped.
        differing: runs that the destination keeps, although a source has another result.
    """

    copied: int = 0
    there: int = 0
    skipped: int = 0
    records: Counter[str] = field(default_factory=lambda: Counter({kind.folder: 0 for kind in KINDS}))
    damaged: list[Damaged] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)


def merge(sources: Sequence[Path], into: Path, say: Callable[[str], object]) -> Merged:
    """Copy the content of stores, which are only read, into another one, whose finished runs stay.

    It is a UserError if a source is not a store or the destination cannot be written, RunFailed if the disk is full.
    """
    for source in sources:
        if not source.is_dir():
            raise no_store(source, "name an existing one")
    present = {run.run_id: run for run in Store(into).runs() if run.finished}
    merged, begun = Merged(), time.monotonic()
    with making(into, "name another DEST"):
        for source in dict.fromkeys(source.resolve() for source in sources):
            blocks = list(blocks_in(source))
            merged.notes += [f"{source} has no runs"] * (not blocks)
            for n, block in enumerate(blocks):
                if time.monotonic() - begun > _SECONDS:
                    begun = time.monotonic()
                    say(f"bench: {source}: {n} of {len(blocks)} folders, {counted(merged.copied, 'run')} copied")
                try:
                    _merge_block(block, into, present, merged)
                except Damaged as error:
                    merged.damaged.append(error)
            for record in [record for kind in KINDS for record in reports_in(source, kind).values()]:
                _merge_report(record, into, merged)
    return merged


def _merge_block(block: Block | Damaged, into: Path, present: dict[str, RunResult], merged: Merged) -> None:
    """Copy the runs of a finished block that the destination lacks; `present` has its finished runs by id."""
    if isinstance(block, Damaged):
        raise block
    if not block.done:
        merged.notes.append(f"{block.folder} {'is in training' if block.busy else 'has not finished'}")
        merged.skipped += len(block.runs)
        return
    new = [run_id for run_id in block.runs if run_id not in present]
    rest = block.runs.keys() - {*new}
    merged.differing += sorted(run_id for run_id in rest if block.runs[run_id].outcome != present[run_id].outcome)
    merged.there += len(rest)
    if not new:
        return
    target = into / name_of(new)
    content = [(block.runs[run_id], block.tables(run_id)) for run_id in new]
    try:
        with new_results(target, RunBusy(f"{target} is in training")) as out:
            if Store(into).finished_all(new):
                return  # another process has just copied some; the same command copies the rest
            write_block(out, content)
    except RunBusy as error:
        merged.notes.append(str(error))
        merged.skipped += len(new)
    else:
        merged.copied += len(new)
        present |= {run_id: block.runs[run_id] for run_id in new}


def _merge_report(record: Record | Damaged, into: Path, merged: Merged) -> None:
    """Copy a record, if it outweighs the destination's; a different study of its name stays beside it."""
    if isinstance(record, Damaged):
        merged.damaged.append(record)
        return
    path = record.path(into)
    for target in (path, path.with_stem(f"{path.stem}-{hashlib.sha256(record.subject.encode()).hexdigest()[:8]}")):
        stored = None
        with suppress(FileNotFoundError, Damaged):
            stored = read(target, type(record))
        if stored is None or stored.subject == record.subject:
            if stored is None or record.weight > stored.weight:
                write_json(target, vars(record), indent=1)
                merged.records[record.folder] += 1
            return
