"""Boards as text: for a terminal, as Markdown, CSV, JSON, TeX and HTML; names may hold anything and do no harm."""

import csv
import html
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.results.stats import Interval, MedianTime
from bench.results.table import Board, Column, Table
from bench.store.files import replacing
from bench.text import aligned, cell, clean, in_csv, in_markdown, in_tex, plain


def _rows(table: Table) -> list[list[str]]:
    return [[cell(row.get(column.key), column.digits) for column in table.columns] for row in table.rows]


def _head(table: Table) -> list[str]:
    return [clean(column.title) for column in table.columns]


def _shown(table: Table) -> Table:
    """The table without columns that say nothing in any row, or no more than the number of runs."""

    def says(key: str, row: Mapping[str, Any]) -> bool:
        usual = {"completed": row.get("n")} if key == "runs" else None
        return row.get(key) not in (None, [], {}, usual)

    said = [c for c in table.columns if c.key in ("rank", "opt") or any(says(c.key, row) for row in table.rows)]
    return Table(table.title, said, table.rows, table.notes, table.pairs)


# -- text for people --------------------------------------------------------------------------------------------------


def text(boards: Sequence[Board]) -> str:
    """For a terminal."""
    lines: list[str] = []
    for board in boards:
        lines += [board.title, "=" * len(board.title), ""]
        for table in map(_shown, board.tables):
            lines += [clean(table.title), "-" * len(clean(table.title))]
            lines += aligned([_head(table), *_rows(table)])
            lines += [f"  note: {clean(note)}" for note in table.notes] + [""]
        lines += [*(f"note: {clean(note)}" for note in board.notes), ""]
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
            lines += [f"**{in_markdown(table.title)}**", ""]
            head, *rows = [" | ".join(map(in_markdown, row)) for row in (_head(table), *_rows(table))]
            lines += [f"| {row} |" for row in (head, " | ".join(["---"] * len(table.columns)), *rows)]
            lines += ["", *(f"* {in_markdown(note)}" for note in table.notes), ""]
        lines += [*(f"{in_markdown(note)[0].upper()}{in_markdown(note)[1:]}.  " for note in board.notes), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def tex(boards: Sequence[Board]) -> str:
    """As LaTeX tables with booktabs."""
    lines = ["% needs \\usepackage{booktabs}"]
    for board in boards:
        for table in map(_shown, board.tables):
            lines += [
                "\\begin{table}", "\\centering", f"\\caption{{{in_tex(board.title)}: {in_tex(table.title)}}}",
                f"\\begin{{tabular}}{{{'l' * len(table.columns)}}}", "\\toprule",
                " & ".join(map(in_tex, _head(table))) + " \\\\", "\\midrule",
                *(" & ".join(map(in_tex, row)) + " \\\\" for row in _rows(table)),
                "\\bottomrule", "\\end{tabular}", *(f"% {clean(note)}" for note in (*table.notes, *board.notes)),
                "\\end{table}", "",
            ]  # fmt: skip
    return "\n".join(lines)


def html_tables(boards: Sequence[Board]) -> str:
    """As an HTML page of plain tables; `bench report` makes one with plots."""
    parts = ['<!doctype html><html lang="en"><meta charset="utf-8"><title>Leaderboard</title>']
    for board in boards:
        parts.append(f"<h2>{html.escape(board.title)}</h2>")
        for table in map(_shown, board.tables):
            head = "".join(
                f'<th scope="col" title="{html.escape(clean(c.help))}">{html.escape(clean(c.title))}</th>'
                for c in table.columns
            )
            body = "".join(
                "<tr>" + "".join(f"<td>{html.escape(word)}</td>" for word in row) + "</tr>" for row in _rows(table)
            )
            parts.append(
                f"<table><caption>{html.escape(clean(table.title))}</caption>"
                f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            )
            parts.append("<ul>" + "".join(f"<li>{html.escape(clean(n))}</li>" for n in table.notes) + "</ul>")
        parts.append("".join(f"<p>{html.escape(clean(note))}</p>" for note in board.notes))
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
                record: dict[str, Any] = {"board": board.name, "table": clean(table.title)}
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
        writer.writerow([in_csv(record.get(key)) for key in keys])
    return file.getvalue()


def _flat(column: Column, value: Any) -> dict[str, Any]:
    key = clean(column.key)
    if isinstance(value, Interval):
        value = {"mean": value.mean, "low": value.low, "high": value.high}
        return {key if k == "mean" else f"{key}_{k}": x for k, x in _finite(value).items()}
    if isinstance(value, MedianTime):
        ends = {"median": value.median, "low": value.low, "high": value.high}
        return {key if k == "median" else f"{key}_{k}": x for k, x in _finite(ends).items()}
    return {key: value if isinstance(value, int | float) else None if value in (None, [], {}) else cell(value)}


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
    """Write boards as Markdown into a file, each between its markers.

    The markers are `<!-- leaderboard NAME -->` and `<!-- /leaderboard -->`.

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
