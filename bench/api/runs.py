"""`Run` and `Runs`: stored runs as Python objects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from bench.boards.collect import facts
from bench.config.run_config import settings_of
from bench.errors import UserError, unknown, unknown_run
from bench.output import Shown
from bench.results.render import html_fragment
from bench.results.render import shown as as_lines
from bench.results.table import Board, Column, Table
from bench.run_summary import remarks_on, result_json, result_lines
from bench.store.record import RunResult
from bench.store.store import Store
from bench.text import cell, counted, word_of
from optimizers.plugins import bare

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd
    import pyarrow as pa

    from bench.results.group import Measure
    from bench.results.stats import Interval

_SEEDS = ("seed", "data_seed")
Columns = Mapping[str, NDArray[np.float64]]
"""Columns of a table by name, shape (rows,) each."""


@dataclass(frozen=True)
class Run(Shown):
    """A stored run.

    Attributes:
        result: its record, with all fields.
        store: its folder.
    """

    result: RunResult = field(repr=False)
    store: Path
    run_id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "run_id", self.result.run_id)

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.result.task

    @property
    def opt(self) -> str:
        """The name of its optimizer; for a class from a file, without the folder."""
        return bare(self.result.config["opt"])

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.result.config["seed"]

    @property
    def status(self) -> str:
        """How it ended, `completed`, `diverged`, `timeout`, `failed` or `killed`; or `running`."""
        return self.result.status

    @property
    def settings(self) -> dict[str, Any]:
        """All its settings in dotted form, such as `opt.lr`, `trainer.max_steps`, `task.T` and `seed`."""
        return settings_of(self.result.config)

    @property
    def metric(self) -> str:
        """Split and name of the compared metric, such as `test accuracy`."""
        return f"{self.result.split} {self.result.metric}".strip()

    @property
    def final(self) -> float | None:
        """That metric at the last step; None if the run has no value."""
        return self.result.final

    @property
    def best(self) -> float | None:
        """That metric at the best step on the selection split; None if the run has no value."""
        return self.result.best

    @property
    def steps(self) -> int:
        """Number of optimizer steps taken."""
        return self.result.steps

    @property
    def seconds(self) -> float:
        """Seconds from the first step to the end, evaluation included."""
        return self.result.wall_s

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
    """Stored runs: a sequence with filters and conversion to a table.

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
            found = next((run for run in self._runs if run.run_id == key), None)
            if found is None:
                raise unknown_run(key, (run.run_id for run in self._runs), "these runs")
            return found
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
        own = [facts(run.result) | {"task": run.task, "opt": run.opt} for run in self._runs]
        for name in settings if own else ():
            if not any(name in each for each in own):
                raise unknown("setting", name, sorted({known for each in own for known in each}))
        return Runs(
            [
                run
                for run, known in zip(self._runs, own, strict=True)
                if all(name in known and _is_any_of(known[name], value) for name, value in settings.items())
            ],
            self.damaged,
        )

    @property
    def mean(self) -> "Interval | None":
        """The mean over seeds of the final metric, with its 95 % t-interval (one seed has no bounds).

        Where the infimum is known, it is the geometric mean of the suboptimality gap, as on boards. None if a run
        diverged or has no value, or if there are no runs.

        Raises:
            UserError: the runs differ in more than their seeds, so their mean has no meaning.
        """
        alike = {tuple((k, word_of(v)) for k, v in run.settings.items() if k not in _SEEDS) for run in self._runs}
        if len(alike) > 1:
            raise UserError("these runs differ in more than their seeds; choose some with `filter` before `mean`")
        return _mean_of([run.result for run in self._runs])[1] if self._runs else None

    def table(self) -> "pa.Table":
        """The runs as an Arrow table, one row per run; `.to_pandas()` converts it if pandas is installed.

        Columns: `run_id`, `task`, `opt`, `seed`, `status`, `metric`, `final`, `best`, `best_step`, `steps`, `seconds`,
        `engine`, `begun`, and each setting in dotted form. Missing settings are null. Lists, and settings with values
        of several types, are text.
        """
        import pyarrow as pa

        kinds: dict[str, pa.DataType] = {
            "run_id": pa.string(),
            "task": pa.string(),
            "opt": pa.string(),
            "seed": pa.int64(),
            "status": pa.string(),
            "metric": pa.string(),
            "final": pa.float64(),
            "best": pa.float64(),
            "best_step": pa.int64(),
            "steps": pa.int64(),
            "seconds": pa.float64(),
            "engine": pa.string(),
            "begun": pa.string(),
        }
        rows = [{name: _fact(run, name) for name in kinds} for run in self._runs]
        columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()}
        settings = [run.settings for run in self._runs]
        for name in sorted({name for own in settings for name in own} - columns.keys()):
            columns[name] = pa.array(_alike([own.get(name) for own in settings]))
        return pa.table(columns)

    def runs(self) -> "pd.DataFrame":
        """A row for each run: the view `runs` of `bench sql`."""
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

        named = [(_label(run, self._runs), run.opt, run.tables, run.result.validations) for run in self._runs]
        return of_runs(", ".join(sorted({run.task for run in self._runs})), named, column).altair()

    def __repr__(self) -> str:
        return f"<Runs: {counted(len(self), 'run')}>"

    def __str__(self) -> str:
        return "\n".join(as_lines(self._shown()))

    def _repr_html_(self) -> str:
        return html_fragment([Board("runs", counted(len(self), "run"), [self._shown()])])

    def _shown(self) -> Table:
        own = [Column("run_id", "run"), *(Column(name, name) for name in ("task", "opt", "seed", "status", "metric"))]
        own += [Column("final", "final"), Column("steps", "steps"), Column("seconds", "time", unit="s")]
        return Table("", own, [{column.key: _fact(run, column.key) for column in own} for run in self._runs])


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
        results = [run.result for run in self]
        (measure, mean), first = _mean_of(results), results[0]
        seconds = Column("wall_s", "time", unit="s", form=lambda seconds: f"{seconds:.1f}")
        rows = ((run.config["seed"], run.status, run.final, run.steps, run.wall_s, run.run_id) for run in results)
        table = Table.of(["seed", "status", f"{first.split} {first.metric}", "steps", seconds, "run"], rows)
        if mean is None:
            words = f"no mean: {sum(run.status == 'diverged' for run in results)} of {len(results)} seeds diverged"
        elif mean.n == 1:
            words = f"{measure.words} {cell(mean)} with one seed, so there is no interval"
        else:
            kind = "in the geometric mean" if measure.log else "on average"
            words = f"{measure.words} {cell(mean)} {kind} over {mean.n} seeds"
            words += ", with 95 % t-interval" * (not mean.bound)
        remarks = dict.fromkeys(f"note: {each}" for run in results for each in remarks_on(run))
        return "\n".join([*as_lines(table), words, *remarks])


