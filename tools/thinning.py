"""Copy finished runs into a small store for `results`, as `tools.publish` does: python -m tools.thinning STORE DEST.

Fresh seeds keep 200 rows of their curves, trials a tenth of that, their last evaluation and no measurements.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.store.block import Columns, block_name
from bench.store.files import DONE
from bench.store.record import RunResult
from bench.store.reports import write_report
from bench.store.stores import Stores
from bench.store.writer import write_block
from optimizers.plugins import bare
from tools.conformance import without_folders


def copy(stores: Stores, runs: Sequence[RunResult], to: Path, points: int = 200) -> int:
    """Write the finished ones of these runs into a new store, with one block for each task, and their studies.

    Args:
        stores: have the runs.
        runs: to write.
        to: folder of the new store.
        points: rows kept of the curve of a fresh seed.

    Returns:
        The number of written runs.
    """
    blocks: dict[str, list[RunResult]] = {}
    for run in sorted((run for run in runs if run.finished), key=lambda run: run.run_id):
        blocks.setdefault(bare(run.config["task"]), []).append(run)
    ids = {run.run_id for block in blocks.values() for run in block}
    studies = [study for study in stores.studies if study.run_ids & ids]
    trials = {run_id for study in studies for run_id in study.run_ids}
    for block in blocks.values():
        done = to / block_name([run.run_id for run in block]) / DONE
        done.mkdir(parents=True)
        tables = [stores.tables(run.run_id) for run in block]
        write_block(done, [_thin(*pair, points, run_ids=trials) for pair in zip(block, tables, strict=True)])
    for study in studies:
        write_report(to, study)
    return len(ids)


def _thin(
    run: RunResult, tables: Mapping[str, Columns], points: int, run_ids: set[str]
) -> tuple[RunResult, dict[str, Columns]]:
    """A run's record without the folders of this machine, and its tables; `run_ids` are the trials.

    The at most `points` rows of a table are evenly and log-spaced, and include the first and the last.
    """
    run = replace(run, config=run.config | {kind: bare(run.config[kind]) for kind in ("task", "opt")})
    observed = tables.get("measurements", {}).get("step", ()) if run.config["trainer"].get("observe") else ()
    if run.run_id in run_ids:
        run = replace(run, validations=run.validations[-1:], specimen=None)
        tables, observed, points = {name: tables[name] for name in tables if name != "measurements"}, (), points // 10
    thin = dict[str, Columns]()
    for name, table in tables.items():
        n, half = len(table["step"]), max(2, points // 2)
        rows = np.concatenate([np.linspace(0, n - 1, half), np.geomspace(1, n, half) - 1]).round().astype(int)
        # Boards relate observations to the curve at their steps.
        keep = np.isin(table["step"], observed) if name == "curve" else np.zeros(n, dtype=bool)
        keep[rows if n > max(2, points) else slice(None)] = True
        thin[name] = {column: values[keep] for column, values in table.items()}
    return replace(run, thinned=run.thinned or run.steps > max(2, points)), thin


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    store = Stores([source])
    print(f"{copy(store, store.runs, target)} runs")
    for report in store.checks:
        notes = [verdict | {"note": without_folders(verdict["note"])} for verdict in report.verdicts]
        write_report(target, replace(report, verdicts=notes))
