"""The ViT-small of paper A, an image classifier."""

from collections.abc import Mapping
from typing import Any, Literal

from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from optimizers.groups import Role
from optimizers.step_size import check_range
from tasks.core.attention import Kind, MultiHeadAttention, check_counts, head_size
from tasks.core.roles import COMPOSITION
from tasks.core.task import Task
from tasks.core.training_step import Outcome
from tasks.vision.images import ImageData


class ViTClassifier(Task):
    """ViT-small: patches of an image as tokens, a class token, pre-norm transformer blocks, a linear head.

    Images of shape (B, C, H, W) give logits of shape (B, num_classes); the loss is the mean cross-entropy. Patch,
    depth, heads and MLP width are those of Vasudeva et al. (TMLR 2025); width, dropout and pooling those of the same
    first author's public ViT code; dropout acts on the embedding and after attention and MLP (our reading).

    Args:
        patch_size: side of a square patch, in pixels; must divide the image.
        depth: number of transformer blocks.
        attention: `standard`, `fixed_head` with heads of any size, or `dcmha` with dynamically composed ones.
        num_heads: attention heads per block; must divide embed_dim for `standard`, and for `dcmha` without head_dim.
        head_dim: size of a head; by default embed_dim / num_heads, for `fixed_head` the number of tokens.
        mlp_width: hidden width of a block's MLP.
        embed_dim: width of a token.
        dropout: rate in [0, 1).
    """

    roles: Mapping[str, Role] = {
        "model.cls_token": "embedding",
        "model.*pos_embed": "embedding",
        "model.head.weight": "head",
        **COMPOSITION,
    }
    pieces: Mapping[str, int] = {"*.qkv.weight": 3}  # queries, keys and values, each of all heads

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
        check_counts(patch_size=patch_size, depth=depth, mlp_width=mlp_width, embed_dim=embed_dim)
        if height % patch_size or width % patch_size:
            raise ValueError(f"patch_size={patch_size} does not divide the image of {height} x {width} pixels")
        tokens = height // patch_size * (width // patch_size) + 1
        size = head_size(attention, embed_dim, num_heads, head_dim, length=tokens, shown=f"{embed_dim=}")
        check_range("dropout", dropout, 0, 1, open_high=True)
        self.num_classes = data.classes
        self.model = VisionTransformer(
            img_size=(height, width),
            patch_size=patch_size,
            in_chans=channels,
            num_classes=data.classes,
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
        """Share of images whose largest logit is the label's."""
        return {"accuracy": MulticlassAccuracy(self.num_classes, average="micro", validate_args=False)}


def _attention_layer(kind: Kind, head_dim: int) -> type[nn.Module]:
    """Attention with timm's constructor and call."""

    class Attention(MultiHeadAttention):
        def __init__(self, dim: int, num_heads: int, *, attn_drop: float, proj_drop: float, **_: Any) -> None:
            super().__init__(dim, num_heads, head_dim, kind=kind, dropout=attn_drop, proj_dropout=proj_drop)

        def forward(self, x_BTD: Tensor, mask: Tensor | None = None, **_: Any) -> Tensor:
            return super().forward(x_BTD, mask)  # timm passes no mask for images

    return Attention
