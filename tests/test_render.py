"""The Table in all formats: malicious values stay values, programs can read the output, nothing is wider than the
terminal, and rich is imported only for a terminal."""

import csv
import html
import io
import json
import math
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from bench.results.render import FORMATS, markdown_table, shown, text
from bench.results.stats import Interval, MedianTime
from bench.results.table import Board, Column, Table
from bench.text import cell, plain, width

VALUES: dict[str, Any] = {
    "newlines": "a\nb\r\nc", "escapes": "\x1b[31mred\x1b[0m \x9b2J \x1b]0;title\x07", "bar": "a|b \\| c",
    "script": "</td><script>alert(1)</script>",
    "markup": "[red]not red[/red] [link=http://x]x[/link]", "link": "[x](javascript:alert(1)) ![x](y) `code` *a*",
    "long": "x" * 300, "wide": "漢字" * 70, "tex": "\\input{x} %$&#_^~{}",
    "nan": math.nan, "infinity": -math.inf, "none": None, "no": False, "great": 2**70, "small": -1.5e-300,
    "interval": Interval(0.5, 0.25, 0.75, 5), "open": Interval(0.5, -math.inf, math.inf, 1),
    "time": MedianTime(math.inf, 3.0, math.inf, 100.0), "list": ["a\n", "b|"], "counts": {"<b>": 2}, "empty": [],
}  # fmt: skip
"""Problematic cell values, by the problem."""
HARM = "\x1b[31m<script>alert(2)</script>|=1\n[red]"
COLUMNS = [
    Column("opt", HARM, HARM),
    Column("value", HARM),
    Column("code", HARM, markup="code"),
    Column("strong", HARM, markup="strong"),
    Column("again", "the same again", wraps=True),
]
TABLE = Table(
    HARM,
    COLUMNS,
    [{"opt": name, **dict.fromkeys(("value", "code", "strong", "again"), x)} for name, x in VALUES.items()],
    [HARM],
)
BOARD = Board("quality", HARM, [TABLE], [HARM])


PLAIN = {"html", "meta", "title", "h2", "h3", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "p"}


def reads_html(page: str) -> None:
    assert {*re.findall(r"<(\w+)", page)} == PLAIN
    words = [html.unescape(word).split() for word in re.findall(r"<td>(.*?)</td>", page, re.DOTALL)]
    assert words[:: len(COLUMNS)] == [[name] for name in VALUES]
    assert words[1 :: len(COLUMNS)] == [cell(value).split() for value in VALUES.values()]


def reads_csv(content: str) -> None:
    rows = list(csv.DictReader(io.StringIO(content)))
    assert [row["opt"] for row in rows] == list(VALUES)
    assert [float(row["value"]) for row in rows if row["opt"] in ("infinity", "small")] == [-math.inf, -1.5e-300]
    values = {row["opt"]: row for row in rows}
    assert (values["nan"]["value"], values["none"]["value"], values["great"]["value"]) == ("", "", str(2**70))
    assert [values["interval"][f"value{end}"] for end in ("", "_low", "_high")] == ["0.5", "0.25", "0.75"]
    assert [values["open"][f"value{end}"] for end in ("", "_low", "_high")] == ["0.5", "", ""]


def reads_json(content: str) -> None:
    (board,) = json.loads(content, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))
    values = {row["opt"]: row["value"] for row in board["tables"][0]["rows"]}
    assert values["interval"] == {"mean": 0.5, "low": 0.25, "high": 0.75, "n": 5}
    assert values["time"] == {"median": None, "low": 3, "high": None, "last": 100}
    assert {name: values[name] for name in VALUES if name not in ("interval", "open", "time")} == {
        name: plain(value) for name, value in VALUES.items() if name not in ("interval", "open", "time")
    }


def reads_markdown(page: str) -> None:
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(VALUES)
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", re.sub(r"`[^`]*`", "", line))) for line in lines} <= {6}
    outside = re.sub(r"(`+).*?(?<!`)\1(?!`)", "", page)
    assert not re.search(r"<|(?<!\\)\]\(|(?<!\\)!\[", outside)


def reads_tex(page: str) -> None:
    lines = page.partition("\\midrule\n")[2].partition("\\bottomrule")[0].splitlines()
    assert len(lines) == len(VALUES)
    assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {len(COLUMNS) - 1}
    formula = re.compile(r"\$(\\[lg]e)?(\d[\d.]*\\cdot10\^\{-?\d+\})?\$")
    assert not any(re.search(r"(?<!\\)[#$%_<>|]|\\input", formula.sub("", line)) for line in lines)


def reads_text(page: str) -> None:
    assert [line.split()[0] for line in page.splitlines()[6 : 6 + len(VALUES)]] == list(VALUES)
    assert "[red]not red[/red] [link=http://x]x[/link]" in page


READERS: dict[str, Callable[[str], None]] = {
    "table": reads_text,
    "md": reads_markdown,
    "csv": reads_csv,
    "json": reads_json,
    "tex": reads_tex,
    "html": reads_html,
}


@pytest.mark.parametrize("kind", FORMATS)
def test_hostile_text_is_harmless_in_every_format(kind):
    page = FORMATS[kind]([BOARD])
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", page.replace("\\u", ""))
    READERS[kind](page)


@pytest.mark.parametrize("wide", [20, 60, 100])
@pytest.mark.parametrize("styled", [False, True])
def test_nothing_is_wider_than_the_terminal_and_nothing_is_lost(wide, styled):
    page = re.sub(r"\x1b\[[0-9;]*m", "", text([BOARD], wide, styled=styled))
    assert max(map(width, page.splitlines())) <= wide
    for value in VALUES.values():
        assert re.sub(r"\s", "", cell(value)) in re.sub(r"\s", "", page)


def test_numbers_stand_on_the_right_and_words_on_the_left():
    rows = [("a", 1, 0.5, Interval(0.5, 0.25, 0.75, 3), True), ("bcd", 100, None, "diverged", False)]
    table = Table.of(["name", "n", "x", "interval", "is"], rows)
    assert shown(table) == [
        "name    n    x          interval  is",
        "a       1  0.5  0.5 [0.25, 0.75]  yes",
        "bcd   100    -          diverged  no",
    ]
    assert markdown_table(table)[1] == "| --- | ---: | ---: | ---: | --- |"


@pytest.mark.parametrize(("more", "bold"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_terminal_gets_a_bold_head_unless_it_wants_none(more, bold):
    program = "from bench.results.render import *; print(*shown(Table.of(['head'], [['[red]x']])), sep='\\n')"
    usual = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-c", program], stdout=theirs, env=usual | {"TERM": "xterm"} | more, check=True)
    os.close(theirs)
    output = os.read(ours, 1000).decode()
    os.close(ours)
    assert output.replace("\r", "") == ("\x1b[1mhead  \x1b[0m" if bold else "head") + "\n[red]x\n"
