"""BERT-base on pairs of sentences of the shape of MNLI, by the suite and by a plain Lightning loop.

The words are made up and the weights random, so nothing is downloaded.
"""

import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import BertForSequenceClassification

from bench.config import RunConfig
from bench.runner import build, quiet
from benchmarks.timing import Timed, settle
from benchmarks.training import configure as run_of
from tasks.core.order import BatchOrder
from tasks.language.bert import TextClassifier
from tasks.language.labelled_text import TextBatch, TextData

ROWS = {"train": 9_000, "validation_matched": 100, "validation_mismatched": 100}
WORDS = {"premise": 20, "hypothesis": 10}
"""Words of a sentence in the mean, about those of MNLI (Williams, Nangia, Bowman 2018, table 3)."""
VOCABULARY = 30_522
"""Of bert-base-uncased."""


def configure(folder: Path, steps: int, device: str, tiny: bool) -> RunConfig:
    """A run of so many steps on made-up pairs that this writes into the folder.

    Twelve layers of width 768 and that vocabulary are BERT-base, but for the words that the tokens stand for.
    """
    draw, size = np.random.default_rng(0), 200 if tiny else VOCABULARY
    words = [f"w{i}" for i in range(size - 5)]
    (folder / "mnli").mkdir()
    for split, n in ROWS.items():
        texts = {
            name: [" ".join(words[i] for i in draw.integers(0, len(words), k)) for k in draw.geometric(1 / mean, n)]
            for name, mean in WORDS.items()
        }
        pq.write_table(pa.table({**texts, "label": draw.integers(0, 3, n)}), folder / "mnli" / f"{split}.parquet")
    (folder / "model").mkdir()
    (folder / "model" / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    more = {"task.scratch": True, "task.model": str(folder / "model"), "precision": "bf16-mixed", "data": folder}
    more |= {"task.layers": 1 if tiny else 12, "task.width": 16 if tiny else 768}
    return run_of("mnli", "adamw", steps, folder / "runs", device, **more)


def batches_of(config: RunConfig) -> list[TextBatch]:
    """The run's batches, on its device."""
    task, plan = build(config)
    data, device = task.data, torch.device(config.device)
    assert isinstance(data, TextData)
    data.to(device, torch.float32)
    order = BatchOrder(data.sizes["train"], plan.batch_size, plan.data_seed, device, data.lengths)
    found = []
    for step in range(plan.total_steps):
        task.randomness.width = order.width(step)
        found.append(data.batch("train", order.rows(step), task.randomness))
    return found


class Plain(pl.LightningModule):
    """What one would write: transformers' model and attention, torch's dropout, automatic optimization."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        task, self.plan = build(config)
        assert isinstance(task, TextClassifier)
        self.model = BertForSequenceClassification._from_config(task.model.config, attn_implementation="sdpa").train()

    def training_step(self, batch: TextBatch) -> Tensor:
        """Mean cross-entropy."""
        logits = self.model(batch.ids, batch.mask, batch.types).logits
        return nn.functional.cross_entropy(logits, batch.labels)

    def configure_optimizers(self) -> Any:
        """The run's own class and hyperparameters."""
        return self.plan.make_optimizer(self.parameters())


class _Clock(pl.Callback):
    seconds = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        settle()
        self.seconds = -time.perf_counter()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        settle()
        self.seconds += time.perf_counter()


def by_lightning(config: RunConfig, batches: list[TextBatch]) -> Timed:
    """A Trainer as Lightning makes it, without its logger and checkpoints, over batches that are there already."""

    def train() -> float:
        clock = _Clock()
        with quiet():
            trainer = pl.Trainer(
                accelerator=config.device, devices=1, precision=config.precision, max_epochs=1, callbacks=[clock],
                logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            )  # fmt: skip
            trainer.fit(Plain(config), DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
        return clock.seconds

    return train
