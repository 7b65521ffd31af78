"""MoMo: a Polyak step along averaged gradients, with a model of the loss from past batches."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from optimizers import pure
from optimizers.norms import global_dot, global_norm
from optimizers.pure import Hparams, State, Tensors
from optimizers.step_size import StepSizeOptimizer, as_tensor, check_range, safe_divide


class MoMo(StepSizeOptimizer):
    """Model-based momentum: SGD with momentum whose step is Polyak's, capped by lr.

        f_bar <- beta f_bar + (1 - beta) L,   d <- beta d + (1 - beta) g,   gamma <- beta gamma + (1 - beta) <g, w>
        step = min(((1 + lr * weight_decay) (f_bar - gamma - f_star) + <d, w>)_+ / ||d||^2, lr)
        w <- (w - step * d) / (1 + lr * weight_decay)

    f_bar + <d, w'> - gamma is the average of the past batches' linear models of the loss at w'; the step goes to the
    point where it equals f_star, but is at most the exact proximal step of length lr. Averages start with the first
    batch's values. Products are over all parameters of all groups (and all shards). With beta = 0 it is SPS with c = 1
    and max_step = lr.

    Source: Schaipp, Ohana, Eickenberg, Defazio, Gower, MoMo: Momentum Models for Adaptive Learning Rates, arXiv
    2305.07583 (Algorithm 1, with weight decay by its proximal operator).

    Args:
        params: parameters or parameter groups, which share one step where their `lr` and `weight_decay` are equal.
        lr: cap on the step, in [0, inf). Schedules act here.
        beta: decay rate of the averages, in [0, 1).
        f_star: lower bound of the loss, a finite number.
        weight_decay: strength of the quadratic penalty, in [0, inf).
        fused: None or True updates with one fused kernel where the tensors allow it, False with a plain loop.
    """

    RANGES: ClassVar = {"lr": "[0, inf)", "weight_decay": "[0, inf)"}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        beta: float = 0.9,
        f_star: float = 0.0,
        weight_decay: float = 0.0,
        *,
        fused: bool | None = None,
    ) -> None:
        check_range("beta", beta, 0, 1, open_high=True)
        check_range("f_star", f_star, -float("inf"), open_low=True)
        # f_bar and gamma are shared by all groups. The first group stores them: loading would round values in `state`.
        self.beta, self.f_star = beta, f_star
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, model=None, fused=fused))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "beta": self.beta, "f_star": self.f_star}

    def _check_group(self, group: dict[str, Any]) -> None:
        for name in ("beta", "f_star"):
            if name in group:
                raise ValueError(f"{name}={group[name]}: MoMo has one {name} for all parameters")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, loss: Tensor | float | None = None) -> Any:
        """Take one step and return the loss; `.grad` must hold the gradient of the whole batch, and the loss be of it.

        The closure returns the loss, averaged like the gradient; `loss` is the loss instead of a closure.
        """
        value = self._loss(closure, loss)
        groups, norm = self._collect(None)
        if norm is None:
            return value
        loss_value = as_tensor(value, norm)
        params = [p for _, members in groups for p in members]
        grads = [p.grad for p in params if p.grad is not None]
        for p, g in zip(params, grads, strict=True):
            if "direction" in self.state[p]:
                self.state[p]["direction"].lerp_(g, 1 - self.beta)
            else:
                self.state[p]["direction"] = g.clone()
        directions = [self.state[p]["direction"] for p in params]
        now = torch.stack([loss_value, global_dot(grads, params).to(norm)])
        before = self.param_groups[0]["model"]
        model = now if before is None else self.beta * before.to(now) + (1 - self.beta) * now
        self.param_groups[0]["model"] = model
        product, length = global_dot(directions, params).to(norm), global_norm(directions)
        for i, (group, members) in enumerate(groups):
            decayed = 1 + group["lr"] * group["weight_decay"]
            raw = _raw_step(model, self.f_star, product, length, decayed)
            if i == 0:
                self.step_sizes = (raw, raw.clamp(max=group["lr"]))
            self._descend(group, members, [self.state[p]["direction"] for p in members], raw.clamp(max=group["lr"]))
            if group["weight_decay"] != 0:
                torch._foreach_mul_(members, 1 / decayed)
        return value


def update(grads: Tensors, state: State, params: Tensors, loss: Tensor, hparams: Hparams) -> tuple[Tensors, State]:
    """One step of MoMo as a pure function (`OptimizerSpec.update`)."""
    lr, beta, decay = hparams["lr"], hparams["beta"], hparams["weight_decay"]
    directions, model = [g.clone() for g in grads], torch.stack([loss, pure.dot(grads, params)])
    if state:
        weight = beta if isinstance(beta, Tensor) else torch.full_like(loss, beta)
        directions = [torch.lerp(d, g, (1 - weight).to(g)) for d, g in zip(state["directions"], grads, strict=True)]
        model = weight * state["model"] + (1 - weight) * model
    decayed = 1 + lr * decay
    raw = _raw_step(model, hparams["f_star"], pure.dot(directions, params), pure.norm(directions), decayed)
    step = raw.clamp(max=lr)
    moved = pure.descend(params, directions, step)
    if not pure.known_zero(decay):
        moved = [p / decayed for p in moved]
    return moved, {"directions": directions, "model": model, "step_sizes": (raw, step)}


def _raw_step(model: Tensor, f_star: Any, product: Tensor, length: Tensor, decayed: Any) -> Tensor:
    """The step to the point where the model of the loss equals f_star, 0-dim; 0 if it is behind, or d = 0.

    The model is f_bar and gamma, shape (2,); the product <d, w>, the length ||d||; `decayed` is 1 + lr * weight_decay.
    """
    ahead = (decayed * (model[0] - model[1] - f_star) + product).clamp(min=0)
    return safe_divide(safe_divide(ahead, length), length)  # the square of a small norm would underflow
