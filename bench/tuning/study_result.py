"""Results of a study: the winner with its score on fresh seeds, and the cost."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench.errors import UserError
from bench.results.group import Group, Measure, final
from bench.results.selection import GAP, End, above_infimum
from bench.results.stats import Interval
from bench.store.record import RunResult
from bench.store.reports import edges_of
from bench.sweeps import sensitivity
from bench.tuning.space import point_key
from bench.tuning.study import Study
from bench.tuning.trials import Trial


@dataclass(frozen=True)
class StudyResult:
    """Results of a study.

    Attributes:
        study: the study.
        scored: the settled trials of the design, one for each point, in the order of the design.
        refined: trials that TPE added.
        scores: of the points by `point_key`; None for those without one.
        best: the winner, or None if no trial has a score.
        fresh: the winner's completed runs on fresh seeds.
        fresh_failed: why runs on other fresh seeds failed, by seed.
        lr_at_boundary: whether a best value is at an edge of the tried ones (`edges_of`).
        missing: number of requested points that the study has not tried.
    """

    study: Study
    scored: list[Trial]
    refined: list[Trial]
    scores: Mapping[str, End]
    best: Trial | None
    fresh: list[RunResult]
    fresh_failed: Mapping[int, str]
    lr_at_boundary: bool
    missing: int

    @property
    def trials(self) -> list[Trial]:
        """The settled trials, those that TPE added last."""
        return [*self.scored, *self.refined]

    @property
    def added(self) -> dict[str, int]:
        """Numbers of trials beyond the design, by kind."""
        kinds = Counter(trial.kind for trial in self.trials)
        return {kind: kinds[kind] for kind in ("extension", "top-up", "refinement") if kinds[kind]}

    @property
    def runs(self) -> list[RunResult]:
        """All runs of the trials, without the fresh seeds."""
        return [run for trial in self.trials for run in trial.runs]

    @property
    def select_split(self) -> str:
        """The split on which its trials were compared; empty if unknown."""
        splits = {run.select_split for run in self.runs}
        return splits.pop() if len(splits) == 1 else ""

    @property
    def score(self) -> End:
        """The winner's score on the seeds of the trials, which is optimistic."""
        return None if self.best is None else self.scores[point_key(self.best.point)]

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The winner's hyperparameters, given or searched, as its runs parsed them; empty without a winner."""
        if self.best is None:
            return {}
        options = self.best.runs[0].config["opt_options"]
        given = [name for name in self.study.spec.chosen if name.startswith("opt.")]
        return {name[4:]: options[name[4:]] for name in (*given, *self.best.point)}

    @property
    def above_infimum(self) -> bool:
        """Whether scores and fresh values are suboptimality gaps."""
        return above_infimum([*self.runs, *self.fresh])

    @property
    def metric_suffix(self) -> str:
        """Text to append to the metric's name; may be empty."""
        return GAP * self.above_infimum

    @property
    def measure(self) -> Measure:
        """The metric on the reporting split."""
        return final(self.study.spec.metric, self.study.spec.mode, self.above_infimum)

    @property
    def fresh_values(self) -> list[End]:
        """The metric on the reporting split, by fresh seed; None for one that diverged."""
        return self.measure.values(Group.of(self.fresh))

    @property
    def fresh_interval(self) -> Interval | None:
        """Mean over the fresh seeds with its interval (`Measure.mean`); None if a seed diverged or none has run."""
        return self.measure.mean(Group.of(self.fresh))

    @property
    def cost(self) -> dict[str, float]:
        """Seconds of training and batch gradients (optimizer steps), of the trials and of the fresh seeds.

        Failed attempts are left out.
        """
        return {
            "trial_seconds": round(sum(run.wall_s for run in self.runs), 1),
            "trial_gradient_evaluations": sum(run.steps for run in self.runs),
            "fresh_seconds": round(sum(run.wall_s for run in self.fresh), 1),
            "fresh_gradient_evaluations": sum(run.steps for run in self.fresh),
        }


def study_result(study: Study) -> StudyResult:
    """The results of a study, finished or not.

    Raises:
        UserError: no trials were requested.
    """
    trials = study.trials()
    own = [trial for trial in trials if not trial.fresh]
    known = study.scores(own)
    scores = known.by_key
    request, spec = study.request, study.spec
    if request.trials < 1:
        raise UserError(
            f"study {study.name} exists but has no requested trials; the same `bench tune` command starts it"
        )
    wanted = spec.design.wanted(request.trials, request.total, known)
    last = {
        point_key(trial.point): trial for trial in own if trial.state != "failed" or point_key(trial.point) in scores
    }
    scored = [last[each.key] for each in wanted if each.key in scores]
    refined = [t for k, t in last.items() if t.kind == "refinement" and k in scores]
    best = study.best([*scored, *refined])
    winner = [trial for trial in trials if trial.fresh and best is not None and trial.point == best.point]
    fresh = sorted((trial for trial in winner if trial.state == "completed"), key=lambda trial: trial.seeds)
    again = {trial.seeds[0] for trial in winner if trial.state != "failed"}
    failed = {trial.seeds[0]: trial.reason or "" for trial in winner if trial.seeds[0] not in again}
    tried = [trial.point for trial in (*scored, *refined)]
    edge = best is not None and bool(edges_of(spec.axes, tried, best.point))
    runs = [run for trial in fresh for run in trial.runs]
    return StudyResult(study, scored, refined, scores, best, runs, failed, edge, len(wanted) - len(scored))


def analyse(found: StudyResult) -> sensitivity.Sensitivity:
    """How the result depends on the searched settings.

    Raises:
        UserError: no run has finished.
    """
    shown = sensitivity.analyse(found.runs, list(found.study.spec.axes), found.study.spec.mode)
    failed = {t.point[shown.x]: "failed" for t in found.trials if not t.runs and shown.x in t.point}
    if len(shown.curves) > 1:  # it is unknown which one a failed trial belongs to
        return shown
    return replace(shown, curves=[replace(curve, unscored={**failed, **curve.unscored}) for curve in shown.curves])
