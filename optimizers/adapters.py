"""What makes optimizers with other habits follow the suite's protocol: `step(closure)`, with loss and gradients there already."""

import inspect
from collections.abc import Callable
from typing import Any

import torch


def adapted(cls: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The class itself, or a subclass whose `step` takes a closure, as torch's protocol says.

    A `step` without an argument `closure` is told the loss if it takes `loss` (`step(loss)`), else nothing; the closure is called
    once before it, with gradients enabled.

    Args:
        cls: any optimizer.
    """
    parameters = list(inspect.signature(cls.step).parameters.values())[1:]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    if any(p.name == "closure" or p.kind == p.VAR_POSITIONAL for p in parameters):
        return cls
    if any(p.name == "loss" for p in parameters):
        return _subclass(cls, lambda own, loss, keywords: cls.step(own, loss=loss, **keywords))  # type: ignore[call-arg]
    if positional:  # whatever it is called, by torch's protocol the first is the closure
        return cls
    return _subclass(cls, lambda own, loss, keywords: cls.step(own, **keywords))


def _subclass(
    cls: type[torch.optim.Optimizer], step: Callable[[Any, torch.Tensor | None, dict[str, Any]], Any]
) -> type[torch.optim.Optimizer]:
    def adapted_step(self: Any, closure: Callable[[], torch.Tensor] | None = None, **keywords: Any) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found = step(self, loss, keywords)
        return loss if found is None else found

    adapted_step.__signature__ = inspect.signature(cls.step).replace(
        parameters=[
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            inspect.Parameter("closure", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None),
            *(p for p in inspect.signature(cls.step).parameters.values() if p.kind == p.KEYWORD_ONLY),
        ]
    )
    return type(cls.__name__, (cls,), {"step": adapted_step, "__module__": cls.__module__, "__doc__": cls.__doc__})
