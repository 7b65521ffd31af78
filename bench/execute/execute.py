"""`execute`: from wanted runs to stored ones, in this process or with workers on this machine."""

import json
import time
from collections.abc import Sequence

import torch

from bench.callbacks import StopRequest
from bench.config import RunConfig, on_device
from bench.errors import RunBroke, RunFailed, UserError
from bench.execute import Effort
from bench.execute.cuts import cut
from bench.execute.here import train_cuts
from bench.execute.plan import Plan, forget_finished
from bench.execute.pool import Event, Pool, WorkerProcess
from bench.execute.slots import Slot, slots
from bench.progress import Advance, SweepProgress

STOPPED = "bench: stopped; what is finished is stored, and the same command goes on"


def execute(
    configs: Sequence[RunConfig],
    progress: SweepProgress,
    effort: Effort | None = None,
    *,
    plan: str = "runs",
    tuned_by: str | None = None,
    stop: StopRequest | None = None,
) -> bool:
    """Make the runs that the store does not have; False if a signal asked to stop.

    An interrupted command goes on when it is given again: finished runs are not made again, and a block of lanes goes
    on from its checkpoint. A second process with the same runs takes what the first has not taken.

    Args:
        configs: the runs; all have one store and one device.
        progress: shows how far they are.
        effort: how they are made.
        plan: what the runs are made for (`RunResult.plan`).
        tuned_by: the study that their hyperparameters come from (`RunResult.tuned_by`).
        stop: by which somebody else may ask to stop, where this process alone works; it listens to signals as well.

    Raises:
        UserError: a run cannot be made, or not with this engine, or there are not so many devices.
        RunFailed: runs broke, the disk is full or gone, workers die as soon as they are started, or one lane alone
            needs more memory than there is.
    """
    effort, first = effort or Effort(), on_device(configs[0])
    own_slots = slots(effort.workers or ("auto" if first.device == "cuda" else "1"), first, len(configs))[
        : len(configs)
    ]
    wanted = Plan(plan, configs, effort.engine, effort.width, len(own_slots), tuned_by)
    return work(wanted, progress, own_slots, effort.memory, stop)


def work(
    plan: Plan,
    progress: SweepProgress,
    own_slots: Sequence[Slot] = (Slot(),),
    memory: int | None = None,
    stop: StopRequest | None = None,
) -> bool:
    """Make the runs of a plan that the store does not have; False if a signal asked to stop.

    Args:
        plan: which others may work on too.
        progress: shows how far it is.
        own_slots: what each process on this machine has; one process is this one.
        memory: bytes that all blocks of this machine together may take; 80 % of what is free by default.
        stop: as in `execute`.

    Raises:
        UserError: as in `execute`.
        RunFailed: as in `execute`.
    """
    stop = stop or StopRequest()
    if len(own_slots) > 1:
        made = _with_workers(plan, progress, own_slots, memory, stop)
    else:
        with stop.listening():
            cuts = cut(plan, progress, stop, memory=memory)
            runs = sum(len(each.runs) for each in cuts)
            with progress.showing(runs):
                made = train_cuts(cuts, progress, stop, begun=runs < len(plan.by_id))
    if made:
        forget_finished(plan.store)
    return made


def _with_workers(
    plan: Plan, progress: SweepProgress, own_slots: Sequence[Slot], memory: int | None, stop: StopRequest
) -> bool:
    """Let workers make the runs; False if a signal asked to stop."""
    broken, since = list[str](), time.time()

    def hear(slot: int, event: Event) -> None:
        if "say" in event:
            progress.say(event["say"])
        if "doing" in event:
            progress.doing(slot, event["doing"])
        if "progress" in event:
            progress.add(slot, Advance(*event["progress"]))
        if "broken" in event:
            broken.append(event["broken"])

    def died(worker: WorkerProcess, how: str) -> None:
        progress.add(worker.slot, Advance())
        progress.doing(worker.slot, "starting")

    first = plan.configs[0]
    places = {"data": str(first.data), "store": str(first.store), "logger": first.logger}
    with Pool(("worker", "--cuts"), own_slots, {}) as pool:
        with stop.listening():
            if plan.missing():
                pool.start(1)  # they import torch while this process measures in the place of the first
            torch.set_num_threads(own_slots[0].threads)  # what is measured is to hold for the workers
            with own_slots[0].taken():
                cuts = cut(plan, progress, stop, memory=memory, processes=len(own_slots))
        if stop.signal is not None or not cuts:
            return stop.signal is None
        try:
            with progress.showing(sum(len(each.runs) for each in cuts)):  # the pool hands signals on
                done = pool.work(json.dumps([plan.name, places, since]), hear, died, progress.say)
        except UserError:
            if plan.missing():
                raise
            return True  # others have made the last runs, and the plan is gone
    left = plan.missing() if done else {}
    if left and broken:
        raise RunBroke(f"{len(left)} of {len(plan.by_id)} runs broke: {', '.join(left)}; the first: {broken[0]}")
    if left:
        raise RunFailed(f"{len(left)} of {len(plan.by_id)} runs are missing; give the same command again")
    return done
