"""Adapters of optimizers: steps without a closure, arguments that no setting can hold; traits that none declares."""

import inspect
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
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
    dataclasses as mappings (ValueError for others). Instances can be copied, but not pickled.
    """
    parameters = list(inspect.signature(cls.step).parameters.values())[1:]
    names = {p.name for p in parameters}
    takes_more = any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)
    members: dict[str, Any] = {}
    if "closure" not in names and ("loss" in names or not takes_more):
        members["step"] = _step(cls.step, parameters, with_loss="loss" in names)
    if not hasattr(cls.__init__, "converts") and (kinds := _converted_kinds(cls.__init__)):
        members["__init__"] = _constructor(cls.__init__, kinds)
    metaclass: Any = type(cls)  # may be ABCMeta
    about = {"__module__": cls.__module__, "__doc__": cls.__doc__}
    return metaclass(cls.__name__, (cls,), about | members) if members else cls


def _step(step: Callable[..., Any], parameters: Sequence[inspect.Parameter], *, with_loss: bool) -> Any:
    """A `step` that takes a closure and, with `with_loss`, passes its loss on."""

    def adapted_step(self: Any, closure: Callable[[], torch.Tensor] | None = None, **keywords: Any) -> Any:
        loss = run_closure(closure)
        result = step(self, **({"loss": loss} if with_loss else {}), **keywords)
        return loss if result is None else result

    first = list(inspect.signature(adapted_step).parameters.values())[:2]
    adapted_step.__signature__ = inspect.Signature([*first, *(p for p in parameters if p.kind == p.KEYWORD_ONLY)])
    return adapted_step


def _converted_kinds(constructor: Callable[..., Any]) -> dict[str, list[Any]]:
    """The types of arguments that no setting can hold, by argument."""
    kinds, hints = dict[str, list[Any]](), dict[str, Any]()
    with suppress(Exception):  # annotations that only a type checker can read
        hints = typing.get_type_hints(constructor)
    for name, parameter in inspect.signature(constructor).parameters.items():
        hint, default = hints.get(name), parameter.default
        several = [*(typing.get_args(hint) or [hint]), hint, None if default is parameter.empty else type(default)]
        if convertible := [kind for kind in several if _converts(typing.get_origin(kind) or kind)]:
            kinds[name] = convertible
    return kinds


def _converts(kind: Any) -> bool:
    return kind in (type, torch.dtype) or (isinstance(kind, type) and (issubclass(kind, Enum) or is_dataclass(kind)))


def _constructor(constructor: Callable[..., Any], kinds: Mapping[str, list[Any]]) -> Any:

    @wraps(constructor)
    def converting(self: Any, *arguments: Any, **keywords: Any) -> None:
        for name in keywords.keys() & kinds.keys():
            for kind in kinds[name]:
                keywords[name] = _converted(name, keywords[name], kind)
        constructor(self, *arguments, **keywords)

    converting.converts = True  # type: ignore[attr-defined]
    return converting


def _converted(name: str, value: Any, kind: Any) -> Any:
    """A setting as an argument of this type; a setting that needs no conversion is returned."""
    if is_dataclass(kind):
        return typing.cast(Any, kind)(**value) if isinstance(value, Mapping) else value
    if not isinstance(value, str):
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
