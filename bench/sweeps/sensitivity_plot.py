"""The figure of a sweep: the final metric against a setting, and the share of seeds that diverged."""

from typing import TYPE_CHECKING, Any

import numpy as np

from bench import drawing, figure_layout
from bench.papers.arms import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from bench.sweeps.sensitivity import Curve, Sensitivity


def make(sweep: "Sensitivity", least: float = 0.0) -> "Figure":
    """The figure, not yet written: the final metric above, the share of diverged seeds below.

    Values above an infimum are shown down to `least`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    points = [point for curve in sweep.curves for point in curve.points]
    ends = [end for p in points if p.median is not None for end in (p.median, *p.quartiles) if end is not None]
    # What matplotlib can put ticks around; and losses that are as good as at their infimum are not told apart.
    numbers = np.clip(ends or [0.5], least if sweep.above_infimum else -1e150, 1e150)
    positive = numbers[numbers > 1e-300]
    log = bool(sweep.mode == "min" and min(numbers) >= 0 and positive.size and max(positive) > 10 * min(positive))
    place = {x: x if sweep.numeric else i for i, x in enumerate(dict.fromkeys(point.x for point in points))}
    width, height = drawing.ONE_COLUMN, 2.9
    with drawing.house_style():
        figure = Figure(figsize=(width, height), dpi=drawing.DPI, layout="constrained")
        FigureCanvasAgg(figure)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3.5, 1))
        above.set(xscale="log" if sweep.log else "linear", yscale="log" if log else "linear")
        grid = np.array([*place.values()])
        above.set_xlim(
            *(figure_layout.axis_limits([grid], sweep.log, 0.03) if sweep.numeric else (-0.5, len(grid) - 0.5))
        )
        above.set_ylim(*figure_layout.axis_limits([positive if log else numbers], log, 0.05))
        for axis, scale in ((above.xaxis, sweep.log), (above.yaxis, log), (below.yaxis, False)):
            figure_layout.set_ticks(axis, scale)
        below.set(ylim=(-0.08, 1.08), yticks=[0, 0.5, 1], yticklabels=["0", "50 %", "100 %"])
        if not sweep.numeric:
            long = sum(map(len, place)) > 30
            below.set_xticks(grid, [*place], rotation=30 * long, ha="right" if long else "center")
        styles, handles = drawing.line_styles([curve.name for curve in sweep.curves], ordered=False), []
        for i, curve in enumerate(sweep.curves):
            aside = (
                0 if sweep.numeric or sweep.x == "opt" else (i - (len(sweep.curves) - 1) / 2) / (len(sweep.curves) + 2)
            )
            x = np.array([place[point.x] + aside for point in curve.points])
            handles.append(_plot(above, below, curve, x, styles[curve.name], sweep.numeric and len(place) > 1))
        if not ends:
            above.set_yticks([])
            above.text(0.5, 0.5, "no median", transform=above.transAxes, ha="center", va="center", color="0.4")
        y_label = figure_layout.wrap_text(
            figure, f"{sweep.metric} at the last step".replace("$", r"\$"), figure_layout.NORMAL, 1.7
        )
        above.set_ylabel(y_label)
        below.set(xlabel=sweep.x.replace("$", r"\$"), ylabel="diverged\nseeds")
        figure.align_labels()
        seeds = " to ".join(map(str, sorted({min(p.seeds for p in points), max(p.seeds for p in points)})))
        text = (
            f"Lines: median over {seeds} seed{'' if seeds == '1' else 's'}, with any that diverged as worst;"
            " bands: middle half of the seeds; rings: best."
        )
        if sweep.above_infimum and min(ends, default=1) < least:
            text += f" Values below {least:g} are drawn there."
        elif log and len(positive) < len(numbers):
            text += " Values of 0 are drawn at the lower edge."
        text = figure_layout.wrap_text(figure, text, figure_layout.SMALL, width - 0.1)
        artists = (
            figure_layout.add_legend(figure, handles),
            figure.supxlabel(text, x=0.05 / width, ha="left", color="0.25"),
        )
        figure.set_size_inches(
            width, round(height + sum(figure_layout.size_inches(figure, artist)[1] for artist in artists), 2)
        )
        return figure


def _plot(above: "Axes", below: "Axes", curve: "Curve", x: Array, style: drawing.LineStyle, lined: bool) -> "Line2D":
    """Draw a curve, and hand back its line for the legend."""
    bottom, top = above.get_ylim()
    y, low, high = np.array([(p.median, *p.quartiles) for p in curve.points], dtype=np.float64).T
    there = ~np.isnan(y)
    low, high = np.nan_to_num(low, nan=bottom), np.nan_to_num(high, nan=top)  # the band goes on where seeds diverged
    y, low, high = (np.clip(v, bottom, top) for v in (y, low, high))
    looks: dict[str, Any] = dict(
        color=style.color, marker=style.marker, markersize=2.5, lw=drawing.LINE_WIDTH, zorder=3
    )
    looks |= dict(linestyle=style.linestyle if lined else "none", clip_on=False)
    (line,) = above.plot(x, y, label=curve.name, **looks)
    below.plot(x, [point.diverged / point.seeds for point in curve.points], **looks)
    if lined:
        above.fill_between(x, low, high, where=there, color=style.color, alpha=0.18, linewidth=0, zorder=2)
    else:
        above.vlines(x[there], low[there], high[there], color=style.color, alpha=0.35, lw=3, zorder=2)
    if curve.best is not None:
        above.plot(x[curve.best], y[curve.best], "o", color=style.color, markersize=7, fillstyle="none", clip_on=False)
    return line
