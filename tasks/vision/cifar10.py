"""CIFAR-10: 50,000 + 10,000 colour images of 32 x 32 pixels in ten classes."""

from pathlib import Path

from tasks.vision.images import ArrayImages, Labelled
from tasks.vision.sources import CIFAR10

SPLIT_HASH = "536c203a1db0c437"


class CIFAR10Data(ArrayImages):
    """CIFAR-10 from the Python pickles in `<root>/cifar-10-batches-py`, torchvision's folder.

    The pickles are read only if their MD5 is the official one. Of the 50,000 training images
    5,000 are kept for validation.
    """

    name, classes, n_val = "cifar10", 10, 5_000
    SOURCE = CIFAR10

    @staticmethod
    def samples(root: Path) -> dict[str, Labelled]:
        """The content of the pickles."""
        from torchvision import datasets

        CIFAR10.require_whole(root)
        folder = CIFAR10.find(root).parent
        read = {split: datasets.CIFAR10(str(folder), train=split == "train") for split in ("train", "test")}
        return {split: (dataset.data, dataset.targets) for split, dataset in read.items()}
