"""BERT-base on synthetic sentence pairs with the lengths of MNLI, by the suite and by a plain Lightning loop.

Words and weights are random, so nothing is downloaded.
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

from bench.config.run_config import RunConfig
from bench.train.runner import build, quiet
from benchmarks.timing import Timed, settle
from benchmarks.training import configure as run_of
from tasks.core.order import BatchOrder
from tasks.language.bert import TextClassifier
from tasks.language.labelled_text import TextBatch, TextData

ROWS = {"train": 9_000, "validation_matched": 100, "validation_mismatched": 100}
WORDS = {"premise": 20, "hypothesis": 10}
"""Mean number of words, about that of MNLI (Williams, Nangia, Bowman 2018, table 3)."""
VOCABULARY = 30_522
"""Of bert-base-uncased."""


def configure(folder: Path, steps: int, device: str, tiny: bool) -> RunConfig:
    """A run of `steps` steps on synthetic pairs, which this writes into the folder.

    With 12 layers of width 768 and this vocabulary size, the model is BERT-base with other words.
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
    """A typical module: transformers' model and attention, torch's dropout, automatic optimization."""

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
        """The run's optimizer and hyperparameters."""
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
    """Lightning's default Trainer, without its logger and checkpoints, on precomputed batches."""

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
