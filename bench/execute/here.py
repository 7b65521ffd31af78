"""Runs made in this process: as lanes where that pays and one after the other elsewhere."""

import gc
import time
from collections.abc import Collection, Sequence
from math import inf

from bench.callbacks import StopRequest
from bench.config import RunConfig
from bench.errors import RunBusy, RunFailed, first_line
from bench.execute.blocks import rectangles
from bench.execute.cuts import Cut
from bench.lanes.runs import train_block
from bench.memory import give_back, keep_freed_memory, ran_out
from bench.progress import SweepProgress
from bench.runner import run
from bench.store.record import FINISHED
from bench.store.store import Store


def carry_out(cuts: Sequence[Cut], progress: SweepProgress, stop: StopRequest) -> bool:
    """Make runs that the store does not have; False if a signal asked to stop.

    Other processes may do the same with the same cuts: each takes what the others have not taken.

    Args:
        cuts: what to make, and how.
        progress: shows how far it is.
        stop: asked by a signal.

    Raises:
        UserError: a run cannot be made.
        RunFailed: a run broke, the disk is full or gone, or one lane alone needs more memory than there is.
    """
    keep_freed_memory()
    make = {True: _as_lanes, False: _one_by_one}
    return all(make[cut.lanes](cut, progress, stop) for cut in cuts)


def _as_lanes(cut: Cut, progress: SweepProgress, stop: StopRequest) -> bool:
    """Train blocks of lanes; False if a signal asked to stop."""
    store, blocks = Store(cut.runs[0].store), [[config for row in grid for config in row] for grid in cut.blocks]
    left = {config.run_id: config for config in cut.runs}
    widest, short, trained, waiting = inf, False, set[str](), False
    while True:
        if short:
            gc.collect()  # what the error has left behind
            give_back()
            short = False
        others = store.unfinished()  # before the records: what ends in between is then known to have ended
        there = store.find_all(left)
        stored = {run_id: block.runs[run_id] for run_id, block in there.items()}
        ended = {run_id: result for run_id, result in stored.items() if result.status in FINISHED}
        if elsewhere := [result for run_id, result in ended.items() if run_id not in trained]:
            progress.advance(0, 0, elsewhere)
        left = {run_id: config for run_id, config in left.items() if run_id not in ended}
        if not left:
            return True
        if stop.signal is not None:
            return False
        # What was begun on its own (`bench fit`) goes on so: its checkpoint is of it alone.
        alone = {run_id for run_id, result in stored.items() if result.engine != "lanes"}
        fresh = {run_id: config for run_id, config in left.items() if run_id not in alone}
        if not fresh:
            return _each(list(left.values()), progress, stop, cut.plan)
        busy = {run_id for block in (*others, *there.values()) if block.busy for run_id in block.runs}
        # What a killed process left comes first: it is part of the way.
        begun = (block.runs for block in others if not block.busy and block.runs.keys() <= fresh.keys())
        begun = [[fresh[run_id] for run_id in run_ids] for run_ids in begun if len(run_ids) <= widest]
        free = ([run for run in block if run.run_id in fresh and run.run_id not in busy] for block in blocks)
        grid = next((next(rectangles(block, len(block))) for block in (*begun, *free) if block), None)
        if grid is None:
            waiting = _wait(fresh, waiting, progress)
            continue
        waiting = False
        try:
            results = train_block(grid, stop, progress, compiled=cut.compiled, plan=cut.plan)
            if results is None:
                return False
            trained |= {result.run_id for result in results}
        except RunBusy:
            time.sleep(0.1)
        except (MemoryError, RuntimeError) as error:
            count = sum(map(len, grid))
            if not ran_out(error):
                raise
            if count == 1:
                raise RunFailed(
                    f"run {grid[0][0].run_id} alone needs more memory than there is: {first_line(error)}"
                ) from None
            widest, short = count // 2, True
            blocks = [part for block in blocks for part in _parts(block, widest)]
            progress.say(f"{count} lanes at once need more memory than there is; going on with {widest}")


def _wait(runs: Collection[object], waiting: bool, progress: SweepProgress) -> bool:
    """Wait for other processes, and say so the first time."""
    if not waiting:
        progress.say(f"waiting for {len(runs)} runs that other processes train")
    time.sleep(0.5)
    return True


def _parts(block: Sequence[RunConfig], width: int) -> list[list[RunConfig]]:
    """The runs in pieces of at most this width, row by row."""
    return [[run for row in grid for run in row] for grid in rectangles(block, width)]


def _one_by_one(cut: Cut, progress: SweepProgress, stop: StopRequest) -> bool:
    return _each(cut.runs, progress, stop, cut.plan)


def _each(left: Sequence[RunConfig], progress: SweepProgress, stop: StopRequest, plan: str | None) -> bool:
    """Train runs one after the other; False if a signal asked to stop."""
    waiting = False
    while left:
        busy: list[RunConfig] = []
        for config in left:
            if stop.signal is not None:
                return False
            try:
                result = run(config, progress=False, plan=plan)
            except RunBusy:
                busy.append(config)
                continue
            except KeyboardInterrupt:
                return False
            if result.status == "killed":
                return False
            progress.advance(result.steps, 1, [result])
        if busy:
            waiting = _wait(busy, waiting and len(busy) == len(left), progress)
        left = busy
    return True
