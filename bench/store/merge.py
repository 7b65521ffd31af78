"""Merging stores: `bench merge` copies the results that the destination lacks.

Only records and tables that can be read are copied. Each block appears by one rename, under its lock, so the process
may be killed at any time; the same command continues. Nothing is written if nothing is new.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.errors import RunBusy
from bench.progress import doing
from bench.store.block import StoredBlock, block_name
from bench.store.files import Damaged, Lock, disk_errors
from bench.store.reports import KINDS, reports_in, write_report
from bench.store.stores import Contents, Stores
from bench.store.writer import new_results, write_block


@dataclass
class Merged:
    """Result of a merge: how many runs were copied, existed already, or were skipped."""

    copied: int = 0
    existing: int = 0
    skipped: int = 0
    records: Counter[str] = field(default_factory=lambda: Counter({kind.folder: 0 for kind in KINDS}))  # copied ones
    damaged: list[Damaged] = field(default_factory=list)  # unreadable parts of the sources
    notes: list[str] = field(default_factory=list)  # why runs were skipped
    differing: list[str] = field(default_factory=list)  # runs that the destination keeps, with another result


def merge(sources: Sequence[Path], into: Path) -> Merged:
    """Copy the content of stores, which are only read, into another one, whose finished runs and records stay.

    It is a UserError if a source is not a store or the destination cannot be written, RunFailed if the disk is full.
    """
    stores, merged, new = Stores(sources), Merged(), dict[Path, StoredBlock]()
    present = Contents([into]).finished
    reports = {report.path(into): report for report in reports_in(into) if not isinstance(report, Damaged)}
    with disk_errors(into, "name another DEST"), doing("merging"):
        merged.damaged, merged.differing = list(stores.damaged), list(stores.conflicts)
        for run_id, block in stores.blocks.items():
            if not block.done:
                merged.notes.append(f"{block.folder} {'is in training' if block.busy else 'has not finished'}")
                merged.skipped += 1
            elif run_id in present:
                merged.existing += 1
                merged.differing += [run_id] * (block.runs[run_id].outcome != present[run_id].outcome)
            else:
                new[block.folder] = block
        for block in new.values():
            lanes = [run_id for run_id in block.runs if stores.blocks[run_id] is block and run_id not in present]
            target = into / block_name(lanes)
            try:
                content = [(block.runs[run_id], block.tables(run_id)) for run_id in lanes]
                with Lock(target):
                    if not Contents([into], lanes).finished:  # else another process has just copied some
                        with new_results(target) as out:
                            write_block(out, content)
                        merged.copied += len(lanes)
            except Damaged as error:
                merged.damaged.append(error)
            except RunBusy as error:
                merged.notes.append(str(error))
                merged.skipped += len(lanes)
        for report in (*stores.studies, *stores.checks):
            if (path := report.path(into)) not in reports:
                write_report(into, report)
                merged.records[report.folder] += 1
            elif reports[path] != report:
                merged.notes.append(f"{path} differs from the one to copy; it is kept")
    return merged
