"""An attempt at a block: the files that the training process writes."""

import errno
import os
import shutil
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from bench.errors import MAKE_ROOM, RunBusy, RunFailed, UserError
from bench.store.block import (
    CHECKPOINT,
    DONE,
    REPLACED,
    RUNS,
    TRACEBACK,
    attempts,
    ended,
    name_of,
    read_block,
    readable,
    results_in,
)
from bench.store.claims import CLAIM, PATIENCE_SECONDS, Owner, beating, is_alive, owner_of, write_claim
from bench.store.files import copy, disk_errors, link, making, move, remove, remove_empty, replacing, sync
from bench.store.load import Damaged, is_there, parse_record
from bench.store.record import RunResult
from bench.store.tables import CURVE_FIELDS, TABLES, Columns, RawTable, write_columns
from bench.text import clean, strict_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


BYTES_OF_STEP, BYTES_OF_RUN = 80, 20_000
"""Bytes that a run takes until its block is finished: for each step five numbers in the raw curve, and at most as many
in its table; for its record and measurements roughly the second number. Ours."""


def begin(
    store: Path, runs: Sequence[RunResult], *, resume: bool = True, again: bool = False, steps: int = 0
) -> "Attempt":
    """Take the block of these runs for this process.

    Args:
        store: its folder; created if needed.
        runs: initial records, in the order in which the block holds them.
        steps: of each run; the disk must have room for their curves.
        resume: continue from the checkpoint of the previous attempt, if it left one.
        again: train although the block has results; these stay, even if damaged, until new ones replace them. By
            default, unreadable results are renamed, with a warning.

    Raises:
        RunBusy: another process is training the block, or just finished it.
        UserError: the store cannot be written, or a file is in the place of the attempt.
        RunFailed: the disk is full, or too full for the curves.
    """
    folder = store / name_of([run.run_id for run in runs])
    what = f"run {runs[0].run_id}" if len(runs) == 1 else f"the block of runs {folder.name}"
    trained = RunBusy(f"{what} was just trained by another process")
    busy = RunBusy(f"{what} is in training by another process")
    before = ended(folder)
    if before and not again and (block := readable(folder)) is not None and not block.damaged:
        raise trained
    if folder.is_symlink():
        raise UserError(f"{folder} is a symbolic link, and links are ignored; copy the folder itself")
    with making(store):
        prepared, owner = prepare(folder)
    try:
        with disk_errors(store):
            number, last = next(iter(attempts(folder)), (0, None))
            if last is not None and is_alive(last, (prepared / CLAIM).stat().st_mtime):
                raise busy
            if resume and last is not None and is_there(last / CHECKPOINT):
                link(last / CHECKPOINT, prepared / CHECKPOINT)  # it is replaced, but tables grow in place
                for name in (f"{table}.raw" for table in TABLES):
                    if is_there(last / name):
                        copy(last / name, prepared / name)
            free, needed = shutil.disk_usage(store).free, len(runs) * (BYTES_OF_STEP * steps + BYTES_OF_RUN)
            if free < needed:  # better than after hours of training
                raise RunFailed(
                    f"the disk is full: the store {store} has {free / 1e6:.3g} MB left, and {what} needs"
                    f" {needed / 1e6:.3g} MB{MAKE_ROOM}"
                )
            write_records(prepared / RUNS, runs)
            path = folder / f"attempt-{number + 1}"
            try:
                move(prepared, path, busy)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ENAMETOOLONG):
                    raise
                raise UserError(
                    f"{path} cannot be created ({error.strerror}): move what is in its place, or the attempt before"
                    " it, out of the store"
                ) from None
            if owner_of(path) != owner:  # a network file system may repeat a request
                raise busy
    except BaseException as error:
        remove(prepared)
        remove_empty(folder)
        if isinstance(error, RunFailed) and ended(folder) != before:  # the process that finishes cleans up
            raise trained from None
        gone = isinstance(error, RunFailed) and isinstance(error.__context__, FileNotFoundError)
        if gone and store.exists():  # another process dropped the block and cleaned up just then
            return begin(store, runs, resume=resume, again=again, steps=steps)
        raise
    try:
        if not again and ended(folder) == before and _put_aside(folder):  # only this process can finish it from here on
            before = ended(folder)
        attempt = Attempt(store, path, runs, before)
    except BaseException:
        remove(path)
        raise
    if ended(folder) != before:
        attempt.close()
        remove(path)
        raise trained
    attempt.clear_up(number)  # other ranks may still read the previous one
    return attempt


def prepare(folder: Path, prefix: str = ".") -> tuple[Path, Owner]:
    """Create a hidden folder with a claim, whose name starts with the prefix.

    Another process may remove the folder before its claim is written; then this retries.
    """
    for last in [False] * 20 + [True]:
        prepared = folder / f"{prefix}{uuid4().hex}"
        try:
            prepared.mkdir(parents=True)
            return prepared, write_claim(prepared)
        except BaseException as error:
            remove(prepared)
            if last or not isinstance(error, FileNotFoundError):
                raise
    raise AssertionError("the last attempt returns or raises")


