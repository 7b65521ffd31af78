"""The store: a folder of runs, merged by copying, safe to share.

A run is a folder with `run.json`, `curve.parquet` and, where the task measures something, `measurements.parquet`.
A run in progress holds a lock on `run.lock`, appends its tables to `curve.jsonl` and `measurements.jsonl` and keeps
`last.ckpt`. The lock goes with its process, however that ends, so a run that says `running` and is not locked was killed.

Runs that were trained together lie in one folder, a pack (`bench/store/packs.py`). A run's own folder comes before the packs.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.store.files import disk_errors, take_lock, unlocked, write_json
from bench.store.packs import PackFolder, Packs, UnfinishedPack
from bench.store.record import FINISHED, RunResult, decode
from bench.store.tables import CURVE_FIELDS, TABLES, GrowingTable, read_tables

STUDIES, CHECKS = "studies", "checks"
"""The folders of a store with records that are no runs: of studies (`bench.store.reports.StudyRecord`) and of `bench check`."""


class Store:
    """A folder of runs.

    Args:
        folder: made when the first run begins.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def runs(self) -> Iterator[RunResult]:
        """All readable runs, by name; runs whose process is gone are marked `killed` on the way."""
        own = {path.parent.name for path in self.folder.glob("*/run.json")}
        for run_id in sorted(own | self._packs.run_ids()):
            result = self.get(run_id)
            if result is not None:
                yield result

    def repeated(self) -> dict[str, list[RunResult]]:
        """Runs that lie in several places, with the record in each; `get` gives the first of them."""
        found, ids = self._packs.repeated(), self._packs.run_ids()
        for run_id in ids.intersection(path.parent.name for path in self.folder.glob("*/run.json")):
            own, packed = _read(self.folder / run_id / "run.json"), self._packs.find(run_id)
            if own is not None and packed is not None:
                found[run_id] = [own, *found.get(run_id, [packed[1]])]
        return found

    def unreadable(self) -> list[Path]:
        """Folders of runs and packs whose records are missing or damaged, and packs whose tables are."""
        packs = {*self._packs.folders(), self.folder / STUDIES, self.folder / CHECKS}
        own = []
        for path in self.folder.glob("*/"):
            if path not in packs and path.is_dir() and _read(path / "run.json") is None:
                with unlocked(path) as free:  # a run that is just beginning has no record yet
                    own += [path] * (free and _read(path / "run.json") is None)
        return sorted(own + self._packs.damaged())

    def get(self, run_id: str) -> RunResult | None:
        """The run as it is now, or None if there is none or its record cannot be read."""
        result = _read(self.folder / run_id / "run.json")
        if result is None:
            found = self._packs.find(run_id)
            return found[1] if found else None
        if result.status != "running":
            return result
        with unlocked(self.folder / run_id) as dead:
            if dead:
                result = _read(self.folder / run_id / "run.json") or result  # it may have ended in between
                if result.status == "running":
                    result.status = "killed"
                    result.reason = self._killed_reason(run_id)
                    with suppress(OSError):  # a store that we may only read shows the truth all the same
                        self.write(result)
        return result

    def place(self, run_id: str) -> Path:
        """The folder where the run lies, or would lie: its own, or a pack."""
        own = self.folder / run_id
        found = None if _read(own / "run.json") else self._packs.find(run_id)
        return found[0] if found else own

    def tables(self, run_id: str) -> dict[str, dict[str, Any]]:
        """The run's tables by name, each a numpy column by name; NaN stands for a value that is not finite.

        Raises:
            UserError: a table is damaged.
        """
        import pyarrow as pa

        place = self.place(run_id)
        try:
            tables = read_tables(place) if place.name == run_id else self._packs.tables(place, run_id)
            for name, table in tables.items():
                if "step" not in table:
                    raise ValueError(f"{name} has no column step")
            return tables
        except (OSError, ValueError, pa.ArrowException) as error:
            raise UserError(
                f"cannot read the tables of run {run_id} in {place}: {str(error).partition(chr(10))[0]}; copy the folder"
                " again from where it came, or delete it and train again"
            ) from None

    def finished(self, run_id: str) -> RunResult | None:
        """The run, if it is there and needs no more training."""
        result = self.get(run_id)
        return result if result is not None and result.status in FINISHED else None

    def _killed_reason(self, run_id: str) -> str:
        if self.checkpoint(run_id).is_file():
            return "its process ended without a word"
        return "its process ended without a word, before its first checkpoint"

    def checkpoint(self, run_id: str) -> Path:
        """Where an interrupted run's state is, if it got so far."""
        return self.folder / run_id / "last.ckpt"

    def write(self, result: RunResult) -> None:
        """Write a run's record in one atomic step."""
        write_json(self.folder / result.run_id / "run.json", vars(result), indent=1)

    def begin(self, result: RunResult, *, resume: bool = False) -> "RunFolder":
        """Take the run's folder for this process and record that it runs.

        Raises:
            RunBusy: another process trains this run now.
            UserError: the store cannot be written.
        """
        folder = self.folder / result.run_id
        tables = [f"{table}.{kind}" for table in TABLES for kind in ("jsonl", "parquet")]
        lock = take_lock(folder, f"run {result.run_id}")
        try:
            with disk_errors(self.folder):
                for name in ("last.tmp", "traceback.txt", *([] if resume else [*tables, "last.ckpt"])):
                    (folder / name).unlink(missing_ok=True)
                self.write(result)
                return RunFolder(self, result, folder, lock)
        except BaseException:
            os.close(lock)
            raise

    def begin_pack(self, configs: Mapping[str, dict[str, Any]]) -> PackFolder:
        """Take the pack of these runs for this process; what a killed process left at its checkpoint is kept.

        Args:
            configs: resolved configurations by run id, in the order of the lanes.

        Raises:
            RunBusy: another process trains this pack now.
            UserError: the store cannot be written.
        """
        return self._packs.begin(configs)

    def unfinished_packs(self) -> list[UnfinishedPack]:
        """Packs that are being trained, or were when their process ended."""
        return self._packs.unfinished()

    @property
    def _packs(self) -> Packs:
        return Packs(self.folder)


