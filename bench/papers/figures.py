"""Figures of experiments: the panels that their YAML names."""

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from bench.papers.arms import Arm, Arms, chosen, series
from bench.plots import panels
from bench.plots.means import Points, finite, held, mean_panel
from bench.plots.panels import WORDS, Figure
from bench.text import CONVERGED

LABELS = WORDS | {
    "step": "optimizer steps t",
    "norm_W": "norm of W",
    "off_optimal": "1 \N{MINUS SIGN} softmax weight\non the optimal token",
    "on_optimal": "softmax weight\non the optimal token",
    "attn_score": "softmax mass on\nrelevant tokens",
    "avg_norm_W": "mean over heads of the norm of W",
    "avg_norm_U": "mean over heads of the norm of U, times sqrt(H)",
    "align_W": "alignment of W with the planted head (cosine)",
    "align_U": "alignment of U with the planted head (cosine)",
    "distance_u": "distance of the directions of u and u_mm",
}


class Described(BaseModel):
    """A part of an experiment's YAML; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Panel(Described):
    """One pair of axes: column `y`, logarithmic axes `log`, a title, and labels of the shown arms (default: all).

    The legend omits the prefix `strip` of labels, so that panels of two methods share entries. `smooth` are the steps
    of a running mean, for noisy losses of batches.
    """

    y: str
    log: Literal["", "x", "y", "xy"] = ""
    title: str = ""
    arms: list[str] | None = Field(None, min_length=1)
    strip: str = ""
    smooth: int = Field(1, ge=1)


class FigureSpec(Described):
    """A figure: panels, row by row; `ordered` if the arms' labels are values of one quantity (numbers of heads)."""

    panels: list[Panel] = Field(min_length=1)
    ordered: bool = False


def describe(spec: FigureSpec, arms: Arms, note: str = "") -> Figure:
    """The figure of arms, with a note; a `UserError` if arms lack runs or columns. Equal labels share a look."""
    drawn = [_drawn(panel, arms, note) for panel in spec.panels]
    return Figure(drawn, {name: name for panel in drawn for name in panel.names}, ordered=spec.ordered)


def _drawn(panel: Panel, arms: Arms, note: str) -> panels.Panel:
    shown = {arm.label.removeprefix(panel.strip): arm for arm in chosen(arms, panel.arms or arms)}
    lines = {name: _points(panel, arms, arm) for name, arm in shown.items()}
    facts = [note] * bool(note) + [f"running mean over {panel.smooth} steps"] * (panel.smooth > 1)
    y = LABELS.get(panel.y, panel.y)
    drawn = mean_panel(panel.title, y, lines, facts, log_x="x" in panel.log, log_y="y" in panel.log)
    return replace(drawn, x=LABELS["step"])


def _points(panel: Panel, arms: Arms, arm: Arm) -> list[Points | None]:
    """The points of each run, on a logarithmic axis from `CONVERGED` on; converged runs keep their last value."""
    steps, values = series(arms, arm, panel.y)
    if "y" in panel.log:
        values = np.where(values >= 0, np.maximum(values, CONVERGED), values)
    lines = [finite(steps, row) for row in values]
    window = max(1, round(panel.smooth * (len(steps) - 1) / max(1.0, steps[-1] - steps[0])))
    lines = [_smooth(line, min(window, len(line[0]))) if line is not None else None for line in lines]
    return held(lines, [run.status == "completed" for run in arm.runs.values()])


def _smooth(line: Points, window: int) -> Points:
    x, y = (np.convolve(values, np.full(window, 1 / window), "valid") for values in line)
    return x, y
