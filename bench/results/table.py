"""Tables: columns, rows of values and notes; boards: tables under one title. `bench.results.render` writes them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    key: str  # of the rows' values; CSV uses it as heading
    title: str = ""  # heading; a table without any titles has none
    help: str = ""  # meaning, with unit
    digits: int = 4  # significant digits of numbers
    side: Literal["left", "right"] | None = None  # alignment; by default right if one of its values is a number
    markup: Literal["strong", "code"] | None = None  # style of its text in Markdown
    wraps: bool = False  # whether its text may wrap where the terminal is too narrow for it
    names: bool = False  # whether further tables on a narrow terminal begin with it (default: the first column)
    colors: Mapping[str, str] = field(default_factory=dict)  # rich's color of texts that begin with a word


@dataclass(frozen=True)
class Table:
    """A table; values are numbers, intervals, words, lists of words or None."""

    title: str
    columns: list[Column]
    rows: list[dict[str, Any]]  # by key of columns; further keys are for programs
    notes: list[str] = field(default_factory=list)
    problem: str = ""  # its name, if the table is about one and its title begins with it

    @classmethod
    def of(cls, columns: Sequence[Column | str], rows: Iterable[Sequence[Any]], title: str = "") -> "Table":
        """A table from rows with values in the order of the columns; a title may replace a column."""
        cols = [c if isinstance(c, Column) else Column(str(i), c) for i, c in enumerate(columns)]
        return cls(title, cols, [{c.key: value for c, value in zip(cols, row, strict=True)} for row in rows])

    @classmethod
    def facts(cls, rows: Iterable[Sequence[Any]]) -> "Table":
        """A table of names, each followed by its text."""
        return cls.of([Column("name"), Column("text", wraps=True)], rows)


@dataclass(frozen=True)
class Board:
    """Tables under one title: a short name, a title, a table for each problem and possibly one over all, and notes."""

    name: str
    title: str
    tables: list[Table]
    notes: list[str] = field(default_factory=list)

    @property
    def table(self) -> "pd.DataFrame":
        """All rows with their values, under the columns' keys; `table` is the title of the row's table."""
        import pandas as pd

        rows = [{"table": t.title, **{c.key: row.get(c.key) for c in t.columns}} for t in self.tables for row in t.rows]
        return pd.DataFrame(rows)
