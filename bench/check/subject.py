"""An optimizer under test: what it is made with, and models to step on."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from bench.check.problem import Attention, Quadratic
from bench.check.steps import NotApplicable, Stepper, push, seed
from bench.options import MISSING, optimizer_options, parse_options
from optimizers import TASK_VALUE, OptimizerSpec

_CAPS = ("max_step", "max_lr", "max_step_size", "eta_max")
_LR = 0.01  # of a constructor that has no default


class Failed(Exception):
    """The optimizer does not have the property; says what was seen."""


class Raised(Exception):
    """The optimizer raised where that is no end of the check's own, or in another process; says what."""


@dataclass(frozen=True)
class Measured:
    """What a check measured: a number, to be held against the tolerance, and words."""

    measured: float | None
    note: str = ""


class Subject:
    """The optimizer that is checked.

    Args:
        spec: of the optimizer; its class is imported.
        given: hyperparameters, as words of the command line or as values.
        reference: its steps as a float64 function (`bench.check.behaviour.reference`), or None.
        limit: seconds that one check may take.

    Attributes:
        arguments: what its constructor is called with. Caps on the step are lifted unless they were given, since a cap
            that binds would hide the loss and the norm from the checks.
        hparams: all of the constructor's arguments by name.
        matrices: whether it takes matrices only, so that models of matrices are what it is checked on.

    Raises:
        UserError: an option is unknown, has the wrong type, or is missing.
    """

    def __init__(
        self,
        spec: OptimizerSpec,
        given: Mapping[str, Any],
        reference: Callable[..., Any] | None = None,
        *,
        limit: float = inf,
    ) -> None:
        self.limit = limit
        self.spec, self.cls, self.reference = spec, spec.cls, reference
        options = optimizer_options(spec)
        if "lr" in options and options["lr"].default is MISSING:
            given = {"lr": _LR, **given}
        values = parse_options("opt", options, given)
        chosen = [name for name in options if name in given or name in spec.defaults]
        self.arguments = {name: values[name] for name in chosen if values[name] != TASK_VALUE}
        for name in _CAPS:
            if name in options and name not in given:
                self.arguments |= self._lifted(name)
        signature = inspect.signature(self.cls).parameters
        own = {name: parameter.default for name, parameter in signature.items() if name != "params"}
        own = {name: default for name, default in own.items() if default is not inspect.Parameter.empty}
        self.hparams: dict[str, Any] = own | self.arguments
        self.options = set(options)
        self.matrices = not self._steps((4, 3), (3,)) and self._steps((4, 3), (3, 1))

    def _steps(self, *shapes: tuple[int, ...]) -> bool:
        """Whether it steps on parameters of these shapes."""
        params = [nn.Parameter(torch.ones(shape, dtype=torch.float64)) for shape in shapes]
        try:
            push(self, self.make(params), [(p, torch.ones_like(p)) for p in params])
        except Exception:
            return False
        return True

    def attention(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> Attention:
        """A fresh attention head."""
        return Attention(dtype, seed, matrices=self.matrices)

    def quadratic(self, turn: Tensor | None = None) -> Quadratic:
        """A fresh quadratic, in turned coordinates."""
        return Quadratic(turn, matrices=self.matrices)

    def _lifted(self, cap: str) -> dict[str, float]:
        try:
            self.cls([nn.Parameter(torch.zeros(1))], **{**self.arguments, cap: inf})
        except Exception:
            return {}  # it must be finite
        return {cap: inf}

    @cached_property
    def draws(self) -> bool:
        """Whether its steps draw random numbers from the seeded generators."""
        first, again, other = (self.stepper() for _ in range(3))
        for stepper in (first, again):
            stepper.run(2)
        other.seeds = 100
        return again.gap(first) == 0 and other.run(2).gap(first) > 0

    def refuse_chance(self) -> None:
        """End a check that chance would spoil.

        Raises:
            NotApplicable: the optimizer draws random numbers, which fall otherwise where tensors lie otherwise.
        """
        if self.draws:
            raise NotApplicable("it draws random numbers, which fall otherwise where tensors lie otherwise")

    @property
    def lr(self) -> float | None:
        """The learning rate that the constructor takes, or None."""
        lr = self.hparams.get("lr")
        return None if lr is None else float(lr)

    def make(self, params: Any, **more: Any) -> Any:
        """An optimizer over parameters or groups."""
        seed(0)
        return in_training(self.cls(params, **{**self.arguments, **more}))

    def stepper(
        self,
        model: Any = None,
        groups: Callable[[list[nn.Parameter]], Any] = list,
        arguments: Mapping[str, Any] | None = None,
    ) -> Stepper:
        """A model with an optimizer.

        Args:
            model: a module with `loss(rows)`; the attention head in float64 if None.
            groups: from its parameters to what the constructor takes.
            arguments: of the constructor, beside or in place of the subject's.
        """
        model = self.attention() if model is None else model
        return Stepper(self, model, self.make(groups(list(model.parameters())), **(arguments or {})))


def in_training(optimizer: Any) -> Any:
    """The optimizer, in training mode if it keeps other weights for evaluation (schedule-free methods)."""
    if callable(getattr(optimizer, "train", None)):
        optimizer.train()
    return optimizer
