"""Terminal output: width and style, text broken into lines, and a small plot."""

import os
import shutil
import sys
from collections.abc import Sequence

from bench.text import width

NARROWEST = 20
"""Minimum number of columns, even if a terminal reports fewer. Ours."""


def columns() -> int | None:
    """Columns of standard output: COLUMNS, else the terminal's; None for a file or a pipe."""
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        return max(NARROWEST, shutil.get_terminal_size().columns)
    return None


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
