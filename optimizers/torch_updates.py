"""The pure updates of torch's own optimizers (`OptimizerSpec.update`).

Formulas: documentation of torch.optim.SGD, Adam and AdamW. Flags that choose a kernel (foreach, fused, capturable,
differentiable) have no effect here.
"""

import math

import torch
from torch import Tensor

from optimizers.pure import Hparams, State, Tensors, descend, known_zero, plus


def sgd(grads: Tensors, state: State, params: Tensors, loss: Tensor, hparams: Hparams) -> tuple[Tensors, State]:
    """One step of torch.optim.SGD; `momentum_buffers` are kept unless momentum is known to be 0."""
    momentum, dampening, decay = hparams["momentum"], hparams["dampening"], hparams["weight_decay"]
    directions = [-g for g in grads] if hparams["maximize"] else grads
    if not known_zero(decay):
        directions = [plus(d, decay, p) for d, p in zip(directions, params, strict=True)]
    if known_zero(momentum):
        return descend(params, directions, hparams["lr"]), {}
    if state:
        fresh = directions
        if not known_zero(dampening):
            if isinstance(momentum, Tensor):  # torch dampens only where there is momentum
                dampening = torch.where(momentum == 0, torch.zeros_like(momentum), dampening)
            fresh = [d * (1 - dampening) for d in directions]
        buffers = [plus(d, momentum, b) for d, b in zip(fresh, state["momentum_buffers"], strict=True)]
    else:
        buffers = [d.clone() for d in directions]  # without dampening, as torch does
    ahead = buffers
    if hparams["nesterov"]:
        ahead = [plus(d, momentum, b) for d, b in zip(directions, buffers, strict=True)]
    return descend(params, ahead, hparams["lr"]), {"momentum_buffers": buffers}


def adam(grads: Tensors, state: State, params: Tensors, loss: Tensor, hparams: Hparams) -> tuple[Tensors, State]:
    """One step of torch.optim.Adam; the state has its `step` (number of steps, 0-dim) and averages."""
    lr, (beta1, beta2), decay = hparams["lr"], hparams["betas"], hparams["weight_decay"]
    if not state:
        zeros = [torch.zeros_like(p) for p in params]
        state = {"step": torch.zeros_like(lr), "exp_avgs": zeros, "exp_avg_sqs": zeros}
        if hparams["amsgrad"]:
            state["max_exp_avg_sqs"] = zeros
    step = state["step"] + 1
    directions = [-g for g in grads] if hparams["maximize"] else grads
    if not known_zero(decay):
        if hparams["decoupled_weight_decay"]:
            params = [p * (1 - lr * decay) for p in params]
        else:
            directions = [plus(d, decay, p) for d, p in zip(directions, params, strict=True)]
    averages = [torch.lerp(m, d, 1 - beta1) for m, d in zip(state["exp_avgs"], directions, strict=True)]
    squares = [average_square(v, d, beta2) for v, d in zip(state["exp_avg_sqs"], directions, strict=True)]
    new = {"step": step, "exp_avgs": averages, "exp_avg_sqs": squares}
    if hparams["amsgrad"]:
        squares = [torch.maximum(a, b) for a, b in zip(state["max_exp_avg_sqs"], squares, strict=True)]
        new["max_exp_avg_sqs"] = squares
    # m_hat / (sqrt(v_hat) + eps) = (root / correction) m / (sqrt(v) + root eps) saves a pass over the elements.
    root = correction(beta2, step).sqrt()
    eps = root * hparams["eps"]
    moves = [m / v.sqrt().add_(eps) for m, v in zip(averages, squares, strict=True)]
    return descend(params, moves, lr * root / correction(beta1, step)), new


def adamw(grads: Tensors, state: State, params: Tensors, loss: Tensor, hparams: Hparams) -> tuple[Tensors, State]:
    """One step of torch.optim.AdamW: Adam's, with decoupled weight decay."""
    return adam(grads, state, params, loss, {**hparams, "decoupled_weight_decay": True})


def average_square(average: Tensor, x: Tensor, beta: Tensor | float) -> Tensor:
    """Return beta * average + (1 - beta) * x^2. Not by `lerp`, which turns an infinite square into NaN."""
    if isinstance(beta, Tensor):
        return torch.addcmul(average * beta, x, x * (1 - beta))
    return torch.addcmul(average * beta, x, x, value=1 - beta)


def correction(beta: Tensor | float, step: Tensor) -> Tensor:
    """Return 1 - beta^step, with full precision in float32 too."""
    if isinstance(beta, Tensor):
        return -torch.expm1(step * beta.log())
    return -torch.expm1(step * math.log(beta)) if beta else torch.ones_like(step)
