"""`bench fit` against hand-written loops in plain PyTorch: the same model, batches and optimizer class, no record."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import BertForSequenceClassification

from bench.config.run_config import RunConfig, resolve
from bench.train.runner import build, run
from benchmarks.timing import Case, Cases, Timed, data, folder, ratios, settle
from tasks import TASKS
from tasks.core.order import BatchOrder
from tasks.vision.images import CIFAR10Data

Loss = Callable[[Any, Any, Any], Tensor]
"""From the task, its plain model and a batch."""


class FewEvaluated(CIFAR10Data):
    """CIFAR-10 with small evaluation sets."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sizes |= {"val": 1000, "test": 1000}


def cifar10(quick: bool, device: str) -> Cases:
    """The ViT, for a normalised method and for Adam; on a GPU also against a compiled loop."""
    spec = replace(TASKS["cifar10"], data="benchmarks.loops:FewEvaluated")
    steps, bound = (200, 0.35) if device == "cuda" else (40, 0.9)
    with patch.dict(TASKS.built_in, cifar10=spec):
        yield from against("cifar10", ("sngd", "adam"), 8 if quick else steps, device, _images, bound, quick)
        if device == "cuda":
            yield from against("cifar10", ("adam",), steps, device, _images, 1.0, quick, is_compiled=True)


def lm(quick: bool, device: str) -> Cases:
    """The language model."""
    data("tiny_shakespeare")
    yield from against("lm", ("sngd", "adamw"), 4 if quick else 20, device, _tokens, 1.05, quick)


def bert(quick: bool, device: str) -> Cases:
    """A BERT from scratch on SST-2; on a GPU with the size of BERT-base, in bf16."""
    data("sst2")
    more: dict[str, Any] = {"task.scratch": True, "task.n_train": 4000}
    if device == "cuda":
        more |= {"task.layers": 12, "task.width": 768, "precision": "bf16-mixed"}
    yield from against("sst2", ("sngd", "adamw"), 10 if quick else 80, device, _texts, 1.05, quick, **more)


def synthetic(quick: bool, device: str) -> Cases:
    """The synthetic task, whose steps are so short that any overhead shows."""
    yield from against("synthetic", ("ngd", "gd", "adam"), 200 if quick else 2000, device, _of_task, 1.3, quick)


def _images(task: Any, model: Any, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def _tokens(task: Any, model: Any, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch.ids).flatten(0, 1), batch.targets.flatten())


def _texts(task: Any, model: Any, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch.ids, batch.mask, batch.types).logits, batch.labels)


def _of_task(task: Any, model: Any, batch: Any) -> Tensor:
    return task.loss(batch).loss


def against(
    task: str,
    opts: Iterable[str],
    steps: int,
    device: str,
    loss: Loss,
    bound: float,
    quick: bool,
    is_compiled: bool = False,
    **more: Any,
) -> Cases:
    """Time of training against a loop with this loss, and the share of making the batches."""
    with folder() as store:
        for opt in opts:
            config = configure(task, opt, steps, store, device, **more)
            by_bench, by_hand = program(config), loop(config, loss, is_compiled)
            what = f"{task}, {opt}, {steps} steps"
            yield Case(what, f"a {'compiled ' * is_compiled}loop", ratios(by_bench, by_hand, 2 if quick else 5), bound)
            batches = ratios(lambda config=config: batches_of(config)[1], by_bench, 2)
            yield Case(f"{what}, order and batches", "training", [100 * share for share in batches], 3, unit=" %")


def configure(task: str, opt: str, steps: int, store: Path, device: str = "cpu", **more: Any) -> RunConfig:
    """A run of `steps` steps that is evaluated once, at the end."""
    root = {"data": data("")}
    settings = {"trainer.max_steps": steps, "trainer.val_every": steps, "trainer.checkpoint_seconds": 1e9}
    return resolve({"task": task, "opt": opt, "device": device, "store": store, **settings, **root, **more})


def program(config: RunConfig) -> Timed:
    """A run of the suite: its seconds of training, without evaluation."""

    def train() -> float:
        result = run(config, rerun=True, progress=False)
        if result.status == "killed":
            raise KeyboardInterrupt
        return result.validations[-1]["train_s"]

    return train


def batches_of(config: RunConfig) -> tuple[list[Any], float]:
    """The run's batches, on its device, and the seconds to make them."""
    task, plan = build(config)
    device = torch.device(config.device)
    task.data.to(device, torch.float64 if config.precision.startswith("64") else torch.float32)
    settle()
    begun = time.perf_counter()
    order = BatchOrder(task.data.sizes["train"], plan.batch_size, plan.data_seed, device, task.data.lengths)
    batches = []
    for step in range(plan.total_steps):
        task.randomness.width = order.width(step)
        batches.append(task.data.batch("train", order.rows(step), task.randomness))
    settle()
    return batches, time.perf_counter() - begun


def loop(config: RunConfig, loss: Loss, is_compiled: bool) -> Timed:
    """The loop on ready batches, with torch's own dropout and transformers' own attention."""
    batches, _ = batches_of(config)

    def train() -> float:
        torch.manual_seed(config.seed)
        task, plan = build(config)
        task.to(config.device)
        model: Any = task
        if config.task == "sst2":
            bert: Any = task.model
            model = BertForSequenceClassification._from_config(bert.config, attn_implementation="sdpa")
        elif loss is not _of_task:
            model = task.model  # the suite replaces its dropout only when a run begins
        model = model.to(config.device).train()
        optimizer = plan.make_optimizer(model.parameters())
        if is_compiled:  # takes a minute, which is not timed
            model = torch.compile(model)
            loss(task, model, batches[0]).backward()
        settle()
        begun = time.perf_counter()
        for batch in batches:
            with torch.autocast(config.device, torch.bfloat16, enabled=config.precision == "bf16-mixed"):
                value = loss(task, model, batch)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        settle()
        return time.perf_counter() - begun

    return train
