"""Adapters for optimizers whose `step` takes no closure, and the traits of classes that declare none."""

import inspect
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from sys import stderr
from typing import Any

import torch

from optimizers.plugins import BROKEN
from optimizers.registry import Traits
from optimizers.step_size import run_closure


@cache
def adapted(cls: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The class itself, or a subclass whose `step` takes a closure, as in torch's protocol.

    A `step` without an argument `closure` receives the loss if it accepts `loss` (`step(loss)`); the closure is
    called once before it, with gradients enabled. Instances can be copied and pickled if the class's own can.
    """
    step: Any = cls.step  # with any arguments
    parameters = list(inspect.signature(step).parameters.values())[1:]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    if any(p.name == "closure" or p.kind == p.VAR_POSITIONAL for p in parameters):
        return cls
    if any(p.name == "loss" for p in parameters):
        return _subclass(cls, lambda self, loss, keywords: step(self, loss=loss, **keywords))
    if positional:  # in torch's protocol the first one is the closure, whatever its name
        return cls
    return _subclass(cls, lambda self, loss, keywords: step(self, **keywords))


def _subclass(
    cls: type[torch.optim.Optimizer], step: Callable[[Any, torch.Tensor | None, dict[str, Any]], Any]
) -> type[torch.optim.Optimizer]:
    def adapted_step(self: Any, closure: Callable[[], torch.Tensor] | None = None, **keywords: Any) -> Any:
        loss = run_closure(closure)
        result = step(self, loss, keywords)
        return loss if result is None else result

    adapted_step.__signature__ = inspect.signature(cls.step).replace(
        parameters=[
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            inspect.Parameter("closure", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None),
            *(p for p in inspect.signature(cls.step).parameters.values() if p.kind == p.KEYWORD_ONLY),
        ]
    )

    def reduce(self: Any, protocol: Any) -> Any:
        constructor, arguments, *rest = cls.__reduce_ex__(self, max(2, protocol))
        if getattr(constructor, "__name__", "") != "__newobj__":  # the test of pickle itself
            return constructor, arguments, *rest  # the class has its own reduction
        # Under the subclass's name pickle would find the class itself.
        return _blank, (cls, *arguments[1:]), *rest

    members = {"step": adapted_step, "__reduce_ex__": reduce, "__module__": cls.__module__, "__doc__": cls.__doc__}
    kind: Any = type(cls)  # may be ABCMeta
    return kind(cls.__name__, (cls,), members)


def _blank(cls: type[torch.optim.Optimizer], *arguments: Any) -> Any:
    """An instance without state, which pickle fills."""
    subclass: Any = adapted(cls)
    return subclass.__new__(subclass, *arguments)


def traits_of(cls: type[torch.optim.Optimizer]) -> Traits:
    """Traits of an `adapted` class without declarations, from a step on a small problem; none if that fails."""
    for create_graph in (False, True):
        try:
            with (
                torch.random.fork_rng(devices=[]),
                torch.enable_grad(),
                torch.compiler.set_stance("force_eager"),
                warnings.catch_warnings(),
                redirect_stdout(stderr),
            ):
                warnings.simplefilter("ignore")
                return Traits(calls_closure_again=_calls(cls, create_graph) > 1, create_graph=create_graph)
        except RuntimeError:  # autograd raises it if gradients have no graph
            continue
        except BROKEN:
            break
    return Traits()


def _calls(cls: Any, create_graph: bool) -> int:
    """How often a step calls its closure; for a matrix, which all methods accept."""
    p = torch.nn.Parameter(torch.tensor([[1.0, -2.0], [0.5, 3.0], [-1.5, 0.3]]))
    lr = inspect.signature(cls).parameters.get("lr")
    optimizer = cls([p], **({"lr": 0.01} if lr is not None and lr.default is lr.empty else {}))
    if callable(getattr(optimizer, "train", None)):
        optimizer.train()
    calls = 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        p.grad = None
        loss = ((1 + p.detach().abs()) * p.square() + 0.1 * p**4).sum()
        loss.backward(create_graph=create_graph)
        return loss.detach()

    closure()
    calls = 0
    optimizer.step(closure)
    p.grad = None
    return calls
