"""Optimizers by role of the parameters: several groups of one method, or several methods as one optimizer."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from optimizers.groups import Parameter, Part
from optimizers.norms import global_norm
from optimizers.registry import BY_FLAG, keywords_of
from optimizers.step_size import once_known, run_closure


def make(parts: Sequence[Part], params: Sequence[nn.Parameter], parameters: Sequence[Parameter]) -> Optimizer:
    """The optimizer of a run: the parts of `divide` over the trained parameters; `parameters` are facts about them.

    Raises:
        ValueError: a hyperparameter given by role has one value for all parameters, or one of several methods has its
            own `state_dict`.
    """
    optimizers = [_built(part, params, parameters) for part in parts]
    if len(optimizers) == 1:
        return optimizers[0]
    for part, optimizer in zip(parts, optimizers, strict=True):
        if type(optimizer).state_dict is not Optimizer.state_dict:
            raise ValueError(f"{part.spec.name} has its own `state_dict`, so no other method can step beside it")
        for group in optimizer.param_groups:
            group["unscheduled"] = part.spec.traits.unscheduled
    return Hybrid(optimizers)


def _built(part: Part, params: Sequence[nn.Parameter], parameters: Sequence[Parameter]) -> Optimizer:
    cls, (first, *more) = part.spec.cls, part.groups
    by_name = takes_names(cls)
    if not (more or first.values):
        pairs = [(parameters[i].name, params[i]) for i in first.indices]
        return cls(named(cls, pairs) if by_name else [param for _, param in pairs], **part.hyperparameters)
    if by_name:
        raise ValueError(f"{part.spec.name} takes all parameters by name and does not support values by role")
    groups = [{"params": [params[i] for i in group.indices], **group.values} for group in part.groups]
    optimizer, flags = cls(groups, **part.hyperparameters), {"use_muon"} if part.spec.groups == BY_FLAG else set[str]()
    for group in part.groups:
        if fixed := sorted(group.values.keys() - optimizer.defaults.keys() - flags):
            if fixed[0] not in inspect.signature(cls).parameters:
                raise ValueError(f"{part.spec.groups} gives {fixed[0]}, which {part.spec.name} does not have")
            why = f"{part.spec.name} has one {fixed[0]} for all parameters"
            raise ValueError(f"{group.roles[0]}.{fixed[0]}={group.values[fixed[0]]}: {why}")
    return optimizer


def takes_names(cls: Any) -> bool:
    """Whether a constructor takes pairs of a name and a parameter, or the model."""
    first = _first_argument(cls)
    return first == "model" or first.startswith("named_param")


def named(cls: Any, pairs: Sequence[tuple[str, Any]]) -> Any:
    """Pairs of a name and a parameter as the constructor takes them: as a model if its first argument is `model`."""
    return _Model(pairs) if _first_argument(cls) == "model" else list(pairs)


def _first_argument(cls: Any) -> str:
    return next(iter(inspect.signature(cls).parameters), "")


class _Model(nn.Module):
    """Parameters by name, for constructors that read those of a model."""

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__()
        self._pairs = list(pairs)

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, Any]]:
        return iter(self._pairs)


class Hybrid(Optimizer):
    """Several optimizers as one: each updates its own parameters, after one evaluation of the closure.

    Its groups are the groups of the parts, so that schedules, scalers and hooks see all of them. Norms passed to a part
    are over its parameters only. The curve shows the first part's step sizes.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = list(parts)
        self._keywords = [sorted(keywords_of(type(part).step)) for part in parts]
        super().__init__([dict(group) for part in parts for group in part.param_groups], {})
        self.param_groups = [group for part in parts for group in part.param_groups]
        for part in parts:
            self.state |= part.state  # Adagrad's begins in its constructor
        self._share()

    def _share(self) -> None:
        """Let the parts have the groups and states of this optimizer, which saves and loads all of them."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.state, part.param_groups = self.state, [next(groups) for _ in part.param_groups]

    @property
    def step_sizes(self) -> tuple[Tensor, Tensor] | None:
        """The step sizes of the first part, if it has any."""
        return getattr(self.parts[0], "step_sizes", None)

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        grad_norm: Tensor | None = None,
        loss_grad_norm: Tensor | None = None,
    ) -> Any:
        """One step of each part; `.grad` must hold the gradient of the whole batch.

        Args:
            closure: re-evaluates the model and returns the loss; called once, before any update.
            grad_norm: norm of the gradient in `.grad` over all parameters, 0-dim.
            loss_grad_norm: the same before clipping.
        """
        loss = run_closure(closure)
        for part, names in zip(self.parts, self._keywords, strict=True):
            norms: dict[str, Tensor] = {}
            if names:
                grads = [p.grad for group in part.param_groups for p in group["params"] if p.grad is not None]
                norms = own_norms(global_norm(grads), grad_norm, loss_grad_norm)
            part_closure: Any = None if closure is None else _known(loss, part)
            part.step(part_closure, **{name: norms[name] for name in names})
        return loss

    def eval(self) -> None:
        """Switch parts with separate evaluation weights to them."""
        for part in self.parts:
            getattr(part, "eval", lambda: None)()

    def train(self) -> None:
        """Switch them back."""
        for part in self.parts:
            getattr(part, "train", lambda: None)()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the states of all parts."""
        super().load_state_dict(state_dict)
        self._share()


def _known(loss: Tensor, part: Optimizer) -> Callable[[], Tensor]:
    """The closure of a part: it returns the known loss, once, if neither weights nor gradients have changed."""

    def evaluate(needed: bool) -> Tensor:
        why = "needs another loss than that of its first weights, which is not possible beside a method for the rest"
        raise RuntimeError(f"{type(part).__name__} {why}")

    return once_known(loss, [p for group in part.param_groups for p in group["params"]], evaluate)


def own_norms(norm: Tensor, grad_norm: Tensor | None, loss_grad_norm: Tensor | None) -> dict[str, Tensor]:
    """The norms by `STEP_KEYWORDS` of some parameters' gradients, given their norm and the norms of all gradients.

    Clipping scales all gradients by the same factor.
    """
    before = norm
    if grad_norm is not None and loss_grad_norm is not None:
        before = norm * torch.where(grad_norm > 0, loss_grad_norm / grad_norm, torch.ones_like(grad_norm))
    return {"grad_norm": norm, "loss_grad_norm": before}
