"""`Run` and `Runs`: stored runs as Python objects."""

from collections import UserList
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.config.run_config import settings_of
from bench.output import Answer
from bench.results.render import html_fragment, shown
from bench.results.table import Board, Column, Table
from bench.run_summary import remarks_on, result_json, result_lines
from bench.store.record import RunResult
from bench.store.store import Store
from bench.text import counted
from optimizers.plugins import bare

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("run_id", "task", "opt", "seed", "status", "metric", "final", "steps", "seconds")


class Run(Answer):
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

    def __init__(self, result: RunResult, store: Path) -> None:
        code = 130 if result.status == "killed" else 0
        super().__init__(partial(result_json, result, store), partial(result_lines, result, store), code)
        self.result, self.store = result, store
        self.run_id, self.task, self.opt = result.run_id, result.task, bare(result.config["opt"])
        self.seed: int = result.config["seed"]
        self.status, self.steps, self.seconds = result.status, result.steps, result.wall_s
        self.metric, self.final, self.best = f"{result.split} {result.metric}".strip(), result.final, result.best
        self.settings = settings_of(result.config)

    def __repr__(self) -> str:
        return f"<Run: {self.run_id}, {self.status}>"

    @property
    def curve(self) -> "pd.DataFrame":
        """A row for each step: `step`, `loss`, `grad_norm`, `raw_step`, `applied_step`; NaN for non-finite values."""
        import pandas as pd

        return pd.DataFrame(Store(self.store).tables(self.run_id).get("curve", {}))


class Runs(UserList[Run]):
    """Stored runs: a list that converts to DataFrames.

    Args:
        runs: in their order.
        damaged: what could not be read, in words.
    """

    def __init__(self, runs: Iterable[Run] = (), damaged: Sequence[str] = ()) -> None:
        super().__init__(runs)
        self.damaged = tuple(damaged)

    def runs(self) -> "pd.DataFrame":
        """A row for each run: the view `runs` of `bench sql`, with a column for each setting in dotted form."""
        return self._frame("runs")

    def curves(self) -> "pd.DataFrame":
        """A row for each run and step: loss, gradient norm, step sizes."""
        return self._frame("curves")

    def measurements(self) -> "pd.DataFrame":
        """A row for each run and step at which the task measures, with a column for each quantity."""
        return self._frame("measurements")

    def evaluations(self) -> "pd.DataFrame":
        """A row for each run and evaluation during training, on the selection split."""
        return self._frame("evaluations")

    def _frame(self, view: str) -> "pd.DataFrame":
        from bench.browse.sql import frame
        from bench.store.stores import Stores

        return frame(Stores(sorted({run.store for run in self})), view, [run.run_id for run in self])

    def as_json(self) -> list[dict[str, Any]]:
        """The runs as `Run.as_json`."""
        return [run.as_json() for run in self]

    def __str__(self) -> str:
        notes = dict.fromkeys(f"note: {remark}" for run in self for remark in remarks_on(run.result))
        return "\n".join([*shown(self._table()), *notes])

    def _repr_html_(self) -> str:
        return html_fragment([Board("runs", counted(len(self), "run"), [self._table()])])

    def _table(self) -> Table:
        titles = {"run_id": "run", "seconds": "time (s)"}
        rows = [{name: getattr(run, name) for name in COLUMNS} for run in self]
        return Table("", [Column(name, titles.get(name, name)) for name in COLUMNS], rows)
