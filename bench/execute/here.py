"""Runs made in this process: as lanes where that pays and one after the other elsewhere."""

import gc
import time
from collections.abc import Collection, Sequence
from math import inf

from bench.callbacks import StopRequest
from bench.config import RunConfig
from bench.errors import RunBroke, RunBusy, RunFailed, first_line
from bench.execute.blocks import rectangles
from bench.execute.cuts import Cut
from bench.lanes.runs import train_block
from bench.memory import give_back, keep_freed_memory, ran_out
from bench.progress import SweepProgress
from bench.runner import run
from bench.store.block import Block
from bench.store.record import FINISHED
from bench.store.store import Store

MOST_BROKEN = 3
"""Runs or blocks that break, before one has ended, until all is given up. Ours."""


def carry_out(cuts: Sequence[Cut], progress: SweepProgress, stop: StopRequest, *, begun: bool = False) -> bool:
    """Make runs that the store does not have; False if a signal asked to stop.

    Other processes may do the same with the same cuts: each takes what the others have not taken.

    Args:
        cuts: what to make, and how.
        progress: shows how far it is.
        stop: asked by a signal.
        begun: whether some runs have ended before, so that not all can break.

    Raises:
        UserError: a run cannot be made.
        RunFailed: runs broke, the disk is full or gone, or one lane alone needs more memory than there is.
    """
    keep_freed_memory()
    broken = Broken(progress, hopeful=begun)
    done = all((_as_lanes if cut.lanes else _one_by_one)(cut, progress, stop, broken) for cut in cuts)
    if done:
        broken.tell()
    return done


class Broken:
    """Runs that broke: a plug-in may fail with one learning rate and not with others.

    Args:
        progress: hears of them.
        hopeful: whether a run of the plan has ended.
    """

    def __init__(self, progress: SweepProgress, *, hopeful: bool) -> None:
        self._progress, self._hopeful = progress, hopeful
        self._errors: list[RunBroke] = []

    def add(self, error: RunBroke, *, more: bool) -> None:
        """Keep the error for the end, or raise it if all would break: so many have, and none has ended.

        Args:
            error: which names the runs.
            more: whether others are to be made after them.
        """
        self._errors.append(error)
        if len(self._errors) == MOST_BROKEN and not self._hopeful:
            raise RunFailed(f"the first {MOST_BROKEN} broke, the last of them: {error}") from error
        if more:
            self._progress.say(f"{error}; going on with the others")

    def ended(self) -> None:
        """A run has ended well."""
        self._hopeful = True

    def tell(self) -> None:
        """Raise what was kept."""
        if self._errors:
            many = f"{len(self._errors)} times something broke, first: " if len(self._errors) > 1 else ""
            raise RunBroke(f"{many}{self._errors[0]}") from self._errors[0]


def _as_lanes(cut: Cut, progress: SweepProgress, stop: StopRequest, broken: Broken) -> bool:
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
            return _each(list(left.values()), cut, progress, stop, broken)
        busy = {run_id for block in (*others, *there.values()) if block.busy for run_id in block.runs}
        # What a killed process left comes first: it is part of the way.
        # A block that broke comes last: it may do so again.
        idle = sorted((block for block in others if not block.busy), key=_has_failed)
        begun = (block.runs for block in idle if block.runs.keys() <= fresh.keys())
        begun = [[fresh[run_id] for run_id in run_ids] for run_ids in begun if len(run_ids) <= widest]
        free = ([run for run in block if run.run_id in fresh and run.run_id not in busy] for block in blocks)
        grid = next((next(rectangles(block, len(block))) for block in (*begun, *free) if block), None)
        if grid is None:
            waiting = _wait(fresh, waiting, progress)
            continue
        waiting = False
        try:
            results = train_block(grid, stop, progress, compiled=cut.compiled, plan=cut.plan, tuned_by=cut.tuned_by)
            if results is None:
                return False
            trained |= {result.run_id for result in results}
            broken.ended()
        except RunBusy:
            time.sleep(0.1)
        except RunBroke as error:
            own = {config.run_id for row in grid for config in row}
            left = {run_id: config for run_id, config in left.items() if run_id not in own}
            if cut.only or len(own) == 1:
                broken.add(error, more=bool(left))
            else:
                progress.say(f"{error}; going on with one of them after the other")
                if not _each([config for row in grid for config in row], cut, progress, stop, broken):
                    return False
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


def _has_failed(block: Block) -> bool:
    """Whether the last attempt at a block broke."""
    return any(run.status == "failed" for run in block.runs.values())


def _wait(runs: Collection[object], waiting: bool, progress: SweepProgress) -> bool:
    """Wait for other processes, and say so the first time."""
    if not waiting:
        progress.say(f"waiting for {len(runs)} runs that other processes train")
    time.sleep(0.5)
    return True


def _parts(block: Sequence[RunConfig], width: int) -> list[list[RunConfig]]:
    """The runs in pieces of at most this width, row by row."""
    return [[run for row in grid for run in row] for grid in rectangles(block, width)]


def _one_by_one(cut: Cut, progress: SweepProgress, stop: StopRequest, broken: Broken) -> bool:
    return _each(cut.runs, cut, progress, stop, broken)


def _each(left: Sequence[RunConfig], cut: Cut, progress: SweepProgress, stop: StopRequest, broken: Broken) -> bool:
    """Train runs one after the other; False if a signal asked to stop."""
    waiting = False
    while left:
        busy: list[RunConfig] = []
        for config in left:
            if stop.signal is not None:
                return False
            try:
                result = run(config, progress=False, plan=cut.plan, tuned_by=cut.tuned_by)
            except RunBusy:
                busy.append(config)
                continue
            except RunBroke as error:
                broken.add(error, more=config is not left[-1])
                continue
            except KeyboardInterrupt:
                return False
            if result.status == "killed":
                return False
            broken.ended()
            progress.advance(result.steps, 1, [result])
        if busy:
            waiting = _wait(busy, waiting and len(busy) == len(left), progress)
        left = busy
    return True
