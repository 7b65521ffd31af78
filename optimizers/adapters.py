"""Adapters of optimizers: steps without a closure, arguments that no setting can hold; traits that none declares."""

import inspect
import typing
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import is_dataclass
from enum import Enum
from functools import cache, wraps
from sys import stderr
from typing import Any

import torch

from optimizers.plugins import BROKEN, load
from optimizers.registry import Traits
from optimizers.step_size import run_closure


@cache
def adapted(cls: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The class itself, or a subclass that takes settings, and whose `step` takes a closure, as in torch's protocol.

    A `step` without an argument `closure` receives the loss if it accepts `loss` (`step(loss)`); the closure is
    called once before it, with gradients enabled. Members of enums, dtypes and classes may be given by name,
    dataclasses as mappings (ValueError for others). Instances can be copied and pickled if the class's own can.
    """
    step: Any = cls.step  # with any arguments
    parameters = list(inspect.signature(step).parameters.values())[1:]
    members = _constructor(cls)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    if any(p.name == "loss" for p in parameters) and not any(p.name == "closure" for p in parameters):
        members |= _step(cls, lambda self, loss, keywords: step(self, loss=loss, **keywords))
    elif not positional and not any(p.name == "closure" for p in parameters):
        members |= _step(cls, lambda self, loss, keywords: step(self, **keywords))
    return _subclass(cls, members) if members else cls


def _constructor(cls: Any) -> dict[str, Any]:
    """A constructor that converts what settings cannot hold; empty if no argument needs it."""
    constructor, kinds = cls.__init__, dict[str, list[Any]]()
    hints: dict[str, Any] = {}
    with suppress(Exception):  # annotations that only a type checker can read
        hints = typing.get_type_hints(constructor)
    for name, parameter in inspect.signature(constructor).parameters.items():
        hint, default = hints.get(name), parameter.default
        members = [*(typing.get_args(hint) or [hint]), hint, None if default is parameter.empty else type(default)]
        kinds[name] = [kind for kind in members if _converts(typing.get_origin(kind) or kind)]
    kinds = {name: of for name, of in kinds.items() if of}
    if not kinds or hasattr(constructor, "converts"):
        return {}

    @wraps(constructor)
    def converting(self: Any, *arguments: Any, **keywords: Any) -> None:
        for name, value in keywords.items():
            for kind in kinds.get(name, ()):
                keywords[name] = _converted(name, value, kind)
        constructor(self, *arguments, **keywords)

    converting.converts = True  # type: ignore[attr-defined]
    return {"__init__": converting}


def _converts(kind: Any) -> bool:
    return kind in (type, torch.dtype) or (isinstance(kind, type) and (issubclass(kind, Enum) or is_dataclass(kind)))


def _converted(name: str, value: Any, kind: Any) -> Any:
    """A setting as an argument of this type; a setting that needs no conversion is returned."""
    if isinstance(value, Mapping) and is_dataclass(kind):
        return typing.cast(Any, kind)(**value)
    if not isinstance(value, str) or is_dataclass(kind):
        return value
    if isinstance(kind, type) and issubclass(kind, Enum):
        if value not in kind.__members__:
            raise ValueError(f"{name}={value} is not one of {', '.join(kind.__members__)}")
        return kind[value]
    if kind is torch.dtype:
        if not isinstance(dtype := getattr(torch, value.removeprefix("torch."), None), torch.dtype):
            raise ValueError(f"{name}={value} is no dtype of torch, such as float32")
        return dtype
    return load(value) if ":" in value else value


def _step(cls: Any, step: Callable[[Any, torch.Tensor | None, dict[str, Any]], Any]) -> dict[str, Any]:
    """A `step` that takes a closure and passes its loss on."""

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

    return {"step": adapted_step}


def _subclass(cls: type[torch.optim.Optimizer], members: dict[str, Any]) -> type[torch.optim.Optimizer]:
    def reduce(self: Any, protocol: Any) -> Any:
        constructor, arguments, *rest = cls.__reduce_ex__(self, max(2, protocol))
        if getattr(constructor, "__name__", "") != "__newobj__":  # the test of pickle itself
            return constructor, arguments, *rest  # the class has its own reduction
        # Under the subclass's name pickle would find the class itself.
        return _blank, (cls, *arguments[1:]), *rest

    kind: Any = type(cls)  # may be ABCMeta
    about = {"__reduce_ex__": reduce, "__module__": cls.__module__, "__doc__": cls.__doc__}
    return kind(cls.__name__, (cls,), members | about)


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
