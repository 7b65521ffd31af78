"""The theory board: on the synthetic tasks, steps to alignment and rates of the loss."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bench.boards.collect import Collected
from bench.boards.entries import Entry, Problem
from bench.boards.shared import VERDICTS, Verdicts, board_table
from bench.boards.speed import REACHES, median_time_to
from bench.results import stats
from bench.results.group import Measure, mean_interval
from bench.results.stats import LEAST_POINTS, Array, Interval
from bench.results.table import Board, Column, Table
from bench.store.record import RunResult
from bench.store.tables import Columns
from bench.text import CONVERGED, counted

ALIGNED = 0.99
"""Cosine at which a direction counts as found. The papers give none; ours."""
ALIGNMENTS = ("alignment", "align_W")
"""Columns with the cosine to the theory's direction: W_mm, or the planted head."""
EPS = float(np.finfo(np.float64).eps)
_RATE = (
    "b of loss ~ t^b over the last decade of steps before the training loss (its suboptimality gap where known) is"
    " within rounding of 0, mean over seeds; missing for runs that diverged or have too few values; 95 % t-interval"
)
_DIRECTION = "b of distance of directions ~ t^b over the last decade of steps, mean over seeds with 95 % t-interval"
_EXPONENTS = "exponents: b of value ~ t^b over the last decade of steps t before rounding takes over"


def theory(collected: Collected) -> Board:
    """Steps to alignment 0.99, fitted rates, and whether the max-margin problem has a solution."""
    tables = [_table(collected, p, entries) for p, entries in collected.problems.items() if p.measures]
    lacking = [table.title for table in tables if not any(column.key == "aligned" for column in table.columns)]
    notes = [
        f"{VERDICTS}; settings were tuned for the loss, not for alignment",
        *[_EXPONENTS] * bool(tables),
        *(f"{name} has no alignment measurements, so the board shows only its rate" for name in lacking),
        *["none of these problems is a theory task; `bench suite theory` has four"] * (not tables),
    ]
    return Board("theory", "The theory's tasks", tables, notes)


