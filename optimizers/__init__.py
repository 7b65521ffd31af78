"""Optimizers to compare: plain `torch.optim.Optimizer` subclasses that work without the suite."""

from typing import TYPE_CHECKING, Any

from optimizers.registry import OPTIMIZERS, STEP_KEYWORDS, TASK_VALUE, LogUniform, OptimizerSpec, Traits

if TYPE_CHECKING:
    from optimizers.normalized import NGD, SNGD
    from optimizers.polyak import PS, SPS

__all__ = [
    "NGD",
    "OPTIMIZERS",
    "PS",
    "SNGD",
    "SPS",
    "STEP_KEYWORDS",
    "TASK_VALUE",
    "LogUniform",
    "OptimizerSpec",
    "Traits",
]


def __getattr__(name: str) -> Any:
    # On first use, so that listing the names does not import torch.
    if name in ("NGD", "SNGD", "PS", "SPS"):
        return OPTIMIZERS[name.lower()].cls
    raise AttributeError(f"module 'optimizers' has no attribute {name!r}")
