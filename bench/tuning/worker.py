"""A worker: takes trials of studies, trains them, and records results, until nothing is left to do.

Several workers share studies. A worker that is asked to stop (SIGTERM, Ctrl-C, the end of its parent process) gives its
trial back; the other workers notice one that dies.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from bench.config.checks import check, check_engine
from bench.config.run_config import RunConfig, on_device, settings_of
from bench.errors import MAKE_ROOM, RunBusy, RunFailed, UserError, first_line
from bench.execute import Effort
from bench.execute.child import WorkerProgress
from bench.execute.choice import Choices
from bench.execute.execute import execute
from bench.machine import this_process
from bench.process import bench_command
from bench.progress import Progress
from bench.store.record import RunResult
from bench.store.store import Store
from bench.train.runner import run
from bench.train.stop import StopRequest
from bench.tuning.progress import cause_of
from bench.tuning.space import point_key
from bench.tuning.studies import disk_full
from bench.tuning.study import Study, value_of
from bench.tuning.trials import Trial

Tell = Callable[[Mapping[str, Any]], None]
"""Sends an event to the parent process: `trial`, `step`, `ended`, `say` and others."""

IDLE_SECONDS = 1.0
"""Seconds between checks of a study in which only other workers have work. Ours."""
MOST_FAILURES = 3
"""Points that fail here, without a success between, before a worker gives up; of two points that fail for one cause, as
many attempts. Ours."""


class Worker:
    """Works on studies until nothing is left to do.

    Args:
        places: paths of data and store.
        tell: called with events.
        effort: how runs are executed.
        shared_by: number of workers that share the trials; used if lanes take many at once.
        processes: number of processes of this machine that share the memory of a device.
    """

    def __init__(
        self, places: Mapping[str, Any], tell: Tell, effort: Effort, *, shared_by: int = 1, processes: int = 1
    ) -> None:
        self.places, self.tell, self.shared_by = places, tell, shared_by
        self.engine = effort.engine
        self.stop = StopRequest()
        self.me = this_process() | {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
        self._failures = set[str]()
        self._causes: list[str] = []
        self._choices = Choices(effort.engine, effort.width, lambda line: tell({"say": line}), processes, self.stop)

    def work(self, studies: Sequence[Study]) -> bool:
        """Take trials of the first study that has some, until all are finished; False if a signal asked to stop.

        So no worker waits for the last trials of a study while another study has some.

        Raises:
            UserError: trials cannot be trained here (data or a device are missing, the store cannot be written).
            RunFailed: several attempts in a row failed.
        """
        for study in studies:
            study.refuse_other_versions()
        self._several = len(studies) > 1
        lanes: dict[Study, int | None] = {study: None for study in studies if not study.finished()}
        with self.stop.listening():
            while lanes and self.stop.signal is None:
                if trials := self._take(lanes):
                    lanes[self.study] = self._make(trials, lanes[self.study])
                elif lanes and self.stop.signal is None:
                    self.tell({"idle": True})
                    time.sleep(IDLE_SECONDS)
        return not lanes

    def _take(self, lanes: dict[Study, int | None]) -> list[Trial]:
        """Trials of the first study that has some, which becomes `study`; finished studies are removed.

        Args:
            lanes: number of lanes by study; None if not yet known.
        """
        for self.study in [*lanes]:
            if lanes[self.study] is None:
                lanes[self.study] = self._lanes()
            if self.stop.signal is not None:
                break
            trials = self.study.claim(self.me, self.shared_by if lanes[self.study] else None)
            if trials:
                return trials
            if trials is None:
                del lanes[self.study]
        return []

    def _configs(self, trial: Trial) -> list[RunConfig]:
        return [on_device(self.study.spec.config(trial.point, seed, self.places)) for seed in trial.seeds]

    def _lanes(self) -> int | None:
        """The number of lanes to use: 0 if lanes do not pay, None while no trial waits to decide by."""
        waiting = [trial for trial in self.study.trials() if trial.state == "waiting"]
        if not waiting:
            return None
        configs = list[RunConfig]()
        for trial in waiting:
            try:
                configs += self._checked(trial)
            except UserError:
                if trial.kind not in ("extension", "refinement"):
                    raise  # before anything is trained
        if not configs:
            return None
        if configs[0].trainer.ranks > 1:
            if self.engine == "lanes":
                raise UserError("--engine lanes: lanes train together on one device, without --trainer.devices")
            return 0
        check_engine(self.engine, configs)
        choice = self._choices.of(configs)
        return choice.width if choice.lanes else 0

    def _make(self, trials: Sequence[Trial], lanes: int | None) -> int | None:
        """Train the trials and record failures with them. Returns the number of lanes for the next ones."""
        trials = [trial for trial in trials if self._legal(trial)]
        if not trials:
            return lanes
        for trial in trials:
            self.tell({"trial": self.identity(trial)})
        try:
            made = self._as_lanes(trials, lanes) if lanes else self._one_by_one(trials[0])
        except (KeyboardInterrupt, SystemExit):
            self.stop.signal = self.stop.signal or signal.SIGINT
            made = None
        except Exception as error:
            made, full = str(error) if isinstance(error, UserError) else first_line(error), disk_full(error)
            if full or (isinstance(error, UserError) and not isinstance(error, RunFailed)):  # no fault of the trials
                for trial in trials:
                    with suppress(RunFailed):  # the database is on the same disk
                        self.study.give_back(trial, f"the worker could not train it: {made}")
                if full:
                    raise RunFailed(f"the disk is full: {made.removesuffix(MAKE_ROOM)}{MAKE_ROOM}") from None
                raise
            if not isinstance(error, RunFailed):  # counts as a failed attempt, else it would be repeated for ever
                traceback.print_exc()
            elif len(trials) > 1:  # one of them may have caused the failure of all
                self.tell({"say": f"{made}; continuing with one trial at a time"})
                for trial in trials:
                    self.study.give_back(trial, made)
                return 0
        if isinstance(made, str):
            self._failures |= {f"{self.study.name} {point_key(trial.point)}" for trial in trials}
            self._causes.append(cause_of(made))
        else:
            self._failures, self._causes = set(), []
        for i, trial in enumerate(trials):
            if made is None:
                name = signal.Signals(self.stop.signal or signal.SIGTERM).name
                self.study.give_back(trial, f"the worker was stopped by {name}")
                self._ended(trial, "given back")
            elif isinstance(made, str):
                self.study.fail(trial, made)
                self._ended(trial, "failed", reason=made)
            elif self.study.complete(trial, made[i]):
                self._ended(trial, "completed", runs=[_shown(run, trial.fresh) for run in made[i]])
            else:
                self._ended(trial, "lost", reason="another worker took it")
        alike = len(self._failures) > 1 and self._causes[-MOST_FAILURES:] == self._causes[-1:] * MOST_FAILURES
        if len(self._failures) >= MOST_FAILURES or alike:
            raise RunFailed(f"{MOST_FAILURES} attempts in a row failed here, the last with: {made}")
        return lanes

    def _legal(self, trial: Trial) -> bool:
        """Whether a trial can be trained; fails it if not."""
        try:
            self._checked(trial)
        except UserError as error:
            self.study.fail(trial, str(error))
            self._ended(trial, "failed", reason=str(error))
            return False
        return True

    def _checked(self, trial: Trial) -> list[RunConfig]:
        """The configurations of a trial.

        Raises:
            UserError: it cannot be trained; an extension may leave a hyperparameter's legal range.
        """
        configs = self._configs(trial)
        for config in configs:
            check(config)
        return configs

    def identity(self, trial: Trial) -> dict[str, Any]:
        """A trial in events, with its optimizer if there are several studies."""
        own = {name: getattr(trial, name) for name in ("number", "fresh", "point", "kind", "seeds")}
        return own | ({"opt": self.study.spec.opt} if self._several else {})

    def _ended(self, trial: Trial, state: str, **told: object) -> None:
        self.tell({"ended": self.identity(trial), "state": state, **told})

    @property
    def _plan(self) -> str:
        return f"study {self.study.name}"

    def _as_lanes(self, trials: Sequence[Trial], width: int) -> list[list[RunResult]] | None:
        configs = [config for trial in trials for config in self._configs(trial)]
        show = WorkerProgress(self.tell, self.study.spec.mode)
        effort = Effort("lanes", width, workers="1")
        if not execute(configs, show, effort, plan=self._plan, stop=self.stop):
            return None
        by_id = Store(configs[0].store).finished_all(config.run_id for config in configs)
        return [[by_id[config.run_id] for config in self._configs(trial)] for trial in trials]

    def _one_by_one(self, trial: Trial) -> list[list[RunResult]] | None:
        """The runs of one trial, as a list of one list; None if a signal asked to stop."""
        results: list[RunResult] = []
        for config in self._configs(trial):
            ranks = config.trainer.ranks
            result = self._apart(config) if ranks > 1 else self._here(config, trial)
            if result is None or result.status == "killed":
                return None
            results.append(result)
            if self.stop.signal is not None:
                return None
        return [results]

    def _here(self, config: RunConfig, trial: Trial) -> RunResult | None:
        def progress(total: int, label: str) -> Progress:
            return _Shown(total, label, self, trial, config.seed)

        while self.stop.signal is None:
            try:
                return run(config, progress=progress, stop=self.stop, plan=self._plan)
            except RunBusy:  # another command trains it, or the trial's previous worker, on another machine
                time.sleep(IDLE_SECONDS)
        return None

    def _apart(self, config: RunConfig) -> RunResult | None:
        """A run on several devices as a separate process, which starts the other ranks."""
        store = Store(config.store)
        while (stored := store.get(config.run_id)) is not None and stored.status == "running":
            if self.stop.signal is not None:
                return None
            time.sleep(IDLE_SECONDS)  # its worker died, but the run continues
        if stored is not None and stored.finished:
            return stored
        path = config.store / f"{config.run_id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        settings = settings_of(config.model_dump(mode="json", exclude={"data", "store", "logger"}))
        path.write_text(json.dumps(settings), "utf-8")  # JSON is valid YAML
        command = bench_command("fit", "--config", str(path), "--json")
        command += ["--store", str(config.store), "--data", str(config.data)]
        with tempfile.TemporaryFile("w+") as said:  # not a pipe, which could fill up
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True)
            asked = False
            try:
                while process.poll() is None:
                    time.sleep(0.2)
                    if self.stop.signal is not None and not asked:
                        process.send_signal(signal.SIGTERM)
                        asked = True
            finally:
                path.unlink(missing_ok=True)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # remaining ranks
                process.wait()
            said.seek(0)
            lines = said.read().strip().splitlines()
        result = store.get(config.run_id)
        if result is not None and result.finished:
            return result
        if asked:
            return None
        last = lines[-1] if lines else f"exit code {process.returncode}"
        raise RunFailed(f"run {config.run_id} failed: {last.removeprefix('bench: error: ')}")


class _Shown(Progress):
    """Reports the progress of a run."""

    def __init__(self, total: int, label: str, worker: Worker, trial: Trial, seed: int) -> None:
        super().__init__(total, label, enabled=False)
        self.worker, self.trial, self.seed = worker, trial, seed
        self._told = 0.0

    def update(self, step: int, loss: float, applied_step: float, accuracy: Callable[[], float | None]) -> None:
        if time.monotonic() - self._told >= 0.5:
            self._told = time.monotonic()
            self._tell(step)

    def validated(self, step: int, split: str, values: dict[str, float]) -> None:
        spec = self.worker.study.spec
        metric = spec.metric
        if metric not in values:
            return
        self.score = values.get("excess", values[metric]) if metric == "loss" else values[metric]
        self._tell(step)

    def _tell(self, step: int) -> None:
        self.worker.tell(
            {
                "trial": self.worker.identity(self.trial),
                "seed": self.seed,
                "step": step,
                "total": self.total,
                "score": getattr(self, "score", None),
            }
        )


def _shown(result: RunResult, fresh: bool) -> dict[str, Any]:
    return {"status": result.status, "value": value_of(result, fresh), "wall_s": result.wall_s}
