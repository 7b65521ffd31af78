"""Figures of panels: the numbers of their lines, as DataFrames, as Vega-Lite, as Altair charts and as files.

pandas and Altair are imported where they are used: each import takes half a second.
"""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.plots.theme import FAINT, GREY, HEIGHT, WIDTH, Look, base, looks, picture
from bench.results.stats import Array
from bench.text import clean

if TYPE_CHECKING:
    import pandas as pd

Spec = dict[str, Any]
"""A part of a chart in Vega-Lite."""
MOST = 1e150
"""Largest drawn number; 1 / `MOST` is the smallest on a logarithmic axis."""
WORDS = {
    "loss": "training loss",
    "grad_norm": "norm of the gradient",
    "raw_step": "step size before its cap",
    "applied_step": "step size",
    "test_loss": "test loss",
    "train_error": "training error (fraction)",
    "test_error": "test error (fraction)",
}
"""Axis labels of columns; others have their own name."""
_NUMBER = (
    "datum.value == 0 ? '0' : abs(datum.value) >= 1e5 || abs(datum.value) < 1e-3"
    " ? replace(format(datum.value, '.3~e'), '+', '') : format(datum.value, ',.6~g')"
)
"""Labels of ticks, without letters that the font lacks."""
_SPARSE = f"datum.label ? {_NUMBER} : ''"
"""On a logarithmic axis, where crowded ticks have no label."""
_GUIDES = ([4, 2], [1, 2], [7, 2, 2, 2], [1, 0])
"""Dashes of guides."""
_DRAG = "[pointerdown[event.shiftKey], window:pointerup] > window:pointermove!"
_MIDDLE: Spec = {"x": {"value": WIDTH / 2}, "y": {"value": HEIGHT / 2}}


class Line(NamedTuple):
    """The numbers of a line.

    Attributes:
        name: legend entry; lines of the same name share colour, dash and marker.
        x, y: shape (P,); NaN in y interrupts the line.
        low, high: the ends of its band, shape (P,); infinite ones reach the edge of the panel; None for no band.
        cross: a point marked with a cross.
    """

    name: str
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None
    cross: tuple[float, float] | None = None


