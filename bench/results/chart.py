"""The content of a plot, as data: `draw.py` draws it for papers, `embed.py` for the browser."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MOST = 1e150
"""Largest drawn number; 1 / `MOST` is the smallest on a logarithmic axis: matplotlib puts ticks around them."""
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


@dataclass(frozen=True)
class Trace:
    """A curve.

    Attributes:
        name: legend entry; traces of the same name share colour, dash and marker.
        x, y: shape (P,), and positive on logarithmic axes; NaN in y interrupts the line.
        band: lower and upper end, shape (P,) each; NaN interrupts it, an infinite end reaches the edge of the panel;
            None for no band.
        marks: a marker at each point, at six of them, or none.
        joined: whether a line joins the points; if not, the band is a bar at each of them.
        cross, ring: a point marked with a cross or ring.
        x_band: left and right end of a bar at each point, shape (P,) each.
        hollow: whether markers are hollow.
    """

    name: str
    x: Array
    y: Array
    band: tuple[Array, Array] | None = None
    marks: Literal["", "some", "all"] = ""
    joined: bool = True
    cross: tuple[float, float] | None = None
    ring: tuple[float, float] | None = None
    x_band: tuple[Array, Array] | None = None
    hollow: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        key: a word for files and anchors, unique on a page.
        title: quantity and problem.
        x, y: labels of the axes, with units.
        log: which axes are logarithmic: "", "x", "y" or "xy".
        traces: in the order of drawing; empty if there is nothing to show, and the note says why.
        note: meaning of bands, number of seeds, exclusions: a line for each.
        limits, x_limits: of y and x; None for limits from the data.
        x_ticks, y_ticks: labels by position, possibly of several lines; None for numbers.
        guides: lines for comparison, drawn thin and grey; only names and points count.
        empty: text in the panel if no trace has a value.
        share: share of the height of stacked panels.
        least: minimum height in inches, title and x axis included.
    """

    key: str
    title: str
    x: str
    y: str
    log: str = ""
    traces: list[Trace] = field(default_factory=list)
    note: str = ""
    limits: tuple[float, float] | None = None
    x_limits: tuple[float, float] | None = None
    x_ticks: Mapping[float, str] | None = None
    y_ticks: Mapping[float, str] | None = None
    guides: Sequence[Trace] = ()
    empty: str = "no values"
    share: float = 1
    least: float = 0


@dataclass(frozen=True)
class Chart:
    """A plot.

    Attributes:
        panels: row by row.
        series: all names with a style, drawn or not, in the legend's order, and the group of each: names of a group (an
            optimizer) share a colour and differ in shade and dash. A missing name is its own group.
        columns: panels per row, 1 to 3.
        caption: text below the panels; by default their notes.
        ordered: the names are levels of one quantity: colours from a sequence.
        stacked: the panels are below each other and share the x axis.
        formulas: text between dollars is a formula.
        watermark: large and pale text across the figure.
        labelled: ticks name the series, so all markers are equal, and a figure for print has no legend.
        captioned: whether there is text below the panels.
    """

    panels: list[Panel]
    series: Mapping[str, str] = field(default_factory=dict)
    columns: int = 2
    caption: str = ""
    ordered: bool = False
    stacked: bool = False
    formulas: bool = False
    watermark: str = ""
    labelled: bool = False
    captioned: bool = True

    @property
    def shown(self) -> "Chart":
        """The chart without empty panels."""
        return replace(self, panels=[panel for panel in self.panels if panel.traces])


def letter(k: int) -> str:
    """The letter of the k-th panel: a, b, ..., z, aa."""
    return chr(ord("a") + k) if k < 26 else f"{letter(k // 26 - 1)}{letter(k % 26)}"


def caption(panels: Sequence[Panel]) -> str:
    """The panels' notes as sentences: common notes once, others after the letters of their panels."""
    letters: dict[str, list[str]] = {}
    for k, panel in enumerate(panels):
        for line in panel.note.splitlines():
            letters.setdefault(line, []).append(f"({letter(k)})")
    notes: dict[str, list[str]] = {}
    for line, of in letters.items():
        notes.setdefault("" if len(of) == len(panels) else ", ".join(of), []).append(line)
    words = {of: "; ".join(text) for of, text in notes.items()}
    return " ".join(f"{of}: {text}." if of else f"{text[0].upper()}{text[1:]}." for of, text in words.items())


def axis_limits(values: Iterable[Array], log: bool, margin: float, floor: float | None = None) -> tuple[float, float]:
    """An axis's limits: a floor above the lowest value cuts it off, unless that would leave nothing.

    No axis exceeds `MOST` (a diverged loss may), since matplotlib cannot place ticks near the largest number.
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


def thinned(x: Array, log: bool, most: int) -> NDArray[np.intp]:
    """Indices of at most `most` points, even over the axis, or in their order if x is not ascending; both ends stay."""
    if len(x) <= most:
        return np.arange(len(x))
    if np.any(np.diff(x) < 0):
        return np.linspace(0, len(x) - 1, most).round().astype(int)
    place = np.log(x) if log else x
    wanted = np.linspace(place[0], place[-1], most)
    return np.unique(np.append(np.searchsorted(place, wanted[:-1]), len(x) - 1))
