"""`execute`: from requested runs to stored ones."""

import gc
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from math import inf

from bench.config.checks import check_engine
from bench.config.run_config import RunConfig, on_device
from bench.config.tuned import Sources
from bench.errors import RunBroke, RunBusy, RunFailed, first_line
from bench.execute import Effort
from bench.execute.blocks import Block, block_key, check_all, cut, rectangles, stored_choice
from bench.execute.cluster import Crew, Job, WorkersDied
from bench.progress import SweepProgress
from bench.store.store import Store
from bench.train.memory import give_back, ran_out
from bench.train.stop import StopRequest

MAX_BROKEN = 3
"""Number of failures after which to give up if no run has finished. Ours."""
BUSY_SECONDS = 0.5
"""Seconds between looks at runs of other processes. Ours."""


def execute(
    configs: Sequence[RunConfig],
    progress: SweepProgress,
    effort: Effort | None = None,
    *,
    plan: str | Mapping[str, str] = "runs",
    sources: Sources | None = None,
    crew: Crew | None = None,
) -> bool:
    """Train missing runs, which have one store and one device; False if a signal asked to stop.

    A repeated command continues after an interruption: finished runs are not repeated, and a block of lanes
    continues from its checkpoint. A second process with the same runs shares the work.

    `plan` is the purpose of all runs, or of each one by id (`RunResult.plan`), `sources` are the studies that found
    their hyperparameters (`RunResult.tuned_by`), `crew` are processes that stay for further runs.

    Raises:
        UserError: a run cannot be trained, or not with this engine, or there are too few devices.
        RunBroke: runs failed.
        RunFailed: the first runs failed, the disk is full or gone, or a single lane needs more memory than available.
    """
    effort, stop = effort or Effort(), StopRequest()
    crew_here = nullcontext(crew) if crew is not None else Crew(effort, on_device(configs[0]), len(configs))
    with stop.listening(), crew_here as workers:
        work = _Work(configs, progress, effort, workers, stop)
        plans = dict.fromkeys(work.left, plan) if isinstance(plan, str) else plan
        done = work.train_all(plans, sources or {})
        if stop.at_once and not workers.is_here:  # Lightning may have swallowed the interrupt
            raise KeyboardInterrupt
    if done and (broken := work.broken):
        cause, *others = dict.fromkeys(broken.values())
        many = f"{len(broken)} runs failed: {', '.join(broken)}; the first: "
        error = RunBroke(many * bool(others) + str(cause))
        error.runs = {run_id: str(why) for run_id, why in broken.items()}
        raise error from cause
    return done


