"""FSDP2 with unsharded checkpoints, in one file, for every optimizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.optim import Optimizer

from optimizers.norms import cut_like, whole


class ShardedStrategy(ModelParallelStrategy):
    """Lightning's FSDP2 strategy, for this many ranks, except for its checkpoints.

    Lightning restores optimizers by torch's distributed checkpoints, which initialise an optimizer's state by a step
    without a loss, and fail for methods without state. Here each tensor is gathered when saved and sharded again when
    loaded.
    """

    def __init__(self, ranks: int) -> None:
        super().__init__(data_parallel_size=ranks, tensor_parallel_size=1, save_distributed_checkpoint=False)

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Make Lightning call `load_optimizer_state_dict`."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The module's tensors, unsharded, on every rank."""
        assert self.lightning_module is not None
        return {name: whole(value) for name, value in self.lightning_module.state_dict().items()}

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimizer's state, unsharded, on every rank."""
        state = optimizer.state_dict()
        gathered = {i: {name: whole(value) for name, value in values.items()} for i, values in state["state"].items()}
        return {**state, "state": gathered}

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        """Read the file on every rank."""
        return torch.load(checkpoint_path, map_location="cpu", weights_only=weights_only)

    @torch.no_grad()
    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Give each rank its shards of the module."""
        assert self.lightning_module is not None
        for name, value in self.lightning_module.state_dict().items():
            value.copy_(cut_like(checkpoint["state_dict"][name], value))

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Give each rank its shards of the optimizers' state."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            params = [p for group in optimizer.param_groups for p in group["params"]]
            cut = {i: {k: _cut_state(v, params[i]) for k, v in values.items()} for i, values in state["state"].items()}
            optimizer.load_state_dict({**state, "state": cut})


def _cut_state(value: Any, param: Tensor) -> Any:
    belongs = isinstance(value, Tensor) and value.shape == param.shape and value.dim() > 0
    return cut_like(value, param) if belongs else value
