"""Boards: ranked tables with intervals and ties, pure functions of a store's entries; one board a file."""

from collections.abc import Callable
from dataclasses import dataclass

from bench.boards.collect import Collected
from bench.boards.quality import quality
from bench.boards.robustness import robustness
from bench.boards.speed import speed
from bench.boards.theory import Tables, theory
from bench.boards.tuning import tuning
from bench.results.table import Board


@dataclass(frozen=True)
class Asked:
    """What boards are made of, and how.

    Attributes:
        found: entries.
        tables: reads a run's tables.
        reference: optimizer that the others are compared with.
        target: value of the metric for the board `speed`; the task's own by default.
    """

    found: Collected
    tables: Tables
    reference: str = "adam"
    target: float | None = None


BOARDS: dict[str, Callable[[Asked], Board]] = {
    "quality": lambda asked: quality(asked.found, asked.reference),
    "speed": lambda asked: speed(asked.found, asked.target),
    "tuning": lambda asked: tuning(asked.found),
    "robustness": lambda asked: robustness(asked.found, asked.reference),
    "theory": lambda asked: theory(asked.found, asked.tables),
}
"""All boards by name, in the order in which they are shown."""

__all__ = ["BOARDS", "Asked", "Board"]
