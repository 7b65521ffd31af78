"""MNIST: 60,000 + 10,000 handwritten digits of 28 x 28 grey pixels."""

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tasks.vision.images import ImageData
from tasks.vision.sources import MNIST

N_VAL = 5_000
SALT = "mnist"
SPLIT_HASH = "7770a2f1e873fbce"


class MNISTData(ImageData):
    """MNIST from the four original archives in `<root>/MNIST/raw`, the place where torchvision puts them.

    Args:
        root: the data folder.
        seed: unused; the images are the same for every seed.
        n_train: use only this many of the 55,000 training images; all by default.
        flip: mirror half of the training images left to right.
        crop: shift training images by up to this many pixels each way; 0 for none.
    """

    def __init__(
        self, root: Path, seed: int = 0, *, n_train: int | None = None, flip: bool = False, crop: int = 0
    ) -> None:
        MNIST.require_whole(root)
        folder = root / MNIST.folder
        super().__init__(
            (_images(folder, "train"), _labels(folder, "train")),
            (_images(folder, "t10k"), _labels(folder, "t10k")),
            num_classes=10, n_val=N_VAL, n_train=n_train, flip=flip, crop=crop, salt=SALT,
        )  # fmt: skip

    @staticmethod
    def files(root: Path) -> tuple[Path, dict[str, str]]:
        """The folder where the files belong, and MD5 by file name."""
        return root / MNIST.folder, dict(MNIST.md5)


def _images(folder: Path, part: str) -> Tensor:
    return _idx(folder / f"{part}-images-idx3-ubyte.gz")[:, None]


def _labels(folder: Path, part: str) -> Tensor:
    return _idx(folder / f"{part}-labels-idx1-ubyte.gz").long()


def _idx(path: Path) -> Tensor:
    """An array in the IDX format: two zero bytes, type (8: uint8), number of dimensions, their sizes, the values."""
    raw = gzip.decompress(path.read_bytes())
    dimensions = raw[3]
    shape = np.frombuffer(raw, ">i4", dimensions, offset=4)
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy())
