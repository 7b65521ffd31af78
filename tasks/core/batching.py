"""Batching rules of our own for `torch.func.vmap`."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor

Rule = Callable[..., Tensor]


def with_batching_rule(rule: Rule) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Decorate a function of positional arguments with a rule for `vmap`, where torch has none or a slow one.

    The rule takes the number of lanes, the lanes' dimension in each argument (None if it has none), and the arguments;
    it returns the result of all lanes, stacked along dimension 0. Nested lanes reach it level by level.
    """

    def decorate(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        class Ruled(torch.autograd.Function):
            @staticmethod
            def forward(*inputs: Any) -> Tensor:
                return function(*inputs)

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
                pass  # autograd differentiates the operations of the rule

            @staticmethod
            def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
                return rule(info.batch_size, in_dims, *inputs), 0

        @wraps(function)
        def either(*inputs: Any) -> Tensor:
            # `apply` takes 0.2 ms, so it is called for lanes only.
            lanes = not torch.compiler.is_compiling() and any(
                isinstance(x, Tensor) and is_batchedtensor(x) for x in inputs
            )
            result: Any = Ruled.apply(*inputs) if lanes else function(*inputs)
            return result

        return either

    return decorate
