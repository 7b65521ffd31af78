"""Common part of normalised and Polyak methods: one scalar step for all parameters, applied without temporaries."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from optimizers.norms import global_norm, scalar_dtype, to_local


def check_range(
    name: str,
    value: float,
    low: float,
    high: float = float("inf"),
    *,
    open_low: bool = False,
    open_high: bool = False,
    allow_inf: bool = False,
) -> None:
    """Raise a ValueError with the value and its legal range unless low <= value <= high; NaN is outside every range.

    The ends are excluded with `open_low` and `open_high`, and infinity without `allow_inf`.
    """
    above = value > low if open_low else value >= low
    open_high = open_high or (high == float("inf") and not allow_inf)
    below = value < high if open_high else value <= high
    if not (above and below):
        left = "(" if open_low else "["
        right = ")" if open_high else "]"
        raise ValueError(f"{name}={value} is out of range: it must be in {left}{low:g}, {high:g}{right}")


def check_ranges(**values: tuple[float, str]) -> None:
    """Raise a ValueError with the first value outside its interval, such as "[0, inf)", that follows it."""
    for name, (value, interval) in values.items():
        low, high = map(float, interval[1:-1].split(", "))
        ends = dict(open_low=interval[0] == "(", open_high=interval[-1] == ")", allow_inf=interval[-1] == "]")
        check_range(name, value, low, high, **ends)


class CheckedOptimizer(Optimizer):
    """Base of optimizers that validate the hyperparameters of each group: those in `RANGES` lie in an interval."""

    RANGES: ClassVar[Mapping[str, str]] = {}

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raise ValueError for another reason than an illegal number."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; one with an illegal hyperparameter or parameter raises ValueError and is not added."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            for name, interval in self.RANGES.items():
                for value in group[name] if isinstance(group[name], tuple | list) else [group[name]]:
                    check_ranges(**{name: (value, interval)})
            self._check_group(group)
        except ValueError:
            self.param_groups.pop()
            raise

    def _trained(self, group: dict[str, Any]) -> list[Any]:
        """The parameters of a group that have a gradient; RuntimeError if one is sparse."""
        params = [p for p in group["params"] if p.grad is not None]
        if any(p.grad.is_sparse for p in params):
            raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
        return params

    def _buffers(self, params: list[Tensor]) -> list[Tensor]:
        """The momentum of these parameters; it begins at 0."""
        for p in params:
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return [self.state[p]["momentum_buffer"] for p in params]


class StepSizeOptimizer(CheckedOptimizer):
    """Base of optimizers that update all parameters along the gradient with one scalar step, which `step` computes.

    Attributes:
        step_sizes: after a step, the pair (raw, applied) of the first group's step before and after its cap,
            0-dim tensors on the gradient's device (reading them is the caller's host synchronisation); None before.
    """

    step_sizes: tuple[Tensor, Tensor] | None = None

    def _loss(self, closure: Callable[[], Any] | None, loss: Any) -> Any:
        """The loss, of the closure if there is one; without either a ValueError."""
        value = run_closure(closure) if closure is not None else loss
        if value is None:
            how = "call step(closure) with a closure that returns it, or step(loss=...)"
            raise ValueError(f"{type(self).__name__} needs the loss: {how}")
        return value

    def _collect(self, norm: Tensor | None) -> tuple[list[tuple[dict[str, Any], list[Tensor]]], Tensor | None]:
        """The groups with their parameters that have a gradient, and the norm over all of them (None: no gradient)."""
        groups = [(group, params) for group in self.param_groups if (params := self._trained(group))]
        grads = [p.grad for _, params in groups for p in params if p.grad is not None]
        if not grads:
            return [], None
        # In float32 at least: a norm in half precision would round the step, or overflow.
        return groups, global_norm(grads) if norm is None else norm.to(scalar_dtype(norm.dtype))

    def _descend(
        self, group: dict[str, Any], params: Sequence[Tensor], directions: Sequence[Tensor | None], step: Tensor
    ) -> None:
        """Update p <- p - step * direction for each pair, in place; `step` is 0-dim and stays on its device.

        It runs as one fused kernel where the tensors allow it, unless the group's `fused` is False.
        """
        params = [to_local(p) for p in params]
        directions = [to_local(d) for d in directions if d is not None]
        fusable: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
        for p, d in zip(params, directions, strict=True):
            if group.get("fused") is not False and _fusable(p, d):
                ps, ds = fusable.setdefault((p.device, p.dtype), ([], []))
                ps.append(p)
                ds.append(d)
            elif scalar_dtype(p.dtype) == p.dtype:
                p.addcmul_(d, step.to(p), value=-1)
            else:
                # The step stays in float32, as in the fused kernel: in half precision it would round or overflow.
                exact = step.to(device=p.device, dtype=torch.float32)
                p.copy_(torch.addcmul(p.float(), d.float(), exact, value=-1))
        for (device, _), (ps, ds) in fusable.items():
            lr = step.to(device=device, dtype=torch.float32 if device.type == "cuda" else step.dtype)
            off: dict[str, Any] = dict(weight_decay=0.0, momentum=0.0, dampening=0.0, nesterov=False, maximize=False)
            torch._fused_sgd_(ps, ds, [], lr=lr, is_first_step=False, **off)


def as_tensor(loss: Any, norm: Tensor) -> Tensor:
    """A loss as a tensor in the norm's precision and on its device; a number is not copied from the host."""
    return loss.detach().to(norm) if isinstance(loss, Tensor) else torch.full_like(norm, loss)


