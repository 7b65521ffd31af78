"""Generated texts, small enough for hundreds of runs, and a tiny BERT on them: the task `tiny_text`."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tasks import BatchRandomness, TaskData
from tasks.language.labelled_text import TextBatch
from tests.tiny import TINY

VOCABULARY = 24
LONGEST = 9


class TinyText(TaskData):
    """Random tokens 3, 4, ..., in texts of 3 to 9 tokens, whose label is the second token modulo 3; token 0 is padding.

    A batch is as wide as its longest text.

    Args:
        root: unused.
        seed: unused.
    """

    seeded = False
    num_classes, vocab_size, pad_id = 3, VOCABULARY, 0
    tokenizer = SimpleNamespace(truncation={"max_length": LONGEST})

    def __init__(self, root: Any = None, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(0)
        self.sizes = {"train": 64, "val": 30, "test": 30}
        self._splits = {}
        for split, n in self.sizes.items():
            length = torch.randint(3, LONGEST + 1, (n, 1), generator=draw)
            ids = torch.randint(3, VOCABULARY, (n, LONGEST), generator=draw)
            ids[:, 0] = 1
            types = (torch.arange(LONGEST) >= length // 2).long()
            torch.rand(n, 2, generator=draw)  # the later splits stay as they were
            mask = torch.arange(LONGEST) < length
            self._splits[split] = (ids * mask, mask, types * mask, ids[:, 1] % 3)
        self.lengths = self._splits["train"][1].sum(1)

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move all splits to the device."""
        self._splits = {split: tuple(part.to(device) for part in parts) for split, parts in self._splits.items()}

    def batch(self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None) -> TextBatch:
        """The texts of these rows."""
        ids, mask, types, labels = (part[rows] for part in self._splits[split])
        width = (randomness and randomness.width) or int(mask.sum(1).max())
        return TextBatch(ids[:, :width], mask[:, :width], types[:, :width], labels)


TINY_TEXT = replace(
    TINY,
    name="tiny_text",
    title="a tiny BERT on made-up texts",
    module="tasks.language.bert:TextClassifier",
    data="tests.tiny_text:TinyText",
    target=None,
)
SIZES = {"task.scratch": True, "task.layers": 2, "task.width": 8, "task.num_heads": 2}
