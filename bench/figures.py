"""Figures for papers: from their description, as it is read from YAML, and the arms to a PNG and a PDF.

Matplotlib is imported only when something is drawn, since its import takes most of a second.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from bench.arms import Arm, Array
from bench.errors import UserError, unknown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.lines import Line2D

DPI = 300
MOST_POINTS = 2000
SMALL, NORMAL = 7.0, 8.0
"""Font sizes in points."""
ONE_COLUMN, TWO_COLUMNS = 3.3, 6.8
"""Widths in inches of a figure with one panel a row and with more."""
_ROW_HEIGHTS = {1: 2.25, 2: 2.2, 3: 1.85}
"""Inches that a row of so many panels is high."""

_WIDTH = 1.2
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
"""Okabe and Ito's colours that can be told apart by everybody, without their yellow, which white paper swallows."""
_DASHES: tuple[Any, ...] = (
    "solid",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (2.6, 1.2)),
    (0, (10, 1.8)),
    (0, (6, 1.2, 1.2, 1.2, 1.2, 1.2)),
    (0, (10, 1.5, 3, 1.5)),
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "*", "X")
_GUIDE_DASHES: tuple[Any, ...] = ((0, (4, 2)), (0, (1, 1.5)), (0, (7, 2, 1, 2)), "solid")

LABELS = {
    "step": "optimizer steps $t$",
    "loss": "training loss",
    "grad_norm": "norm of the gradient",
    "raw_step": "step size before its cap",
    "applied_step": "step size",
    "distance": "distance of directions\n" + r"$\|\,W/\|W\| - W_\mathrm{mm}/\|W_\mathrm{mm}\|\,\|$",
    "alignment": r"alignment of $W$ with $W_\mathrm{mm}$ (cosine)",
    "norm_W": r"$\|W\|$",
    "off_optimal": "1 \N{MINUS SIGN} softmax weight\non the optimal token",
    "on_optimal": "softmax weight\non the optimal token",
    "test_loss": "test loss",
    "train_error": "training error (fraction)",
    "test_error": "test error (fraction)",
    "attn_score": "softmax mass on\nrelevant tokens",
    "off_relevant": "1 \N{MINUS SIGN} softmax mass on\nrelevant tokens",
    "avg_norm_W": r"$H^{-1}\,\sum_h\,\|W_h\|$",
    "avg_norm_U": r"$H^{-1/2}\,\sum_h\,\|U_h\|$",
    "align_W": r"alignment of $W$ with the planted head (cosine)",
    "align_U": r"alignment of $U$ with the planted head (cosine)",
    "distance_u": "distance of directions\n" + r"$\|\,u/\|u\| - u_\mathrm{mm}/\|u_\mathrm{mm}\|\,\|$",
    "min_margin": "smallest margin",
    "mean_margin": "mean margin",
    "entropy": "entropy of attention (nats)",
}
"""What the axes call the columns that are known; another column is called by its name."""

_RC = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that figures are the same everywhere
    "mathtext.fontset": "dejavusans",
    "font.size": NORMAL,
    "axes.titlesize": NORMAL,
    "axes.labelsize": NORMAL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "figure.labelsize": SMALL,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.use_mathtext": True,
    "axes.formatter.limits": (-4, 5),
    "axes.formatter.useoffset": False,
    "pdf.fonttype": 42,  # fonts that journals accept
}


