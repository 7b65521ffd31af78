"""The report: boards, charts and the commands behind them as one HTML page that needs no network or other file."""

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from bench import __version__, drawing
from bench.boards import BOARDS, Asked, Board
from bench.boards.charts import CHARTS, Chart
from bench.boards.entries import Entry
from bench.results.stats import Interval, MedianTime
from bench.results.table import Column, Table
from bench.run_summary import fit_words
from bench.store.record import RunResult
from bench.text import cell

KINDS = {
    "curves": ("Training loss", "How the loss falls with the optimizer steps, at the settings of the tables."),
    "sensitivity": ("Sensitivity", "How the score depends on the first setting that was searched."),
    "profile": ("Runs at the target",
                "The share of runs that have reached the task's target by a fraction of the budget."),
    "steps": ("Step sizes", "The steps of methods that compute them, before (raw) and after (applied) their cap."),
    "budget": ("Tuning budget", "What is to be expected of the best of k trials."),
}  # fmt: skip
"""What a reader is told of each kind of charts."""
LINES = {"#000000": "#f2f2f2", "#0072B2": "#3a93d0"}
"""Colours of lines that a dark page would swallow, and what takes their place there."""
_SYMBOLS = {
    "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "P": "cross", "*": "star", "X": "x"
}  # fmt: skip


def page(asked: Asked, runs: int, stores: Sequence[str], damaged: int = 0) -> str:
    """The page; the same store gives the same bytes.

    Args:
        asked: what is shown.
        runs: how many there are in the stores.
        stores: their names.
        damaged: how many runs and records could not be read at all.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    asked = replace(asked, tables=cache(asked.tables))  # charts and boards look at the same runs
    entries = asked.found.entries
    made = {run.run_id: i for i, entry in enumerate(entries) for run in entry.runs.values()}
    boards = [_board(make(asked), made) for make in BOARDS.values()]
    charts = {kind: make(asked) for kind, make in CHARTS.items()}
    damaged += len({*asked.found.damaged})  # which boards and charts may have found more of
    environment = Environment(
        loader=PackageLoader("bench.boards", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True
    )  # fmt: skip
    environment.filters |= {"digest": _digest, "clean": cell}
    return environment.get_template("page.html.j2").render(
        version=__version__, runs=runs, shown=len(made), stores=stores, damaged=damaged,
        notes=list(map(cell, asked.found.notes)), boards=boards, reference=asked.reference,
        kinds=[{"key": kind, "title": KINDS[kind][0], "help": KINDS[kind][1], "charts": own}
               for kind, own in charts.items()],
        data=_in_script([_values(chart) for own in charts.values() for chart in own]),
        styles=_in_script(_styles([trace.name for own in charts.values() for chart in own for trace in chart.traces],
                                  [entry.name for entry in entries])),
        entries=[_made(i, entry) for i, entry in enumerate(entries)], plotly=get_plotlyjs(),
    )  # fmt: skip


def _digest(script: str) -> str:
    """What a Content-Security-Policy calls a script: with it no other can run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _in_script(value: Any) -> str:
    """JSON that cannot end the script that it stands in."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


# -- tables -----------------------------------------------------------------------------------------------------------


def _board(board: Board, made: dict[str, int]) -> dict[str, Any]:
    return {
        "key": board.name, "title": board.title, "notes": list(map(cell, board.notes)),
        "tables": [_table(table, made) for table in board.tables],
    }  # fmt: skip


def _table(table: Table, made: dict[str, int]) -> dict[str, Any]:
    """A table's words and what its columns are sorted by; columns that say nothing in any row are left out."""
    told = [c for c in table.columns if c.key in ("rank", "opt") or any(_says(row.get(c.key)) for row in table.rows)]
    rows = []
    for row in table.rows:
        place = next((made[run_id] for run_id in row.get("run_ids", ()) if run_id in made), None)
        cells = [_cell(column, row.get(column.key)) for column in told]
        rows.append({"cells": cells, "made": place})
    columns = [{"key": c.key, "title": cell(c.title), "help": cell(c.help)} for c in told]
    return {"title": cell(table.title), "columns": columns, "rows": rows, "notes": list(map(cell, table.notes))}


