"""CIFAR-10: 50,000 + 10,000 colour images of 32 x 32 pixels in ten classes."""

from pathlib import Path

import torch
from torch import Tensor

from tasks.vision.images import ImageData
from tasks.vision.sources import CIFAR10

N_VAL = 5_000
SALT = "cifar10"
SPLIT_HASH = "536c203a1db0c437"


class CIFAR10Data(ImageData):
    """CIFAR-10 from the Python pickles in `<root>/cifar-10-batches-py`, the place where torchvision puts them.

    The pickles are read only after their MD5 has been found to be the official one.

    Args:
        root: the data folder.
        seed: unused; the images are the same for every seed.
        n_train: use only this many of the 45,000 training images; all by default.
        flip: mirror half of the training images left to right.
        crop: shift training images by up to this many pixels each way; 0 for none.
    """

    def __init__(
        self, root: Path, seed: int = 0, *, n_train: int | None = None, flip: bool = False, crop: int = 0
    ) -> None:
        from torchvision import datasets

        CIFAR10.require_whole(root)

        def read(train: bool) -> tuple[Tensor, Tensor]:
            dataset = datasets.CIFAR10(str(root), train=train)
            return torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(dataset.targets)

        super().__init__(
            read(True), read(False), num_classes=10, n_val=N_VAL, n_train=n_train, flip=flip, crop=crop, salt=SALT
        )

    @staticmethod
    def files(root: Path) -> tuple[Path, dict[str, str]]:
        """The folder where the files belong, and MD5 by file name."""
        return root / CIFAR10.folder, dict(CIFAR10.md5)
