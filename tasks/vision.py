"""Image classification: images that live on the device as one uint8 tensor, and the ViT-small of paper A."""

from typing import Any, Literal

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from tasks.attention import Kind, MultiHeadAttention, head_size
from tasks.base import Outcome, Task, TaskData
from tasks.dropout import BatchRandomness
from tasks.split import validation_rows

_AUGMENT_STREAM = 0  # dropout layers use the streams from 1 on


class ImageData(TaskData):
    """Images with labels in three splits; validation is carved from the training set.

    Args:
        train: images, uint8 of shape (N, C, H, W), and labels, int64 of shape (N,), of the official training set.
        test: the same of the official test set.
        num_classes: labels are in [0, num_classes).
        n_val: training images kept for validation, chosen by `tasks.split.validation_rows`.
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


class ViTClassifier(Task):
    """ViT-small: patches of an image as tokens, a class token, pre-norm transformer blocks, a linear head.

    Images of shape (B, C, H, W) give logits of shape (B, num_classes); the loss is the mean cross-entropy. Patch,
    depth, heads and MLP width are those of Vasudeva et al. (TMLR 2025); width, dropout and pooling those of the same
    first author's public ViT code; dropout acts on the embedding and after attention and MLP (our reading).

    Args:
        data: the images.
        patch_size: side of a square patch, in pixels; must divide the image.
        depth: number of transformer blocks.
        attention: kind of attention: `standard`, `fixed_head` with heads of any size, or `dcmha` with dynamically
            composed ones.
        num_heads: attention heads per block; must divide embed_dim where that decides the heads' size.
        head_dim: size of a head; by default embed_dim / num_heads, for `fixed_head` the number of tokens: patches and
            class token.
        mlp_width: hidden width of a block's MLP.
        embed_dim: width of a token.
        dropout: rate in [0, 1).
    """

    def __init__(
        self,
        data: ImageData,
        *,
        patch_size: int = 4,
        depth: int = 2,
        attention: Literal["standard", "fixed_head", "dcmha"] = "standard",
        num_heads: int = 8,
        head_dim: int | None = None,
        mlp_width: int = 128,
        embed_dim: int = 64,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(data)
        channels, height, width = data.image_shape
        for name, value in dict(patch_size=patch_size, depth=depth, mlp_width=mlp_width, embed_dim=embed_dim).items():
            if value < 1:
                raise ValueError(f"{name}={value} is out of range: it must be at least 1")
        if height % patch_size or width % patch_size:
            raise ValueError(f"patch_size={patch_size} does not divide the image of {height} x {width} pixels")
        tokens = height // patch_size * (width // patch_size) + 1
        size = head_size(attention, embed_dim, num_heads, head_dim, length=tokens, shown=f"{embed_dim=}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout} is out of range: it must lie in [0, 1)")
        self.num_classes = data.num_classes
        self.model = VisionTransformer(
            img_size=(height, width),
            patch_size=patch_size,
            in_chans=channels,
            num_classes=data.num_classes,
            embed_dim=embed_dim,
            depth=depth,
            num_heads=num_heads,
            mlp_ratio=mlp_width / embed_dim,
            pos_drop_rate=dropout,
            proj_drop_rate=dropout,
            attn_layer=_attention_layer(attention, size),
        )

    def loss(self, batch: tuple[Tensor, Tensor]) -> Outcome:
        """Mean cross-entropy of the logits."""
        images, labels = batch
        logits = self.model(images)
        return Outcome(nn.functional.cross_entropy(logits, labels), logits, labels)

    def metrics(self) -> dict[str, Metric]:
        """Share of images whose greatest logit is the label's."""
        return {"accuracy": MulticlassAccuracy(self.num_classes, average="micro", validate_args=False)}


def _attention_layer(kind: Kind, head_dim: int) -> type[nn.Module]:
    """Attention as timm builds and calls it."""

    class Attention(MultiHeadAttention):
        def __init__(self, dim: int, num_heads: int, *, attn_drop: float, proj_drop: float, **_: Any) -> None:
            super().__init__(dim, num_heads, head_dim, kind=kind, dropout=attn_drop, proj_dropout=proj_drop)

        def forward(self, x_BTD: Tensor, mask: Tensor | None = None, **_: Any) -> Tensor:
            return super().forward(x_BTD, mask)  # timm has no mask for images

    return Attention
