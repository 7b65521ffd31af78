"""From wanted runs to stored results: blocks, workers, and what each of them takes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from bench.grammar.parse import Args
    from bench.grammar.values import Memory

Engine = Literal["auto", "lanes", "lightning"]
"""What makes runs: vectorised, one by one, or what is faster."""


@dataclass(frozen=True)
class Effort:
    """How runs are made.

    Attributes:
        engine: `lanes`, `lightning` (one run after the other), or what is faster.
        width: lanes of a block at most; measured by default.
        memory: what all blocks on a device together may take; 80 % of what is free by default.
        workers: how many processes, or `auto` (`bench.execute.slots`); by default one for each GPU, and on a CPU the
            command's own alone.
    """

    engine: Engine = "auto"
    width: int | None = None
    memory: "Memory | None" = None
    workers: str | None = None

    @classmethod
    def of(cls, args: "Args") -> "Effort":
        """What a command was asked for."""
        return cls(args.engine or "auto", args.width, args.memory, args.workers)

    def words(self) -> list[str]:
        """What says the same to a worker of a study."""
        width = [] if self.width is None else ["--width", str(self.width)]
        memory = [] if self.memory is None else ["--memory", self.memory.text]
        return ["--engine", self.engine, *width, *memory]
