"""Figures of panels: the numbers of their lines, in Vega-Lite, as Altair charts and as files."""

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.plots.theme import BASE, FAINT, HEIGHT, WIDTH, Look, looks, picture
from bench.results.stats import Array, Range
from bench.text import clean

if TYPE_CHECKING:
    import altair as alt

Spec = dict[str, Any]  # a part of a chart in Vega-Lite
MOST = 1e150  # largest drawn number; 1 / `MOST` is the smallest on a logarithmic axis
WORDS = {
    "loss": "training loss",
    "grad_norm": "norm of the gradient",
    "raw_step": "step size before its cap",
    "applied_step": "step size",
    "test_loss": "test loss",
    "train_error": "training error (fraction)",
    "test_error": "test error (fraction)",
    "alignment": "alignment (cosine)",
    "distance": "distance of directions",
}
"""Axis labels of columns; others have their own name."""
_NUMBER = (
    "datum.value == 0 ? '0' : abs(datum.value) >= 1e5 || abs(datum.value) < 1e-3"
    " ? replace(format(datum.value, '.3~e'), '+', '') : format(datum.value, ',.6~g')"
)
"""Labels of ticks, without letters that the font lacks."""
_DRAG = "[pointerdown[event.shiftKey], window:pointerup] > window:pointermove!"


class Line(NamedTuple):
    """The points of a line, shape (P,); NaN in y interrupts it. Lines of the same name look the same."""

    name: str
    x: Array
    y: Array
    low: Array | None = None  # ends of its band; infinite ones reach the edge of the panel
    high: Array | None = None
    about: Mapping[str, Any] = {}  # further columns of its rows


