"""Charts of the Python API: Altair objects, interactive in notebooks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.plots.curves import EVALUATED, SPAN, X_AXES, label, no_column
from bench.plots.panels import Figure, Line, Panel

if TYPE_CHECKING:
    import altair as alt


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
        known |= {column for table in tables.values() for column in table}
        known |= {EVALUATED + column for column in tables.get("evaluations", {})}
        table = next((table for table in tables.values() if column in table), None)
        if table is None and column.startswith(EVALUATED):
            table = {EVALUATED + name: values for name, values in tables.get("evaluations", {}).items()}
            table["step"] = table.get(f"{EVALUATED}step", ())
        if table is not None and column in table:
            x, y = (np.asarray(table[name], dtype=np.float64) for name in ("step", column))
            lines.append(Line(name, x, y))
    if not lines:
        raise no_column(column, known - {"step", "train_s", f"{EVALUATED}step", f"{EVALUATED}train_s"})
    values = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
    log = bool(values.size and values.min() > 0 and values.max() > SPAN * values.min())
    panel = Panel(title, X_AXES["steps"], label(column), "y" * log, lines)
    return Figure([panel], {name: opt for name, opt, _ in runs}, columns=1)
