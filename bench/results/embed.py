"""A panel of a chart as SVG in a page: text stays text, colours follow the page, each series is a group."""

import re
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Any
from xml.etree import ElementTree

from bench.results.chart import Chart, Panel, Trace, thinned
from bench.results.draw import Legend, draw_panel, empty_figure, harmless, house_style
from bench.results.styles import on_dark

_WIDTH, _HEIGHT = 3.6, 2.5
"""Inches: letters on a phone are as large as in print, and a desktop shows two panels next to each other."""
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_DROPPED = (f"{_SVG}metadata", f"{_SVG}style")
_NUMBER, _COLOUR = re.compile(r"-?\d+\.\d+"), re.compile(r"#([0-9a-f]{6})")
_MOST_POINTS = 100
"""Maximum number of points of a line on a page, whose panels are about 260 pixels wide. Ours."""
_LONG = 1000
"""Letters of a path from which it is a band, not a marker. Ours."""
_REFERRED = re.compile(r"^(?:url\()?#([^)]+)")


def embed(chart: Chart, panel: Panel) -> dict[str, Any]:
    """The panel without title, legend and caption, which the page adds; the same panel gives the same text.

    Elements of a series are in groups of the class `series`, with its number and name as `data-series` and
    `data-name`. The root has the data to convert positions into values: the box of the axes in SVG units, their limits,
    and which are logarithmic; and whether y has labels, so that only x is a value.

    Returns:
        `svg`, and `legend` with a dict for each series: its number and name in the SVG; its color and dash in CSS (no
        dash if its points are not joined); and its marker as an SVG path around (0, 0), empty if it has none.
    """
    panel = replace(panel, traces=[_thinned(trace, "x" in panel.log) for trace in panel.traces])
    legend, image = Legend(replace(chart, panels=[panel])), BytesIO()
    with house_style():
        import matplotlib

        matplotlib.rcParams["path.simplify"] = False  # the pointer needs every point
        matplotlib.rcParams["axes.formatter.use_mathtext"] = False
        matplotlib.rcParams["svg.hashsalt"] = panel.key
        height = max(_HEIGHT, panel.least)
        figure = empty_figure(_WIDTH, height)
        axes = figure.subplots()
        draw_panel(axes, panel, legend, (_WIDTH - 0.7, height - 0.5))
        if engine := figure.get_layout_engine():
            engine.execute(figure)
        figure.set_layout_engine("none")  # the layout is final: without an engine, saving need not draw twice
        figure.savefig(image, format="svg", transparent=True, metadata={"Date": None})
        place, limits = axes.get_position(), (axes.get_xlim(), axes.get_ylim())
    root = ElementTree.fromstring(image.getvalue())
    _clean(root, panel.key, legend.names)
    _join_grid(root)
    _shorten(root)
    box = (72 * x for x in (_WIDTH * place.x0, height * (1 - place.y1), _WIDTH * place.x1, height * (1 - place.y0)))
    facts = {"box": box, "x": limits[0], "y": limits[1]}
    root.attrib |= {f"data-{name}": " ".join(f"{value:.9g}" for value in own) for name, own in facts.items()}
    said = " against ".join(words for words in (panel.y, panel.x) if words)
    label = f"{harmless(panel.title)}: {harmless(said)}"
    root.attrib |= {"data-log": panel.log, "role": "img", "aria-label": label, "data-words": "y" * chart.labelled}
    series = []
    for i, name in enumerate(legend.names):
        looks = legend.looks(name)
        dash = None if looks["linestyle"] == "none" else _dash(looks["linestyle"])
        own = {"color": _variable(looks["color"]), "dash": dash, "mark": _mark(looks.get("marker"))}
        series.append({"number": i, "name": harmless(name), **own})
    return {"svg": ElementTree.tostring(root, encoding="unicode"), "legend": series}


def _thinned(trace: Trace, log: bool) -> Trace:
    """The trace with at most `_MOST_POINTS` points."""
    some = thinned(trace.x, log, _MOST_POINTS)
    low_high = None if trace.band is None else (trace.band[0][some], trace.band[1][some])
    return replace(trace, x=trace.x[some], y=trace.y[some], band=low_high) if trace.joined else trace


