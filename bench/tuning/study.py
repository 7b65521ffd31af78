"""A study: which runs are wanted next, and what the stored ones show.

A study keeps no state: it is a pure function of its specification, its numbers of trials and the finished runs of the
store. So an interrupted command continues with the same runs, and runs of other commands are used where they fit.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from bench.config.checks import check
from bench.config.run_config import RunConfig
from bench.errors import UserError
from bench.results.group import Group, Measure, final
from bench.results.selection import GAP, End, above_infimum, equal_below, is_capped, score_of
from bench.results.stats import Interval
from bench.store.record import RunResult
from bench.store.reports import edges_of
from bench.store.store import Store
from bench.sweeps import sensitivity
from bench.tuning.design import Kind, Scores, Wanted
from bench.tuning.space import Key, Point, point_key
from bench.tuning.spec import StudySpec


@dataclass(frozen=True)
class Trial:
    """A tried point.

    Attributes:
        point: settings in dotted form.
        kind: why it was tried.
        runs: finished runs, one for each tuning seed; empty if it failed.
        reason: why it failed.
    """

    point: Point
    kind: Kind
    runs: Sequence[RunResult] = ()
    reason: str = ""

    @property
    def state(self) -> Literal["completed", "failed"]:
        """Whether it has runs."""
        return "completed" if self.runs else "failed"


@dataclass
class Study:
    """A study.

    Attributes:
        spec: what is searched.
        trials: number of points of its design.
        places: paths of data and store.
        total: minimum number of points at the end (`bench.tuning.design.Design.wanted`).
        report: whether the winner is run on the fresh seeds.
        failed: why runs failed in this command, by run id; their points have no score.
    """

    spec: StudySpec
    trials: int
    places: Mapping[str, Any]
    total: int = 0
    report: bool = True
    failed: dict[str, str] = field(default_factory=dict)
    _configs: dict[tuple[Key, int], RunConfig] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the study, from its specification."""
        return self.spec.name

    @property
    def store(self) -> Store:
        """Where its runs are."""
        return Store(self.places["store"])

    def config(self, point: Point, seed: int) -> RunConfig:
        """See `StudySpec.config`."""
        key = point_key(point), seed
        if key not in self._configs:
            self._configs[key] = self.spec.config(point, seed, self.places)
        return self._configs[key]

    def result(self) -> "StudyResult":
        """What the stored runs show, and which runs are wanted next."""
        tried: dict[Key, Trial] = {}
        while True:
            scores = self._scores(tried.values())
            wanted = self.spec.design.wanted(self.trials, self.total, scores)
            new = self._read([candidate for candidate in wanted if candidate.key not in tried])
            if not new:
                break
            tried |= new
        trials = [tried[candidate.key] for candidate in wanted if candidate.key in tried]
        missing = len(wanted) - len(trials)
        best = self.spec.design.best([trial.point for trial in trials], scores)
        fresh = [] if best is None else [self.config(best, seed) for seed in self.spec.report_seeds]
        stored = self.store.finished_all(config.run_id for config in fresh)
        todo = list[RunConfig]()
        if missing:  # stored runs too, so that an interrupted round is divided into the same blocks
            points = [new.point for new in wanted if new.key not in tried or tried[new.key].runs]
            todo = [self.config(point, seed) for point in points for seed in self.spec.seeds]
        elif self.report and any(config.run_id not in {*stored, *self.failed} for config in fresh):
            todo = fresh
        return StudyResult(
            study=self,
            trials=trials,
            scores=scores.by_key,
            best=None if best is None else tried[point_key(best)],
            fresh=[stored[config.run_id] for config in fresh if config.run_id in stored],
            missing=missing,
            todo=[config for config in todo if config.run_id not in self.failed],
        )

    def _read(self, wanted: Sequence[Wanted]) -> dict[Key, Trial]:
        """The trials of these points that have ended: with all runs stored, with a failed run, or illegal.

        An extension may leave a hyperparameter's legal range.

        Raises:
            UserError: a point of the design itself is illegal.
        """
        trials, configs = dict[Key, Trial](), dict[Key, list[RunConfig]]()
        for candidate in wanted:
            try:
                configs[candidate.key] = [self.config(candidate.point, seed) for seed in self.spec.seeds]
            except UserError as error:
                trials[candidate.key] = _illegal(candidate, error)
        stored = self.store.finished_all(config.run_id for several in configs.values() for config in several)
        for candidate in wanted:
            ids = [config.run_id for config in configs.get(candidate.key, [])]
            failed = next((self.failed[run_id] for run_id in ids if run_id in self.failed), "")
            if failed:
                trials[candidate.key] = Trial(candidate.point, candidate.kind, reason=failed)
            elif ids and all(run_id in stored for run_id in ids):
                trials[candidate.key] = Trial(candidate.point, candidate.kind, [stored[run_id] for run_id in ids])
            elif ids and candidate.kind != "design":
                try:
                    check(configs[candidate.key][0])
                except UserError as error:
                    trials[candidate.key] = _illegal(candidate, error)
        return trials

    def _scores(self, trials: Collection[Trial]) -> Scores:
        """The known scores: medians over the seeds of the last evaluation on the selection split.

        A score is None if half of the seeds diverged, a cap set the step size (`is_capped`), or a run failed.
        """
        above = above_infimum([run for trial in trials for run in trial.runs])
        known: dict[Key, End] = {
            point_key(trial.point): score_of(trial.runs, above, self.spec.mode) if trial.runs else None
            for trial in trials
        }
        capped = {point_key(trial.point) for trial in trials if trial.runs and is_capped(trial.runs)}
        return Scores(known, self.spec.mode, equal_below(known.values(), self.spec.metric), capped)


