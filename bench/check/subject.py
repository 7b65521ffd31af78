"""An optimizer under test: what it may be given as, its arguments, and models to step on."""

import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.check.steps import ROUNDING, Attention, Stepper, at_most, generators, leaves, seed
from bench.config.options import MISSING, UNSET, optimizer_options, parse_options
from bench.errors import UserError, unknown
from bench.text import is_number
from optimizers import OPTIMIZERS, TASK_VALUE, OptimizerSpec
from optimizers.adapters import adapted
from optimizers.groups import flagged, split_rest
from optimizers.hybrid import named, takes_names

_CAPS = ("max_step", "max_lr", "max_step_size", "eta_max")
_LR = 0.01  # of a constructor that has no default
KERNELS = ("foreach", "fused", "capturable", "differentiable")  # arguments that choose a kernel


class Subject:
    """The checked optimizer, in any of the forms that `bench.check.parametrize_with_checks` takes.

    Hyperparameters are `given` as words or values; those of the method for the rest are left out. `reference` is an
    optimizer (default: that of the spec). `arguments` are those given to the constructor, `hparams` all that it takes.
    Caps on the step are lifted unless given: they would hide the loss and the norm. `matrices`: it takes only matrices.
    """

    def __init__(self, target: Any, given: Mapping[str, Any] | None = None, reference: Any = None) -> None:
        given = dict(given or {})
        if isinstance(target, functools.partial):
            target, given = target.func, {**target.keywords, **given}
        self.spec = spec = spec_of(target)
        self.reference, (given, _) = reference or spec.reference, split_rest(given)
        options = optimizer_options(spec)
        if "lr" in options and options["lr"].default in (MISSING, UNSET):  # or a sentinel, such as torch's `required`
            given = {"lr": _LR, **given}
        signature = inspect.signature(spec.cls).parameters
        # What no command line can say, such as the class of a base optimizer in a `functools.partial`.
        direct = {k: v for k, v in given.items() if k in signature and (k not in options or isinstance(v, Tensor))}
        settings = parse_options("opt", options, {k: v for k, v in given.items() if k not in direct})
        chosen = [name for name in options if name in given or name in spec.defaults]
        self.arguments = {name: settings[name] for name in chosen if settings[name] != TASK_VALUE} | direct
        for cap in _CAPS:
            if cap in options and cap not in given:
                try:
                    spec.cls([nn.Parameter(torch.zeros(1))], **{**self.arguments, cap: inf})
                except Exception:
                    continue  # it must be finite
                self.arguments[cap] = inf
        defaults = {p.name: p.default for p in signature.values() if p.name != "params" and p.default is not p.empty}
        self.hparams: dict[str, Any] = defaults | self.arguments
        self.matrices = not self._steps((4, 3), (3,)) and self._steps((4, 3), (3, 1))

    def _steps(self, *shapes: tuple[int, ...], **more: Any) -> bool:
        """Whether it steps on parameters of these shapes, with more arguments."""
        params = [nn.Parameter(torch.ones(shape, dtype=torch.float64)) for shape in shapes]
        try:
            self.push(self.make(params, **more), params, [torch.ones_like(p) for p in params])
        except (Exception, pytest.skip.Exception):
            return False
        return True

    def attention(self, dtype: torch.dtype = torch.float64) -> Attention:
        """A fresh attention head."""
        return Attention(dtype, matrices=self.matrices)

    @cached_property
    def draws(self) -> bool:
        """Whether its steps draw from the global generators, or it holds a generator."""
        stepper = self.stepper().run(2)
        states = generators()
        seed(1)  # as the second step did
        held = leaves(stepper.optimizer) | leaves(vars(type(stepper.optimizer)))
        return states != generators() or any(isinstance(value, bytes) for value in held.values())

    def refuse_chance(self) -> None:
        """Skip a check for optimizers that draw random numbers."""
        if self.draws:
            pytest.skip("it draws random numbers, which depend on the layout of tensors")

    def at_most(self, tolerance: float, measured: float, message: str) -> None:
        """`steps.at_most`; a skip if summing the samples in reverse already changes the steps (SOAP's eigenvectors)."""
        if not measured <= tolerance:
            model = self.attention()
            model.inputs, model.labels = model.inputs.flip(0), model.labels.flip(0)
            if (amplified := self.stepper(model).run().gap(self.stepper().run())) > ROUNDING:
                pytest.skip(f"it amplifies the rounding of gradients to {amplified:.1g} of the way in 6 steps")
        at_most(tolerance, measured, message)

    def refuse_graph(self) -> None:
        """Skip a check whose gradients have no graph for methods that differentiate them."""
        if self.spec.traits.create_graph:
            pytest.skip("it differentiates gradients, and synthetic or averaged gradients have no graph")

    @property
    def lr(self) -> float | None:
        """The learning rate that the constructor takes, or None."""
        lr = self.hparams.get("lr")
        return float(lr) if is_number(lr) or isinstance(lr, Tensor) else None

    @property
    def without_decay(self) -> dict[str, Any]:
        """The argument that turns weight decay off, which may be relative to the initial lr; none without decay."""
        decay = self.hparams.get("weight_decay")
        return {"weight_decay": 0 * decay} if is_number(decay) else {}

    def make(self, params: Any, *, seeded: int | None = 0, **more: Any) -> Any:
        """An optimizer over parameters or groups; the generators are seeded before, unless None."""
        if takes_names(self.spec.cls):
            pairs = [(f"weight_{i}", p) for i, p in enumerate(params)]
            if isinstance(pairs[0][1], dict):
                pytest.skip("it takes all parameters by name and no groups")
            params = named(self.spec.cls, pairs)
        if seeded is not None:
            seed(seeded)
        return in_training(self.spec.cls(flagged(self.spec, params), **{**self.arguments, **more}))

    def stepper(
        self, model: Any = None, groups: Any = list, arguments: Mapping[str, Any] | None = None, seeded: int = 0
    ) -> Stepper:
        """A model (the attention head in float64 if None) with an optimizer of its `groups`, with more `arguments`."""
        model = self.attention() if model is None else model
        optimizer = self.make(groups(list(model.parameters())), seeded=seeded, **(arguments or {}))
        return Stepper(self.spec, model, optimizer, seeded)

    def push(self, optimizer: Any, params: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """One step with given gradients; the closure gives the same, whatever the step has done to them."""
        self.refuse_graph()

        def closure() -> Tensor:
            for p, gradient in zip(params, gradients, strict=True):
                p.grad = gradient
            return torch.tensor(0.5, dtype=torch.float64)

        closure()
        seed(0)
        optimizer.step(closure)

    def variants(self) -> Iterator[tuple[str, str, list[Any]]]:
        """Each number and flag of the constructor, except kernels: a label, the argument's name, other values."""
        for name, value in self.hparams.items():
            if name not in KERNELS and (is_number(value) or isinstance(value, bool)):
                yield name, name, _other_values(value)
            elif isinstance(value, tuple | list) and value and all(map(is_number, value)):
                for i, element in enumerate(value):
                    others = [[*value[:i], x, *value[i + 1 :]] for x in _other_values(element)]
                    yield f"{name}[{i}]", name, [type(value)(other) for other in others]

    def additions(self) -> list[tuple[str, dict[str, Any]]]:
        """The defaults, and each legal setting of flags and numbers that are off by default, such as weight decay."""
        off = [pair for pair in self.settings() if not any(self.hparams[name] for name in pair[1])]
        return [pair for pair in off if not pair[1] or self._steps((4, 3), (3, 1), **pair[1])]

    def settings(self) -> list[tuple[str, dict[str, Any]]]:
        """The defaults, and every other value of each number and flag, as arguments with a label."""
        others = [(f"{name}={value}", {name: value}) for _, name, many in self.variants() for value in many]
        if self.hparams.get("weight_decay") == 0:  # decay may be wrong only beside a flag
            others += [(f"{label}, decay", {"weight_decay": 0.1, **setting}) for label, setting in others]
        return [("the defaults", {}), *others]


def _other_values(value: float) -> list[Any]:
    """Values to try until one changes the steps."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 3, value + 1, value // 2] if value else [1, 0.1, 3]
    if value == inf:  # a cap: a low one always matters
        return [0.001, 0.1, 10.0]
    return [value / 2, 2 * value, value + 0.1] if value else [0.1, 1.5]


def spec_of(target: Any) -> OptimizerSpec:
    """The spec of an optimizer in any form but a partial (UserError, PluginError)."""
    if isinstance(target, OptimizerSpec):
        return target
    if isinstance(target, str):
        if target not in OPTIMIZERS:
            raise unknown("optimizer", target, OPTIMIZERS)
        return OPTIMIZERS[target]
    if not isinstance(target, type):
        raise UserError(f"{target!r} is no optimizer: give a class, a functools.partial of one, a spec or a name")
    spec = OPTIMIZERS.make(target.__name__, target, f"{target.__module__}:{target.__qualname__}")
    spec = replace(spec, target=target)  # a class inside a function has no name to import
    spec.__dict__["cls"] = adapted(target)
    return spec


def in_training(optimizer: Any) -> Any:
    """The optimizer, in training mode if it keeps other weights for evaluation (schedule-free methods)."""
    if callable(getattr(optimizer, "train", None)):
        optimizer.train()
    return optimizer
