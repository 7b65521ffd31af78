"""Merging stores: `bench merge` copies the results that the destination lacks.

Only records and tables that can be read are copied. Each block appears by one rename, under its lock, so the process
may be killed at any time; the same command continues. Nothing is written if nothing is new.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.errors import RunBusy
from bench.progress import doing
from bench.store.block import Block, blocks_in, name_of
from bench.store.files import Damaged, disk_errors, write_json
from bench.store.record import RunResult
from bench.store.reports import KINDS, Record, StudyRecord, read_report, reports_in
from bench.store.store import Store
from bench.store.stores import no_store
from bench.store.writer import new_results, write_block


@dataclass
class Merged:
    """Result of a merge: how many runs were copied, existed already, or were skipped."""

    copied: int = 0
    there: int = 0
    skipped: int = 0
    # How many records of studies and of `bench check` were copied, by folder.
    records: Counter[str] = field(default_factory=lambda: Counter({kind.folder: 0 for kind in KINDS}))
    damaged: list[Damaged] = field(default_factory=list)  # unreadable parts of the sources
    notes: list[str] = field(default_factory=list)  # why runs were skipped
    differing: list[str] = field(default_factory=list)  # runs that the destination keeps, with another result


def merge(sources: Sequence[Path], into: Path) -> Merged:
    """Copy the content of stores, which are only read, into another one, whose finished runs stay.

    It is a UserError if a source is not a store or the destination cannot be written, RunFailed if the disk is full.
    """
    for source in sources:
        if not source.is_dir():
            raise no_store(source, "name an existing one")
    present, merged = {run.run_id: run for run in Store(into).runs() if run.finished}, Merged()
    with disk_errors(into, "name another DEST"), doing("merging"):
        for source in dict.fromkeys(source.resolve() for source in sources):
            blocks = list(blocks_in(source))
            if not any(isinstance(block, Block) for block in blocks):
                merged.notes.append(f"{source} has no runs")
            for part in [*blocks, *reports_in(source)]:
                try:
                    if isinstance(part, Damaged):
                        raise part
                    if isinstance(part, Block):
                        _merge_block(part, into, present, merged)
                    else:
                        _merge_report(part, into, merged)
                except Damaged as error:
                    merged.damaged.append(error)
    return merged


def _merge_block(block: Block, into: Path, present: dict[str, RunResult], merged: Merged) -> None:
    """Copy the runs of a finished block that the destination lacks; `present` has its finished runs by id."""
    new = [run_id for run_id in block.runs if run_id not in present]
    kept = block.runs.keys() - {*new}
    try:
        if not block.done:
            raise RunBusy(f"{block.folder} {'is in training' if block.busy else 'has not finished'}")
        merged.differing += sorted(run_id for run_id in kept if block.runs[run_id].outcome != present[run_id].outcome)
        merged.there += len(kept)
        if not new:
            return
        target, content = into / name_of(new), [(block.runs[run_id], block.tables(run_id)) for run_id in new]
        with new_results(target, RunBusy(f"{target} is in training")) as out:
            if Store(into).finished_all(new):
                return  # another process has just copied some; the same command copies the rest
            write_block(out, content)
        merged.copied += len(new)
        present |= {run_id: block.runs[run_id] for run_id in new}
    except RunBusy as error:
        merged.notes.append(str(error))
        merged.skipped += len(new if block.done else block.runs)


def _merge_report(record: Record, into: Path, merged: Merged) -> None:
    """Copy a record that the destination lacks, or has with fewer trials; another study of its name stays beside it."""
    path = record.path(into)
    with suppress(FileNotFoundError, Damaged):
        stored = read_report(path, type(record))
        if not isinstance(record, StudyRecord) or not isinstance(stored, StudyRecord):
            return
        if stored.subject != record.subject:
            path = path.with_stem(f"{path.stem}-{hashlib.sha256(record.subject.encode()).hexdigest()[:8]}")
            stored = read_report(path, StudyRecord)
        if record.weight <= stored.weight:
            return
    write_json(path, vars(record), indent=1)
    merged.records[record.folder] += 1
