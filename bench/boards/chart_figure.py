"""Charts on paper: a figure with a panel for each, in the house style, as PNG, PDF or SVG."""

import math
import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import drawing, figure_layout
from bench.boards.charts import Chart
from bench.errors import UserError
from bench.text import cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

ENDINGS = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
"""The kinds of file, and what of their metadata would differ from one time to the next."""
_HEIGHT = 2.2


def check_ending(path: Path) -> None:
    """Refuse a file that cannot be drawn.

    Raises:
        UserError: its name ends in something else than .png, .pdf or .svg.
    """
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"-o {path}: the name of a figure must end in .png, .pdf or .svg")


def draw(path: Path, charts: Sequence[Chart], entries: Sequence[str] = ()) -> bytes:
    """What a file with these charts holds; the same charts give the same bytes.

    Args:
        path: its ending says in which format.
        charts: those without traces are left out.
        entries: names that have the same colours in all figures, drawn here or not.

    Raises:
        UserError: there is nothing to draw.
    """
    check_ending(path)
    shown = [chart for chart in charts if chart.traces]
    if not shown:
        raise UserError("nothing to draw: " + "; ".join(f"{cell(chart.title)}: {cell(chart.note)}" for chart in charts))
    kind, image = path.suffix.lower(), BytesIO()
    with drawing.house_style(), warnings.catch_warnings():
        import matplotlib

        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name may hold anything
        matplotlib.rcParams["svg.hashsalt"] = "bench"
        make(shown, entries).savefig(image, format=kind[1:], dpi=drawing.DPI, metadata=ENDINGS[kind])
    return image.getvalue()


def make(charts: Sequence[Chart], entries: Sequence[str] = ()) -> "Figure":
    """The figure, not yet written; call it within `drawing.house_style`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(2, len(charts))
    rows = math.ceil(len(charts) / columns)
    width, height = drawing.TWO_COLUMNS if columns == 2 else drawing.ONE_COLUMN, rows * _HEIGHT
    figure = Figure(figsize=(width, height), dpi=drawing.DPI, layout="constrained")
    FigureCanvasAgg(figure)
    names = {trace.name for chart in charts for trace in chart.traces}
    styles = drawing.entry_styles(entries, names)
    handles: dict[str, Line2D] = {}
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for k, (axes, chart) in enumerate(zip(panels, charts, strict=False)):
        _draw(axes, chart, styles, handles)
        room, letter = width / columns - 0.7, f"({_letter(k)}) " * (len(charts) > 1)
        for name, text, long in (("x", chart.x, room), ("y", chart.y, _HEIGHT - 0.6)):
            axes.set(**{f"{name}label": figure_layout.wrap_text(figure, _safe(text), figure_layout.NORMAL, long)})
        axes.set_title(
            figure_layout.wrap_text(figure, letter + _safe(chart.title), figure_layout.NORMAL, room), loc="left"
        )
    for axes in panels[len(charts) :]:
        axes.remove()
    figure.align_labels()
    words = figure_layout.wrap_text(figure, _safe(caption(charts)), figure_layout.SMALL, width - 0.1)
    artists = (
        figure_layout.add_legend(figure, [handles[name] for name in styles if name in names]),
        figure.supxlabel(words, x=0.05 / width, ha="left", color="0.25"),
    )
    extra = sum(figure_layout.size_inches(figure, artist)[1] for artist in artists)
    figure.set_size_inches(width, round(height + extra + 0.1, 2))
    return figure


def caption(charts: Sequence[Chart]) -> str:
    """The charts' notes as sentences: what holds for all once, and the rest after the letters of its panels."""
    letters: dict[str, list[str]] = {}
    for k, chart in enumerate(charts):
        for line in chart.note.splitlines():
            letters.setdefault(line, []).append(f"({_letter(k)})")
    panels: dict[str, list[str]] = {}
    for line, of in letters.items():
        panels.setdefault("" if len(of) == len(charts) else ", ".join(of), []).append(line)
    words = {of: "; ".join(own) for of, own in panels.items()}
    return " ".join(f"{of}: {own}." if of else f"{own[0].upper()}{own[1:]}." for of, own in words.items())


def _letter(k: int) -> str:
    return chr(ord("a") + k) if k < 26 else f"{_letter(k // 26 - 1)}{_letter(k % 26)}"


def _safe(text: str) -> str:
    """Words that matplotlib takes for no formula."""
    return cell(text).replace("$", r"\$")


def _draw(axes: "Axes", chart: Chart, styles: dict[str, drawing.LineStyle], handles: dict[str, "Line2D"]) -> None:
    """Draw lines and bands, and keep a line of each name for the legend."""
    from matplotlib.lines import Line2D

    axes.set(xscale="log" if "x" in chart.log else "linear", yscale="log" if "y" in chart.log else "linear")
    pale = min(0.18, 0.4 / len(chart.traces))  # so that lines can be seen through many bands
    for i, trace in enumerate(chart.traces):
        style = styles[trace.name]
        looks: dict[str, Any] = dict(color=style.color, linestyle=style.linestyle, lw=drawing.LINE_WIDTH)
        looks |= dict(marker=style.marker, markersize=3) if trace.marks else {}
        if trace.band is not None:
            axes.fill_between(trace.x, *trace.band, color=style.color, alpha=pale, linewidth=0, zorder=2)
        axes.plot(trace.x, trace.y, **looks, zorder=3 + 0.01 * i, solid_capstyle="butt")
        handles.setdefault(trace.name, Line2D([], [], label=_safe(trace.name), **looks))
    every = [end for trace in chart.traces for end in trace.band or (trace.y,)]
    low, high = chart.limits or figure_layout.axis_limits(every, "y" in chart.log, 0.05)
    if chart.limits and "y" not in chart.log:  # a line at the edge would be cut in half
        low, high = low - 0.03 * (high - low), high + 0.03 * (high - low)
    axes.set_ylim(low, high)
    axes.set_xlim(*figure_layout.axis_limits([trace.x for trace in chart.traces], "x" in chart.log, 0.02))
    figure_layout.set_ticks(axes.xaxis, "x" in chart.log)
    figure_layout.set_ticks(axes.yaxis, "y" in chart.log)
