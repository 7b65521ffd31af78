"""The results of an experiment as arrays: one `Arm` for each side of a comparison, one row for each seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Table = Mapping[str, Array]
"""Columns by name, all as long as the column `step`; NaN stands for a value that does not exist."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: the same settings with several seeds.

    Attributes:
        label: its name in figures and tables.
        seeds: one for each run; arms with the same seeds are paired.
        tables: by seed, the run's tables: measurements and the curve of its optimizer steps.
        statuses: by seed, how the run ended.
        converged: by seed, whether the run ended since it could go no further, so that its last value stands for all
            later steps; None: every completed run did.
        settings: in dotted form, what was set (`task.H`, `opt.lr`).
    """

    label: str
    seeds: Sequence[int]
    tables: Sequence[Sequence[Table]]
    statuses: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    converged: Sequence[bool] | None = None

    def series(self, *names: str, lenient: bool = False) -> tuple[Array, ...]:
        """Step numbers, shape (P,), and for each name its values, shape (S, P), all from one table.

        A run that ended early has NaN from there on, and everywhere if it ended before it had such a table; there is
        always a step.

        Args:
            names: columns that some one table has.
            lenient: whether a run that completed without such a table has NaN too.

        Raises:
            KeyError: a run that completed has no table with all of them, and `lenient` is False.
        """
        chosen = list[Table]()
        none = {name: np.full(1, np.nan) for name in names} | {"step": np.zeros(1)}
        for tables, status in zip(self.tables, self.statuses or ["completed"] * len(self.tables), strict=True):
            having = [t for t in tables if all(name in t for name in names)]
            if not having and status == "completed" and not lenient:
                known = sorted({name for t in tables for name in t})
                raise KeyError(f"{self.label} has no table with {', '.join(names)}; it has {', '.join(known)}")
            chosen.append(next((t for t in having if len(t["step"])), none))
        steps = np.unique(np.concatenate([table["step"] for table in chosen]))
        values = np.full((len(names), len(chosen), len(steps)), np.nan)
        for s, table in enumerate(chosen):
            at = np.searchsorted(steps, table["step"])
            for k, name in enumerate(names):
                values[k, s, at] = table[name]
        return (steps, *values)
