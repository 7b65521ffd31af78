"""Runs, blocks and studies of a few steps, written to a store as training would, and functions that read them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.config.run_config import resolve
from bench.store.block import CURVE_FIELDS, PREFIX, Columns, StoredBlock, block_name, blocks_in
from bench.store.files import DONE, LOCK, RUNS
from bench.store.record import RunResult
from bench.store.reports import StudyRecord, write_report
from bench.store.stores import Contents
from bench.store.writer import BlockWriter, write_records, write_table


class Store:
    """A store whose current content each call reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def contents(self, run_ids: Sequence[str] | None = None) -> Contents:
        """All runs, or these."""
        return Contents([self.folder], run_ids)

    def runs(self) -> list[RunResult]:
        """All readable runs, by name."""
        return self.contents().runs

    def get(self, run_id: str) -> RunResult | None:
        """The current state of a run."""
        return self.contents([run_id]).get(run_id)

    def tables(self, run_id: str) -> dict[str, Columns]:
        """The run's tables by name."""
        return self.contents([run_id]).tables(run_id)

    def place(self, run_id: str) -> Path:
        """The folder of the run's block."""
        return self.contents([run_id]).blocks[run_id].folder


LOSSES = (0.5, None, 0.25)
WILD = "<script>alert(1)</script> [/bold] \"q\" 'a' | ü 漢 \x1b[31m"
"""A malicious name for a terminal, a page, a table and a query."""


@cache
def _described(lr: float) -> str:
    words = {"task": "synthetic", "opt": "ngd", "opt.lr": lr, "trainer.max_steps": 3, "seed": 1, "data_seed": 2}
    return json.dumps(resolve({**words, "precision": "64-true", "device": "cpu"}).record_fields)


def record(run_id: str, *, lr: float = 0.1, task: str = "synthetic", **changes: Any) -> RunResult:
    """The record of a run that ended after three steps, unless the changes say otherwise; its id is not a hash."""
    own = json.loads(_described(lr)) | {"run_id": run_id, "identity": {}}
    own["config"] |= {"task": task, "task_options": {"H": 1}, "opt_options": {"lr": lr, "max_step": float("inf")}}
    values: dict[str, Any] = {"status": "completed", "split": "train", "final": 0.25, "best": 0.25, "best_step": 3}
    values |= {"versions": {"torch": "2.15.0", "suite": "0.1.0"}, "steps": 3}
    values |= {"environment": {"cpu": "abacus", "threads": 1, "gpu": None}}
    made = RunResult(**(own | values | changes))
    there = made.final is not None and math.isfinite(made.final) and "metrics" not in changes
    return replace(made, metrics={"final": {made.metric: made.final}}) if there else made


def begin(store: Path, result: RunResult, losses: Sequence[float | None] = LOSSES) -> BlockWriter:
    """Begin a run: a row of its curve for each loss, and a measurement; `end` takes its result."""
    writer = BlockWriter(store, [replace(result, status="running")], again=True)
    rows = [[np.nan if loss is None else loss, 1.0, 0.1, 0.1] for loss in losses]
    writer.append_curve(np.array(rows, float).reshape(-1, 1, 4))
    writer.append_measurements(["error"], [0, 2], np.array([[[0.75]], [[np.nan]]]))
    writer.flush()
    return writer


def kill(writer: BlockWriter) -> None:
    """Leave a block as if its process had been killed: rows since the last flush are lost, the lock file stays."""
    path = writer.folder / LOCK
    writer.close()
    path.touch()


def add_run(store: Path, run_id: str, losses: Sequence[float | None] = LOSSES, **changes: Any) -> Path:
    """A run that ended in any way, with as many steps as losses; its folder."""
    changes = {"steps": len(losses), **changes}
    result = record(run_id, **changes)
    _finish(begin(store, result, losses), [result])
    return store / run_id


def put(store: Path, *runs: RunResult, tables: Mapping[str, Mapping[str, Any]] | None = None) -> Path:
    """Write a block as training leaves it: results of finished runs, or an interrupted block.

    Args:
        store: its folder.
        runs: of the block.
        tables: by name (`curve`, `measurements`), then run id: columns.
    """
    folder = store / block_name([run.run_id for run in runs])
    at = folder / DONE if runs[0].finished else folder
    at.mkdir(parents=True, exist_ok=True)
    write_records(at / RUNS, runs)
    for name, by_run in (tables or {}).items():
        write_table(at / f"{name}.parquet", by_run)
    return folder


def begin_block(
    store: Path, run_ids: Sequence[str], loss: float = 0.5, **changes: Any
) -> tuple[BlockWriter, list[RunResult]]:
    """A block whose training has begun, and the results that its `end` takes."""
    changes = {"engine": "lanes", **changes}
    results = [record(run_id, **changes) for run_id in run_ids]
    begun = [replace(result, status="running") for result in results]
    writer = BlockWriter(store, begun, again=True)
    writer.append_curve(np.full((results[0].steps, len(results), 4), loss))
    writer.append_measurements(["angle"], [0], np.full((1, len(results), 1), loss))
    writer.flush()
    return writer, results


def add_block(store: Path, run_ids: Sequence[str], loss: float = 0.5, **changes: Any) -> Path:
    """A finished block; its folder."""
    writer, results = begin_block(store, run_ids, loss, **changes)
    _finish(writer, results)
    return writer.folder


def _finish(writer: BlockWriter, results: list[RunResult]) -> None:
    """End the writer, or abandon it if its runs have not finished."""
    (writer.end if results[0].finished else writer.leave)(results)


def add_study(store: Path, name: str, trials: int | Sequence[Mapping[str, Any]] = 2, **changes: Any) -> StudyRecord:
    """Write the record of a study with these trials; given their number, they have the runs a, b, ..., and b won."""
    if isinstance(trials, int):
        runs = enumerate("abcdef"[:trials], 1)
        trials = [{"point": {"lr": 0.1 * i}, "score": 0.5 / i, "runs": [run]} for i, run in runs]
        changes = {"seeds": [1], "winner": "b"} | changes
    values: dict[str, Any] = {"name": name, "task": "synthetic", "opt": "ngd", "seeds": [1000, 1001], "mode": "min"}
    values |= {"axes": ["opt.lr"], "sampler": "grid", "lr_at_boundary": False}
    values |= {"trials": [{"kind": "design", "state": "completed", **trial} for trial in trials]}
    record = StudyRecord(**(values | changes))
    write_report(store, record)
    return record


def unfinished(store: Path) -> list[StoredBlock]:
    """Blocks of several runs that are in training or were interrupted."""
    blocks = (block for block in blocks_in(store) if isinstance(block, StoredBlock) and not block.done)
    return [block for block in blocks if block.folder.name.startswith(PREFIX)]


def read_tables(folder: Path) -> dict[str, Columns]:
    """The tables of the run of this name, whether it trains or has ended."""
    return Store(folder.parent).tables(folder.name)


def read_curve(folder: Path) -> list[tuple[Any, ...]]:
    """A run's curve as tuples of `CURVE_FIELDS`; None for a value that is not finite."""
    table = read_tables(folder).get("curve")
    if table is None:
        return []
    rows = zip(*(table[name].tolist() for name in CURVE_FIELDS), strict=True)
    return [(int(step), *(None if np.isnan(x) else x for x in values)) for step, *values in rows]
