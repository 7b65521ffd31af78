"""From requested runs to stored results: blocks and workers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from bench.config.values import Budget

Engine = Literal["auto", "lanes", "lightning"]
"""Execution engines: vectorised runs, one run at a time, or the faster of the two."""
CONTINUES = "the same command continues"


@dataclass(frozen=True)
class Effort:
    """How runs are executed."""

    engine: Engine = "auto"
    width: int | None = None  # maximum lanes of a block; measured by default
    # Worker processes, or `auto`; by default one for each GPU, and on a CPU only the command's process.
    workers: str | None = None
    cluster: str | None = None  # the address or the scheduler file of a Dask cluster that trains instead
    budget: "Budget | None" = None  # a time after which to stop
