"""The Table: columns, rows of values and notes. `bench.results.render` writes it in every format."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: of the rows' values; CSV has it as its head.
        title: what its head says; a table without any titles has no head.
        help: what it means, with unit.
        digits: that numbers are shown with.
        unit: of the values, which the head says behind the title.
        form: makes of a value, if there is one, another that can be shown.
        side: where its words stand; by default on the right if one of its values is a number.
        markup: how Markdown sets its words.
        wraps: its words may go over several lines where a terminal is narrow; only of the last column.
        least: columns of a terminal that it takes at least, so that what is printed piece by piece is one table.
    """

    key: str
    title: str = ""
    help: str = ""
    digits: int = 4
    unit: str = ""
    form: Callable[[Any], Any] | None = None
    side: Literal["left", "right"] | None = None
    markup: Literal["strong", "code"] | None = None
    wraps: bool = False
    least: int = 0


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: its subject.
        columns: in order; where a terminal is narrow, the last ones follow on lines of their own.
        rows: values by column key: numbers, intervals, words, lists of words or None. Further keys are for programs.
        notes: for the reader.
    """

    title: str
    columns: list[Column]
    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, columns: Sequence[Column | str], rows: Iterable[Sequence[Any]]) -> "Table":
        """A table of rows whose values stand in the order of the columns, which titles may stand for."""
        own = [each if isinstance(each, Column) else Column(str(i), each) for i, each in enumerate(columns)]
        return cls("", own, [{c.key: value for c, value in zip(own, row, strict=True)} for row in rows])

    @classmethod
    def facts(cls, rows: Iterable[Sequence[Any]], least: int = 0) -> "Table":
        """Names, which take so many columns of a terminal at least, and behind each what is said of it."""
        return cls.of([Column("name", least=least), Column("said", wraps=True)], rows)


@dataclass(frozen=True)
class Board:
    """Tables under one title.

    Attributes:
        name: in one word; a board of `bench leaderboard` is called so on the command line.
        title: one line.
        tables: one for each problem, and one over all of them where there is such a thing.
        notes: on all tables.
    """

    name: str
    title: str
    tables: list[Table]
    notes: list[str] = field(default_factory=list)
