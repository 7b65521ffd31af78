"""Figures of experiments: their description in YAML, and the lines of arms.

`figure_chart.py` makes charts from them.
"""

import math
from typing import Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from bench.config.run_config import NoBooleans
from bench.errors import UserError
from bench.papers.arms import Arm
from bench.plots.panels import Line, thinned
from bench.results.stats import Array

MOST_POINTS = 2000


class Described(NoBooleans):
    """A part of an experiment's YAML; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Guide(Described):
    """A thin line with a reference rate; not a fit.

    It is proportional to `x**slope`, meets the line of the panel's first arm, and covers the later half of that line on
    the axis.

    Attributes:
        slope: the exponent; the line is straight if both axes are logarithmic.
        label: its legend entry.
    """

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
    smooth: int | None = Field(None, ge=1)
    x_max: float | None = Field(None, allow_inf_nan=False)
    floor: float | None = Field(None, allow_inf_nan=False)
    guides: list[Guide] = Field(default_factory=list)

    @model_validator(mode="after")
    def _positive_on_log(self) -> Self:
        for name, value, axis in (("x_max", self.x_max, "x"), ("floor", self.floor, "y")):
            if value is not None and value <= 0 and axis in self.log:
                raise ValueError(f"{name}={value:g} is not on a logarithmic axis")
        return self


class FigureSpec(Described):
    """A figure.

    Attributes:
        panels: row by row.
        columns: panels per row, 1 to 3.
        ordered: the arms' labels are values of one quantity (numbers of heads), so their colours are a sequence.
    """

    panels: list[Panel] = Field(min_length=1, max_length=26)
    columns: int = Field(2, ge=1, le=3)
    ordered: bool = False


# -- numbers --------------------------------------------------------------------------------------------------------


def lines(panel: Panel, arm: Arm) -> tuple[list[Line], int]:
    """An arm's lines in a panel, and the number of seeds that have values there.

    A line is the mean over seeds: finite, and positive on logarithmic axes. Its band is the lowest and highest value,
    None for one seed. Its cross is the point at which the first seed ends before the others; the line continues without
    it. None if all end together.

    Seeds are averaged into one line. If they differ in x, each is interpolated, unless x ever decreases: then every
    seed has its own line. Rows that a seed lacks between two others are interpolated.

    Raises:
        UserError: the arm has no runs, or no such columns.
    """
    if not arm.runs:
        raise UserError(f"arm {arm.label!r} has no runs to draw {panel.y!r} of")
    try:
        steps, y, x = arm.series(panel.y, panel.x)  # one table has both
    except KeyError as error:
        raise UserError(f"cannot draw {panel.y!r} over {panel.x!r}: {error.args[0]}") from error
    log_x, log_y = "x" in panel.log, "y" in panel.log
    apart = max(1.0, (steps[-1] - steps[0]) / max(1, len(steps) - 1))  # thinned curves have fewer rows in a window
    smooth = min(max(1, round((panel.smooth or 1) / apart)), max(2, len(steps) // 5), len(steps))
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
        return [_mean_line(arm, first, y, panel)], seeds
    if all(np.all(np.diff(row[ok]) >= 0) for row, ok in zip(x, shown, strict=True)):
        grid = np.unique(x[shown])
        y = np.array([_between(grid, x_row, y_row, log=log_y) for x_row, y_row in zip(x, y, strict=True)])
        return [_mean_line(arm, grid, y, panel)], seeds
    return [_mean_line(arm, x[s], y[s : s + 1], panel) for s in range(len(y)) if shown[s].any()], seeds


def _drawable(values: Array, log: bool) -> np.ndarray:
    # Limits and ticks around numbers at the ends of the range of float64 would be 0 or inf.
    return (np.abs(values) < 1e200) & (values > 1e-300 if log else True)


def _between(at: Array, x: Array, y: Array, *, log: bool) -> Array:
    """Values at `at`, interpolated between the drawable points; NaN outside their range."""
    ok = _drawable(y, log) & np.isfinite(x)
    if not ok.any():
        return np.full(len(at), np.nan)
    value = np.interp(at, x[ok], np.log(y[ok]) if log else y[ok], left=np.nan, right=np.nan)
    return np.exp(value) if log else value


def _mean_line(arm: Arm, x: Array, y: Array, panel: Panel) -> Line:
    """The mean over seeds, geometric on a logarithmic axis, of y of shape (S, P) at x of shape (P,); NaN is skipped."""
    present = np.isfinite(y)
    keep = present.any(0)
    x, y, present = x[keep], y[:, keep], present[:, keep]
    values = np.log(y) if "y" in panel.log else y
    mean = np.where(present, values / present.sum(0), 0).sum(0)
    mean = np.exp(mean) if "y" in panel.log else mean
    last = len(x) - 1 - present[:, ::-1].argmax(1)[present.any(1)]
    ended = (float(x[last.min()]), float(mean[last.min()])) if last.min() < len(x) - 1 else None
    low, high = np.fmin.reduce(y, axis=0), np.fmax.reduce(y, axis=0)
    some = thinned(x, "x" in panel.log, MOST_POINTS)
    band = {"low": low[some], "high": high[some]} if len(last) > 1 else {}
    return Line(arm.label, x[some], mean[some], **band, cross=ended)
