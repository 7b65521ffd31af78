"""Return values of the API other than runs: tables, sweeps, studies and comparisons."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.api.runs import Run, Runs
from bench.errors import UserError
from bench.output import Shown, format_of, write
from bench.results.render import FORMATS, as_json, html_fragment, written
from bench.results.table import Board
from bench.text import clean

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from bench.plots.panels import Figure
    from bench.sweeps.sensitivity import Sensitivity
    from bench.tuning.study import StudyResult


@dataclass(frozen=True)
class Table(Shown):
    """One board or several; a notebook shows them as HTML, `print` as text.

    Attributes:
        boards: title, tables and notes of each as data.
        notes: what was excluded, in words, in addition to the notes of the boards themselves.
        format: of the text, one of `bench.results.render.FORMATS`.
        code: exit code of the command that prints it.
        first: text to show instead, such as the matrix of verdicts.
    """

    boards: Sequence[Board] = field(repr=False)
    notes: Sequence[str] = ()
    format: str = "table"
    code: int = 0
    first: str | None = field(default=None, repr=False)

    @property
    def table(self) -> "pd.DataFrame":
        """All rows with their values, under the columns' names; `table` is the title of the row's table."""
        import pandas as pd

        return pd.concat([board.table for board in self.boards], ignore_index=True)

    def write(self, path: str | Path) -> None:
        """Write a file: Markdown, CSV, JSON, LaTeX or HTML by its suffix (.md, .csv, .json, .tex, .html), else text.

        Raises:
            UserError: it cannot be written.
        """
        write(Path(path), written(self.boards, format_of(Path(path), FORMATS), Path(path)))

    def as_json(self) -> list[dict[str, Any]]:
        """Boards with their tables."""
        return as_json(self.boards)

    def __str__(self) -> str:
        return (written(self.boards, self.format, None) if self.first is None else self.first).rstrip("\n")

    def _repr_html_(self) -> str:
        return html_fragment([*self.boards, *([Board("notes", "", [], list(self.notes))] if self.notes else [])])


@dataclass(frozen=True)
class Sweep(Shown):
    """Dependence of results on the swept settings.

    Attributes:
        runs: all runs, in the order of the settings.
        sensitivity: medians, quartiles and intervals over seeds, as data.
        paths: written files.
        failed: why runs failed, if some did.
    """

    runs: Runs
    sensitivity: "Sensitivity" = field(repr=False)
    paths: Sequence[Path] = ()
    failed: str | None = None

    @property
    def best(self) -> dict[str, Any]:
        """The best value on the x axis (`opt.lr` in most sweeps), by the curve's name.

        In a series whose further settings differ from point to point, it is a mapping with all of them.
        It was chosen on the same seeds, which is optimistic. None if a curve has no best: at every value, half of the
        seeds or more diverged, or a cap set the step size.
        """
        curves = self.sensitivity.curves
        points = {curve.name: (curve.x, None if curve.best is None else curve.points[curve.best]) for curve in curves}
        return {
            name: point and ({x: point.x, **point.others} if point.others else point.x)
            for name, (x, point) in points.items()
        }

    @property
    def table(self) -> Table:
        """One row per setting: median, quartiles over seeds, interval, diverged seeds."""
        from bench.sweeps.sensitivity import board

        return Table([board(self.sensitivity)])

    def figure(self) -> "alt.TopLevelMixin":
        """The final metric and the fraction of diverged seeds against the swept setting."""
        from bench.plots.sweep import sweep_figure
        from bench.text import CONVERGED

        return sweep_figure(self.sensitivity, CONVERGED).altair()

    def as_json(self) -> dict[str, Any]:
        """The curves, and where runs and files are."""
        from bench.sweeps.sensitivity import as_json

        out = self.paths[0].parent if self.paths else None
        return {**as_json(self.sensitivity), "store": self.runs[0].store, "out": out}

    def __str__(self) -> str:
        from bench.sweeps.sensitivity import lines

        text, files = lines(self.sensitivity), ", ".join(path.name for path in self.paths)
        if files:
            text.append(f"written to {self.paths[0].parent}: {files}; the runs are in {self.runs[0].store}")
        return "\n".join(text)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


class Study(Shown):
    """Result of tuning.

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
        self.result, self.store, self.folder = result, store, folder
        self.name, self.task, self.opt = result.study.name, result.spec.task, result.spec.opt
        self.score, self.code = result.score, int(result.best is None)
        self.trials, self.fresh = (Runs(Run(run, store) for run in runs) for runs in (result.runs, result.fresh))

    @property
    def best(self) -> dict[str, Any]:
        """The hyperparameters of the winner, as `bench.fit(task, opt, **study.best)` takes them.

        Raises:
            UserError: no trial has a score.
        """
        if self.result.best is None:
            raise UserError(f"study {self.name}: no trial has a score, so there is no winner")
        return self.result.hyperparameters

    def figure(self) -> "alt.TopLevelMixin":
        """The metric of the trials against the searched settings."""
        from bench.sweeps.sensitivity import analyse

        return Sweep(self.trials, analyse(self.result.runs, [*self.result.spec.axes], self.result.spec.mode)).figure()

    def as_json(self) -> dict[str, Any]:
        """Trials, winner and its fresh seeds."""
        from bench.tuning.tuned import as_json

        return as_json(self.result) | {"out": self.folder}

    def __str__(self) -> str:
        from bench.tuning.tuned import result_lines, trial_lines, use_line

        use = [] if self.folder is None else ["", f"use it: {use_line(self.folder, self.result.spec)}"]
        lines = [*trial_lines(self.result.record, self.result.runs), "", *result_lines(self.result)]
        return "\n".join([*map(clean, lines), *use])


