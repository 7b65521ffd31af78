"""The theory board: on the synthetic tasks, steps to alignment and rates of the loss."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from bench.boards.collect import Collected
from bench.boards.entries import Entry
from bench.boards.shared import EVERY, VERDICTS, WHO, Verdicts, who
from bench.boards.speed import median_steps
from bench.results import stats
from bench.results.chart import Array
from bench.results.group import Measure, mean_interval
from bench.results.selection import CONVERGED, End
from bench.results.stats import LEAST_POINTS, Interval
from bench.results.table import Board, Column, Table
from bench.store.record import RunResult
from bench.store.tables import Columns

ALIGNED = 0.99
"""Cosine at which a direction counts as found. The papers give none; ours."""
ALIGNMENTS = ("alignment", "align_W")
"""Columns with the cosine to the theory's direction: W_mm, or the planted head."""

EPS = float(np.finfo(np.float64).eps)


def theory(found: Collected) -> Board:
    """Steps to alignment 0.99, fitted rates, and whether the max-margin problem has a solution."""
    shown, missing = [], []
    for problem, all_entries in found.problems.items():
        if not problem.measures:
            continue
        of = found.reference_of(problem)  # possibly not shown
        every_entry = [*all_entries, *([of] if of is not None and all(of is not e for e in all_entries) else [])]
        read = {e.runs[seed].run_id: _join(own) for e in every_entry for seed, own in found.read(e).items()}
        column = next((name for name in ALIGNMENTS if any(name in own for own in read.values())), None)
        if column is None:
            missing.append(f"{problem.name} has no alignment measurements, so the board shows only its rate")
        kept = [replace(e, runs={s: r for s, r in e.runs.items() if _counts(r, read, column)}) for e in every_entry]
        lost = [
            f"{e.name}: left out for lack of readable measurements: {n} runs"
            for e, left in zip(every_entry, kept, strict=True)
            if (n := len(e.runs) - len(left.runs))
        ]
        entries = [entry for entry in kept[: len(all_entries)] if entry.runs]

        def first(run: RunResult, read: Any = read, column: str | None = column) -> float | None:
            return None if run.status == "diverged" else _first_aligned(read[run.run_id], column)

        def steps(run: RunResult, first: Any = first) -> End:
            step = first(run)
            return None if step is None else max(1.0, step)

        ref = next((e for e, whole in zip(kept, every_entry, strict=True) if whole is of and e.runs), None)
        verdicts = Verdicts(ref, Measure(f"steps until {column} is {ALIGNED}", "min", True, steps))
        rows = []
        for entry in verdicts.ordered(entries) if column else entries:
            runs = list(entry.runs.values())
            verdict = verdicts.values(entry, verdicts.of(entry)) if column else {}
            own = [{} if run.status == "diverged" else read[run.run_id] for run in runs]
            at = [first(run) for run in runs]
            infima = [run.infimum or 0.0 for run in runs]
            rates = [loss_rate(each, infimum) for each, infimum in zip(own, infima, strict=True)]
            rows.append(
                who(entry)
                | verdict
                | {
                    "aligned": f"{sum(step is not None for step in at)} of {len(at)}" if column else None,
                    "steps": median_steps(entry, at) if column else None,
                    "alignment": mean_interval([_last(each, column) for each in own]) if column else None,
                    "rate": _mean(rates),
                    "direction": _mean([direction_rate(each) for each in own]),
                    "solved": _solved(runs),
                    "trials": len(entry.study.trials) if entry.study else None,
                }
            )
        columns = [
            *WHO,
            *(
                [
                    *verdicts.columns,
                    Column("aligned", "aligned", f"runs whose {column} reached {ALIGNED}"),
                    Column(
                        "steps",
                        "median steps",
                        (
                            f"optimizer steps until {column} is {ALIGNED}, 95 % interval from 6 runs on;"
                            " runs that do not reach it are censored"
                        ),
                    ),
                    Column(
                        "alignment", "at the end", "alignment at the last step, mean over seeds with 95 % t-interval"
                    ),
                ]
                if column
                else []
            ),
            Column(
                "rate",
                "loss exponent",
                (
                    "b of loss ~ t^b over the last decade of steps before the training loss (its suboptimality gap"
                    " where known) is within rounding of 0, mean over seeds;"
                    " missing for runs that diverged or have too few values; 95 % t-interval"
                ),
                3,
            ),
            *(
                [
                    Column(
                        "direction",
                        "direction exponent",
                        (
                            "b of distance of directions ~ t^b over the last decade of steps,"
                            " mean over seeds with 95 % t-interval"
                        ),
                        3,
                    )
                ]
                if column == "alignment"
                else []
            ),
            Column("solved", "W_mm feasible", "instances with a max-margin solution to compare with"),
            Column("trials", "trials", "tried settings"),
            *EVERY,
        ]
        notes: list[str] = []
        every = sorted({str(r.config["trainer"].get("measure_every") or "?") for e in entries for r in e.runs.values()})
        if column:
            notes.append(
                f"alignment is measured every {' or '.join(every)} steps, which limits the resolution of steps"
            )
        notes += _reasons(entries) + lost
        shown.append(Table(problem.name, columns, rows, notes))
    none = ["no runs of a theory task; make some with `bench suite theory`"] * (not shown)
    ties = f"{VERDICTS}; settings were tuned for the loss, not for alignment"
    exponents = ["exponents: b of value ~ t^b over the last decade of steps t before rounding takes over"] * bool(shown)
    return Board("theory", "The theory's tasks", shown, [ties, *exponents, *missing, *none])


def _join(tables: Mapping[str, Columns]) -> Columns:
    """The measurements, with the columns of the curve as `curve.NAME`."""
    measured, curve = tables.get("measurements", {}), tables.get("curve", {})
    return {**{f"curve.{name}": column for name, column in curve.items()}, **measured}


def _counts(run: RunResult, read: Mapping[str, Columns], column: str | None) -> bool:
    """Whether a run has measurements that show if it was aligned."""
    return run.run_id in read and (column is None or column in read[run.run_id] or run.status == "diverged")


def _first_aligned(own: Columns, column: str | None) -> float | None:
    if column is None or column not in own:
        return None
    there = np.flatnonzero(own[column] >= ALIGNED)
    return float(own["step"][there[0]]) if there.size else None


def _last(own: Columns, column: str | None) -> float | None:
    if column is None or column not in own or not len(own[column]) or not np.isfinite(own[column][-1]):
        return None
    return float(own[column][-1])


def loss_rate(own: Columns, infimum: float) -> float | None:
    """Exponent of the training loss (suboptimality gap) over its last decade of steps; None with too few values.

    It ends where the loss is within rounding of the infimum.
    """
    if "curve.loss" not in own:
        return None
    return _exponent(own["curve.step"], own["curve.loss"] - infimum, max(CONVERGED, 1e3 * EPS * abs(infimum)))


def direction_rate(own: Columns) -> float | None:
    """Exponent of the distance of directions over the last decade of steps; None if it has too few values."""
    return None if "distance" not in own else _exponent(own["step"], own["distance"], CONVERGED)


def _exponent(step: Array, value: Array, least: float) -> float | None:
    low = np.flatnonzero(np.isfinite(value) & (value < least))  # later values are rounding
    there = np.isfinite(value) & (step > 0) & (step < (step[low[0]] if low.size else math.inf))
    x, y = step[there], value[there]
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
