"""Locations and sources of the data of these tasks. Importing this file imports no torch.

`TaskSpec.files` names a function for each task that reads files: it makes sure that they exist.
"""

from dataclasses import dataclass
from pathlib import Path

from tasks.core.files import fetch, require_files, require_present


@dataclass(frozen=True)
class ImageSource:
    """Image files in torchvision's folders.

    Attributes:
        folder: below the data folder.
        md5: by file name.
        url: of a tar archive that holds the folder, or of the folder, if it ends with a slash.
    """

    folder: str
    md5: dict[str, str]
    url: str

    def require(self, root: Path) -> None:
        """Make sure that the files exist; download them if not, or raise a DataError."""
        require_present(root / self.folder, self.md5, lambda: fetch(self.url, root / self.folder, self.md5))

    def require_whole(self, root: Path) -> None:
        """Make sure that the files exist and are undamaged, or raise a DataError."""
        self.require(root)
        require_files(root / self.folder, self.md5)


MNIST = ImageSource(
    "MNIST/raw",
    {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
CIFAR10 = ImageSource(
    "cifar-10-batches-py",
    {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    },
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
)