class RunFolder:
    """The folder of the run that this process trains."""

    def __init__(self, store: Store, result: RunResult, folder: Path, lock: int) -> None:
        self.store, self.result, self.folder = store, result, folder
        self.checkpoint = store.checkpoint(result.run_id)
        self._lock = lock
        with disk_errors(self.store.folder):
            self._measurements, self._curve = (GrowingTable(folder, name) for name in TABLES)

    def append_curve(self, rows: Sequence[Sequence[float | None]]) -> None:
        """Add rows (step, loss, gradient norm, raw step, applied step); only a torn last line can be lost.

        Raises:
            RunFailed: the disk is full or gone.
        """
        with disk_errors(self.store.folder):
            self._curve.append(CURVE_FIELDS, rows)

    def append_measurements(self, names: Sequence[str], rows: Sequence[Sequence[float | None]]) -> None:
        """Add rows (step, a value for each name); the names are the same every time.

        Raises:
            RunFailed: the disk is full or gone.
        """
        with disk_errors(self.store.folder):
            self._measurements.append(("step", *names), rows)

    def truncate(self, steps: int) -> None:
        """Forget what comes after this step: it will be trained again."""
        with disk_errors(self.store.folder):
            self._curve.truncate(steps)
            self._measurements.truncate(steps)

    def end(self, *, keep_checkpoint: bool) -> None:
        """Close the run: tables to Parquet, last record, lock freed."""
        try:
            self._curve.end()
            self._measurements.end()
            self.store.write(self.result)
            if not keep_checkpoint:
                self.checkpoint.unlink(missing_ok=True)
        finally:
            os.close(self._lock)


def _read(path: Path) -> RunResult | None:
    try:
        return decode(path.read_bytes())
    except OSError:
        return None
