"""Figures of experiments: their panels as the YAML describes them, the lines of arms, and the map of a search."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict, Field

from bench.config.run_config import NoBooleans
from bench.errors import UserError
from bench.papers.arms import Arm, Arms, chosen, series
from bench.papers.verdicts import Finding
from bench.plots.panels import WORDS, Figure, Line, axis_limits, thinned, titled
from bench.plots.panels import Panel as Drawing
from bench.plots.theme import base
from bench.results.stats import Array
from bench.text import clean

MOST_POINTS = 2000
LABELS = WORDS | {
    "step": "optimizer steps t",
    "distance": "distance of the directions of W and W_mm",
    "alignment": "alignment of W with W_mm (cosine)",
    "norm_W": "norm of W",
    "relative_norm_W": "norm of W / norm of W_mm",
    "off_optimal": "1 \N{MINUS SIGN} softmax weight\non the optimal token",
    "on_optimal": "softmax weight\non the optimal token",
    "attn_score": "softmax mass on\nrelevant tokens",
    "off_relevant": "1 \N{MINUS SIGN} softmax mass on\nrelevant tokens",
    "avg_norm_W": "mean over heads of the norm of W",
    "avg_norm_U": "\N{SQUARE ROOT}H \N{MULTIPLICATION SIGN} mean over heads of the norm of U",
    "align_W": "alignment of W with the planted head (cosine)",
    "align_U": "alignment of U with the planted head (cosine)",
    "distance_u": "distance of the directions of u and u_mm",
    "min_margin": "smallest margin",
    "mean_margin": "mean margin",
    "entropy": "entropy of attention (nats)",
}
"""Axis labels of columns; others have their own name."""


class Described(NoBooleans):
    """A part of an experiment's YAML; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Guide(Described):
    """A thin line with a reference rate, proportional to `x**slope`, that meets the line of the panel's first arm."""

    slope: float = Field(allow_inf_nan=False)
    label: str = Field(min_length=1)


class Panel(Described):
    """One pair of axes.

    Attributes:
        y, x: columns.
        log: the axes that are logarithmic.
        title: shown above the panel.
        arms: keys of the shown arms; all by default.
        strip: prefix that the legend omits from this panel's labels, so that panels of two methods with the same
            numbers of heads share legend entries.
        smooth: steps of a running mean, which is taken first, for noisy losses of batches.
        x_max: the largest shown x.
        floor: the smallest shown y.
        guides: reference rates.
    """

    y: str
    x: str = "step"
    log: Literal["", "x", "y", "xy"] = ""
    title: str = ""
    arms: list[str] | None = Field(None, min_length=1)
    strip: str = ""
    smooth: int = Field(1, ge=1)
    x_max: float = Field(math.inf, gt=0)
    floor: float | None = Field(None, gt=0)
    guides: list[Guide] = Field(default_factory=list)


class FigureSpec(Described):
    """A figure: panels, row by row; `ordered` if the arms' labels are values of one quantity (numbers of heads)."""

    panels: list[Panel] = Field(min_length=1, max_length=26)
    columns: int = Field(2, ge=1, le=3)
    ordered: bool = False


def describe(spec: FigureSpec, arms: Arms, *, watermark: str = "") -> Figure:
    """The chart of arms, with a watermark across it. Equal labels in different panels share a style and legend entry.

    Raises:
        UserError: an arm is unknown, has no runs or lacks a column; labels do not distinguish arms.
    """
    panels = [_drawing(panel, arms) for panel in spec.panels]
    names = {name: name for panel in panels for name in panel.names}
    return Figure(panels, names, columns=spec.columns, ordered=spec.ordered, watermark=watermark)


def _drawing(panel: Panel, arms: Arms) -> Drawing:
    """The lines of a panel, their bands and guides."""
    lines, seeds = list[Line](), dict[str, str]()
    for arm in chosen(arms, panel.arms or arms):
        name = arm.label.removeprefix(panel.strip)
        if name in seeds:
            raise UserError(f"two arms of the panel of {panel.y!r} have the label {name!r}; choose one with `arms`")
        line, n = mean_line(panel, arms, arm)
        lines.append(line._replace(name=name))
        seeds[name] = f"{n}" + f" of {len(arm.runs)}" * (n != len(arm.runs))
    ends = [line.y if end is None else end for line in lines for end in (line.low, line.high)]
    limits = axis_limits(ends, "y" in panel.log, 0.05, panel.floor)
    some = [line for line in lines if len(line.x)]
    guides = [_guide(guide, some[0], limits, "x" in panel.log) for guide in panel.guides if some]
    x, y = (LABELS.get(column, column) for column in (panel.x, panel.y))
    notes = _notes(panel, lines, seeds)
    return Drawing(panel.title, x, y, panel.log, lines, notes, limits, "some", guides)


