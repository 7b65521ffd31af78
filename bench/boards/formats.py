"""Boards as text: for a terminal, as Markdown, CSV, JSON, TeX and HTML. Names may hold anything; they do no harm in any."""

import csv
import html
import io
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.boards.table import Board, Column, Table
from bench.errors import UserError
from bench.stats import Interval, MedianTime
from bench.storage.store import plain, replacing

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")
"""Control characters and those that turn the direction of text, which a terminal would obey; halves of characters, which no file can hold."""


def cell(value: Any, digits: int = 4) -> str:
    """A value as a person reads it.

    Args:
        value: a number, an interval, a median time, counts by name, words, a list of words, or None.
        digits: of numbers.
    """
    if value is None or value == [] or value == {}:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Interval):
        wide = math.isfinite(value.low) or math.isfinite(value.high)
        ends = f" [{number(value.low, digits)}, {number(value.high, digits)}]" if wide else ""
        return number(value.mean, digits) + ends
    if isinstance(value, MedianTime):
        return _median(value, digits)
    if isinstance(value, dict):
        return ", ".join(f"{count} {_clean(str(name))}" for name, count in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(_clean(str(each)) for each in value)
    return number(value, digits) if isinstance(value, int | float) else _clean(str(value))


def number(value: float, digits: int = 4) -> str:
    """A number to so many digits; whole numbers up to a million without an exponent."""
    if isinstance(value, int) or (1e4 <= abs(value) < 1e6 and value == round(value)):
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def _median(value: MedianTime, digits: int) -> str:
    def one(x: float) -> str:
        return (
            number(x, digits)
            if math.isfinite(x)
            else f"> {number(value.last, digits)}"
            if math.isfinite(value.last)
            else "never"
        )

    if value.low is None or value.high is None or math.isinf(value.low):
        return one(value.median)
    return f"{one(value.median)} [{one(value.low)}, {one(value.high)}]"


def _clean(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text)


def _rows(table: Table) -> list[list[str]]:
    return [[cell(row.get(column.key), column.digits) for column in table.columns] for row in table.rows]


def _head(table: Table) -> list[str]:
    return [_clean(column.title) for column in table.columns]


def _shown(table: Table) -> Table:
    """The table without columns that say nothing in any row."""
    said = [
        c
        for c in table.columns
        if c.key in ("rank", "opt") or any(row.get(c.key) not in (None, [], {}) for row in table.rows)
    ]
    return Table(table.title, said, table.rows, table.notes, table.pairs)


# -- text for people --------------------------------------------------------------------------------------------------


def text(boards: Sequence[Board]) -> str:
    """For a terminal."""
    lines: list[str] = []
    for board in boards:
        lines += [board.title, "=" * len(board.title), ""]
        for table in map(_shown, board.tables):
            rows = [_head(table), *_rows(table)]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines += [_clean(table.title), "-" * len(_clean(table.title))]
            lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
            lines += [f"  note: {_clean(note)}" for note in table.notes] + [""]
        lines += [*(f"note: {_clean(note)}" for note in board.notes), ""]
    return "\n".join(lines).rstrip() + "\n"


def markdown(boards: Sequence[Board], level: int = 2) -> str:
    """As Markdown.

    Args:
        boards: to write.
        level: of the boards' headings.
    """
    lines: list[str] = []
    for board in boards:
        lines += [f"{'#' * level} {board.title}", ""]
        for table in map(_shown, board.tables):
            lines += [f"**{_in_markdown(table.title)}**", ""]
            head, *rows = [" | ".join(map(_in_markdown, row)) for row in (_head(table), *_rows(table))]
            lines += [f"| {row} |" for row in (head, " | ".join(["---"] * len(table.columns)), *rows)]
            lines += ["", *(f"* {_in_markdown(note)}" for note in table.notes), ""]
        lines += [*(f"{_in_markdown(note)[0].upper()}{_in_markdown(note)[1:]}.  " for note in board.notes), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _in_markdown(word: str) -> str:
    word = html.escape(_clean(word), quote=False)
    return re.sub(r"([\\`*_|\[\]~#!])", r"\\\1", word) if _is_wild(word) else word.replace("|", "\\|")


def _is_wild(word: str) -> bool:
    """Whether Markdown would take something in it for a link, code or an image; ordinary words stay as they are."""
    return bool(re.search(r"[\\`*~#!]|\]\(|\[/|://|_\w*_|&", word))


def tex(boards: Sequence[Board]) -> str:
    """As LaTeX tables with booktabs."""
    lines = ["% needs \\usepackage{booktabs}"]
    for board in boards:
        for table in map(_shown, board.tables):
            lines += [
                "\\begin{table}", "\\centering", f"\\caption{{{_in_tex(board.title)}: {_in_tex(table.title)}}}",
                f"\\begin{{tabular}}{{{'l' * len(table.columns)}}}", "\\toprule",
                " & ".join(map(_in_tex, _head(table))) + " \\\\", "\\midrule",
                *(" & ".join(map(_in_tex, row)) + " \\\\" for row in _rows(table)),
                "\\bottomrule", "\\end{tabular}", *(f"% {_clean(note)}" for note in (*table.notes, *board.notes)), "\\end{table}", "",
            ]  # fmt: skip
    return "\n".join(lines)


_TEX = {
    "\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", "$": "\\$", "&": "\\&", "#": "\\#", "%": "\\%", "_": "\\_",
    "^": "\\textasciicircum{}", "~": "\\textasciitilde{}", "<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}",
}  # fmt: skip


def _in_tex(word: str) -> str:
    safe = "".join(_TEX.get(letter, letter) for letter in _clean(word))
    return (
        "{}" * (safe[:1] in ("[", "*")) + safe
    )  # at the beginning of a row they would belong to the end of the one before


def html_tables(boards: Sequence[Board]) -> str:
    """As an HTML page of plain tables; `bench report` makes one with plots."""
    parts = ['<!doctype html><html lang="en"><meta charset="utf-8"><title>Leaderboard</title>']
    for board in boards:
        parts.append(f"<h2>{html.escape(board.title)}</h2>")
        for table in map(_shown, board.tables):
            head = "".join(
                f'<th scope="col" title="{html.escape(_clean(c.help))}">{html.escape(_clean(c.title))}</th>'
                for c in table.columns
            )
            body = "".join(
                "<tr>" + "".join(f"<td>{html.escape(word)}</td>" for word in row) + "</tr>" for row in _rows(table)
            )
            parts.append(
                f"<table><caption>{html.escape(_clean(table.title))}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            )
            parts.append("<ul>" + "".join(f"<li>{html.escape(_clean(n))}</li>" for n in table.notes) + "</ul>")
        parts.append("".join(f"<p>{html.escape(_clean(note))}</p>" for note in board.notes))
    return "\n".join([*parts, "</html>", ""])


# -- for programs -----------------------------------------------------------------------------------------------------


def as_json(boards: Sequence[Board]) -> list[dict[str, Any]]:
    """As strict JSON can hold them: numbers are finite or null, intervals are mean, low, high and n."""
    return plain(
        [
            {
                "board": board.name, "title": board.title, "notes": board.notes,
                "tables": [
                    {
                        "title": table.title, "columns": [asdict(c) for c in table.columns], "notes": table.notes,
                        "rows": [_values(row) for row in table.rows], "pairs": [_values(pair) for pair in table.pairs],
                    }
                    for table in board.tables
                ],
            }
            for board in boards
        ]
    )  # fmt: skip


def _values(row: dict[str, Any]) -> dict[str, Any]:
    return {k: _finite(asdict(v)) if isinstance(v, Interval | MedianTime) else v for k, v in row.items()}


def _finite(ends: dict[str, Any]) -> dict[str, Any]:
    return {key: value if value is not None and math.isfinite(value) else None for key, value in ends.items()}


def json_text(boards: Sequence[Board]) -> str:
    """See `as_json`."""
    return json.dumps(as_json(boards), indent=1, allow_nan=False) + "\n"


def comma_separated(boards: Sequence[Board]) -> str:
    """As CSV, a row for each row of each table; an interval takes three columns."""
    keys: dict[str, None] = {}
    records: list[dict[str, Any]] = []
    for board in boards:
        for table in board.tables:
            for row in table.rows:
                record: dict[str, Any] = {"board": board.name, "table": _clean(table.title)}
                for column in table.columns:
                    record |= _flat(column, row.get(column.key))
                records.append(record)
            keys |= dict.fromkeys(("board", "table"))
            for column in table.columns:
                keys |= dict.fromkeys(key for row in table.rows for key in _flat(column, row.get(column.key)))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(keys)
    for record in records:
        writer.writerow([_in_csv(record.get(key)) for key in keys])
    return file.getvalue()


def _flat(column: Column, value: Any) -> dict[str, Any]:
    key = _clean(column.key)
    if isinstance(value, Interval):
        value = {"mean": value.mean, "low": value.low, "high": value.high}
        return {key if k == "mean" else f"{key}_{k}": x for k, x in _finite(value).items()}
    if isinstance(value, MedianTime):
        ends = {"median": value.median, "low": value.low, "high": value.high}
        return {key if k == "median" else f"{key}_{k}": x for k, x in _finite(ends).items()}
    return {key: value if isinstance(value, int | float) else None if value in (None, [], {}) else cell(value)}


def _in_csv(value: Any) -> Any:
    """A spreadsheet takes text that begins with one of these for a formula, and would carry it out."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@" and value != "-" else value


FORMATS: dict[str, Callable[[Sequence[Board]], str]] = {
    "table": text,
    "md": markdown,
    "csv": comma_separated,
    "json": json_text,
    "tex": tex,
    "html": html_tables,
}
"""All formats by name."""


def into(path: Path, boards: Sequence[Board]) -> None:
    """Write boards as Markdown into a file, each between its markers `<!-- leaderboard NAME -->` and `<!-- /leaderboard -->`.

    Raises:
        UserError: the file is not there, lacks a marker, or cannot be written.
    """
    if path.exists() and not path.is_file():  # a device may have no end
        raise UserError(f"cannot write into {path}: it is no file")
    try:
        content = path.read_bytes().decode()
        line = "\r\n" if "\r\n" in content else "\n"
        for board in boards:
            begin, end = f"<!-- leaderboard {board.name} -->", "<!-- /leaderboard -->"
            head, found, rest = content.partition(begin)
            old, closed, tail = rest.partition(end)
            if not found or not closed or "<!-- leaderboard" in old:
                raise UserError(
                    f"{path} has no place for this board: put the lines {begin} and {end} there, in this order"
                )
            new = f"{begin}\n{markdown([board], 4)}{end}".replace("\n", line)
            content = f"{head}{new}{tail}"
        with replacing(path.resolve()) as temporary:
            temporary.write_bytes(content.encode())
            temporary.chmod(path.stat().st_mode)
    except OSError as error:
        raise UserError(f"cannot write into {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UserError(f"cannot write into {path}: it is not text in UTF-8") from None
