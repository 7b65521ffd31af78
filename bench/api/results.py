"""Results as Python objects: runs, sweeps, studies and comparisons."""

from collections import UserList
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.config.run_config import settings_of
from bench.errors import RunFailed, UserError
from bench.output import Answer
from bench.results.render import as_json, html_fragment, printed, shown
from bench.results.table import Board, Table
from bench.run_summary import remarks_on, result_json, result_lines
from bench.store.record import RunResult
from bench.store.stores import Contents, Stores
from bench.terminal import columns, wrapped
from bench.text import clean, counted
from optimizers.plugins import bare

__all__ = ["Answer", "Comparison", "Run", "RunFailed", "Runs", "Study", "Sweep", "UserError"]

if TYPE_CHECKING:
    import pandas as pd

    from bench.plots.panels import Figure
    from bench.sweeps.sensitivity import Sensitivity
    from bench.tuning.study import StudyResult


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

        return pd.DataFrame(Contents([self.store], [self.run_id]).tables(self.run_id).get("curve", {}))


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

        return frame(self._stores(), view, [run.run_id for run in self])

    def _stores(self) -> Stores:
        return Stores(sorted({run.store for run in self}))

    def _table(self) -> Table:
        from bench.browse import listing

        return listing.table(self._stores(), [run.result for run in self], fold=False)

    def as_json(self) -> list[dict[str, Any]]:
        """The runs as `Run.as_json`."""
        return [run.as_json() for run in self]

    def __str__(self) -> str:
        notes = dict.fromkeys(f"note: {remark}" for run in self for remark in remarks_on(run.result))
        return "\n".join([*shown(self._table()), *notes])

    def _repr_html_(self) -> str:
        return html_fragment([Board("runs", counted(len(self), "run"), [self._table()])])


class Sweep(Answer):
    """Dependence of results on the swept settings; a row of the table for each setting.

    Attributes:
        runs: all runs, in the order of the settings.
        sensitivity: medians, quartiles and intervals over seeds, as data.
        failed: why runs failed, if some did.
    """

    def __init__(
        self, runs: Runs, sensitivity: "Sensitivity", paths: Sequence[Path] = (), failed: str | None = None
    ) -> None:
        from bench.sweeps import sensitivity as analysis

        self.runs, self.sensitivity, self.failed = runs, sensitivity, failed
        folder, store = paths[0].parent if paths else None, runs[0].store if runs else None
        data = {**analysis.as_json(sensitivity), "store": store, "out": folder}
        written_to = f"written to {folder}: {', '.join(path.name for path in paths)}; the runs are in {store}"
        lines = [*analysis.lines(sensitivity), *[written_to] * bool(paths)]
        boards, chart = [analysis.board(sensitivity)], partial(analysis.sweep_figure, sensitivity)
        super().__init__(data, lines, boards=boards, chart=chart)

    @property
    def best(self) -> dict[str, dict[str, Any] | None]:
        """The best settings of each curve by its name, chosen on the same seeds, so optimistic.

        None if a curve has no best: at every value, half of the seeds or more diverged.
        """
        points = {c.name: (c.x, c.points[c.best]) if c.best is not None else None for c in self.sensitivity.curves}
        return {name: point and {point[0]: point[1].x, **point[1].others} for name, point in points.items()}


class Study(Answer):
    """Result of tuning; a row of the table for each searched setting.

    Attributes:
        result: the study's trials and scores, as data.
        store: the folder of its runs.
        folder: to which the winner's settings were written.
        name: of the study; `task` and `opt` are the names of its task and its optimizer.
        trials: the runs of its trials.
        fresh: the winner's runs on fresh seeds, the results to report.
        score: the winner's median over the seeds of the trials, on the selection split; it is optimistic.
        code: 1 if no trial has a score.
    """

    def __init__(self, result: "StudyResult", store: Path, folder: Path | None = None) -> None:
        from bench.sweeps.sensitivity import analyse
        from bench.tuning.tuned import as_json, result_lines, trial_lines, use_line

        self.result, self.store, self.folder = result, store, folder
        self.name, self.task, self.opt, self.score = result.spec.name, result.spec.task, result.spec.opt, result.score
        self.trials, self.fresh = (Runs(Run(run, store) for run in runs) for runs in (result.runs, result.fresh))
        use = [] if folder is None else ["", f"use it: {use_line(folder, result.spec)}"]
        lines = [*trial_lines(result.record, result.runs), "", *map(clean, result_lines(result)), *use]
        super().__init__(as_json(result) | {"out": folder}, lines, int(result.best is None))
        if self.trials:
            sweep = Sweep(self.trials, analyse(result.runs, [*result.spec.axes], result.spec.mode))
            self.boards, self.chart = sweep.boards, sweep.chart

    @property
    def best(self) -> dict[str, Any]:
        """The hyperparameters of the winner, for `bench.fit(task, opt, **study.best)`; UserError if there is none."""
        if self.result.best is None:
            raise UserError(f"study {self.name}: no trial has a score, so there is no winner")
        return self.result.hyperparameters


class Comparison(Answer):
    """Comparison of optimizers with a reference: all tuned with equal budgets and run on fresh seeds.

    Its table is the board `quality`, and its figure shows the effect of each optimizer relative to the reference.

    Attributes:
        studies: results of tuning, by optimizer.
        verdicts: sentences, with the numbers of seeds that may decide open ones.
        folder: of tables, plots and settings, if written.
        code: 1 if an optimizer has no winner.
    """

    def __init__(
        self,
        studies: Mapping[str, Study],
        verdicts: Sequence[str],
        boards: Sequence[Board],
        forest: "Figure | None",
        folder: Path | None = None,
    ) -> None:
        from bench.tuning.tuned import result_lines, use_line

        self.studies, self.verdicts, self.folder = studies, verdicts, folder
        rows = [{k: v for k, v in study.as_json().items() if k != "out"} for study in studies.values()]
        data = {"out": folder, "studies": rows, "boards": as_json(boards), "said": [*verdicts]}
        table = [printed(boards)] if boards else ["no winner has run on fresh seeds yet"]
        tuned = [(study.folder, study.result.spec) for study in studies.values() if study.folder and not study.code]
        use = [f"use {spec.opt} as tuned: {use_line(folder, spec)}" for folder, spec in tuned]
        lines = [clean(line) for study in studies.values() for line in result_lines(study.result)]
        said = [line for verdict in verdicts for line in wrapped(verdict.split(" "), columns(), "", " ")]
        lines += ["", *table, *said, *[""] * bool(use), *use]
        code = max((study.code for study in studies.values()), default=0)
        super().__init__(data, lines, code, boards, verdicts, None if forest is None else lambda: forest)
