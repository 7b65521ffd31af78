"""The report: verdicts, boards, charts and their commands as one self-contained HTML page."""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from bench import __version__
from bench.boards import BOARDS
from bench.boards.collect import Collected
from bench.boards.entries import Problem
from bench.boards.explain import explained
from bench.boards.headline import headlines
from bench.boards.matrix import matrix, short_names
from bench.plots.charts import CHARTS
from bench.plots.curves import curves
from bench.plots.panels import Figure, Line, Panel, isolate, thinned
from bench.plots.theme import CONFIG, on_dark, script_json, vega
from bench.results.render import heading, is_numeric, telling, template, word_in
from bench.results.stats import Interval, MedianTime
from bench.results.table import Board, Column, Table
from bench.store.stores import Stores
from bench.text import cell, listed

KINDS = {
    "forest": "Effects against the reference",
    "curves": "Training loss",
    "evaluations": "Evaluations on the selection split",
    "sensitivity": "Sensitivity to the first searched setting",
    "profile": "Runs at the target",
    "steps": "Step sizes before (raw) and after (applied) their cap",
    "budget": "Tuning budget",
    "attention": "Attention during training, averaged over heads",
    "stability": "Sharpness, gradient noise and updates",
}
"""Titles of each kind of chart."""
FIRST = ("forest", "curves", "evaluations")
"""The kinds that are shown without a click."""
MOST_POINTS = 100
"""Maximum number of points of a line on the page, whose panels are 300 to 500 pixels wide. Ours."""

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
    entries, problems = collected.entries, [*collected.problems]
    place_of = {run.run_id: i for i, entry in enumerate(entries) for run in entry.runs.values()}
    boards = [make(collected) for make in BOARDS.values()]
    figures = {kind: make(collected) for kind, make in CHARTS.items()} | {"evaluations": _evaluations(collected)}
    charts = [chart for kind in KINDS for chart in _charts(kind, figures[kind])]
    damaged += len({*collected.damaged})  # boards and charts may have found more
    rows = matrix(collected)
    opts = {entry.name: entry.opt for entry in collected.chosen}
    ours = [name for name in rows if opts.get(name) in collected.ours]
    shorter = short_names(problems)
    theirs = {problem for problem in problems if ours and not any(problem in rows[name] for name in ours)}
    made = [
        {"place": i, "kind": entry.kind, "n": len(entry.runs), "opt": entry.name, **explained(entry, collected)}
        for i, entry in enumerate(entries)
    ]
    headline = dict(headlines(collected))
    sections = [
        {
            "key": i,
            "short": shorter[problem],
            "name": cell(problem.name),
            "folded": problem in theirs,
            "open": problem not in theirs and (bool(ours) or i == 0),
            "headline": cell(headline[problem.name]),
            "first": [chart for chart in charts if chart["problem"] == problem.name and chart["kind"] in FIRST],
            "more": _by_kind(c for c in charts if c["problem"] == problem.name and c["kind"] not in FIRST),
            "tables": _tables(boards, problem, problems, place_of),
            "made": [entry for entry in made if entry["problem"] == problem.name],
        }
        for i, problem in enumerate(problems)
    ]
    every = [chart for chart in charts if chart["problem"] == ""]
    numbered = {chart["key"]: chart["data"] for chart in charts}
    colours = sorted({*re.findall(r"#[0-9a-fA-F]{6}\b", json.dumps([numbered, CONFIG])), "#222222"})
    data = {"charts": numbered, "config": CONFIG, "dark": {colour: on_dark(colour) for colour in colours}}
    names = [*rows, *sorted({line for chart in charts for line in chart["names"]} - rows.keys())]
    return template("bench.plots", "report.html.j2", digest=_digest, clean=cell, whole=_whole).render(
        version=__version__,
        vega=vega(),
        data=script_json(data),
        matrix=[
            {"name": name, "ours": name in ours, "cells": [rows[name].get(problem) for problem in problems]}
            for name in rows
        ],
        sections=sections,
        every=every,
        names=names,
        boards=[{"title": board.title, "notes": list(map(cell, board.notes))} for board in boards if board.notes],
        undrawn=[f"{KINDS[kind]}: {note}" for kind, figure in figures.items() for note in _undrawn(figure)],
        runs=runs,
        shown=len(place_of),
        stores=stores,
        damaged=damaged,
        notes=list(map(cell, collected.notes)),
        reference=collected.reference,
    )


