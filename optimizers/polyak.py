"""Polyak step sizes: the distance of the loss to its minimum sets the step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from optimizers import pure
from optimizers.pure import Hparams, Norm, State, Tensors
from optimizers.step_size import StepSizeOptimizer, as_tensor, check_range, safe_divide


class _Polyak(StepSizeOptimizer, ABC):
    """Base of the methods whose step is `_sizes` of loss and norm."""

    RANGES: ClassVar = {"lr": "[0, inf)", "c": "(0, inf)", "f_star": "(-inf, inf)"}

    @abstractmethod
    def _sizes(self, loss: Tensor, norm: Tensor, group: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """The step of a group before and after its cap, times lr."""

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        loss: Tensor | float | None = None,
        loss_grad_norm: Tensor | None = None,
    ) -> Any:
        """Take one step and return the loss; `.grad` must hold the gradient of the whole batch, and the loss be of it.

        Args:
            closure: re-evaluates the model and returns the loss, averaged like the gradient (not divided by the
                number of micro-batches, and equal on all ranks).
            loss: the loss, instead of a closure.
            loss_grad_norm: norm of the gradient before clipping, which sets the step size; by default that of `.grad`.
        """
        value = self._loss(closure, loss)
        groups, norm = self._collect(loss_grad_norm)
        if norm is None:
            return value
        loss_value = as_tensor(value, norm)
        for i, (group, params) in enumerate(groups):
            step_sizes = self._sizes(loss_value, norm, group)
            if i == 0:
                self.step_sizes = step_sizes
            self._descend(group, params, [p.grad for p in params], step_sizes[1])
        return value


class SPS(_Polyak):
    """Stochastic Polyak step size with a cap.

        step = min((L - f_star) / (c ||g||^2), max_step)
        w   <- w - lr * step * g

    L is the loss of the batch that the gradient g belongs to, ||g|| the norm over all parameters of all groups. L below
    f_star gives step 0, never a negative one. With smoothing (gamma > 0) the cap of step k is
    gamma^(1/batches_per_epoch) times step k-1, and `max_step` caps the first one.

    Source: Loizou et al., Stochastic Polyak Step-size for SGD (arXiv 2002.10542): c = 0.5, gamma = 2 in its code.

    Args:
        params: parameters or parameter groups; `lr` may differ by group.
        lr: factor on the step, without unit, in [0, inf). 1 is the published method.
        c: scale of the denominator, in (0, inf).
        max_step: cap on the step, in (0, inf]; inf for none.
        f_star: lower bound of the batch's loss, a finite number.
        gamma: growth of the step per epoch with smoothing, in (1, inf), or 0 for no smoothing.
        batches_per_epoch: number of steps in one pass over the data, at least 1; used with gamma.
        fused: None or True updates with one fused kernel where the tensors allow it, False with a plain loop.
    """

    RANGES: ClassVar = {**_Polyak.RANGES, "max_step": "(0, inf]", "batches_per_epoch": "[1, inf)"}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        c: float = 0.5,
        max_step: float = float("inf"),
        f_star: float = 0.0,
        gamma: float = 0.0,
        batches_per_epoch: int = 1,
        *,
        fused: bool | None = None,
    ) -> None:
        defaults = dict(lr=lr, c=c, max_step=max_step, f_star=f_star, gamma=gamma, batches_per_epoch=batches_per_epoch)
        # The last step, for smoothing, is in the group: loading would round a value in `state` to a parameter's dtype.
        super().__init__(params, defaults | dict(last_step=None, fused=fused))

    def _check_group(self, group: dict[str, Any]) -> None:
        if group["gamma"] != 0:
            check_range("gamma (0 turns smoothing off)", group["gamma"], 1, open_low=True)

    def _sizes(self, loss: Tensor, norm: Tensor, group: dict[str, Any]) -> tuple[Tensor, Tensor]:
        step_sizes, group["last_step"] = _step_sizes(loss, norm, group["last_step"], group)
        return step_sizes


class PS(SPS):
    """Polyak's step size on the full batch, without a cap.

        w <- w - lr * (L - f_star) / (c ||g||^2) * g

    Source: Vasudeva, Deora, Thrampoulidis (TMLR 2025), Algorithm PS; c = 1 is Polyak's own. The arguments are those of
    `SPS`.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1.0, c: float = 1.0, f_star: float = 0.0, *, fused: bool | None = None
    ) -> None:
        super().__init__(params, lr, c, f_star=f_star, fused=fused)


