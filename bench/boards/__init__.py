"""Boards: ranked tables with intervals and ties, pure functions of a store's entries; one board per file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.boards.attention import attention_board
from bench.boards.collect import Collected, Tables
from bench.boards.entries import Entry
from bench.boards.pairs import pairs
from bench.boards.quality import quality
from bench.boards.robustness import robustness
from bench.boards.speed import speed
from bench.boards.theory import theory
from bench.boards.tuning import tuning
from bench.results.table import Board
from bench.store.tables import Columns


@dataclass(frozen=True)
class BoardInput:
    """Input of boards.

    Attributes:
        found: entries.
        tables: reads a run's tables.
        reference: the fixed optimizer of comparison; None for each problem's own (`Problem.reference`).
        target: value of the metric for the board `speed`; the task's own by default.
    """

    found: Collected
    tables: Tables
    reference: str | None = None
    target: float | None = None

    def read(self, entry: Entry) -> list[Mapping[str, Columns]]:
        """The tables of each of an entry's runs; none of a run whose tables are damaged, which is noted."""
        found = self.found.read(entry, self.tables)
        return [found.get(seed, {}) for seed in entry.runs]


BOARDS: dict[str, Callable[[BoardInput], Board]] = {
    "quality": lambda asked: quality(asked.found, asked.reference),
    "pairs": lambda asked: pairs(asked.found, asked.reference),
    "speed": lambda asked: speed(asked.found, asked.target, asked.reference),
    "tuning": lambda asked: tuning(asked.found),
    "robustness": lambda asked: robustness(asked.found, asked.reference),
    "theory": lambda asked: theory(asked.found, asked.tables, asked.reference),
    "attention": lambda asked: attention_board(asked.found, asked.tables, asked.reference),
}
"""All boards by name, in display order."""

__all__ = ["BOARDS", "Board", "BoardInput"]