@dataclass(frozen=True)
class Panel:
    """A pair of axes with lines; without any, the notes say why."""

    title: str  # quantity and problem
    x: str  # labels of the axes, with units
    y: str
    log: str = ""  # which axes are logarithmic: "", "x", "y" or "xy"
    lines: Sequence[Line] = ()
    notes: Sequence[str] = ()  # meaning of bands, number of seeds, exclusions
    limits: Range | None = None  # of the values of lines; None for limits from the data
    marks: bool = False  # whether each point has a marker
    ticks: Sequence[str] = ()  # words at x = 0, 1, ..., if x is no quantity
    problem: str = ""  # its name, if it shows one

    @property
    def names(self) -> list[str]:
        """The drawn names."""
        return list(dict.fromkeys(line.name for line in self.lines))

    def rows(self) -> list[Spec]:
        """The points of all lines; missing numbers are None."""
        rows, edges = [], self.limits or (-MOST, MOST)
        for k, line in enumerate(self.lines):
            columns = {"x": _finite(line.x), "y": _finite(line.y)}
            if line.low is not None and line.high is not None:
                columns |= {"low": _finite(line.low, *edges), "high": _finite(line.high, *edges)}
            points = zip(*columns.values(), strict=True)
            whole = {"name": line.name, "line": k, **line.about}
            rows += [whole | dict(zip(columns, point, strict=True)) for point in points]
        return rows

    def spec(self, styles: Mapping[str, Look], view: str = "view", columns: int = 1) -> Spec:
        """The panel in Vega-Lite, without its data; the legend is above so many columns of panels."""
        x, y = axis("x", self.x, "x" in self.log), axis("y", self.y, "y" in self.log, self.limits)
        if self.ticks:
            words = json.dumps([clean(word) for word in self.ticks])
            x["axis"] |= {"values": [*range(len(self.ticks))], "labelExpr": f"{words}[datum.value]", "labelAngle": -30}
        by, opacity = encodings(styles, columns, marks=self.marks), faded()
        color, shape = by["color"], by.pop("shape")
        layers = [layer("line", dict(y=y, opacity=opacity, **by), strokeJoin="round")]
        if banded := any(line.low is not None for line in self.lines):
            ends = dict(y=y | {"field": "low"}, y2={"field": "high"}, color=color, opacity=faded(0.16))
            layers.insert(0, layer("area", ends))
            layers += [layer("rule", ends, strokeWidth=2)] * self.marks
        if self.marks:
            layers.append(layer("point", dict(y=y, color=color, shape=shape, opacity=opacity), filled=True, size=34))
        tip = [{"field": "name"}, number("x", self.x), number("y", self.y), *[number("low"), number("high")] * banded]
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
    """Panels, two a row, with one legend and their notes; those without lines are not drawn."""

    panels: Sequence[Panel]
    series: Mapping[str, str] = field(default_factory=dict)  # the optimizer of each name, drawn or not, in order
    ours: frozenset[str] = frozenset()  # the reader's own optimizers
    ordered: bool = False  # whether names are levels of one quantity

    @property
    def drawn(self) -> list[Panel]:
        """The panels with something to show."""
        return [panel for panel in self.panels if panel.lines]

    @cached_property
    def styles(self) -> dict[str, Look]:
        """The looks of all names, drawn or not."""
        names = [*self.series, *(name for panel in self.panels for name in panel.names)]
        return looks({name: self.series.get(name, name) for name in names}, self.ours, self.ordered)

    def spec(self) -> Spec:
        """The figure in Vega-Lite."""
        panels = self.drawn
        names = {name for panel in panels for name in panel.names}
        styles = {name: look for name, look in self.styles.items() if name in names}
        columns, views = max(1, min(2, len(panels))), []
        for k, panel in enumerate(panels):
            view: Spec = panel.spec(styles, f"view{k}", columns) | {"data": {"values": panel.rows()}}
            if len(panels) > 1:
                view["title"] = wrapped(f"({_letter(k)}) {panel.title}", WIDTH)
            views.append(view)
        empty = {"data": {"values": [{}]}, "layer": [{"mark": {"type": "text", "text": "no values"}}]}
        scales = dict.fromkeys(("color", "strokeDash", "strokeWidth", "shape"), "shared")
        spec = BASE | {"columns": columns, "concat": views or [empty], "resolve": {"scale": scales}}
        if text := caption(panels):  # below all panels
            place = {"orient": "bottom", "anchor": "start", "frame": "bounds", "offset": 14, "lineHeight": 13}
            look = {"fontSize": 10.5, "fontWeight": "normal", "color": "#555555"}
            spec |= {"title": {"text": wrapped(text, columns * (WIDTH + 50), 4.9), **place, **look}}
        return spec | ({"params": [isolate([f"view{k}" for k in range(len(panels))])]} if panels else {})

    def picture(self, ending: str) -> bytes:
        """The content of a file with this ending."""
        spec = self.spec()
        for view in spec["concat"] if ending.lower() != ".html" else ():  # points for the pointer would fill a file
            view["layer"] = [part for part in view["layer"] if part["mark"].get("opacity") != 0]
        return picture(spec, ending)

    def write(self, stem: Path) -> list[Path]:
        """Write `STEM.png` (300 dpi) and `STEM.pdf`."""
        images = {stem.with_suffix(ending): self.picture(ending) for ending in (".png", ".pdf")}
        for path, image in images.items():
            path.write_bytes(image)
        return list(images)

    def altair(self) -> "alt.TopLevelMixin":
        """An Altair chart; a notebook shows it interactively, `.save("x.png")` writes a file."""
        import altair as alt

        spec, rows = self.spec(), {}
        for k, view in enumerate(spec["concat"]):  # Altair would turn each row into an object
            rows[f"rows{k}"], view["data"] = view["data"]["values"], {"name": f"rows{k}"}
        chart: Any = alt.Chart.from_dict(spec)
        chart.datasets = rows
        return chart


def isolate(views: Sequence[str]) -> Spec:
    """The parameter of a legend whose clicks isolate a name in these views."""
    return {"name": "isolate", "select": {"type": "point", "fields": ["name"]}, "bind": "legend", "views": [*views]}


def faded(full: float = 1) -> Spec:
    """The opacity of names, fainter for those that the legend's click has not chosen."""
    return {"condition": {"param": "isolate", "value": full}, "value": full * FAINT}


def axis(which: str, title: str, log: bool, limits: Range | None = None) -> Spec:
    """A quantitative axis; a logarithmic one labels ticks where there is room."""
    scale: Spec = {"nice": False, "padding": 6} | ({"type": "log", "base": 10} if log else {"zero": False})
    if limits is not None:
        scale |= {"domain": [*limits], "padding": 0}
    words: Spec = {"labelExpr": f"datum.label ? {_NUMBER} : ''" if log else _NUMBER}
    if log:
        labelled = {"condition": {"test": "datum.label", "value": 1}, "value": 0}
        words |= dict.fromkeys(("gridOpacity", "tickOpacity"), labelled)
    words |= {"title": wrapped(title, WIDTH if which == "x" else HEIGHT)}
    return {"field": which, "type": "quantitative", "scale": scale, "axis": words}