class Guide(BaseModel):
    """A thin line that shows a rate to compare with; it is no fit.

    It is `x**slope` or `exp(rate * x**power)`, times what takes it through the panel's first arm, drawn over the later
    half of that arm's line as the axis shows it.

    Attributes:
        slope: the exponent; a straight line where both axes are logarithmic.
        rate: per step (or unit of x); a straight line where only y is logarithmic.
        power: with `rate`, of x.
        label: what the legend calls it; the formula by default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    slope: float | None = Field(None, allow_inf_nan=False)
    rate: float | None = Field(None, allow_inf_nan=False)
    power: float = Field(1, gt=0, allow_inf_nan=False)
    label: str = ""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.slope is None) == (self.rate is None):
            raise ValueError("a guide has either a slope or a rate")
        return self


class Panel(BaseModel):
    """One pair of axes.

    Attributes:
        y, x: columns.
        log: the axes that are logarithmic.
        title: stands above the panel.
        xlabel, ylabel: quantity and unit; by default from the column's name.
        arms: the arms shown, by their keys; all by default.
        strip: how the labels of this panel's arms begin, left out of the legend: panels of two methods at the same
            numbers of heads then share lines in it.
        smooth: rows that a running mean goes over before anything else is done, for noisy losses of batches.
        x_max: the last x shown.
        floor: the lowest y shown.
        guides: rates to compare with.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    y: str
    x: str = "step"
    log: Literal["", "x", "y", "xy"] = ""
    title: str = ""
    xlabel: str | None = None
    ylabel: str | None = None
    arms: list[str] | None = Field(None, min_length=1)
    strip: str = ""
    smooth: int | None = Field(None, ge=1)
    x_max: float | None = Field(None, allow_inf_nan=False)
    floor: float | None = Field(None, allow_inf_nan=False)
    guides: list[Guide] = []

    @model_validator(mode="after")
    def _positive_on_log(self) -> Self:
        for name, value, axis in (("x_max", self.x_max, "x"), ("floor", self.floor, "y")):
            if value is not None and value <= 0 and axis in self.log:
                raise ValueError(f"{name}={value:g} is not on a logarithmic axis")
        return self


