"""From requested runs to stored results: blocks and workers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bench.errors import UserError

if TYPE_CHECKING:
    from bench.grammar.parse import Args
    from bench.grammar.values import Budget, Memory

Engine = Literal["auto", "lanes", "lightning"]
"""Execution engines: vectorised runs, one run at a time, or the faster of the two."""


@dataclass(frozen=True)
class Effort:
    """How runs are executed.

    Attributes:
        engine: `lanes`, `lightning` (one run at a time), or the faster one.
        width: maximum lanes of a block; measured by default.
        memory: limit for all blocks on a device together; by default 80 % of the free memory.
        workers: how many processes, or `auto` (`bench.execute.slots`); by default one for each GPU, and on a CPU
            only the command's own process.
        budget: a time after which to stop, or the most runs to train (`refuse_beyond`).
    """

    engine: Engine = "auto"
    width: int | None = None
    memory: "Memory | None" = None
    workers: str | None = None
    budget: "Budget | None" = None

    @classmethod
    def of(cls, args: "Args") -> "Effort":
        """The effort that a command requests."""
        return cls(args.engine or "auto", args.width, args.memory, args.workers, getattr(args, "budget", None))

    def refuse_beyond(self, runs: int) -> None:
        """Refuse more runs than the budget.

        Raises:
            UserError: so many runs exceed it.
        """
        if self.budget is not None and self.budget.runs is not None and runs > self.budget.runs:
            raise UserError(f"--budget {self.budget.text}: {runs} runs are to be trained; ask for fewer, or raise it")