@dataclass(frozen=True)
class Panel:
    """A pair of axes with lines.

    Attributes:
        title: quantity and problem.
        x, y: labels of the axes, with units.
        log: which axes are logarithmic: "", "x", "y" or "xy".
        lines: in the order of drawing; none if there is nothing to show, and the notes say why.
        notes: meaning of bands, number of seeds, exclusions.
        limits: of y; None for limits from the data.
        marks: a marker at each point, at some, or at none.
        guides: lines for comparison, drawn thin and grey.
        problem: the name of the problem, if it shows one.
    """

    title: str
    x: str
    y: str
    log: str = ""
    lines: Sequence[Line] = ()
    notes: Sequence[str] = ()
    limits: tuple[float, float] | None = None
    marks: str = ""
    guides: Sequence[Line] = ()
    problem: str = ""

    @property
    def names(self) -> list[str]:
        """The drawn names."""
        return list(dict.fromkeys(line.name for line in self.lines))

    @property
    def frame(self) -> "pd.DataFrame":
        """The lines in long form: name, line (its number), x, y, low, high."""
        import pandas as pd

        return pd.DataFrame(self.rows(), columns=["name", "line", "x", "y", "low", "high"])

    def rows(self) -> list[Spec]:
        """The points of all lines; missing numbers are None."""
        rows = []
        for k, line in enumerate(self.lines):
            ends = {"low": line.low, "high": line.high}
            if self.marks == "some":
                ends["marked"] = _marked(line.x, "x" in self.log, (k + 0.5) / len(self.lines))
            numbers = {"x": line.x, "y": line.y} | {name: end for name, end in ends.items() if end is not None}
            columns = {name: self._finite(values, name == "x") for name, values in numbers.items()}
            rows += [
                {"name": line.name, "line": k} | dict(zip(columns, values, strict=True))
                for values in zip(*columns.values(), strict=True)
            ]
        return rows

    def _finite(self, values: Array, x: bool) -> list[float | None]:
        """Numbers for JSON; infinite ends of bands are at the edge of the panel."""
        low, high = (None, None) if x or self.limits is None else self.limits
        edges = np.nan_to_num(values, nan=np.nan, posinf=high or MOST, neginf=-MOST if low is None else low)
        return [None if math.isnan(value) else float(f"{value:.6g}") for value in np.clip(edges, -MOST, MOST)]

    def spec(self, styles: Mapping[str, Look], view: str = "view", columns: int = 1, *, live: bool) -> Spec:
        """The panel in Vega-Lite, without its data.

        Args:
            styles: of all names in the legend.
            view: a name for it.
            columns: panels below the legend; without any, there is none.
            live: show values at the pointer, zoom on shift and wheel, fade what the legend's clicked name is not.
        """
        x, y = axis("x", self.x, "x" in self.log), axis("y", self.y, "y" in self.log, self.limits)
        by, opacity = encodings(styles, columns, marks=bool(self.marks)), faded(live)
        color, shape = by["color"], by.pop("shape")
        layers = [layer("line", dict(y=y, opacity=opacity, **by), strokeJoin="round")]
        if not any(len(line.x) for line in self.lines):
            x["scale"] |= {"domain": [1, 10]}
            layers.append(layer("text", _MIDDLE, data=[{}], text="no values"))
        banded = any(line.low is not None for line in self.lines)
        if banded:
            ends = dict(y=y | {"field": "low"}, y2={"field": "high"}, color=color, opacity=faded(live, 0.16))
            layers.insert(0, layer("area", ends))
        if self.marks:
            own = dict(y=y, color=color, shape=shape, opacity=opacity)
            layers.append(layer("point", own, "datum.marked" * (self.marks == "some"), filled=True, size=34))
        for line in self.lines:
            if line.cross is not None:
                at = [dict(zip("xy", line.cross, strict=True))]
                look: Spec = dict(shape="M-1,-1L1,1M-1,1L1,-1", size=60, color=styles[line.name].color, strokeWidth=1.6)
                layers.append(layer("point", dict(x=x, y=y), data=at, **look))
        for k, (name, *points) in enumerate(line[:3] for line in self.guides):
            at = [dict(zip("xy", map(float, point), strict=True)) for point in zip(*points, strict=True)]
            layers.append(layer("line", dict(x=x, y=y), data=at, color=GREY, strokeWidth=1, strokeDash=_GUIDES[k % 4]))
            words: Spec = dict(text=clean(name), align="right", dy=-7, color=GREY)
            layers.append(layer("text", dict(x=x, y=y), data=at[-1:], **words))
        if live:
            tip = [{"field": "name"}, number("x", self.x), number("y", self.y)]
            tip += [number("low"), number("high")] * banded
            layers.append(layer("point", dict(y=y, color=color, tooltip=tip), opacity=0, filled=True, size=200))
            select = {"type": "interval", "zoom": "wheel![event.shiftKey]", "translate": _DRAG}
            layers[0]["params"] = [{"name": f"zoom_{view}", "select": select, "bind": "scales"}]
        shared = dict(x=x, detail={"field": "line", "type": "nominal"})
        return self.framed(layers, view) | {"height": HEIGHT, "encoding": shared}

    def framed(self, layers: list[Spec], view: str) -> Spec:
        """Layers with the panel's title; the first is named, for the parameters of a figure."""
        layers[0]["name"] = view
        return {"title": wrapped(self.title, WIDTH), "width": WIDTH, "layer": layers}


