"""The chart of a sweep: the final metric against a setting, and the share of seeds that diverged."""

from typing import TYPE_CHECKING

import numpy as np

from bench.plots.panels import MOST, Spec, axis, axis_limits, encodings, faded, isolate, layer, number, titled
from bench.plots.theme import base, looks
from bench.text import spanned

if TYPE_CHECKING:
    from bench.sweeps.sensitivity import Curve, Sensitivity

_WIDTH, _HEIGHT = 330, 190


def sweep_spec(sweep: "Sensitivity", least: float = 0.0, *, live: bool = False) -> Spec:
    """The chart in Vega-Lite: medians with the middle half of the seeds above, the share of diverged seeds below.

    Values above an infimum are shown down to `least`.
    """
    points = [point for curve in sweep.curves for point in curve.points]
    shown = [end for p in points if p.median is not None for end in (p.median, *p.quartiles) if end is not None]
    # Losses close to their infimum are not distinguished.
    numbers = np.clip(shown or [0.5], least if sweep.above_infimum else -MOST, MOST)
    positive = numbers[numbers > 1e-300]
    log = bool(sweep.mode == "min" and min(numbers) >= 0 and positive.size and max(positive) > 10 * min(positive))
    limits = axis_limits([positive if log else numbers], log, 0.05)
    rows = [row for k, curve in enumerate(sweep.curves) for row in _rows(sweep, curve, k, limits)]
    if sweep.numeric:
        x, aside = axis("x", sweep.x, sweep.log), {}
    else:
        order = list(dict.fromkeys(row["x"] for row in rows))
        words = {"title": sweep.x, "labelAngle": -30 * (sum(map(len, order)) > 40)}
        x = {"field": "x", "type": "nominal", "sort": order, "axis": words}
        aside = {} if sweep.x == "opt" else {"xOffset": {"field": "name", "type": "nominal"}}
    y = axis("y", f"{sweep.metric} at the last step", log, limits)
    share = axis("share", "", False, (-0.08, 1.08))
    share["axis"] = {"title": ["diverged", "seeds"], "values": [0, 0.5, 1], "format": "%"}
    tip = [{"field": "name"}, {"field": "x", "title": sweep.x}, *map(number, ("y", "low", "high", "share"))]
    by, opacity = encodings(looks({curve.name: curve.opt for curve in sweep.curves}), 1, marks=True), faded(live)
    color = dict(color=by["color"])
    ends = dict(y=y | {"field": "low"}, y2={"field": "high"}, **color)

    def view(name: str, value: Spec, *more: Spec) -> Spec:
        line = layer("line", dict(y=value, strokeDash=by["strokeDash"], opacity=opacity, **color), "datum.joined")
        marks = dict(y=value, shape=by["shape"], opacity=opacity, **color)
        marks |= {"tooltip": tip} if live else {}
        point = layer("point", marks, filled=True, size=40) | {"name": name}
        shared = dict(x=x, detail={"field": "name", "type": "nominal"}, **aside)
        return {"width": _WIDTH, "encoding": shared, "layer": [*more, *[line] * sweep.numeric, point]}

    inside = [
        *[layer("area", ends | dict(opacity=faded(live, 0.16)), "datum.joined")] * sweep.numeric,
        layer("rule", ends | dict(opacity=faded(live, 0.35)), "!datum.joined", strokeWidth=3),
        layer("point", dict(y=y, opacity=opacity, **color), "datum.best", size=150, strokeWidth=1.5),
    ]
    if all(row["y"] is None for row in rows):
        middle = dict(x={"value": _WIDTH / 2}, y={"value": _HEIGHT / 2})
        inside = [layer("text", middle, data=[{}], text="no median")]
    above: Spec = view("medians", y, *inside) | {"height": _HEIGHT}
    above["encoding"]["x"] = {**x, "axis": x["axis"] | {"title": None}}
    caption = _caption(sweep, least, shown, zeros=log and len(positive) < len(numbers))
    return base() | {
        "data": {"values": rows},
        "vconcat": [above, view("diverged", share) | {"height": _HEIGHT / 3}],
        "spacing": 8,
        "resolve": {"scale": dict.fromkeys(("x", "color", "shape", "strokeDash"), "shared")},
        "title": titled(caption, _WIDTH + 60),
        **({"params": [isolate(["medians", "diverged"])]} if live else {}),
    }


def _caption(sweep: "Sensitivity", least: float, shown: list[float], *, zeros: bool) -> str:
    points = [point for curve in sweep.curves for point in curve.points]
    below = sweep.above_infimum and min(shown, default=1) < least
    notes = {
        f"Lines: median over {spanned([point.seeds for point in points])} seeds, diverged ones count as worst; bands:"
        " middle half of the seeds; rings: best.": True,
        "Points without a line differ in further settings.": not all(curve.joined for curve in sweep.curves),
        "Settings whose cap set nearly all steps are never the best.": any(point.capped for point in points),
        f"Values below {least:g} are drawn at that value.": below,
        "Values of 0 are drawn at the lower edge.": zeros and not below,
    }
    return " ".join(note for note, applies in notes.items() if applies)


def _rows(sweep: "Sensitivity", curve: "Curve", k: int, limits: tuple[float, float]) -> list[Spec]:
    """A row for each point: its median and the middle half of the seeds, which reaches the edge if seeds diverged."""
    rows, joined = [], sweep.numeric and len({p.x for c in sweep.curves for p in c.points}) > 1 and curve.joined
    for i, point in enumerate(curve.points):
        least = 1 / MOST if sweep.log else -MOST
        x = min(max(float(point.x), least), MOST) if sweep.numeric else str(point.x)
        y = low = high = None
        if point.median is not None:
            ends = [edge if end is None else end for end, edge in zip(point.quartiles, limits, strict=True)]
            y, low, high = map(float, np.clip([point.median, *ends], *limits))
        row = dict(name=curve.name, x=x, y=y, low=low, high=high, share=point.diverged / point.seeds)
        rows.append(row | {"best": i == curve.best, "joined": joined})
    return rows
