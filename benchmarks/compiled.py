"""A training step with loss and gradient through `torch.compile`, against the same step without it, on the CPU."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch

from bench.config.run_config import RunConfig
from bench.train.runner import build
from benchmarks.lm import text
from benchmarks.timing import Row, alternate, timed
from benchmarks.training import configure
from tasks import TASKS
from tasks.core.compiled import compiled_loss
from tasks.core.dropout import use_batch_dropout


def measure(quick: bool) -> list[Row]:
    """Time of a step of the ViT and of the language model, and seconds of compilation."""
    calls, rounds = (1, 1) if quick else (5, 7)
    spec = replace(TASKS["cifar10"], data="benchmarks.images:MemoryImages")
    rows = []
    with (
        TemporaryDirectory() as folder,
        text(Path(folder), quick) as (root, _),
        patch.dict(os.environ, BENCH_CACHE=f"{folder}/cache", TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor"),
        patch.dict(TASKS, cifar10=spec),
    ):
        for task in ("cifar10", "lm"):
            config = configure(task, "adamw", 1000, Path(folder)).model_copy(update={"data": root})
            eager, compiled = step_of(config), step_of(config, compiled=True)
            begun = time.perf_counter()
            compiled()
            compiled()
            seconds = time.perf_counter() - begun
            ratios = alternate(timed(eager, calls), {task: timed(compiled, calls)}, rounds)[task].ratios
            rows.append(Row(f"{task}, adamw: a step, loss and gradient compiled", "the same, eager", ratios))
            rows.append(Row(f"{task}: until it is compiled", "-", [seconds], unit=" s"))
    return rows


def step_of(config: RunConfig, *, compiled: bool = False) -> Callable[[], object]:
    """A training step on the run's first micro-batch, with new random numbers each time."""
    task, plan = build(config)
    use_batch_dropout(task, task.randomness)
    where, device = task.randomness, torch.device(config.device)
    task.to(device).train()
    task.data.to(device, torch.float32)
    optimizer = plan.make_optimizer(task.parameters())
    loss = compiled_loss(task.loss, where, device) if compiled else task.loss
    rows = torch.arange(min(plan.batch_size, plan.micro_batch_size), device=device)
    where.rows = slice(0, len(rows))

    def step() -> None:
        where.step += 1
        optimizer.zero_grad()
        loss(task.data.batch("train", rows, where)).loss.backward()
        optimizer.step()

    return step
