"""Training in this process: as lanes if that is faster, else one run at a time."""

import gc
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf

from bench.config.run_config import RunConfig
from bench.errors import RunBroke, RunBusy, RunFailed, first_line
from bench.execute.apart import run_apart
from bench.execute.blocks import rectangles
from bench.execute.cuts import Cut
from bench.execute.plan import Plan
from bench.lanes.runs import train_block
from bench.progress import RunInPlan, SweepProgress
from bench.store.block import Block
from bench.store.record import RunResult
from bench.train.memory import give_back, keep_freed_memory, ran_out
from bench.train.runner import run
from bench.train.stop import StopRequest

MAX_BROKEN = 3
"""Number of failures after which to give up if no run has finished. Ours."""


def train_cuts(
    plan: Plan, cuts: Sequence[Cut], progress: SweepProgress, stop: StopRequest, *, since: float | None = None
) -> bool:
    """Train the missing runs of a plan; False if a signal asked to stop.

    Other processes may work on the same cuts: each takes blocks that no other process has taken.

    Args:
        plan: all its runs.
        cuts: how its missing runs are executed.
        progress: shows its progress.
        stop: a stop request.
        since: when the command began (seconds since the epoch); runs that have failed since then in another of its
            processes are not repeated.

    Raises:
        UserError: a run cannot be trained.
        RunFailed: runs failed, the disk is full or gone, or a single lane needs more memory than available.
    """
    keep_freed_memory()
    outcomes = Outcomes(plan, cuts, progress, time.time() if since is None else since)
    # first the free runs of all cuts, then those that other processes train
    done = all(_train(cut, outcomes, stop, wait=wait) for wait in (False, True) for cut in cuts)
    if done:
        outcomes.raise_failures()
    return done


class Outcomes:
    """The outcome of runs. One failure does not stop the others: a plug-in may fail at one learning rate only.

    The command began at `since`, in seconds since the epoch.

    Attributes:
        settled: ids of the runs that have finished, here or elsewhere, or have failed.
    """

    def __init__(self, plan: Plan, cuts: Sequence[Cut], progress: SweepProgress, since: float) -> None:
        self.plan, self.progress, self._since = plan, progress, since
        self._any_finished = sum(len(cut.runs) for cut in cuts) < len(plan.by_id)
        self.settled: set[str] = set()
        self._broken: dict[str, RunBroke] = {}
        self._attempts = 0

    def finished(self, results: Iterable[RunResult]) -> None:
        """Settle runs that this process has trained."""
        self.settled |= {result.run_id for result in results}
        self._any_finished = True

    def look(self, there: Mapping[str, Block]) -> None:
        """Settle and show runs that other processes have finished; settle those that have failed since the start."""
        new = {run_id: block for run_id, block in there.items() if run_id not in self.settled}
        if done := [block.runs[run_id] for run_id, block in new.items() if block.runs[run_id].finished]:
            self._any_finished = True
            self.settled |= {result.run_id for result in done}
            self.progress.advance(0, 0, done)
        for run_id, block in new.items():
            if block.runs[run_id].status == "failed" and block.total == 1:
                with suppress(OSError):
                    if block.at.stat().st_mtime > self._since:
                        self.settled.add(run_id)
                        self._broken[run_id] = RunBroke(f"run {run_id} failed: {block.runs[run_id].reason}")

    def broke(self, error: RunBroke, configs: Iterable[RunConfig], *, more: bool) -> None:
        """Keep the error for the end; raise it if `MAX_BROKEN` have failed and no run has finished."""
        run_ids = [config.run_id for config in configs]
        self.settled.update(run_ids)
        self._broken |= dict.fromkeys(run_ids, error)
        self._attempts += 1
        if self._attempts == MAX_BROKEN and not self._any_finished:
            raise RunFailed(f"the first {MAX_BROKEN} failed, the last with: {error}") from error
        if more:
            self.progress.say(f"{error}; continuing with the others")

    def raise_failures(self) -> None:
        """Raise the kept errors as one."""
        if self._broken:
            first, *others = dict.fromkeys(self._broken.values())
            many = f"{len(self._broken)} runs failed: {', '.join(self._broken)}; the first: "
            error = RunBroke(many * bool(others) + str(first))
            error.runs = {run_id: str(why) for run_id, why in self._broken.items()}
            raise error from first


