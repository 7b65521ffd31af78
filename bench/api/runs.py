"""`Run` and `Runs`: stored runs as Python objects."""

from collections import UserList
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bench.config.run_config import settings_of
from bench.errors import UserError
from bench.output import Shown
from bench.results.render import html_fragment, shown
from bench.results.table import Board, Column, Table
from bench.run_summary import remarks_on, result_json, result_lines
from bench.store.record import RunResult
from bench.store.store import Store
from bench.text import cell, counted, word_of
from optimizers.plugins import bare

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from bench.results.group import Measure
    from bench.results.stats import Interval

Columns = Mapping[str, NDArray[np.float64]]
"""Columns of a table by name, shape (rows,) each."""
COLUMNS = ("run_id", "task", "opt", "seed", "status", "metric", "final", "steps", "seconds")


@dataclass(repr=False)
class Run(Shown):
    """A stored run.

    Attributes:
        result: its record, with all fields.
        store: its folder.
        task, opt: the names of its task and optimizer; for a class from a file, without the folder.
        status: how it ended, `completed`, `diverged`, `timeout`, `failed` or `killed`; or `running`.
        metric: split and name of the compared metric, such as `test accuracy`.
        final: that metric at the last step; None if the run has no value.
        best: that metric at the best step on the selection split; None if the run has no value.
        steps: number of optimizer steps taken.
        seconds: from the first step to the end, evaluation included.
        settings: in dotted form, such as `opt.lr`, `trainer.max_steps`, `task.T` and `seed`.
    """

    result: RunResult
    store: Path

    def __post_init__(self) -> None:
        result = self.result
        self.run_id, self.task, self.opt = result.run_id, result.task, bare(result.config["opt"])
        self.seed: int = result.config["seed"]
        self.status, self.steps, self.seconds = result.status, result.steps, result.wall_s
        self.metric, self.final, self.best = f"{result.split} {result.metric}".strip(), result.final, result.best
        self.settings = settings_of(result.config)

    def __repr__(self) -> str:
        return f"<Run: {self.run_id}, {self.status}>"

    @cached_property
    def tables(self) -> Mapping[str, Columns]:
        """Its tables `curve` and `measurements`, each a mapping from column to array; UserError if one is damaged."""
        return Store(self.store).tables(self.run_id)

    @property
    def curve(self) -> Columns:
        """One row per step, with `step`, `loss`, `grad_norm`, `raw_step` and `applied_step`.

        Float64 arrays, shape (steps,) each; NaN for non-finite values.
        """
        return self.tables.get("curve", {})

    @property
    def measurements(self) -> Columns:
        """The task's measurements during training, shape (measurements,) for each column; empty without any."""
        return self.tables.get("measurements", {})

    @property
    def evaluations(self) -> Columns:
        """The values on the selection split, shape (evaluations,) for each column; NaN for missing values."""
        rows = self.result.validations
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: np.array([row.get(name, np.nan) for row in rows], dtype=np.float64) for name in names}

    def figure(self, column: str = "loss") -> "alt.TopLevelMixin":
        """As `Runs.figure`."""
        return Runs([self]).figure(column)

    @property
    def code(self) -> int:
        """130 if a signal stopped it."""
        return 130 if self.status == "killed" else 0

    def as_json(self) -> dict[str, Any]:
        """Ten fields, and the specimen if the task has one; numbers are finite or null."""
        return result_json(self.result, self.store)

    def __str__(self) -> str:
        return "\n".join(result_lines(self.result, self.store))