class _Work:
    """The missing runs of a request; one that fails does not stop the others."""

    def __init__(
        self, configs: Sequence[RunConfig], progress: SweepProgress, effort: Effort, crew: Crew, stop: StopRequest
    ) -> None:
        self.progress, self.effort, self.crew, self.stop = progress, effort, crew, stop
        self.store = Store(configs[0].store)
        self.left = {config.run_id: config for config in configs}  # that have neither finished nor failed
        self.broken = dict[str, RunBroke]()  # why runs failed
        self._count = len(self.left)
        self._apart = set[str]()  # runs of a broken block: one lane may have broken the others
        self._widest = inf  # lanes that fit into memory

    def train_all(self, plans: Mapping[str, str], sources: Sources) -> bool:
        """Train all runs; False if a signal asked to stop."""
        blocks = self._cut()
        with self.progress.showing(len(self.left), self.crew.shares), self.crew.serving(self.progress, self.store):
            while self.stop.signal is None:
                todo = self._todo(blocks)
                if not self.left:
                    return True
                if not todo:
                    self.progress.waiting(len(self.left))
                    time.sleep(BUSY_SECONDS)
                elif not self._train(todo, plans, sources):
                    return False
        return False

    def _cut(self) -> list[Block]:
        """The blocks of all runs, also of finished ones, which `left` then lacks."""
        runs, effort, crew = dict(self.left), self.effort, self.crew
        blocks = self.store.find_all(runs)
        stored = {run_id: block.runs[run_id] for run_id, block in blocks.items()}
        self._forget([run_id for run_id, block in blocks.items() if block.done])
        if not self.left:
            return []
        if not crew.is_here:
            crew.start()  # workers import torch while this process checks the runs
        check_all(list(runs.values()))
        alike: dict[tuple[object, ...], list[RunConfig]] = {}
        for config in runs.values():
            alike.setdefault(block_key(config), []).append(config)
        groups = sorted(alike.values(), key=len, reverse=True)  # the largest is measured, the others reuse its result
        check_engine(effort.engine, (group[0] for group in groups))
        chosen = [None] * len(groups)
        if effort.width is None and effort.engine != "lightning":
            chosen = [stored_choice(group, stored, lanes=effort.engine == "lanes") for group in groups]
        unknown = [group for group, choice in zip(groups, chosen, strict=True) if choice is None]
        measured = iter(crew.choose(unknown, effort, self.progress, self.stop) if unknown else [])
        if self.stop.signal is not None:
            return []
        choices = [(group, choice or next(measured)) for group, choice in zip(groups, chosen, strict=True)]
        return cut(runs, choices, 1 if effort.width else crew.shares, record=effort.width is None)

    def _todo(self, blocks: Sequence[Block]) -> deque[Block]:
        """The blocks without runs that have ended or that other processes train; lanes that fit into memory."""
        busy = self._busy(self.left)
        todo = deque[Block]()
        for block in blocks:
            configs = [self.left[i] for i in block.runs if i in self.left and i not in busy]
            together = [config for config in configs if block.lanes and config.run_id not in self._apart]
            most = int(min(self._widest, len(together)))
            width = most if len(together) > most else block.width
            todo += [Block(grid, lanes=True, width=width) for grid in (rectangles(together, most) if together else ())]
            todo += [self._single(config, block) for config in configs if config not in together]
        return todo

    def _single(self, config: RunConfig, block: Block) -> Block:
        return Block([[config]], lanes=block.lanes and self.effort.engine == "lanes")

    def _train(self, todo: deque[Block], plans: Mapping[str, str], sources: Sources) -> bool:
        """Train blocks, in this process or by workers; False if a signal asked to stop."""

        def jobs() -> Iterator[Job]:
            while todo and self.stop.signal is None:
                block = todo.popleft()
                if not self._busy(block.runs):  # else they are looked at again later
                    run_id, config = next(iter(block.runs.items()))
                    yield Job(block, plans[run_id], sources.get((config.task, config.opt)))

        done = True
        for block, train in self.crew.train(jobs(), self.stop, self.progress):
            count, short = len(block.runs), False
            try:
                if train():
                    self._forget(block.runs)
                else:
                    done = False
            except RunBusy:
                time.sleep(0.1)  # its process is about to begin or to end
            except RunBroke as error:
                self._broke(error, block, todo)
            except (MemoryError, RuntimeError) as error:
                if not ran_out(error) or not block.lanes:
                    raise
                if count == 1:
                    why = f"run {block.first.run_id} alone needs more memory than available: {first_line(error)}"
                    raise RunFailed(why) from None
                short = True
            if short:  # here, where no traceback keeps the memory
                gc.collect()
                give_back()
                self._widest = min(self._widest, count // 2)
                what = f"{count} lanes at once need more memory than available"
                self.progress.say(f"{what}; continuing with {self._widest}")
                todo.clear()  # the next look at the store divides them
        return done and self.stop.signal is None

    def _busy(self, run_ids: Collection[str]) -> set[str]:
        """The runs that other processes train, or have just finished, which are forgotten and shown."""
        stored = self.store.find_all(run_ids)
        finished = {run_id: block.runs[run_id] for run_id, block in stored.items() if block.done}
        if finished:
            self._forget(finished)
            self.progress.advance(0, 0, [*finished.values()])
        return {run_id for run_id, block in stored.items() if block.busy or block.done}

    def _forget(self, run_ids: Collection[str]) -> None:
        for run_id in run_ids:
            self.left.pop(run_id, None)

    def _broke(self, error: RunBroke, block: Block, todo: deque[Block]) -> None:
        """Keep the error for the end, or train the lanes of a block one by one."""
        if len(block.runs) > 1 and not isinstance(error, WorkersDied):
            self.progress.say(f"{error}; continuing with one run at a time")
            self._apart.update(block.runs)
            todo.extendleft(self._single(config, block) for config in reversed(block.runs.values()))
            return
        self._forget(block.runs)
        self.broken |= dict.fromkeys(block.runs, error)
        if len({*self.broken.values()}) == MAX_BROKEN and len(self.left) + len(self.broken) == self._count:
            raise RunFailed(f"the first {MAX_BROKEN} failed, the last with: {error}") from error
        if self.left:
            self.progress.say(f"{error}; continuing with the others")
