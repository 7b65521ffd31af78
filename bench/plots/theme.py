"""The look of all charts: a colour and a dash for each optimizer, fonts, sizes, files."""

import json
from collections.abc import Iterable, Mapping
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from bench.errors import UserError

ENDINGS = (".png", ".svg", ".pdf", ".html")
DPI = 300
SCREEN = 110  # pixels of a chart per inch in print: 11 pixels of a letter are 7.2 points

_COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#222222", "#E69F00", "#56B4E9", "#882255",
    "#999933", "#332288", "#999999", "#44AA99", "#661100", "#AA4499",
)  # fmt: skip
"""Okabe and Ito's colour-blind safe palette, with Tol's wine instead of their yellow, which is too faint on white, then
Tol's olive, indigo, a grey, and his teal, brown and purple."""
_OURS = ("#C2185B", "#4A148C", "#00838F")
"""Colours of the reader's own optimizers, which no other has."""
_BUILT_IN = (
    "adamw", "muon", "sgdm", "sngd", "gd", "ngd", "adam", "sps", "sgd", "momo", "sfadamw", "ps",
)  # fmt: skip
"""Optimizers with a fixed colour and dash: the same in all charts, whoever else is drawn."""
_DASHES = (
    [1, 0], [7, 2], [2, 2], [9, 2, 2, 2], [4, 2], [14, 3], [9, 2, 2, 2, 2, 2], [14, 2, 5, 2],
    [3, 3], [6, 5], [11, 5], [3, 1, 1, 1],
)  # fmt: skip
_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
_VIRIDIS = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#c5d92d")
"""Anchors of the sequence for ordered names, without its end that is invisible on white."""
GREY = "#888888"
FAINT = 0.08  # opacity of what a click on the legend has not chosen
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"  # vl-convert brings the first; all have the same widths
WIDTH, HEIGHT = 300, 190  # pixels of a panel
CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": "white",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "gridColor": "#e6e6e6",
        "domainColor": "#888888", "tickColor": "#888888", "labelColor": "#333333", "titleColor": "#222222",
        "tickCount": 5, "titlePadding": 6, "labelOverlap": "greedy", "labelSeparation": 6, "labelLimit": 260,
    },
    "legend": {
        "labelFontSize": 11, "labelLimit": 330, "symbolSize": 500, "symbolStrokeWidth": 2, "title": None,
        "labelColor": "#222222", "columnPadding": 14, "rowPadding": 2, "offset": 8,
    },
    "axisY": {"minExtent": 36},
    "title": {
        "frame": "group",
        "fontSize": 12, "fontWeight": "bold", "anchor": "start", "color": "#222222", "offset": 8,
        "subtitleColor": "#555555", "subtitleFontSize": 11,
    },
    "concat": {"spacing": 22},
}  # fmt: skip
BASE: dict[str, Any] = {"$schema": "https://vega.github.io/schema/vega-lite/v6.json", "config": CONFIG}


class Look(NamedTuple):
    """How an optimizer is drawn."""

    color: str
    dash: list[int]
    shape: str
    width: float = 1.6


def looks(series: Mapping[str, str], ours: Iterable[str] = (), ordered: bool = False) -> dict[str, Look]:
    """A look for each name of an optimizer; settings of one are shades of its colour with different dashes.

    A built-in optimizer has its own colour and dash; others take the remaining ones in order. The reader's own are
    first, and strong. `ordered` names, levels of one quantity, have colours from dark to light.
    """
    if ordered:
        steps = (len(_VIRIDIS) - 1) / max(1, len(series) - 1)
        return {name: _look(_VIRIDIS[round(k * steps)], k) for k, name in enumerate(series)}
    ours = {*ours}
    series = dict(sorted(series.items(), key=lambda item: item[1] not in ours))
    groups = {opt: [name for name in series if series[name] == opt] for opt in dict.fromkeys(series.values())}
    free = [k for k in range(len(_COLOURS)) if k >= len(_BUILT_IN) or _BUILT_IN[k] not in groups]
    dashes, strong = cycle([k for k in free if k < len(_DASHES)]), cycle(_OURS)
    colours = cycle(sorted(free, key=lambda k: k < len(_BUILT_IN)))
    drawn: dict[str, Look] = {}
    for opt, names in groups.items():
        fixed = _BUILT_IN.index(opt) if opt in _BUILT_IN else None
        place = next(dashes) if fixed is None else fixed
        colour = next(strong) if opt in ours else _COLOURS[next(colours) if fixed is None else fixed]
        for k, name in enumerate(names):
            shade = colour + f"{255 - 160 * k // len(names):02x}" * (k > 0)
            look = _look(shade, place + 5 * k)
            drawn[name] = look._replace(dash=look.dash if k else _DASHES[0], width=3) if opt in ours else look
    return drawn


def _look(colour: str, k: int) -> Look:
    return Look(colour, _DASHES[k % len(_DASHES)], _SHAPES[k % len(_SHAPES)])


def check_ending(path: Path) -> None:
    """Refuse an unknown file format, with a `UserError`."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"-o {path}: the name of a figure must end in .png, .svg, .pdf or .html")


def picture(spec: Mapping[str, Any], ending: str) -> bytes:
    """The content of a file with this Vega-Lite chart; a PNG has 300 dpi."""
    import vl_convert

    text, ending = json.dumps(spec), ending.lower()
    if ending == ".html":
        return _PAGE.format(vega=vega(), spec=script_json(spec)).encode()
    if ending == ".png":
        from PIL import Image

        smaller = BytesIO()  # the same image in a third of the bytes
        with Image.open(BytesIO(vl_convert.vegalite_to_png(text, scale=72 / SCREEN, ppi=DPI))) as image:
            image.convert("RGB").save(smaller, "PNG", optimize=True, dpi=(DPI, DPI))
        return smaller.getvalue()
    return vl_convert.vegalite_to_svg(text).encode() if ending == ".svg" else vl_convert.vegalite_to_pdf(text)


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Chart</title><body><div id="chart"></div>
<script type="module">{vega}</script>
<script type="module">vegaEmbed("#chart", {spec}, {{ast: true, renderer: "svg"}});</script></body></html>
"""


def vega() -> str:
    """The scripts that draw Vega-Lite in a page, with `vegaEmbed`; with its option `ast` it needs no `eval`."""
    import vl_convert

    script = vl_convert.javascript_bundle("window.vegaEmbed=vegaEmbed;")
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def script_json(data: Any) -> str:
    """JSON in a script of a page: no name can end the script."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