def update(
    grads: Tensors, state: State, params: Tensors, loss: Tensor, hparams: Hparams, *, loss_grad_norm: Norm = None
) -> tuple[Tensors, State]:
    """One step of SPS, or of PS, which has no cap, as a pure function (`OptimizerSpec.update`)."""
    norm = pure.norm(grads) if loss_grad_norm is None else loss_grad_norm
    given = {"max_step": float("inf"), "gamma": 0.0, **hparams}
    step_sizes, last_step = _step_sizes(loss, norm, state.get("last_step"), given)
    new: dict[str, Any] = {"step_sizes": step_sizes}
    if last_step is not None:
        new["last_step"] = last_step
    return pure.descend(params, grads, step_sizes[1]), new


def _step_sizes(
    loss: Tensor, norm: Tensor, last_step: Tensor | None, hparams: Mapping[str, Any]
) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
    """The step before and after its cap, times lr, and the last step for smoothing; of a group, or of one run."""
    raw = _raw_step(loss, norm, hparams)
    step, last_step = _capped(raw, last_step, hparams)
    return (hparams["lr"] * raw, (hparams["lr"] * step).clamp(max=torch.finfo(raw.dtype).max)), last_step


def _raw_step(loss: Tensor, norm: Tensor, hparams: Mapping[str, Any]) -> Tensor:
    """The step without lr and cap."""
    excess = (loss - hparams["f_star"]).clamp(min=0)
    # Two divisions: the square of a small norm would underflow.
    raw = safe_divide(safe_divide(excess, norm), norm) / hparams["c"]
    return raw.clamp(max=torch.finfo(raw.dtype).max)  # or lr = 0 and zero elements of the gradient would give NaN


def _capped(raw: Tensor, last_step: Tensor | None, hparams: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
    gamma, max_step = hparams["gamma"], hparams["max_step"]
    if pure.known_zero(gamma):
        return raw.clamp(max=max_step), last_step
    growth = gamma ** (1 / hparams["batches_per_epoch"])
    cap = torch.zeros_like(raw) + max_step if last_step is None else growth * last_step.to(raw)
    if isinstance(gamma, Tensor):  # some runs may have no smoothing
        growth = torch.where(gamma == 0, torch.ones_like(gamma), growth)
        cap = torch.where(gamma == 0, max_step, cap)
    step = raw.clamp(max=cap)
    # A zero gradient (or loss) gives a zero step; as a cap it would stop the run for good, even at the first step.
    return step, torch.where(step > 0, step, cap / growth)


class LengthSPS(_Polyak):
    """Stochastic Polyak step size with a cap on the length of the step, not on its size.

        w <- w - lr * min((L - f_star) / (c ||g||^2), max_length / ||g||) * g

    Source: Loizou et al., arXiv 2002.10542; the cap is the other reading of eta_max in Vasudeva, Deora, Thrampoulidis.

    Args:
        params: parameters or parameter groups; `lr` may differ by group.
        lr: factor on the step, without unit, in [0, inf).
        c: scale of the denominator, in (0, inf).
        max_length: cap on the length of the step, in (0, inf]; inf for none.
        f_star: lower bound of the batch's loss, a finite number.
    """

    RANGES: ClassVar = {**_Polyak.RANGES, "max_length": "(0, inf]"}

    def __init__(
        self, params: Iterable[Any], lr: float = 1.0, c: float = 0.5, max_length: float = float("inf"),
        f_star: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(params, dict(lr=lr, c=c, max_length=max_length, f_star=f_star))

    def _sizes(self, loss: Tensor, norm: Tensor, group: dict[str, Any]) -> tuple[Tensor, Tensor]:
        return _sizes_by_length(loss, norm, group)


def length_capped(
    grads: Tensors, state: State, params: Tensors, loss: Tensor, hparams: Hparams, *, loss_grad_norm: Norm = None
) -> tuple[Tensors, State]:
    """One step of `LengthSPS` as a pure function (`OptimizerSpec.update`)."""
    norm = pure.norm(grads) if loss_grad_norm is None else loss_grad_norm
    sizes = _sizes_by_length(loss, norm, hparams)
    return pure.descend(params, grads, sizes[1]), {"step_sizes": sizes}


def _sizes_by_length(loss: Tensor, norm: Tensor, hparams: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    raw, cap = _raw_step(loss, norm, hparams), safe_divide(hparams["max_length"], norm)
    return hparams["lr"] * raw, hparams["lr"] * torch.minimum(raw, cap)
