"""The forest plot: the effects of the board `quality` as a picture, a panel for each problem."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from bench.boards.collect import Collected
from bench.boards.entries import Problem
from bench.boards.quality import judged
from bench.plots.curves import figure, of_problem
from bench.plots.panels import Figure, Line, Panel, Spec, axis, axis_limits, encodings, layer, number, wrapped
from bench.plots.theme import GREY, WIDTH, Look
from bench.results.sequential import LEAST_SEEDS, Comparison
from bench.text import spanned

_ROW = 17
"""Pixels of a line of text beside a row."""
_LETTERS = 30
"""Letters of a line of text beside a row."""


@dataclass(frozen=True)
class Effects(Panel):
    """A panel with a row for each optimizer, the best on top; x of its line is the effect, low and high its interval.

    Attributes:
        verdicts: by name: in words, and whether it is decided.
        none: the effect of the reference.
        x_limits: of the effects.
    """

    verdicts: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    none: float = 0.0
    x_limits: tuple[float, float] = (0.0, 1.0)

    def rows(self) -> list[Spec]:
        """A row for each optimizer."""
        rows = []
        for line in self.lines:
            words, decided = self.verdicts[line.name]
            beside = "\n".join(wrapped(f"{line.name}: {words}", _LETTERS, 1))
            row = dict(name=line.name, row=beside, verdict=words, decided=decided, x=float(line.x[0]))
            ends = {name: end for name, end in (("low", line.low), ("high", line.high)) if end is not None}
            rows.append(row | {name: float(np.clip(end[0], *self.x_limits)) for name, end in ends.items()})
        return rows

    def spec(self, styles: Mapping[str, Look], view: str = "view", columns: int = 1, *, live: bool) -> Spec:
        """The panel in Vega-Lite; rows name the optimizers, so it has no legend."""
        rows, x = self.rows(), axis("x", self.x, "x" in self.log, self.x_limits)
        x["axis"]["title"] = wrapped(self.x, 0.7 * WIDTH)  # names take room beside it
        words = dict(labelExpr="split(datum.label, '\\n')", labelLimit=0, labelLineHeight=13, ticks=False, domain=False)
        y = {"field": "row", "type": "nominal", "sort": None, "title": None, "axis": words}
        tip = [{"field": "name"}, {"field": "verdict"}, number("x", "effect"), number("low"), number("high")]
        on = dict(x=x, y=y, color=encodings(styles, 0)["color"])
        top = {"x": x, "y": {"value": 0}, "y2": {"value": "height"}}
        full = {"condition": {"test": "datum.decided", "value": 1}, "value": 0}
        bar = on | {"x": x | {"field": "low"}, "x2": {"field": "high"}, "opacity": {"value": 0.4}, "tooltip": tip}
        layers = [
            layer("rule", top, data=[{"x": self.none}], color=GREY, strokeDash=[4, 2]),
            layer("rule", bar, strokeWidth=4),
            layer("point", on, fill="#ffffff", size=60, strokeWidth=2, opacity=1),
            layer("point", on | dict(fillOpacity=full, tooltip=tip), filled=True, size=60, opacity=1),
        ]
        lines = max((row["row"].count("\n") + 1 for row in rows), default=1)
        return self.framed(layers, view) | {"height": len(rows) * (_ROW * lines + 6)}


def forest(collected: Collected) -> Figure:
    """Effect of each optimizer against the reference with its interval, the best on top; a panel for each problem."""
    return figure(collected, [of_problem(problem, _panel(collected, problem)) for problem in collected.problems])


def _panel(collected: Collected, problem: Problem) -> Effects:
    _, verdicts, floor = judged(collected, problem)
    ref, measure = verdicts.ref, verdicts.measure
    panel = Effects("effects", f"{measure.words}: {'; '.join(verdicts.scale)}", "")
    if ref is None:
        return replace(panel, notes=[collected.no_reference(problem)])
    rows: list[tuple[str, Comparison]] = []
    left_out = []
    for entry in verdicts.ordered(collected.problems[problem]):
        of = verdicts.of(entry)
        if isinstance(of, str):
            left_out.append(f"{entry.name}: {of}")
        elif of is not None and of.effect is None:
            counts = f"{of.lost[0]} of its and {of.lost[1]} of the reference's {of.n} runs have no value"
            left_out.append(f"{entry.name}: {of.words}; there is no median, since {counts}")
        elif of is not None:
            rows.append((entry.name, of))
    if not rows:
        return replace(panel, notes=[*left_out] or [f"there is no entry besides the reference {ref.name}"])
    log, none = measure.log, 1.0 if measure.log else 0.0
    effects = [of.effect for _, of in rows if of.effect is not None]
    ends = np.array([(effect.low, effect.high) for effect in effects])
    ends[(ends <= 0) & log] = -math.inf
    limits = axis_limits([np.array([effect.mean for effect in effects]), ends, np.array([none])], log, 0.06)
    lines, words = [], {}
    for (name, of), effect, interval in zip(rows, effects, ends, strict=True):
        bar = (interval[:1], interval[1:]) if np.isfinite(interval).any() else ()
        lines.append(Line(name, np.array([effect.mean]), np.zeros(1), *bar))
        entry = next(entry for entry in collected.problems[problem] if entry.name == name)
        words[name] = verdicts.values(entry, of)["verdict"], bool(of.sign)
    notes = [
        "points: median over common seeds; filled if the verdict is decided, hollow if not",
        "bars: intervals of the median, coverage 96 % or more, also when larger seeds are added; unbounded ones reach"
        f" the edge; none below {LEAST_SEEDS} seeds or for settings chosen on these seeds",
        f"common seeds: {spanned([of.n for _, of in rows])}",
        *([floor] if floor else []),
        *left_out,
    ]
    return replace(panel, log="x" * log, lines=lines, notes=notes, verdicts=words, none=none, x_limits=limits)
