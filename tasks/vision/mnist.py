"""MNIST: 60,000 + 10,000 handwritten digits of 28 x 28 grey pixels."""

from pathlib import Path

from tasks.vision.images import ArrayImages, Labelled
from tasks.vision.sources import MNIST

SPLIT_HASH = "7770a2f1e873fbce"


class MNISTData(ArrayImages):
    """MNIST from its four original files, compressed or not, in `<root>/MNIST/raw`, torchvision's folder.

    Of the 60,000 training images 5,000 are kept for validation.
    """

    name, classes, n_val = "mnist", 10, 5_000
    SOURCE = MNIST

    @staticmethod
    def samples(root: Path) -> dict[str, Labelled]:
        """The files, after a check of their contents' MD5."""
        MNIST.require_whole(root)
        files = MNIST.files(root)
        return {
            split: (files[f"{part}-images-idx3-ubyte"], files[f"{part}-labels-idx1-ubyte"])
            for split, part in (("train", "train"), ("test", "t10k"))
        }
