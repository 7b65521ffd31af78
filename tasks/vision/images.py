"""Images that live on the device as one uint8 tensor, shifted and flipped there in training."""

import pickle
from abc import abstractmethod
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from optimizers.step_size import check_range
from tasks.core.data import TaskData
from tasks.core.files import DataError, find_file, open_bytes, readable, splits_of
from tasks.core.order import split_hash, validation_rows
from tasks.core.randomness import BatchRandomness
from tasks.vision.sources import CIFAR10, MNIST

Labelled = tuple[Any, Any]
"""Images and labels: arrays, or paths of IDX files (`ImageData.samples`)."""
_AUGMENT_STREAM = 0  # dropout layers use the streams from 1 on


class ImageData(TaskData):
    """Images and labels from `samples`; validation is carved from the training set by `validation_rows`.

    Args:
        n_train: use only this many of the training images, the first in the order of their hashes; all by default.
        flip: mirror half of the training images left to right.
        crop: shift training images by up to this many pixels each way, with black padding; 0 for none.
    """

    seeded = False
    name: ClassVar[str]  # determines the validation rows, and appears in messages
    classes: ClassVar[int]  # labels are in [0, classes)
    n_val: ClassVar[int | None] = None  # training images kept for validation; None for a tenth, but at most 5,000

    def __init__(
        self, root: Path, seed: int = 0, *, n_train: int | None = None, flip: bool = False, crop: int = 0
    ) -> None:
        splits = splits_of(self.name, self.samples, root)
        train, test = (self._checked(split, splits[split]) for split in ("train", "test"))
        images, labels = train
        if images.shape[1:] != test[0].shape[1:]:
            (_, *a), (_, *b) = images.shape, test[0].shape
            raise DataError(f"{self.name}: test images are {b} and train images {a} (C, H, W); give them the same size")
        n = len(images)
        n_val = min(5_000, n // 10) if self.n_val is None else self.n_val
        if not 1 <= n_val < n:
            why = f"n_val={n_val} of {n} training images cannot be used for validation"
            raise DataError(f"{self.name}: {why}; it must be in [1, {n - 1}], by default of at least 10 images")
        held_out, rest = validation_rows(n, n_val, self.name)
        if n_train is not None:
            check_range("n_train", n_train, 1, len(rest))
            if n_train < len(rest):
                self.part = f"{n_train:,} of {len(rest):,} training images"
            rest = rest[:n_train]
        check_range("crop", crop, 0, images.shape[-1])
        self.flip, self.crop, self.image_shape = flip, crop, tuple(images.shape[1:])
        parts = {"train": (images[rest], labels[rest]), "val": (images[held_out], labels[held_out]), "test": test}
        self._splits: dict[str, tuple[Tensor, Tensor]] = parts
        self.sizes = {split: len(labels) for split, (_, labels) in parts.items()}
        self._dtype = torch.float32
        digest = sha256()
        for part in (*train, *test):
            digest.update(part.numpy().data)
        self._facts = {"samples": digest.hexdigest()[:16], "validation": split_hash(n, n_val, self.name)}

    @staticmethod
    @abstractmethod
    def samples(root: Path) -> Mapping[str, Labelled]:
        """Images and labels of "train" and of "test", as for `tasks.image_task`."""

    def facts(self) -> dict[str, Any]:
        """Facts that identify the images: digests of all of them, and of the held-out rows."""
        return self._facts

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move all splits to the device; batches come in `dtype`."""
        self._splits = {split: (x.to(device), y.to(device)) for split, (x, y) in self._splits.items()}
        self._dtype = dtype

    def batch(
        self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None
    ) -> tuple[Tensor, Tensor]:
        """Images of shape (rows, C, H, W), scaled to [-1, 1], and labels of shape (rows,)."""
        images, labels = self._splits[split]
        # `images[rows]` is ten times slower on a CPU.
        x = images.index_select(0, rows) if isinstance(rows, Tensor) else images[rows]
        if randomness is not None and (self.flip or self.crop):
            x = self._augmented(x, randomness)
        # Normalize(0.5, 0.5) of pixels in [0, 1], in two passes instead of four.
        return x.to(self._dtype).mul_(2 / 255).sub_(1), labels[rows]

    def _augmented(self, x: Tensor, randomness: BatchRandomness) -> Tensor:
        """The images, uint8 of shape (rows, C, H, W), each shifted and flipped at random."""
        device = x.device
        uniform = randomness.uniform(_AUGMENT_STREAM, torch.empty(len(x), 3, device=device))
        draw = (uniform[:, :2] * (2 * self.crop + 1)).long().T
        mirror = uniform[:, 2] < 0.5
        if self.crop:
            x = nn.functional.pad(x, [self.crop] * 4)
            channels, height, width = self.image_shape
            image, channel, line, _ = x.stride()
            # windows[i] begins at element i; each image takes one of them.
            last = x.numel() - (channel * (channels - 1) + line * (height - 1) + width)
            windows = x.as_strided((last + 1, channels, height, width), (1, channel, line, 1))
            x = windows.index_select(0, torch.arange(len(x), device=device) * image + draw[0] * line + draw[1])
        return torch.where(mirror[:, None, None, None], x.flip(-1), x) if self.flip else x

    def _checked(self, split: str, pair: Any) -> tuple[Tensor, Tensor]:
        """Images of shape (N, C, H, W) and labels."""
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(f"{self.name}: {split} is of type {type(pair).__name__}; give a pair of images and labels")
        x, y = (read_idx(part) if isinstance(part, Path | str) else np.array(part) for part in pair)
        if x.dtype != np.uint8 or x.ndim not in (3, 4) or 0 in x.shape or (x.ndim == 4 and x.shape[3] > 4):
            what = f"{split} images are {x.dtype} of shape {x.shape}"
            raise DataError(
                f"{self.name}: {what}; make them uint8 of shape (N, H, W), or (N, H, W, C) with C in [1, 4]"
            )
        if y.dtype.kind not in "iu" or y.shape != x.shape[:1]:
            what = f"{split} has {len(x)} images, and labels that are {y.dtype} of shape {y.shape}"
            raise DataError(f"{self.name}: {what}; give an integer for each image")
        for row in np.flatnonzero((y < 0) | (y >= self.classes)):
            what = f"{split} row {row} has the label {y[row]}, which is not in [0, {self.classes - 1}]"
            raise DataError(f"{self.name}: {what}; correct it, or set the number of classes")
        pixels = torch.from_numpy(x if x.ndim == 4 else x[..., None])
        return pixels.permute(0, 3, 1, 2).contiguous(), torch.from_numpy(y.astype(np.int64))


def read_idx(path: Path | str) -> NDArray[np.uint8]:
    """An array in the IDX format: two zero bytes, type (8: uint8), number of dimensions, their sizes, the values.

    The file may also exist with .gz, or without it. One that is missing, damaged, or of another type is a DataError.
    """
    path = Path(path)
    file = find_file([path.parent], [path.name.removesuffix(".gz")])
    if file is None:
        raise DataError(f"missing data: {path.name} expected in {path.parent}; copy it there, or set --data DIR")
    with readable(file, ValueError), open_bytes(file) as content:
        raw = content.read()
        if raw[:3] != b"\0\0\x08":
            raise ValueError(f"it begins with {raw[:4].hex()}, and IDX files of uint8 with 0000 08")
        shape = np.frombuffer(raw, ">i4", raw[3], offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape).copy()


class MNISTData(ImageData):
    """MNIST: 60,000 + 10,000 digits of 28 x 28 grey pixels, from its four files in `<root>/MNIST/raw`."""

    name, classes, n_val = "mnist", 10, 5_000
    SOURCES: ClassVar = {"mnist": MNIST}

    @staticmethod
    def samples(root: Path) -> dict[str, Labelled]:
        """The files, after a check of their contents' MD5."""
        MNIST.require_whole(root)
        files = MNIST.files(root)
        return {
            split: (files[f"{part}-images-idx3-ubyte"], files[f"{part}-labels-idx1-ubyte"])
            for split, part in (("train", "train"), ("test", "t10k"))
        }


class CIFAR10Data(ImageData):
    """CIFAR-10: 50,000 + 10,000 colour images of 32 x 32 pixels, from the pickles in `<root>/cifar-10-batches-py`.

    The pickles are read only if their MD5 is the official one.
    """

    name, classes, n_val = "cifar10", 10, 5_000
    SOURCES: ClassVar = {"cifar10": CIFAR10}

    @staticmethod
    def samples(root: Path) -> dict[str, Labelled]:
        """The content of the pickles, after a check of their MD5."""
        CIFAR10.require_whole(root)
        read = dict[str, Any]()
        for name, path in CIFAR10.files(root).items():
            with open_bytes(path) as file:
                read[name] = pickle.load(file, encoding="latin1")

        def joined(*parts: str) -> Labelled:
            images = np.concatenate([read[part]["data"] for part in parts]).reshape(-1, 3, 32, 32)
            return images.transpose(0, 2, 3, 1), np.concatenate([read[part]["labels"] for part in parts])

        return {"train": joined(*(f"data_batch_{i}" for i in range(1, 6))), "test": joined("test_batch")}
