"""`Run` and `Runs`: stored runs as Python objects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from bench.boards.collect import facts
from bench.config.run_config import settings_of
from bench.errors import UserError, unknown, unknown_run
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


@dataclass(repr=False)
class Run(Shown):
    """A stored run.

    Attributes:
        result: its record, with all fields.
        store: its folder.
        task: the name of its task.
        opt: the name of its optimizer; for a class from a file, without the folder.
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
        """Its tables `curve` and `measurements`, each a mapping from column to array.

        Raises:
            UserError: a table is damaged.
        """
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
        """A column of the curve, or else of the measurements, against optimizer steps.

        Raises:
            UserError: the run has no such column.
        """
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


class Runs(Sequence[Run]):
    """Stored runs: a sequence with filters and conversion to DataFrames.

    Args:
        runs: in their order.
        damaged: what could not be read, in words.
    """

    def __init__(self, runs: Sequence[Run], damaged: Sequence[str] = ()) -> None:
        self._runs, self.damaged = tuple(runs), tuple(damaged)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    @overload
    def __getitem__(self, key: int | str) -> Run: ...
    @overload
    def __getitem__(self, key: slice) -> "Runs": ...
    def __getitem__(self, key: int | str | slice) -> "Run | Runs":
        """A run by its index or its id, or the runs of a slice.

        Raises:
            UserError: there is no run with this id.
            IndexError: the index is out of range.
        """
        if isinstance(key, str):
            by_id = {run.run_id: run for run in self._runs}
            if key not in by_id:
                raise unknown_run(key, by_id, "these runs")
            return by_id[key]
        return Runs(self._runs[key], self.damaged) if isinstance(key, slice) else self._runs[key]

    def filter(self, **settings: Any) -> "Runs":
        """The runs with these settings.

        Args:
            settings: values by name; a list or a set of values means any of them. A tuple is one value, and so is a
                list that equals the setting (`opt.betas`). Names are those of `Run.settings`, and `status`, `engine`,
                `machine` and `versions.*`: `runs.filter(opt="adam", **{"opt.lr": 0.1})`.

        Raises:
            UserError: no run has a setting with this name.
        """
        known = [facts(run.result) | {"task": run.task, "opt": run.opt} for run in self._runs]
        names = sorted({name for values in known for name in values})
        for name in settings if known else ():
            if name not in names:
                raise unknown("setting", name, names)

        def matches(values: Mapping[str, Any]) -> bool:
            return all(name in values and _is_any_of(values[name], value) for name, value in settings.items())

        return Runs([run for run, values in zip(self._runs, known, strict=True) if matches(values)], self.damaged)

    @property
    def mean(self) -> "Interval | None":
        """The mean over seeds of the final metric, with its 95 % t-interval (one seed has no bounds).

        Where the infimum is known, it is the geometric mean of the suboptimality gap, as on boards. None if a run
        diverged or has no value, or if there are no runs.

        Raises:
            UserError: the runs differ in more than their seeds, so their mean has no meaning.
        """
        seeds = ("seed", "data_seed")
        if len({tuple((k, word_of(v)) for k, v in run.settings.items() if k not in seeds) for run in self._runs}) > 1:
            raise UserError("these runs differ in more than their seeds; choose some with `filter` before `mean`")
        return _mean_of([run.result for run in self._runs])[1] if self._runs else None

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

        return frame(Stores(sorted({run.store for run in self._runs})), view, [run.run_id for run in self._runs])

    def figure(self, column: str = "loss") -> "alt.TopLevelMixin":
        """A column of the curves, or else of the measurements, against optimizer steps: one line per run.

        Raises:
            UserError: no run has such a column, or there are no runs.
        """
        if not self._runs:
            raise UserError("there are no runs to draw")
        from bench.plots.curves import of_runs

        values = [{name: word_of(value) for name, value in run.settings.items()} for run in self._runs]
        names = dict.fromkeys(name for of_run in values for name in of_run if name not in ("opt", "data_seed"))
        differing = [name for name in names if len({of_run.get(name) for of_run in values}) > 1]
        lines = []
        for run, of_run in zip(self._runs, values, strict=True):
            words = [f"{name.partition('.')[2] or name} {of_run[name]}" for name in differing if name in of_run]
            lines.append((", ".join([run.opt, *words]), run.opt, run.tables, run.result.validations))
        return of_runs(", ".join(sorted({run.task for run in self._runs})), lines, column).altair()

    def __repr__(self) -> str:
        return f"<Runs: {counted(len(self), 'run')}>"

    def __str__(self) -> str:
        return "\n".join(shown(self._table()))

    def _repr_html_(self) -> str:
        return html_fragment([Board("runs", counted(len(self), "run"), [self._table()])])

    def _table(self) -> Table:
        titles = {"run_id": "run", "seconds": "time (s)"}
        names = ("run_id", "task", "opt", "seed", "status", "metric", "final", "steps", "seconds")
        columns = [Column(name, titles.get(name, name)) for name in names]
        return Table("", columns, [{name: getattr(run, name) for name in names} for run in self._runs])


class SeedRuns(Runs, Shown):
    """The runs of `bench.fit` with several seeds, and their mean."""

    def as_json(self) -> dict[str, Any]:
        """The runs as `Run.as_json`, and their mean with its 95 % t-interval."""
        measure, mean = _mean_of([run.result for run in self])
        return {
            "runs": [run.as_json() for run in self],
            "mean_of": measure.words,
            "mean": mean and mean.mean,
            "t_interval_95": mean.ends if mean is not None and mean.n > 1 and not mean.bound else None,
        }

    def __str__(self) -> str:
        (measure, mean), first = _mean_of([run.result for run in self]), self[0]
        rows = [(run.seed, run.status, run.final, run.steps, f"{run.seconds:.1f}", run.run_id) for run in self]
        table = Table.of(["seed", "status", first.metric, "steps", Column("s", "time (s)", side="right"), "run"], rows)
        if mean is None:
            words = f"no mean: {sum(run.status == 'diverged' for run in self)} of {len(self)} seeds diverged"
        elif mean.n == 1:
            words = f"{measure.words} {cell(mean)} with one seed, so there is no interval"
        else:
            kind = "in the geometric mean" if measure.log else "on average"
            words = f"{measure.words} {cell(mean)} {kind} over {mean.n} seeds"
            words += ", with 95 % t-interval" * (not mean.bound)
        remarks = dict.fromkeys(f"note: {remark}" for run in self for remark in remarks_on(run.result))
        return "\n".join([*shown(table), words, *remarks])


def _mean_of(results: Sequence[RunResult]) -> "tuple[Measure, Interval | None]":
    """Final metric, and its mean with a 95 % t-interval, as on boards; no mean if a run has no value."""
    from bench.results.group import Group, final
    from bench.results.selection import above_infimum

    measure = final(results[0].metric, results[0].mode, above_infimum(results), split=results[0].split)
    return measure, measure.mean(Group.of(results))


def _is_any_of(known: Any, wanted: Any) -> bool:
    """Whether a setting has this value, or one of several; tuples equal lists."""
    several = [wanted, *wanted] if isinstance(wanted, list | set) else [wanted]
    return any(known == (list(value) if isinstance(value, tuple) else value) for value in several)