def safe_divide(numerator: Tensor | float, norm: Tensor) -> Tensor:
    """Return numerator / norm, at most the largest finite number; 0 for norm 0, so a zero gradient gives no NaN."""
    # `float / tensor` multiplies by the reciprocal, which may overflow where the quotient does not.
    numerator = numerator if isinstance(numerator, Tensor) else torch.full_like(norm, numerator)
    return torch.where(norm > 0, numerator / norm, 0.0).clamp(max=torch.finfo(norm.dtype).max)


def _fusable(param: Tensor, direction: Tensor) -> bool:
    # The kernel reads both as flat memory, and on CUDA the step in float32.
    return (
        param.dtype == direction.dtype
        and param.device == direction.device
        and param.is_contiguous()
        and direction.is_contiguous()
        and param.numel() > 0
        and (param.device.type == "cpu" or (param.device.type == "cuda" and param.dtype != torch.float64))
    )


def run_closure(closure: Callable[[], Any] | None) -> Any:
    """The closure's loss, with gradients enabled as torch.optim promises; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def once_known(loss: Tensor, params: Sequence[Tensor], evaluate: Callable[[bool], Tensor]) -> Callable[[], Tensor]:
    """The closure of an optimizer's step when loss and gradients are already computed.

    Its first call returns a copy of the known loss, unless weights have changed or a gradient was cleared, replaced or
    changed (torch's protocol begins with `zero_grad()`); all other calls evaluate again. `evaluate` gets whether the
    method needs this evaluation: not if it repeats the known one, which the step has not used. A change through
    `p.data` goes unnoticed, since `p` keeps its version: the check `closure` of `bench check` fails for such methods.
    """
    pending, versions = [loss], [p._version for p in params]
    grads = [(p.grad, None if p.grad is None else p.grad._version) for p in params]

    def unchanged() -> bool:
        return versions == [p._version for p in params] and all(
            p.grad is grad and (grad is None or grad._version == version)
            for p, (grad, version) in zip(params, grads, strict=True)
        )

    def closure() -> Tensor:
        if pending and unchanged():
            return pending.pop().clone()
        needed = not pending or versions != [p._version for p in params]
        pending.clear()
        grads.clear()  # their memory is free for the evaluation
        with torch.enable_grad():  # for steps that do not enable gradients themselves
            return evaluate(needed)

    return closure
