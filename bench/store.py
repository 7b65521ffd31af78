"""The store: a folder of runs, each a folder with `run.json` and `curve.parquet`. Merged by copying, safe to share.

A run in progress holds a lock on `run.lock`, appends its curve to `curve.jsonl` and keeps `last.ckpt`. The lock goes
with its process, however that ends, so a run that says `running` and is not locked was killed.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from bench.errors import RunFailed, UserError

Status = Literal["running", "completed", "diverged", "timeout", "failed", "killed"]
FINISHED = ("completed", "diverged", "timeout")
RESUMABLE = ("killed", "failed")
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
        metrics: all values, by "final" and "best", then split, then name.
        validations: by evaluation: step, seconds of training, values on the selection split.
        steps: optimizer steps made, of which `skipped` changed nothing (a gradient overflowed under a GradScaler).
        steps_to_target, seconds_to_target: when the target was first reached, or None.
        wall_s: seconds from first step to end, evaluation included; train_s: without evaluation.
        cap_share: share of steps whose applied step was below the raw one.
        part: what part of the data was used, or None for the whole.
        memory: peak bytes on host and device.
        environment: machine, devices, threads.
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
    metrics: dict[str, dict[str, float | None]] = field(default_factory=dict)
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


class Store:
    """A folder of runs.

    Args:
        folder: made when the first run begins.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def runs(self) -> Iterator[RunResult]:
        """All readable runs, by name; runs whose process is gone are marked `killed` on the way."""
        if self.folder.is_dir():
            for path in sorted(self.folder.glob("*/run.json")):
                result = self.get(path.parent.name)
                if result is not None:
                    yield result

    def unreadable(self) -> list[Path]:
        """Run folders whose record is missing or damaged."""
        return [p for p in sorted(self.folder.glob("*/")) if p.is_dir() and _read(p / "run.json") is None]

    def get(self, run_id: str) -> RunResult | None:
        """The run as it is now, or None if there is none or its record cannot be read."""
        result = _read(self.folder / run_id / "run.json")
        if result is None or result.status != "running":
            return result
        with self._unlocked(run_id) as dead:
            if dead:
                result = _read(self.folder / run_id / "run.json") or result  # it may have ended in between
                if result.status == "running":
                    result.status = "killed"
                    result.reason = self._killed_reason(run_id)
                    with suppress(OSError):  # a store that we may only read shows the truth all the same
                        self.write(result)
        return result

    def _killed_reason(self, run_id: str) -> str:
        if self.checkpoint(run_id).is_file():
            return "its process ended without a word"
        return "its process ended without a word, before its first checkpoint"

    def checkpoint(self, run_id: str) -> Path:
        """Where an interrupted run's state is, if it got so far."""
        return self.folder / run_id / "last.ckpt"

    def write(self, result: RunResult) -> None:
        """Write a run's record in one atomic step."""
        path = self.folder / result.run_id / "run.json"
        temporary = path.with_name(f"run.json.{uuid4().hex}.tmp")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(plain(asdict(result)), file, indent=1, allow_nan=False)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def begin(self, result: RunResult, *, resume: bool = False) -> "RunFolder":
        """Take the run's folder for this process and record that it runs.

        Raises:
            UserError: the store cannot be written, or another process trains this run now.
        """
        folder = self.folder / result.run_id
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / "run.lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise UserError(
                f"cannot write to the store {self.folder}: {error.strerror}; choose another with --store DIR"
            ) from None
        if not _take(lock):
            os.close(lock)
            raise UserError(f"run {result.run_id} is being trained by another process now")
        try:
            if not resume:
                for name in ("curve.jsonl", "curve.parquet", "last.ckpt"):
                    (folder / name).unlink(missing_ok=True)
            for name in ("last.tmp", "traceback.txt"):
                (folder / name).unlink(missing_ok=True)
            self.write(result)
            return RunFolder(self, result, folder, lock)
        except (OSError, RunFailed) as error:
            os.close(lock)
            if isinstance(error, RunFailed):
                raise
            raise RunFailed(f"cannot write to the store {self.folder}: {error.strerror}") from None

    @contextmanager
    def _unlocked(self, run_id: str) -> Iterator[bool]:
        """Whether no process trains the run; while the block lasts, none can begin to."""
        try:
            handle = os.open(self.folder / run_id / "run.lock", os.O_RDONLY)
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


