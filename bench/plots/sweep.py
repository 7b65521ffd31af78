"""The figure of a sweep: the final metric against a setting."""

from typing import TYPE_CHECKING

import numpy as np

from bench.plots.means import is_wide
from bench.plots.panels import MOST, Figure, Line, Panel, axis_limits
from bench.text import spanned

if TYPE_CHECKING:
    from bench.sweeps.sensitivity import Sensitivity


def sweep_figure(sweep: "Sensitivity", least: float = 0.0) -> Figure:
    """Medians with the middle half of the seeds; values above an infimum are shown down to `least`."""
    points = [point for curve in sweep.curves for point in curve.points]
    ends = [end for p in points if p.median is not None for end in (p.median, *p.quartiles) if end is not None]
    values = np.array([0.0 if abs(end) < 1e-300 else end for end in ends])
    values = np.maximum(values, least) if sweep.above_infimum else values
    log = sweep.mode == "min" and is_wide([values])
    low, high = axis_limits([values], log)
    ticks = [] if sweep.numeric else list(dict.fromkeys(str(point.x) for point in points))
    lines = list[Line]()
    for curve in sweep.curves:
        x = np.array([float(p.x) if sweep.numeric else ticks.index(str(p.x)) for p in curve.points])
        median, *quartiles = np.array([(p.median, *p.quartiles) for p in curve.points], dtype=float).T
        # A diverged seed is worse than any number: the interval reaches the edge.
        band = [np.nan_to_num(end, nan=edge) for end, edge in zip(quartiles, (low, high), strict=True)]
        x, columns = np.clip(x, 1 / MOST if sweep.log else -MOST, MOST), np.clip([median, *band], low, high)
        joined = sweep.numeric and curve.joined
        for k in [slice(None)] if joined else [slice(k, k + 1) for k in range(len(x))]:
            lines.append(Line(curve.name, x[k], *(column[k] for column in columns)))
    notes = [f"lines: median over {spanned([p.seeds for p in points])} seeds (diverged: worst); bands: middle half"]
    notes += ["points without a line differ in further settings"] * any(not curve.joined for curve in sweep.curves)
    notes += ["settings whose cap set nearly all steps are never the best"] * any(p.capped for p in points)
    notes += [f"values below {max(least, low):.3g} are drawn at that value"] * (
        min(ends, default=low) < max(least, low)
    )
    logs = "x" * (sweep.numeric and sweep.log) + "y" * log
    panel = Panel("", sweep.x, f"{sweep.metric} at the last step", logs, lines, notes, (low, high), True, ticks)
    return Figure([panel], {curve.name: curve.opt for curve in sweep.curves})
