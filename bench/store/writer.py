"""Training a block: the files that a process writes while it holds the block's lock."""

import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from bench.errors import RunBusy, RunFailed, UserError
from bench.store.block import CHECKPOINT, DONE, REPLACED, RUNS, TRACEBACK, name_of, read_block
from bench.store.files import disk_errors, making, remove, replacing, sync
from bench.store.load import Damaged, is_there, parse_record
from bench.store.lock import Lock
from bench.store.record import RunResult
from bench.store.tables import TABLES, Columns, Rows, can_be_columns, parts_in, read_parts, write_columns, write_part
from bench.text import strict_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class BlockWriter:
    """The block of these runs, locked for this process and ready to train.

    All methods raise RunFailed if the disk is full or gone, or the block was deleted, moved or replaced meanwhile.

    Args:
        store: its folder; created if needed.
        runs: initial records, in the order in which the block holds them.
        resume: keep the checkpoint of an interrupted process and the rows up to it.
        again: train although the block has results, which stay until new ones replace them.

    Attributes:
        folder: of the block.
        checkpoint: file of the training state; if it exists, training continues from it.

    Raises:
        RunBusy: another process is training the block, or just finished it.
        UserError: the store cannot be written, or the block has unreadable results.
        RunFailed: the disk is full.
    """

    def __init__(self, store: Path, runs: Sequence[RunResult], *, resume: bool = True, again: bool = False) -> None:
        self.store, self.runs = store, list(runs)
        self.folder = store / name_of([run.run_id for run in runs])
        self.checkpoint = self.folder / CHECKPOINT
        what = f"run {runs[0].run_id}" if len(runs) == 1 else f"the block of runs {self.folder.name}"
        with making(store):
            self._lock = Lock(self.folder, RunBusy(f"{what} is in training by another process"))
        self.close = self._lock.release
        try:
            with disk_errors(store):
                _restore_replaced(self.folder)
                if not again and os.path.lexists(self.folder / DONE):
                    self._refuse_results(RunBusy(f"{what} was just trained by another process"))
                _clear(self.folder, state=not resume)
                self._step = self._written = max((step for step, _ in parts_in(self.folder)), default=0)
                self._rows = list[Rows]()
                write_records(self.folder / RUNS, runs)
        except BaseException:
            self.close()
            raise

    def append_curve(self, rows: "NDArray[np.float64]") -> None:
        """Add the next steps: rows (S, L, 4), as `CURVE_FIELDS`, NaN if missing; the caller must not change them."""
        self._refuse_if_gone()
        self._rows.append(Rows(rows, (), rows[:0, 0, 0], rows[:0]))
        self._step += len(rows)

    def append_measurements(self, names: Sequence[str], steps: Sequence[int], values: "NDArray[np.float64]") -> None:
        """Add values of shape (K, L, M), NaN if missing, of M names (the same in every call) at K ascending steps."""
        import numpy as np

        if not names:
            return
        if not can_be_columns(names):
            raise RunFailed(
                f"a table cannot have the columns {', '.join(names)[:500]}: names must differ in more than"
                " capitals, and step, run_id and filename are reserved; rename the task's measurements"
            )
        nothing = np.empty((0, len(self.runs), 4))
        self._rows.append(Rows(nothing, tuple(names), np.array(steps, float), np.asarray(values, float)))

    def truncate(self, steps: int) -> None:
        """Drop the rows after this step: these steps will be trained again."""
        self._rows = []
        with disk_errors(self.store):
            for step, path in parts_in(self.folder):
                if step > steps:
                    path.unlink()
        self._step = self._written = steps

    def flush(self) -> None:
        """Write the rows since the last call to disk, before a checkpoint that relies on them."""
        self._refuse_if_gone()
        if self._step > self._written:
            with disk_errors(self.store):
                write_part(self.folder, self._step, Rows.joined(self._rows, len(self.runs)))
            self._written, self._rows = self._step, []

    def end(self, results: Sequence[RunResult]) -> None:
        """Finish the block: write tables and records, in the order of the runs, in one atomic step.

        A run's tables end at its last step. On failure, the block stays in training.
        """
        self._refuse_if_gone()
        try:
            rows = Rows.joined([read_parts(self.folder, len(self.runs)), *self._rows], len(self.runs))
        except (Damaged, FileNotFoundError) as error:
            raise RunFailed(f"{error}: the store changed during the run; train it again with --rerun") from None
        if len(rows.curve) < max((result.steps for result in results if not result.thinned), default=0):
            raise RunFailed(f"rows of {self.folder} were lost during the run; train it again with --rerun")
        with disk_errors(self.store), _results(self.folder) as out:
            write_block(out, [(result, rows.tables(place, result.steps)) for place, result in enumerate(results)])
            self._refuse_if_gone()
        self.close()

    def leave(self, results: Sequence[RunResult]) -> None:
        """Leave the block for later with unfinished records, in the order of the runs; nothing if the store is gone."""
        with suppress(OSError, RunFailed):
            self.flush()
        with suppress(OSError, RunFailed):
            self._refuse_if_gone()
            write_records(self.folder / RUNS, results)
        self.close()

    def drop(self) -> None:
        """Remove the block, unless it has results, a checkpoint or a traceback. After `end` this does nothing."""
        if self._lock.is_intact and not any(is_there(self.folder / name) for name in (CHECKPOINT, TRACEBACK)):
            _clear(self.folder, state=True)
        self.close()

    def keep_traceback(self, error: BaseException) -> Path | None:
        """Write the traceback of a failure and return its path; None if it cannot be written, as on a full disk."""
        path = self.folder / TRACEBACK
        if not self._lock.is_intact:
            return None
        try:
            path.write_text("".join(traceback.format_exception(error)), "utf-8", errors="backslashreplace")
        except OSError:
            remove(path)
            return None
        return path

    def _refuse_if_gone(self) -> None:
        """Raise if the folder was deleted or replaced: nobody would read further writes."""
        if not self._lock.is_intact:
            raise RunFailed(f"{self.folder} was deleted, moved or replaced during training; repeat the command")

    def _refuse_results(self, trained: RunBusy) -> None:
        """Raise `trained`, or UserError if the results cannot be read: they are not replaced unasked."""
        try:
            read_block(self.folder)
        except Damaged as error:
            done = self.folder / DONE
            raise UserError(f"{done} cannot be used ({error.why}); move it away, and repeat the command") from None
        raise trained


