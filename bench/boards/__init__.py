"""Boards: tables with intervals and ties, pure functions of a store's entries; one board per file."""

from collections.abc import Callable

from bench.boards.attention import attention_board
from bench.boards.collect import Collected
from bench.boards.pairs import pairs
from bench.boards.quality import quality
from bench.boards.speed import speed
from bench.boards.theory import theory
from bench.results.table import Board

BOARDS: dict[str, Callable[[Collected], Board]] = {
    "quality": quality,
    "pairs": pairs,
    "speed": speed,
    "theory": theory,
    "attention": attention_board,
}
"""All boards by name, in display order."""
