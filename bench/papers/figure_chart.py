"""The chart of an experiment: lines, guides and a caption from the description of its figure and its arms."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.errors import UserError, check_known
from bench.papers.arms import Arm
from bench.papers.figures import FigureSpec, Guide, Panel, lines
from bench.papers.verdicts import Finding
from bench.plots.panels import WORDS, Figure, Line, axis_limits, layer, titled
from bench.plots.panels import Panel as Drawing
from bench.plots.theme import base
from bench.results.stats import Array
from bench.text import clean

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
Drawn = list[tuple[Arm, list[Line], int]]
"""The arms of a panel, each with its lines and the number of seeds behind them."""


def describe(spec: FigureSpec, arms: Mapping[str, Arm], *, watermark: str = "") -> Figure:
    """The chart. Arms with the same label in different panels share a style and a legend entry.

    Args:
        spec: what to draw.
        arms: by key, in the order of the legend.
        watermark: large and pale across the figure.

    Raises:
        UserError: an arm is unknown, has no runs or lacks a column; labels do not distinguish arms.
    """
    if not arms:
        raise UserError("there are no arms to draw")
    drawn: list[Drawn] = [[(arm, *lines(panel, arm)) for arm in _chosen(panel, arms)] for panel in spec.panels]
    return Figure(
        [_panel(panel, rows) for panel, rows in zip(spec.panels, drawn, strict=True)],
        {arm.label: arm.label for rows in drawn for arm, _, _ in rows},
        columns=spec.columns,
        ordered=spec.ordered,
        watermark=watermark,
    )


def _panel(panel: Panel, arms: Drawn) -> Drawing:
    """Lines, bands and guides."""
    none = np.empty(0)
    lines = [line for arm, curves, _ in arms for line in curves or [Line(arm.label, none, none)]]
    ends = [line.y if end is None else end for line in lines for end in (line.low, line.high)]
    limits = axis_limits(ends, "y" in panel.log, 0.05, panel.floor)
    some = [line for line in lines if len(line.x)]
    guides = [Line(g.label, *_guide_points(g, some[0], panel, limits)) for g in panel.guides if some]
    x, y = (LABELS.get(column, column) for column in (panel.x, panel.y))
    return Drawing(panel.title, x, y, panel.log, lines, _notes(panel, arms), limits, "some", guides)


def _chosen(panel: Panel, arms: Mapping[str, Arm]) -> list[Arm]:
    """The arms of a panel."""
    keys = list(arms) if panel.arms is None else panel.arms
    check_known("arm", keys, arms)
    chosen = [replace(arms[key], label=arms[key].label.removeprefix(panel.strip)) for key in keys]
    for label, count in Counter(arm.label for arm in chosen).items():
        if count > 1:
            raise UserError(
                f"{count} arms of the panel of {panel.y!r} have the label {label!r}; choose one with `arms`"
            )
    return chosen


def _guide_points(guide: Guide, line: Line, panel: Panel, y_range: tuple[float, float]) -> tuple[Array, Array]:
    """The points of a guide inside the panel."""
    log_x = "x" in panel.log
    position = np.log(line.x) if log_x else line.x
    low, high = position.min(), position.max()
    x = np.linspace((low + high) / 2, high, 200)
    x = np.exp(x) if log_x else x
    k = int(np.abs(position - (low + 3 * high) / 4).argmin())
    with np.errstate(all="ignore"):
        y = line.y[k] * (x / line.x[k]) ** guide.slope
        inside = (y >= y_range[0]) & (y <= y_range[1])
    return x[inside], y[inside]


def _notes(panel: Panel, arms: Drawn) -> list[str]:
    """What lines, bands, crosses and guides are."""
    lines = [line for _, curves, _ in arms for line in curves]
    counts = {a.label: f"{n}" + f" of {len(a.runs)}" * (n != len(a.runs)) for a, _, n in arms}
    most = max(counts.values(), key=lambda count: ([*counts.values()].count(count), int(count.split()[0])))
    others = ", ".join(f"{label}: {count}" for label, count in counts.items() if count != most)
    seeds = f"{most} seed{'s' * (most != '1')}" + f" ({others})" * bool(others)
    mean = f"{'geometric ' * ('y' in panel.log)}mean over {seeds}; bands: minimum to maximum over seeds"
    ends = (line.cross[1] for line in lines if line.cross)
    crossed = any(panel.floor is None or y >= panel.floor for y in ends)
    return [
        f"lines: {mean if any(line.low is not None for line in lines) else seeds}",
        *[f"running mean over at most {panel.smooth} steps"] * ((panel.smooth or 1) > 1),
        *["a line for each seed"] * any(len(curves) > 1 for _, curves, _ in arms),
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
    """The verdicts of a search in Vega-Lite: a mark for each claim at each combination of constants.

    There is a panel for each value of the first constant with several values.

    Args:
        region: points of the search with their findings by claim; at least one.
    """
    points = [at for at, _ in region]
    vary = [key for key in points[0] if len({str(at[key]) for at in points}) > 1]
    first, *rest = vary if len(vary) > 1 else ["", *vary]
    rows = [
        {
            "panel": f"{_short(first)} = {at[first]}" if first else "",
            "at": ", ".join(str(at[key]) for key in rest),
            "claim": clean(name),
            "verdict": finding.verdict,
        }
        for at, findings in region
        for name, finding in findings.items()
        if finding.verdict in _MARKS
    ]
    scales = dict(zip(("color", "shape"), map(list, zip(*_MARKS.values(), strict=True)), strict=True))
    x = {"field": "at", "type": "nominal", "sort": None, "title": ", ".join(map(_short, rest)) or None}
    y = {"field": "claim", "type": "nominal", "sort": None, "title": None, "axis": {"grid": True, "labelLimit": 400}}
    of = {"field": "verdict", "type": "nominal", "legend": {"orient": "top", "symbolSize": 90}}
    marks = {channel: of | {"scale": {"domain": [*_MARKS], "range": values}} for channel, values in scales.items()}
    drawn = layer("point", dict(x=x, y=y, **marks), filled=True, size=90)
    about = "A mark for each claim at each combination of the constants, with Holm's correction over these."
    return base() | {
        "data": {"values": rows},
        "facet": {"field": "panel", "type": "nominal", "sort": None, "title": None},
        "columns": 2,
        "spec": drawn | dict(width={"step": 26}, height={"step": 20}),
        "title": titled(about, 500),
    }


def _short(constant: str) -> str:
    """The name of a searched constant on an axis."""
    name = constant.rpartition(".")[2]
    return f"factor of {name}" if constant.startswith("times.") else name