@dataclass(frozen=True)
class Figure:
    """Panels with one legend and a caption.

    Attributes:
        panels: row by row; those without lines are not drawn.
        series: all names, drawn or not, in the legend's order, with the optimizer of each.
        ours: the reader's own optimizers.
        columns: panels per row.
        caption: text below the panels; None for their notes.
        ordered: the names are levels of one quantity.
        watermark: large and pale text across each panel.
    """

    panels: Sequence[Panel]
    series: Mapping[str, str] = field(default_factory=dict)
    ours: frozenset[str] = frozenset()
    columns: int = 2
    caption: str | None = None
    ordered: bool = False
    watermark: str = ""

    @property
    def drawn(self) -> list[Panel]:
        """The panels with something to show."""
        return [panel for panel in self.panels if panel.lines]

    @cached_property
    def styles(self) -> dict[str, Look]:
        """The looks of all names, drawn or not."""
        names = {name: name for panel in self.panels for name in panel.names}
        others = {name: name for name in names if name not in self.series}
        return looks({**self.series, **others}, self.ours, self.ordered)

    def spec(self, *, live: bool = True) -> Spec:
        """The figure in Vega-Lite."""
        panels = self.drawn
        names = {name for panel in panels for name in panel.names}
        styles = {name: look for name, look in self.styles.items() if name in names}
        views, columns = [], min(self.columns, len(panels))
        for k, panel in enumerate(panels):
            view: Spec = panel.spec(styles, f"view{k}", columns, live=live) | {"data": {"values": panel.rows()}}
            if len(panels) > 1:
                view["title"] = wrapped(f"({letter(k)}) {panel.title}", WIDTH)
            if self.watermark:
                look: Spec = dict(text=self.watermark, angle=335, opacity=0.25, color=GREY)
                size = min(60, 1.5 * WIDTH / len(self.watermark))
                view["layer"].append(layer("text", _MIDDLE, data=[{}], fontSize=size, **look))
            views.append(view)
        text = caption(panels) if self.caption is None else self.caption
        scales = dict.fromkeys(("color", "strokeDash", "strokeWidth", "shape"), "shared")
        spec = base() | {"columns": columns, "concat": views, "resolve": {"scale": scales}}
        spec |= {"title": titled(text, columns * (WIDTH + 50))} if text else {}
        return spec | ({"params": [isolate([f"view{k}" for k in range(len(panels))])]} if live else {})

    def picture(self, ending: str) -> bytes:
        """The content of a file with this ending; only HTML is interactive."""
        return picture(self.spec(live=ending.lower() == ".html"), ending)


def titled(text: str, pixels: float) -> Spec:
    """A caption below all panels."""
    place = {"orient": "bottom", "anchor": "start", "frame": "bounds", "offset": 14}
    look = {"fontSize": 10.5, "fontWeight": "normal", "color": "#555555", "lineHeight": 13}
    return {"text": wrapped(text, pixels, 4.9), **place, **look}


def isolate(views: Sequence[str]) -> Spec:
    """The parameter of a legend whose clicks isolate a name in these views."""
    return {"name": "isolate", "select": {"type": "point", "fields": ["name"]}, "bind": "legend", "views": [*views]}


def faded(live: bool, full: float = 1) -> Spec:
    """The opacity of names, fainter for those that the legend's click has not chosen."""
    chosen = {"condition": {"param": "isolate", "value": full}, "value": full * FAINT}
    return chosen if live else {"value": full}


def axis(which: str, title: str, log: bool, limits: tuple[float, float] | None = None) -> Spec:
    """A quantitative axis."""
    scale: Spec = {"nice": False, "padding": 6} | ({"type": "log", "base": 10} if log else {"zero": False})
    if limits is not None:
        scale |= {"domain": [*limits], "padding": 0}
    words: Spec = {"labelExpr": _SPARSE if log else _NUMBER}
    if log:
        labelled = {"condition": {"test": "datum.label", "value": 1}, "value": 0}
        words |= dict.fromkeys(("gridOpacity", "tickOpacity"), labelled)
    words |= {"title": wrapped(title, WIDTH if which == "x" else HEIGHT)}
    return {"field": which, "type": "quantitative", "scale": scale, "axis": words}


def encodings(styles: Mapping[str, Look], columns: int = 2, *, marks: bool = False) -> dict[str, Spec]:
    """Colour, dash, width and shape by name, and the legend.

    Args:
        styles: of all names.
        columns: panels below the legend; without any, there is none.
        marks: whether it shows shapes, in place of dashes.
    """
    longest = max((min(len(name), 55) for name in styles), default=1)
    across = max(1, min(len(styles), int(columns * (WIDTH + 50) / (58 + 6 * longest))))
    box: Spec = {"orient": "top", "symbolOpacity": 1, "columns": across}
    box |= {"symbolSize": 70, "symbolStrokeWidth": 0} if marks else {"symbolType": "stroke"}
    values = zip(*styles.values(), strict=True) if styles else [[], [], [], []]
    by = {
        channel: {
            "field": "name",
            "type": "ordinal" if channel == "strokeWidth" else "nominal",
            "scale": {"domain": [*styles], "range": [*each]},
            "legend": box if columns else None,
        }
        for channel, each in zip(("color", "strokeDash", "shape", "strokeWidth"), values, strict=True)
    }
    if len(widths := {look.width for look in styles.values()}) == 1:
        by["strokeWidth"] = {"value": widths.pop()}
    return by