def _evaluations(collected: Collected) -> Figure:
    """The compared metric of each problem over its evaluations."""
    panels, figure = [], None
    for problem, entries in collected.problems.items():
        runs = [run for entry in entries for run in entry.runs.values()]
        if any(len(run.validations) > 1 and problem.metric in run.validations[-1] for run in runs):
            figure = curves(replace(collected, entries=entries), f"val_{problem.metric}")
            panels += figure.panels
    return replace(figure, panels=panels) if figure else Figure([])


def _whole(text: str) -> str:
    """Text in which no line breaks within an option's name, an interval or a power of ten."""
    from markupsafe import Markup, escape

    return Markup(_WHOLE.sub(r'<span class="whole">\g<0></span>', str(escape(text))))


def _digest(script: str) -> str:
    """The hash of a script for a Content-Security-Policy, so that no other script can run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


# -- tables -----------------------------------------------------------------------------------------------------------


def _tables(
    boards: Iterable[Board], problem: Problem, problems: Sequence[Problem], place_of: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The tables about a problem: their titles begin with its name."""
    longer = [p.name for p in problems if p.name != problem.name and p.name.startswith(problem.name)]
    return [
        {"board": f"{board.title}{table.title.removeprefix(problem.name)}", **_table(table, place_of)}
        for board in boards
        for table in board.tables
        if table.title.startswith(problem.name) and not table.title.startswith(tuple(longer)) and table.rows
    ]


def _table(table: Table, place_of: Mapping[str, int]) -> dict[str, Any]:
    """A table's texts and sort keys; columns without any value are omitted."""
    table = telling(table)
    rows = []
    for row in table.rows:
        place = next((place_of[run_id] for run_id in row.get("run_ids", ()) if run_id in place_of), None)
        cells = [_cell(column, row) for column in table.columns]
        rows.append({"cells": cells, "made": place, "opt": row.get("opt", "")})
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


def _charts(kind: str, figure: Figure) -> list[dict[str, Any]]:
    """The panels of a figure that have lines, in Vega-Lite."""
    charts = []
    for k, panel in enumerate(figure.drawn):
        styles = {name: look for name, look in figure.styles.items() if name in panel.names}
        small = replace(panel, lines=[_thin(line, panel) for line in panel.lines])
        spec = small.spec(styles, live=True) | dict(title=None, width="container", params=[isolate(["view"])])
        label = cell(f"{panel.title}: {panel.y} against {panel.x}")
        title = cell(panel.title.partition(": ")[0] if panel.problem else panel.title)
        charts.append(
            {
                "key": f"{kind}-{k}",
                "kind": kind,
                "title": title,
                "problem": panel.problem,
                "names": panel.names,
                "notes": list(map(cell, panel.notes)),
                "data": {"spec": spec, "label": label, **_columns(small)},
            }
        )
    return charts


def _columns(panel: Panel) -> dict[str, Any]:
    """The rows of a panel, shorter: the fields, and for each name the numbers of its points."""
    rows, names = panel.rows(), list(dict.fromkeys(line.name for line in panel.lines))
    fields = list(dict.fromkeys(field for row in rows for field in row if field != "name"))
    values = {name: [[row.get(f) for f in fields] for row in rows if row["name"] == name] for name in names}
    return {"fields": fields, "rows": values}


def _thin(line: Line, panel: Panel) -> Line:
    """The line with at most `MOST_POINTS` points."""
    some = thinned(line.x, "x" in panel.log, MOST_POINTS)
    ends = {name: None if (end := getattr(line, name)) is None else end[some] for name in ("low", "high")}
    return line._replace(x=line.x[some], y=line.y[some], **ends)


def _by_kind(charts: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    grouped: dict[str, list[dict[str, Any]]] = {}
    for chart in charts:
        grouped.setdefault(KINDS[chart["kind"]], []).append(chart)
    return grouped


def _undrawn(figure: Figure) -> list[str]:
    """Why panels have no lines."""
    reasons: dict[str, list[str]] = {}
    for panel in figure.panels:
        if not panel.lines:
            reasons.setdefault(cell("; ".join(panel.notes)), []).append(cell(panel.problem or panel.title))
    return [f"{', '.join(problems)}: {why}" for why, problems in reasons.items()]


def stores_in_words(stores: Stores) -> str:
    """Stores for a shared page: the names of their folders, without paths of this machine."""
    names = [f"“{cell(store.folder.name)}”" for store in stores.own]
    named = [f"the store{'s' * (len(names) > 1)} {listed(names)}"] if names else []
    return " and ".join([*named, *["the reference results"] * (stores.reference is not None)])