def _table(collected: Collected, problem: Problem, entries: Sequence[Entry]) -> Table:
    of = collected.reference_of(problem)
    every = [*entries, *([of] if of is not None and of not in entries else [])]  # the reference may not be shown
    read: dict[str, Columns] = {}  # measurements, with the columns of the curve as `curve.NAME`
    for entry in every:
        for seed, tables in collected.read(entry).items():
            curve = {f"curve.{name}": values for name, values in tables.get("curve", {}).items()}
            read[entry.runs[seed].run_id] = {**curve, **tables.get("measurements", {})}
    column = next((name for name in ALIGNMENTS if any(name in table for table in read.values())), None)

    def table(run: RunResult) -> Columns:
        return {} if run.status == "diverged" else read[run.run_id]

    def is_measured(run: RunResult) -> bool:
        has_column = column is None or column in read.get(run.run_id, ()) or run.status == "diverged"
        return run.run_id in read and has_column

    def aligned(run: RunResult) -> float | None:
        """The first step at which a run is aligned."""
        columns = table(run)
        at = np.flatnonzero(columns[column] >= ALIGNED) if column in columns else []
        return float(columns["step"][at[0]]) if len(at) else None

    def steps(run: RunResult) -> float | None:
        step = aligned(run)
        return None if step is None else max(1.0, step)

    def last(run: RunResult) -> float | None:
        values = table(run).get(column or "", np.empty(0))
        return float(values[-1]) if len(values) and np.isfinite(values[-1]) else None

    kept = {e: replace(e, runs={s: run for s, run in e.runs.items() if is_measured(run)}) for e in every}
    shown = [kept[entry] for entry in entries if kept[entry].runs]
    ref = kept[of] if of is not None and kept[of].runs else None
    verdicts = Verdicts(ref, Measure(f"steps until {column} is {ALIGNED}", "min", True, steps, REACHES))
    rows = {}
    for entry in verdicts.ordered(shown) if column else shown:
        runs = list(entry.runs.values())
        solved = [bool(v["solved"]) for r in runs for v in r.facts.values() if isinstance(v, dict) and "solved" in v]
        rows[entry] = {
            **(verdicts.values(entry, verdicts.of(entry)) if column else {}),
            "aligned": f"{sum(aligned(run) is not None for run in runs)} of {len(runs)}" if column else None,
            "steps": median_time_to(runs, [*map(aligned, runs)], [run.steps for run in runs]) if column else None,
            "alignment": mean_interval(map(last, runs), ends=(-1.0, 1.0)) if column else None,
            "rate": _mean([loss_rate(table(run), run.infimum or 0.0) for run in runs]),
            "direction": _mean([direction_rate(table(run)) for run in runs]),
            "solved": f"{sum(solved)} of {len(solved)}" if solved else None,
            "trials": len(entry.study.trials) if entry.study else None,
        }
    steps_help = f"optimizer steps until {column} is {ALIGNED}, 95 % interval from 6 runs on; other runs are censored"
    columns = [
        *verdicts.columns,
        Column("aligned", "aligned", f"runs whose {column} reached {ALIGNED}"),
        Column("steps", "median steps", steps_help),
        Column("alignment", "at the end", "alignment at the last step, mean over seeds with 95 % t-interval"),
    ] * bool(column)
    columns += [
        Column("rate", "loss exponent", _RATE, 3),
        *[Column("direction", "direction exponent", _DIRECTION, 3)] * (column == "alignment"),
        Column("solved", "W_mm feasible", "instances with a max-margin solution to compare with"),
        Column("trials", "trials", "tried settings"),
    ]
    runs = [run for entry in shown for run in entry.runs.values()]
    often = sorted({str(run.config["trainer"].get("measure_every") or "?") for run in runs})
    resolution = f"alignment is measured every {' or '.join(often)} steps, which limits the resolution of steps"
    reasons = sorted({f"no comparison: {name} is {why}" for run in runs for name, why in run.unsolved.items()})
    lost = {entry.name: len(entry.runs) - len(left.runs) for entry, left in kept.items()}
    words = "left out for lack of readable measurements"
    missing = [f"{name}: {words}: {counted(n, 'run')}" for name, n in lost.items() if n]
    return board_table(problem.name, columns, rows, [*[resolution] * bool(column), *reasons, *missing])


def loss_rate(table: Columns, infimum: float) -> float | None:
    """Exponent of the training loss (suboptimality gap) over its last decade of steps; None with too few values.

    It ends where the loss is within rounding of the infimum.
    """
    if "curve.loss" not in table:
        return None
    return _exponent(table["curve.step"], table["curve.loss"] - infimum, max(CONVERGED, 1e3 * EPS * abs(infimum)))


def direction_rate(table: Columns) -> float | None:
    """Exponent of the distance of directions over the last decade of steps; None if it has too few values."""
    return None if "distance" not in table else _exponent(table["step"], table["distance"], CONVERGED)


def _exponent(step: Array, value: Array, least: float) -> float | None:
    low = np.flatnonzero(np.isfinite(value) & (value < least))  # later values are rounding
    usable = np.isfinite(value) & (step > 0) & (step < (step[low[0]] if low.size else math.inf))
    x, y = step[usable], value[usable]
    if x.size:
        x, y = x[x >= x[-1] / 10], y[x >= x[-1] / 10]
    kept = stats.thin(x)
    if len(kept) < LEAST_POINTS:
        return None
    return round(stats.slope(np.log(x[kept]), np.log(y[kept]))[0], 9)


def _mean(values: list[float | None]) -> Interval | str | None:
    missing = values.count(None)
    return f"{missing} of {len(values)} runs have none" if 0 < missing < len(values) else mean_interval(values)