class FigureSpec(BaseModel):
    """A figure.

    Attributes:
        panels: row by row.
        columns: panels a row, 1 to 3.
        ordered: the arms' labels are steps of one quantity (numbers of heads): colours from a sequence.
        note: closes the caption.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    panels: list[Panel] = Field(min_length=1, max_length=26)
    columns: int = Field(2, ge=1, le=3)
    ordered: bool = False
    note: str = ""


# -- numbers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """What is drawn of an arm: the mean over seeds.

    Attributes:
        x, y: shape (P,), finite, and positive on logarithmic axes.
        band: lowest and highest value over seeds, shape (P,) each; None for one seed.
        ended: the point where the first of the seeds ends before the others; the line goes on without it.
    """

    x: Array
    y: Array
    band: tuple[Array, Array] | None
    ended: tuple[float, float] | None


def lines(panel: Panel, arm: Arm) -> tuple[list[Line], int]:
    """An arm's lines in a panel, and the number of seeds that have values there.

    It is one line, over seeds at equal x. Where seeds differ in x, each is interpolated if x never falls; if x does,
    there is nothing to average, and every seed has a line. A row that a seed lacks between two that it has is
    interpolated.

    Raises:
        UserError: the arm has no runs, or no such columns.
    """
    if not arm.tables:
        raise UserError(f"arm {arm.label!r} has no runs to draw {panel.y!r} of")
    try:
        steps, y, x = arm.series(panel.y, panel.x)  # one table has both
    except KeyError as error:
        raise UserError(f"cannot draw {panel.y!r} over {panel.x!r}: {error.args[0]}") from error
    log_x, log_y = "x" in panel.log, "y" in panel.log
    smooth = min(panel.smooth or 1, max(2, len(steps) // 5), len(steps))
    if panel.x == "step":
        x = np.tile(steps, (len(y), 1))
    else:
        x = np.array([_between(steps, steps, row, log=False) for row in x])
    y = np.array([_between(steps, steps, row, log=log_y and smooth == 1) for row in y])
    if smooth > 1:
        window = np.full(smooth, 1 / smooth)
        x, y = (np.array([np.convolve(row, window, "valid") for row in rows]) for rows in (x, y))
    shown = _drawable(x, log_x) & _drawable(y, log_y) & (x <= (math.inf if panel.x_max is None else panel.x_max))
    y = np.where(shown, y, np.nan)
    seeds = int(shown.any(1).sum())
    if not seeds:
        return [], 0

    first, last = np.fmin.reduce(x, axis=0), np.fmax.reduce(x, axis=0)
    if np.all((first == last) | np.isnan(first)):
        return [_mean_line(first, y, panel)], seeds
    if all(np.all(np.diff(row[ok]) >= 0) for row, ok in zip(x, shown, strict=True)):
        grid = np.unique(x[shown])
        y = np.array([_between(grid, x_row, y_row, log=log_y) for x_row, y_row in zip(x, y, strict=True)])
        return [_mean_line(grid, y, panel)], seeds
    return [_mean_line(x[s], y[s : s + 1], panel) for s in range(len(y)) if shown[s].any()], seeds


def _drawable(values: Array, log: bool) -> np.ndarray:
    # Limits and ticks around numbers at the ends of the range of float64 would be 0 or inf.
    return (np.abs(values) < 1e200) & (values > 1e-300 if log else True)


def _between(at: Array, x: Array, y: Array, *, log: bool) -> Array:
    """The values at `at` of the line through the points that can be drawn; NaN outside of their range."""
    ok = _drawable(y, log) & np.isfinite(x)
    if not ok.any():
        return np.full(len(at), np.nan)
    value = np.interp(at, x[ok], np.log(y[ok]) if log else y[ok], left=np.nan, right=np.nan)
    return np.exp(value) if log else value


def _mean_line(x: Array, y: Array, panel: Panel) -> Line:
    """The mean over seeds.

    Args:
        x: shape (P,).
        y: shape (S, P); NaN is left out.
        panel: decides the kind of mean.
    """
    there = np.isfinite(y)
    keep = there.any(0)
    x, y, there = x[keep], y[:, keep], there[:, keep]
    values = np.log(y) if "y" in panel.log else y
    mean = np.where(there, values / there.sum(0), 0).sum(0)
    mean = np.exp(mean) if "y" in panel.log else mean
    last = len(x) - 1 - there[:, ::-1].argmax(1)[there.any(1)]
    ended = (float(x[last.min()]), float(mean[last.min()])) if last.min() < len(x) - 1 else None
    low, high = np.fmin.reduce(y, axis=0), np.fmax.reduce(y, axis=0)
    some = _thin(x, "x" in panel.log)
    return Line(x[some], mean[some], (low[some], high[some]) if len(last) > 1 else None, ended)


def _thin(x: Array, log: bool) -> np.ndarray:
    """The indices of at most MOST_POINTS points, evenly in x (in log x), or in their order where x falls."""
    n = len(x)
    if n <= MOST_POINTS:
        return np.arange(n)
    if np.any(np.diff(x) < 0):
        return np.linspace(0, n - 1, MOST_POINTS).round().astype(int)
    position = np.log(x) if log else x
    wanted = np.linspace(position[0], position[-1], MOST_POINTS)
    some = np.searchsorted(position, wanted)
    some[-1] = n - 1
    return np.unique(some)


# -- drawing --------------------------------------------------------------------------------------------------------


class _Style(NamedTuple):
    color: str
    linestyle: Any
    marker: str


def draw(spec: FigureSpec, arms: Mapping[str, Arm], folder: Path, *, watermark: str = "") -> list[Path]:
    """Write `figure.png` (300 dpi) and `figure.pdf`; the same input gives the same bytes.

    Args:
        spec: what to draw.
        arms: by key, in the legend's order.
        folder: made if it is not there.
        watermark: large and pale across the figure.

    Raises:
        UserError: see `make`.
    """
    with _settings():
        figure = make(spec, arms, watermark=watermark)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "figure.png", folder / "figure.pdf"]
        figure.savefig(paths[0], dpi=DPI, metadata={"Software": None})
        figure.savefig(paths[1], metadata={"CreationDate": None})
    return paths


@contextmanager
def _settings() -> Iterator[None]:
    """Our settings instead of the user's, who may have a matplotlibrc."""
    import matplotlib.style

    with matplotlib.style.context(["default", _RC]):
        yield


