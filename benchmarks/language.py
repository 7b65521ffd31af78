"""`bench fit` on text against a hand-written loop with transformers, on the same batches."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import BertForSequenceClassification

from bench.config.run_config import RunConfig, resolve
from bench.train.runner import build
from benchmarks.timing import Row, Timed, alternate
from benchmarks.training import by_bench
from tasks.core.order import BatchOrder
from tasks.language.bert import TextClassifier
from tasks.language.labelled_text import TextBatch, TextData

_CPU = torch.device("cpu")


def measure(quick: bool) -> list[Row]:
    """Tokens per second of training, for a normalised method and for AdamW, and the share of time for batches."""
    steps, rounds = (20, 2) if quick else (80, 5)
    rows = []
    with TemporaryDirectory() as store, texts() as (folder, source):
        for opt in ("sngd", "adamw"):
            config = configure(opt, steps, folder, Path(store))
            batches, tokens = batches_of(config), tokens_of(config)
            measured = alternate(by_hand(config), {"bench": by_bench(config), "input": batches}, rounds)
            trained, inputs = measured["bench"], measured["input"]
            what = f"bench fit, BERT with 2 layers of width 128, {opt}, {steps} batches of 32 from {source}"
            share = [100 * i / t for i, t in zip(inputs.candidate, trained.candidate, strict=True)]
            rows += [
                Row(what, "hand-written loop", trained.speedups, 0.95, at_least=True),
                Row(f"bench fit, {opt}", "-", [tokens / s for s in trained.candidate], unit=" tokens/s"),
                Row("hand-written loop", "-", [tokens / s for s in trained.baseline], unit=" tokens/s"),
                Row("order and batches alone", f"bench fit, {opt}", share, 3, unit=" %"),
            ]
    return rows


@contextmanager
def texts() -> Iterator[tuple[Path, str]]:
    """A data folder with SST-2, and its source: if SST-2 is missing, synthetic phrases of similar lengths."""
    data = Path(os.environ.get("BENCH_DATA", "data"))
    if (data / "sst2" / "train.parquet").is_file():
        yield data, "SST-2"
        return
    with TemporaryDirectory() as folder:
        draw = np.random.default_rng(0)
        (Path(folder) / "sst2").mkdir()
        for split, n in (("train", 5000), ("validation", 100)):
            sentences = [" ".join(f"w{i}" for i in draw.zipf(1.3, k) % 5000) for k in draw.geometric(0.1, n)]
            table = pa.table({"sentence": sentences, "label": draw.integers(0, 2, n)})
            pq.write_table(table, Path(folder) / "sst2" / f"{split}.parquet")
        yield Path(folder), "made-up phrases"


def configure(opt: str, steps: int, folder: Path, store: Path) -> RunConfig:
    """A run of `steps` steps on the CPU that is evaluated once, at the end."""
    return resolve(
        {
            "task": "sst2",
            "opt": opt,
            "device": "cpu",
            "data": folder,
            "store": store,
            "task.scratch": True,
            "task.n_train": 4000,
            "trainer.max_steps": steps,
            "trainer.val_every": steps,
            "trainer.checkpoint_seconds": 1e9,
        }
    )


def loaded(config: RunConfig) -> tuple[TextClassifier, TextData, BatchOrder]:
    """The task, its data, and the run's order of samples."""
    task, plan = build(config)
    assert isinstance(task, TextClassifier)
    assert isinstance(task.data, TextData)
    task.data.to(_CPU, torch.float32)
    return (
        task,
        task.data,
        BatchOrder(task.data.sizes["train"], plan.batch_size, plan.data_seed, _CPU, task.data.lengths),
    )


def taken(config: RunConfig) -> list[TextBatch]:
    """The run's batches."""
    task, data, order = loaded(config)
    where, found = task.randomness, []
    for step in range(task.plan.total_steps):
        where.width = order.width(step)
        found.append(data.batch("train", order.rows(step), where))
    return found


def tokens_of(config: RunConfig) -> int:
    """Number of tokens in the run's batches, without padding."""
    return sum(int(batch.mask.sum()) for batch in taken(config))


def batches_of(config: RunConfig) -> Timed:
    """Only the order and the batches of the run."""

    def make() -> float:
        task, data, order = loaded(config)
        begun = time.perf_counter()
        for step in range(task.plan.total_steps):
            task.randomness.width = order.width(step)
            data.batch("train", order.rows(step), task.randomness)
        return time.perf_counter() - begun

    return make


def by_hand(config: RunConfig) -> Timed:
    """transformers' model with its own attention and torch's dropout, on precomputed batches."""
    batches = taken(config)

    def train() -> float:
        task, plan = build(config)
        assert isinstance(task, TextClassifier)
        model = BertForSequenceClassification._from_config(task.model.config, attn_implementation="sdpa").train()
        optimizer = plan.make_optimizer(model.parameters())
        begun = time.perf_counter()
        for ids, mask, types, labels in batches:
            logits = model(ids, mask, types).logits
            loss = torch.nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return time.perf_counter() - begun

    return train
