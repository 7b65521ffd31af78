"""From requested runs to stored results: blocks and workers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from bench.config.values import Budget

ENGINES = ("auto", "lanes", "lightning")
Engine = Literal["auto", "lanes", "lightning"]
"""Execution engines: vectorised runs, one run at a time, or the faster of the two."""
CONTINUES = "the same command continues"


@dataclass(frozen=True)
class Effort:
    """How runs are executed.

    Attributes:
        engine: `lanes`, `lightning` (one run at a time), or the faster one.
        width: maximum lanes of a block; measured by default.
        workers: how many worker processes, or `auto` (`bench.execute.cluster.resources`); by default one for each GPU,
            and on a CPU only the command's own process.
        cluster: the address or the scheduler file of a Dask cluster that trains instead.
        budget: a time after which to stop, or the most runs to train.
    """

    engine: Engine = "auto"
    width: int | None = None
    workers: str | None = None
    cluster: str | None = None
    budget: "Budget | None" = None
