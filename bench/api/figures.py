"""Figures of the Python API: matplotlib objects for notebooks."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.boards.curves import LABELS, SPAN
from bench.errors import unknown
from bench.results.chart import MOST, Chart, Panel, Trace
from bench.results.draw import house_style, make

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SCREEN_DPI = 110


def shown_figure(chart: Chart) -> "Figure":
    """The figure of a chart; a notebook shows it as PNG, with or without pyplot."""
    figure: Any = make(chart)

    def png() -> bytes:
        image = BytesIO()
        with house_style():
            figure.savefig(image, format="png", dpi=_SCREEN_DPI)
        return image.getvalue()

    figure._repr_png_ = png
    return figure


def curves_of(title: str, runs: Sequence[tuple[str, str, Mapping[str, Mapping[str, Any]]]], column: str) -> Chart:
    """A column of the runs' tables against optimizer steps.

    Args:
        title: of the panel.
        runs: name, optimizer and tables of each run.
        column: of the curve, or else of the measurements.

    Raises:
        UserError: no run has this column.
    """
    traces = []
    for name, _, tables in runs:
        table = next((each for each in tables.values() if column in each), None)
        if table is not None:
            x = np.asarray(table["step"], dtype=np.float64)
            traces.append(Trace(name, x, np.clip(np.asarray(table[column], dtype=np.float64), -MOST, MOST)))
    if not traces:
        known = sorted({name for _, _, tables in runs for table in tables.values() for name in table} - {"step"})
        raise unknown("column", column, known)
    values = np.concatenate([trace.y[np.isfinite(trace.y)] for trace in traces])
    log = bool(values.size and values.min() > 0 and values.max() > SPAN * values.min())
    words = LABELS.get(column, column)
    panel = Panel(column, title, "optimizer steps", words, "y" * log, traces)
    return Chart([panel], {name: opt for name, opt, _ in runs}, columns=1)
