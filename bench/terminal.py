"""What a terminal can show: tables in its width, and a small plot."""

import math
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from bench.text import aligned, number, padded, width

NARROWEST = 20
"""Columns that are always used, however few a terminal says it has. Ours."""
_MOST = 1e300
"""Greater values are left out of a plot: the difference of two might not be a number. Ours."""
_TIE = "\N{NO-BREAK SPACE}"
_BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of the dots of a braille character, by column and row."""


def columns() -> int | None:
    """How many columns standard output has: what COLUMNS says, else the terminal; None for a file or a pipe."""
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        return max(NARROWEST, shutil.get_terminal_size().columns)
    return None


def is_unicode() -> bool:
    """Whether standard output can show every character."""
    return (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")


def table(rows: Sequence[Sequence[str]], wide: int | None) -> list[str]:
    """A table, its head first. The columns that do not fit follow on lines of their own, indented; nothing is cut.

    Args:
        rows: with equally many cells.
        wide: columns of the terminal; None for as many as are needed.
    """
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    fitting = next((n for n in range(len(widths), 0, -1) if wide is None or sum(widths[:n]) + 2 * (n - 1) <= wide), 1)
    lines: list[str] = []
    for row, line in zip(rows, aligned([row[:fitting] for row in rows]), strict=True):
        rest = [part for word in row[fitting:] for part in word.split("  ") if part]
        lines += [line, *wrapped(rest, wide, "    ")]
    return lines


def wrapped(parts: Sequence[str], wide: int | None, indent: str, between: str = "  ") -> list[str]:
    """Parts in as many lines as they need, all indented; one is only broken if it is longer than a line."""
    text = between.join(part.replace(" ", _TIE) for part in parts)
    found = [text] if wide is None and text else textwrap.wrap(
        text, max(NARROWEST, wide or 0) - len(indent), break_on_hyphens=False
    )  # fmt: skip
    return [indent + line.replace(_TIE, " ") for line in found]


class _Axis(NamedTuple):
    """Where values lie between the ends of an axis."""

    low: float
    high: float
    log: bool

    def share(self, value: float) -> float:
        """0 at the low end and 1 at the high one."""
        low, high, value = map(math.log, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return (value - low) / (high - low) if high > low else 0.5


def plot(xs: Sequence[float], ys: Sequence[float], wide: int, high: int, *, braille: bool) -> list[str]:
    """A curve with the ends of both axes, whose y axis is logarithmic where all values are positive.

    Each column shows the range and the mean of the values that fall into it. Values that are no numbers are left out.

    Args:
        xs: ascending.
        ys: as many.
        wide: columns that it may take.
        high: lines that it may take.
        braille: draw with eight dots a character; else with stars.
    """
    points = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and abs(y) <= _MOST]
    if not points:
        return []
    values = [y for _, y in points]
    axis = _Axis(min(values), max(values), min(values) > 0)
    labels = [number(axis.high, 3), number(axis.low, 3)]
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
        ends = [*rows, middle, *([] if before is None else [before])]
        for row in range(min(ends), max(ends) + 1):
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
