"""What the plots of results show, as numbers: `chart_figure.py` draws them for papers, `page.py` for the browser."""

from dataclasses import dataclass

from bench.arms import Array


@dataclass(frozen=True)
class Trace:
    """A curve.

    Attributes:
        name: what the legend calls it; traces of one name share colour and dash.
        x, y: shape (P,), finite, and positive on logarithmic axes.
        band: lower and upper end, shape (P,) each; None for no band.
        marks: draw a marker at each point.
    """

    name: str
    x: Array
    y: Array
    band: tuple[Array, Array] | None = None
    marks: bool = False


@dataclass(frozen=True)
class Chart:
    """A plot.

    Attributes:
        key: a word for files and anchors, unique among the charts of a page.
        title: what it shows, of which problem.
        x, y: what the axes say, with unit.
        log: which axes are logarithmic: "", "x", "y" or "xy".
        traces: in the order of the legend.
        note: what bands are, how many seeds, what was left out.
        limits: of y; None for what the data need.
    """

    key: str
    title: str
    x: str
    y: str
    log: str
    traces: list[Trace]
    note: str
    limits: tuple[float, float] | None = None