@dataclass(frozen=True)
class StudyResult:
    """Results of a study, finished or not.

    Attributes:
        study: the study.
        trials: the tried points, in the order of the design.
        scores: of the points by `point_key`; None for those without one.
        best: the winner, or None if no trial has a score.
        fresh: the winner's runs on fresh seeds.
        missing: number of wanted points that have not been tried.
        todo: the runs that are wanted now, with stored ones of the same round; empty if nothing is left to do.
    """

    study: Study
    trials: list[Trial]
    scores: Mapping[Key, End]
    best: Trial | None
    fresh: list[RunResult]
    missing: int
    todo: list[RunConfig]

    @property
    def spec(self) -> StudySpec:
        """What is searched."""
        return self.study.spec

    @property
    def lr_at_boundary(self) -> bool:
        """Whether a best value is at an edge of the tried ones (`edges_of`)."""
        points = [trial.point for trial in self.trials]
        return self.best is not None and bool(edges_of(self.spec.axes, points, self.best.point))

    @property
    def added(self) -> dict[str, int]:
        """Numbers of trials beyond the design, by kind."""
        kinds = Counter(trial.kind for trial in self.trials)
        return {kind: kinds[kind] for kind in ("extension", "top-up") if kinds[kind]}

    @cached_property
    def runs(self) -> list[RunResult]:
        """All runs of the trials, without the fresh seeds."""
        return [run for trial in self.trials for run in trial.runs]

    @property
    def fresh_failed(self) -> dict[int, str]:
        """Why runs on fresh seeds failed, by seed."""
        if self.best is None:
            return {}
        ids = {self.study.config(self.best.point, seed).run_id: seed for seed in self.spec.report_seeds}
        return {ids[run_id]: why for run_id, why in self.study.failed.items() if run_id in ids}

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
        given = [name for name in self.spec.chosen if name.startswith("opt.")]
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
        return final(self.spec.metric, self.spec.mode, self.above_infimum)

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
        """Seconds of training and batch gradients (optimizer steps), of the trials and of the fresh seeds."""
        return {
            "trial_seconds": round(sum(run.wall_s for run in self.runs), 1),
            "trial_gradient_evaluations": sum(run.steps for run in self.runs),
            "fresh_seconds": round(sum(run.wall_s for run in self.fresh), 1),
            "fresh_gradient_evaluations": sum(run.steps for run in self.fresh),
        }

    def analyse(self) -> sensitivity.Sensitivity:
        """How the result depends on the searched settings.

        Raises:
            UserError: no run has finished.
        """
        shown = sensitivity.analyse(self.runs, list(self.spec.axes), self.spec.mode)
        failed = {t.point[shown.x]: "failed" for t in self.trials if not t.runs and shown.x in t.point}
        if len(shown.curves) > 1:  # it is unknown which one a failed trial belongs to
            return shown
        return replace(shown, curves=[replace(curve, unscored={**failed, **curve.unscored}) for curve in shown.curves])


def _illegal(wanted: Wanted, error: UserError) -> Trial:
    """A trial of an illegal point, which a design grew into; raises the error if it belongs to the design itself."""
    if wanted.kind == "design":
        raise error
    return Trial(wanted.point, wanted.kind, reason=str(error))
