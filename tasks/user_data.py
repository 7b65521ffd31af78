"""Tasks on a user's data: images or texts with labels, with the family's model, budget, batch and metric."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.core.spec import TaskSpec
from tasks.language.rows import RowTexts
from tasks.registry import image_spec, text_spec
from tasks.vision.images import ImageData, Labelled


def image_task(
    name: str, samples: Callable[[Path], Mapping[str, Labelled]], *, classes: int, n_val: int | None = None, **spec: Any
) -> TaskSpec:
    """A ViT-small that classifies images.

    Its options are those of `mnist`. Validation images are carved from the training set by the hashes of their rows
    (`tasks.core.order`).

    Args:
        name: of the task, as boards show it. It determines which images are kept for validation.
        samples: takes the data folder (`--data`) and returns {"train": (images, labels), "test": (images, labels)}.
            Images are uint8 of shape (N, H, W) or (N, H, W, C) with C in [1, 4], labels integers of shape (N,):
            arrays, or paths of IDX files, compressed (.gz) or not. A run with other samples fails before it starts,
            with a `tasks.DataError` that names row and value.
        classes: labels are in [0, classes).
        n_val: training images kept for validation, in [1, N); by default a tenth of them, but at most 5,000.
        spec: other attributes of the `TaskSpec`, in place of those of the family: `title`, `target`, `budget`.

    Raises:
        TypeError: `spec` names no attribute of a `TaskSpec`.
    """
    data = type("Images", (ImageData,), _attributes(name, samples, classes, n_val))
    return image_spec(**{"name": name, "title": f"ViT-small on {name}", "data": data, **spec})


def text_task(
    name: str,
    rows: Callable[[Path], Mapping[str, Sequence[tuple[Any, ...]]]],
    *,
    classes: int,
    n_val: int = 5_000,
    **spec: Any,
) -> TaskSpec:
    """A small BERT from random weights that classifies texts, or pairs of texts.

    Its options are those of `sst2`, by default `--task.scratch true`; `--task.preset pretrained` fine-tunes
    `--task.model`. Validation rows are carved from the training rows by their hashes (`tasks.core.order`).

    Args:
        name: of the task, as boards show it. It determines which rows are kept for validation.
        rows: takes the data folder (`--data`) and returns {"train": rows, "test": rows}, each (text, label), or each
            (text, second text, label), with integers as labels; at least 10 and 1 of them. A run with other rows fails
            before it starts, with a `tasks.DataError` that names row and value.
        classes: labels are in [0, classes).
        n_val: training rows kept for validation, at least 1; a tenth of the rows where that is less.
        spec: other attributes of the `TaskSpec`, in place of those of the family: `title`, `target`, `budget`.
            `derived` has `init_std`, unless `module` is another.

    Raises:
        TypeError: `spec` names no attribute of a `TaskSpec`.
    """
    data = type("Texts", (RowTexts,), _attributes(name, rows, classes, n_val))
    presets = {"scratch": {"scratch": True}, "pretrained": {"scratch": False}}
    values = {"name": name, "title": f"BERT on {name}", "data": data, "presets": presets}
    values |= {"derived": {}} if "module" in spec else {}  # another module may lack the options
    return text_spec(**{**values, **spec})


def _attributes(name: str, samples: Callable[[Path], Any], classes: int, n_val: int | None) -> dict[str, Any]:
    return {"name": name, "samples": staticmethod(samples), "classes": classes, "n_val": n_val}
