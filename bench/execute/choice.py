"""The choice of execution: lanes or single runs, and the number of lanes."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch

from bench.config.checks import why_no_lanes
from bench.config.run_config import RunConfig
from bench.errors import UserError, first_line
from bench.execute import Effort
from bench.execute.blocks import ONE_BY_ONE, Choice, rectangles
from bench.lanes.optimizers import have_pure_update
from bench.lanes.runs import make_lanes
from bench.progress import doing
from bench.train.runner import build
from bench.train.stop import StopRequest
from optimizers.plugins import BROKEN
from tasks.core.order import micro_batches_per_rank
from tasks.core.task import Task

_WIDTHS = tuple(4**k for k in range(9))
LANES_GAIN = 0.9
"""Lanes are used if a step takes less than this fraction of a single run's: short measurements have noise. Ours."""
_MEASURE_SECONDS, _MEASURE_SHARE = 0.2, 0.02
"""Each width is timed for this many seconds, or this share of the remaining steps if less; at least 3 steps. Ours."""


@dataclass
class Choices:
    """Decides how groups of runs are executed; after a stop request, arbitrarily."""

    effort: Effort
    say: Callable[[str], None]  # shows a line
    stop: StopRequest  # ends measurements
    measured: dict[object, Choice]  # earlier measurements, to which new ones are added

    def of(self, group: Sequence[RunConfig]) -> Choice:
        """The choice for runs with one `block_key`; pass the largest group first, since measurements are reused."""
        engine, first, obstacle = self.effort.engine, group[0], why_no_lanes(group[0])
        if obstacle and engine == "auto":
            self.say(f"{first.task}: runs one by one, since {obstacle}")
        single = engine == "auto" and len(group) == 1
        if engine == "lightning" or obstacle or single or self.stop.signal is not None:
            return ONE_BY_ONE
        if self.effort.width is not None:
            return Choice(lanes=True, width=self.effort.width)
        try:
            task, plan = build(first)
            # Pure updates cost about the same, except for work on matrices; others step one lane at a time.
            together = have_pure_update(plan.parts)
            names = [spec.name for spec in first.methods if not together or spec.traits.by_piece]
            alike = first.task, repr(first.task_options), first.trainer, *names
            if alike not in self.measured:
                with doing("measuring the best number of lanes"):
                    ahead = len(group) * plan.total_steps
                    ahead *= micro_batches_per_rank(plan.batch_size, 1, plan.micro_batch_size)
                    alone = seconds_of(single_step(first, task), ahead)
                    del task  # leave the device to the lanes
                    name = ", ".join([first.task, *names])
                    self.measured[alike] = self._measure(group, name, alone, ahead)
        except UserError:
            raise
        except BROKEN:  # training will fail the same way and record it
            return Choice(lanes=engine == "lanes", width=1)
        return self.measured[alike]

    def _measure(self, group: Sequence[RunConfig], name: str, alone: float, ahead: float) -> Choice:
        """Time some steps at growing widths, as long as lanes get cheaper and fit into memory."""
        costs, failure = dict[int, float](), ""
        for width in (w for w in _WIDTHS if w < 4 * len(group)):
            grid = max(rectangles(group, min(width, len(group))), key=lambda rows: sum(map(len, rows)))
            count = sum(map(len, grid))
            try:
                lanes = make_lanes(grid)
                lanes.cuts = lanes.cuts[:1]  # one micro-batch suffices
                costs[count] = seconds_of(lanes.step, ahead / count) / count
                del lanes
            except UserError:
                raise
            except BROKEN as error:  # also for lack of memory
                failure = first_line(error)
                break
            gc.collect()  # lanes and their optimizers form reference cycles
            if self.stop.signal is not None:
                return ONE_BY_ONE
            # Long steps are bound by arithmetic, so more lanes will not make them cheaper; this bounds the memory too.
            enough = width > 16 or costs[count] * count > _MEASURE_SECONDS
            if enough and costs[count] > 0.95 * min((cost for w, cost in costs.items() if w != count), default=inf):
                break
        # Of widths with about the same cost, use the smallest: it suffers less from other processes in the caches.
        if not costs:
            self.say(f"{name}: runs one by one, since lanes break here ({failure})")
            return Choice(lanes=self.effort.engine == "lanes", width=1)
        best = min(costs.values())
        width = next(w for w in sorted(costs) if costs[w] <= 1.15 * best)
        if self.effort.engine == "lanes" or (width > 1 and best < LANES_GAIN * alone):
            times = f"a step of one takes {1e6 * best:,.0f} us, {1e6 * alone:,.0f} us in a plain loop"
            self.say(f"{name}: {width} lanes at once; {times}")
            return Choice(lanes=True, width=width)
        why = f"a step in lanes takes at best {best / alone:.2f} times as long (--engine lanes uses lanes anyway)"
        self.say(f"{name}: runs one by one, since {why}")
        return ONE_BY_ONE


def single_step(config: RunConfig, task: Task | None = None) -> Callable[[], object]:
    """One step of a run on its first micro-batch, in a plain loop; the task is built if it is not given."""
    if task is None:
        task, _ = build(config)
    plan = task.plan
    device = torch.device(config.device)
    dtype = torch.float64 if config.precision == "64-true" else torch.float32
    task.configure_model()  # the trainer's dropout, which is faster than torch's
    task.to(device, dtype)
    task.data.to(device, dtype)
    optimizer: Any = plan.make_optimizer(task.parameters())
    rows = torch.arange(min(plan.batch_size, plan.micro_batch_size), device=device)
    task.randomness.rows = slice(0, len(rows))

    def step() -> None:
        optimizer.zero_grad()
        loss = task.loss(task.data.batch("train", rows, task.randomness)).loss
        loss.backward()
        optimizer.step(lambda: loss.detach())

    return step


def seconds_of(step: Callable[[], object], ahead: float = inf) -> float:
    """Seconds of a step: the minimum of three timings, each over enough calls to be precise.

    If there are few steps `ahead`, few are timed and the result is rough. It is the time of this thread if there is no
    other, so that the load of the machine does not count.
    """
    gpu = torch.cuda.is_available()
    clock = time.perf_counter if gpu or torch.get_num_threads() > 1 else time.thread_time

    def timed(calls: int) -> float:
        begun = clock()
        for _ in range(calls):
            step()
        if gpu:
            torch.cuda.synchronize()
        return (clock() - begun) / calls

    if timed(1) < _MEASURE_SECONDS and gpu:
        timed(3)  # these may record a CUDA graph that later ones replay (`bench.lanes.replay`)
    once = timed(1)
    if once >= _MEASURE_SECONDS:
        return min(once, timed(1))
    calls = max(1, int(min(200, _MEASURE_SECONDS / 3 / max(once, 1e-9), _MEASURE_SHARE / 3 * ahead)))
    return min(timed(calls) for _ in range(3))
