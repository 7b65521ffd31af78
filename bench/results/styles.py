"""How curves are distinguished: colours for optimizers, shades for their settings, dashes and markers for all."""

from collections.abc import Iterable, Mapping
from itertools import cycle
from typing import Any, NamedTuple

_COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#882255",
    "#999933", "#332288", "#999999", "#44AA99", "#661100", "#AA4499",
)  # fmt: skip
"""Okabe and Ito's colour-blind safe palette, with Tol's wine instead of their yellow, which is too faint on white, then
Tol's olive, indigo, a grey, and his teal, brown and purple."""
_OWN = (
    "adamw", "muon", "sgdm", "sngd", "gd", "ngd", "adam", "sps", "sgd", "momo", "sfadamw", "ps",
)  # fmt: skip
"""Optimizers with a fixed colour, in the order of the palette: the same in all figures, whoever else is drawn."""
_DASHES: tuple[Any, ...] = (
    "solid",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (2.6, 1.2)),
    (0, (10, 1.8)),
    (0, (6, 1.2, 1.2, 1.2, 1.2, 1.2)),
    (0, (10, 1.5, 3, 1.5)),
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "*", "X")
GUIDE_DASHES: tuple[Any, ...] = ((0, (4, 2)), (0, (1, 1.5)), (0, (7, 2, 1, 2)), "solid")


class Style(NamedTuple):
    """How a curve is drawn."""

    color: str
    linestyle: Any
    marker: str


def styles(series: Mapping[str, str], names: Iterable[str] = (), ordered: bool = False) -> dict[str, Style]:
    """A style for each name: all differ in colour or shade and, for print in grey, in dashes or, beyond eight, markers.

    An optimizer of the suite has its own colour; other groups take the remaining ones in order.

    Args:
        series: the group of each name, in order.
        names: further names, each its own group.
        ordered: colours from a sequence, from dark to light, instead of those of the groups.
    """
    series = dict(series) | {name: name for name in names if name not in series}
    groups = {group: [name for name in series if series[name] == group] for group in dict.fromkeys(series.values())}
    fixed = {group: _COLOURS[_OWN.index(group)] for group in groups if group in _OWN}
    free = cycle([colour for colour in _COLOURS if colour not in fixed.values()])
    colours: dict[str, str] = {}
    for group, members in groups.items():
        colours |= zip(members, _shades(fixed.get(group) or next(free), len(members)), strict=True)
    if ordered:
        import matplotlib
        from matplotlib.colors import to_hex

        # Without the end that is invisible on white paper.
        steps = (0.87 * i / max(1, len(series) - 1) for i in range(len(series)))
        colours = {name: to_hex(matplotlib.colormaps["viridis"](at)) for name, at in zip(series, steps, strict=True)}
    n = len(_DASHES)
    return {
        name: Style(colours[name], _DASHES[i % n], _MARKERS[(i + i // n) % len(_MARKERS)])
        for i, name in enumerate(series)
    }


def _shades(colour: str, n: int) -> list[str]:
    """Shades of a colour, from dark to light; one is the colour itself."""
    if n == 1:
        return [colour]
    ends = mixed(colour, 0, 0.35), mixed(colour, 255, 0.5)
    return [mixed(ends[0], ends[1], k / (n - 1)) for k in range(n)]


def mixed(colour: str, other: str | int, share: float) -> str:
    """A colour mixed with a share of another one, or of a grey."""
    parts = bytes.fromhex(colour[1:])
    more = [other] * 3 if isinstance(other, int) else bytes.fromhex(other[1:])
    return "#" + bytes(round((1 - share) * a + share * b) for a, b in zip(parts, more, strict=True)).hex()


def on_dark(colour: str) -> str:
    """The counterpart of a colour on a dark page: greys are inverted, dark colours become lighter."""
    parts = bytes.fromhex(colour[1:])
    if max(parts) - min(parts) < 12:
        return "#" + bytes([round(242 - 0.8 * parts[0])] * 3).hex()
    light = sum(share * part for share, part in zip((0.3, 0.59, 0.11), parts, strict=True)) / 255
    return mixed(colour, 255, max(0.0, 0.55 - light))
