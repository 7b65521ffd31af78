"""`execute`: from requested runs to stored ones, in this process or with workers on this machine."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

from bench.config.run_config import RunConfig, on_device
from bench.config.tuned import Sources
from bench.errors import UserError
from bench.execute import Effort
from bench.execute.cuts import cut, decisions
from bench.execute.here import train_cuts
from bench.execute.plan import Plan, forget_finished
from bench.execute.pool import Pool, WorkerProcess
from bench.execute.slots import Slot, sharing, slots
from bench.progress import Advance, SweepProgress
from bench.train.stop import StopRequest
from bench.train.threads import set_threads

STOPPED = "bench: stopped; finished runs are stored, and the same command continues"


def execute(
    configs: Sequence[RunConfig],
    progress: SweepProgress,
    effort: Effort | None = None,
    *,
    plan: str = "runs",
    sources: Sources | None = None,
    stop: StopRequest | None = None,
) -> bool:
    """Train missing runs, which have one store and one device; False if a signal asked to stop.

    A repeated command continues after an interruption: finished runs are not repeated, and a block of lanes
    continues from its checkpoint. A second process with the same runs shares the work.

    Raises:
        UserError: a run cannot be trained, or not with this engine, or there are too few devices.
        RunFailed: runs failed, the disk is full or gone, workers die at start, or a single lane needs more memory than
            available.
    """
    effort, first = effort or Effort(), on_device(configs[0])
    workers = effort.workers or ("auto" if first.device == "cuda" else "1")
    if workers.isdecimal() and int(workers) > len(configs):
        workers = str(len(configs))
    own_slots = slots(workers, first, len(configs))
    return _work(
        Plan(plan, configs, effort.engine, effort.width, len(own_slots), sources or {}),
        progress,
        own_slots,
        stop or StopRequest(),
    )


def _work(plan: Plan, progress: SweepProgress, own_slots: Sequence[Slot], stop: StopRequest) -> bool:
    """Train the missing runs of a plan, with a process for each slot; False if a signal asked to stop."""
    (own, *others), since = own_slots, time.time()
    pool = Pool(("runs",), dict(enumerate(others, 1)))
    with stop.listening(), pool, own.taken():
        if others and plan.missing():
            pool.start()  # they import torch while this process measures
            set_threads(own.threads)
        cuts = cut(plan, progress, stop, processes=sharing(own_slots))
        job = json.dumps({"plan": plan.as_json(), "cuts": decisions(cuts), "since": since}) if others else ""
        runs = sum(len(each.runs) for each in cuts)
        with progress.showing(runs, len(own_slots)), _helped(pool, job, progress, stop):
            made = train_cuts(plan, cuts, progress, stop, since=since)
        if stop.at_once:  # Lightning may have swallowed the interrupt
            pool.stop(0)
    if made:
        forget_finished(plan.store)
    return made


@contextmanager
def _helped(pool: Pool, job: str, progress: SweepProgress, stop: StopRequest) -> Iterator[None]:
    """Let workers train part of the runs while the context lasts; then ask them to stop."""
    over = Event()
    with ThreadPoolExecutor(1) as thread:
        helped = thread.submit(_let_help, pool, job, progress, lambda: over.is_set() or stop.signal is not None)
        try:
            yield
        finally:
            over.set()
    helped.result()


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
