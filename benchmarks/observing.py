"""The cost of `--trainer.observe` in a whole run, from the time of a step and of an observation."""

from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch

from bench.train.runner import build
from benchmarks.images import cifar10_images
from benchmarks.timing import Row, Timed, alternate, timed
from benchmarks.training import by_bench, configure
from tasks import TASKS, Task
from tasks.core.observatory import Observer
from tasks.core.quantities import observed_steps

PER_DECADE = 4
BUDGET = 2500
"""Optimizer steps of cifar10 in its default budget."""


def measure(quick: bool) -> list[Row]:
    """Time of an observed run over the time of an unobserved one."""
    steps, rounds = (4, 2) if quick else (20, 5)
    spec = replace(TASKS["cifar10"], data="benchmarks.images:MemoryImages")
    with patch.dict(TASKS, cifar10=spec), TemporaryDirectory() as store:
        config = configure("cifar10", "adamw", steps, Path(store))
        task, task.plan = build(config)
        task.data.to(torch.device("cpu"), torch.float32)
        looks = {"curved": observation(task, True), "plain": observation(task, False)}
        measured = alternate(by_bench(config), looks, rounds)
    observed = observed_steps(BUDGET, PER_DECADE)
    curved = len(observed[::-2])
    shares = [
        (curved * a + (len(observed) - curved) * b) * steps / (step * BUDGET)
        for step, a, b in zip(
            measured["curved"].baseline, measured["curved"].candidate, measured["plain"].candidate, strict=True
        )
    ]
    what = f"cifar10 on {cifar10_images().source}, {BUDGET:,} steps with --trainer.observe {PER_DECADE}"
    return [Row(what, "without", [1 + share for share in shares], 1.05)]


def observation(task: Task, curved: bool) -> Timed:
    """One observation after a step with known updates, with or without the Hessian."""
    weights = {name: p.detach() for name, p in task.named_parameters()}
    first = observed_steps(BUDGET, PER_DECADE)
    steps = count(10, 10)

    def look() -> None:
        done = next(steps)
        observer = Observer(task, [*first, done] if curved else [*first, done, done + 1])
        observer.recent = {done - 1: weights}
        observer.note(done, partial(dict, weights))

    return timed(look)
