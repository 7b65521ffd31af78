"""Curves of stored runs against steps, epochs or seconds, and observations of training."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.boards.attention import NONE, SHOWN, over_heads, tables_of
from bench.boards.collect import Collected, Entry, Problem
from bench.errors import UserError, several
from bench.plots.means import STEPS, Points, finite, held, mean_panel
from bench.plots.panels import WORDS, Figure, Line, Panel
from bench.results.selection import GAP
from bench.results.stats import Array
from bench.store.block import Columns
from bench.text import CONVERGED

EXPLODED = 10  # multiple of the highest initial loss above which a line is cut off
X_AXES = {"steps": STEPS, "epochs": "epochs", "seconds": "seconds of training"}
EVALUATED = "val_"  # before an evaluated quantity that a table has too: `val_loss`


def figure(collected: Collected, panels: Sequence[Panel]) -> Figure:
    """Panels with the looks of all entries, shown or not, so that an entry looks the same in all figures."""
    pairs = sorted({(entry.opt, entry.name) for entry in collected.chosen})
    return Figure(panels, {name: opt for opt, name in pairs}, collected.ours)


def curves(collected: Collected, column: str = "loss", x: str = "steps") -> Figure:
    """A column of the curve, the measurements or the evaluations (also named `val_...`): means with t-intervals.

    The training loss is shown as suboptimality gap if the infimum is known, and not below `CONVERGED`. `x` is a key of
    `X_AXES`. UserError if no run has this column.
    """
    panels, loss = [], column in ("loss", f"{EVALUATED}loss")
    for problem, entries in collected.problems.items():
        lines = dict[str, list[Points | None]]()
        above = column == "loss" and all(run.infimum is not None for e in entries for run in e.runs.values())
        for entry in entries:
            runs, tables = [*entry.runs.values()], [*collected.read(entry, re.escape(column)).values()]
            points = [points_of(of_run, column, run.validations) for of_run, run in zip(tables, runs, strict=True)]
            points = held(points, [run.status == "completed" for run in runs])
            for k, (line, run) in enumerate(zip(points, runs, strict=True)):
                if loss and line is not None and (above or not (line[1] < 0).any()):  # else losses below 0 stay
                    points[k] = line[0], np.maximum(line[1] - (run.infimum or 0.0) * above, CONVERGED)
            lines[entry.name] = points
        low = loss and any((line[1] == CONVERGED).any() for of in lines.values() for line in of if line is not None)
        facts = [f"losses below {CONVERGED:g} are drawn at that value"] * low
        evaluated, log_x = column.removeprefix(EVALUATED), problem.measures and x == "steps"
        words = WORDS.get(column, column) if evaluated == column else f"{evaluated} on the selection split"
        words += GAP * above
        panel = mean_panel(words, words, lines, facts, log_x=log_x, cut=EXPLODED if loss else math.inf)
        panels.append(of_problem(problem, panel if x == "steps" else _against(panel, x, entries)))
    if not any(panel.lines for panel in panels):
        known = set[str]()
        for entry in collected.entries:
            for seed, tables in collected.read(entry, ".*").items():
                known |= {name for table in tables.values() for name in table} - {"step"}
                evaluated_too = {name for row in entry.runs[seed].validations for name in row} - {"step", "train_s"}
                known |= evaluated_too | {EVALUATED + name for name in evaluated_too}
        if column not in known and (known or column != "loss"):
            near = several(column, known) or [n for n in ("loss", "grad_norm", "val_loss", "accuracy") if n in known]
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "these runs have no tables"
            raise UserError(f"unknown column {column!r}; {hint}")
    return figure(collected, panels)


def points_of(tables: Mapping[str, Columns], column: str, rows: Sequence[Mapping[str, Any]]) -> Points | None:
    """A column of a run's tables, or else of its evaluations; None without values."""
    for kind in ("curve", "measurements"):
        if column in tables.get(kind, {}):
            return finite(tables[kind]["step"], tables[kind][column])
    evaluated = column.removeprefix(EVALUATED)
    values = [(row["step"], row[evaluated]) for row in rows if evaluated in row]
    return finite(*np.array(values, dtype=float).T) if values else None


def _against(panel: Panel, x: str, entries: Sequence[Entry]) -> Panel:
    """The panel with epochs or seconds in place of steps; seconds are means over seeds."""
    runs = {entry.name: [*entry.runs.values()] for entry in entries}
    every = [run for of in runs.values() for run in of]
    budgets = {run.config["trainer"].get("max_epochs") for run in every}
    if x == "epochs" and (len(budgets) > 1 or None in budgets):
        return replace(panel, lines=(), notes=["the budget is in steps, so the length of an epoch is unknown"])

    def place(line: Line) -> Array:
        if x == "epochs":
            return line.x * float(*budgets) / max(run.steps for run in every)
        seconds = []
        for run in runs[line.name]:
            known = {0: 0.0} | {row["step"]: row["train_s"] for row in run.validations} | {run.steps: run.train_s}
            seconds.append(np.interp(line.x, *np.array(sorted(known.items())).T))
        return np.mean(seconds, axis=0)

    note = f"{x}: {'' if x == 'epochs' else 'means over seeds, '}proportional to steps between evaluations"
    lines = [line._replace(x=place(line)) for line in panel.lines]
    return replace(panel, x=X_AXES[x], lines=lines, notes=[*panel.notes, note])


def of_problem(problem: Problem, panel: Panel) -> Panel:
    """The panel with the problem in its title."""
    return replace(panel, title=f"{panel.title}: {problem.name}", problem=problem.name)


def attention(collected: Collected) -> Figure:
    """Means over heads against optimizer steps, a panel for each problem and quantity."""
    panels = []
    for problem in collected.problems:
        tables = {entry.name: [*runs.values()] for entry, runs in tables_of(collected, problem).items()}
        for name, words in SHOWN.items():
            measured = {row: [over_heads(run, name) for run in runs] for row, runs in tables.items()}
            lines = {row: [line and finite(*line) for line in runs] for row, runs in measured.items() if any(runs)}
            if lines:
                panels.append(of_problem(problem, mean_panel(words, words, lines, log_x=True)))
    return figure(collected, panels or [Panel("attention", STEPS, "attention", notes=[NONE])])