def variables(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """The CSS variables for the colours of a page's SVG, for light and dark pages."""
    light = {f"--c{code}": f"#{code}" for code in sorted({*re.findall(r"var\(--c([0-9a-f]{6})\)", text)})}
    return light, {name: on_dark(colour) for name, colour in light.items()}


def _variable(colour: str) -> str:
    return _COLOUR.sub(r"var(--c\1)", colour.lower())


def _dash(linestyle: Any) -> str:
    return "none" if isinstance(linestyle, str) else " ".join(f"{1.2 * part:g}" for part in linestyle[1])


def _mark(marker: str | None) -> str:
    if marker is None:
        return ""
    from matplotlib.markers import MarkerStyle
    from matplotlib.path import Path
    from matplotlib.transforms import Affine2D

    letters = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}
    style = MarkerStyle(marker)
    path = style.get_path().transformed(style.get_transform() + Affine2D().scale(7, -7))
    parts = [(letters[code], [] if code == Path.CLOSEPOLY else at.tolist()) for at, code in path.iter_segments()]
    return " ".join(f"{letter}{' '.join(f'{x:.2f}' for x in at)}" for letter, at in parts)


def _clean(root: ElementTree.Element, key: str, names: list[str]) -> None:
    """Prepare matplotlib's SVG for a page: unique ids, no global style, nothing superfluous."""
    values = (value for each in root.iter() for value in each.attrib.values())
    used = {name: f"{key}-{i}" for i, name in enumerate(dict.fromkeys(m for v in values for m in _REFERRED.findall(v)))}
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    for each in root.iter():
        for child in [child for child in each if child.tag in _DROPPED]:
            each.remove(child)
        each.tag = each.tag.removeprefix(_SVG)
        each.text, each.tail = each.text if (each.text or "").strip() else None, None
        own, series = each.attrib, each.attrib.get("id", "").partition("series-")[2]
        if own.get("id") in used:
            own["id"] = used[own["id"]]
        else:
            own.pop("id", None)
        if series:
            own |= {"class": "series", "data-series": series, "data-name": harmless(names[int(series)])}
        if _LINK in own:
            own["href"] = f"#{used[own.pop(_LINK)[1:]]}"
        if "clip-path" in own:
            own["clip-path"] = f"url(#{used[own['clip-path'][5:-1]]})"
        if "style" in own:
            own["style"] = _variable(own["style"].replace("font-family: 'DejaVu Sans'", "").strip("; ")).replace(
                "; ; ", "; "
            )
        band = len(own.get("d", "")) > _LONG and "fill: none" not in own.get("style", "")
        for name in own.keys() & {"d", "x", "y", "transform", "width", "height"}:
            line = name == "d" and "fill: none" in own.get("style", "")  # the pointer reads values from it
            digits = 3 if line else 1 if band else 2
            own[name] = " ".join(_NUMBER.sub(partial(_rounded, digits), own[name]).split())
        if band:
            own["d"] = own["d"].replace(" L ", " ")  # as further points of M
        if own.get("transform", "").startswith("rotate(-0 "):
            del own["transform"]


def _join_grid(root: ElementTree.Element) -> None:
    """Draw the grid, clipped lines outside of series, as one path for each style."""
    series = {each for group in root.iterfind(".//g[@class='series']") for each in group.iter()}
    first: dict[tuple[str | None, str], ElementTree.Element] = {}
    for group in [*root.iter("g")]:
        for path in [path for path in group.findall("path[@clip-path]") if path.get("d", "").count("L") == 1]:
            kept = first.setdefault((path.get("style"), path.attrib["clip-path"]), path)
            if kept is not path and path not in series and kept not in series:
                kept.attrib["d"] += f" {path.attrib['d']}"
                group.remove(path)


def _shorten(root: ElementTree.Element) -> None:
    """Remove groups with nothing or only one other element, and styles of uses that repeat those of what they use."""
    styles = {each.get("id"): each.get("style") for each in root.iter() if "id" in each.attrib}
    for each in root.iter():
        if each.tag == "use" and each.get("style") == styles.get(each.get("href", "")[1:], ""):
            del each.attrib["style"]
        for child in [child for child in each if child.tag == "g" and not len(child)]:
            each.remove(child)
        for i, child in enumerate(each):
            while child.tag == "g" and not child.attrib and len(child) == 1 and child[0].tag in ("g", "use"):
                each[i] = child = child[0]


def _rounded(digits: int, found: re.Match[str]) -> str:
    return f"{float(found[0]):.{digits}f}".rstrip("0").rstrip(".")