def make(spec: FigureSpec, arms: Mapping[str, Arm], *, watermark: str = "") -> "Figure":
    """The figure, not yet written. Arms with one label, in different panels, share a style and a line in the legend.

    Raises:
        UserError: an arm is unknown, has no runs or lacks a column; a text is not legal; labels do not tell arms apart.
    """
    if not arms:
        raise UserError("there are no arms to draw")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with _settings():
        columns = min(spec.columns, len(spec.panels))
        rows = math.ceil(len(spec.panels) / columns)
        width = ONE_COLUMN if columns == 1 else TWO_COLUMNS
        height = rows * _ROW_HEIGHTS[columns]
        figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        chosen = [_chosen(panel, arms) for panel in spec.panels]
        styles = _styles([arm.label for panel_arms in chosen for arm in panel_arms], spec.ordered)
        words = _Words(spec)
        all_axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for k, (axes, panel) in enumerate(zip(all_axes, spec.panels, strict=False)):
            _draw_panel(axes, k, panel, chosen[k], styles, words)
            room = width / columns, _ROW_HEIGHTS[columns]
            _name_axes(axes, panel, f"({_letter(k)}) " if len(spec.panels) > 1 else "", room)
        for axes in all_axes[len(spec.panels) :]:
            axes.remove()
        figure.align_labels()

        handles = [words.shown[label] for label in styles if label in words.shown] + list(words.guides.values())
        legend = _legend(figure, handles)
        below = figure.supxlabel(
            _wrap(figure, words.text(), SMALL, width - 0.1), x=0.05 / width, ha="left", color="0.25"
        )
        extra = sum(_inches(figure, artist)[1] for artist in (legend, below)) + 0.1
        figure.set_size_inches(width, round(height + extra, 2))
        if watermark:
            _watermark(figure, watermark)
        return figure


def _chosen(panel: Panel, arms: Mapping[str, Arm]) -> list[Arm]:
    """The arms of a panel."""
    keys = list(arms) if panel.arms is None else panel.arms
    for key in keys:
        if key not in arms:
            raise unknown("arm", key, arms)
    chosen = [replace(arms[key], label=arms[key].label.removeprefix(panel.strip)) for key in keys]
    for label, count in Counter(arm.label for arm in chosen).items():
        if count > 1:
            raise UserError(f"{count} arms of the panel of {panel.y!r} are called {label!r}; choose one with `arms`")
    return chosen


