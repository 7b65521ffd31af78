"""A study: which runs are wanted next, and what the stored ones show.

A study keeps no state: it is a pure function of its specification, its numbers of trials and the finished runs of the
store. So an interrupted command continues with the same runs, and runs of other commands are used where they fit.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from bench.config.checks import check, check_places
from bench.config.run_config import RunConfig
from bench.errors import RunBroke, UserError
from bench.execute.cluster import Crew
from bench.execute.execute import execute
from bench.progress import SweepProgress
from bench.results.group import Measure, final
from bench.results.selection import End, above_infimum, equal_below, score_of
from bench.store.record import RunResult
from bench.store.reports import StudyRecord, StudyTrial
from bench.store.stores import Contents
from bench.text import listed
from bench.tuning.design import Key, Point, Scores, Trial, point_key
from bench.tuning.spec import StudySpec


@dataclass
class Study:
    """A search with this number of trials, and at least `total` at the end; `places` are paths of data and store.

    Points of runs that `failed` in this command (why, by run id) have no score.
    """

    spec: StudySpec
    trials: int
    places: Mapping[str, Any]
    total: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    _configs: dict[tuple[Key, int], RunConfig] = field(default_factory=dict, init=False)

    def configs(self, point: Point, seeds: Sequence[int]) -> list[RunConfig]:
        """The runs of a point (`StudySpec.config`)."""
        keys = [(point_key(point), seed) for seed in seeds]
        for key in (key for key in keys if key not in self._configs):
            self._configs[key] = self.spec.config(point, key[1], self.places)
        return [self._configs[key] for key in keys]

    def stored(self, configs: Iterable[RunConfig]) -> dict[str, RunResult]:
        """Those of these runs that have finished, by id."""
        return Contents([self.places["store"]], (config.run_id for config in configs)).finished

    def ended(self, wanted: Sequence[Trial]) -> dict[Key, Trial]:
        """Those of these trials that have ended: with all runs stored, with a failed run, or illegal."""
        legal = [self._legal(trial) for trial in wanted]
        stored, ended = self.stored(config for configs, _ in legal for config in configs), dict[Key, Trial]()
        for trial, (configs, reason) in zip(wanted, legal, strict=True):
            runs = [stored[config.run_id] for config in configs if config.run_id in stored]
            reason = reason or next((self.failed[c.run_id] for c in configs if c.run_id in self.failed), "")
            if len(runs) == len(self.spec.seeds):
                ended[trial.key] = trial._replace(runs=runs)
            elif reason := reason or self._legal(trial, thoroughly=trial.kind != "design")[1]:
                ended[trial.key] = trial._replace(reason=reason)
        return ended

    def _legal(self, trial: Trial, *, thoroughly: bool = False) -> tuple[list[RunConfig], str]:
        """The runs of a point; none and a reason for an extension that leaves a hyperparameter's legal range."""
        try:
            configs = self.configs(trial.point, self.spec.seeds)
            if thoroughly:
                check(configs[0])  # imports torch
            return configs, ""
        except UserError as error:
            if trial.kind == "design":
                raise
            return [], str(error)

    def scores(self, trials: Collection[Trial]) -> Scores:
        """The known scores: medians over the seeds of the last evaluation on the selection split.

        A score is None if half of the seeds diverged or a run failed.
        """
        above = above_infimum([run for trial in trials for run in trial.runs])
        known = {trial.key: score_of(trial.runs, above, self.spec.mode) for trial in trials}
        return Scores(known, self.spec.mode, equal_below(known.values(), self.spec.metric))


