"""Tables as text: for a terminal (by rich), as Markdown, CSV, JSON, TeX and HTML; names are untrusted.

Each format has one writer. Those for Markdown, CSV and JSON read rows one by one and do not store them.
"""

import csv
import html
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from decimal import Decimal
from numbers import Number
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.results.table import Board, Column, Table
from bench.terminal import NARROWEST, columns, is_styled, wrapped
from bench.text import cell, clean, in_markdown, in_tex, listed, number_in_tex, padded, plain, width

Row = Mapping[str, Any]


def heading(column: Column) -> str:
    """A column's heading, with its unit."""
    return clean(f"{column.title} ({column.unit})" if column.unit else column.title)


def word_in(column: Column, row: Row) -> str:
    """The text of a column's value in a row."""
    value = row.get(column.key)
    return cell(value if column.form is None or value is None else column.form(value), column.digits)


def is_numeric(value: Any) -> bool:
    """Whether a value is a number, an interval or a median time."""
    return is_dataclass(value) or (isinstance(value, Number) and not isinstance(value, bool))


def _sided(table: Table) -> list[Column]:
    """The columns, each with its alignment."""
    numeric = {c.key: any(is_numeric(row.get(c.key)) for row in table.rows) for c in table.columns}
    return [replace(c, side=c.side or ("right" if numeric[c.key] else "left")) for c in table.columns]


def telling(table: Table) -> Table:
    """The table without columns that are empty in all rows, or only repeat the number of runs.

    Flags of all rows become a note.
    """
    flags = [row.get("flags") or [] for row in table.rows]
    common = [flag for flag in flags[0] if all(flag in of_row for of_row in flags)] if len(flags) > 1 else []
    rows = [
        row | {"flags": [flag for flag in row["flags"] if flag not in common]} if common else row for row in table.rows
    ]

    def says(key: str, row: Row) -> bool:
        usual = {"completed": row.get("n")} if key == "runs" else None
        return row.get(key) not in (None, [], {}, usual)

    said = [c for c in table.columns if c.key == "opt" or any(says(c.key, row) for row in rows)]
    return replace(table, columns=said, rows=rows, notes=[*table.notes, *(f"all rows: {flag}" for flag in common)])


# -- for a terminal ---------------------------------------------------------------------------------------------------


def shown(table: Table, indent: str = "") -> list[str]:
    """A table's lines for standard output: of its width and with a bold head on a terminal."""
    wide = columns()
    wide = None if wide is None else max(NARROWEST, wide - len(indent))
    return [indent + line for line in text_lines(_sided(table), table.rows, wide, styled=is_styled())]


MOST_DRAWN = 1000
"""Maximum number of rows that rich draws, which takes it 1 to 3 ms each; longer tables have a row per line. Ours."""


def text_lines(cols: Sequence[Column], rows: Iterable[Row], wide: int | None, *, styled: bool = False) -> list[str]:
    """A table's lines. Columns that do not fit follow as further tables that repeat the first column; nothing is cut.

    Args:
        cols: columns, each with its alignment.
        rows: their values.
        wide: columns of the terminal; None for a file or a pipe, where a row is a line.
        styled: show the head bold and the columns' colors.
    """
    head, words = list(map(heading, cols)), [[word_in(c, row) for c in cols] for row in rows]
    every = [head, *words] if any(head) else words
    empty = ["no rows"] * (any(head) and not words)
    if wide is not None and cols and len(words) <= MOST_DRAWN:
        return [*_drawn(cols, every, any(head), wide, styled=styled), *empty]
    widths = [max([c.least, *(width(row[i]) for row in every)]) for i, c in enumerate(cols)]
    sides = [(n, c.side == "right") for n, c in zip(widths, cols, strict=True)]
    cells = ([padded(word, n, right=right) for word, (n, right) in zip(row, sides, strict=True)] for row in every)
    return [*("  ".join(row).rstrip() for row in cells), *empty]