def _styles(labels: Sequence[str], ordered: bool) -> dict[str, _Style]:
    """A style for each label; they differ in colour and, for print in grey, in dashes or, beyond eight, markers."""
    import matplotlib
    from matplotlib.colors import to_hex

    labels = list(dict.fromkeys(labels))
    if ordered:
        # From dark to light, without the end that white paper swallows.
        colours = [to_hex(colour) for colour in matplotlib.colormaps["viridis"](np.linspace(0, 0.87, len(labels)))]
    else:
        colours = [_COLOURS[i % len(_COLOURS)] for i in range(len(labels))]
    turns = [i // len(_DASHES) for i in range(len(labels))]
    return {
        label: _Style(colours[i], _DASHES[i % len(_DASHES)], _MARKERS[(i + turns[i]) % len(_MARKERS)])
        for i, label in enumerate(labels)
    }


class _Words:
    """Collects what legend and caption must say of the lines.

    Attributes:
        shown, guides: what stands in the legend, by label.
    """

    def __init__(self, spec: FigureSpec) -> None:
        self.spec = spec
        self.seeds: dict[tuple[str, int], int] = {}
        self.bands = self.ended = False
        self.shown: dict[str, Line2D] = {}
        self.guides: dict[str, Line2D] = {}
        self.facts: dict[str, list[int]] = {}
        for k, panel in enumerate(spec.panels):
            if (panel.smooth or 1) > 1:
                self.facts.setdefault(f"running mean over at most {panel.smooth} rows", []).append(k)

    def add(self, k: int, arm: Arm, drawn: Sequence[Line], seeds: int) -> None:
        """Note the lines of an arm in a panel."""
        key = arm.label, len(arm.tables)
        self.seeds[key] = min(seeds, self.seeds.get(key, seeds))
        self.bands |= any(line.band is not None for line in drawn)
        floor = self.spec.panels[k].floor
        self.ended |= any(line.ended is not None and (floor is None or line.ended[1] >= floor) for line in drawn)
        panels = self.facts.setdefault("a line for each seed", [])
        if len(drawn) > 1 and k not in panels:
            panels.append(k)

    def text(self) -> str:
        """The caption, in one paragraph."""
        parts = [self._seeds()]
        for fact, panels in self.facts.items():
            where = "All" if len(panels) == len(self.spec.panels) else ", ".join(f"({_letter(k)})" for k in panels)
            parts += [f"{where}: {fact}."] if panels else []
        if self.ended:
            parts.append(
                "\N{MULTIPLICATION SIGN}: the first seed has no more values; the line goes on with the others."
            )
        if self.guides:
            parts.append("Grey: rates to compare with, no fits.")
        return " ".join([*parts, self.spec.note]).strip()

    def _seeds(self) -> str:
        counts = {key: f"{seeds}" if seeds == key[1] else f"{seeds} of {key[1]}" for key, seeds in self.seeds.items()}
        tally = Counter(counts.values())
        most = max(tally, key=lambda count: (tally[count], int(count.split()[0])))
        others = [f"{label}: {count}" for (label, _), count in counts.items() if count != most]
        number = f"{most} seed{'' if most == '1' else 's'}" + (f" ({', '.join(others)})" if others else "")
        if not self.bands:
            return f"Lines: {number}."
        logs = {"y" in panel.log for panel in self.spec.panels}
        mean = "geometric mean" if logs == {True} else "mean"
        aside = ", geometric where y is logarithmic" if logs == {True, False} else ""
        return f"Lines: {mean} over {number}{aside}; bands: minimum to maximum over seeds."


def _letter(k: int) -> str:
    return chr(ord("a") + k)


def _draw_panel(
    axes: "Axes",
    k: int,
    panel: Panel,
    arms: Sequence[Arm],
    styles: Mapping[str, _Style],
    words: _Words,
) -> None:
    """Draw lines, bands and guides, and tell `words`."""
    from matplotlib.lines import Line2D

    if "x" in panel.log:
        axes.set_xscale("log")
    if "y" in panel.log:
        axes.set_yscale("log")
    drawn: list[list[Line]] = []
    for i, arm in enumerate(arms):
        style = styles[arm.label]
        arm_lines, seeds = lines(panel, arm)
        drawn.append(arm_lines)
        words.add(k, arm, arm_lines, seeds)
        looks: dict[str, Any] = dict(
            color=style.color, linestyle=style.linestyle, marker=style.marker, markersize=3, lw=_WIDTH
        )
        words.shown.setdefault(arm.label, Line2D([], [], label=arm.label, **looks))
        for line in arm_lines:
            if line.band is not None:
                axes.fill_between(line.x, *line.band, color=style.color, alpha=0.18, linewidth=0, zorder=2)
            at = _marked(line.x, "x" in panel.log, i / len(arms))
            axes.plot(line.x, line.y, **looks, markevery=at, zorder=3 + 0.01 * i, solid_capstyle="butt")
            if line.ended:
                axes.plot(*line.ended, marker="x", color=style.color, markersize=5, markeredgewidth=1.1, zorder=5)
    every = [line for arm_lines in drawn for line in arm_lines]
    if every:
        axes.set_xlim(*_limits([line.x for line in every], "x" in panel.log, 0.02))
        axes.set_ylim(
            *_limits([v for line in every for v in line.band or (line.y,)], "y" in panel.log, 0.05, panel.floor)
        )
        for guide in panel.guides:
            label = guide.label or _formula(guide, "t" if panel.x == "step" else "x")
            number = list(words.guides).index(label) if label in words.guides else len(words.guides)
            dashes = _GUIDE_DASHES[number % len(_GUIDE_DASHES)]
            thin: dict[str, Any] = dict(color="0.35", linestyle=dashes, lw=0.8)
            axes.plot(*_guide_points(guide, every[0], panel, axes.get_ylim()), **thin, zorder=4)
            words.guides.setdefault(label, Line2D([], [], label=label, **thin))
    else:
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", va="center", color="0.4")
    _ticks(axes.xaxis, "x" in panel.log)
    _ticks(axes.yaxis, "y" in panel.log)


def _limits(values: Sequence[Array], log: bool, margin: float, floor: float | None = None) -> tuple[float, float]:
    """An axis's limits: a floor above the lowest value cuts it off, except where that would leave nothing."""
    low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
    cut = floor is not None and low < floor < high
    low = floor if cut and floor is not None else low
    a, b = (math.log(low), math.log(high)) if log else (low, high)
    pad = margin * (b - a) or (0.5 if log else 0.1 * abs(b) or 1)
    pad = min(pad, 2) if log else pad
    a, b = (a if cut else a - pad), b + pad
    return (math.exp(a), math.exp(b)) if log else (a, b)


def _marked(x: Array, log: bool, phase: float) -> list[int]:
    """The points that carry a marker: six, evenly over the line, at another place for each arm."""
    if len(x) < 3:
        return list(range(len(x)))
    position = np.log(x) if log else x
    wanted = position[0] + (position[-1] - position[0]) * (np.arange(6) + 0.1 + 0.8 * phase) / 6
    return sorted({int(np.abs(position - value).argmin()) for value in wanted})


def _formula(guide: Guide, symbol: str) -> str:
    """The legend's default for a guide."""
    if guide.slope is not None:
        return f"${symbol}^{{{Fraction(guide.slope).limit_denominator(100)}}}$"
    power = "" if guide.power == 1 else f"^{{{Fraction(guide.power).limit_denominator(100)}}}"
    return rf"$\exp({guide.rate:g}\,{symbol}{power})$"


def _guide_points(guide: Guide, line: Line, panel: Panel, y_range: tuple[float, float]) -> tuple[Array, Array]:
    """The guide's points inside of the panel."""
    log_x = "x" in panel.log
    position = np.log(line.x) if log_x else line.x
    low, high = position.min(), position.max()
    x = np.linspace((low + high) / 2, high, 200)
    x = np.exp(x) if log_x else x
    k = int(np.abs(position - (low + 3 * high) / 4).argmin())
    with np.errstate(all="ignore"):
        if guide.slope is not None:
            y = line.y[k] * (x / line.x[k]) ** guide.slope
        else:
            y = line.y[k] * np.exp((guide.rate or 0) * (x**guide.power - line.x[k] ** guide.power))
        inside = (y >= y_range[0]) & (y <= y_range[1])
    return x[inside], y[inside]


def _ticks(axis: "Axis", log: bool) -> None:
    """Ticks that a small panel has room for."""
    from matplotlib import ticker

    def digits(value: float, _: object = None) -> str:
        return f"{value:g}" if 1e-3 < value < 1e4 else powers(value)

    powers = ticker.LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf))
    axis.set_tick_params(which="both", labelsize=SMALL, width=0.6)
    low, high = axis.get_view_interval()
    decades = math.log10(high) - math.log10(low) if log else 0
    if decades >= 1.6:
        axis.set_major_locator(ticker.LogLocator(numticks=7))
        axis.set_major_formatter(ticker.LogFormatterMathtext())
        within = tuple(range(2, 10)) if decades < 8 else (1.0,)
        axis.set_minor_locator(ticker.LogLocator(subs=within, numticks=99) if decades < 40 else ticker.NullLocator())
        axis.set_minor_formatter(ticker.NullFormatter())
    elif decades > 0.9:  # one or two powers of ten are too few
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(digits)
        axis.set_minor_locator(ticker.NullLocator())
    else:
        axis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(ticker.ScalarFormatter())
        axis.set_minor_locator(ticker.NullLocator())
    axis.axes.grid(axis="both", which="major", color="0.9", linewidth=0.4, zorder=0)


