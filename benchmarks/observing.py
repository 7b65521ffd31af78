"""The cost of `--trainer.observe` in a whole run, from the time of a step and of an observation."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch

from bench.config.run_config import RunConfig
from bench.train.runner import build
from benchmarks.images import cifar10_images
from benchmarks.lm import text
from benchmarks.timing import Row, Timed, alternate, timed
from benchmarks.training import by_bench, configure
from tasks import TASKS, Task
from tasks.core.observatory import Observer
from tasks.core.quantities import observed_steps

PER_DECADE = 4
BUDGETS = {"cifar10": 2500, "lm": 2000}
"""Optimizer steps of the default budgets."""


def measure(quick: bool) -> list[Row]:
    """Time of observed runs over the time of unobserved ones, with the default budgets of two tasks."""
    steps, rounds = (4, 2) if quick else (20, 5)
    spec = replace(TASKS["cifar10"], data="benchmarks.images:MemoryImages")
    with (
        patch.dict(TASKS, cifar10=spec),
        TemporaryDirectory() as folder,
        text(Path(folder), quick) as (root, tokens),
        patch.dict(os.environ, BENCH_CACHE=f"{folder}/cache"),
    ):
        configs = {name: configure(name, "adamw", steps, Path(folder)) for name in BUDGETS}
        configs["lm"] = configs["lm"].model_copy(update={"data": root})
        sources = {"cifar10": cifar10_images().source, "lm": tokens}
        return [_row(config, sources[name], steps, rounds) for name, config in configs.items()]


def _row(config: RunConfig, source: str, steps: int, rounds: int) -> Row:
    """The time of an observed run relative to an unobserved one."""
    budget = BUDGETS[config.task]
    task, task.plan = build(config)
    task.data.to(torch.device("cpu"), torch.float32)
    measured = alternate(by_bench(config), {"observed": observation(task, budget)}, rounds)["observed"]
    observations = len(observed_steps(budget, PER_DECADE))
    shares = [
        look * observations * steps / (step * budget)
        for step, look in zip(measured.baseline, measured.candidate, strict=True)
    ]
    what = f"{config.task} on {source}, {budget:,} steps with --trainer.observe {PER_DECADE}"
    return Row(what, "without", [1 + share for share in shares], 1.05)


def observation(task: Task, budget: int) -> Timed:
    """One observation."""
    weights = {name: p.detach() for name, p in task.named_parameters()}
    observer = Observer(task, observed_steps(budget, PER_DECADE))
    return timed(lambda: observer.note(budget, partial(dict, weights)))
