"""Images that live on the device as one uint8 tensor, shifted and flipped there in training."""

import torch
from torch import Tensor, nn

from tasks.core.data import TaskData
from tasks.core.randomness import BatchRandomness
from tasks.core.split import validation_rows

_AUGMENT_STREAM = 0  # dropout layers use the streams from 1 on


class ImageData(TaskData):
    """Images with labels in three splits; validation is carved from the training set.

    Args:
        train: images, uint8 of shape (N, C, H, W), and labels, int64 of shape (N,), of the official training set.
        test: the same of the official test set.
        num_classes: labels are in [0, num_classes).
        n_val: training images kept for validation, chosen by `tasks.core.split.validation_rows`.
        n_train: use only the first n_train of the remaining images; None for all.
        flip: mirror half of the training images left to right.
        crop: shift training images by up to this many pixels each way, with black padding; 0 for none.
        salt: name that decides the validation rows.
    """

    seeded = False

    def __init__(
        self,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        num_classes: int,
        n_val: int,
        n_train: int | None,
        flip: bool,
        crop: int,
        salt: str,
    ) -> None:
        images, labels = train
        held_out, rest = validation_rows(len(images), n_val, salt)
        if n_train is not None:
            if not 1 <= n_train <= len(rest):
                raise ValueError(f"n_train={n_train} is out of range: it must lie in [1, {len(rest)}]")
            if n_train < len(rest):
                self.part = f"{n_train:,} of {len(rest):,} training images"
            rest = rest[:n_train]
        if not 0 <= crop <= images.shape[-1]:
            raise ValueError(f"crop={crop} is out of range: it must lie in [0, {images.shape[-1]}] pixels")
        self.flip, self.crop = flip, crop
        self.num_classes = num_classes
        self.image_shape = tuple(images.shape[1:])
        self._splits = {
            "train": (images[rest], labels[rest]),
            "val": (images[held_out], labels[held_out]),
            "test": test,
        }
        self.sizes = {split: len(labels) for split, (_, labels) in self._splits.items()}
        self._dtype = torch.float32

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move all splits to the device; batches come in `dtype`."""
        self._splits = {split: (x.to(device), y.to(device)) for split, (x, y) in self._splits.items()}
        self._dtype = dtype

    def batch(
        self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None
    ) -> tuple[Tensor, Tensor]:
        """Images of shape (rows, C, H, W), scaled to [-1, 1], and labels of shape (rows,)."""
        images, labels = self._splits[split]
        # `images[rows]` gives the same, ten times slower on a CPU.
        x = images.index_select(0, rows) if isinstance(rows, Tensor) else images[rows]
        if randomness is not None and (self.flip or self.crop):
            x = self._augmented(x, randomness)
        # Normalize(0.5, 0.5) of pixels in [0, 1], in two passes instead of four.
        return x.to(self._dtype).mul_(2 / 255).sub_(1), labels[rows]

    def _augmented(self, x: Tensor, randomness: BatchRandomness) -> Tensor:
        """The images, uint8 of shape (rows, C, H, W), each shifted and flipped at random."""
        device = x.device
        uniform = randomness.draw(
            _AUGMENT_STREAM, torch.empty(len(x), 3, device=device), lambda u, source: u.uniform_(generator=source)
        )
        draw = (uniform[:, :2] * (2 * self.crop + 1)).long().T
        mirror = uniform[:, 2] < 0.5
        if self.crop:
            x = nn.functional.pad(x, [self.crop] * 4)
            channels, height, width = self.image_shape
            image, channel, line, _ = x.stride()
            # windows[i] is the window that begins at element i; each image takes one of them.
            last = x.numel() - (channel * (channels - 1) + line * (height - 1) + width)
            windows = x.as_strided((last + 1, channels, height, width), (1, channel, line, 1))
            x = windows.index_select(0, torch.arange(len(x), device=device) * image + draw[0] * line + draw[1])
        return torch.where(mirror[:, None, None, None], x.flip(-1), x) if self.flip else x
