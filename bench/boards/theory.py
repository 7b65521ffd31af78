"""The theory board: on the synthetic tasks, steps to alignment and rates of the loss."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bench.boards.collect import Collected
from bench.boards.entries import Entry, Problem
from bench.boards.shared import VERDICTS, Verdicts, board_table
from bench.boards.speed import REACHES, median_time_to
from bench.results import stats
from bench.results.group import Measure, mean_interval
from bench.results.selection import End
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


_EXPONENT = Column(
    "rate",
    "loss exponent",
    "b of loss ~ t^b over the last decade of steps before the training loss (its suboptimality gap"
    " where known) is within rounding of 0, mean over seeds;"
    " missing for runs that diverged or have too few values; 95 % t-interval",
    3,
)
_DIRECTION = Column(
    "direction",
    "direction exponent",
    "b of distance of directions ~ t^b over the last decade of steps, mean over seeds with 95 % t-interval",
    3,
)


def theory(collected: Collected) -> Board:
    """Steps to alignment 0.99, fitted rates, and whether the max-margin problem has a solution."""
    shown, missing = [], []
    for problem, entries in collected.problems.items():
        if problem.measures:
            shown.append(_table(collected, problem, entries))
            if not any(column.key == "aligned" for column in shown[-1].columns):
                missing.append(f"{problem.name} has no alignment measurements, so the board shows only its rate")
    none = ["none of these problems is a theory task; `bench suite theory` has four"] * (not shown)
    ties = f"{VERDICTS}; settings were tuned for the loss, not for alignment"
    exponents = ["exponents: b of value ~ t^b over the last decade of steps t before rounding takes over"] * bool(shown)
    return Board("theory", "The theory's tasks", shown, [ties, *exponents, *missing, *none])


def _table(collected: Collected, problem: Problem, entries: Sequence[Entry]) -> Table:
    of = collected.reference_of(problem)
    every = [*entries, *([of] if of is not None and of not in entries else [])]  # the reference may not be shown
    read = {e.runs[seed].run_id: _join(table) for e in every for seed, table in collected.read(e).items()}
    column = next((name for name in ALIGNMENTS if any(name in table for table in read.values())), None)
    kept = {e: replace(e, runs={s: r for s, r in e.runs.items() if _counts(r, read, column)}) for e in every}
    shown = [kept[entry] for entry in entries if kept[entry].runs]

    def table(run: RunResult) -> Columns:
        return {} if run.status == "diverged" else read[run.run_id]

    def steps(run: RunResult) -> End:
        step = _first_aligned(table(run), column)
        return None if step is None else max(1.0, step)

    ref = kept[of] if of is not None and kept[of].runs else None
    verdicts = Verdicts(ref, Measure(f"steps until {column} is {ALIGNED}", "min", True, steps, REACHES))
    rows = {}
    for entry in verdicts.ordered(shown) if column else shown:
        runs = list(entry.runs.values())
        at = [_first_aligned(table(run), column) for run in runs]
        verdict = verdicts.values(entry, verdicts.of(entry)) if column else {}
        rows[entry] = verdict | {
            "aligned": f"{sum(step is not None for step in at)} of {len(at)}" if column else None,
            "steps": median_time_to(runs, at, [run.steps for run in runs]) if column else None,
            "alignment": mean_interval([_last(table(run), column) for run in runs], ends=(-1.0, 1.0))
            if column
            else None,
            "rate": _mean([loss_rate(table(run), run.infimum or 0.0) for run in runs]),
            "direction": _mean([direction_rate(table(run)) for run in runs]),
            "solved": _solved(runs),
            "trials": len(entry.study.trials) if entry.study else None,
        }
    aligned = [
        *verdicts.columns,
        Column("aligned", "aligned", f"runs whose {column} reached {ALIGNED}"),
        Column(
            "steps",
            "median steps",
            f"optimizer steps until {column} is {ALIGNED}, 95 % interval from 6 runs on;"
            " runs that do not reach it are censored",
        ),
        Column("alignment", "at the end", "alignment at the last step, mean over seeds with 95 % t-interval"),
    ]
    columns = [
        *(aligned if column else []),
        _EXPONENT,
        *([_DIRECTION] if column == "alignment" else []),
        Column("solved", "W_mm feasible", "instances with a max-margin solution to compare with"),
        Column("trials", "trials", "tried settings"),
    ]
    often = sorted({str(r.config["trainer"].get("measure_every") or "?") for e in shown for r in e.runs.values()})
    resolution = f"alignment is measured every {' or '.join(often)} steps, which limits the resolution of steps"
    lost = [
        f"{entry.name}: left out for lack of readable measurements: {counted(n, 'run')}"
        for entry, left in kept.items()
        if (n := len(entry.runs) - len(left.runs))
    ]
    return board_table(problem.name, columns, rows, [*[resolution] * bool(column), *_reasons(shown), *lost])


def _join(tables: Mapping[str, Columns]) -> Columns:
    """The measurements, with the columns of the curve as `curve.NAME`."""
    measured, curve = tables.get("measurements", {}), tables.get("curve", {})
    return {**{f"curve.{name}": column for name, column in curve.items()}, **measured}


def _counts(run: RunResult, read: Mapping[str, Columns], column: str | None) -> bool:
    """Whether a run has measurements that show if it was aligned."""
    return run.run_id in read and (column is None or column in read[run.run_id] or run.status == "diverged")


def _first_aligned(table: Columns, column: str | None) -> float | None:
    rows = np.flatnonzero(table[column] >= ALIGNED) if column in table else np.empty(0, int)
    return float(table["step"][rows[0]]) if rows.size else None


def _last(table: Columns, column: str) -> float | None:
    values = table.get(column, np.empty(0))
    return float(values[-1]) if len(values) and np.isfinite(values[-1]) else None


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


def _solved(runs: list[RunResult]) -> str | None:
    facts = [fact for run in runs for fact in run.facts.values() if isinstance(fact, dict) and "solved" in fact]
    return f"{sum(bool(fact['solved']) for fact in facts)} of {len(facts)}" if facts else None


def _reasons(entries: list[Entry]) -> list[str]:
    why = sorted({f"{n} is {r}" for entry in entries for run in entry.runs.values() for n, r in run.unsolved.items()})
    return [f"no comparison: {reason}" for reason in why]
