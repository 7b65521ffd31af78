"""Training a block: the files that a process writes while it holds the block's lock."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from bench.errors import RunBusy, RunFailed, UserError
from bench.store.block import CURVE_FIELDS, Columns, block_name, blocks_in, parts_in, read_block, read_parts
from bench.store.files import CHECKPOINT, DONE, RUNS, Damaged, Lock, disk_errors, making, remove, replacing, sync
from bench.store.record import RunResult, parse_record
from bench.text import strict_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class BlockWriter:
    """The block of these runs, locked for this process and ready to train.

    `resume` is the step of the checkpoint of an interrupted process, which is kept with the rows up to it; with
    `again`, results that the block has stay until new ones replace them. It raises RunBusy if another process trains
    the block or has just finished it, UserError if the store cannot be written or has unreadable results. All methods
    raise RunFailed if the disk is full or gone, or the block was deleted, moved or replaced meanwhile.
    """

    def __init__(self, store: Path, runs: Sequence[RunResult], *, resume: int = 0, again: bool = False) -> None:
        self.store, self.runs = store, list(runs)
        self.folder = store / block_name([run.run_id for run in runs])
        self.checkpoint, ids = self.folder / CHECKPOINT, {run.run_id for run in runs}
        what = f"run {runs[0].run_id}" if len(runs) == 1 else f"the block of runs {self.folder.name}"
        with making(store):
            self._lock = Lock(self.folder, what)
        self.close = self._lock.release
        self._step = resume
        self._rows = dict[str, list[tuple[Sequence[str], Sequence[int], Any]]]()  # since the last `flush`, by table
        try:
            with disk_errors(store):
                if not again and os.path.lexists(self.folder / DONE):
                    read_block(self.folder)
                    raise RunBusy(f"{what} was just trained by another process")
                _clear(self.folder, state=not resume, after=resume)
                write_records(self.folder / RUNS, runs)
                # Two processes with overlapping blocks write first and then look, so at least one sees the other.
                others = (b for b in blocks_in(store, ids) if not isinstance(b, Damaged) and b.folder != self.folder)
                if not again and any(ids & b.runs.keys() and (b.busy or b.done) for b in others):
                    _clear(self.folder, state=not resume, after=resume)
                    raise RunBusy(f"{what}, or a part of it, is in training by another process")
        except BaseException as error:
            self.close()
            if isinstance(error, Damaged):  # results are not replaced unasked
                why = f"{self.folder / DONE} cannot be used ({error.why}); move it away, and repeat the command"
                raise UserError(why) from None
            raise

    def append_curve(self, rows: "NDArray[np.float64]") -> None:
        """Add the next steps: rows (S, L, 4), as `CURVE_FIELDS`, NaN if missing; the caller must not change them."""
        self._refuse_if_gone()
        self._step += len(rows)
        steps = range(self._step - len(rows) + 1, self._step + 1)
        self._rows.setdefault("curve", []).append((CURVE_FIELDS[1:], steps, rows))

    def append_measurements(self, names: Sequence[str], steps: Sequence[int], values: "NDArray[np.float64]") -> None:
        """Add values of shape (K, L, M), NaN if missing, of M names (the same in every call) at K ascending steps."""
        if names:
            self._rows.setdefault("measurements", []).append((names, steps, values))

    def _unwritten(self) -> dict[str, dict[str, Columns]]:
        """The rows since the last `flush`, by table and run."""
        import numpy as np

        tables = dict[str, dict[str, Columns]]()
        for table, pieces in self._rows.items():
            (names, *_), steps, values = zip(*pieces, strict=True)
            step, rows = np.concatenate(steps).astype(float), np.concatenate(values)
            tables[table] = {
                run.run_id: dict(zip(("step", *names), (step, *rows[:, i].T), strict=True))
                for i, run in enumerate(self.runs)
            }
        return tables

    def flush(self) -> None:
        """Write the rows since the last call to disk, before a checkpoint that relies on them."""
        self._refuse_if_gone()
        if "curve" in self._rows:
            with disk_errors(self.store):
                for table, runs in self._unwritten().items():
                    write_table(self.folder / f"part-{self._step:012}.{table}.parquet", runs)
            self._rows.clear()

    def end(self, results: Sequence[RunResult], measured: Sequence[Mapping[str, float]] = ()) -> None:
        """Finish the block: write tables, up to the last step of each run, and records in one atomic step.

        `measured` has each run's measurements after its last step, which are added where that step lacks them.
        """
        self._refuse_if_gone()
        try:
            if parts_in(self.folder):
                self.flush()
            tables = read_parts(self.folder) or self._unwritten()
        except (Damaged, FileNotFoundError) as error:
            raise RunFailed(f"{error}: the store changed during the run; train it again with --rerun") from None
        pairs = zip(results, measured or [{}] * len(results), strict=True)
        runs = [(result, _tables_of(result, last, tables)) for result, last in pairs]
        with disk_errors(self.store), new_results(self.folder) as out:
            write_block(out, runs)
            self._refuse_if_gone()
        self.close()

    def leave(self, results: Sequence[RunResult]) -> None:
        """Leave the block for later with unfinished records, in the order of the runs; nothing if the store is gone."""
        with suppress(OSError, RunFailed):
            self._refuse_if_gone()
            write_records(self.folder / RUNS, results)
        self.close()

    def drop(self) -> None:
        """Remove the block, unless it has a checkpoint. After `end` or `leave` this does nothing."""
        if self._lock.is_intact and not os.path.lexists(self.checkpoint):
            _clear(self.folder, state=True)
        self.close()

    def _refuse_if_gone(self) -> None:
        """Nobody would read what is written into a folder that was deleted or replaced."""
        if not self._lock.is_intact:
            raise RunFailed(f"{self.folder} was deleted, moved or replaced during training; repeat the command")


@contextmanager
def new_results(folder: Path) -> Iterator[Path]:
    """An empty folder whose files become the results of a block, which is locked, at the end of the context."""
    done, old, out = folder / DONE, folder / f".{uuid4().hex}", folder / f".{uuid4().hex}"
    out.mkdir()
    try:
        yield out
        sync(out)
        with suppress(FileNotFoundError):
            done.rename(old)  # of a run that is trained again; a kill after this line leaves its last checkpoint
        out.rename(done)
        sync(folder)
        sync(folder.parent)
        _clear(folder, state=True)
    finally:
        remove(out)


def _clear(folder: Path, *, state: bool, after: int = 0) -> None:
    """Remove half-written files and rows after this step; with `state`, all but results and logs."""
    paths = [path for path in folder.iterdir() if path.name[0] == "."] + [(folder / CHECKPOINT).with_suffix(".tmp")]
    paths += [path for step, path in parts_in(folder) if step > after]
    for path in [*paths, *[folder / RUNS, folder / CHECKPOINT] * state]:
        remove(path)


def _tables_of(run: RunResult, last: Mapping[str, float], tables: dict[str, dict[str, Columns]]) -> dict[str, Columns]:
    """The tables of a run up to its last step, with its last measurements; RunFailed if rows are missing."""
    import numpy as np

    of_run = {name: runs[run.run_id] for name, runs in tables.items()}
    if not run.thinned and run.steps > len(of_run.get("curve", {}).get("step", ())):
        raise RunFailed(f"rows of {run.run_id} were lost during the run; train it again with --rerun")
    for name, columns in of_run.items():
        of_run[name] = {column: values[columns["step"] <= run.steps] for column, values in columns.items()}
    if last and run.steps not in (measured := of_run["measurements"])["step"]:
        values = {"step": run.steps, **last}
        of_run["measurements"] = {name: np.append(column, values[name]) for name, column in measured.items()}
    return of_run


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


def write_table(path: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a table of runs, by id, as one Parquet file, flushed to disk; nothing if it has no columns but `step`.

    Values that are not finite, and columns that a run does not have, are nulls.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list[pa.Table]()
    for run_id, columns in sorted(runs.items()):
        values = {name: np.asarray(column, np.float64) for name, column in columns.items() if name != "step"}
        nullable = {name: pa.array(column, mask=~np.isfinite(column)) for name, column in values.items()}
        steps = np.asarray(columns["step"]).astype(np.int64)
        rows.append(pa.table({"run_id": pa.repeat(run_id, len(steps)), "step": steps, **nullable}))
    if not any(table.num_columns > 2 for table in rows):
        return
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": ["run_id"], "write_page_checksum": True}
    options |= {"write_statistics": ["run_id", "step"], "row_group_size": 10_000}  # queries skip those of other runs
    with replacing(path) as temporary:
        pq.write_table(pa.concat_tables(rows, promote_options="default"), temporary, **options)


def write_block(done: Path, runs: Sequence[tuple[RunResult, Mapping[str, Columns]]]) -> None:
    """Write finished runs with their tables as the results of one block, into this folder."""
    write_records(done / RUNS, [run for run, _ in runs])
    for name in sorted({name for _, tables in runs for name in tables}):
        write_table(done / f"{name}.parquet", {run.run_id: tables[name] for run, tables in runs if name in tables})
