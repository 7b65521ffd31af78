"""A study: trials that several processes take from a database. Only this module and `studies.py` use optuna.

It is an Optuna study, so `optuna-dashboard` shows it, with one trial for each point of the search space. The runs of a
trial are attributes of the trial, so that a study is complete without the store of runs. The winner's runs on fresh
seeds form a second Optuna study, one trial per seed.

The next action is a pure function of the study's content (`Study.advance`), and every change of a trial's state happens
under one database lock, which is released when its process ends. So any process may be killed at any time.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from bench.errors import UserError
from bench.machine import lives
from bench.results.selection import (
    End,
    above_infimum,
    equal_below,
    final_value,
    is_capped,
    score_of,
    seed_median,
    selected,
)
from bench.store.load import Damaged
from bench.store.record import RunResult
from bench.text import plain
from bench.tuning.design import Scores, Wanted
from bench.tuning.rows import TrialRow
from bench.tuning.space import Axis, Point, Space, point_key
from bench.tuning.trials import Request, State, StudySpec, Trial, read_trial, versions_of
from optimizers import OPTIMIZERS, LogUniform
from optimizers.groups import REST
from tasks import TASKS

if TYPE_CHECKING:
    from bench.tuning.studies import Studies

REFINE_ROUND = 2
"""Trials that TPE suggests at once: more keep more workers busy, but use less information. Ours."""
FRESH = " (fresh seeds)"
"""Suffix of the name of the Optuna study with fresh seeds."""

DIRECTIONS = {"min": optuna.study.StudyDirection.MINIMIZE, "max": optuna.study.StudyDirection.MAXIMIZE}


class Study:
    """An existing study.

    Attributes:
        damaged: why trials are ignored as damaged, by whether they are of fresh seeds, and number.
    """

    def __init__(self, studies: "Studies", name: str, spec: StudySpec) -> None:
        self.studies, self.name, self.spec = studies, name, spec
        self.damaged = dict[tuple[bool, str], str]()
        self._ids = {fresh: studies.id_of(name + FRESH * fresh) for fresh in (False, True)}

    @property
    def _rdb(self) -> RDBStorage:
        """Optuna's storage, for writing; read-only studies have none."""
        return self.studies.rdb

    @property
    def request(self) -> Request:
        """The current request."""
        return self.studies.request_of(self.name)

    def ask(self, request: Request) -> Request:
        """Extend the request and return it: numbers never decrease, and other fields take the latest value."""
        with self.studies.changing():
            old = self.request
            grown = {name: max(getattr(old, name), getattr(request, name)) for name in ("trials", "total", "refine")}
            self.spec.design.wanted(grown["trials"], grown["total"])  # may raise
            new = request.model_copy(update=grown)
            self._rdb.set_study_user_attr(self._ids[False], "request", new.model_dump())
            return new

    def trials(self, *, fresh: bool | None = None) -> list[Trial]:
        """All attempts at all trials in their order, those of fresh seeds last, without damaged ones.

        Args:
            fresh: only those of fresh seeds (True), or only the others (False).
        """
        return [trial for part in (False, True) if fresh in (None, part) for trial in self._read(part)]

    def _read(self, fresh: bool, number: int | None = None) -> list[Trial]:
        """The undamaged trials of a part, or only the one with this number."""
        with self.studies.errors():
            rows = self.studies.rows.trials(self._ids[fresh], number)
        trials = []
        for row in rows:
            if "point" not in row.attributes:  # added with Optuna's own tools
                continue
            try:
                trials.append(read_trial(row, fresh, self.spec))
            except Damaged as error:
                self.damaged[fresh, row.number] = f"study {self.name}: {error}"
        return trials

    # -- what comes next ----------------------------------------------------------------------------------------------

    def scores(self, trials: Sequence[Trial]) -> Scores:
        """The known scores: medians over the seeds of the last evaluation on the selection split.

        A score is None if half of the seeds diverged, a cap set the step size (`is_capped`), or all attempts failed.

        Args:
            trials: of the design, all attempts.
        """
        retries = self.request.retries
        completed = [trial for trial in trials if trial.state == "completed"]
        above = above_infimum([run for trial in completed for run in trial.runs])
        failures: dict[str, int] = {}
        known: dict[str, End] = {}
        for trial in trials:
            key = point_key(trial.point)
            if trial.state == "completed":
                known[key] = score_of(trial.runs, above, self.spec.mode)
            elif trial.state == "failed":
                failures[key] = failures.get(key, 0) + 1
                if failures[key] > retries:
                    known.setdefault(key, None)
        capped = {point_key(trial.point) for trial in completed if is_capped(trial.runs)}
        return Scores(known, self.spec.mode, equal_below(known.values(), self.spec.metric), capped)

    def advance(self) -> list[Trial]:
        """Add the missing trials that are wanted now, release those of dead workers, and return all.

        Must be called under the lock.
        """
        for trial in self.trials():
            if trial.state == "running" and not lives(trial.worker):
                self._end(trial, TrialState.FAIL, reason="its worker died")
        trials = self.trials(fresh=False)
        request = self.request
        scores = self.scores(trials)
        known, wanted = scores.by_key, self.spec.design.wanted(request.trials, request.total, scores)
        seeds = self.spec.seeds
        added = self._add([(w, seeds) for w in wanted], trials, known)
        open_ = any(w.key not in known for w in wanted)
        if not open_ and request.refine:
            refined = {point_key(trial.point): trial.point for trial in trials if trial.kind == "refinement"}
            open_ = any(key not in known for key in refined)
            if not open_ and len(refined) < request.refine:
                more = self._suggest(known, min(REFINE_ROUND, request.refine - len(refined)))
                added = self._add([(Wanted(point, "refinement"), seeds) for point in more], trials, known) or added
                open_ = bool(more)
        trials = self.trials(fresh=False) if added else trials
        fresh = self.trials(fresh=True)
        counted = {wish.key for wish in wanted} | {point_key(t.point) for t in trials if t.kind == "refinement"}
        best = None if open_ or not request.report else self.best([t for t in trials if point_key(t.point) in counted])
        if best is not None:
            point = best.point
            wishes = [(Wanted(point, "fresh"), [seed]) for seed in self.spec.report_seeds]
            if self._add(wishes, fresh, {}):
                fresh = self.trials(fresh=True)
        return [*trials, *fresh]

    def finished(self) -> bool:
        """Whether nothing is left to do."""
        with self.studies.changing():
            return all(trial.state not in ("waiting", "running") for trial in self.advance())

    def refuse_other_versions(self) -> None:
        """Refuse to train for a study that began with another version of its task or optimizer.

        Raises:
            UserError: the versions differ; the message has both.
        """
        spec = self.spec
        rest = OPTIMIZERS.own.get(str(spec.settings.get(f"opt.{REST}")))
        here = versions_of(TASKS.get(spec.task), OPTIMIZERS.get(spec.opt), rest)
        if here != spec.versions:
            raise UserError(
                f"study {self.name} began with versions {spec.versions} of {spec.task} and {spec.opt}, and here are"
                f" {here}: their results cannot be mixed; start another study"
            )

    def best(self, trials: Sequence[Trial]) -> Trial | None:
        """The trial with the best score, of equals the middle one along the main axis; None if none has a score."""
        by_key = {point_key(trial.point): trial for trial in trials if trial.state == "completed"}
        best = self.spec.design.best([trial.point for trial in by_key.values()], self.scores(trials))
        return None if best is None else by_key[point_key(best)]

    def _add(
        self, wishes: Sequence[tuple[Wanted, list[int]]], trials: Sequence[Trial], known: Mapping[str, End]
    ) -> bool:
        """Enqueue wishes without a score that are neither waiting nor running and have attempts left; whether any."""
        fresh = bool(wishes) and wishes[0][0].kind == "fresh"
        attempts: dict[tuple[str, tuple[int, ...]], list[State]] = {}
        for trial in trials:
            attempts.setdefault(trial.key, []).append(trial.state)
        retries, added = self.request.retries, False
        for wish, seeds in wishes:
            states = attempts.get((wish.key, tuple(seeds)), [])
            if wish.key in known or any(state != "failed" for state in states) or len(states) > retries:
                continue
            self._rdb.create_new_trial(self._ids[fresh], _template(wish, seeds, self.spec.axes))
            added = True
        return added

    def _suggest(self, known: Mapping[str, End], count: int) -> list[Point]:
        """Points that TPE suggests around the best, from the known scores."""
        trials = self.trials(fresh=False)
        best = self.best(trials)
        if best is None:
            return []
        study = optuna.create_study(
            direction=DIRECTIONS[self.spec.mode],
            sampler=optuna.samplers.TPESampler(seed=len(known), n_startup_trials=0),
        )
        space = self.spec.design.around(best.point)
        near = {name: _distribution(axis) for name, axis in space.items()}
        for trial in trials:
            value = known.get(point_key(trial.point))
            if trial.state == "completed" and all(_within(trial.point[name], axis) for name, axis in space.items()):
                study.add_trial(create_trial(params=trial.point, distributions=near, value=self._number(value)))
        points: dict[str, Point] = {}
        for _ in range(20 * count):
            trial = study.ask(near)
            point = {name: float(f"{x:.4g}") if isinstance(x, float) else x for name, x in trial.params.items()}
            if point_key(point) not in known:
                points.setdefault(point_key(point), point)
            if len(points) == count:
                break
        return list(points.values())

    # -- a worker's part ----------------------------------------------------------------------------------------------

    def claim(self, worker: Mapping[str, Any], shared_by: int | None = None) -> list[Trial] | None:
        """Take a waiting trial; an empty list if other workers still train, None if nothing is left to do.

        Args:
            worker: the process that takes it (`bench.machine.this_process`).
            shared_by: if given, take an equal share of the trials for this number of workers.
        """
        with self.studies.changing():
            trials = self.advance()
            waiting = [trial for trial in trials if trial.state == "waiting"]
            waiting = [trial for trial in waiting if trial.fresh == waiting[0].fresh]
            running = [trial for trial in trials if trial.state == "running"]
            count = math.ceil((len(waiting) + len(running)) / shared_by) if shared_by else 1
            waiting = waiting[:count]
            for trial in waiting:
                number = self._id(trial)
                self._rdb.set_trial_user_attr(number, "worker", dict(worker))
                if trial.reason is not None:  # of an earlier return
                    self._rdb.set_trial_user_attr(number, "reason", None)
                self._rdb.set_trial_state_values(number, TrialState.RUNNING)
                trial.state, trial.worker, trial.reason = "running", dict(worker), None
            return waiting if waiting or running else None

    def complete(self, trial: Trial, runs: Sequence[RunResult]) -> bool:
        """Record the result of a trial; False if it is no longer its worker's."""
        value = self._number(seed_median([value_of(run, trial.fresh) for run in runs], self.spec.mode))
        with self.studies.changing():
            return self._end(trial, TrialState.COMPLETE, runs=runs, value=value)

    def fail(self, trial: Trial, reason: str) -> bool:
        """Record a failed attempt; `advance` retries unless it was the last."""
        with self.studies.changing():
            return self._end(trial, TrialState.FAIL, reason=reason)

    def give_back(self, trial: Trial, reason: str) -> bool:
        """Return a trial to the queue, since the worker was asked to stop; it does not count as an attempt."""
        with self.studies.changing():
            return self._end(trial, TrialState.WAITING, reason=reason)

    def _end(
        self,
        trial: Trial,
        state: TrialState,
        *,
        value: float | None = None,
        reason: str | None = None,
        runs: Sequence[RunResult] = (),
    ) -> bool:
        number = self._id(trial)
        now = self._read(trial.fresh, trial.number)
        if not now or now[0].state != "running" or now[0].worker != trial.worker:
            return False
        if runs:
            kept = [plain(vars(run) | {"validations": run.validations[-1:]}) for run in runs]
            try:
                read_trial(_row(trial, state, kept), trial.fresh, self.spec)
            except Damaged as error:  # unreadable, so that it would be repeated for ever
                state, value, reason = TrialState.FAIL, None, f"its result cannot be stored: {error.why}"
            else:
                self._rdb.set_trial_user_attr(number, "runs", kept)
        if reason is not None:
            self._rdb.set_trial_user_attr(number, "reason", reason)
        self._rdb.set_trial_state_values(number, state, None if value is None else [value])
        return True

    def _number(self, value: End) -> float:
        """A value for Optuna: infinitely bad if there is none."""
        return value if value is not None else math.inf if self.spec.mode == "min" else -math.inf

    def _id(self, trial: Trial) -> int:
        return self._rdb.get_trial_id_from_study_id_trial_number(self._ids[trial.fresh], trial.number)


