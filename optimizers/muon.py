"""Muon: momentum with matrices orthogonalised before each step."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from optimizers import pure
from optimizers.norms import cut_like, scalar_dtype, whole
from optimizers.pure import Hparams, State, Tensors
from optimizers.step_size import CheckedOptimizer, run_closure

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""The quintic iteration's, by Jordan et al., with the largest slope at 0 that keeps singular values near 1."""


class Muon(CheckedOptimizer):
    """Momentum orthogonalised by Newton-Schulz iterations, for the matrices of hidden layers.

        b <- m b + (1 - m) g,   u = (1 - m) g + m b with Nesterov, else b
        w <- (1 - lr * weight_decay) w - lr * s * NS(u),   with X_0 = u / ||u||_F and
        X <- a X + (b A + c A^2) X,  A = X X^T,  `ns_steps` times

    NS(u) has the singular vectors of u and singular values of about 1 (0.7 to 1.2). A matrix has A rows
    and B columns; the scale s defines the unit of lr. `original`: s = sqrt(max(1, A / B)), Jordan's. `rms`:
    s = 0.2 sqrt(max(A, B)), which matches the root mean square of AdamW's updates, so that lr and weight decay of AdamW
    carry over.

    Tensors of more than two dimensions are stacks of matrices. A group may set `pieces`, the number of matrices
    stacked by rows in its tensors (3 for queries, keys and values in one tensor); each is orthogonalised separately.
    A step needs about four temporary copies of the largest stack of matrices of one shape.

    Source: Jordan et al., Muon: An optimizer for hidden layers in neural networks (2024); `rms` and decoupled weight
    decay: Liu et al., Muon is Scalable for LLM Training, arXiv 2502.16982.

    Args:
        params: parameters or parameter groups with two dimensions or more.
        lr: length of a step in units of the scale s, in [0, inf).
        momentum: m, in [0, 1).
        nesterov: look ahead by the momentum.
        weight_decay: decoupled weight decay per unit of lr, in [0, inf).
        ns_steps: iterations, in [0, 100).
        adjust: scale of lr: `original` or `rms`.
        bf16: iterate in bfloat16, as published, in place of the parameter's precision (at least float32).

    Raises:
        ValueError: a hyperparameter is out of its range, a parameter has fewer than two dimensions, or its rows cannot
            be cut into the pieces of its group.
    """

    RANGES: ClassVar = {"lr": "[0, inf)", "momentum": "[0, 1)", "weight_decay": "[0, inf)", "ns_steps": "[0, 100)"}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.02,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        ns_steps: int = 5,
        adjust: Literal["original", "rms"] = "original",
        bf16: bool = False,
    ) -> None:
        settings = dict(lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
        super().__init__(params, settings | dict(ns_steps=ns_steps, adjust=adjust, bf16=bf16, pieces=1))

    def _check_group(self, group: dict[str, Any]) -> None:
        for p in group["params"]:
            if p.ndim < 2:
                what = f"Muon updates matrices, and a parameter has the shape {tuple(p.shape)}"
                raise ValueError(f"{what}; use another method for others (on the command line --opt.rest adamw)")
            if p.shape[-2] % group["pieces"]:
                raise ValueError(f"pieces={group['pieces']}: a parameter of shape {tuple(p.shape)} has no such rows")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; `.grad` must hold the gradient of the whole batch. Returns what the closure did, else None."""
        loss = run_closure(closure)
        for group in self.param_groups:
            params = self._trained(group)
            if not params:
                continue
            grads = [p.grad for p in params]
            buffers = self._buffers(params)
            momentum = group["momentum"]
            torch._foreach_lerp_(buffers, grads, 1 - momentum)
            ahead = buffers
            if group["nesterov"]:
                ahead = [g.clone() for g in grads]  # torch 2.10 has only the in-place `_foreach_lerp` for DTensors
                torch._foreach_lerp_(ahead, buffers, momentum)
            moves = directions(ahead, group)
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, moves, alpha=-group["lr"])
        return loss


def update(grads: Tensors, state: State, params: Tensors, loss: Tensor, hparams: Hparams) -> tuple[Tensors, State]:
    """One step of Muon as a pure function (`OptimizerSpec.update`)."""
    lr, momentum, decay = hparams["lr"], hparams["momentum"], hparams["weight_decay"]
    before = state["momentum_buffers"] if state else [torch.zeros_like(p) for p in params]
    buffers = [torch.lerp(b, g, _like(1 - momentum, g)) for b, g in zip(before, grads, strict=True)]
    ahead = buffers
    if hparams["nesterov"]:
        ahead = [torch.lerp(g, b, _like(momentum, g)) for g, b in zip(grads, buffers, strict=True)]
    if not pure.known_zero(decay):
        params = [p * (1 - lr * decay) for p in params]
    return pure.descend(params, directions(ahead, hparams), lr), {"momentum_buffers": buffers}


def _like(value: Any, tensor: Tensor) -> Any:
    return value.to(tensor) if isinstance(value, Tensor) else value


def directions(tensors: Sequence[Tensor], hparams: Mapping[str, Any]) -> list[Tensor]:
    """The update directions for lr = 1: orthogonalised matrices, shape (..., A, B) each, times their scale.

    Sharded ones (DTensor) are gathered for it, and sharded again.
    """
    pieces = int(hparams.get("pieces", 1))
    full = [whole(t) for t in tensors]
    cut = [t.reshape(*t.shape[:-2], pieces, t.shape[-2] // pieces, t.shape[-1]) for t in full]
    alike: dict[Any, list[int]] = {}
    for i, t in enumerate(cut):
        alike.setdefault((t.shape, t.dtype, t.device), []).append(i)
    moves: dict[int, Tensor] = {}
    for indices in alike.values():  # all matrices of a shape at once: kernel launches are slow on a GPU
        stacked = torch.stack([cut[i] for i in indices])
        A, B = stacked.shape[-2:]
        scale = 0.2 * math.sqrt(max(A, B)) if hparams["adjust"] == "rms" else math.sqrt(max(1, A / B))
        exact = stacked.to(scalar_dtype(stacked.dtype))
        done = orthogonalised(exact, hparams["ns_steps"], bf16=hparams["bf16"]).to(stacked.dtype) * scale
        moves |= {i: done[k].reshape(full[i].shape) for k, i in enumerate(indices)}
    return [cut_like(moves[i], t, None) for i, t in enumerate(tensors)]


def orthogonalised(x: Tensor, steps: int, *, bf16: bool = False) -> Tensor:
    """Matrices (..., A, B) with the singular vectors of x and singular values of about 1; 0 stays 0."""
    a, b, c = COEFFICIENTS
    transposed = x.shape[-2] > x.shape[-1]
    x = x.mT if transposed else x
    peak = x.abs().amax((-2, -1), keepdim=True)  # or the squares of small gradients would underflow
    x = torch.where(peak == 0, 0.0, x / peak)  # keeps NaN
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=1)
    x = x.bfloat16() if bf16 else x
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if transposed else x
