"""Sweeps: many runs of a task, as lanes where that pays and one after the other elsewhere."""

import gc
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

import torch

from bench.callbacks import StopRequest
from bench.config import RunConfig
from bench.doctor import first_line
from bench.errors import RunBusy, RunFailed, UserError
from bench.lanes.runs import Grid, make_lanes, train_block
from bench.memory import free_memory, give_back, keep_freed_memory, ran_out, watch_peak
from bench.progress import SweepProgress
from bench.runner import build, run
from bench.store.record import FINISHED, RunResult
from bench.store.store import Store
from bench.sweeps.grid import block_key, blocks, check_all, problem_key
from tasks.base import Task
from tasks.loop import Plan
from tasks.order import micro_batches_per_rank

Engine = Literal["auto", "lanes", "lightning"]

_WIDTHS = tuple(4**k for k in range(9))
COMPILE_SECONDS = 10
"""Seconds of updates from which on it is tried whether `torch.compile` saves more than it takes. Ours."""
LANES_GAIN = 0.9
"""Lanes are used if a step takes less than this share of a step alone. Ours.

Short measurements are noisy, and runs alone are simpler.
"""
_MEASURE_SECONDS, _MEASURE_SHARE = 0.2, 0.05
"""Time each width for so many seconds, or this share of the steps ahead if that is less, but for five. Ours."""


def sweep(
    configs: Sequence[RunConfig],
    progress: SweepProgress,
    say: Callable[[str], None],
    *,
    engine: Engine = "auto",
    width: int | None = None,
    memory: int | None = None,
    stop: StopRequest | None = None,
    plan: str = "sweep",
) -> list[RunResult] | None:
    """Make the runs that the store does not have, and return all of them; None if a signal asked to stop.

    An interrupted sweep goes on with the same command: finished runs are not made again, and a block of lanes goes on
    from its checkpoint. A second process with the same command takes what the first has not taken.

    Args:
        configs: the runs; all have one store.
        progress: shows how far it is.
        say: shows a line.
        engine: `lanes`, `lightning` (one run after the other), or what is faster.
        width: lanes of a block at most; measured by default.
        memory: bytes that a block may take; 80 % of what is free by default.
        stop: by which somebody else may ask the sweep to stop; it listens to signals as well.
        plan: what the runs are made for (`RunResult.plan`).

    Raises:
        UserError: a run cannot be made, or not with this engine.
        RunFailed: a run broke, the disk is full or gone, or one lane alone needs more memory than there is.
    """
    keep_freed_memory()
    store = Store(configs[0].store)
    check_all(configs)
    by_id = {config.run_id: config for config in configs}
    there = store.find_all(by_id)
    ended = {run_id for run_id, block in there.items() if block.runs[run_id].status in FINISHED}
    todo = {run_id: config for run_id, config in by_id.items() if run_id not in ended}
    if len(todo) < len(configs):
        say(f"{len(configs) - len(todo)} of {len(configs)} runs are stored")
    stop = stop or StopRequest()
    groups: dict[tuple[object, ...], dict[str, RunConfig]] = {}
    for run_id, config in todo.items():
        groups.setdefault(block_key(config), {})[run_id] = config
    obstacles = [why_no_lanes(next(iter(group.values()))) for group in groups.values()]
    if engine == "lanes" and any(obstacles):
        raise UserError(f"--engine lanes: {next(filter(None, obstacles))}; use --engine lightning")
    choices = Choices(engine, width, memory, say)
    with stop.listening(), progress.showing(len(todo)):
        for group in sorted(groups.values(), key=len, reverse=True):  # what is measured of the largest holds for all
            choice = choices.of(list(group.values()))
            if not (
                _as_lanes(group, store, choice, stop, progress, plan)
                if choice.lanes
                else _one_by_one(list(group.values()), stop, progress, plan)
            ):
                return None
    there = store.find_all(by_id)
    return [there[config.run_id].runs[config.run_id] for config in configs if config.run_id in there]


@dataclass
class Choice:
    """How a group of runs is made: as lanes or one by one, how many at once, with a compiled update or not."""

    lanes: bool
    width: int
    compiled: bool = False