def _drawn(
    cols: Sequence[Column], every: Sequence[Sequence[str]], headed: bool, wide: int, *, styled: bool
) -> list[str]:
    """The lines of a table for a terminal.

    Args:
        cols: columns.
        every: words of all rows and, if there is one, of the head.
        headed: whether there is a head.
        wide: columns of the terminal.
        styled: use bold text and colors.
    """
    from rich.cells import cell_len
    from rich.console import Console  # here, since most output is for pipes and needs no rich
    from rich.table import Table as Grid
    from rich.text import Text

    widths = [max([c.least, *(cell_len(row[i]) for row in every)]) for i, c in enumerate(cols)]
    needed = [max(c.least, min(NARROWEST, n)) if c.wraps else n for n, c in zip(widths, cols, strict=True)]
    file = io.StringIO()
    console = Console(
        file=file,
        width=wide,
        height=max(1, len(every)),  # without it, rich asks the terminal for both
        force_terminal=styled,
        force_jupyter=False,
        color_system="standard" if styled else None,
        legacy_windows=False,
    )
    for k, group in enumerate(_groups(needed, cols, wide)):
        fits = sum(needed[i] + 2 for i in group) - 2 <= wide
        grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=headed)
        for i in group:
            column = cols[i]
            grid.add_column(
                Text(heading(column), style="bold"),
                justify=column.side or "left",
                no_wrap=fits and not column.wraps,
                overflow="fold",
                min_width=column.least if fits else None,  # more than there is room for would be cut
            )
        for row in every[headed:]:
            grid.add_row(*(Text(row[i], style=_color(row[i], cols[i])) for i in group))
        if k:
            console.print()
        console.print(grid)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def _groups(needed: Sequence[int], cols: Sequence[Column], wide: int) -> list[list[int]]:
    """Columns that fit a terminal of `wide` columns; further groups begin with the column that names the row."""
    named = next((i for i, column in enumerate(cols) if column.names), 0)
    groups: list[list[int]] = [[]]
    left = wide + 2
    for i, room in enumerate(needed):
        if room + 2 > left and len(groups[-1]) > 1:  # a name alone says nothing
            name = named if named in groups[0] else 0
            groups.append([name])
            left = wide - needed[name]
        groups[-1].append(i)
        left -= room + 2
    return groups


def _color(word: str, column: Column) -> str:
    """The color of a cell's text, if it has one."""
    return next((color for start, color in column.colors.items() if word.startswith(start)), "")


def text(boards: Sequence[Board], wide: int | None = None, *, styled: bool = False) -> str:
    """Boards for a terminal of `wide` columns."""

    def said(words: str) -> list[str]:
        return wrapped(clean(words).split(" "), wide, "", " ")

    def headed(words: str, rule: str) -> list[str]:
        title = said(words)
        return [*title, rule * max(map(width, title))]

    lines: list[str] = []
    for board in boards:
        lines += [*headed(board.title, "="), ""]
        for table in map(telling, board.tables):
            lines += headed(table.title, "-")
            lines += text_lines(_sided(table), table.rows, wide, styled=styled)
            lines += [*(line for note in table.notes for line in said(f"  note: {note}")), ""]
        lines += [*(line for note in board.notes for line in said(f"note: {note}")), ""]
    return "\n".join(lines).rstrip() + "\n"


# -- for pages --------------------------------------------------------------------------------------------------------


def markdown_lines(cols: Sequence[Column], rows: Iterable[Row]) -> Iterator[str]:
    """A table's lines as Markdown."""

    def line(words: Iterable[str]) -> str:
        return f"| {' | '.join(words)} |"

    def word(column: Column, row: Row) -> str:
        said = word_in(column, row)
        if row.get(column.key) is None or column.markup is None:
            return in_markdown(said)
        if callable(column.markup):
            return column.markup(said)
        return f"**{in_markdown(said)}**" if column.markup == "strong" else _code(said)

    yield line(map(in_markdown, map(heading, cols)))
    yield line("---:" if c.side == "right" else "---" for c in cols)
    empty = True
    for row in rows:
        yield line(word(c, row) for c in cols)
        empty = False
    if empty:
        yield from ("", "no rows")


def _code(word: str) -> str:
    """Code in a cell of a Markdown table, between more backticks than it has."""
    ticks = "`" * (1 + max(map(len, re.findall("`+", word)), default=0))
    between = " " * (len(ticks) > 1)
    return f"{ticks}{between}{word}{between}{ticks}".replace("|", "\\|")


