"""`bench fit` on cifar10 against a hand-written loop for this model."""

import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from bench.config.run_config import RunConfig, resolve
from bench.train.runner import build, run
from benchmarks.images import MemoryImages, cifar10_images
from benchmarks.timing import Row, Timed, alternate, settle, timed
from tasks import TASKS, Task
from tasks.core.task import EVALUATED_ON_CPU
from tasks.vision.vit import ViTClassifier


def measure(quick: bool) -> list[Row]:
    """Time of training steps, for a normalised method and for Adam, and of an evaluation."""
    steps, rounds = (8, 2) if quick else (40, 5)
    spec = replace(TASKS["cifar10"], data="benchmarks.images:MemoryImages")
    rows = []
    with patch.dict(TASKS, cifar10=spec), TemporaryDirectory() as store:
        for opt in ("sngd", "adam"):
            config = configure("cifar10", opt, steps, Path(store))
            measured = alternate(by_hand(config), {opt: by_bench(config)}, rounds)[opt]
            what = f"bench fit, cifar10, {opt}, {steps} steps on {cifar10_images().source}"
            rows.append(Row(what, "hand-written loop", measured.ratios, 0.90))
        task, _ = build(config)
    evaluated = alternate(evaluation(task, 1000), {"few": evaluation(task, EVALUATED_ON_CPU)}, rounds)["few"]
    return [*rows, Row(f"evaluation of cifar10, {EVALUATED_ON_CPU} images a pass", "1,000 a pass", evaluated.ratios)]


def evaluation(task: Task, size: int) -> Timed:
    """Losses of all validation images, `size` in a forward pass."""

    @torch.no_grad()
    def evaluate() -> None:
        for start in range(0, task.data.sizes["val"], size):
            task.loss(task.data.batch("val", slice(start, start + size)))

    task.eval()
    return timed(evaluate)


def configure(task: str, opt: str, steps: int, store: Path, device: str = "cpu", **more: Any) -> RunConfig:
    """A run of `steps` steps that is evaluated once, at the end."""
    settings = {"trainer.max_steps": steps, "trainer.val_every": steps, "trainer.checkpoint_seconds": 1e9}
    return resolve({"task": task, "opt": opt, "device": device, "store": store, **settings, **more})


def by_bench(config: RunConfig) -> Timed:
    """A run of the suite: its seconds of training, without evaluation."""

    def train() -> float:
        result = run(config, rerun=True, progress=False)
        if result.status == "killed":
            raise KeyboardInterrupt
        if result.steps != config.trainer.max_steps:
            raise RuntimeError(f"{result.run_id} made {result.steps} steps: {result.status}, {result.reason}")
        return result.validations[-1]["train_s"]

    return train


def by_hand(config: RunConfig, *, compiled: bool = False) -> Timed:
    """The same model, tensors and optimizer class in plain PyTorch, with torch's own dropout and no record."""

    def train() -> float:
        torch.manual_seed(config.seed)
        task, plan = build(config)
        assert isinstance(task, ViTClassifier)
        assert isinstance(task.data, MemoryImages)
        model = task.model.train()  # timm's VisionTransformer; the suite replaces its dropout only when a run begins
        assert any(isinstance(module, nn.Dropout) for module in model.modules())
        images, labels = (tensor.to(config.device) for tensor in task.data.train_tensors())
        optimizer = plan.make_optimizer(model.to(config.device).parameters())
        forward: Any = torch.compile(model) if compiled else model
        if compiled:  # takes a minute, which is not timed
            forward(images[: plan.batch_size].float()).sum().backward()
        settle()
        begun = time.perf_counter()
        order = torch.randperm(len(images), device=images.device)
        for step in range(plan.total_steps):
            rows = order[step * plan.batch_size : (step + 1) * plan.batch_size]
            loss = nn.functional.cross_entropy(forward(images[rows].float().mul_(2 / 255).sub_(1)), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        settle()
        return time.perf_counter() - begun

    return train