class Choices:
    """Decides how groups are made; the arguments are those of `sweep`."""

    def __init__(self, engine: Engine, width: int | None, memory: int | None, say: Callable[[str], None]) -> None:
        self.engine, self.width, self.memory, self.say = engine, width, memory, say
        self._measured: dict[object, Choice] = {}
        self._said: set[str] = set()

    def of(self, group: Sequence[RunConfig]) -> Choice:
        """The plan for runs with one `block_key`, the largest group first."""
        obstacle = why_no_lanes(group[0])
        if obstacle and self.engine == "auto" and obstacle not in self._said:
            self._said.add(obstacle)
            self.say(f"{group[0].task}: one run after the other, since {obstacle}")
        if self.engine == "lightning" or obstacle or (self.engine == "auto" and len(group) == 1):
            return Choice(lanes=False, width=1)
        choice = self._how_many(group) if self.width is None else Choice(lanes=True, width=self.width)
        return replace(choice, compiled=choice.lanes and self._compile_pays(group, choice.width))

    def _how_many(self, group: Sequence[RunConfig]) -> Choice:
        first = group[0]
        # Optimizers with a pure update cost about the same; all others step one by one.
        alike = (
            first.task,
            repr(first.task_options),
            first.trainer,
            first.opt if first.opt_spec.pure_update is None else None,
        )
        if alike not in self._measured:
            self._measured[alike] = self._measure(group)
        return self._measured[alike]

    def _measure(self, group: Sequence[RunConfig]) -> Choice:
        """Time some steps at growing widths, as long as lanes get cheaper and fit into memory."""
        first = group[0]
        try:
            task, plan = build(first)
            ahead = len(group) * plan.total_steps * micro_batches_per_rank(plan.batch_size, 1, plan.micro_batch_size)
            alone = seconds_of(single_step(first, task, plan), ahead)
            del task  # leave the device to the lanes
        except UserError:
            raise
        except Exception:  # so it will in training, which records how
            alone = ahead = inf
        limit = self.memory or int(0.8 * free_memory(first.device))
        costs: dict[int, float] = {}
        each = 0.0
        for lanes in (w for w in _WIDTHS if w < 4 * len(group) and each * w <= limit):
            grid = _typical(group, lanes)
            count = sum(map(len, grid))
            try:
                with watch_peak(first.device) as peak:
                    trial = make_lanes(grid)
                    trial.cuts = trial.cuts[:1]  # a micro-batch tells as much as the batch
                    costs[count] = seconds_of(trial.step, ahead / count) / count
                    trial.measure()
                weights = sum(w.nbytes for w in trial.weights.values())
                del trial
            except UserError:
                raise
            except Exception as error:
                if ran_out(error):
                    break
                if self.engine == "lanes":
                    return Choice(lanes=True, width=count)  # it breaks again in training, which records how
                self.say(f"{first.task}: one run after the other, since lanes break here ({first_line(error)})")
                return Choice(lanes=False, width=1)
            gc.collect()  # lanes and their optimizers are circles of references
            # Another optimizer of the sweep may keep two more values of each weight.
            each = (peak.bytes + 2 * weights) / count
            # Where a step is long it is arithmetic that takes the time, and more lanes will not change that.
            enough = lanes > 16 or costs[count] * count > _MEASURE_SECONDS
            if enough and costs[count] > 0.95 * min((cost for w, cost in costs.items() if w != count), default=inf):
                break
        # Of widths that cost about the same the least: it suffers less from others who use the caches.
        best = min(costs.values(), default=inf)
        width = next((w for w in sorted(costs) if costs[w] <= 1.15 * best), 1)
        if each:
            width = max(1, min(width, int(limit / each)))
        pays = best < LANES_GAIN * alone
        if not costs:
            self.say(f"{first.task}: one run after the other, since memory is short")
        elif self.engine == "auto" and not pays:
            self.say(
                f"{first.task}: one run after the other, since a step in lanes (at best {width} at once) takes"
                f" {best / alone:.2g} times as long (--engine lanes uses lanes all the same)"
            )
        else:
            self.say(
                f"{first.task}: {width} lanes at once; a step of one takes {1e6 * best:,.0f} us"
                + (f", {1e6 * alone:,.0f} us in a plain loop" if alone < inf else "")
            )
        return Choice(lanes=pays or self.engine == "lanes", width=width)

    def _compile_pays(self, group: Sequence[RunConfig], width: int) -> bool:
        """Whether `torch.compile` saves more of the optimizer's updates than it takes; short sweeps do not try."""
        spec = group[0].opt_spec
        if spec.pure_update is None:
            return False
        grid, sizes = _typical(group, width), {sum(map(len, grid)) for grid in blocks(group, width)}
        try:
            lanes = make_lanes(grid)
            ahead = len(group) / sum(map(len, grid)) * lanes.plan.total_steps  # updates of such a block in all
            plain = seconds_of(lanes.update_alone(), ahead)
            del lanes
            gc.collect()
        except UserError:
            raise
        except Exception:  # so it will in training, which records how
            return False
        if ahead * plain < COMPILE_SECONDS:
            return False
        try:
            update = make_lanes(grid, compiled=True).update_alone()
            begun = time.perf_counter()
            update()
            update()  # the first step has no state yet, which is another program
            compiling = (time.perf_counter() - begun) * (len(sizes) - 1)  # of other sizes; this one is there now
            compiled = seconds_of(update, ahead)
        except Exception as error:  # whatever a compiler may lack on this machine
            self.say(f"{spec.name}: torch.compile does not work here ({first_line(error)}); going on without it")
            return False
        pays = ahead * (plain - compiled) > compiling
        self.say(
            f"{spec.name}: torch.compile makes the update {plain / compiled:.2g} times as fast,"
            f" and {compiling:.0f} s more of compiling; {'used' if pays else 'not used'} for"
            f" {ahead * plain:,.0f} s of updates"
        )
        return pays


