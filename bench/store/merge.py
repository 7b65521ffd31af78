"""Merging stores: `bench merge` copies the results that the destination lacks.

Only files that the suite writes are copied, and only from blocks with valid records and tables. Copies are written to
a hidden folder of the destination's block, under its lock, and then renamed, so the process may be killed at any time;
the same command continues. Nothing is written if nothing is new.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.errors import RunBusy, UserError
from bench.store.block import RUNS, Block, blocks_in, name_of, results_in
from bench.store.files import copy, making, replacing
from bench.store.load import Damaged, is_there, read_bytes
from bench.store.record import RunResult
from bench.store.reports import KINDS, Record, read_report, reports_in
from bench.store.store import Store
from bench.store.stores import no_store
from bench.store.tables import TABLES
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
    """Copy the content of stores, which are only read, into another one.

    A finished run of the destination stays, whatever the sources have; only an equal run with its whole curve replaces
    one with a thinned curve.

    Raises:
        UserError: a source is not a store; or the destination is a source, is inside one, or cannot be written.
        RunFailed: the disk is full.
    """
    into = into.resolve()
    for source in sources:
        if not source.is_dir():
            raise no_store(source, "name an existing one")
        if source.resolve() == into:
            raise UserError(f"{source} is both source and destination; change one of them")
        if source.resolve() in into.parents:
            raise UserError(
                f"{into} is inside the store {source}, which would read it as a damaged run; choose a folder outside"
            )
    for folder in (*sources, into):
        if results_in(folder) is not None or is_there(folder / RUNS):
            raise UserError(f"{folder} is the folder of a run; name its store")
    present = {run.run_id: run for run in Store(into).runs() if run.finished}
    merged, begun = Merged(), time.monotonic()
    for source in dict.fromkeys(source.resolve() for source in sources):
        blocks = list(blocks_in(source))
        reports = [item for kind in KINDS for item in reports_in(source, kind).items()]
        for n, block in enumerate(blocks):
            if time.monotonic() - begun > _SECONDS:
                begun = time.monotonic()
                say(f"bench: {source}: {n} of {len(blocks)} folders, {counted(merged.copied, 'run')} copied")
            with making(into, "name another DEST"):
                _merge_block(block, into, present, merged)
        for path, record in reports:
            with making(into, "name another DEST"):
                _merge_report(path, record, into, merged)
    return merged


def _merge_block(block: Block | Damaged, into: Path, present: dict[str, RunResult], merged: Merged) -> None:
    """Copy the runs of a finished block that the destination lacks; `present` has its finished runs by id."""
    if isinstance(block, Damaged):
        merged.damaged.append(block)
        return
    merged.damaged += block.damaged
    if not block.done:
        merged.notes.append(f"{block.folder} {'is in training' if block.busy else 'has not finished'}")
        merged.skipped += len(block.runs)
        return
    new = [run_id for run_id, run in block.runs.items() if _is_better(run, present.get(run_id))]
    rest = block.runs.keys() - {*new}
    merged.differing += sorted(run_id for run_id in rest if block.runs[run_id].outcome != present[run_id].outcome)
    merged.there += len(rest)
    if not new:
        return
    target = into / name_of(new)
    try:
        block.check_tables()
        with new_results(target, RunBusy(f"{target} is in training")) as out:
            meanwhile = Store(into).finished_all(new)
            if not all(_is_better(block.runs[run_id], meanwhile.get(run_id)) for run_id in new):
                return  # another process has just copied some; the same command copies the rest
            if len(new) == block.total:
                for name in (RUNS, *(f"{table}.parquet" for table in TABLES)):
                    _take(block.at / name, out / name)
            else:  # the destination keeps its other runs
                write_block(out, [(block.runs[run_id], block.tables(run_id)) for run_id in new])
        merged.copied += len(new)
        present |= {run_id: block.runs[run_id] for run_id in new}
    except Damaged as error:
        merged.damaged.append(error)
    except RunBusy as error:
        merged.notes.append(str(error))
        merged.skipped += len(new)


def _is_better(run: RunResult, stored: RunResult | None) -> bool:
    """Whether a run replaces the destination's: it is the only finished one, or has the whole curve of its result."""
    return stored is None or (stored.thinned and not run.thinned and run.outcome == stored.outcome)


def _merge_report(path: Path, record: Record | Damaged, into: Path, merged: Merged) -> None:
    """Copy the record of a study or of `bench check`, if it outweighs the destination's."""
    if isinstance(record, Damaged):
        merged.damaged.append(record)
        return
    for target in record.places(into):
        stored = None
        with suppress(FileNotFoundError, Damaged):
            stored = read_report(target, type(record))
        if stored is None or (stored.what == record.what and record.weight > stored.weight):
            text = read_bytes(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as temporary:
                temporary.write_bytes(text)
            merged.records[record.folder] += 1
            return
        if stored.what == record.what:
            return


def _take(path: Path, to: Path) -> None:
    """Copy a regular file of a source, if it exists; if it cannot be read, it is `Damaged`."""
    if is_there(path) is None:
        return
    if not os.access(path, os.R_OK):
        raise Damaged(path, "it cannot be read")
    copy(path, to)
