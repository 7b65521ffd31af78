"""The report: boards, charts and their commands as one self-contained HTML page."""

import base64
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from bench import __version__
from bench.boards import BOARDS
from bench.boards.charts import CHARTS
from bench.boards.collect import Collected
from bench.boards.explain import explained
from bench.boards.headline import headlines
from bench.results.chart import Chart
from bench.results.embed import embed, variables
from bench.results.render import heading, is_numeric, telling, template, word_in
from bench.results.stats import Interval, MedianTime
from bench.results.table import Board, Column, Table
from bench.store.stores import Stores
from bench.text import cell, listed

KINDS = {
    "forest": (
        "Effects against the reference",
        "Effect size of each optimizer against the reference of the problem, paired by seed.",
    ),
    "curves": ("Training loss", "Loss against optimizer steps, at the settings of the tables."),
    "sensitivity": ("Sensitivity", "Score against the first searched setting."),
    "profile": ("Runs at the target", "Share of runs at the task's target, by fraction of the budget."),
    "steps": ("Step sizes", "Step sizes of methods that compute them, before (raw) and after (applied) the cap."),
    "budget": ("Tuning budget", "The expected best of k trials."),
    "attention": ("Attention", "Attention during training, averaged over heads."),
    "stability": ("Stability", "Sharpness, gradient noise and updates during training."),
}
"""Captions of each kind of chart."""

_WHOLE = re.compile(r"--\w[\w.]*|\[[-+.,\de ]+\]|\d[\d.]*e[-+]\d+")


def page(collected: Collected, runs: int, stores: str, damaged: int = 0) -> str:
    """The page; the same store gives the same bytes.

    Args:
        collected: the shown entries.
        runs: number of runs in the stores.
        stores: in words (`stores_in_words`).
        damaged: number of unreadable runs and records.
    """
    collected = replace(collected, tables=cache(collected.tables))  # charts and boards use the same runs
    entries = collected.entries
    place_of = {run.run_id: i for i, entry in enumerate(entries) for run in entry.runs.values()}
    boards = [make(collected) for make in BOARDS.values()]
    charts = [_kind(kind, *KINDS[kind], make(collected)) for kind, make in CHARTS.items()]
    damaged += len({*collected.damaged})  # boards and charts may have found more
    light, dark = variables("".join(panel["svg"] for chart in charts for panel in chart["panels"]))
    return template("bench.boards", "page.html.j2", digest=_digest, clean=cell, whole=_whole).render(
        version=__version__,
        boards=[_board(board, place_of) for board in boards if any(table.rows for table in board.tables)],
        first=next(iter(CHARTS)),
        kinds=[chart for chart in charts if chart["panels"]],
        headlines=[(cell(name), cell(words)) for name, words in headlines(collected)],
        light=light,
        dark=dark,
        runs=runs,
        shown=len(place_of),
        stores=stores,
        damaged=damaged,
        notes=list(map(cell, collected.notes)),
        reference=collected.reference,
        entries=[
            {"place": i, "kind": entry.kind, "n": len(entry.runs), **explained(entry, collected)}
            for i, entry in enumerate(entries)
        ],
    )


def _whole(text: str) -> str:
    """Text in which no line breaks within an option's name, an interval or a power of ten."""
    from markupsafe import Markup, escape

    return Markup(_WHOLE.sub(r'<span class="whole">\g<0></span>', str(escape(text))))


def _digest(script: str) -> str:
    """The hash of a script for a Content-Security-Policy, so that no other script can run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


# -- tables -----------------------------------------------------------------------------------------------------------


def _board(board: Board, place_of: Mapping[str, int]) -> dict[str, Any]:
    """A board's tables with rows; its notes mention the others."""
    bare = [f"{table.title}: nothing to show" for table in board.tables if not table.rows]
    notes = [note for table in board.tables if not table.rows for note in table.notes]
    return {
        "key": board.name,
        "title": board.title,
        "notes": list(map(cell, (*board.notes, *bare, *notes))),
        "tables": [_table(table, place_of) for table in board.tables if table.rows],
    }


def _table(table: Table, place_of: Mapping[str, int]) -> dict[str, Any]:
    """A table's texts and sort keys; columns without any value are omitted."""
    table = telling(table)
    rows = []
    for row in table.rows:
        place = next((place_of[run_id] for run_id in row.get("run_ids", ()) if run_id in place_of), None)
        cells = [_cell(column, row) for column in table.columns]
        rows.append({"cells": cells, "made": place})
    columns = [{"key": c.key, "title": heading(c), "help": cell(c.help)} for c in table.columns]
    return {"title": cell(table.title), "columns": columns, "rows": rows, "notes": list(map(cell, table.notes))}


def _cell(column: Column, row: Mapping[str, Any]) -> dict[str, Any]:
    value, name = row.get(column.key), column.key == "opt"
    return {"text": word_in(column, row), "sort": _sort_key(value), "name": name, "number": is_numeric(value)}


def _sort_key(value: Any) -> str:
    """Sort key of a cell: a number as JavaScript reads it, or nothing if the text is the key."""
    if isinstance(value, Interval):
        value = value.mean
    elif isinstance(value, MedianTime):
        value = value.median
    if not isinstance(value, int | float):
        return ""
    return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "" if value != value else f"{value:.9g}")


# -- charts -----------------------------------------------------------------------------------------------------------


def _kind(kind: str, title: str, words: str, chart: Chart) -> dict[str, Any]:
    """The panels of a chart that have data, and the reasons why others have none."""
    bare: dict[str, list[str]] = {}
    for panel in chart.panels:
        if not panel.traces:
            bare.setdefault(cell(panel.note), []).append(cell(panel.title))
    notes = [f"{', '.join(titles)}: {why}" for why, titles in bare.items()]
    panels = [
        {"key": panel.key, "title": cell(panel.title), "notes": list(map(cell, panel.note.splitlines()))}
        | embed(chart, panel)
        for panel in chart.shown.panels
    ]
    return {"key": kind, "title": title, "help": words, "notes": notes, "panels": panels}


def stores_in_words(stores: Stores) -> str:
    """Stores for a shared page: the names of their folders, without paths of this machine."""
    names = [f"“{cell(store.folder.name)}”" for store in stores.own]
    named = [f"the store{'s' * (len(names) > 1)} {listed(names)}"] if names else []
    return " and ".join([*named, *["the reference results"] * (stores.reference is not None)])