def _typical(group: Sequence[RunConfig], width: int) -> Grid:
    """The largest block that the runs are cut into."""
    return max(blocks(group, min(width, len(group))), key=lambda grid: sum(map(len, grid)))


def why_no_lanes(config: RunConfig) -> str | None:
    """Why runs like this one cannot be lanes, or None."""
    trainer, spec = config.trainer, config.task_spec
    if config.opt_spec.traits.create_graph:
        return f"{config.opt} differentiates the gradients"
    if not spec.lanes:
        return f"the task {config.task} does not say that its loss is a function of weights and batch (TaskSpec.lanes)"
    if trainer.strategy != "auto":
        return f"--trainer.strategy {trainer.strategy}: lanes train on one device"
    if config.precision not in ("32-true", "64-true"):
        return f"--precision {config.precision}: lanes train in 32-true or 64-true"
    if trainer.max_seconds is not None:
        return f"--trainer.max_seconds {trainer.max_seconds:g}: lanes share the time, so their budget is in steps"
    if config.logger is not None:
        return f"--logger {config.logger}: a logger follows one run"
    return None


def _as_lanes(
    group: dict[str, RunConfig], store: Store, choice: Choice, stop: StopRequest, progress: SweepProgress, plan: str
) -> bool:
    """Train a group in blocks; False if a signal asked to stop."""
    width, widest, short = choice.width, inf, False
    left, trained, waiting = dict(group), set[str](), False
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
            return _one_by_one(list(left.values()), stop, progress, plan)
        busy = {run_id for block in (*others, *there.values()) if block.busy for run_id in block.runs}
        free = [config for run_id, config in fresh.items() if run_id not in busy]
        # What a killed process left comes first: it is part of the way.
        begun = [block.runs for block in others if not block.busy and block.runs.keys() <= fresh.keys()]
        begun = [run_ids for run_ids in begun if len(run_ids) <= widest]
        if begun:
            grid = _rows(fresh[run_id] for run_id in begun[0])
        elif free:
            grid = next(blocks(free, width))
        else:
            waiting = _wait(fresh, waiting, progress)
            continue
        waiting = False
        try:
            results = train_block(grid, stop, progress, compiled=choice.compiled, plan=plan)
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
            width, widest, short = count // 2, count // 2, True
            progress.say(f"{count} lanes at once need more memory than there is; going on with {width}")


def _rows(configs: Iterable[RunConfig]) -> Grid:
    rows: dict[tuple[int, int], list[RunConfig]] = {}
    for config in configs:
        rows.setdefault(problem_key(config), []).append(config)
    return list(rows.values())


def _wait(runs: Collection[object], waiting: bool, progress: SweepProgress) -> bool:
    """Wait for other processes, and say so the first time."""
    if not waiting:
        progress.say(f"waiting for {len(runs)} runs that other processes train")
    time.sleep(0.5)
    return True


def _one_by_one(left: Sequence[RunConfig], stop: StopRequest, progress: SweepProgress, plan: str) -> bool:
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


def single_step(config: RunConfig, task: Task | None = None, plan: Plan | None = None) -> Callable[[], object]:
    """One step of a run on its first micro-batch, in a plain loop; task and plan are built if they are not given."""
    if task is None or plan is None:
        task, plan = build(config)
    device = torch.device(config.device)
    dtype = torch.float64 if config.precision == "64-true" else torch.float32
    task.to(device, dtype)
    task.data.to(device, dtype)
    optimizer: Any = plan.make_optimizer(task.parameters())
    rows = torch.arange(min(plan.batch_size, plan.micro_batch_size), device=device)
    task.randomness.rows, task.randomness.batch_size = slice(0, len(rows)), len(rows)

    def step() -> None:
        optimizer.zero_grad()
        loss = task.loss(task.data.batch("train", rows, task.randomness)).loss
        loss.backward()
        optimizer.step(lambda: loss.detach())

    return step


def seconds_of(step: Callable[[], object], ahead: float = inf) -> float:
    """Seconds of a step: the least of three, each over as many calls as make it long enough to time.

    Args:
        step: makes one.
        ahead: steps that the answer is for; if they are few, few are made and it is rough.
    """

    def timed(calls: int) -> float:
        begun = time.perf_counter()
        for _ in range(calls):
            step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return (time.perf_counter() - begun) / calls

    timed(1)
    once = timed(1)
    calls = max(1, int(min(200, _MEASURE_SECONDS / 3 / once, _MEASURE_SHARE / 3 * ahead)))
    return min(timed(calls) for _ in range(3 if once < _MEASURE_SECONDS else 1))
