"""Draws charts as PNG, PDF and SVG for print.

Matplotlib is imported only for drawing, since its import takes most of a second.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.errors import UserError
from bench.results.chart import Array, Chart, Panel, Trace, axis_limits, caption, letter
from bench.results.layout import NORMAL, SMALL, add_legend, add_watermark, set_ticks, size_inches, wrap_text
from bench.results.styles import GUIDE_DASHES, styles
from bench.text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

DPI = 300
ONE_COLUMN, TWO_COLUMNS = 3.3, 6.8
"""Widths in inches of a figure with one panel per row and with more."""
_ROWS = {1: 2.25, 2: 2.2, 3: 1.85}
"""Height in inches of a row, by its number of panels."""
_STACK = 2.9
"""Total height in inches of stacked panels."""
ENDINGS: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}
"""The file formats, and their metadata that would change between runs."""

_RC = {
    "font.family": "DejaVu Sans",  # part of matplotlib, so figures are the same everywhere
    "mathtext.fontset": "dejavusans",
    "font.size": NORMAL,
    "axes.titlesize": NORMAL,
    "axes.labelsize": NORMAL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "figure.labelsize": SMALL,
    "lines.linewidth": 1.2,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.use_mathtext": True,
    "axes.formatter.limits": (-4, 5),
    "axes.formatter.useoffset": False,
    "pdf.fonttype": 42,  # fonts that journals accept
    "svg.fonttype": "none",  # searchable text
    "svg.hashsalt": "bench",
}


def check_ending(path: Path) -> None:
    """Refuse an unknown file format.

    Raises:
        UserError: the name does not end in .png, .pdf or .svg.
    """
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"-o {path}: the name of a figure must end in .png, .pdf or .svg")


def picture(chart: Chart, ending: str) -> bytes:
    """The content of a file with this chart and ending; the same chart gives the same bytes.

    Raises:
        UserError: a formula is invalid.
    """
    image, kind = BytesIO(), ending.lower()
    with house_style():
        make(chart).savefig(image, format=kind[1:], dpi=DPI, metadata=ENDINGS[kind])
    return image.getvalue()


def write_pictures(chart: Chart, stem: Path) -> list[Path]:
    """Write `STEM.png` (300 dpi) and `STEM.pdf` into a folder, which is created if needed.

    Raises:
        UserError: a formula is invalid; then nothing is written.
    """
    images = {stem.with_suffix(ending): picture(chart, ending) for ending in (".png", ".pdf")}
    stem.parent.mkdir(parents=True, exist_ok=True)
    for path, image in images.items():
        path.write_bytes(image)
    return list(images)


@contextmanager
def house_style() -> Iterator[None]:
    """Our settings instead of the user's, who may have a matplotlibrc."""
    import matplotlib.style

    with matplotlib.style.context(["default", _RC]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # names may have any characters
        yield


def make(chart: Chart) -> "Figure":
    """The figure with title, legend and caption, not yet written.

    Raises:
        UserError: a formula is invalid.
    """
    columns = min(chart.columns, len(chart.panels))
    rows = [chart.panels[k : k + columns] for k in range(0, len(chart.panels), columns)]
    width = ONE_COLUMN if columns == 1 else TWO_COLUMNS
    if chart.stacked:
        shares = [_STACK * panel.share / sum(other.share for other in chart.panels) for panel in chart.panels]
    else:
        shares = [max(_ROWS[columns], *(panel.least for panel in row)) for row in rows]
    height = sum(shares)
    with house_style():
        figure = empty_figure(width, height)
        grid = figure.subplots(len(rows), columns, squeeze=False, sharex=chart.stacked, height_ratios=shares)
        panels = list(grid.flat)
        legend = Legend(chart)
        for k, (axes, panel) in enumerate(zip(panels, chart.panels, strict=False)):
            draw_panel(axes, panel, legend, (width / columns - 0.7, shares[k // columns] - 0.5))
        for axes in panels[len(chart.panels) :]:
            axes.remove()
        if engine := figure.get_layout_engine():
            engine.execute(figure)  # tick labels of all panels decide how wide the axes are
        for k, (axes, panel) in enumerate(zip(panels, chart.panels, strict=False)):
            title = f"({letter(k)}) " * (len(chart.panels) > 1 and not chart.stacked) + legend.text(panel.title)
            wide = axes.get_position().width * width
            axes.set_title(wrap_text(figure, title.strip(), NORMAL, wide), loc="left")
        figure.align_labels()
        words = legend.text(chart.caption or caption(chart.panels)) if chart.captioned else ""
        artists = [
            add_legend(figure, legend.handles),
            figure.supxlabel(wrap_text(figure, words, SMALL, width - 0.1), x=0.05 / width, ha="left", color="0.25"),
        ]
        extra = sum(size_inches(figure, artist)[1] for artist in artists) + 0.1
        figure.set_size_inches(width, round(height + extra, 2))
        if chart.watermark:
            add_watermark(figure, chart.watermark)
        return figure


def empty_figure(width: float, height: float) -> "Figure":
    """An empty figure; call it within `house_style`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


class Legend:
    """The styles of a chart's names, and a line for each drawn name.

    Attributes:
        styles: by name.
        names: the drawn names, in order.
        guides: lines of guides, by name.
        labelled: as the chart's.
    """

    def __init__(self, chart: Chart) -> None:
        traces = [trace for panel in chart.panels for trace in panel.traces]
        self.styles = styles(chart.series, [trace.name for trace in traces], chart.ordered)
        self.names = [name for name in self.styles if any(trace.name == name for trace in traces)]
        self.guides: dict[str, Line2D] = {}
        self._marked = {trace.name for trace in traces if trace.marks}
        self._joined = {trace.name for trace in traces if trace.joined}
        self.labelled, self._formulas = chart.labelled, chart.formulas

    def text(self, words: str) -> str:
        """Text for matplotlib, escaped unless the chart has formulas."""
        return words if self._formulas else clean(words).replace("$", r"\$")

    def looks(self, name: str) -> dict[str, Any]:
        """Line properties for this name."""
        style = self.styles[name]
        looks: dict[str, Any] = dict(color=style.color, linestyle=style.linestyle if name in self._joined else "none")
        if name in self._marked:
            looks |= dict(marker="o", markersize=4.5) if self.labelled else dict(marker=style.marker, markersize=3)
        return looks

    @property
    def handles(self) -> "list[Line2D]":
        """The lines of the legend."""
        from matplotlib.lines import Line2D

        names = [] if self.labelled else self.names
        lines = [Line2D([], [], label=self.text(name), **self.looks(name)) for name in names]
        return lines + list(self.guides.values())


def draw_panel(axes: "Axes", panel: Panel, legend: Legend, room: tuple[float, float]) -> None:
    """Draw and label a panel of this width and height in inches; call it within `house_style`.

    Artists of a name have the gid `series-N`, with N its index in the legend.
    """
    from matplotlib.lines import Line2D

    log_x, log_y = "x" in panel.log, "y" in panel.log
    axes.set(xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
    drawn = [trace for trace in panel.traces if np.isfinite(trace.y).any()]
    ends = [end for trace in drawn for end in (trace.y, *(trace.band or ()))]
    limits = panel.limits or axis_limits(ends, log_y, 0.05)
    axes.set_ylim(*limits)
    axes.set_xlim(*(panel.x_limits or axis_limits([trace.x for trace in panel.traces], log_x, 0.02)))
    pale = min(0.18, 0.9 / max(1, len(drawn)))  # so that lines can be seen through many bands
    for i, trace in enumerate(drawn):
        whole = bool(np.all((trace.y >= limits[0]) & (trace.y <= limits[1]) | np.isnan(trace.y)))
        gid = f"series-{legend.names.index(trace.name)}"
        at = _marked(trace.x, log_x, i / len(drawn)) if trace.marks == "some" else None
        looks: dict[str, Any] = legend.looks(trace.name) | dict(zorder=(3 if trace.joined else 4.5) + 0.01 * i)
        looks |= {"markerfacecolor": "white"} if trace.hollow else {}
        axes.plot(
            trace.x,
            trace.y,
            **looks,
            markevery=at,
            solid_capstyle="butt",
            clip_on=not whole,
            gid=gid,
            label=legend.text(trace.name),
        )
        _draw_beside(axes, trace, legend.styles[trace.name].color, pale, gid)
    for guide in panel.guides:
        number = list(legend.guides).index(guide.name) if guide.name in legend.guides else len(legend.guides)
        thin: dict[str, Any] = dict(color="0.35", linestyle=GUIDE_DASHES[number % len(GUIDE_DASHES)], lw=0.8)
        axes.plot(guide.x, guide.y, **thin, zorder=4)
        legend.guides.setdefault(guide.name, Line2D([], [], label=legend.text(guide.name), **thin))
    set_ticks(axes.xaxis, log_x)
    set_ticks(axes.yaxis, log_y)
    if not drawn:
        axes.set_yticks([])
        axes.text(0.5, 0.5, panel.empty, transform=axes.transAxes, ha="center", va="center", color="0.4")
    _name_ticks(axes, panel, legend)
    _label_axes(axes, panel, legend, room)


def _label_axes(axes: "Axes", panel: Panel, legend: Legend, room: tuple[float, float]) -> None:
    """Set the axis labels, wrapped for a panel of this width and height in inches."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    wide = room[0]
    if legend.labelled:
        wide += 0.4 - max(size_inches(figure, label)[0] for label in axes.get_yticklabels())
    axes.set_xlabel(wrap_text(figure, legend.text(panel.x), NORMAL, wide))
    axes.set_ylabel(wrap_text(figure, legend.text(panel.y), NORMAL, room[1]))


def _draw_beside(axes: "Axes", trace: Trace, color: str, pale: float, gid: str) -> None:
    """Draw a trace's band or bars, cross and ring."""
    beside: dict[str, Any] = dict(color=color, gid=gid)
    if trace.band is not None:
        bottom, top = axes.get_ylim()
        low, high = (np.nan_to_num(end, nan=np.nan, posinf=top, neginf=bottom) for end in trace.band)
        if trace.joined:
            axes.fill_between(trace.x, low, high, **beside, alpha=pale, linewidth=0, zorder=2)
        else:
            axes.vlines(trace.x, low, high, **beside, alpha=0.35, lw=3, zorder=2)
    if trace.x_band is not None:
        axes.hlines(trace.y, *trace.x_band, **beside, alpha=0.35, lw=3, zorder=2)
    if trace.cross is not None:
        axes.plot(*trace.cross, **beside, marker="x", markersize=5, markeredgewidth=1.1, zorder=5)
    if trace.ring is not None:
        axes.plot(*trace.ring, **beside, marker="o", markersize=7, fillstyle="none", clip_on=False)


def _marked(x: Array, log: bool, phase: float) -> list[int]:
    """Indices of points with a marker: six, even over the line, with a different offset for each arm."""
    if len(x) < 3:
        return list(range(len(x)))
    position = np.log(x) if log else x
    wanted = position[0] + (position[-1] - position[0]) * (np.arange(6) + 0.1 + 0.8 * phase) / 6
    return sorted({int(np.abs(position - value).argmin()) for value in wanted})


def _name_ticks(axes: "Axes", panel: Panel, legend: Legend) -> None:
    """Replace tick numbers by the panel's labels, if any."""
    if panel.y_ticks is not None:
        words = ["\n".join(map(legend.text, words_of.split("\n"))) for words_of in panel.y_ticks.values()]
        axes.set_yticks(list(panel.y_ticks), words, multialignment="right")
    if panel.x_ticks is not None:
        words = list(map(legend.text, panel.x_ticks.values()))
        long = sum(map(len, words)) > 30
        axes.set_xticks(list(panel.x_ticks), words, rotation=30 * long, ha="right" if long else "center")
