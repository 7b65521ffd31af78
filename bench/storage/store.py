"""The store: a folder of runs, merged by copying, safe to share.

A run is a folder with `run.json`, `curve.parquet` and, where the task measures something, `measurements.parquet`.
A run in progress holds a lock on `run.lock`, appends its tables to `curve.jsonl` and `measurements.jsonl` and keeps
`last.ckpt`. The lock goes with its process, however that ends, so a run that says `running` and is not locked was killed.

Runs that were trained together lie in one folder, a pack (`bench/storage/packs.py`). A run's own folder comes before the packs.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from bench.errors import RunBusy, RunFailed, UserError

if TYPE_CHECKING:
    from bench.storage.packs import PackFolder, Packs, UnfinishedPack

Status = Literal["running", "completed", "diverged", "timeout", "failed", "killed"]
FINISHED = ("completed", "diverged", "timeout")
RESUMABLE = ("killed", "failed")
TABLES = ("measurements", "curve")  # a column that both have is read from the first
STUDIES, CHECKS = "studies", "checks"
"""The folders of a store with records that are no runs: of studies (`bench.storage.stores.StudyRecord`) and of `bench check`."""
CURVE_FIELDS = ("step", "loss", "grad_norm", "raw_step", "applied_step")


@dataclass
class RunResult:
    """What is known of a run. Every number is finite; what does not exist is None.

    Attributes:
        run_id: `task-opt-hash`.
        status: how it ended; `running` while it goes on.
        reason: one sentence on the status, or None.
        config: the resolved configuration.
        versions: of the suite, its libraries, and the specs.
        metric: name of the metric that is compared, and of the split it is reported on (`accuracy`, `test`).
        final, best: that metric at the last step and at the best step on the selection split.
        best_step: that step.
        metrics: all values, by "final" and "best", then name; those on other splits (`TaskData.also`) by split, then name.
        validations: by evaluation: step, seconds of training, values on the selection split.
        steps: optimizer steps made, of which `skipped` changed nothing (a gradient overflowed under a GradScaler).
        steps_to_target, seconds_to_target: when the target was first reached, or None.
        wall_s: seconds from first step to end, evaluation included; train_s: without evaluation.
        cap_share: share of steps whose applied step was below the raw one.
        part: what part of the data was used, or None for the whole.
        memory: peak bytes on host and device, of the process; lanes share it.
        environment: machine, devices, threads.
        facts: what is known of the instance of the problem (`TaskData.facts`).
        engine: what trained it: `lightning`, a run for itself, or `lanes`, many runs of a task as one program.
        tuned_by: the study that its hyperparameters were taken from (`--tuned`), or None.
    """

    run_id: str
    config: dict[str, Any]
    status: Status = "running"
    reason: str | None = None
    versions: dict[str, Any] = field(default_factory=dict)
    metric: str = ""
    split: str = ""
    final: float | None = None
    best: float | None = None
    best_step: int | None = None
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    validations: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    skipped: int = 0
    steps_to_target: int | None = None
    seconds_to_target: float | None = None
    wall_s: float = 0.0
    train_s: float = 0.0
    cap_share: float | None = None
    part: str | None = None
    memory: dict[str, int] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    engine: str = "lightning"
    tuned_by: str | None = None

    @property
    def machine(self) -> str:
        """The type of machine and engine that it was trained with, as far as seconds depend on it."""
        env, trainer = self.environment, self.config.get("trainer", {})
        where = env.get("gpu") or f"{env.get('cpu') or 'unknown machine'}, {env.get('threads') or 'unknown'} threads"
        devices = trainer.get("devices", 1) * trainer.get("num_nodes", 1)
        return f"{where}, {self.engine}" + f", {devices} devices" * (devices > 1)

    @property
    def outcome(self) -> tuple[Any, ...]:
        """What two records of one run should agree in."""
        return self.status, self.steps, self.final, self.best, self.best_step, self.metrics

    @property
    def unsolved(self) -> dict[str, str]:
        """The problems of the instance that have no solution to compare with, and why, by name."""
        facts = {name: fact for name, fact in self.facts.items() if isinstance(fact, dict)}
        return {name: str(fact.get("reason")) for name, fact in facts.items() if fact.get("solved") is False}


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

    def begin_pack(self, configs: Mapping[str, dict[str, Any]]) -> "PackFolder":
        """Take the pack of these runs for this process; what a killed process left at its checkpoint is kept.

        Args:
            configs: resolved configurations by run id, in the order of the lanes.

        Raises:
            RunBusy: another process trains this pack now.
            UserError: the store cannot be written.
        """
        return self._packs.begin(configs)

    def unfinished_packs(self) -> "list[UnfinishedPack]":
        """Packs that are being trained, or were when their process ended."""
        return self._packs.unfinished()

    @property
    def _packs(self) -> "Packs":
        from bench.storage.packs import Packs  # which is built from the parts of this module

        return Packs(self.folder)


class RunFolder:
    """The folder of the run that this process trains."""

    def __init__(self, store: Store, result: RunResult, folder: Path, lock: int) -> None:
        self.store, self.result, self.folder = store, result, folder
        self.checkpoint = store.checkpoint(result.run_id)
        self._lock = lock
        with disk_errors(self.store.folder):
            self._measurements, self._curve = (_GrowingTable(folder, name) for name in TABLES)

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


class _GrowingTable:
    """A table that grows in `name.jsonl`, a list of names and then a list for each row, and ends as `name.parquet`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._rewrite(*_read_table(folder, name))

    def append(self, names: Sequence[str], rows: Sequence[Sequence[float | None]]) -> None:
        """Add rows; the names head the file."""
        if not self.names and names:
            self.names = tuple(names)
            self._file.write(json.dumps(self.names) + "\n")
        if rows:
            check_names(self.folder / self.name, self.names, names)
        # As json.dumps would write it, in a third of the time.
        lines = (
            "[" + ", ".join([repr(x) if x is not None and isfinite(x) else "null" for x in row]) + "]" for row in rows
        )
        self._file.write("".join(f"{line}\n" for line in lines))
        self._file.flush()

    def truncate(self, steps: int) -> None:
        """Forget the rows after this step."""
        self._file.close()
        names, rows = _read_table(self.folder, self.name)
        self._rewrite(names, [row for row in rows if row[0] <= steps])

    def _rewrite(self, names: Sequence[str], rows: Sequence[Sequence[float | None]]) -> None:
        """Go on with these rows as all of the table; the old one stands until they are written."""
        temporary = self.folder / f"{self.name}.jsonl.tmp"
        self._file = temporary.open("w", encoding="utf-8")
        self.names: tuple[str, ...] = ()
        self.append(names, rows)
        temporary.replace(self.folder / f"{self.name}.jsonl")
        (self.folder / f"{self.name}.parquet").unlink(missing_ok=True)

    def end(self) -> None:
        """Close it as Parquet; a table without rows leaves nothing."""
        self._file.close()
        names, rows = _read_table(self.folder, self.name)
        if names:
            columns = list(zip(*rows, strict=True)) or [()] * len(names)
            write_parquet(self.folder / f"{self.name}.parquet", dict(zip(names, columns, strict=True)))
        (self.folder / f"{self.name}.jsonl").unlink(missing_ok=True)


