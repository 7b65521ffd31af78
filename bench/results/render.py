"""Tables as text: for a terminal (by rich), as Markdown, CSV, JSON, TeX and HTML (by pandas); names are untrusted."""

import html
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from decimal import Decimal
from numbers import Number
from typing import TYPE_CHECKING, Any

from bench.results.table import Board, Column, Table
from bench.terminal import NARROWEST, columns, is_styled, wrapped
from bench.text import cell, clean, in_markdown, in_tex, listed, number_in_tex, padded, plain, width

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]
MOST_DRAWN = 1000  # rows that rich draws, which takes it 1 to 3 ms each; longer tables have a row per line; ours


def heading(column: Column) -> str:
    """A column's heading."""
    return clean(column.title)


def word_in(column: Column, row: Row) -> str:
    """The text of a column's value in a row."""
    return cell(row.get(column.key), column.digits)


def is_numeric(value: Any) -> bool:
    """Whether a value is a number, an interval or a median time."""
    return is_dataclass(value) or (isinstance(value, Number) and not isinstance(value, bool))


def _is_right(column: Column, rows: Sequence[Row]) -> bool:
    return column.side == "right" if column.side else any(is_numeric(row.get(column.key)) for row in rows)


def condensed_table(table: Table) -> Table:
    """The table without columns that are empty or only repeat the number of runs; flags of all rows become a note."""
    flags = [row.get("flags") or [] for row in table.rows]
    common = [flag for flag in flags[0] if all(flag in of_row for of_row in flags)] if len(flags) > 1 else []
    rows = [row | {"flags": [f for f in row["flags"] if f not in common]} if common else row for row in table.rows]

    def is_empty(key: str, row: Row) -> bool:
        return row.get(key) in (None, [], {}, {"completed": row.get("n")} if key == "runs" else None)

    kept = [c for c in table.columns if c.key == "opt" or not all(is_empty(c.key, row) for row in rows)]
    return replace(table, columns=kept, rows=rows, notes=[*table.notes, *(f"all rows: {flag}" for flag in common)])


def condensed(board: Board) -> Board:
    """The board with `condensed_table` tables; a note of all of them is the board's."""
    tables = [*map(condensed_table, board.tables)]
    common = [note for note in tables[0].notes if all(note in t.notes for t in tables)] if len(tables) > 1 else []
    tables = [replace(table, notes=[note for note in table.notes if note not in common]) for table in tables]
    return replace(board, tables=tables, notes=[*common, *board.notes])


def shown(table: Table, indent: str = "") -> list[str]:
    """A table's lines for standard output: of its width and with a bold head on a terminal."""
    wide = columns()
    wide = None if wide is None else max(NARROWEST, wide - len(indent))
    return [indent + line for line in table_lines(table, wide, styled=is_styled())]


def table_lines(table: Table, wide: int | None, *, styled: bool = False) -> list[str]:
    """A table's lines on a terminal of `wide` columns, in several tables if needed; None for a file: a line per row."""
    cols, rows = table.columns, table.rows
    head, words = list(map(heading, cols)), [[word_in(c, row) for c in cols] for row in rows]
    lines, right = [head, *words] if any(head) else words, [_is_right(c, rows) for c in cols]
    widths = [max(map(width, texts)) for texts in zip(*lines, strict=True)] or [0] * len(cols)
    empty = ["no rows"] * (any(head) and not words)
    if wide is None or not cols or len(words) > MOST_DRAWN:
        cells = ([padded(word, n, right=r) for word, n, r in zip(line, widths, right, strict=True)] for line in lines)
        return [*("  ".join(line).rstrip() for line in cells), *empty]
    from rich.console import Console  # here, since most output is for pipes and needs no rich
    from rich.table import Table as Grid
    from rich.text import Text

    file, color = io.StringIO(), "standard" if styled else None
    size: dict[str, Any] = {"width": wide, "height": max(1, len(lines))}  # else rich asks the terminal for both
    size |= {"force_terminal": styled, "force_jupyter": False, "legacy_windows": False}
    console = Console(file=file, color_system=color, **size)
    needed = [min(NARROWEST, n) if c.wraps else n for n, c in zip(widths, cols, strict=True)]
    for k, group in enumerate(_groups(needed, cols, wide)):
        fits = sum(needed[i] + 2 for i in group) - 2 <= wide
        grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=any(head))
        for i in group:
            wrap: dict[str, Any] = {"no_wrap": fits and not cols[i].wraps, "overflow": "fold"}
            grid.add_column(Text(head[i], style="bold"), justify="right" if right[i] else "left", **wrap)
        for row in words:
            styles = [next((s for start, s in cols[i].colors.items() if row[i].startswith(start)), "") for i in group]
            grid.add_row(*(Text(row[i], style=style) for i, style in zip(group, styles, strict=True)))
        console.print(*[""] * bool(k), grid, sep="\n")
    return [*(line.rstrip() for line in file.getvalue().splitlines()), *empty]


