"""Locations and sources of the images of these tasks. Importing this file imports no torch.

`TaskSpec.files` names a function for each task that reads files: it makes sure that they exist.
"""

import urllib.request
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tasks.core.files import DataError, find_file, folders_of, md5, require_present, unpack


@dataclass(frozen=True)
class ImageSource:
    """Image files in torchvision's folders, or in those that people have, compressed or not."""

    folder: str  # below the data folder
    md5: dict[str, str]  # by file name, of the uncompressed content
    dataset: str  # torchvision's class of that data set, which downloads it
    archive: str = ""  # name of a tar archive of the folder, as published
    ending: str = ""  # of the files as published: `.gz` or nothing
    url: str = ""  # of a published file, asked for first, since torchvision takes seconds to import

    def files(self, root: Path) -> dict[str, Path]:
        """The files by name; for a missing one, where it is expected."""
        folders = [root / self.folder, *self._folders(root), root]
        paths = {name: find_file(folders, [name]) for name in self.md5}
        home = next((path.parent for path in paths.values() if path), folders[0])
        return {name: path or home / f"{name}{self.ending}" for name, path in paths.items()}

    def _folders(self, root: Path) -> list[Path]:
        """Where torchvision puts the files, or unpacking by hand does."""
        return folders_of(root, [*Path(self.folder).parts, self.dataset, self.archive.partition(".")[0], *self.md5])

    def require(self, root: Path) -> None:
        """Make sure that the files exist; unpack or download them if not, or raise a DataError."""
        if self.archive and not all(path.is_file() for path in self.files(root).values()):
            stem = self.archive.partition(".")[0]
            if archive := find_file([root, *self._folders(root)], [f"{stem}.tar", f"{stem}.tgz"]):
                unpack(archive, root / self.folder, self.md5)
        require_present(self.files(root).values(), lambda _: self._download(root))

    def _download(self, root: Path) -> None:
        with urllib.request.urlopen(self.url, timeout=10):
            getattr(import_module("torchvision.datasets"), self.dataset)(str(root), download=True)

    def require_whole(self, root: Path) -> None:
        """Make sure that the files exist and are undamaged, or raise a DataError."""
        self.require(root)
        for name, path in self.files(root).items():
            if (actual := md5(path)) != self.md5[name]:
                what = f"damaged data file {path}: {path.stat().st_size:,} bytes, of MD5 {actual}, not {self.md5[name]}"
                raise DataError(f"{what}; delete it and copy or download it again")


MNIST = ImageSource(
    "MNIST/raw",
    {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    dataset="MNIST",
    ending=".gz",
    url="https://ossci-datasets.s3.amazonaws.com/mnist/t10k-labels-idx1-ubyte.gz",
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
    dataset="CIFAR10",
    archive="cifar-10-python.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
)
