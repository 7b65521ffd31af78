"""Optimizers to compare: plain `torch.optim.Optimizer` subclasses that work without the suite.

Your own optimizer imports from here if it uses the suite: `from optimizers import OptimizerSpec`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from optimizers.groups import ROLES, Parameter
from optimizers.registry import OPTIMIZERS, STEP_KEYWORDS, TASK_VALUE, LogUniform, OptimizerSpec, Traits

if TYPE_CHECKING:
    from optimizers.momo import MoMo
    from optimizers.muon import Muon
    from optimizers.normalized import NGD, SNGD
    from optimizers.norms import global_norm
    from optimizers.polyak import PS, SPS
    from optimizers.step_size import check_range, run_closure

__all__ = [
    "NGD", "OPTIMIZERS", "PS", "ROLES", "SNGD", "SPS", "STEP_KEYWORDS", "TASK_VALUE", "LogUniform", "MoMo", "Muon",
    "OptimizerSpec", "Parameter", "Traits", "check_range", "global_norm", "run_closure",
]  # fmt: skip

_LATER = {
    "check_range": "step_size", "run_closure": "step_size", "global_norm": "norms", "NGD": "normalized",
    "SNGD": "normalized", "PS": "polyak", "SPS": "polyak", "MoMo": "momo", "Muon": "muon",
}  # fmt: skip
"""Modules that are imported on first use, so that listing the names does not import torch."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'optimizers' has no attribute {name!r}")
    return getattr(import_module(f"optimizers.{_LATER[name]}"), name)