def remove_state(folder: Path) -> None:
    """Remove an interrupted block, unless another process has taken it."""
    with suppress(RunBusy, OSError):
        lock = Lock(folder, RunBusy())
        _clear(folder, state=True)
        lock.release()


@contextmanager
def new_results(folder: Path, busy: RunBusy) -> Iterator[Path]:
    """An empty folder whose files, if any, become the results of a block at the end of the context, under its lock.

    If a process trains the block, it raises `busy`.
    """
    lock = Lock(folder, busy)
    try:
        _restore_replaced(folder)
        with _results(folder) as out:
            yield out
    finally:
        lock.release()


@contextmanager
def _results(folder: Path) -> Iterator[Path]:
    """As `new_results`, for the caller that has the lock; on failure, the block has the results that it had."""
    done, old, out = folder / DONE, folder / REPLACED, folder / f".{uuid4().hex}"
    out.mkdir()
    try:
        yield out
        if not any(out.iterdir()):
            return
        sync(out)
        with suppress(FileNotFoundError):
            done.rename(old)
        out.rename(done)
        sync(folder)
        sync(folder.parent)
        remove(old)
        _clear(folder, state=True)
    finally:
        remove(out)
        _restore_replaced(folder)


def _clear(folder: Path, *, state: bool) -> None:
    """Remove what a killed process left half written, and a traceback; with `state`, all but results and logs."""
    paths = [path for path in folder.iterdir() if path.name[0] == "."]
    paths += [folder / TRACEBACK, (folder / CHECKPOINT).with_suffix(".tmp")]
    if state:
        paths += [folder / RUNS, folder / CHECKPOINT, *(path for _, path in parts_in(folder))]
    for path in paths:
        remove(path)


def _restore_replaced(folder: Path) -> None:
    """Restore results that a killed or failed process was replacing."""
    old, done = folder / REPLACED, folder / DONE
    if os.path.lexists(done):
        remove(old)
    elif os.path.lexists(old):
        old.rename(done)


def write_records(path: Path, runs: Sequence[RunResult]) -> None:
    """Write records, one per line; RunFailed if a task or optimizer returned a value that a record cannot hold."""
    try:
        lines = [strict_json(vars(run)).encode() for run in runs]
        for line in lines:
            parse_record(line, path)
    except (TypeError, ValueError, Damaged) as error:
        raise RunFailed(f"a record cannot be stored: {getattr(error, 'why', error)}") from None
    with replacing(path) as temporary:
        temporary.write_bytes(b"".join(line + b"\n" for line in lines))


def write_block(done: Path, runs: Sequence[tuple[RunResult, Mapping[str, Columns]]]) -> None:
    """Write finished runs with their tables as the results of one block, into this folder."""
    write_records(done / RUNS, [run for run, _ in runs])
    for name in TABLES:
        write_columns(done / f"{name}.parquet", {run.run_id: tables[name] for run, tables in runs if name in tables})