def _mean_of(results: Sequence[RunResult]) -> "tuple[Measure, Interval | None]":
    """Final metric, and its mean with a 95 % t-interval, as on boards; no mean if a run has no value."""
    from bench.results.group import Group, final
    from bench.results.selection import above_infimum

    first = results[0]
    measure = final(first.metric, first.mode, above_infimum(results), split=first.split)
    return measure, measure.mean(Group.of(results))


def _is_any_of(known: Any, wanted: Any) -> bool:
    """Whether a setting has this value, or one of several; tuples equal lists."""
    several = [wanted, *wanted] if isinstance(wanted, list | set) else [wanted]
    return any(known == (list(each) if isinstance(each, tuple) else each) for each in several)


def _fact(run: Run, name: str) -> Any:
    return getattr(run, name) if hasattr(Run, name) or name == "run_id" else getattr(run.result, name)


def _alike(values: list[Any]) -> list[Any]:
    """Values of one type; as text if types are mixed or not plain."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        return [value if value is None else float(value) for value in values] if float in kinds else values
    if len(kinds) == 1 and kinds <= {bool, str}:
        return values
    return [None if value is None else word_of(value) for value in values]


def _label(run: Run, among: Sequence[Run]) -> str:
    """Legend entry of a run: its optimizer and the settings in which these runs differ."""
    every = [each.settings for each in among]
    names = [name for own in every for name in own if name not in ("opt", "data_seed")]
    differing = [name for name in dict.fromkeys(names) if len({word_of(own.get(name)) for own in every}) > 1]
    own = run.settings
    words = [f"{name.partition('.')[2] or name} {word_of(own[name])}" for name in differing if name in own]
    return ", ".join([run.opt, *words])