def mean_line(panel: Panel, arms: Arms, arm: Arm) -> tuple[Line, int]:
    """An arm's line in a panel, and the number of seeds that have values there.

    It is the mean over seeds at equal x, geometric on a logarithmic axis; its band is the lowest and highest value. Its
    cross is where the first seed ends before the others. Seeds are interpolated between their points.
    """
    steps, y, x = series(arms, arm, panel.y, panel.x)
    log_x, log_y = "x" in panel.log, "y" in panel.log
    apart = max(1.0, (steps[-1] - steps[0]) / max(1, len(steps) - 1))  # thinned curves have fewer rows in a window
    smooth = min(max(1, round(panel.smooth / apart)), max(2, len(steps) // 5), len(steps))
    if smooth > 1:
        window = np.full(smooth, 1 / smooth)
        y = np.array([np.convolve(_between(steps, steps, row), window, "valid") for row in y])
        x = np.array([np.convolve(_between(steps, steps, row), window, "valid") for row in x])
    with np.errstate(invalid="ignore"):
        shown = _drawable(x, log_x) & _drawable(y, log_y) & (x <= panel.x_max)
    grid = np.unique(x[shown])
    if not grid.size:
        return Line(arm.label, grid, grid), 0
    drawn = [(u[ok], v[ok]) for u, v, ok in zip(x, y, shown, strict=True) if ok.any()]
    values = np.array([_between(grid, u, v, log=log_y) for u, v in drawn])
    present = np.isfinite(values)
    mean = np.nansum(np.log(values) if log_y else values, axis=0) / present.sum(0)
    mean = np.exp(mean) if log_y else mean
    first = int((len(grid) - 1 - present[:, ::-1].argmax(1)).min())  # the end of the seed that ends first
    cross = (float(grid[first]), float(mean[first])) if first < len(grid) - 1 else None
    some = thinned(grid, log_x, MOST_POINTS)
    band = (values.min(0, initial=math.inf, where=present), values.max(0, initial=-math.inf, where=present))
    low, high = (end[some] if len(values) > 1 else None for end in band)
    return Line(arm.label, grid[some], mean[some], low, high, cross), len(values)


def _drawable(values: Array, log: bool) -> np.ndarray:
    # Limits and ticks around numbers at the ends of the range of float64 would be 0 or inf.
    return (np.abs(values) < 1e200) & (values > 1e-300 if log else True)


def _between(at: Array, x: Array, y: Array, *, log: bool = False) -> Array:
    """Values at `at`, interpolated between the finite points; NaN outside their range."""
    ok = np.isfinite(y)
    if not ok.any():
        return np.full(len(at), np.nan)
    order = np.argsort(x[ok], kind="stable")
    values = np.log(y[ok]) if log else y[ok]
    value = np.interp(at, x[ok][order], values[order], left=np.nan, right=np.nan)
    return np.exp(value) if log else value


def _guide(guide: Guide, line: Line, limits: tuple[float, float], log: bool) -> Line:
    """A guide inside the panel, over the later half of a line."""
    place = np.log(line.x) if log else line.x
    k = int(np.abs(place - (place[0] + 3 * place[-1]) / 4).argmin())
    with np.errstate(all="ignore"):
        y = line.y[k] * (line.x / line.x[k]) ** guide.slope
        inside = (place >= (place[0] + place[-1]) / 2) & (y >= limits[0]) & (y <= limits[1])
    return Line(guide.label, line.x[inside], y[inside])


def _notes(panel: Panel, lines: Sequence[Line], counts: Mapping[str, str]) -> list[str]:
    """What lines, bands, crosses and guides are."""
    most = max(counts.values(), key=lambda count: ([*counts.values()].count(count), int(count.split()[0])))
    others = ", ".join(f"{label}: {count}" for label, count in counts.items() if count != most)
    seeds = f"{most} seed{'s' * (most != '1')}" + f" ({others})" * bool(others)
    mean = f"{'geometric ' * ('y' in panel.log)}mean over {seeds}; bands: minimum to maximum over seeds"
    crossed = any(line.cross and (panel.floor is None or line.cross[1] >= panel.floor) for line in lines)
    return [
        f"lines: {mean if any(line.low is not None for line in lines) else seeds}",
        *[f"running mean over at most {panel.smooth} steps"] * (panel.smooth > 1),
        *["\N{MULTIPLICATION SIGN}: the first seed ends; the line continues with the others"] * crossed,
        *["grey: reference rates, not fits"] * bool(panel.guides),
    ]


_MARKS = {
    "holds": ("#009E73", "circle"),
    "faster than claimed": ("#0072B2", "triangle-up"),
    "undecided": ("#999999", "diamond"),
    "fails": ("#D55E00", "cross"),
}
"""Colour and shape of a verdict."""


def constants_map(region: Sequence[tuple[Mapping[str, object], Mapping[str, Finding]]]) -> dict[str, Any]:
    """The findings by point of a search and claim in Vega-Lite: a mark for each claim at each point."""
    first = region[0][0]
    names = [key for key in first if any(at[key] != first[key] for at, _ in region)]
    rows = [
        {"at": ", ".join(str(at[key]) for key in names), "claim": clean(name), "verdict": finding.verdict}
        for at, findings in region
        for name, finding in findings.items()
    ]
    colors, shapes = zip(*_MARKS.values(), strict=True)
    verdict = {"field": "verdict", "type": "nominal", "legend": {"orient": "top", "symbolSize": 90}}
    nominal = {"type": "nominal", "sort": None}
    about = "A mark for each claim at each combination of the constants, with Holm's correction over these."
    return base() | {
        "data": {"values": rows},
        "width": {"step": 26},
        "height": {"step": 20},
        "mark": {"type": "point", "filled": True, "size": 90},
        "encoding": {
            "x": {"field": "at", "title": ", ".join(name.removeprefix("task.") for name in names), **nominal},
            "y": {"field": "claim", "title": None, "axis": {"grid": True, "labelLimit": 400}, **nominal},
            "color": verdict | {"scale": {"domain": [*_MARKS], "range": [*colors]}},
            "shape": verdict | {"scale": {"domain": [*_MARKS], "range": [*shapes]}},
        },
        "title": titled(about, 500),
    }
