"""Charts of the Python API: Altair objects, interactive in notebooks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.plots.curves import EVALUATED, SPAN, X_AXES, label, no_column
from bench.plots.panels import Figure, Line, Panel

if TYPE_CHECKING:
    import altair as alt


_WHEN = {f"{kind}{column}" for kind in ("", EVALUATED) for column in ("step", "train_s")}


def altair_chart(spec: Mapping[str, Any]) -> "alt.TopLevelMixin":
    """A chart in Vega-Lite as an Altair object; a notebook shows it interactively, `.save("x.png")` writes a file."""
    import altair as alt

    spec, rows = {**spec}, {}
    for k, view in enumerate(spec.get("concat", [spec])):  # Altair would turn each row into an object
        rows[f"rows{k}"], view["data"] = view["data"]["values"], {"name": f"rows{k}"}
    chart: Any = alt.Chart.from_dict(spec)
    chart.datasets = rows
    return chart


def curves_of(title: str, runs: Sequence[tuple[str, str, Mapping[str, Mapping[str, Any]]]], column: str) -> Figure:
    """A column of the runs' tables against optimizer steps.

    Args:
        title: of the panel.
        runs: name, optimizer and tables of each run.
        column: of the curve, or else of the measurements, or else of the evaluations.

    Raises:
        UserError: no run has this column.
    """
    lines, known = [], set[str]()
    for name, _, tables in runs:
        rows = tables.get("evaluations", {})
        tables = {**tables, "evaluations": {**rows, **{EVALUATED + key: values for key, values in rows.items()}}}
        known |= {column for table in tables.values() for column in table} - _WHEN
        table = next((table for table in tables.values() if column in table), None)
        if table is not None:
            x, y = (np.asarray(table[key], dtype=np.float64) for key in ("step", column))
            lines.append(Line(name, x, y))
    if not lines:
        raise no_column(column, known)
    values = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
    log = bool(values.size and values.min() > 0 and values.max() > SPAN * values.min())
    panel = Panel(title, X_AXES["steps"], label(column), "y" * log, lines)
    return Figure([panel], {name: opt for name, opt, _ in runs}, columns=1)
