"""An optimizer under test: its arguments, and models to step on."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from bench.check.findings import NotApplicable
from bench.check.problem import Attention, Quadratic
from bench.check.steps import Stepper, seed
from bench.config.options import MISSING, optimizer_options, parse_options, rest_of
from optimizers import OPTIMIZERS, TASK_VALUE, OptimizerSpec, Traits
from optimizers.groups import REST, split_rest
from optimizers.hybrid import Hybrid, takes_names

_CAPS = ("max_step", "max_lr", "max_step_size", "eta_max")
_LR = 0.01  # of a constructor that has no default


class Subject:
    """The checked optimizer.

    Args:
        spec: of the optimizer; its class is imported.
        given: hyperparameters, as words of the command line or as values.
        reference: its steps as a float64 function (`bench.check.behaviour.reference`), or None.
        limit: seconds that one check may take.

    Attributes:
        arguments: of its constructor. Caps on the step are disabled unless given, since an active cap would hide the
            loss and the norm from the checks.
        hparams: all of the constructor's arguments by name.
        matrices: whether it takes only matrices; it is then checked on models of matrices.
        by_role: whether it needs the roles of parameters: for another method for the rest (`--opt.rest`), or for
            groups with `use_muon`.

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
        rest = rest_of(spec, given) if REST in given else None
        given, others = split_rest(given)
        options = optimizer_options(spec)
        if "lr" in options and options["lr"].default is MISSING:
            given = {"lr": _LR, **given}
        values = parse_options("opt", options, given)
        chosen = [name for name in options if name in given or name in spec.defaults]
        self.arguments = {name: values[name] for name in chosen if values[name] != TASK_VALUE}
        for name in _CAPS:
            if name in options and name not in given:
                self.arguments |= self._lifted(name)
        parameters = inspect.signature(self.cls).parameters.values()
        own = {p.name: p.default for p in parameters if p.name != "params" and p.default is not p.empty}
        self.hparams: dict[str, Any] = own | self.arguments
        self.options = set(options)
        self.matrices, self.by_role = False, rest is not None
        self._flags = False
        if rest is not None:
            self._join(OPTIMIZERS[rest], others)
        elif not self._steps((4, 3), (3,)):
            self.matrices = self._steps((4, 3), (3, 1))
            if not self.matrices:
                self._flags = True
                self._flags = self.by_role = self._steps((4, 3), (3,))

    def _join(self, rest: OptimizerSpec, given: Mapping[str, Any]) -> None:
        """Use another method for all parameters except matrices."""
        values = parse_options(f"opt.{REST}", optimizer_options(rest), given)
        values = {name: value for name, value in values.items() if value != TASK_VALUE}
        self.cls = Joint(self.cls, self.lr, rest.cls, values)
        traits = {name: any(getattr(spec.traits, name) for spec in (self.spec, rest)) for name in vars(Traits())}
        most = max(self.spec.temporaries, rest.temporaries)
        self.spec = replace(self.spec, traits=Traits(**traits), temporaries=most, update=None)

    def _steps(self, *shapes: tuple[int, ...]) -> bool:
        """Whether it steps on parameters of these shapes."""
        params = [nn.Parameter(torch.ones(shape, dtype=torch.float64)) for shape in shapes]
        try:
            self.push(self.make(params), params, [torch.ones_like(p) for p in params])
        except Exception:
            return False
        return True

    def attention(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> Attention:
        """A fresh attention head."""
        return Attention(dtype, seed, matrices=self.matrices)

    def quadratic(self, turn: Tensor | None = None) -> Quadratic:
        """A fresh quadratic in rotated coordinates."""
        return Quadratic(turn, matrices=self.matrices or self.by_role)

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
        """Skip a check for optimizers that draw random numbers.

        Raises:
            NotApplicable: the optimizer draws random numbers, which depend on the layout of tensors.
        """
        if self.draws:
            raise NotApplicable("it draws random numbers, which depend on the layout of tensors")

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """Further arguments of the constructor: none, and those for the kernels of a GPU, if it takes them."""
        foreach = "foreach" in self.options and not self.arguments.get("fused")
        return [{}, {"foreach": True}] if foreach else [{}]

    @property
    def lr(self) -> float | None:
        """The learning rate that the constructor takes, or None."""
        lr = self.hparams.get("lr")
        return None if lr is None else float(lr)

    def make(self, params: Any, *, seeded: int = 0, **more: Any) -> Any:
        """An optimizer over parameters or groups; the generators are seeded before."""
        params = list(params) if self._flags or takes_names(self.spec.cls) else params
        if self._flags:
            params = [{**group, "use_muon": flag} for flag in (True, False) for group in _split(params, matrices=flag)]
        elif takes_names(self.spec.cls):
            if any(isinstance(each, dict) for each in params):
                raise NotApplicable("it takes all parameters by name and no groups")
            params = [(f"weight_{i}", p) for i, p in enumerate(params)]
        seed(seeded)
        return in_training(self.cls(params, **{**self.arguments, **more}))

    def stepper(
        self,
        model: Any = None,
        groups: Callable[[list[nn.Parameter]], Any] = list,
        arguments: Mapping[str, Any] | None = None,
        seeded: int = 0,
    ) -> Stepper:
        """A model with an optimizer.

        Args:
            model: a module with `loss(rows)`; the attention head in float64 if None.
            groups: from its parameters to what the constructor takes.
            arguments: of the constructor, in addition to or instead of the subject's.
            seeded: first seed of the global generators.
        """
        model = self.attention() if model is None else model
        optimizer = self.make(groups(list(model.parameters())), seeded=seeded, **(arguments or {}))
        return Stepper(self.spec, model, optimizer, seeded)

    def push(self, optimizer: Any, params: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """One step with given gradients; the closure only returns a loss.

        Raises:
            NotApplicable: the method differentiates gradients, and these have no graph.
        """
        if self.spec.traits.create_graph:
            raise NotApplicable("it differentiates gradients, and synthetic gradients have no graph")
        seed(0)
        for p, gradient in zip(params, gradients, strict=True):
            p.grad = gradient
        loss = torch.tensor(0.5, dtype=torch.float64)
        optimizer.step(lambda: loss)


class Joint:
    """A method for matrices and another for the rest, combined as one class.

    Args:
        first: class of the method for matrices.
        lr: its learning rate, or None.
        rest: class of the other.
        arguments: of the other's constructor; its lr follows that of the first, in proportion.
    """

    def __init__(self, first: Any, lr: float | None, rest: Any, arguments: Mapping[str, Any]) -> None:
        self.first, self.lr, self.rest, self.arguments = first, lr, rest, arguments

    def __call__(self, params: Any, **arguments: Any) -> Any:
        """The optimizer of parameters or groups; values of a group other than lr are the first method's."""
        params = list(params)
        others = [{"params": group["params"], **self._in_proportion(group)} for group in _split(params, matrices=False)]
        parts = []
        if matrices := _split(params, matrices=True):
            parts.append(self.first(matrices, **arguments))
        if others:
            parts.append(self.rest(others, **{**self.arguments, **self._in_proportion(arguments)}))
        return Hybrid(parts)

    def _in_proportion(self, told: Mapping[str, Any]) -> dict[str, Any]:
        if not self.lr or "lr" not in told or "lr" not in self.arguments:
            return {}
        return {"lr": self.arguments["lr"] * told["lr"] / self.lr}


def _split(params: Sequence[Any], *, matrices: bool) -> list[dict[str, Any]]:
    """The groups' matrices, or all else, as groups."""
    groups = [each if isinstance(each, dict) else {"params": [each]} for each in params]
    if all(len(group) == 1 for group in groups):
        groups = [{"params": [p for group in groups for p in group["params"]]}]
    own = [
        {**group, "params": [p for p in group["params"] if (p.ndim == 2 and p.numel() > 0) is matrices]}
        for group in groups
    ]
    return [group for group in own if group["params"]]


def in_training(optimizer: Any) -> Any:
    """The optimizer, in training mode if it keeps other weights for evaluation (schedule-free methods)."""
    if callable(getattr(optimizer, "train", None)):
        optimizer.train()
    return optimizer