def _train(cut: Cut, outcomes: Outcomes, stop: StopRequest, *, wait: bool) -> bool:
    """Train a cut, as blocks of lanes or one run at a time; False if a signal asked to stop."""
    if not cut.lanes:
        return _each(cut.runs, outcomes, stop, wait=wait)
    plan, store = outcomes.plan, outcomes.plan.store
    blocks = [[config for row in grid for config in row] for grid in cut.blocks]
    widest, short, waiting, progress = inf, False, False, outcomes.progress
    apart = set[str]()  # runs of a broken block: one lane may have broken the others
    while left := {config.run_id: config for config in cut.runs if config.run_id not in outcomes.settled}:
        if short:
            gc.collect()  # free the memory that the error's traceback kept
            give_back()
            short = False
        others = store.unfinished()  # read before the records, which then show blocks that finish in between
        there = store.find_all(left)
        stored = {run_id: block.runs[run_id] for run_id, block in there.items()}
        outcomes.look(there)
        left = {run_id: config for run_id, config in left.items() if run_id not in outcomes.settled}
        if not left:
            break
        if stop.signal is not None:
            return False
        # A run that began as a single run (`bench fit`) continues so: its checkpoint is not one of lanes.
        alone = {run_id for run_id, result in stored.items() if result.engine != "lanes"}
        fresh = {run_id: config for run_id, config in left.items() if run_id not in alone}
        if not fresh:
            return _each(list(left.values()), outcomes, stop, wait=wait)
        busy = {run_id for block in (*others, *there.values()) if block.busy for run_id in block.runs}
        # Blocks of killed processes come first, since they have made progress.
        # Among them, failed blocks come last, since they may fail again.
        idle = [block.runs for block in others if not block.busy and block.runs.keys() <= fresh.keys() - busy - apart]
        begun = sorted(idle, key=lambda runs: any(run.status == "failed" for run in runs.values()))
        begun = [[fresh[run_id] for run_id in run_ids] for run_ids in begun if len(run_ids) <= widest]
        free = ([run for run in block if run.run_id in fresh and run.run_id not in busy] for block in blocks)
        grid = next((next(rectangles(block, len(block))) for block in (*begun, *free) if block), None)
        if grid is None:
            if not wait:
                return True
            waiting = _wait(fresh, waiting, progress)
            continue
        waiting = False
        try:
            first = grid[0][0]
            title, study = plan.title_of(first), plan.tuned_by(first)
            results = train_block(grid, stop, progress, plan=title, tuned_by=study)
            if results is None:
                return False
            outcomes.finished(results)
        except RunBusy:
            time.sleep(0.1)
        except RunBroke as error:
            configs = [config for row in grid for config in row]
            if len(configs) == 1:
                outcomes.broke(error, configs, more=len(left) > 1)
                continue
            progress.say(f"{error}; continuing with one run at a time")
            if plan.engine == "lanes":
                apart |= {config.run_id for config in configs}
                blocks = [*([config] for config in configs), *blocks]
            elif not _each(configs, outcomes, stop, wait=wait):
                return False
        except (MemoryError, RuntimeError) as error:
            count = sum(map(len, grid))
            if not ran_out(error):
                raise
            if count == 1:
                raise RunFailed(
                    f"run {grid[0][0].run_id} alone needs more memory than available: {first_line(error)}"
                ) from None
            widest, short = count // 2, True
            narrower = [part for block in blocks for part in rectangles(block, widest)]
            blocks = [[config for row in part for config in row] for part in narrower]
            progress.say(f"{count} lanes at once need more memory than available; continuing with {widest}")
    return True


def _wait(runs: Collection[object], waiting: bool, progress: SweepProgress) -> bool:
    """Wait for other processes; announce it the first time."""
    if not waiting:
        progress.waiting(len(runs))
    time.sleep(0.5)
    return True


def _each(runs: Sequence[RunConfig], outcomes: Outcomes, stop: StopRequest, *, wait: bool) -> bool:
    """Train runs one by one; False if a signal asked to stop."""
    plan, store, waiting = outcomes.plan, outcomes.plan.store, False
    while left := [config for config in runs if config.run_id not in outcomes.settled]:
        busy: list[RunConfig] = []
        for config in left:
            if stop.signal is not None:
                return False
            outcomes.look(store.find_all([config.run_id]))
            if config.run_id in outcomes.settled:
                continue
            shown = RunInPlan(outcomes.progress)
            try:
                if config.trainer.ranks > 1:
                    result = run_apart(config, stop)
                else:
                    title, study = plan.title_of(config), plan.tuned_by(config)
                    result = run(config, progress=shown.bar, stop=stop, plan=title, tuned_by=study)
            except RunBusy:
                busy.append(config)
                continue
            except RunBroke as error:
                shown.end()
                outcomes.broke(error, [config], more=config is not left[-1])
                continue
            except KeyboardInterrupt:
                return False
            if result.status == "killed":
                return False
            outcomes.finished([result])
            shown.end(result)
        if busy and not wait:
            return True
        if busy:
            waiting = _wait(busy, waiting and len(busy) == len(left), outcomes.progress)
    return True