def _groups(needed: Sequence[int], cols: Sequence[Column], wide: int) -> list[list[int]]:
    """Columns that fit a terminal; further groups begin with the column that names the row."""
    named = next((i for i, column in enumerate(cols) if column.names), 0)
    groups, left = [list[int]()], wide + 2
    for i, room in enumerate(needed):
        if room + 2 > left and len(groups[-1]) > 1:  # a name alone says nothing
            groups.append([named if named in groups[0] else 0])
            left = wide - needed[groups[-1][0]]
        groups[-1].append(i)
        left -= room + 2
    return groups


def text(boards: Sequence[Board], wide: int | None = None, *, styled: bool = False) -> str:
    """Boards for a terminal of `wide` columns."""

    def broken(words: str, line: str = "", indent: str = "") -> list[str]:
        lines = wrapped(clean(words).split(" "), wide, indent, " ")
        return [*lines, line * max(map(width, lines))] if line else lines

    lines: list[str] = []
    for board in map(condensed, boards):
        lines += [*broken(board.title, "="), ""]
        for table in board.tables:
            lines += [*broken(table.title, "-"), *table_lines(table, wide, styled=styled)]
            lines += [*(line for note in table.notes for line in broken(f"note: {note}", indent="  ")), ""]
        lines += [*(line for note in board.notes for line in broken(f"note: {note}")), ""]
    return "\n".join(lines).rstrip() + "\n"


def printed(boards: Sequence[Board]) -> str:
    """Boards for standard output: of its width and with colours on a terminal."""
    return text(boards, columns(), styled=is_styled())


def markdown_table(table: Table) -> list[str]:
    """A table's lines as Markdown, without title and notes."""

    def word(column: Column, row: Row) -> str:
        shown = word_in(column, row)
        if column.markup == "code" and row.get(column.key) is not None:
            return "`" + shown.replace("`", "'").replace("|", "\\|") + "`"
        return f"**{in_markdown(shown)}**" if column.markup == "strong" else in_markdown(shown)

    head = [in_markdown(heading(c)) for c in table.columns]
    rule = ["---:" if _is_right(c, table.rows) else "---" for c in table.columns]
    lines = [head, rule, *([word(c, row) for c in table.columns] for row in table.rows)]
    return [*(f"| {' | '.join(words)} |" for words in lines), *["", "no rows"] * (not table.rows)]


