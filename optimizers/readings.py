"""Other readings of paper A's methods, only for its experiments: `--opt optimizers.readings:SEPARATE_NGD`.

`bench list optimizers` does not show them: each is a method of the suite with a different reading of one word of the
paper.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from optimizers import pure
from optimizers.norms import global_norm
from optimizers.registry import TASK_VALUE, OptimizerSpec, Traits
from optimizers.step_size import CheckedOptimizer, StepSizeOptimizer, check_range, run_closure, safe_divide

_PAPER = "Vasudeva, Deora, Thrampoulidis, Implicit Bias and Fast Convergence Rates for Self-attention, TMLR 2025"


class SeparateNGD(CheckedOptimizer):
    """Normalised gradient descent with a norm for each parameter and a step that decreases.

        p <- p - lr * t^(-power) * g_p / ||g_p||,  t = 1, 2, ...

    Source: Vasudeva, Deora, Thrampoulidis (TMLR 2025), joint training; separate norms are our reading.

    Args:
        params: parameters or parameter groups; `lr` and `power` may differ by group.
        lr: length of the first step of each parameter, in [0, inf).
        power: exponent of the decrease, in [0, inf); 0 for a constant step.

    Raises:
        ValueError: a hyperparameter is out of its range.
    """

    def __init__(self, params: Iterable[Any], lr: float = 0.01, power: float = 0.0) -> None:
        super().__init__(params, dict(lr=lr, power=power, steps=0))

    def _check_group(self, group: dict[str, Any]) -> None:
        check_range("lr", group["lr"], 0)
        check_range("power", group["power"], 0)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step; `.grad` must hold the gradient of the whole batch. Returns what the closure did, else None."""
        loss = run_closure(closure)
        for group in self.param_groups:
            group["steps"] += 1
            length = group["lr"] * group["steps"] ** -group["power"]
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * safe_divide(length, global_norm([p.grad])).to(p.grad))
        return loss


def separate(
    grads: list[Tensor], state: dict[str, Any], params: list[Tensor], loss: Tensor, hparams: Mapping[str, Any]
) -> tuple[list[Tensor], dict[str, Any]]:
    """One step of `SeparateNGD` as a pure function (`OptimizerSpec.update`)."""
    steps = state.get("steps", torch.zeros_like(loss)) + 1
    length = hparams["lr"] * steps ** -hparams["power"]
    moved = [p - g * safe_divide(length, pure.norm([g])) for p, g in zip(params, grads, strict=True)]
    return moved, {"steps": steps}


class LengthSPS(StepSizeOptimizer):
    """Stochastic Polyak step size whose cap is one on the length of the step, not on its size.

        w <- w - lr * min((L - f_star) / (c ||g||^2), max_length / ||g||) * g

    Source: Loizou et al., arXiv 2002.10542; the cap is the other reading of eta_max in Vasudeva, Deora, Thrampoulidis.

    Args:
        params: parameters or parameter groups; `lr` may differ by group.
        lr: factor on the step, without unit, in [0, inf).
        c: scale of the denominator, in (0, inf).
        max_length: cap on the length of the step, in (0, inf]; inf for none.
        f_star: lower bound of the batch's loss, a finite number.

    Raises:
        ValueError: a hyperparameter is out of its range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        c: float = 0.5,
        max_length: float = float("inf"),
        f_star: float = 0.0,
    ) -> None:
        super().__init__(params, dict(lr=lr, c=c, max_length=max_length, f_star=f_star), None)

    def _check_group(self, group: dict[str, Any]) -> None:
        check_range("lr", group["lr"], 0)
        check_range("c", group["c"], 0, open_low=True)
        check_range("max_length", group["max_length"], 0, open_low=True, allow_inf=True)
        check_range("f_star", group["f_star"], -float("inf"), open_low=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, loss_grad_norm: Tensor | None = None) -> Any:
        """Make one step; `.grad` must hold the gradient of the loss that the closure returns.

        Args:
            closure: re-evaluates the model and returns the loss.
            loss_grad_norm: norm of the loss's gradient, where `.grad` was clipped.
        """
        loss = run_closure(closure)
        groups, norm = self._collect(loss_grad_norm)
        if norm is None:
            return loss
        for i, (group, params) in enumerate(groups):
            sizes = _sizes(torch.as_tensor(loss).detach().to(norm), norm, group)
            if i == 0:
                self.step_sizes = sizes
            self._descend(params, [p.grad for p in params], sizes[1])
        return loss


def length_capped(
    grads: list[Tensor],
    state: dict[str, Any],
    params: list[Tensor],
    loss: Tensor,
    hparams: Mapping[str, Any],
    *,
    loss_grad_norm: Tensor | None = None,
) -> tuple[list[Tensor], dict[str, Any]]:
    """One step of `LengthSPS` as a pure function (`OptimizerSpec.update`)."""
    sizes = _sizes(loss, pure.norm(grads) if loss_grad_norm is None else loss_grad_norm, hparams)
    return pure.descend(params, grads, sizes[1]), {"step_sizes": sizes}


def _sizes(loss: Tensor, norm: Tensor, hparams: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The step before and after its cap, times lr."""
    excess = (loss - hparams["f_star"]).clamp(min=0)
    raw = (safe_divide(safe_divide(excess, norm), norm) / hparams["c"]).clamp(max=torch.finfo(norm.dtype).max)
    cap = safe_divide(hparams["max_length"], norm)
    return hparams["lr"] * raw, hparams["lr"] * torch.minimum(raw, cap)


SEPARATE_NGD = OptimizerSpec(
    name="separate_ngd",
    target="optimizers.readings:SeparateNGD",
    formula="p <- p - lr * t^(-power) * g_p / ||g_p||, for each parameter p",
    source=_PAPER,
    traits=Traits(full_batch=True),
    update="optimizers.readings:separate",
)
LENGTH_SPS = OptimizerSpec(
    name="length_sps",
    target="optimizers.readings:LengthSPS",
    formula="w <- w - lr * min((L - f_star) / (c ||g||^2), max_length / ||g||) * g",
    source=_PAPER,
    defaults={"f_star": TASK_VALUE},
    traits=Traits(needs_loss=True, unscheduled=True),
    update="optimizers.readings:length_capped",
)