def encodings(styles: Mapping[str, Look], columns: int = 2, *, marks: bool = False) -> dict[str, Spec]:
    """Colour, dash, width and shape by name, and the legend (of shapes, or of dashes), unless `columns` is 0."""
    longest = max((min(len(name), 55) for name in styles), default=1)
    across = max(1, min(len(styles), int(columns * (WIDTH + 50) / (58 + 6 * longest))))
    box: Spec = {"orient": "top", "symbolOpacity": 1, "columns": across}
    box |= {"symbolSize": 70, "symbolStrokeWidth": 0} if marks else {"symbolType": "stroke"}
    channels = zip(("color", "strokeDash", "shape", "strokeWidth"), zip(*styles.values(), strict=True), strict=True)
    by: dict[str, Spec] = {}
    for channel, values in channels:
        scale = {"domain": [*styles], "range": [*values]}
        by[channel] = {"field": "name", "type": "nominal", "scale": scale, "legend": box if columns else None}
    widths = {look.width for look in styles.values()}
    width = {"value": widths.pop()} if len(widths) == 1 else by["strokeWidth"] | {"type": "ordinal"}
    return by | {"strokeWidth": width}


def number(name: str, title: str = "") -> Spec:
    """A number in a tooltip."""
    return {"field": name, "type": "quantitative", "title": clean(title) or name, "format": ".4~g"}


def layer(kind: str, encoding: Spec, data: Sequence[Spec] | None = None, **mark: Any) -> Spec:
    """A layer of marks of this kind, clipped to the axes; of the panel's rows, or of other data."""
    part: Spec = {"mark": {"type": kind, "clip": True, "aria": data is None, **mark}, "encoding": encoding}
    return part if data is None else part | {"data": {"values": [*data]}}


def wrapped(text: str, pixels: float, letter: float = 6.1) -> list[str]:
    """Lines of this width, whose letters have so many pixels on average."""
    most, parts = max(8, int(pixels / letter)), text.split("\n")
    return [line for part in parts for line in textwrap.wrap(clean(part), most, break_on_hyphens=False)] or [""]


def caption(panels: Sequence[Panel]) -> str:
    """The panels' notes as sentences: common notes once, others after the letters of their panels."""
    letters: dict[str, list[str]] = {}
    for k, panel in enumerate(panels):
        for note in panel.notes:
            letters.setdefault(note, []).append(_letter(k))
    common = [f"{note[0].upper()}{note[1:]}." for note, of in letters.items() if len(of) == len(panels)]
    return " ".join([*common, *(f"({', '.join(of)}) {n}." for n, of in letters.items() if len(of) < len(panels))])


def _letter(k: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[k : k + 1] or str(k + 1)


def axis_limits(values: Sequence[Array], log: bool, ends: Sequence[Array] = (), most: float = MOST) -> Range:
    """Limits that show all finite values up to `most`, and the ends of bands as far as half of that range beyond."""
    to, back = (np.log, math.exp) if log else (np.asarray, float)
    lines, bands = (_in_range([*arrays], log, min(most, MOST)) for arrays in (values, [*values, *ends]))
    if not lines.size:
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high, least, largest = (float(to(end)) for end in (lines.min(), lines.max(), bands.min(), bands.max()))
    room = (high - low) / 2 or (0.5 if log else 0.1 * abs(high) or 1.0)
    low, high = max(low - room, least), min(high + room, largest)
    pad = 0.05 * (high - low) or room
    return back(low - pad), back(high + pad)


def _in_range(arrays: Sequence[Array], log: bool, most: float) -> Array:
    every = np.concatenate([np.ravel(array) for array in arrays] or [np.empty(0)])
    return np.clip(every[np.isfinite(every) & ((every > 0) | (not log))], 1 / MOST if log else -MOST, most)


def _finite(values: Array, low: float = -MOST, high: float = MOST) -> list[float | None]:
    return [None if math.isnan(x) else float(f"{x:.6g}") for x in np.clip(values, low, high)]


def thinned(x: Array, log: bool, most: int) -> "np.ndarray":
    """Indices of at most `most` points of ascending x, even over the axis; both ends stay."""
    if len(x) <= most:
        return np.arange(len(x))
    place = np.log(x) if log else x
    wanted = np.linspace(place[0], place[-1], most)
    return np.unique(np.append(np.searchsorted(place, wanted[:-1]), len(x) - 1))