def _says(value: Any) -> bool:
    return value is not None and value != [] and value != {}


def _cell(column: Column, value: Any) -> dict[str, Any]:
    number = isinstance(value, int | float | Interval | MedianTime)
    return {"text": cell(value, column.digits), "sort": _sort_key(value), "name": column.key == "opt", "number": number}


def _sort_key(value: Any) -> str:
    """What a cell is sorted by: a number as JavaScript reads it, or nothing where its words are."""
    if isinstance(value, Interval):
        value = value.mean
    elif isinstance(value, MedianTime):
        value = value.median
    if not isinstance(value, int | float):
        return ""
    return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "" if value != value else repr(float(value)))


# -- charts -----------------------------------------------------------------------------------------------------------


def _values(chart: Chart) -> dict[str, Any]:
    """A chart as the page's script draws it."""
    traces = [
        {
            "name": cell(trace.name), "x": _numbers(trace.x), "y": _numbers(trace.y), "marks": trace.marks,
            "band": [_numbers(end) for end in trace.band] if trace.band is not None else None,
        }
        for trace in chart.traces
    ]  # fmt: skip
    return {
        "key": chart.key, "x": cell(chart.x), "y": cell(chart.y), "log": chart.log, "limits": chart.limits,
        "traces": traces
    }  # fmt: skip


def _numbers(values: Iterable[float]) -> list[float]:
    """With the digits that a screen shows."""
    return [float(f"{value:.5g}") for value in values]


def _styles(names: Iterable[str], entries: Iterable[str]) -> dict[str, dict[str, str]]:
    """Colours on light and dark, dashes and symbols by name; the same for an entry in all charts.

    Args:
        names: of all traces.
        entries: names of the entries.
    """
    styles = drawing.entry_styles(entries, names)
    return {
        cell(name): {
            "light": style.color, "dark": LINES.get(style.color, style.color),
            "symbol": _SYMBOLS.get(style.marker, "circle"),
            "dash": ("solid" if style.linestyle == "solid"
                     else ",".join(f"{2 * part:g}px" for part in style.linestyle[1])),
        }
        for name, style in styles.items()
    }  # fmt: skip


# -- how rows were made -----------------------------------------------------------------------------------------------


def _made(place: int, entry: Entry) -> dict[str, Any]:
    """What stands behind a row."""
    studies = {entry.study.name} if entry.study else {run.tuned_by for run in entry.runs.values() if run.tuned_by}
    versions = {"torch": "torch", "lightning": "lightning", "task": "task version", "opt": "optimizer version"}
    return {
        "place": place, "name": cell(entry.name), "problem": cell(entry.problem.name), "kind": entry.kind,
        "n": len(entry.runs), "study": cell(sorted(studies)) if studies else None,
        "versions": {words: cell(entry.versions[name]) for name, words in versions.items()},
        "machines": cell(entry.machines), "commands": list(map(cell, commands(entry.runs.values()))),
    }  # fmt: skip


def commands(runs: Iterable[RunResult]) -> list[str]:
    """Commands of a shell that make these runs, one for all seeds that share their settings.

    Args:
        runs: records.
    """
    seeds: dict[tuple[str, int | None], list[int]] = {}
    for run in runs:
        seed, order = run.config["seed"], run.config["data_seed"]
        seeds.setdefault((fit_words(run), None if order == seed else order), []).append(seed)
    found = []
    for (words, order), own in seeds.items():
        more = "" if order is None else f" --data_seed {order}"
        if len(own) == 1:
            found.append(f"{words} --seed {own[0]}{more}")
        else:
            found.append(f"for seed in {' '.join(map(str, sorted(own)))}; do {words} --seed $seed{more}; done")
    return found


def store_names(folders: Iterable[Path]) -> list[str]:
    """What stores are called on a page that others read: the names of their folders, without those of this machine."""
    return [cell(folder.name) for folder in folders]