class StudyResult:
    """What the stored runs of a study, finished or not, show, and which are wanted next: for at least `total` trials.

    Attributes:
        spec: what is searched.
        trials: those that have ended, in the order of the design.
        missing: the number of trials to come.
        scores: by `point_key`.
        best: the winner; None if no trial has a score.
        fresh, fresh_failed: its runs on fresh seeds; why others failed, by seed.
        todo: the runs wanted now, with stored ones of the same round.
    """

    def __init__(self, study: Study, total: int = 0) -> None:
        self.study, self.spec = study, study.spec
        tried, total = dict[Key, Trial](), max(total, study.total)
        while True:
            scores = study.scores(tried.values())
            wanted = self.spec.design.wanted(study.trials, total, scores)
            if not (ended := study.ended([trial for trial in wanted if trial.key not in tried])):
                break
            tried |= ended
        self.trials, self.scores = [tried[trial.key] for trial in wanted if trial.key in tried], scores.by_key
        self.missing = max(len(wanted), total) - len(self.trials)
        winner = self.spec.design.best([trial.point for trial in self.trials], scores)
        self.best = None if winner is None else tried[point_key(winner)]
        todo = [] if winner is None else study.configs(winner, self.spec.report_seeds)
        stored = study.stored(todo)
        self.fresh = [stored[config.run_id] for config in todo if config.run_id in stored]
        self.fresh_failed = {c.seed: study.failed[c.run_id] for c in todo if c.run_id in study.failed}
        if len(self.trials) < len(wanted):  # stored runs too, so an interrupted round is divided into the same blocks
            points = [trial.point for trial in wanted if trial.key not in tried or tried[trial.key].runs]
            todo = [config for point in points for config in study.configs(point, self.spec.seeds)]
        elif all(config.run_id in {*stored, *study.failed} for config in todo):
            todo = []
        self.todo = [config for config in todo if config.run_id not in study.failed]

    @property
    def runs(self) -> list[RunResult]:
        """The runs of all trials."""
        return [run for trial in self.trials for run in trial.runs]

    @property
    def score(self) -> End:
        """The winner's score on the seeds of the trials, which is optimistic."""
        return self.best and self.scores[self.best.key]

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The winner's hyperparameters, given or searched, as its runs parsed them; empty without a winner."""
        names = [name[4:] for name in (*self.spec.chosen, *self.spec.axes) if name.startswith("opt.")]
        return {} if self.best is None else {name: self.best.runs[0].config["opt_options"][name] for name in names}

    @property
    def measure(self) -> Measure:
        """The metric on the reporting split, or its suboptimality gap."""
        above = above_infimum([*self.runs, *self.fresh])
        return final(self.spec.metric, self.spec.mode, above)

    @property
    def record(self) -> StudyRecord:
        """The record for boards."""
        splits, trials = {run.select_split for run in self.runs}, list[StudyTrial]()
        for trial in self.trials:
            state, runs = "completed" if trial.runs else "failed", [run.run_id for run in trial.runs]
            point, score = dict(trial.point), self.scores[trial.key]
            trials.append({"point": point, "kind": trial.kind, "state": state, "score": score, "runs": runs})
        record = StudyRecord(
            name=self.spec.name,
            axes=list(self.spec.axes),
            trials=trials,
            winner=None if self.best is None else self.best.runs[0].run_id,
            lr_at_boundary=False,
            missing=self.missing,
            select_split=splits.pop() if len(splits) == 1 else "",
            **self.spec.model_dump(include={"task", "opt", "seeds", "mode", "sampler", "metric"}),
        )
        return replace(record, lr_at_boundary=bool(record.edges))


def results_of(studies: Sequence[Study]) -> list[StudyResult]:
    """The results of the studies of a task, all with as many trials as the largest; then their winners run.

    A grid whose best is at an edge grows, so budgets become equal only once trials have ended.
    """
    total = common_trials(studies)
    while True:
        results = [StudyResult(study, total) for study in studies]
        counts = {len(result.trials) for result in results}
        if any(result.missing for result in results):
            for result in results:
                result.todo = result.todo if result.missing else []  # fresh seeds wait
            return results
        if len(counts) == 1:
            return results
        total = common_trials(studies, max(counts))


def common_trials(studies: Sequence[Study], least: int = 0) -> int:
    """The smallest number of trials, at least `least`, that all studies of a task can have."""
    wanted = max(least, *(max(study.total, study.trials) for study in studies))
    step = math.lcm(*(study.spec.design.step for study in studies))
    return -(-wanted // step) * step


def carry_out(studies: Sequence[Study], crew: Crew, *, progress: bool = True) -> bool:
    """Tune the optimizers of a task with equal budgets, and run the winners; False if a signal asked to stop.

    Runs of all studies alternate, so that a budget of time is shared. A run that fails costs its point the score.
    """
    views = dict[str, SweepProgress]()
    while True:
        results = results_of(studies)
        todo = {f"study {result.spec.name}": result.todo for result in results if result.todo}
        configs = [config for row in zip_longest(*todo.values()) for config in row if config is not None]
        if not configs:
            return True
        check_places(configs)
        phase = "tuning" if any(result.missing for result in results) else "fresh seeds"
        label = f"{studies[0].spec.task}: {phase} of {listed([study.spec.opt for study in studies])}"
        view = views.setdefault(phase, SweepProgress(label, studies[0].spec.mode, enabled=progress))
        titles = {config.run_id: title for title, runs in todo.items() for config in runs}
        try:
            if not execute(configs, view, crew, plan=titles):
                return False
        except RunBroke as error:
            if not error.runs:
                raise
            for study in studies:
                study.failed |= error.runs
