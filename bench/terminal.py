"""Terminal output: width and style, text broken into lines, and a small plot."""

import math
import os
import shutil
import sys
from collections.abc import Sequence
from typing import NamedTuple

from bench.text import number, padded, width

NARROWEST = 20
"""Minimum number of columns, even if a terminal reports fewer. Ours."""
_MOST = 1e300
"""Larger values are left out of a plot: the difference of two may overflow. Ours."""
_BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of the dots of a braille character, by column and row."""


def columns() -> int | None:
    """Columns of standard output: COLUMNS, else the terminal's; None for a file or a pipe."""
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        return max(NARROWEST, shutil.get_terminal_size().columns)
    return None


def is_unicode() -> bool:
    """Whether standard output can show every character."""
    return (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")


def is_styled() -> bool:
    """Whether standard output shows bold text: a terminal, unless NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def wrapped(parts: Sequence[str], wide: int | None, indent: str, between: str = "  ") -> list[str]:
    """Parts wrapped into indented lines; a part is only broken if it is longer than a line."""
    if wide is None:
        return [indent + between.join(parts)] if parts else []
    room, lines = max(NARROWEST, wide) - len(indent), list[str]()
    for part in parts:
        if lines and width(lines[-1]) + len(between) + width(part) <= room:
            lines[-1] += between + part
        else:
            lines += broken(part, room)
    return [indent + line for line in lines]


def broken(part: str, room: int) -> list[str]:
    """Lines of at most `room` columns, broken between words, or within a word longer than a line."""
    lines = [""]
    for word in part.split(" "):
        if lines[-1] and width(lines[-1]) + 1 + width(word) <= room:
            lines[-1] += f" {word}"
            continue
        lines += [""] * bool(lines[-1])
        for letter in word:
            lines += [""] * (width(lines[-1] + letter) > room)
            lines[-1] += letter
    return lines


class _Axis(NamedTuple):
    """An axis: its ends and scale."""

    low: float
    high: float
    log: bool

    def share(self, value: float) -> float:
        """0 at the low end and 1 at the high one."""
        low, high, value = map(math.log, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return (value - low) / (high - low) if high > low else 0.5


def plot(xs: Sequence[float], ys: Sequence[float], wide: int, high: int, *, braille: bool) -> list[str]:
    """A curve with labelled axis ends; the y axis is logarithmic if all values are positive.

    Each column shows the range and the mean of its values. Values that are not finite are left out.

    Args:
        xs: ascending.
        ys: of the same length.
        wide: available columns.
        high: available lines.
        braille: draw with eight dots per character; else with stars.
    """
    points = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and abs(y) <= _MOST]
    if not points:
        return []
    values = [y for _, y in points]
    axis = _Axis(min(values), max(values), min(values) > 0)
    ends = axis.high, axis.low
    digits = next((n for n in range(3, 17) if len({number(end, n) for end in ends}) > 1), 3)  # so that labels differ
    labels = [number(end, digits) for end in ends]
    margin = max(map(len, labels))
    wide, high = max(8, wide - margin - 2), max(2, high - 1)
    across, down = (2, 4) if braille else (1, 1)
    n, m = wide * across, high * down
    first, last = points[0][0], points[-1][0]
    bins: list[list[float]] = [[] for _ in range(n)]
    for x, y in points:
        bins[min(n - 1, int((x - first) / (last - first) * n)) if last > first else 0].append(axis.share(y))
    cells = [[0] * wide for _ in range(high)]
    before: int | None = None
    for i, own in enumerate(bins):
        if not own:
            continue
        middle = round((1 - sum(own) / len(own)) * (m - 1))
        rows = [round((1 - share) * (m - 1)) for share in (max(own), min(own))]
        filled = [*rows, middle, *([] if before is None else [before])]
        for row in range(min(filled), max(filled) + 1):
            cells[row // down][i // across] |= _BRAILLE[i % 2][row % 4] if braille else 1
        before = middle
    letters = [[(chr(0x2800 + bits) if braille else "*") if bits else " " for bits in row] for row in cells]
    bar = "\N{BOX DRAWINGS LIGHT VERTICAL}" if braille else "|"
    sides = [labels[0], *[""] * (high - 2), labels[1]]
    lines = [
        f"{' ' * (margin - len(side))}{side} {bar}{''.join(row)}".rstrip()
        for side, row in zip(sides, letters, strict=True)
    ]
    left, right = number(first), number(last)
    return [*lines, f"{' ' * (margin + 2)}{padded(left, wide - len(right))}{right}"]
