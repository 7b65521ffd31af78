"""`execute`: from requested runs to stored ones."""

import random
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from bench.config.checks import check_engine
from bench.config.files import Sources
from bench.config.run_config import RunConfig
from bench.errors import RunBroke, RunBusy, RunFailed
from bench.execute.blocks import Block, Choice, block_key, check_all, cut, rectangles, stored_choice
from bench.execute.cluster import Crew, WorkersDied
from bench.progress import SweepProgress
from bench.store.stores import Contents
from bench.text import counted
from bench.train.stop import StopRequest

MAX_BROKEN = 3
"""Number of failures after which to give up if no run has finished. Ours."""
BUSY_SECONDS = 0.5
"""Seconds between looks at runs of other processes. Ours."""


def execute(
    configs: Sequence[RunConfig],
    progress: SweepProgress,
    crew: Crew,
    *,
    plan: str | Mapping[str, str] = "runs",
    sources: Sources | None = None,
) -> bool:
    """Train missing runs, which have one store and one device; False if a signal asked to stop.

    A repeated command continues after an interruption: finished runs are not repeated, and a block of lanes
    continues from its checkpoint. A second process with the same runs shares the work.

    `plan` is the purpose of all runs, or of each one by id (`RunResult.plan`), `sources` are the studies that found
    their hyperparameters (`RunResult.tuned_by`).

    Raises:
        UserError: a run cannot be trained, or not with this engine, or there are too few devices.
        RunBroke: runs failed.
        RunFailed: the first runs failed, the disk is full or gone, or a single lane needs more memory than available.
    """
    stop, runs = StopRequest(), {config.run_id: config for config in configs}
    plans = dict.fromkeys(runs, plan) if isinstance(plan, str) else plan
    work = _Work(configs[0].store, runs, plans, sources or {}, progress, crew, stop)
    with stop.listening():
        done = work.train_all()
        if stop.at_once and not crew.is_here:  # Lightning may have swallowed the interrupt
            raise KeyboardInterrupt
    if done and (broken := work.broken):
        cause, *others = dict.fromkeys(broken.values())
        many = f"{len(broken)} runs failed: {', '.join(broken)}; the first: "
        error = RunBroke(many * bool(others) + str(cause))
        error.runs = {run_id: str(why) for run_id, why in broken.items()}
        raise error from cause
    return done


@dataclass
class _Work:
    """The missing runs of a request; one that fails does not stop the others."""

    store: Path
    left: dict[str, RunConfig]  # that have neither finished nor failed
    plans: Mapping[str, str]
    sources: Sources
    progress: SweepProgress
    crew: Crew
    stop: StopRequest
    broken: dict[str, RunBroke] = field(default_factory=dict)  # why runs failed
    apart: set[str] = field(default_factory=set)  # runs of a broken block: one lane may have broken the others
    widest: float = inf  # lanes that fit into memory

    def __post_init__(self) -> None:
        self._count = len(self.left)

    def train_all(self) -> bool:
        """Train all runs; False if a signal asked to stop."""
        blocks = self._cut()
        with self.progress.showing(len(self.left), self.crew.shares), self.crew.serving(self.progress, self.store):
            while self.stop.signal is None:
                todo = self._todo(blocks)
                if not self.left:
                    return True
                if not todo:
                    self.progress.say(f"waiting for {counted(len(self.left), 'run')} of other processes")
                    time.sleep(BUSY_SECONDS)
                elif not self._train(todo):
                    return False
        return False

    def _cut(self) -> list[Block]:
        """The blocks of all runs, also of finished ones, which `left` then lacks."""
        runs, effort, crew = dict(self.left), self.crew.effort, self.crew
        blocks = Contents([self.store], runs).blocks
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
        is_free = effort.width is None and effort.engine != "lightning"
        choices = list[tuple[list[RunConfig], Choice]]()
        for group in groups:
            known = stored_choice(group, stored, lanes=effort.engine == "lanes") if is_free else None
            choices.append((group, known or crew.choose(group, self.progress, self.stop)))
        if self.stop.signal is not None:
            return []
        return cut(runs, choices, 1 if effort.width else crew.shares, record=effort.width is None)

    def _todo(self, blocks: Sequence[Block]) -> deque[Block]:
        """The blocks without runs that have ended or that other processes train; lanes that fit into memory."""
        busy = self._busy(self.left)
        todo = deque[Block]()
        for block in blocks:
            configs = [self.left[i] for i in block.runs if i in self.left and i not in busy]
            together = [config for config in configs if block.lanes and config.run_id not in self.apart]
            most = int(min(self.widest, len(together)))
            width = most if len(together) > most else block.width
            todo += [Block(grid, lanes=True, width=width) for grid in (rectangles(together, most) if together else ())]
            todo += [self._single(config, block) for config in configs if config not in together]
        return todo

    def _single(self, config: RunConfig, block: Block) -> Block:
        return Block([[config]], lanes=block.lanes and self.crew.effort.engine == "lanes")

    def _train(self, todo: deque[Block]) -> bool:
        """Train blocks, in this process or by workers; False if a signal asked to stop."""

        def free() -> Iterator[Block]:
            while todo and self.stop.signal is None:
                block = todo.popleft()
                if not self._busy(block.runs):  # else they are looked at again later
                    first = block.first
                    source = self.sources.get((first.task, first.opt))
                    yield replace(block, plan=self.plans[first.run_id], tuned_by=source)

        done = True
        for block, train in self.crew.train(free(), self.stop, self.progress):
            try:
                if train():
                    self._forget(block.runs)
                else:
                    done = False
            except RunBusy:
                time.sleep(random.uniform(0.05, 0.2))
            except RunBroke as error:
                self._broke(error, block, todo)
            except MemoryError as error:
                if (count := len(block.runs)) == 1:
                    why = f"run {block.first.run_id} alone needs more memory than available: {error}"
                    raise RunFailed(why) from None
                self.widest = min(self.widest, count // 2)
                what = f"{count} lanes at once need more memory than available"
                self.progress.say(f"{what}; continuing with {self.widest}")
                todo.clear()  # the next look at the store divides them
        return done and self.stop.signal is None

    def _busy(self, run_ids: Collection[str]) -> set[str]:
        """The runs that other processes train, or have just finished, which are forgotten and shown."""
        stored = Contents([self.store], run_ids).blocks
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
            self.apart.update(block.runs)
            todo.extendleft(self._single(config, block) for config in reversed(block.runs.values()))
            return
        self._forget(block.runs)
        self.broken |= dict.fromkeys(block.runs, error)
        if len({*self.broken.values()}) == MAX_BROKEN and len(self.left) + len(self.broken) == self._count:
            raise RunFailed(f"the first {MAX_BROKEN} failed, the last with: {error}") from error
        if self.left:
            self.progress.say(f"{error}; continuing with the others")