def number(name: str, title: str = "") -> Spec:
    """A number in a tooltip."""
    return {"field": name, "type": "quantitative", "title": title or name, "format": ".4~g"}


def layer(kind: str, encoding: Spec, where: str = "", data: Sequence[Spec] | None = None, **mark: Any) -> Spec:
    """A layer of marks of this kind: of the rows where an expression holds, or of other data; clipped to the axes."""
    part: Spec = {"mark": {"type": kind, "clip": True, "aria": data is None, **mark}, "encoding": encoding}
    part |= {"transform": [{"filter": where}]} if where else {}
    return part if data is None else part | {"data": {"values": [*data]}}


def wrapped(text: str, pixels: float, letter: float = 6.1) -> list[str]:
    """Lines of this width, whose letters have so many pixels on average."""
    most, words = max(8, int(pixels / letter)), text.split("\n")
    parts = [textwrap.wrap(clean(part), most, break_on_hyphens=False) for part in words]
    return [line for part in parts for line in part] or [""]


def _marked(x: Array, log: bool, phase: float) -> Array:
    """1 at six points, even over the line, with another offset for each line, and 0 at the others."""
    if len(x) < 3:
        return np.ones(len(x))
    place = np.log(x) if log else x
    wanted = place[0] + (place[-1] - place[0]) * (np.arange(6) + 0.1 + 0.8 * phase) / 6
    marked = np.zeros(len(x))
    marked[[int(np.abs(place - value).argmin()) for value in wanted]] = 1
    return marked


def letter(k: int) -> str:
    """The letter of the k-th panel: a, b, ..., z, aa."""
    return chr(ord("a") + k) if k < 26 else f"{letter(k // 26 - 1)}{letter(k % 26)}"


def caption(panels: Sequence[Panel]) -> str:
    """The panels' notes as sentences: common notes once, others after the letters of their panels."""
    letters: dict[str, list[str]] = {}
    for k, panel in enumerate(panels):
        for line in panel.notes:
            letters.setdefault(line, []).append(f"({letter(k)})")
    notes: dict[str, list[str]] = {}
    for line, of in letters.items():
        notes.setdefault("" if len(of) == len(panels) else ", ".join(of), []).append(line)
    words = {of: "; ".join(text) for of, text in notes.items()}
    return " ".join(f"{of}: {text}." if of else f"{text[0].upper()}{text[1:]}." for of, text in words.items())


def axis_limits(values: Iterable[Array], log: bool, margin: float, floor: float | None = None) -> tuple[float, float]:
    """An axis's limits: a floor above the lowest value cuts it off, unless that would leave nothing.

    No axis exceeds `MOST`; a diverged loss may.
    """
    every = np.concatenate([np.ravel(array) for array in values] or [np.empty(0)])
    every = every[np.isfinite(every)]
    if not every.size:
        return (1.0, 10.0) if log else (0.0, 1.0)
    least = 1 / MOST if log else -MOST
    low, high = (min(max(float(end), least), MOST) for end in (every.min(), every.max()))
    cut = floor is not None and low < floor < high
    low = floor if cut and floor is not None else low
    a, b = (math.log(low), math.log(high)) if log else (low, high)
    pad = margin * (b - a) or (0.5 if log else 0.1 * abs(b) or 1)
    pad = min(pad, 2) if log else pad
    a, b = (a if cut else a - pad), b + pad
    return (math.exp(a), math.exp(b)) if log else (a, b)


def thinned(x: Array, log: bool, most: int) -> "np.ndarray":
    """Indices of at most `most` points, even over the axis, or in their order if x is not ascending; both ends stay."""
    if len(x) <= most:
        return np.arange(len(x))
    if np.any(np.diff(x) < 0):
        return np.linspace(0, len(x) - 1, most).round().astype(int)
    place = np.log(x) if log else x
    wanted = np.linspace(place[0], place[-1], most)
    return np.unique(np.append(np.searchsorted(place, wanted[:-1]), len(x) - 1))
