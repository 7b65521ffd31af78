"""The chart of a sweep: the final metric against a setting, and the share of seeds that diverged."""

from typing import TYPE_CHECKING, Any

import numpy as np

from bench.plots.panels import MOST, axis, axis_limits, encodings, faded, isolate, number, titled, wrapped
from bench.plots.theme import Look, base, looks
from bench.text import spanned

if TYPE_CHECKING:
    from bench.sweeps.sensitivity import Curve, Sensitivity

_WIDTH, _HEIGHTS = 330, (190, 60)


def sweep_spec(sweep: "Sensitivity", least: float = 0.0, *, live: bool = False) -> dict[str, Any]:
    """The chart in Vega-Lite: medians with the middle half of the seeds above, the share of diverged seeds below.

    Values above an infimum are shown down to `least`.
    """
    points = [point for curve in sweep.curves for point in curve.points]
    ends = [end for p in points if p.median is not None for end in (p.median, *p.quartiles) if end is not None]
    # Losses close to their infimum are not distinguished.
    numbers = np.clip(ends or [0.5], least if sweep.above_infimum else -MOST, MOST)
    positive = numbers[numbers > 1e-300]
    log = bool(sweep.mode == "min" and min(numbers) >= 0 and positive.size and max(positive) > 10 * min(positive))
    limits = axis_limits([positive if log else numbers], log, 0.05)
    rows = [row for k, curve in enumerate(sweep.curves) for row in _rows(sweep, curve, k, limits)]
    styles = looks({curve.name: curve.opt for curve in sweep.curves})
    by = encodings(styles, 1, marks=True)
    if sweep.numeric:
        x = axis("x", sweep.x, sweep.log)
        aside = {}
    else:
        order = list(dict.fromkeys(row["x"] for row in rows))
        x = {"field": "x", "type": "nominal", "sort": order, "axis": {"title": sweep.x, "labelAngle": -30 * (sum(map(len, order)) > 40)}}
        aside = {} if sweep.x == "opt" else {"xOffset": {"field": "name", "type": "nominal"}}
    y = axis("y", f"{sweep.metric} at the last step", log, limits)
    y["scale"] |= {"domain": [*limits]}
    share = axis("share", "diverged seeds", False, (-0.08, 1.08))
    share["axis"] = {"title": ["diverged", "seeds"], "values": [0, 0.5, 1], "format": "%"}
    joined = [{"filter": "datum.joined"}]
    band = {"type": "area", "clip": True} if sweep.numeric else {"type": "rule", "strokeWidth": 3, "clip": True}
    tip = [{"field": "name"}, {"field": "x", "title": sweep.x}, *(number(k, k) for k in ("y", "low", "high", "share"))]
    detail = {"detail": {"field": "name", "type": "nominal"}}
    look = {"color": by["color"], "strokeDash": by["strokeDash"], "opacity": faded(live)}
    shaped = {"color": by["color"], "shape": by["shape"], "opacity": faded(live), "tooltip": tip}
    dot = {"type": "point", "filled": True, "size": 40, "clip": True}

    def view(name: str, value: dict[str, Any], height: int, *more: dict[str, Any]) -> dict[str, Any]:
        line = {"mark": {"type": "line", "clip": True}, "transform": joined, "encoding": {"y": value, **look}}
        marks = {"mark": dot, "encoding": {"y": value, **shaped}, "name": name}
        shared = {"x": x, **detail, **aside}
        return {"width": _WIDTH, "height": height, "encoding": shared, "layer": [*more, *([line] if sweep.numeric else []), marks]}

    ring = {"mark": {"type": "point", "filled": False, "size": 150, "strokeWidth": 1.5}, "transform": [{"filter": "datum.best"}], "encoding": {"y": y, "color": by["color"], "opacity": faded(live)}}
    low = {"y": y | {"field": "low"}, "y2": {"field": "high"}, "color": by["color"], "opacity": faded(live, 0.16 if sweep.numeric else 0.35)}
    shade = {"mark": band, "encoding": low} | ({"transform": joined} if sweep.numeric else {})
    bars = {"mark": band | {"type": "rule", "strokeWidth": 3}, "encoding": low | {"opacity": faded(live, 0.35)}, "transform": [{"filter": "!datum.joined"}]}
    lost = {"mark": {"type": "text", "text": "no median"}, "data": {"values": [{}]}, "encoding": {"x": {"value": _WIDTH / 2}, "y": {"value": _HEIGHTS[0] / 2}}}
    has_values = any(row["y"] is not None for row in rows)
    above = view("medians", y, _HEIGHTS[0], shade, bars, ring, *([] if has_values else [lost]))
    above["encoding"]["x"] = {**x, "axis": x["axis"] | {"title": None}}
    below = view("diverged", share, _HEIGHTS[1])
    return base() | {
        "data": {"values": rows},
        "vconcat": [above, below],
        "spacing": 8,
        "resolve": {"scale": {"x": "shared", "color": "shared", "shape": "shared", "strokeDash": "shared"}},
        "title": titled(_caption(sweep, least, ends, log=log, below=len(positive) < len(numbers)), _WIDTH + 60),
        **({"params": [isolate(["medians", "diverged"])]} if live else {}),
    }


def _caption(sweep: "Sensitivity", least: float, ends: list[float], *, log: bool, below: bool) -> str:
    points = [point for curve in sweep.curves for point in curve.points]
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
    elif log and below:
        caption += " Values of 0 are drawn at the lower edge."
    return caption


def _rows(sweep: "Sensitivity", curve: "Curve", k: int, limits: tuple[float, float]) -> list[dict[str, Any]]:
    """A row for each point: its median and the middle half of the seeds, which reaches the edge if seeds diverged."""
    rows, joined = [], sweep.numeric and len({p.x for c in sweep.curves for p in c.points}) > 1 and curve.joined
    for i, point in enumerate(curve.points):
        least, most = 1 / MOST if sweep.log else -MOST, MOST
        x = min(max(float(point.x), least), most) if sweep.numeric else str(point.x)
        row: dict[str, Any] = {"name": curve.name, "x": x, "y": None, "share": point.diverged / point.seeds}
        if point.median is not None:
            ends = [edge if end is None else end for end, edge in zip(point.quartiles, limits, strict=True)]
            row |= {name: min(max(float(v), limits[0]), limits[1]) for name, v in zip(("y", "low", "high"), (point.median, *ends), strict=True)}
        rows.append(row | {"best": i == curve.best, "joined": joined})
    return rows