def markdown_table(table: Table) -> list[str]:
    """A table's lines as Markdown, without title and notes."""
    return list(markdown_lines(_sided(table), table.rows))


def markdown(boards: Sequence[Board], level: int = 2) -> str:
    """As Markdown, with the boards' headings at this level."""
    lines: list[str] = []
    for board in boards:
        lines += [f"{'#' * level} {in_markdown(board.title)}", ""]
        for table in map(telling, board.tables):
            lines += [f"**{in_markdown(table.title)}**", "", *markdown_table(table)]
            lines += ["", *(f"* {in_markdown(note)}" for note in table.notes), ""]
        notes = [in_markdown(note).removesuffix(".") for note in board.notes]
        lines += [*(f"{note[0].upper()}{note[1:]}.  " for note in notes), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def tex(boards: Sequence[Board]) -> str:
    """As LaTeX tables with booktabs."""
    lines = ["% needs \\usepackage{booktabs}"]

    def word(column: Column, row: Row) -> str:
        return (number_in_tex if is_numeric(row.get(column.key)) else in_tex)(word_in(column, row))

    for board in boards:
        for table in map(telling, board.tables):
            sided = _sided(table)
            lines += [
                "\\begin{table}",
                "\\centering",
                f"\\caption{{{in_tex(board.title)}: {in_tex(table.title)}}}",
                f"\\begin{{tabular}}{{{''.join(str(c.side)[0] for c in sided)}}}",
                "\\toprule",
                " & ".join(in_tex(heading(c)) for c in sided) + " \\\\",
                "\\midrule",
                *(" & ".join(word(c, row) for c in sided) + " \\\\" for row in table.rows),
                "\\bottomrule",
                "\\end{tabular}",
                *(f"% {clean(note)}" for note in (*table.notes, *board.notes)),
                "\\end{table}",
                "",
            ]
    return "\n".join(lines)


def html_tables(boards: Sequence[Board]) -> str:
    """As an HTML page of plain tables; `bench report` writes one with plots."""
    title = html.escape(clean(listed([board.title for board in boards])))
    parts = [f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>']
    return "\n".join([*parts, html_fragment(boards), "</html>", ""])


def template(package: str, name: str, **filters: Callable[..., Any]) -> Any:
    """A template of a page beside the modules of a package; values are escaped, and a missing one is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(name)


def html_fragment(boards: Sequence[Board]) -> str:
    """Plain tables for an existing page, such as a notebook."""

    def said(words: str) -> str:
        return html.escape(clean(words))

    parts: list[str] = []
    for board in boards:
        parts.append(f"<h2>{said(board.title)}</h2>")
        for table in map(telling, board.tables):
            cols = table.columns
            head = "".join(f'<th scope="col" title="{said(c.help)}">{said(heading(c))}</th>' for c in cols)
            rows = ("".join(f"<td>{said(word_in(c, row))}</td>" for c in cols) for row in table.rows)
            body = "".join(f"<tr>{row}</tr>" for row in rows)
            parts.append(
                f"<table><caption>{said(table.title)}</caption><thead><tr>{head}</tr></thead>"
                f"<tbody>{body}</tbody></table>"
            )
            parts.append("<ul>" + "".join(f"<li>{said(note)}</li>" for note in table.notes) + "</ul>")
        parts.append("".join(f"<p>{said(note)}</p>" for note in board.notes))
    return "\n".join(parts)


# -- for programs -----------------------------------------------------------------------------------------------------


def as_json(boards: Sequence[Board]) -> list[dict[str, Any]]:
    """As strict JSON: numbers are finite or null, intervals have mean, low, high and n."""

    def described(c: Column) -> dict[str, Any]:
        unit = {"unit": c.unit} if c.unit else {}
        return {"key": c.key, "title": c.title, "help": c.help, "digits": c.digits, **unit}

    def held(table: Table) -> dict[str, Any]:
        rows = list(map(_values, table.rows))
        columns = list(map(described, table.columns))
        return {"title": table.title, "columns": columns, "notes": table.notes, "rows": rows}

    return plain(
        [{"board": b.name, "title": b.title, "notes": b.notes, "tables": list(map(held, b.tables))} for b in boards]
    )


def _values(row: Row) -> dict[str, Any]:
    return {key: _finite(value) if is_dataclass(value) else value for key, value in row.items()}


def _finite(ends: Any) -> dict[str, Any]:
    """An interval or a median time by name."""
    fields = {key: value for key, value in asdict(ends).items() if value != ""}  # most have no bound
    return {key: None if isinstance(x, float) and not math.isfinite(x) else x for key, x in fields.items()}


def other_json(value: Any) -> Any:
    """Convert a value that JSON cannot represent."""
    return float(value) if isinstance(value, Decimal) else str(value)


def json_text(boards: Sequence[Board]) -> str:
    """See `as_json`."""
    return json.dumps(as_json(boards), indent=1, allow_nan=False, default=other_json) + "\n"


def json_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Rows as a list of objects in strict JSON."""
    before = "["
    for row in rows:
        yield f"{before}\n {json.dumps(plain(_values(row)), allow_nan=False, default=other_json)}"
        before = ","
    yield "[]\n" if before == "[" else "\n]\n"


def csv_lines(cols: Sequence[Column], rows: Iterable[Row]) -> Iterator[str]:
    """Rows as CSV; missing values and NaN are empty fields."""
    file: Any = SimpleNamespace(write=str)  # `writerow` returns what `write` returns: the line
    writer = csv.writer(file, lineterminator="\n")
    yield writer.writerow(clean(c.key) for c in cols)
    for row in rows:
        yield writer.writerow(_in_csv(c, row) for c in cols)


def _in_csv(column: Column, row: Row) -> Any:
    value = row.get(column.key)
    if isinstance(value, Number):
        return value if value == value else None
    return None if value in (None, [], {}) else word_in(column, row)


def comma_separated(boards: Sequence[Board]) -> str:
    """As CSV, a row for each row of each table; an interval takes three columns."""
    csv_columns: dict[str, Column] = {key: Column(key) for key in ("board", "table")}
    records: list[dict[str, Any]] = []
    for board in boards:
        for table in board.tables:
            mine = [{"board": board.name, "table": table.title} for _ in table.rows]
            for column in table.columns:
                for row, record in zip(table.rows, mine, strict=True):
                    flat = _flat(column.key, row.get(column.key))
                    record |= flat
                    csv_columns |= {key: csv_columns.get(key, replace(column, key=key)) for key in flat}
            records += mine
    return "".join(csv_lines(list(csv_columns.values()), records))


def _flat(key: str, value: Any) -> dict[str, Any]:
    """An interval as three values; anything else as itself."""
    if not is_dataclass(value):
        return {key: value}
    (_, middle), *rest = _finite(value).items()
    return {key: middle} | {f"{key}_{name}": end for name, end in rest if name in ("low", "high", "bound")}


# -- all formats ------------------------------------------------------------------------------------------------------

FORMATS: dict[str, Callable[[Sequence[Board]], str]] = {
    "table": text,
    "md": markdown,
    "csv": comma_separated,
    "json": json_text,
    "tex": tex,
    "html": html_tables,
}
"""All formats by name."""


def written(boards: Sequence[Board], kind: str, out: Path | None) -> str:
    """Boards in a format for a file or for standard output; there a table has the terminal's width."""
    if kind == "table" and out is None:
        return text(boards, columns(), styled=is_styled())
    return FORMATS[kind](boards)


STREAMS = ("table", "md", "csv", "json")
"""Formats of one table; all except the first are written row by row."""


def stream(cols: Sequence[Column], rows: Iterable[Row], kind: str, out: Path | None) -> Iterator[str]:
    """A table in one of `STREAMS`, piece by piece; each column has its alignment."""
    if kind in ("csv", "json"):
        yield from csv_lines(cols, rows) if kind == "csv" else json_lines(rows)
        return
    wide, styled = (columns(), is_styled()) if out is None else (None, False)
    for line in markdown_lines(cols, rows) if kind == "md" else text_lines(cols, rows, wide, styled=styled):
        yield f"{line}\n"
