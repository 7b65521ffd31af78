"""A task small enough for hundreds of runs: a ViT on random 8 x 8 images, registered as `tiny`."""

from pathlib import Path
from typing import Any

import torch

from tasks import TASKS, TaskSpec
from tasks.vision.images import ImageData


class TinyImages(ImageData):
    """64 training images of random pixels whose brightness determines the label."""

    name, classes, n_val = "tiny", 4, 16

    @staticmethod
    def samples(root: Any = None) -> dict[str, Any]:
        """80 and 32 images of 8 x 8 pixels."""
        generator = torch.Generator().manual_seed(0)

        def split(n: int) -> tuple[Any, Any]:
            labels = torch.randint(0, 4, (n,), generator=generator)
            noise = torch.randint(0, 100, (n, 8, 8), generator=generator)
            return (noise + 40 * labels[:, None, None]).to(torch.uint8).numpy(), labels.numpy()

        return {"train": split(80), "test": split(32)}


TINY = TaskSpec(
    name="tiny",
    title="a tiny ViT on random images",
    module="tasks.vision.vit:ViTClassifier",
    data="tests.tiny:TinyImages",
    metric="accuracy",
    mode="max",
    target=0.5,
    budget={"max_steps": 20},
    source="tests",
    batch_size=16,
    steps_per_call=7,
)
SIZES = {"task.patch_size": 4, "task.depth": 2, "task.num_heads": 2, "task.mlp_width": 16, "task.embed_dim": 8}
ROOT = Path(__file__).parent.parent


def register(spec: TaskSpec = TINY) -> None:
    """Register a task in this process."""
    TASKS.built_in[spec.name] = spec