class Attempt:
    """A block that this process trains: its folder, the attempt's path, and the initial records (`runs`).

    Attributes:
        checkpoint: file of the training state; it exists if the attempt continues from an earlier one.
    """

    def __init__(self, store: Path, path: Path, runs: Sequence[RunResult], replaces: tuple[int, int] | None) -> None:
        self._replaces = replaces
        self.store, self.folder, self.path, self.runs = store, path.parent, path, list(runs)
        self.checkpoint = path / CHECKPOINT
        self._number = int(path.name.partition("-")[2])
        with ExitStack() as opened, disk_errors(store):
            self._claim = os.open(path / CLAIM, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, self._claim)
            self._measurements, self._curve = (
                opened.enter_context(closing(RawTable(path / f"{name}.raw", len(runs)))) for name in TABLES
            )
            opened.enter_context(beating(path))
            self._open = opened.pop_all()

    def append_curve(self, rows: "NDArray[np.float64]") -> None:
        """Add the next steps: rows of shape (S, L, 4) in the order of `CURVE_FIELDS`, with NaN for missing values.

        Raises:
            RunFailed: the disk is full, or the store changed during the run.
        """
        first = self._curve.last_step + 1
        with disk_errors(self.store):
            self._refuse_if_gone()
            self._curve.append(CURVE_FIELDS[1:], range(first, first + len(rows)), rows)

    def append_measurements(self, names: Sequence[str], steps: Sequence[int], values: "NDArray[np.float64]") -> None:
        """Add values of shape (K, L, M), NaN if missing, of M names (the same in every call) at K ascending steps.

        Raises:
            RunFailed: the disk is full, the store changed during the run, or the names changed.
        """
        with disk_errors(self.store):
            self._measurements.append(names, steps, values)

    def truncate(self, steps: int) -> None:
        """Drop the rows after this step: these steps will be trained again.

        Raises:
            RunFailed: the disk is full or unavailable.
        """
        with disk_errors(self.store):
            self._curve.truncate(steps)
            self._measurements.truncate(steps)

    def sync(self) -> None:
        """Flush the tables to disk, before a checkpoint that relies on them.

        Raises:
            RunFailed: the disk is full, or the store changed during the run.
        """
        with disk_errors(self.store):
            self._refuse_if_gone()
            self._curve.sync()
            self._measurements.sync()

    def end(self, results: Sequence[RunResult]) -> None:
        """Finish the block: write tables and records in one atomic step. On failure the attempt continues.

        The results are in the order of the runs. A run's tables end at its last step.

        Raises:
            RunFailed: the disk is full, the store changed during the run, or a curve lacks rows for some steps.
            RunBusy: another process has finished the block.
        """
        assert [result.run_id for result in results] == [run.run_id for run in self.runs]
        assert all(result.finished for result in results)
        places = [(result.run_id, place, result.steps) for place, result in enumerate(results)]
        out = self.path / f".{uuid4().hex}"
        try:
            with disk_errors(self.store):
                self._refuse_if_gone()
                out.mkdir()
                self._measurements.write(out / "measurements.parquet", places)
                rows = self._curve.write(out / "curve.parquet", places)
                for result in results:
                    there = rows.get(result.run_id, 0)
                    if there != result.steps and not result.thinned:
                        raise RunFailed(
                            f"the curve of {result.run_id} in {self.path} has {there} rows, and it made {result.steps}"
                            " steps: the store changed during the run; train it again with --rerun"
                        )
                write_records(out / RUNS, results)
                self._refuse_if_gone()
                commit(out, self.folder, self._replaces)
        except RunBusy:  # another process has stored results, so this attempt is useless
            remove(self.path)
            raise
        finally:
            remove(out)
        self.close()
        self.clear_up(self._number + 1, finished=True)  # a rerun may have started a later one

    def clear_up(self, number: int, *, finished: bool = False) -> None:
        """Remove the attempts before this number, and hidden folders that killed processes left in the block.

        If it has just finished, even those without a claim are useless.
        """
        for n, path in attempts(self.folder):
            if n < number:
                remove(path)
        for path in self.folder.glob(".*"):
            if not path.is_dir() or is_alive(path):
                continue
            with suppress(FileNotFoundError):  # it has just been renamed, or removed by another process
                claimed = is_there(path / CLAIM) is not None
                if finished or claimed or time.time() - path.lstat().st_mtime > PATIENCE_SECONDS:
                    remove(path)

    def leave(self, results: Sequence[RunResult]) -> None:
        """Leave the block for later with unfinished records, in the order of the runs; nothing if the store is gone."""
        try:
            with suppress(OSError, RunFailed):
                self._refuse_if_gone()
                write_records(self.path / RUNS, results)
        finally:
            self.close()

    def drop(self) -> None:
        """Remove the attempt, unless it has a checkpoint or a traceback. After `end` this does nothing."""
        kept = any(is_there(self.path / name) for name in (CHECKPOINT, TRACEBACK))
        if self._is_ours() and not kept:
            remove(self.path)
        self.close()
        remove_empty(self.folder)

    def keep_traceback(self, error: BaseException) -> Path | None:
        """Write the traceback of a failure and return its path; None if it cannot be written, as on a full disk."""
        path = self.path / TRACEBACK
        if not self._is_ours():
            return None
        try:
            path.write_text("".join(traceback.format_exception(error)), "utf-8", errors="backslashreplace")
        except OSError:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        return path

    def close(self) -> None:
        """Release the claim; all files except it stay."""
        with suppress(OSError):  # a full disk has already been reported
            if self._is_ours():
                (self.path / CLAIM).unlink()
        self._claim = -1
        with suppress(OSError):
            self._open.close()

    def _is_ours(self) -> bool:
        """Whether the attempt is open and its folder is still the one that this process created."""
        try:
            return self._claim >= 0 and os.path.samestat(os.fstat(self._claim), (self.path / CLAIM).lstat())
        except OSError:
            return False

    def _refuse_if_gone(self) -> None:
        """Raise if the folder was deleted, replaced or taken over: nobody would read further writes."""
        if any(number > self._number for number, _ in attempts(self.folder)):
            raise RunFailed(f"another process took over {self.path}, because this one did not respond for too long")
        if not self._is_ours():
            raise RunFailed(f"{self.path} was deleted, moved or replaced during training; repeat the command")