def _name_axes(axes: "Axes", panel: Panel, letter: str, room: tuple[float, float]) -> None:
    """Title and labels, in lines that fit a panel so many inches wide and high."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    for name, label, long in (("x", panel.xlabel, room[0] - 0.7), ("y", panel.ylabel, room[1] - 0.5)):
        column = panel.x if name == "x" else panel.y
        text = LABELS.get(column, column.replace("$", r"\$")) if label is None or not label.strip() else label
        axes.set(**{f"{name}label": _wrap(figure, text, NORMAL, long)})
    if title := (letter + panel.title).strip():
        axes.set_title(_wrap(figure, title, NORMAL, room[0] - 0.7), loc="left")


def _legend(figure: "Figure", handles: "list[Line2D]") -> "Legend":
    """One legend above all panels, read row by row, as wide as the figure allows."""
    width = figure.get_figwidth() - 0.1
    for handle in handles:
        handle.set_label(_wrap(figure, str(handle.get_label()), SMALL, width - 0.6))

    def attempt(columns: int) -> "Legend":
        by_column = [handle for c in range(columns) for handle in handles[c::columns]]
        return figure.legend(
            handles=by_column, loc="outside upper center", ncols=columns, frameon=False,
            handlelength=3, handletextpad=0.6, columnspacing=1.4, borderpad=0.2, labelspacing=0.35,
        )  # fmt: skip

    columns = len(handles)
    legend = attempt(columns)
    while columns > 1 and _inches(figure, legend)[0] > width:
        legend.remove()
        columns -= 1
        legend = attempt(columns)
    legend.remove()
    rows = math.ceil(len(handles) / columns)
    return attempt(math.ceil(len(handles) / rows))


def _inches(figure: "Figure", artist: Any) -> tuple[float, float]:
    """Width and height of an artist."""
    extent = artist.get_window_extent(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    return extent.width / figure.dpi, extent.height / figure.dpi


def _wrap(figure: "Figure", text: str, size: float, inches: float) -> str:
    """The text in lines that are no longer; formulas and words are not broken.

    Raises:
        UserError: it has a formula that is not legal.
    """

    def width(line: str) -> float:
        artist = figure.text(0, 0, line, fontsize=size)
        try:
            return _inches(figure, artist)[0]
        except ValueError as error:
            raise UserError(f"the text {text!r} has a formula that cannot be set; write \\$ for a dollar") from error
        finally:
            artist.remove()

    done = []
    for paragraph in text.split("\n"):
        line = ""
        tied = re.sub(r" ([=<>]) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", paragraph)
        for word in re.findall(r"(?:\$[^$]*\$|[^ ])+", tied):
            longer = f"{line} {word}".strip()
            if line and width(longer) > inches:
                done.append(line)
                longer = word
            line = longer
        width(line)
        done.append(line)
    return "\n".join(done)


def _watermark(figure: "Figure", text: str) -> None:
    """Write large and pale across the figure."""
    width, height = figure.get_size_inches()
    mark = figure.text(0.5, 0.5, text, ha="center", va="center", rotation=25, fontsize=60, zorder=10)
    mark.set(color="0.5", alpha=0.3, in_layout=False)
    across, tall = _inches(figure, mark)
    mark.set_fontsize(max(SMALL, 60 * min(0.9 * width / across, 0.9 * height / tall, 1)))
