"""Return values of the API other than runs: tables, sweeps, studies and comparisons."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.api.figures import altair_chart
from bench.api.runs import Run, Runs
from bench.errors import UserError
from bench.output import ENDINGS
from bench.results.render import FORMATS, as_json, html_fragment, markdown, text
from bench.results.table import Board

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from bench.commands.comparison import Ranking
    from bench.sweeps.sensitivity import Curve, Sensitivity
    from bench.tuning.study import StudyResult


@dataclass(frozen=True)
class Table:
    """Tables under one title, such as a board; a notebook shows them as HTML, `print` as text.

    Attributes:
        board: title, tables and notes as data.
        notes: what was excluded, in words, in addition to the notes of the board itself.
    """

    board: Board = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """One line."""
        return self.board.title

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows as strict JSON: numbers are finite or None, intervals are mean, low, high and n.

        `table` is the title of the row's table.
        """
        return [
            {"table": table["title"], **row}
            for board in as_json([self.board])
            for table in board["tables"]
            for row in table["rows"]
        ]

    @property
    def table(self) -> "pd.DataFrame":
        """All rows with their values, under the columns' names; `table` is the title of the row's table."""
        return self.board.table

    def markdown(self) -> str:
        """As Markdown."""
        return markdown([self.board])

    def write(self, path: str | Path) -> None:
        """Write a file: Markdown, CSV, JSON, LaTeX or HTML by its suffix (.md, .csv, .json, .tex, .html), else text.

        Raises:
            UserError: it cannot be written.
        """
        path = Path(path)
        try:
            path.write_text(FORMATS[ENDINGS.get(path.suffix.lower(), "table")]([self.board]), "utf-8")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from None

    def __str__(self) -> str:
        return "\n".join([text([self.board]).rstrip("\n"), *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        return html_fragment([self.board, *([Board("notes", "", [], list(self.notes))] if self.notes else [])])


@dataclass(frozen=True)
class Sweep:
    """Dependence of results on the swept settings.

    Attributes:
        runs: all runs, in the order of the settings.
        sensitivity: medians, quartiles and intervals over seeds, as data.
    """

    runs: Runs
    sensitivity: "Sensitivity" = field(repr=False)

    @property
    def best(self) -> dict[str, Any]:
        """The best value on the x axis (`opt.lr` in most sweeps), by the curve's name.

        In a series whose further settings differ from point to point, it is a mapping with all of them.
        It was chosen on the same seeds, which is optimistic. None if a curve has no best: at every value, half of the
        seeds or more diverged, or a cap set the step size.
        """

        def best_of(curve: "Curve") -> Any:
            point = None if curve.best is None else curve.points[curve.best]
            return point and ({curve.x: point.x, **point.others} if point.others else point.x)

        return {curve.name: best_of(curve) for curve in self.sensitivity.curves}

    @property
    def table(self) -> Table:
        """One row per setting: median, quartiles over seeds, interval, diverged seeds."""
        from bench.sweeps.sensitivity import board

        return Table(board(self.sensitivity))

    def figure(self) -> "alt.TopLevelMixin":
        """The final metric and the fraction of diverged seeds against the swept setting."""
        from bench.plots.sweep import sweep_spec
        from bench.text import CONVERGED

        return altair_chart(sweep_spec(self.sensitivity, CONVERGED, live=True))

    def __str__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


@dataclass(frozen=True)
class Study:
    """Result of tuning.

    Attributes:
        result: the study's trials and scores, as data.
        store: the folder of its runs.
    """

    result: "StudyResult" = field(repr=False)
    store: Path
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.result.study.name)

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.result.spec.task

    @property
    def opt(self) -> str:
        """The name of its optimizer."""
        return self.result.spec.opt

    @property
    def best(self) -> dict[str, Any]:
        """The hyperparameters of the winner, as `bench.fit(task, opt, **study.best)` takes them.

        Raises:
            UserError: no trial has a score.
        """
        if self.result.best is None:
            raise UserError(f"study {self.name}: no trial has a score, so there is no winner")
        return self.result.hyperparameters

    @property
    def score(self) -> float | None:
        """The winner's median over the seeds of the trials, on the selection split; it is optimistic."""
        return self.result.score

    @cached_property
    def trials(self) -> Runs:
        """The runs of its trials."""
        return Runs([Run(run, self.store) for run in self.result.runs])

    @cached_property
    def fresh(self) -> Runs:
        """The winner's runs on fresh seeds, the results to report."""
        return Runs([Run(run, self.store) for run in self.result.fresh])

    @property
    def sweep(self) -> Sweep:
        """Dependence of the trials' results on the searched settings.

        Raises:
            UserError: no trial has ended.
        """
        return Sweep(self.trials, self.result.analyse())

    def figure(self) -> "alt.TopLevelMixin":
        """The metric of the trials against the searched settings."""
        return self.sweep.figure()

    def write(self, folder: str | Path = "tuned") -> list[Path]:
        """Write a plot and `TASK/OPT.yaml`, which `tuned=True` and `bench fit --tuned` read from `./tuned`.

        Raises:
            UserError: the folder cannot be written, or no trial has a score.
        """
        from bench.tuning import tuned

        return tuned.write(Path(folder), self.result, "bench.tune")

    def __str__(self) -> str:
        from bench.tuning import summary

        return "\n".join(summary.lines(self.result))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(frozen=True)
class Comparison:
    """Comparison of optimizers with a reference: all tuned with equal budgets and run on fresh seeds.

    Attributes:
        studies: results of tuning, by optimizer.
        verdicts: sentences, with the numbers of seeds that may decide open ones.
        ranking: the board and its chart, as data.
    """

    studies: Mapping[str, Study]
    verdicts: Sequence[str]
    ranking: "Ranking" = field(repr=False)

    @property
    def table(self) -> Table:
        """The board `quality`.

        Raises:
            UserError: no winner has run on fresh seeds.
        """
        if not self.ranking.boards:
            raise UserError("no winner has run on fresh seeds yet")
        return Table(self.ranking.boards[0])

    def figure(self) -> "alt.TopLevelMixin":
        """The effect size of each optimizer relative to the reference, with its interval.

        Raises:
            UserError: there is nothing to draw.
        """
        chart = self.ranking.forest
        if chart is None or not chart.drawn:
            raise UserError(
                "nothing to draw: " + ("no fresh seeds" if chart is None else "; ".join(chart.panels[0].notes))
            )
        return altair_chart(chart.spec())

    def __str__(self) -> str:
        return "\n".join([str(self.table), *self.verdicts])

    def _repr_html_(self) -> str:
        return self.table._repr_html_() + "".join(f"<p>{html.escape(line)}</p>" for line in self.verdicts)