def _row(trial: Trial, state: TrialState, runs: list[dict[str, Any]]) -> TrialRow:
    """A trial as stored with these runs."""
    own = {"point": trial.point, "kind": trial.kind, "seeds": trial.seeds, "runs": runs}
    attributes = {key: json.dumps(value).encode() for key, value in own.items()}
    return TrialRow(str(trial.number), state.name, attributes)


def _template(wish: Wanted, seeds: list[int], axes: Space) -> FrozenTrial:
    return create_trial(
        state=TrialState.WAITING,
        params=dict(wish.point),
        distributions={name: _distribution(axis, wish.point[name]) for name, axis in axes.items()},
        user_attrs={"point": dict(wish.point), "kind": wish.kind, "seeds": list(seeds)},
    )


def _distribution(axis: Axis, value: Any = None) -> optuna.distributions.BaseDistribution:
    """An axis as an Optuna distribution that includes the value: extensions leave the range."""
    if not isinstance(axis, LogUniform):
        return optuna.distributions.CategoricalDistribution(axis)
    ends = [axis.low, axis.high] + [value] * (value is not None)
    return optuna.distributions.FloatDistribution(min(ends), max(ends), log=True)


def _within(value: Any, axis: Axis) -> bool:
    return axis.low <= value <= axis.high if isinstance(axis, LogUniform) else value in axis


def value_of(run: RunResult, fresh: bool) -> End:
    """The value of a run in Optuna's dashboard.

    It is the last evaluation on the selection split, or the final value on the reporting split for a fresh seed.
    """
    above = above_infimum([run])
    return final_value(run, above) if fresh else selected(run, above)
