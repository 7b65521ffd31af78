"""Normalised gradient descent: the step's length is set by `lr`, not by the gradient's size."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from optimizers import pure
from optimizers.norms import global_norm
from optimizers.pure import Hparams, Norm, State, Tensors
from optimizers.step_size import CheckedOptimizer, StepSizeOptimizer, run_closure, safe_divide


class SNGD(StepSizeOptimizer):
    """Stochastic normalised gradient descent with a cap on the step size.

        step = min(lr / ||g||, max_step)
        w   <- w - step * g

    ||g|| is the Euclidean norm of the gradient over all parameters of all groups (and all shards). With momentum m
    the direction is averaged after it is scaled: b <- m b + (step / lr) g and w <- w - lr b, so that lr = 0
    freezes, and old, larger gradients do not dominate. Weight decay is decoupled: w <- (1 - lr * weight_decay) w.

    Source: Vasudeva, Deora, Thrampoulidis, Implicit Bias and Fast Convergence Rates for Self-attention (TMLR 2025);
    the place of eta_max in the formula is our reading of it.

    Args:
        params: parameters or parameter groups; `lr`, `max_step`, `momentum` and `weight_decay` may differ by group.
        lr: length of the step before clipping, in [0, inf).
        max_step: cap on lr / ||g||, in (0, inf]; inf for none.
        momentum: heavy-ball factor, in [0, 1].
        weight_decay: decoupled weight decay per unit of lr, in [0, inf).
        fused: None or True updates with one fused kernel where the tensors allow it, False with a plain loop.
    """

    RANGES: ClassVar = {"lr": "[0, inf)", "max_step": "(0, inf]", "momentum": "[0, 1]", "weight_decay": "[0, inf)"}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        max_step: float = float("inf"),
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        fused: bool | None = None,
    ) -> None:
        defaults = dict(lr=lr, max_step=max_step, momentum=momentum, weight_decay=weight_decay, fused=fused)
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, loss_grad_norm: Tensor | None = None) -> Any:
        """Take one step; `.grad` must hold the gradient of the whole batch.

        Args:
            closure: optional; re-evaluates the model and returns the loss, which `step` returns.
            loss_grad_norm: norm of the gradient before clipping, 0-dim; by default that of `.grad`.
        """
        loss = run_closure(closure)
        groups, norm = self._collect(loss_grad_norm)
        if norm is None:
            return loss
        for i, (group, params) in enumerate(groups):
            lr, cap = group["lr"], group["max_step"]
            raw = safe_divide(lr, norm)
            if i == 0:
                self.step_sizes = (raw, raw.clamp(max=cap))
            if group["weight_decay"] != 0:
                torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
            grads = [p.grad for p in params]
            if group["momentum"] == 0:
                self._descend(group, params, grads, raw.clamp(max=cap))
            else:
                unit_step = safe_divide(1.0, norm).clamp(max=cap / lr if lr > 0 else float("inf"))
                buffers = self._buffers(params)
                torch._foreach_mul_(buffers, group["momentum"])
                self._descend(group, buffers, grads, -unit_step)
                self._descend(group, params, buffers, torch.full_like(norm, lr))
        return loss


class NGD(SNGD):
    """Normalised gradient descent on the full batch: every step has the length `lr`.

        w <- w - lr * g / ||g||

    Source: Vasudeva, Deora, Thrampoulidis (TMLR 2025), Algorithm NGD; Nacson et al., arXiv 1803.01905. The arguments
    are those of `SNGD`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        fused: bool | None = None,
    ) -> None:
        super().__init__(params, lr, momentum=momentum, weight_decay=weight_decay, fused=fused)


def update(
    grads: Tensors, state: State, params: Tensors, loss: Tensor, hparams: Hparams, *, loss_grad_norm: Norm = None
) -> tuple[Tensors, State]:
    """One step of SNGD, or of NGD, which has no `max_step`, as a pure function (`OptimizerSpec.update`)."""
    lr, momentum, decay = hparams["lr"], hparams["momentum"], hparams["weight_decay"]
    cap = hparams.get("max_step", float("inf"))
    norm = pure.norm(grads) if loss_grad_norm is None else loss_grad_norm
    raw = safe_divide(lr, norm)
    step = raw.clamp(max=cap)
    new: dict[str, Any] = {"step_sizes": (raw, step)}
    if not pure.known_zero(decay):
        params = [p * (1 - lr * decay) for p in params]
    if pure.known_zero(momentum):
        return pure.descend(params, grads, step), new
    unit_step = safe_divide(1.0, norm).clamp(max=cap / lr)  # no cap where lr = 0
    buffers = [g * unit_step for g in grads]
    if state:
        buffers = [pure.plus(g, momentum, b) for g, b in zip(buffers, state["momentum_buffers"], strict=True)]
    return pure.descend(params, buffers, lr), {**new, "momentum_buffers": buffers}


class SeparateNGD(CheckedOptimizer):
    """Normalised gradient descent with a norm for each parameter and a decaying step.

        p <- p - lr * t^(-power) * g_p / ||g_p||,  t = 1, 2, ...

    Source: Vasudeva, Deora, Thrampoulidis (TMLR 2025), joint training; separate norms are our reading.

    Args:
        params: parameters or parameter groups; `lr` and `power` may differ by group.
        lr: length of the first step of each parameter, in [0, inf).
        power: exponent of the decay, in [0, inf); 0 for a constant step.
    """

    RANGES: ClassVar = {"lr": "[0, inf)", "power": "[0, inf)"}

    def __init__(self, params: Iterable[Any], lr: float = 0.01, power: float = 0.0) -> None:
        super().__init__(params, dict(lr=lr, power=power, steps=0))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; `.grad` must hold the gradient of the whole batch. Returns what the closure did, else None."""
        loss = run_closure(closure)
        for group in self.param_groups:
            group["steps"] += 1
            length = group["lr"] * group["steps"] ** -group["power"]
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * safe_divide(length, global_norm([p.grad])).to(p.grad))
        return loss


def separate(grads: Tensors, state: State, params: Tensors, loss: Tensor, hparams: Hparams) -> tuple[Tensors, State]:
    """One step of `SeparateNGD` as a pure function (`OptimizerSpec.update`)."""
    steps = state.get("steps", torch.zeros_like(loss)) + 1
    length = hparams["lr"] * steps ** -hparams["power"]
    moved = [p - g * safe_divide(length, pure.norm([g])) for p, g in zip(params, grads, strict=True)]
    return moved, {"steps": steps}
