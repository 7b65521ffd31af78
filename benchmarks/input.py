"""Images per second with crop and flip: one gather on the device against torchvision's transforms and a DataLoader."""

from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import CIFAR10

from benchmarks.images import MemoryImages, cifar10_images
from benchmarks.timing import Row, Timed, alternate, timed
from tasks import BatchRandomness

BATCH = 100


def measure(quick: bool) -> list[Row]:
    """Speed-ups over a DataLoader without workers and with two, for the same number of images."""
    n, rounds = (1000, 2) if quick else (5000, 7)
    source, rows = cifar10_images().source, []
    for workers, bound in ((0, 15), (2, 8)):
        measured = alternate(torchvision_epoch(n, workers), {"ours": our_epoch(n)}, rounds)["ours"]
        pil = f"torchvision, {workers} workers"
        rows += [
            Row(f"ImageData.batch, flip and crop, {source}", pil, measured.speedups, bound, at_least=True),
            Row("ImageData.batch", "-", [n / s for s in measured.candidate], unit=" images/s"),
            Row(pil, "-", [n / s for s in measured.baseline], unit=" images/s"),
        ]
    return rows


def our_epoch(n: int) -> Timed:
    """All batches of n random images, one after the other."""
    data = MemoryImages(Path(), flip=True, crop=4)
    data.to(torch.device("cpu"), torch.float32)
    where = BatchRandomness()
    where.rows = slice(0, BATCH)

    def epoch() -> None:
        order = torch.randperm(data.sizes["train"])
        for step in range(n // BATCH):
            where.step = step
            data.batch("train", order[step * BATCH : (step + 1) * BATCH], where)

    return timed(epoch)


def torchvision_epoch(n: int, workers: int) -> Timed:
    """All batches of n random images from torchvision's dataset; the workers persist between epochs."""
    pixels, classes, _ = cifar10_images()
    dataset = CIFAR10.__new__(CIFAR10)  # reads no file, so random images work too
    dataset.data, dataset.targets, dataset.target_transform = pixels[:n], classes[:n], None
    half = (0.5, 0.5, 0.5)
    dataset.transform = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(half, half),
        ]
    )
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)

    def epoch() -> None:
        for _ in loader:
            pass

    return timed(epoch)
