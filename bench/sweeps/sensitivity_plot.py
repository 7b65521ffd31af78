"""The chart of a sweep: the final metric against a setting, and the share of seeds that diverged."""

from typing import TYPE_CHECKING

import numpy as np

from bench.results.chart import MOST, Array, Chart, Panel, Trace, axis_limits
from bench.text import spanned

if TYPE_CHECKING:
    from bench.sweeps.sensitivity import Curve, Sensitivity


def describe(sweep: "Sensitivity", least: float = 0.0) -> Chart:
    """The chart: the final metric above, the share of diverged seeds below.

    Values above an infimum are shown down to `least`.
    """
    points = [point for curve in sweep.curves for point in curve.points]
    ends = [end for p in points if p.median is not None for end in (p.median, *p.quartiles) if end is not None]
    # Losses close to their infimum are not distinguished.
    numbers = np.clip(ends or [0.5], least if sweep.above_infimum else -MOST, MOST)
    positive = numbers[numbers > 1e-300]
    log = bool(sweep.mode == "min" and min(numbers) >= 0 and positive.size and max(positive) > 10 * min(positive))
    place = {x: x if sweep.numeric else i for i, x in enumerate(dict.fromkeys(point.x for point in points))}
    grid = np.clip(np.array([*place.values()], dtype=np.float64), 1 / MOST if sweep.log else -MOST, MOST)
    place = dict(zip(place, grid, strict=True))
    across = axis_limits([grid], sweep.log, 0.03) if sweep.numeric else (-0.5, len(grid) - 0.5)
    limits = axis_limits([positive if log else numbers], log, 0.05)
    above, below = [], []
    for i, curve in enumerate(sweep.curves):
        apart = not sweep.numeric and sweep.x != "opt"
        aside = (i - (len(sweep.curves) - 1) / 2) / (len(sweep.curves) + 2) if apart else 0
        x = np.array([place[point.x] + aside for point in curve.points])
        joined = sweep.numeric and len(place) > 1 and curve.joined
        above.append(_medians(curve, x, limits, joined))
        shares = np.array([point.diverged / point.seeds for point in curve.points])
        below.append(Trace(curve.name, x, shares, marks="all", joined=joined))
    log_x, words = "x" * sweep.log, None if sweep.numeric else {float(i): str(x) for x, i in place.items()}
    seeds = spanned([point.seeds for point in points])
    caption = (
        f"Lines: median over {seeds} seed{'' if seeds == '1' else 's'}, diverged ones count as worst; bands: middle"
        f" half of the seeds; rings: best."
    )
    if not all(curve.joined for curve in sweep.curves):
        caption += " Points without a line differ in further settings."
    if any(point.capped for point in points):
        caption += " Settings whose cap set nearly all steps are never the best."
    if sweep.above_infimum and min(ends, default=1) < least:
        caption += f" Values below {least:g} are drawn at that value."
    elif log and len(positive) < len(numbers):
        caption += " Values of 0 are drawn at the lower edge."
    panels = [
        Panel(
            "medians",
            "",
            "",
            f"{sweep.metric} at the last step",
            log_x + "y" * log,
            above,
            limits=limits,
            x_limits=across,
            x_ticks=words,
            empty="no median",
            share=3.5,
        ),
        Panel(
            "diverged",
            "",
            sweep.x,
            "diverged seeds",
            log_x,
            below,
            limits=(-0.08, 1.08),
            x_limits=across,
            x_ticks=words,
            y_ticks={0: "0", 0.5: "50 %", 1: "100 %"},
        ),
    ]
    return Chart(panels, {curve.name: curve.opt for curve in sweep.curves}, 1, caption, stacked=True)


def _medians(curve: "Curve", x: Array, limits: tuple[float, float], joined: bool) -> Trace:
    """Medians and the band of the middle half of the seeds, which reaches the plot's edge if seeds diverged."""
    y, low, high = np.array([(p.median, *p.quartiles) for p in curve.points], dtype=np.float64).T
    lost = np.isnan(y)
    low, high = np.nan_to_num(low, nan=limits[0]), np.nan_to_num(high, nan=limits[1])
    y, low, high = (np.where(lost, np.nan, np.clip(v, *limits)) for v in (y, low, high))
    best = None if curve.best is None else (float(x[curve.best]), float(y[curve.best]))
    return Trace(curve.name, x, y, (low, high), "all", joined, ring=best)