def markdown(boards: Sequence[Board]) -> str:
    """As Markdown."""
    lines: list[str] = []
    for board in map(condensed, boards):
        lines += [f"## {in_markdown(board.title)}", ""]
        for table in board.tables:
            lines += [f"**{in_markdown(table.title)}**", "", *markdown_table(table)]
            lines += ["", *(f"* {in_markdown(note)}" for note in table.notes), ""]
        notes = [in_markdown(note).removesuffix(".") for note in board.notes]
        lines += [*(f"{note[0].upper()}{note[1:]}.  " for note in notes), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _texts(table: Table, word: Callable[[Column, Row], str], head: Callable[[str], str] = str) -> "pd.DataFrame":
    import pandas as pd

    cells = [[word(c, row) for c in table.columns] for row in table.rows]
    return pd.DataFrame(cells, columns=[head(heading(c)) for c in table.columns], dtype=object)


def tex(boards: Sequence[Board]) -> str:
    """As LaTeX tables with booktabs."""

    def word(column: Column, row: Row) -> str:
        return (number_in_tex if is_numeric(row.get(column.key)) else in_tex)(word_in(column, row))

    parts = ["% needs \\usepackage{booktabs}"]
    for board in map(condensed, boards):
        for table in board.tables:
            sides = "".join("r" if _is_right(c, table.rows) else "l" for c in table.columns)
            caption = f"{in_tex(board.title)}: {in_tex(table.title)}"
            parts.append(_texts(table, word, in_tex).to_latex(index=False, column_format=sides, caption=caption))
            parts += [f"% {clean(note)}" for note in (*table.notes, *board.notes)]
    return "\n".join([*parts, ""])


def html_tables(boards: Sequence[Board]) -> str:
    """As an HTML page of plain tables; `bench report` writes one with plots."""
    title = html.escape(clean(listed([board.title for board in boards])))
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    return "\n".join([head, html_fragment(boards), "</html>", ""])


def html_fragment(boards: Sequence[Board]) -> str:
    """Plain tables for an existing page, such as a notebook."""
    import pandas as pd

    def tagged(tag: str, words: str) -> str:
        return f"<{tag}>{html.escape(clean(words))}</{tag}>"

    parts: list[str] = []
    with pd.option_context("display.max_colwidth", None):
        for board in map(condensed, boards):
            parts.append(tagged("h2", board.title))
            for table in board.tables:
                parts += [tagged("h3", table.title), _texts(table, word_in).to_html(index=False, border=0)]
                parts += [f"<ul>{''.join(tagged('li', note) for note in table.notes)}</ul>"] * bool(table.notes)
            parts += [tagged("p", note) for note in board.notes]
    return "\n".join(parts)


def as_json(boards: Sequence[Board]) -> list[dict[str, Any]]:
    """As strict JSON: numbers are finite or null, intervals have mean, low, high and n."""

    def content(t: Table) -> dict[str, Any]:
        columns = [{"key": c.key, "title": c.title, "help": c.help, "digits": c.digits} for c in t.columns]
        rows = [{k: _finite(v) if is_dataclass(v) else v for k, v in row.items()} for row in t.rows]
        return {"title": t.title, "columns": columns, "notes": t.notes, "rows": rows}

    return plain(
        [{"board": b.name, "title": b.title, "notes": b.notes, "tables": [*map(content, b.tables)]} for b in boards]
    )


def _finite(ends: Any) -> dict[str, Any]:
    """An interval or a median time by name."""
    fields = {key: value for key, value in asdict(ends).items() if value != ""}  # most have no bound
    return {key: None if isinstance(x, float) and not math.isfinite(x) else x for key, x in fields.items()}


def json_text(value: Any) -> str:
    """Strict JSON of boards (`as_json`) or of rows of values."""

    def other(value: Any) -> Any:
        return float(value) if isinstance(value, Decimal) else str(value)

    return json.dumps(plain(value), indent=1, allow_nan=False, default=other) + "\n"


def csv_text(rows: Iterable[Row], keys: Sequence[str] | None = None) -> str:
    """Rows as CSV, with a column for each of these keys, or for those of the rows; None and NaN are empty fields."""
    import pandas as pd

    def word(value: Any) -> Any:
        return value if isinstance(value, Number) else None if value in (None, [], {}) else cell(value)

    records = [{key: word(value) for key, value in row.items()} for row in rows]
    names = None if keys is None else [*keys]
    return pd.DataFrame(records, columns=names, dtype=object).rename(columns=clean).to_csv(index=False)


def comma_separated(boards: Sequence[Board]) -> str:
    """As CSV, a row for each row of each table; an interval takes three columns."""
    rows: list[Row] = []
    for board, table, row in ((b, t, row) for b in boards for t in b.tables for row in t.rows):
        cells: dict[str, Any] = {"board": board.name, "table": table.title}
        for key in (column.key for column in table.columns):
            cells[key] = value = row.get(key)
            if is_dataclass(value):
                (_, cells[key]), *rest = _finite(value).items()
                cells |= {f"{key}_{name}": end for name, end in rest if name in ("low", "high", "bound")}
        rows.append(cells)
    return csv_text(rows)


FORMATS: dict[str, Callable[[Sequence[Board]], str]] = {
    "table": text,
    "md": markdown,
    "csv": comma_separated,
    "json": lambda boards: json_text(as_json(boards)),
    "tex": tex,
    "html": html_tables,
}
"""All formats by name."""
