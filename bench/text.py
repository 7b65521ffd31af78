"""Values and names as text: for people, and in Markdown, TeX and CSV; names are untrusted."""

import html
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

CONVERGED = 1e-16
"""Suboptimality gaps, or losses without one, below this count as equal, and are shown as a bound. Ours."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
"""Control characters, which a terminal would execute."""

_KINDS = {"integer": "a whole number", "number": "a number", "string": "text", "boolean": "true or false"}
"""Pydantic's names of types, in plain words."""


def why_wrong(message: str) -> str:
    """Pydantic's message about a value as the rest of a sentence: `it must be a whole number`."""
    message = message.removeprefix("Value error, ")
    text = re.sub(r"^(input|string) should", "it must", message[:1].lower() + message[1:])
    kind = re.match(r"it must be a valid (\w+)", text)  # the rest describes the parsing
    return f"it must be {_KINDS[kind[1]]}" if kind and kind[1] in _KINDS else text


def plain(value: Any) -> Any:
    """The value as strict JSON: NaN becomes None, and an infinity a word that YAML and pydantic read back."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if value != value else str(value)
    return str(value) if isinstance(value, Path) else value


def strict_json(value: Any) -> str:
    """`plain(value)` as text."""
    with suppress(TypeError, ValueError):  # most values need no conversion, which takes longer than the writing
        return json.dumps(value, allow_nan=False)
    return json.dumps(plain(value), allow_nan=False)


def listed(names: Sequence[str]) -> str:
    """Names in words: a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def counted(count: int, what: str) -> str:
    """A number and a noun: `1 seed`, `2 seeds`."""
    return f"{count} {what}{'s' * (count != 1)}"


def spanned(numbers: Collection[int]) -> str:
    """The smallest and the largest number: `3 to 7`, or `3` if they are equal."""
    return " to ".join(map(str, sorted({min(numbers), max(numbers)})))


def seeds_in_words(seeds: Sequence[int]) -> str:
    """`0 to 4` for three or more consecutive seeds, else `0, 7`."""
    row = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if row else ", ".join(map(str, seeds))


def seeds_from_words(words: str) -> list[int]:
    """The seeds that `seeds_in_words` wrote; none from other words."""
    if not re.fullmatch(r"\d+ to \d+|\d+(, \d+)*", words):
        return []
    first, *others = map(int, re.findall(r"\d+", words))
    return list(range(first, others[0] + 1)) if "to" in words else [first, *others]


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def comparable(value: Any) -> Any:
    """The value as strict JSON in which equal settings are equal: 0 and 0.0, a list and a tuple; NaN equals itself."""
    return json.loads(strict_json(value), parse_int=lambda word: float(word) if len(word) < 16 else int(word))


def cell(value: Any, digits: int = 4) -> str:
    """A value as text for a table: a number, an interval, a median time, counts by name, words, a list, or None."""
    if value is None or value == [] or value == {}:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{count} {clean(str(name))}" for name, count in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(clean(str(item)) for item in value)
    if isinstance(value, int | float):
        return number(value, digits)
    if isinstance(value, str):
        return clean(value)
    from bench.results.stats import Interval, MedianTime  # imports numpy, which error messages do not need

    if isinstance(value, Interval):
        if value.mean == value.high == CONVERGED:
            return f"<={CONVERGED:g}"
        ends = f" [{number(value.low, digits)}, {number(value.high, digits)}]" if value.bounded else ""
        return value.bound + number(value.mean, digits) + ends
    if isinstance(value, MedianTime):
        never = f"> {number(value.last, digits)}" if math.isfinite(value.last) else "never"
        times = [value.median, *([] if value.low is None or math.isinf(value.low) else [value.low, value.high])]
        median, *ends = (never if x is None or math.isinf(x) else number(x, digits) for x in times)
        return median + (f" [{', '.join(ends)}]" if ends and value.high is not None else "")
    return clean(str(value))


def number(value: float, digits: int = 4) -> str:
    """A number to `digits` significant digits; whole numbers up to a million without an exponent."""
    if isinstance(value, int):
        return str(value)  # a large seed has more digits than a float
    if 1e4 <= abs(value) < 1e6 and value == round(value):
        return f"{value:.0f}"
    return f"{value + 0.0:.{digits}g}"  # without the sign of -0


def clean(text: str) -> str:
    """Text that is safe for a terminal."""
    return _CONTROL.sub(" ", text)


def width(text: str) -> int:
    """Columns that a terminal takes for a text."""
    from rich.cells import cell_len

    return len(text) if text.isascii() else cell_len(text)


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """A text padded with spaces to `columns` columns, after it or, with `right`, before it."""
    blanks = " " * (columns - width(text))
    return blanks + text if right else text + blanks


def duration(seconds: float) -> str:
    """The time in a suitable unit."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 360_000 else f"{seconds / 86_400:,.0f} days"


def in_markdown(word: str) -> str:
    """Text in a cell of a Markdown table."""
    word = html.escape(clean(word), quote=False)
    is_markup = re.search(r"[\\`*~#!]|\]\(|\[/|://|_\w*_|&", word)  # ordinary words stay as they are
    return re.sub(r"([\\`*_|\[\]~#!])", r"\\\1", word) if is_markup else word.replace("|", "\\|")


_TEX = {
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", **{letter: f"\\{letter}" for letter in "{}$&#%_"},
}  # fmt: skip


def in_tex(word: str) -> str:
    """Text in a cell of a TeX table."""
    return clean(word).translate(str.maketrans(_TEX))


def number_in_tex(word: str) -> str:
    """A number or an interval in a cell of a TeX table; powers of ten and bounds are formulas."""
    safe = re.sub(r"(\d(?:\.\d+)?)e([+-]?\d+)", lambda m: f"${m[1]}\\cdot10^{{{int(m[2])}}}$", in_tex(word))
    return safe.replace("\\textless{}=", "$\\le$").replace("\\textgreater{}=", "$\\ge$").replace("$$", "")


def options_text(options: Mapping[str, Any]) -> str:
    """Settings in words."""
    return ", ".join(f"{name} {word_of(value)}" for name, value in options.items())


def word_of(value: Any) -> str:
    """A value of a setting as text: short if that loses nothing."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)
