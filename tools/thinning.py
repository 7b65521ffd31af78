"""Copy finished runs into a small store for `results`, as `tools.publish` does.

Fresh seeds keep 200 rows of their curves, trials a tenth of that, their last evaluation and no measurements.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.output import remark
from bench.store.block import DONE, name_of
from bench.store.files import Damaged, disk_errors
from bench.store.record import RunResult
from bench.store.stores import Stores
from bench.store.tables import Columns
from bench.store.writer import write_block
from optimizers.plugins import bare

POINTS = 200
"""Rows kept of the curve of a fresh seed; a trial keeps a tenth."""


def copy(stores: Stores, runs: Sequence[RunResult], to: Path, points: int = POINTS) -> list[RunResult]:
    """Write the finished ones of these runs into a new store, with one block for each task, and their studies.

    Returns:
        The written runs. Those whose tables cannot be read are reported and left out.

    Raises:
        RunFailed: the disk is full.
    """
    tables = dict[str, dict[str, Columns]]()
    runs = [run for run in runs if run.finished]
    for run in runs:
        try:
            tables[run.run_id] = stores.blocks[run.run_id].tables(run.run_id)
        except Damaged as error:
            remark("warning", f"{error}; it is left out")
    runs = [run for run in runs if run.run_id in tables]
    ids = {run.run_id for run in runs}
    studies = [study for study in stores.studies if study.run_ids & ids]
    trials = {run_id for study in studies for run_id in study.run_ids}
    with disk_errors(to):
        for task in sorted({bare(run.config["task"]) for run in runs}):
            block = sorted((run for run in runs if bare(run.config["task"]) == task), key=lambda run: run.run_id)
            done = to / name_of([run.run_id for run in block]) / DONE
            done.mkdir(parents=True)
            write_block(done, [_kept(run, tables[run.run_id], points, trial=run.run_id in trials) for run in block])
        for study in studies:
            study.write(to)
    return runs


def rows_kept(n: int, points: int) -> list[int]:
    """Indices of the at most `points` (>= 2) rows of n that a thinned table keeps.

    They are evenly and log-spaced, and include the first and the last.
    """
    if n <= points:
        return list(range(n))
    half = max(2, points // 2)
    even, log = np.linspace(0, n - 1, half), np.geomspace(1, n, half) - 1
    return np.unique(np.concatenate([even, log]).round().astype(int)).tolist()


def _kept(
    run: RunResult, tables: dict[str, Columns], points: int, *, trial: bool
) -> tuple[RunResult, dict[str, Columns]]:
    """A run's record without the folders of this machine, and its thinned tables."""
    run = replace(run, config=run.config | {kind: bare(run.config[kind]) for kind in ("task", "opt")})
    if trial:
        run = replace(run, validations=run.validations[-1:], specimen=None)
    points = max(2, points // 10 if trial else points)
    thin = dict[str, Columns]()
    for name, table in tables.items():
        if trial and name == "measurements":
            continue
        # Boards relate observations to the curve at their steps.
        observed = name == "curve" and not trial and run.config["trainer"].get("observe")
        keep = np.isin(table["step"], tables.get("measurements", {}).get("step", ()) if observed else ())
        keep[rows_kept(len(keep), points)] = True
        thin[name] = {column: values[keep] for column, values in table.items()}
    return replace(run, thinned=run.thinned or run.steps > points), thin
