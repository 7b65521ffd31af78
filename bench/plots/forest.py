"""The forest plot: the effects of the board `quality` as a picture, a panel for each problem."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bench.boards.collect import Collected, Problem
from bench.boards.quality import measure_and_verdicts
from bench.plots.curves import figure, of_problem
from bench.plots.panels import Figure, Line, Panel, Spec, axis, axis_limits, encodings, layer, number, wrapped
from bench.plots.theme import GREY, WIDTH, Look
from bench.results.sequential import LEAST_SEEDS, WITHIN_TUNING, Comparison
from bench.text import spanned

NAMES = 190  # pixels for the name and the verdict of a row, which has several lines if they need more


@dataclass(frozen=True)
class Effects(Panel):
    """A row for each optimizer, the best on top; x of its line is the effect, low and high its interval."""

    none: float = 0.0  # the effect of the reference

    def spec(self, styles: Mapping[str, Look], view: str = "view", columns: int = 1) -> Spec:
        """The panel in Vega-Lite; rows name the optimizers, so it has no legend."""
        x = axis("x", self.x, "x" in self.log, self.limits)
        x["axis"]["title"] = wrapped(self.x, 0.7 * WIDTH)  # names take room beside it
        most = max(1 + line.about["row"].count("\n") for line in self.lines)
        words: Spec = dict(labelExpr=r"split(datum.label, '\n')", labelLimit=0, ticks=False, domain=False)
        number_of = r"split(datum.value, '\n').length"  # lines of a label, whose middle is beside its row
        up = [{"test": f"{number_of} == {n}", "value": -6.5 * (n - 1)} for n in range(1, most + 1)]
        words["labelOffset"] = {"condition": up, "value": 0}
        y = {"field": "row", "type": "nominal", "sort": None, "title": None, "axis": words}
        tip = [{"field": "name"}, {"field": "verdict"}, number("x", "effect"), number("low"), number("high")]
        on = dict(x=x, y=y, color=encodings(styles, 0)["color"])
        top = {"x": x, "y": {"value": 0}, "y2": {"value": "height"}}
        full = {"condition": {"test": "datum.decided", "value": 1}, "value": 0}
        bar = on | {"x": x | {"field": "low"}, "x2": {"field": "high"}, "opacity": {"value": 0.4}, "tooltip": tip}
        layers = [
            layer("rule", top, [{"x": self.none}], color=GREY, strokeDash=[4, 2]),
            layer("rule", bar, strokeWidth=4),
            layer("point", on, fill="#ffffff", size=60, strokeWidth=2, opacity=1),
            layer("point", on | dict(fillOpacity=full, tooltip=tip), filled=True, size=60, opacity=1),
        ]
        return self.framed(layers, view) | {"height": len(self.lines) * (7 + 13 * most)}


def forest(collected: Collected) -> Figure:
    """Effect of each optimizer against the reference with its interval, the best on top; a panel for each problem."""
    return figure(collected, [of_problem(problem, _panel(collected, problem)) for problem in collected.problems])


def _panel(collected: Collected, problem: Problem) -> Effects:
    _, verdicts, floor = measure_and_verdicts(collected, problem)
    ref, measure = verdicts.ref, verdicts.measure
    log, none = measure.log, 1.0 if measure.log else 0.0
    panel = Effects("effects", f"{measure.words}: {verdicts.scale}; {verdicts.better}", "", "x" * log, none=none)
    if ref is None:
        return replace(panel, notes=[collected.no_reference(problem)])
    lines, seeds, left_out = list[Line](), list[int](), list[str]()
    for entry in verdicts.ordered(collected.problems[problem]):
        compared = verdicts.of(entry)
        if isinstance(compared, Comparison) and (effect := compared.effect) is not None:
            low, high = (-math.inf if log and end <= 0 else end for end in (effect.low, effect.high))
            bar = (np.array([low]), np.array([high])) if math.isfinite(low) or math.isfinite(high) else (None, None)
            words = verdicts.values(entry)["verdict"]
            row = "\n".join(wrapped(f"{entry.name}: {words}", NAMES))
            about = {"row": row, "verdict": words, "decided": bool(compared.sign)}
            lines.append(Line(entry.name, np.array([effect.mean]), np.zeros(1), *bar, about=about))
            seeds.append(compared.n)
        elif isinstance(compared, Comparison):
            left_out.append(f"{entry.name}: {compared.words}; too many runs have no value for a median")
        elif compared is not None:
            left_out.append(f"{entry.name}: {compared}")
    if not lines:
        return replace(panel, notes=left_out or [f"there is no entry besides the reference {ref.name}"])
    notes = [
        "points: median over common seeds; filled if the verdict is decided, hollow if not",
        "bars: intervals of the median, coverage 96 % or more, also when larger seeds are added; unbounded ones reach"
        f" the edge; none below {LEAST_SEEDS} seeds or for settings chosen on these seeds",
        f"common seeds: {spanned(seeds)}",
        *[f"{WITHIN_TUNING}: chosen settings differ, but the worse optimizer's search may have missed as much"]
        * any(line.about["verdict"].startswith(WITHIN_TUNING) for line in lines),
        *([floor] if floor else []),
        *left_out,
    ]
    ends = [end for line in lines for end in (line.x, line.low, line.high) if end is not None]
    limits = axis_limits([*ends, np.array([none])], log)
    return replace(panel, lines=lines, notes=notes, limits=limits)
