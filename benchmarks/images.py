"""The training images of CIFAR-10, or random ones of the same shape where the files are missing."""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torchvision.datasets import CIFAR10

from tasks.vision.images import CIFAR10Data, ImageData


class Images(NamedTuple):
    """Pixels, uint8 of shape (50000, 32, 32, 3), classes, and their source."""

    pixels: np.ndarray[Any, Any]
    classes: list[int]
    source: str


@lru_cache
def cifar10_images() -> Images:
    """The files in $BENCH_DATA (default ./data), read once; nothing is downloaded."""
    try:
        dataset = CIFAR10(os.environ.get("BENCH_DATA", "data"))
    except RuntimeError:
        random = np.random.default_rng(0)
        pixels = random.integers(0, 256, (50_000, 32, 32, 3), dtype=np.uint8)
        return Images(pixels, random.integers(0, 10, 50_000).tolist(), "random images")
    return Images(dataset.data, dataset.targets, "CIFAR-10")


class MemoryImages(ImageData):
    """The training set of `CIFAR10Data`, without reading the files for each run; the evaluation sets are smaller."""

    name, classes, n_val = CIFAR10Data.name, CIFAR10Data.classes, CIFAR10Data.n_val

    def __init__(self, root: Path, seed: int = 0, *, flip: bool = False, crop: int = 0) -> None:
        super().__init__(root, seed, flip=flip, crop=crop)
        self.sizes |= {"val": 1000, "test": 1000}

    @staticmethod
    def samples(root: Path) -> dict[str, Any]:
        """The training set, as both sets."""
        pixels, labels, _ = cifar10_images()
        return dict.fromkeys(("train", "test"), (pixels, labels))

    def train_tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Training images, uint8 of shape (45000, 3, 32, 32), and labels."""
        return self._splits["train"]