def commit(out: Path, folder: Path, replaces: tuple[int, int] | None = None) -> None:
    """Move results, a folder on the same file system, into their block and flush them to disk.

    Args:
        out: the results.
        folder: of the block.
        replaces: the results that they replace (`ended`), or None.

    Raises:
        RunBusy: the block has other results.
        OSError: a rename or a flush failed.
    """
    done, old = folder / DONE, folder / REPLACED
    busy = RunBusy(f"{folder.name} was just trained by another process")
    sync(out)
    occupied = os.path.lexists(done)  # checked before `ended`: else results of another process might be replaced
    try:
        if occupied and ended(folder) == replaces:
            remove(old)
            move(done, old, busy)
        move(out, done, busy)
    except BaseException:
        if not os.path.lexists(done):
            with suppress(OSError):
                old.rename(done)
        raise
    sync(folder)
    sync(folder.parent)
    remove(old)


def write_records(path: Path, runs: Sequence[RunResult]) -> None:
    """Write records, one per line, after checking that they can be read back.

    Raises:
        RunFailed: a record is unreadable: its task or optimizer returned a value that a record cannot hold.
        OSError: the file cannot be written.
    """
    try:
        lines = [strict_json(vars(run)).encode() for run in runs]
        for line in lines:
            parse_record(line, path)
    except (TypeError, ValueError) as error:
        raise RunFailed(f"a record cannot be stored: {error}") from None
    except Damaged as error:
        raise RunFailed(f"a record cannot be stored: {error.why}") from None
    with replacing(path) as temporary:
        temporary.write_bytes(b"".join(line + b"\n" for line in lines))


def write_block(done: Path, runs: Sequence[tuple[RunResult, Mapping[str, Columns]]]) -> None:
    """Write finished runs with their tables as the results of one block, into this folder."""
    write_records(done / RUNS, [run for run, _ in runs])
    for name in TABLES:
        found = {run.run_id: tables[name] for run, tables in runs if name in tables}
        write_columns(done / f"{name}.parquet", found)


def _put_aside(folder: Path) -> bool:
    """Rename `done`, with a warning, if it contains no readable results of this block; whether it did.

    It may contain misplaced files, such as another run's results.
    """
    done, why = folder / DONE, f"it has no {RUNS}"
    if not os.path.lexists(done):
        return False
    if results_in(folder) == done:
        try:
            block = read_block(folder)
        except Damaged as error:
            why = error.why
        else:
            if block is None or block.runs:
                return False
            why = block.damaged[0].why
    names = (f"{DONE}.unreadable{f'-{n}' * (n > 1)}" for n in count(1))
    aside = next(folder / name for name in names if not os.path.lexists(folder / name))
    with suppress(OSError):  # if the rename fails, the new results replace it at the end
        done.rename(aside)
        text = f"{done} cannot be used ({why}); it was renamed to {aside.name}, and training continues"
        print(f"bench: warning: {clean(text)}", file=sys.stderr)
        return True
    return False
