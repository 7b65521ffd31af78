"""Results of sweeps, studies and comparisons: answers with further attributes."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.api.runs import Run, Runs
from bench.errors import RunFailed, UserError
from bench.output import Answer
from bench.results.render import as_json, written
from bench.results.table import Board
from bench.text import CONVERGED, clean

__all__ = ["Answer", "Comparison", "Run", "RunFailed", "Runs", "Study", "Sweep", "UserError"]

if TYPE_CHECKING:
    from bench.plots.panels import Figure
    from bench.sweeps.sensitivity import Sensitivity
    from bench.tuning.study import StudyResult


class Sweep(Answer):
    """Dependence of results on the swept settings; a row of the table for each setting.

    Attributes:
        runs: all runs, in the order of the settings.
        sensitivity: medians, quartiles and intervals over seeds, as data.
        paths: written files.
        failed: why runs failed, if some did.
    """

    def __init__(
        self, runs: Runs, sensitivity: "Sensitivity", paths: Sequence[Path] = (), failed: str | None = None
    ) -> None:
        from bench.plots.sweep import sweep_figure
        from bench.sweeps import sensitivity as analysis

        self.runs, self.sensitivity, self.paths, self.failed = runs, sensitivity, paths, failed
        folder, store = paths[0].parent if paths else None, runs[0].store if runs else None
        data = {**analysis.as_json(sensitivity), "store": store, "out": folder}
        written_to = f"written to {folder}: {', '.join(path.name for path in paths)}; the runs are in {store}"
        lines = [*analysis.lines(sensitivity), *[written_to] * bool(paths)]
        boards, chart = [analysis.board(sensitivity)], partial(sweep_figure, sensitivity, CONVERGED)
        super().__init__(data, lines, boards=boards, chart=chart)

    @property
    def best(self) -> dict[str, dict[str, Any] | None]:
        """The best settings of each curve by its name, chosen on the same seeds, so optimistic.

        None if a curve has no best: at every value, half of the seeds or more diverged, or a cap set the step size.
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
        self.name, self.task, self.opt, self.score = result.study.name, result.spec.task, result.spec.opt, result.score
        self.trials, self.fresh = (Runs(Run(run, store) for run in runs) for runs in (result.runs, result.fresh))
        use = [] if folder is None else ["", f"use it: {use_line(folder, result.spec)}"]
        searched = [*result.spec.axes]
        sweep = Sweep(self.trials, analyse(result.runs, searched, result.spec.mode)) if self.trials else None
        super().__init__(
            as_json(result) | {"out": folder},
            [*map(clean, [*trial_lines(result.record, result.runs), "", *result_lines(result)]), *use],
            int(result.best is None),
            sweep.boards if sweep else (),
            chart=sweep and sweep.chart,
        )

    @property
    def best(self) -> dict[str, Any]:
        """The hyperparameters of the winner, as `bench.fit(task, opt, **study.best)` takes them.

        Raises:
            UserError: no trial has a score.
        """
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
        table = [written(boards, "table", None)] if boards else ["no winner has run on fresh seeds yet"]
        tuned = [(study.folder, study.result.spec) for study in studies.values() if study.folder and not study.code]
        use = [f"use {spec.opt} as tuned: {use_line(folder, spec)}" for folder, spec in tuned]
        lines = [clean(line) for study in studies.values() for line in result_lines(study.result)]
        lines += ["", *table, *verdicts]
        code = max((study.code for study in studies.values()), default=0)
        chart = None if forest is None else lambda: forest
        super().__init__(data, [*lines, *[""] * bool(use), *use], code, boards, verdicts, chart)
