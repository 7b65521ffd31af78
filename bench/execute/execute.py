"""`execute`: from requested runs to stored ones."""

import gc
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from math import inf
from uuid import uuid4

from bench.config.checks import check_engine
from bench.config.run_config import RunConfig, on_device
from bench.config.tuned import Sources
from bench.errors import RunBroke, RunBusy, RunFailed, first_line
from bench.execute import Effort
from bench.execute.blocks import Block, Choice, block_key, check_all, cut, rectangles, stored_choice
from bench.execute.cluster import Crew, WorkersDied
from bench.progress import SweepProgress
from bench.store.block import Block as StoredBlock
from bench.store.files import making
from bench.store.store import Store
from bench.train.memory import give_back, ran_out
from bench.train.stop import StopRequest

STOPPED = "bench: stopped; finished runs are stored, and the same command continues"
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

    Args:
        configs: the runs, stored or not.
        progress: shows progress.
        effort: how they are executed.
        plan: purpose of all runs, or of each one by id (`RunResult.plan`).
        sources: the studies that found their hyperparameters (`RunResult.tuned_by`).
        crew: the processes, which stay for further runs; by default they end with these.

    Raises:
        UserError: a run cannot be trained, or not with this engine, or there are too few devices.
        RunBroke: runs failed.
        RunFailed: the first runs failed, the disk is full or gone, or a single lane needs more memory than available.
    """
    effort, first, stop = effort or Effort(), on_device(configs[0]), StopRequest()
    with stop.listening(), nullcontext(crew) if crew is not None else Crew(effort, first, len(configs)) as workers:
        work = _Work(configs, progress, effort, workers, stop, plan, sources or {})
        done = work.train_all()
        if stop.at_once and not workers.is_here:  # Lightning may have swallowed the interrupt
            raise KeyboardInterrupt
    if done:
        work.raise_failures()
    return done


class _Work:
    """The missing runs of a request.

    One failure does not stop the others: a plug-in may fail at one learning rate only.

    Attributes:
        left: the runs that have neither finished nor failed, by id.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        progress: SweepProgress,
        effort: Effort,
        crew: Crew,
        stop: StopRequest,
        plan: str | Mapping[str, str],
        sources: Sources,
    ) -> None:
        self.progress, self.effort, self.crew, self.stop = progress, effort, crew, stop
        self.plan, self.sources = plan, sources
        self.store = Store(configs[0].store)
        self.left = {config.run_id: config for config in configs}
        self._any_finished = False
        self._broken: dict[str, RunBroke] = {}
        self._attempts = 0
        self._apart = set[str]()  # runs of a broken block: one lane may have broken the others
        self._widest = inf  # lanes that fit into memory

    def train_all(self) -> bool:
        """Train all missing runs; False if a signal asked to stop."""
        blocks = self._cut()
        announced = False
        shown = self.progress.showing(len(self.left), self.crew.shares)
        with shown, self.crew.reporting(self.progress), self._token() as token:
            while not self._stopped():
                todo = self._todo(blocks)
                if not self.left:
                    self.store.remove_obsolete(run_id for block in blocks for run_id in block.runs)
                    return True
                if not todo:  # other processes train the rest
                    if not announced:
                        self.progress.waiting(len(self.left))
                    announced = True
                    time.sleep(BUSY_SECONDS)
                    continue
                if not self._train(todo, token):
                    return False
        return False

    def raise_failures(self) -> None:
        """Raise the kept errors as one.

        Raises:
            RunBroke: runs failed.
        """
        if self._broken:
            first, *others = dict.fromkeys(self._broken.values())
            many = f"{len(self._broken)} runs failed: {', '.join(self._broken)}; the first: "
            error = RunBroke(many * bool(others) + str(first))
            error.runs = {run_id: str(why) for run_id, why in self._broken.items()}
            raise error from first

    def _stopped(self) -> bool:
        return self.stop.signal is not None

    def _cut(self) -> list[Block]:
        """The blocks of all runs, also of finished ones, which `left` then lacks."""
        runs, effort, crew = dict(self.left), self.effort, self.crew
        blocks = self.store.find_all(runs)
        stored = {run_id: block.runs[run_id] for run_id, block in blocks.items()}
        self._settle({run_id: block for run_id, block in blocks.items() if stored[run_id].finished}, shown=False)
        if not self.left:
            return []
        if not crew.is_here:
            crew.start()  # workers import torch while this process checks the runs
        check_all(list(runs.values()))
        alike: dict[tuple[object, ...], list[RunConfig]] = {}
        for config in runs.values():
            alike.setdefault(block_key(config), []).append(config)
        check_engine(effort.engine, (group[0] for group in alike.values()))
        if len(self.left) < len(runs) and not crew.has_trained:  # said once, not in each round of a study
            self.progress.say(f"{len(runs) - len(self.left)} of {len(runs)} runs are stored")
        groups = sorted(alike.values(), key=len, reverse=True)  # the largest is measured, the others reuse its result
        known: list[Choice | None] = [None] * len(groups)
        if effort.width is None and effort.engine != "lightning":
            known = [stored_choice(group, stored, lanes=effort.engine == "lanes") for group in groups]
        unknown = [group for group, choice in zip(groups, known, strict=True) if choice is None]
        chosen: list[Choice] | None = []
        if unknown and crew.is_here:
            from bench.execute import here

            chosen = here.choose(unknown, effort, 1, self.progress.say, self.stop, crew.measured)
        elif unknown:
            with crew.reporting(self.progress):
                chosen = crew.choose(unknown, effort, self._stopped)
        if chosen is None or self._stopped():
            return []
        rest = iter(chosen)
        choices = [(group, choice or next(rest)) for group, choice in zip(groups, known, strict=True)]
        crew.has_trained = True
        return cut(runs, choices, 1 if effort.width else crew.shares, record=effort.width is None)

    @contextmanager
    def _token(self) -> Iterator[str | None]:
        """The name of a file in the store within the context: workers of a cluster that see it share the store."""
        if self.crew.cluster is None:
            yield None
            return
        token = self.store.folder / f".cluster-{uuid4().hex}"
        with making(self.store.folder):
            token.parent.mkdir(parents=True, exist_ok=True)
            token.touch()
        try:
            yield token.name
        finally:
            with suppress(OSError):
                token.unlink()

    def _todo(self, blocks: Sequence[Block]) -> deque[Block]:
        """The blocks without runs that have ended or that other processes train; lanes that fit into memory."""
        stored = self.store.find_all(self.left)
        self._settle({run_id: block for run_id, block in stored.items() if block.runs[run_id].finished})
        busy = {run_id for run_id, block in stored.items() if block.busy}
        todo = deque[Block]()
        for block in blocks:
            configs = [self.left[i] for i in block.runs if i in self.left and i not in busy]
            together = [config for config in configs if block.lanes and config.run_id not in self._apart]
            most = int(min(self._widest, len(together)))
            width = most if len(together) > most else block.width
            todo += [Block(grid, lanes=True, width=width) for grid in (rectangles(together, most) if together else ())]
            apart = [config for config in configs if config not in together]
            lanes = block.lanes and self.effort.engine == "lanes"
            todo += [Block([[config]], lanes=lanes) for config in apart]
        return todo

    def _train(self, todo: deque[Block], token: str | None) -> bool:
        """Train blocks, in this process or by workers; False if a signal asked to stop."""
        done = True
        for block, train in self._ends(todo, token):
            run_ids, short = list(block.runs), False
            try:
                if train():
                    self._any_finished = True
                    self._forget(run_ids)
                else:
                    done = False
            except RunBusy:
                time.sleep(0.1)  # its process is about to begin or to end
            except RunBroke as error:
                self._broke(error, block, todo)
            except (MemoryError, RuntimeError) as error:
                if not ran_out(error) or not block.lanes:
                    raise
                if len(run_ids) == 1:
                    raise RunFailed(
                        f"run {run_ids[0]} alone needs more memory than available: {first_line(error)}"
                    ) from None
                self._widest = min(self._widest, len(run_ids) // 2)
                self.progress.say(
                    f"{len(run_ids)} lanes at once need more memory than available; continuing with {self._widest}"
                )
                todo.clear()  # the next look at the store divides them
                short = True
            if short:
                gc.collect()  # free the memory that the error's traceback kept
                give_back()
        return done and not self._stopped()

    def _ends(self, todo: deque[Block], token: str | None) -> Iterator[tuple[Block, Callable[[], bool]]]:
        """Blocks with functions that train them, or that return how workers have ended."""
        while True:
            while todo and not self._stopped() and (self.crew.is_here or self.crew.idle > 0):
                block = todo.popleft()
                if not self._is_free(block):
                    continue
                run_id, config = next(iter(block.runs.items()))
                plan = self.plan if isinstance(self.plan, str) else self.plan[run_id]
                about = plan, self.sources.get((config.task, config.opt))
                if self.crew.is_here:
                    from bench.execute import here

                    yield block, partial(here.train, block, self.stop, self.progress, *about)
                else:
                    self.crew.submit(block, *about, token)
            if self.crew.is_here or (end := self.crew.next_end(self._stopped)) is None:
                return
            yield end

    def _is_free(self, wanted: Block) -> bool:
        """Whether no other process trains or has finished some of the runs; if so, they are looked at again later."""
        stored = self.store.find_all(wanted.runs)
        finished = {run_id: block for run_id, block in stored.items() if block.runs[run_id].finished}
        self._settle(finished)
        return not finished and not any(block.busy for block in stored.values())

    def _settle(self, finished: Mapping[str, StoredBlock], *, shown: bool = True) -> None:
        """Forget runs that are stored; show those that other processes have just finished."""
        if finished:
            self._any_finished = True
            self._forget(finished)
            if shown:
                self.progress.advance(0, 0, [block.runs[run_id] for run_id, block in finished.items()])

    def _forget(self, run_ids: Collection[str]) -> None:
        for run_id in run_ids:
            self.left.pop(run_id, None)

    def _broke(self, error: RunBroke, block: Block, todo: deque[Block]) -> None:
        """Keep the error for the end, or train the lanes of a block one by one.

        Raises:
            RunFailed: `MAX_BROKEN` have failed and no run has finished.
        """
        run_ids = list(block.runs)
        if len(run_ids) > 1 and not isinstance(error, WorkersDied):
            self.progress.say(f"{error}; continuing with one run at a time")
            self._apart.update(run_ids)
            todo.extendleft(
                Block([[config]], lanes=self.effort.engine == "lanes") for config in reversed(block.runs.values())
            )
            return
        self._forget(run_ids)
        self._broken |= dict.fromkeys(run_ids, error)
        self._attempts += 1
        if self._attempts == MAX_BROKEN and not self._any_finished:
            raise RunFailed(f"the first {MAX_BROKEN} failed, the last with: {error}") from error
        if self.left:
            self.progress.say(f"{error}; continuing with the others")
