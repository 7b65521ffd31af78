"""The theory board: on the synthetic tasks, steps to alignment and rates of the loss."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.boards.collect import Collected, Entry, Problem
from bench.boards.shared import VERDICTS, Verdicts, board_table
from bench.boards.speed import REACHES, median_time_to
from bench.results import stats
from bench.results.group import Measure, mean_interval
from bench.results.stats import LEAST_POINTS, Array, Interval
from bench.results.table import Board, Column, Table
from bench.store.block import Columns
from bench.store.record import RunResult
from bench.text import CONVERGED

ALIGNED = 0.99  # cosine at which a direction counts as reached; the papers give none, so ours
ALIGNMENTS = ("alignment", "align_W")  # columns with the cosine to the theory's direction: W_mm, or the planted head
_WANTED = "loss|distance|alignment|align_W"
_RATE = (
    "b of loss ~ t^b over the last decade of steps before the training loss (its suboptimality gap where known) is"
    " within rounding of 0, mean over seeds; missing for runs that diverged or have too few values; 95 % t-interval"
)
_DIRECTION = "b of distance of directions ~ t^b over the last decade of steps, mean over seeds with 95 % t-interval"
_EXPONENTS = "exponents: b of value ~ t^b over the last decade of steps t before rounding takes over"


def theory(collected: Collected) -> Board:
    """Steps to alignment 0.99, fitted rates, and whether the max-margin problem has a solution."""
    tables = [_table(collected, p, entries) for p, entries in collected.problems.items() if p.measures]
    none = "none of these problems is a theory task; `bench suite theory` has four"
    notes = [f"{VERDICTS}; settings were tuned for the loss, not for alignment", _EXPONENTS if tables else none]
    lacking = [table.title for table in tables if not any(column.key == "aligned" for column in table.columns)]
    notes += [f"{name} has no alignment measurements, so the board shows only its rate" for name in lacking]
    return Board("theory", "The theory's tasks", tables, notes)


def _table(collected: Collected, problem: Problem, entries: Sequence[Entry]) -> Table:
    ref = collected.reference_of(problem)
    every = [*entries, *([ref] if ref is not None and ref not in entries else [])]  # the reference may not be shown
    read = {e.runs[seed].run_id: tables for e in every for seed, tables in collected.read(e, _WANTED).items()}
    columns_of = [tables.get("measurements", {}).keys() for tables in read.values()]
    column = next((name for name in ALIGNMENTS if any(name in columns for columns in columns_of)), None)
    facts = {run_id: _facts(collected.by_id[run_id], tables, column) for run_id, tables in read.items()}

    def steps(run: RunResult) -> float | None:
        return facts[run.run_id]["aligned"]

    def mean(name: str, runs: Sequence[RunResult]) -> Interval | str | None:
        values = [facts[run.run_id][name] for run in runs]
        is_partial = 0 < (missing := values.count(None)) < len(values)
        return f"{missing} of {len(values)} runs have none" if is_partial else mean_interval(values)

    # Runs without readable measurements are left out.
    measured = {e: replace(e, runs={s: run for s, run in e.runs.items() if facts[run.run_id]}) for e in every}
    shown = [measured[entry] for entry in entries if measured[entry].runs]
    ref = measured[ref] if ref is not None and measured[ref].runs else None
    verdicts = Verdicts(ref, Measure(f"steps until {column} is {ALIGNED}", "min", True, steps, REACHES))
    rows = dict[Entry, dict[str, Any]]()
    for entry in verdicts.ordered(shown) if column else shown:
        runs = [*entry.runs.values()]
        solved = [bool(v["solved"]) for r in runs for v in r.facts.values() if isinstance(v, dict) and "solved" in v]
        times = [steps(run) for run in runs]
        aligned = {
            **verdicts.values(entry),
            "aligned": f"{len(runs) - times.count(None)} of {len(runs)}",
            "steps": median_time_to(runs, times, [run.steps for run in runs]),
            "alignment": mean_interval((facts[run.run_id]["last"] for run in runs), ends=(-1.0, 1.0)),
        }
        rows[entry] = (aligned if column else dict.fromkeys(("aligned", "steps", "alignment"))) | {
            "rate": mean("rate", runs),
            "direction": mean("direction", runs),
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
    notes = [resolution] * bool(column)
    notes += sorted({f"no comparison: {name} is {why}" for run in runs for name, why in run.unsolved.items()})
    return board_table(problem.name, columns, rows, notes)


def _facts(run: RunResult, tables: Mapping[str, Columns], column: str | None) -> dict[str, float | None]:
    """The first aligned step, the last alignment and the exponents; empty if the run lacks measurements."""
    curve, table = tables.get("curve", {}), tables.get("measurements", {})
    if run.status == "diverged":
        return dict.fromkeys(("aligned", "last", "rate", "direction"))
    if (column is not None and column not in table) or not tables:
        return {}
    values, infimum = table.get(column or "", np.empty(0)), run.infimum or 0.0
    at = np.flatnonzero(values >= ALIGNED)
    least = max(CONVERGED, 1e3 * float(np.finfo(np.float64).eps) * abs(infimum))
    return {
        "aligned": max(1.0, float(table["step"][at[0]])) if at.size else None,
        "last": float(values[-1]) if len(values) and np.isfinite(values[-1]) else None,
        "rate": _exponent(curve["step"], curve["loss"] - infimum, least) if "loss" in curve else None,
        "direction": _exponent(table["step"], table["distance"], CONVERGED) if "distance" in table else None,
    }


def _exponent(step: Array, value: Array, least: float) -> float | None:
    """Exponent over the last decade of steps before the value is within rounding; None with too few values."""
    low = np.flatnonzero(np.isfinite(value) & (value < least))  # later values are rounding
    usable = np.isfinite(value) & (step > 0) & (step < (step[low[0]] if low.size else math.inf))
    x, y = step[usable], value[usable]
    if x.size:
        x, y = x[x >= x[-1] / 10], y[x >= x[-1] / 10]
    kept = stats.thin(x)
    if len(kept) < LEAST_POINTS:
        return None
    return round(stats.slope(np.log(x[kept]), np.log(y[kept]))[0], 9)
