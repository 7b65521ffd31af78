"""The report: verdicts, boards, charts and their commands as one self-contained HTML page."""

import base64
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from bench import __version__
from bench.boards import BOARDS
from bench.boards.collect import Collected, Problem
from bench.boards.explain import explained
from bench.boards.matrix import headline, matrix, short_names
from bench.plots.charts import CHARTS
from bench.plots.curves import curves
from bench.plots.panels import Figure, isolate
from bench.plots.theme import CONFIG, script_json, vega
from bench.results.render import condensed_table, heading, is_numeric, word_in
from bench.results.stats import Interval, MedianTime
from bench.results.table import Board, Table
from bench.store.stores import Stores
from bench.text import cell, listed


def page(collected: Collected, stores: Stores) -> str:
    """The page on these stores; the same store gives the same bytes."""
    collected = replace(collected, tables=cache(collected.tables))  # charts and boards use the same runs
    entries, problems = collected.entries, [*collected.problems]
    place_of = {run.run_id: i for i, entry in enumerate(entries) for run in entry.runs.values()}
    boards = [make(collected) for make in BOARDS.values()]
    figures = {kind: make(collected) for kind, make in CHARTS.items()} | {"evaluations": evaluations(collected)}
    charts = [chart for kind, figure in figures.items() for chart in _charts(kind, figure)]
    rows, ours, theirs = matrix(collected)
    shorter = short_names(problems)
    explanations = [{"place": i, "entry": entry, **explained(entry, collected)} for i, entry in enumerate(entries)]
    sections = [
        {
            "key": i,
            "short": shorter[problem],
            "name": problem.name,
            "folded": problem in theirs,
            "open": problem not in theirs and (bool(ours) or i == 0),
            "headline": headline(collected, problem),
            "charts": [chart for chart in charts if chart["problem"] == problem.name],
            "tables": [*_tables(boards, problem)],
            "explanations": [row for row in explanations if row["problem"] == problem.name],
        }
        for i, problem in enumerate(problems)
    ]

    def row_of(row: Mapping[str, Any]) -> int | None:
        return next((place_of[run_id] for run_id in row.get("run_ids", ()) if run_id in place_of), None)

    names = [f"“{cell(folder.name)}”" for folder in stores.folders]  # a shared page has no paths of this machine
    named = [f"the store{'s' * (len(names) > 1)} {listed(names)}"] * bool(names)
    loader = PackageLoader("bench.plots", ".")
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    pages.filters |= {"digest": _digest, "clean": cell, "heading": heading, "key": _sort_key, "is_numeric": is_numeric}
    return pages.get_template("report.html.j2").render(
        version=__version__,
        vega=vega(),
        data=script_json({"charts": {chart["key"]: chart["data"] for chart in charts}, "config": CONFIG}),
        matrix=[(name, name in ours, [rows[name].get(problem) for problem in problems]) for name in rows],
        sections=sections,
        overall=[chart for chart in charts if not chart["problem"]],
        names=[*rows, *sorted({line for chart in charts for line in chart["names"]} - rows.keys())],
        boards=[board for board in boards if board.notes],
        row_of=row_of,
        word_in=word_in,
        runs=len(stores.runs),
        shown=len(place_of),
        stores=" and ".join(named + ["the reference results"] * (stores.reference is not None)),
        damaged=len(stores.damaged) + len({*collected.damaged}),  # which boards and charts may have found
        notes=collected.notes,
        reference=collected.reference,
    )


def evaluations(collected: Collected) -> Figure:
    """The compared metric during training on the selection split, of problems that evaluate more than once."""
    panels, figure = [], Figure([])
    for problem, entries in collected.problems.items():
        runs = [run for entry in entries for run in entry.runs.values()]
        if any(len(run.validations) > 1 and problem.metric in run.validations[-1] for run in runs):
            figure = curves(replace(collected, entries=entries), f"val_{problem.metric}")
            panels += figure.panels
    return replace(figure, panels=panels)


def _digest(script: str) -> str:
    """The hash of a script for a Content-Security-Policy, so that no other script can run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _tables(boards: Sequence[Board], problem: Problem) -> Iterator[tuple[str, Table]]:
    """The tables about a problem; columns without any value are left out."""
    for board in boards:
        for table in board.tables:
            if table.problem == problem.name and table.rows:
                yield f"{board.title}{table.title.removeprefix(problem.name)}", condensed_table(table)


def _sort_key(value: Any) -> str:
    """Sort key of a cell: a number as JavaScript reads it, or nothing if the text is the key."""
    value = value.mean if isinstance(value, Interval) else value.median if isinstance(value, MedianTime) else value
    if not isinstance(value, int | float) or math.isnan(value):
        return ""
    return f"{value:.9g}".replace("inf", "Infinity")


def _charts(kind: str, figure: Figure) -> Iterator[dict[str, Any]]:
    """The panels of a figure that have lines, in Vega-Lite."""
    for k, panel in enumerate(figure.drawn):
        styles = {name: look for name, look in figure.styles.items() if name in panel.names}
        spec = panel.spec(styles) | dict(title=None, width="container", params=[isolate(["view"])])
        label = cell(f"{panel.title}: {panel.y} against {panel.x}")
        yield {
            "key": f"{kind}-{k}",
            "kind": kind,
            "title": panel.title.partition(": ")[0] if panel.problem else panel.title,
            "problem": panel.problem,
            "names": panel.names,
            "notes": panel.notes,
            "data": {"spec": spec, "label": label, "names": panel.names, "rows": panel.rows()},
        }
