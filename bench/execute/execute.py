"""`execute`: from requested runs to stored ones, in this process or with workers on this machine."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Event
from typing import Any

from bench.config.run_config import RunConfig, on_device
from bench.config.tuned import Sources
from bench.errors import UserError
from bench.execute import Effort
from bench.execute.choice import Choice
from bench.execute.cuts import cut, decisions
from bench.execute.here import train_cuts
from bench.execute.plan import Plan, forget_finished
from bench.execute.pool import Pool, WorkerProcess
from bench.execute.slots import sharing, slots
from bench.progress import Advance, SweepProgress
from bench.train.stop import StopRequest
from bench.train.threads import set_threads

STOPPED = "bench: stopped; finished runs are stored, and the same command continues"


class Crew(AbstractContextManager["Crew"]):
    """The processes of this machine that train the runs of a command: this one, and a worker for each further slot.

    Args:
        workers: how many processes, or `auto` (`bench.execute.slots`).
        config: a run, with its device decided.
        runs: the number of runs, if known.

    Raises:
        UserError: there are too few devices.
    """

    def __init__(self, workers: str | None, config: RunConfig, runs: int | None = None) -> None:
        workers = workers or ("auto" if config.device == "cuda" else "1")
        if runs is not None and workers.isdecimal() and int(workers) > runs:
            workers = str(runs)
        self.slots = slots(workers, config, runs)
        self.pool = Pool(dict(enumerate(self.slots[1:], 1)))
        self.measured = dict[object, Choice]()
        self.trained = 0  # runs of all studies so far, for a budget of runs

    def __exit__(self, *error: Any) -> None:
        self.pool.__exit__(*error)


def execute(
    configs: Sequence[RunConfig],
    progress: SweepProgress,
    effort: Effort | None = None,
    *,
    plan: str | Mapping[str, str] = "runs",
    sources: Sources | None = None,
    stop: StopRequest | None = None,
    crew: Crew | None = None,
) -> bool:
    """Train missing runs, which have one store and one device; False if a signal asked to stop.

    A repeated command continues after an interruption: finished runs are not repeated, and a block of lanes
    continues from its checkpoint. A second process with the same runs shares the work.

    Args:
        configs: the runs, stored or not.
        progress: shows progress.
        effort: how they are executed.
        plan: purpose of all runs, or of each one by id (`RunResult.plan`).
        sources: the studies that found their hyperparameters (`RunResult.tuned_by`).
        stop: a stop request.
        crew: the processes, which stay for further runs; by default they end with these.

    Raises:
        UserError: a run cannot be trained, or not with this engine, or there are too few devices.
        RunBroke: runs failed.
        RunFailed: the first runs failed, the disk is full or gone, workers die at start, or a single lane needs more
            memory than available.
    """
    effort, first, stop = effort or Effort(), on_device(configs[0]), stop or StopRequest()
    with nullcontext(crew) if crew is not None else Crew(effort.workers, first, len(configs)) as workers:
        wanted = Plan(plan, configs, effort.engine, effort.width, len(workers.slots), sources or {})
        return _work(wanted, progress, workers, stop)


def _work(plan: Plan, progress: SweepProgress, crew: Crew, stop: StopRequest) -> bool:
    """Train the missing runs of a plan, with a process for each slot; False if a signal asked to stop."""
    (here, *others), pool, since = crew.slots, crew.pool, time.time()
    with stop.listening(), here.taken():
        if others and plan.missing():
            pool.start()  # they import torch while this process measures
            set_threads(here.threads)
        cuts = cut(plan, progress, stop, processes=sharing(crew.slots), measured=crew.measured)
        job = json.dumps({"plan": plan.as_json(), "cuts": decisions(cuts), "since": since}) if others else ""
        runs = sum(len(each.runs) for each in cuts)
        with progress.showing(runs, len(crew.slots)), _helped(pool, job, progress, stop):
            done = train_cuts(plan, cuts, progress, stop, since=since)
        if stop.at_once:  # Lightning may have swallowed the interrupt
            pool.stop(0)
    if done:
        forget_finished(plan.store)
    return done


@contextmanager
def _helped(pool: Pool, job: str, progress: SweepProgress, stop: StopRequest) -> Iterator[None]:
    """Let workers train part of the runs while the context lasts; an error asks them to stop."""
    over = Event()
    with ThreadPoolExecutor(1) as thread:
        helped = thread.submit(_let_help, pool, job, progress, lambda: over.is_set() or stop.signal is not None)
        try:
            yield
        except BaseException:
            over.set()
            raise
    helped.result()  # without an error, the workers find nothing left to do, and wait for the next runs


def _let_help(pool: Pool, job: str, progress: SweepProgress, stop: Callable[[], bool]) -> None:
    """Let workers train part of the runs; this process trains those that they cannot."""

    def hear(slot: int, event: Mapping[str, Any]) -> None:
        if "say" in event:
            progress.say(event["say"])
        if "doing" in event:
            progress.doing(slot, event["doing"])
        if "progress" in event:
            progress.add(slot, Advance(*event["progress"]))

    def died(worker: WorkerProcess, how: str) -> None:
        progress.add(worker.slot, Advance())
        progress.doing(worker.slot, "starting")

    try:
        pool.work(job, hear, died, progress.say, stop)
    except (UserError, OSError) as error:
        if not stop():
            progress.say(f"continuing without further workers: {error}")
        pool.stop()
