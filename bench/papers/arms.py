"""An arm of an experiment: a group of runs with its curves."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bench.config.run_config import settings_of
from bench.results.group import Group, Seed, seed_of
from bench.results.stats import Array
from bench.store.record import RunResult
from bench.store.tables import Columns


@dataclass(kw_only=True, eq=False)
class Arm(Group):
    """One side of a comparison: runs with the same settings, and their tables.

    Attributes:
        label: its name in figures and tables.
        tables: by seed, the tables of the run by kind: `curve`, `measurements` and `validations`. Columns are as long
            as the column `step`; NaN stands for a missing value.
    """

    label: str
    tables: Mapping[Seed, Mapping[str, Columns]]

    @classmethod
    def of_each(cls, label: str, results: Iterable[tuple[RunResult, Mapping[str, Columns]]]) -> "Arm":
        """The arm of these runs with their tables."""
        pairs = list(results)
        return cls(Group.of(run for run, _ in pairs).runs, label=label, tables={seed_of(run): t for run, t in pairs})

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings of its first run, in dotted form (`task.H`, `opt.lr`); empty without runs."""
        return next((settings_of(run.config) for run in self.runs.values()), {})

    @property
    def every_table(self) -> Iterator[Columns]:
        """The tables of all runs."""
        return (table for tables in self.tables.values() for table in tables.values())

    def series(self, *names: str, lenient: bool = False) -> tuple[Array, ...]:
        """Step numbers, shape (P,), and for each name its values, shape (S, P), all from one table.

        Rows are in the order of `runs`. A run that ended early has NaN after its end, and everywhere if it ended before
        its first row. P is at least 1.

        Args:
            names: columns of one table.
            lenient: give a completed run without such a table NaN too.

        Raises:
            KeyError: a completed run has no table with all of them, and `lenient` is False.
        """
        chosen = list[Columns]()
        none = {name: np.full(1, np.nan) for name in names} | {"step": np.zeros(1)}
        for seed, run in self.runs.items():
            tables = self.tables[seed].values()
            having = [t for t in tables if all(name in t for name in names)]
            if not having and run.status == "completed" and not lenient:
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