def write_parquet(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write a table in one atomic step. Columns of numbers are float64, but `step` and `seed` int64; others are text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def kind(name: str, values: Sequence[Any]) -> Any:
        if name in ("step", "seed"):
            return pa.int64()
        return pa.string() if len(values) and isinstance(values[0], str) else pa.float64()

    table = pa.table({name: pa.array(values, kind(name, values)) for name, values in columns.items()})
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def check_names(path: Path, begun: Sequence[str], names: Sequence[str]) -> None:
    """Refuse rows of other columns than a table was begun with.

    Raises:
        RunFailed: the names differ.
    """
    if tuple(names) != tuple(begun):
        raise RunFailed(
            f"{path} was begun with the columns {', '.join(begun)}, and the task now gives {', '.join(names)};"
            " train again with --rerun"
        )


def read_curve(folder: Path) -> list[tuple[Any, ...]]:
    """A run's curve as tuples of `CURVE_FIELDS`; None stands for a value that is not finite."""
    return _read_table(folder, "curve")[1]


def read_tables(folder: Path) -> dict[str, dict[str, Any]]:
    """The tables in a run's own folder, as `Store.tables` gives them."""
    import numpy as np

    tables = {}
    for table in TABLES:
        path = folder / f"{table}.parquet"
        if path.is_file() and not (folder / f"{table}.jsonl").is_file():
            tables[table] = _columns(path)
            continue
        names, rows = _read_table(folder, table)
        if names:
            tables[table] = {name: np.array([row[i] for row in rows], dtype=np.float64) for i, name in enumerate(names)}
    return tables


def _columns(path: Path) -> dict[str, Any]:
    """The columns of a table as arrays; by way of lists it would take three times the time."""
    import numpy as np
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        rows = file.read(use_threads=False)
    return {name: rows[name].to_numpy().astype(np.float64) for name in rows.column_names}


def _read_table(folder: Path, name: str) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Names and rows of a table, growing or ended; no names if there is none."""
    lines, table = folder / f"{name}.jsonl", folder / f"{name}.parquet"
    if lines.is_file():
        rows = []
        for line in lines.read_text("utf-8").splitlines():
            try:
                rows.append(tuple(json.loads(line)))
            except ValueError:
                break  # the last line of a killed run
        names, *rows = rows or [()]
        return names, [row for row in rows if len(row) == len(names)]
    if table.is_file():
        import pyarrow.parquet as pq

        columns = pq.read_table(table).to_pydict()
        return tuple(columns), list(zip(*columns.values(), strict=True))
    return (), []


def plain(value: Any) -> Any:
    """The value as strict JSON can hold it: NaN becomes None, an infinity the word that YAML and pydantic read back."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not isfinite(value):
        return None if value != value else str(value)
    return str(value) if isinstance(value, Path) else value


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, which takes the place of `path` in one atomic step once it is on the disk."""
    temporary = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any, **options: Any) -> None:
    """Write strict JSON in one atomic step."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        json.dump(plain(value), file, allow_nan=False, **options)


@contextmanager
def disk_errors(store: Path) -> Iterator[None]:
    """Make errors of the disk into the one line that a user sees.

    Raises:
        RunFailed: the disk is full or gone.
    """
    try:
        yield
    except OSError as error:
        raise RunFailed(
            f"cannot write to the store {store}: {os.strerror(error.errno) if error.errno else error}"
        ) from None


def take_lock(folder: Path, what: str) -> int:
    """Make the folder if needed and lock it for this process, until the lock is closed.

    Raises:
        RunBusy: another process holds the lock.
        UserError: the store cannot be written.
    """
    path = folder / "run.lock"
    for attempt in range(20):  # a reader that looks whether the run is alive holds the lock for an instant
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and attempt < 19:
                continue  # another has removed the folder in between
            raise UserError(
                f"cannot write to the store {folder.parent}: {error.strerror}; choose another with --store DIR"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), path.stat()):  # else its holder has just removed the folder
                return lock
        except OSError:
            pass
        os.close(lock)
        time.sleep(0.01)
    raise RunBusy(f"{what} is being trained by another process now")


@contextmanager
def unlocked(folder: Path) -> Iterator[bool]:
    """Whether no process trains what is in the folder; while the block lasts, none can begin to."""
    try:
        handle = os.open(folder / "run.lock", os.O_RDONLY)
    except OSError:
        yield True
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        free = True
    except OSError:
        free = False
    try:
        yield free
    finally:
        os.close(handle)


def decode(text: str | bytes) -> RunResult | None:
    """The record, or None if it is damaged."""
    try:
        return RunResult(**json.loads(text))
    except (ValueError, TypeError):
        return None


def _read(path: Path) -> RunResult | None:
    try:
        return decode(path.read_bytes())
    except OSError:
        return None
