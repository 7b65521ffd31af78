"""`bench fit` on the synthetic task, whose steps are so short that any overhead shows."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench.config.run_config import RunConfig
from bench.train.runner import build
from benchmarks.timing import Row, Timed, alternate
from benchmarks.training import by_bench, configure


def measure(quick: bool) -> list[Row]:
    """Time of training steps with recorded curves, against a loop that records nothing."""
    steps, rounds = (200, 2) if quick else (2000, 9)
    rows = []
    with TemporaryDirectory() as store:
        for opt in ("ngd", "gd", "adam"):
            config = configure("synthetic", opt, steps, Path(store))
            measured = alternate(bare(config), {opt: by_bench(config)}, rounds)[opt]
            rows.append(Row(f"bench fit, synthetic, {opt}, {steps} steps", "bare loop", measured.ratios, 1.3))
    return rows


def bare(config: RunConfig) -> Timed:
    """Only the task's loss, its gradient, and a step."""

    def train() -> float:
        torch.manual_seed(config.seed)
        task, plan = build(config)
        task.data.to(torch.device("cpu"), torch.float64)
        optimizer = plan.make_optimizer(task.parameters())
        batch = task.data.batch("train", torch.arange(plan.batch_size))
        begun = time.perf_counter()
        for _ in range(plan.total_steps):
            optimizer.zero_grad()
            task.loss(batch).loss.backward()
            optimizer.step()
        return time.perf_counter() - begun

    return train
