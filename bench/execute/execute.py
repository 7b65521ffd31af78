"""`execute`: from wanted runs to stored ones, in this process or with workers on this machine."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench.callbacks import StopRequest
from bench.config import RunConfig
from bench.execute import Effort
from bench.execute.cuts import Cut, agree, cut, forget
from bench.execute.here import carry_out
from bench.execute.pool import Event, Pool, Worker
from bench.execute.slots import Slot, slots
from bench.progress import Advance, SweepProgress
from bench.store.record import RunResult
from bench.store.store import Store

STOPPED = "bench: stopped; what is finished is stored, and the same command goes on"


def execute(
    configs: Sequence[RunConfig],
    progress: SweepProgress,
    effort: Effort | None = None,
    *,
    plan: str | None = None,
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
        stop: by which somebody else may ask to stop, where this process alone works; it listens to signals as well.

    Raises:
        UserError: a run cannot be made, or not with this engine, or there are not so many devices.
        RunFailed: a run broke, the disk is full or gone, workers die as soon as they are started, or one lane alone
            needs more memory than there is.
    """
    effort, first = effort or Effort(), configs[0]
    cut_up = slots(effort.workers or ("auto" if first.device == "cuda" else "1"), first, len(configs))
    stop = stop or StopRequest()
    with stop.listening():
        if len(cut_up) > 1:
            torch.set_num_threads(cut_up[0].threads)  # what is measured is to hold for the workers
        path, cuts = cut(configs, progress, effort, workers=len(cut_up), plan=plan)
        runs = sum(len(each.runs) for each in cuts)
        if stop.signal is None:
            cuts = agree(path, cuts)
        if len(cut_up) == 1:
            with progress.showing(runs):
                carried_out = carry_out(cuts, progress, stop)
        else:
            carried_out = stop.signal is None
    if carried_out and len(cut_up) > 1:  # who hand the signals on
        with progress.showing(runs):
            carried_out = _with_workers(cuts, cut_up, first.task_spec.mode, progress)
    if carried_out:
        forget(path)
    return carried_out


def _with_workers(cuts: Sequence[Cut], cut_up: Sequence[Slot], mode: str, progress: SweepProgress) -> bool:
    """Share cuts out to workers; False if a signal asked to stop."""
    from bench.execute.child import as_line

    if not cuts:
        return True

    def hear(slot: int, event: Event) -> None:
        if "say" in event:
            progress.say(event["say"])
        if "doing" in event:
            progress.doing(slot, event["doing"])
        if "progress" in event:
            progress.add(slot, Advance(*event["progress"]))

    def died(worker: Worker, how: str) -> None:
        progress.add(worker.slot, Advance())
        progress.doing(worker.slot, "starting")

    with TemporaryDirectory() as folder, Pool(("worker", "--cuts", mode), cut_up, {}) as pool:
        path = Path(folder) / "cuts.json"
        path.write_text(as_line(cuts), "utf-8")
        return pool.work(str(path), hear, died, progress.say)


def results(configs: Sequence[RunConfig]) -> list[RunResult]:
    """The records of runs that are there, in their order; all have one store."""
    there = Store(configs[0].store).find_all(config.run_id for config in configs)
    return [there[config.run_id].runs[config.run_id] for config in configs if config.run_id in there]