class Runs(UserList[Run]):
    """Stored runs: a list that converts to DataFrames.

    Args:
        runs: in their order.
        damaged: what could not be read, in words.
    """

    def __init__(self, runs: Iterable[Run] = (), damaged: Sequence[str] = ()) -> None:
        super().__init__(runs)
        self.damaged = tuple(damaged)

    @property
    def mean(self) -> "Interval | None":
        """The mean over seeds of the final metric, with its 95 % t-interval (one seed has no bounds).

        Where the infimum is known, it is the geometric mean of the suboptimality gap, as on boards. None if a run
        diverged or has no value, or if there are no runs.

        Raises:
            UserError: the runs differ in more than their seeds, so their mean has no meaning.
        """
        if self and not self._is_group():
            raise UserError("these runs differ in more than their seeds; take the mean of those of one setting")
        return self._mean()[1] if self else None

    def _is_group(self) -> bool:
        """Whether there are runs, which differ in their seeds only."""
        return bool(self) and {"seed", "data_seed"}.issuperset(self._varied())

    def _varied(self) -> list[str]:
        """The names of settings in which the runs differ."""
        words = [{name: word_of(value) for name, value in run.settings.items()} for run in self]
        names = dict.fromkeys(name for of_run in words for name in of_run)
        return [name for name in names if len({of_run.get(name) for of_run in words}) > 1]

    def _mean(self) -> "tuple[Measure, Interval | None]":
        """Final metric, and its mean with a 95 % t-interval, as on boards; no mean if a run has no value."""
        from bench.results.group import Group, final
        from bench.results.selection import above_infimum

        results = [run.result for run in self]
        measure = final(results[0].metric, results[0].mode, above_infimum(results), split=results[0].split)
        return measure, measure.mean(Group.of(results))

    def runs(self) -> "pd.DataFrame":
        """A row for each run: the view `runs` of `bench sql`, with a column for each setting in dotted form."""
        return self._frame("runs")

    def curves(self) -> "pd.DataFrame":
        """A row for each run and step: loss, gradient norm, step sizes."""
        return self._frame("curves")

    def evaluations(self) -> "pd.DataFrame":
        """A row for each run and evaluation during training, on the selection split."""
        return self._frame("evaluations")

    def _frame(self, view: str) -> "pd.DataFrame":
        from bench.browse.sql import frame
        from bench.store.stores import Stores

        return frame(Stores(sorted({run.store for run in self})), view, [run.run_id for run in self])

    def figure(self, column: str = "loss") -> "alt.TopLevelMixin":
        """A column of the curves, or else of the measurements, against optimizer steps: one line per run.

        Raises:
            UserError: no run has such a column, or there are no runs.
        """
        if not self:
            raise UserError("there are no runs to draw")
        from bench.plots.curves import of_runs

        varied, lines = [name for name in self._varied() if name not in ("opt", "data_seed")], []
        for run in self:
            settings = run.settings
            words = [f"{n.partition('.')[2] or n} {word_of(settings[n])}" for n in varied if n in settings]
            lines.append((", ".join([run.opt, *words]), run.opt, run.tables, run.result.validations))
        return of_runs(", ".join(sorted({run.task for run in self})), lines, column).altair()

    def as_json(self) -> dict[str, Any]:
        """The runs as `Run.as_json`, and their mean with its 95 % t-interval if they differ in their seeds only."""
        measure, mean = self._mean() if self._is_group() else (None, None)
        ends = mean.ends if mean is not None and mean.n > 1 and not mean.bound else None
        summary = {"mean_of": measure and measure.words, "mean": mean and mean.mean, "t_interval_95": ends}
        return {"runs": [run.as_json() for run in self], **summary}

    def __str__(self) -> str:
        lines = shown(self._table())
        if self._is_group():
            measure, mean = self._mean()
            if mean is None:
                lines.append(f"no mean: {sum(run.status == 'diverged' for run in self)} of {len(self)} seeds diverged")
            elif mean.n == 1:
                lines.append(f"{measure.words} {cell(mean)} with one seed, so there is no interval")
            else:
                kind = "in the geometric mean" if measure.log else "on average"
                interval = ", with 95 % t-interval" * (not mean.bound)
                lines.append(f"{measure.words} {cell(mean)} {kind} over {mean.n} seeds{interval}")
            lines += dict.fromkeys(f"note: {remark}" for run in self for remark in remarks_on(run.result))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_fragment([Board("runs", counted(len(self), "run"), [self._table()])])

    def _table(self) -> Table:
        titles = {"run_id": "run", "seconds": "time (s)"}
        rows = [{name: getattr(run, name) for name in COLUMNS} for run in self]
        return Table("", [Column(name, titles.get(name, name)) for name in COLUMNS], rows)
