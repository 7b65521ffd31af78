"""Terminal output: width and style, and text broken into lines."""

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

NARROWEST = 20
"""Minimum number of columns, even if a terminal reports fewer. Ours."""
_NARROW, _WIDE = 60, 111
"""Columns of help. Ours."""


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
    text, limit = between.join(part.replace(" ", "\xa0") for part in parts), max(NARROWEST, wide)
    lines = textwrap.wrap(text, limit, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines or [indent] * bool(parts)]


def width() -> int:
    """Columns of help."""
    return max(_NARROW, min(_WIDE, columns() or _WIDE))


def wrapped_lines(text: str, first: str = "", indent: str = "") -> list[str]:
    """The text in lines that fit the terminal; none for an empty text."""
    return textwrap.wrap(text, width(), initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)


def row(flag: str, text: str, extra: str = "") -> list[str]:
    """A name and its meaning, wrapped."""
    lines = wrapped_lines(f"{text} ({extra})" if text and extra else text or extra, " " * 31, " " * 31)
    if len(flag) < 28 and lines:
        return [f"  {flag:<28} {lines[0].lstrip()}", *lines[1:]]
    return [f"  {flag}", *lines]
