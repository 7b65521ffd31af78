"""From the values of runs to the lines of a panel: means over seeds at common steps, with intervals."""

import math
from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np
from scipy.special import stdtrit

from bench.plots.panels import MOST, Line, Panel, axis_limits, thinned
from bench.results.stats import Array
from bench.text import spanned

MOST_POINTS = 150  # of a line; more are not visible
FEW_SEEDS = 3  # below it each seed has a line, and no band is drawn
SPAN = 10  # ratio of largest to smallest value above which an axis is logarithmic
STEPS = "optimizer steps"

Points = tuple[Array, Array]
"""Steps and values of a run, shape (P,) each, P > 0; only finite values."""


def finite(at: Array, values: Array) -> Points | None:
    """The points with finite values; None if there are none."""
    mask = np.isfinite(values)
    return (at[mask], values[mask]) if mask.any() else None


def held(lines: Sequence[Points | None], converged: Sequence[bool]) -> list[Points | None]:
    """The lines; runs that converged early continue with their last value."""
    longest = max((line[0] for line in lines if line is not None), key=lambda at: at[-1], default=np.empty(0))
    continued = list(lines)
    for k, line in enumerate(lines):
        if line is not None and converged[k]:
            later = longest[longest > line[0][-1]]
            continued[k] = np.append(line[0], later), np.append(line[1], np.full(len(later), line[1][-1]))
    return continued


def at_common_steps(lines: Sequence[Points]) -> Points:
    """Steps at which all runs have values, shape (P,), and the values, shape (S, P)."""
    at = reduce(np.intersect1d, [steps for steps, _ in lines])
    return at, np.array([values[np.searchsorted(steps, at)] for steps, values in lines])


def is_wide(values: Sequence[Array]) -> bool:
    """Whether values are so far apart that their axis is logarithmic."""
    every = np.concatenate([np.ravel(array) for array in values]) if values else np.empty(0)
    positive = every[every > 0]
    return bool(positive.size and every.min() >= 0 and positive.max() > SPAN * positive.min())


def mean_panel(
    title: str,
    y: str,
    lines: Mapping[str, Sequence[Points | None]],
    facts: Sequence[str] = (),
    *,
    log_x: bool = False,
    log_y: bool | None = None,
    cut: float = math.inf,  # multiple of the highest initial value above which lines leave the panel
) -> Panel:
    """A panel of means over seeds, for each name at the steps that all its runs have; `facts` are further notes."""
    runs = {name: some for name, of in lines.items() if (some := [line for line in of if line is not None])}
    common = {name: at_common_steps(of) for name, of in runs.items()}
    log_y = is_wide([values for _, values in common.values()]) if log_y is None else log_y
    drawn, seeds, notes = list[Line](), list[int](), [*facts]
    for name, (at, values) in common.items():
        shown = ((values > 0).all(0) | (not log_y)) & ((at > 0) | (not log_x))
        if not shown.any():
            notes.append(f"{name} is not drawn: no step has values of all its runs")
            continue
        at, values = at[shown], values[:, shown]
        seeds.append(len(values))
        if at[-1] < max(line[0][-1] for line in runs[name]):
            notes.append(f"{name} is drawn up to step {at[-1]:.0f}: later steps lack values of some runs")
        if missing := len(lines[name]) - len(values):
            notes.append(f"{name}: {missing} of {len(lines[name])} runs have no such values")
        indices = thinned(at, log_x, MOST_POINTS)
        drawn += _means(name, at[indices], values[:, indices], log_y)
    most = cut * (max((abs(float(line.y[0])) for line in drawn), default=0.0) or math.inf)
    if exploded := dict.fromkeys(line.name for line in drawn if line.y.max() > most):
        notes.append(f"cut off above {most:.3g}, {cut:g} times the highest initial value: {', '.join(exploded)}")
    if drawn:
        bands = f"bands: 95 % t-interval at each point; with fewer than {FEW_SEEDS} seeds, a line for each"
        notes.insert(0, f"lines: {'geometric ' * log_y}mean over {spanned(seeds)} seeds; {bands}")
    elif not notes:
        notes.append("no run has such values")
    ends = [end for line in drawn for end in (line.low, line.high) if end is not None]
    limits = axis_limits([line.y for line in drawn], log_y, ends, most)
    return Panel(title, STEPS, y, "x" * log_x + "y" * log_y, drawn, notes, limits)


def _means(name: str, at: Array, values: Array, log: bool) -> list[Line]:
    """The mean with its t-interval at each point, or a line for each seed if there are too few."""
    if (n := len(values)) < FEW_SEEDS:
        return [Line(name, at, row) for row in values]
    scaled = np.log(values) if log else np.clip(values, -MOST, MOST)  # squares of larger numbers overflow
    mean, half = scaled.mean(0), float(stdtrit(n - 1, 0.975)) * scaled.std(0, ddof=1) / math.sqrt(n)
    ends = [np.exp(np.clip(end, -690, 690)) if log else end for end in (mean, mean - half, mean + half)]
    return [Line(name, at, *ends)]
