"""What a board is made of: tables with columns and rows of values, which `formats.py` turns into text."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: of the rows' values.
        title: what its head says.
        help: what it means, with unit.
        digits: that numbers are shown with.
    """

    key: str
    title: str
    help: str
    digits: int = 4


@dataclass(frozen=True)
class Table:
    """A table of a board.

    Attributes:
        title: what it is about.
        columns: in order.
        rows: values by column key: numbers, intervals, words, lists of words or None. Further keys are for programs.
        notes: what a reader must know.
        pairs: every pair of rows that was compared, for programs.
    """

    title: str
    columns: list[Column]
    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    pairs: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Board:
    """A board.

    Attributes:
        name: `quality`, `speed`, `tuning`, `robustness` or `theory`.
        title: one line.
        tables: one for each problem, and one over all of them where there is such a thing.
        notes: on all tables.
    """

    name: str
    title: str
    tables: list[Table]
    notes: list[str] = field(default_factory=list)