@dataclass(frozen=True)
class Comparison(Shown):
    """Comparison of optimizers with a reference: all tuned with equal budgets and run on fresh seeds.

    Attributes:
        studies: results of tuning, by optimizer.
        verdicts: sentences, with the numbers of seeds that may decide open ones.
        boards: the board `quality`, as data; empty while no winner has run on fresh seeds.
        forest: its chart, as data.
        folder: of tables, plots and settings, if written.
    """

    studies: Mapping[str, Study]
    verdicts: Sequence[str]
    boards: Sequence[Board] = field(repr=False)
    forest: "Figure | None" = field(repr=False)
    folder: Path | None = None

    @property
    def code(self) -> int:
        """1 if an optimizer has no winner."""
        return max((study.code for study in self.studies.values()), default=0)

    @property
    def table(self) -> Table:
        """The board `quality`; UserError if no winner has run on fresh seeds."""
        if not self.boards:
            raise UserError("no winner has run on fresh seeds yet")
        return Table(self.boards)

    def figure(self) -> "alt.TopLevelMixin":
        """The effect size of each optimizer relative to the reference, with its interval.

        Raises:
            UserError: there is nothing to draw.
        """
        chart = self.forest
        if chart is None or not chart.drawn:
            raise UserError(f"nothing to draw: {'; '.join(chart.panels[0].notes) if chart else 'no fresh seeds'}")
        return chart.altair()

    def as_json(self) -> dict[str, Any]:
        """Studies, boards and verdicts."""
        studies = [{k: v for k, v in study.as_json().items() if k != "out"} for study in self.studies.values()]
        return {
            "out": self.folder, "studies": studies, "boards": as_json(self.boards), "said": [*self.verdicts]
        }  # fmt: skip

    def __str__(self) -> str:
        from bench.tuning.tuned import result_lines, use_line

        lines = [clean(line) for study in self.studies.values() for line in result_lines(study.result)]
        table = str(self.table) + "\n" if self.boards else "no winner has run on fresh seeds yet"
        tuned = [(s.folder, s.result.spec) for s in self.studies.values() if s.folder and not s.code]
        use = [f"use {spec.opt} as tuned: {use_line(folder, spec)}" for folder, spec in tuned]
        return "\n".join([*lines, "", table, *self.verdicts, *([""] * bool(use)), *use])

    def _repr_html_(self) -> str:
        return self.table._repr_html_() + "".join(f"<p>{html.escape(line)}</p>" for line in self.verdicts)