class RunFolder:
    """The folder of the run that this process trains."""

    def __init__(self, store: Store, result: RunResult, folder: Path, lock: int) -> None:
        self.store, self.result, self.folder = store, result, folder
        self.checkpoint = store.checkpoint(result.run_id)
        self._lock = lock
        self._rewrite_curve(read_curve(folder))

    def append_curve(self, rows: Sequence[Sequence[float | None]]) -> None:
        """Add rows (step, loss, gradient norm, raw step, applied step); only a torn last line can be lost.

        Raises:
            RunFailed: the disk is full or gone.
        """
        # As json.dumps would write it, in a third of the time.
        lines = (
            "[" + ", ".join([repr(x) if x is not None and isfinite(x) else "null" for x in row]) + "]" for row in rows
        )
        try:
            self._curve.write("".join(f"{line}\n" for line in lines))
            self._curve.flush()
        except OSError as error:
            raise RunFailed(f"cannot write to the store {self.store.folder}: {error.strerror}") from None

    def truncate_curve(self, steps: int) -> None:
        """Forget the curve from this step on: it will be trained again."""
        self._curve.close()
        self._rewrite_curve([row for row in read_curve(self.folder) if row[0] <= steps])

    def _rewrite_curve(self, rows: Sequence[Sequence[float | None]]) -> None:
        """Go on with these rows as all of the curve; the old one stands until they are written."""
        temporary = self.folder / "curve.jsonl.tmp"
        self._curve = temporary.open("w", encoding="utf-8")
        self.append_curve(rows)
        temporary.replace(self.folder / "curve.jsonl")
        (self.folder / "curve.parquet").unlink(missing_ok=True)

    def end(self, *, keep_checkpoint: bool) -> None:
        """Close the run: curve to Parquet, last record, lock freed."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            self._curve.close()
            columns = list(zip(*read_curve(self.folder), strict=True)) or [()] * len(CURVE_FIELDS)
            kinds = [pa.int64()] + [pa.float64()] * (len(CURVE_FIELDS) - 1)
            arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
            temporary = self.folder / "curve.parquet.tmp"
            pq.write_table(pa.table(dict(zip(CURVE_FIELDS, arrays, strict=True))), temporary, compression="zstd")
            temporary.replace(self.folder / "curve.parquet")
            (self.folder / "curve.jsonl").unlink(missing_ok=True)
            self.store.write(self.result)
            if not keep_checkpoint:
                self.checkpoint.unlink(missing_ok=True)
        finally:
            os.close(self._lock)


def read_curve(folder: Path) -> list[tuple[Any, ...]]:
    """A run's curve as tuples of `CURVE_FIELDS`; None stands for a value that is not finite."""
    lines, table = folder / "curve.jsonl", folder / "curve.parquet"
    if lines.is_file():
        rows = []
        for line in lines.read_text("utf-8").splitlines():
            try:
                rows.append(tuple(json.loads(line)))
            except ValueError:
                break  # the last line of a killed run
        return [row for row in rows if len(row) == len(CURVE_FIELDS)]
    if table.is_file():
        import pyarrow.parquet as pq

        columns = pq.read_table(table).to_pydict()
        return list(zip(*(columns[name] for name in CURVE_FIELDS), strict=True))
    return []


def plain(value: Any) -> Any:
    """The value as strict JSON can hold it: NaN becomes None, an infinity the word that YAML and pydantic read back."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not isfinite(value):
        return None if value != value else str(value)
    return str(value) if isinstance(value, Path) else value


def _take(lock: int) -> bool:
    for _ in range(20):  # a reader that looks whether the run is alive holds the lock for an instant
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(0.01)
    return False


def _read(path: Path) -> RunResult | None:
    try:
        return RunResult(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None
