"""Steps of an optimizer, on a model as in the suite or with synthetic gradients, and gaps between results."""

import random
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from optimizers import OptimizerSpec
from optimizers.closures import once_known

STEPS = 6
"""Steps of most checks: enough for momentum and bias corrections, few enough that rounding stays small."""


class Stepper:
    """A model and an optimizer, stepped as in the suite: the batch's gradient is in `.grad` before `step(closure)`.

    The closure's first call returns the known loss; later calls evaluate again.

    Args:
        spec: of the optimizer.
        model: has `rows`, `loss` and `reduced` (`bench/check/problem.py`).
        optimizer: None for a model whose loss and gradients are only evaluated.
        seeds: the first step's seed.

    Attributes:
        calls: of the closure, by step.
    """

    def __init__(self, spec: OptimizerSpec, model: Any, optimizer: Any = None, seeds: int = 0) -> None:
        self.spec, self.model, self.optimizer, self.seeds = spec, model, optimizer, seeds
        self.params: list[Any] = list(model.parameters())
        self.start = values(self.params)
        self.calls: list[int] = []

    def backward(self, parts: int = 1) -> Tensor:
        """The whole batch's mean loss, with its gradient in `.grad`."""
        for p in self.params:
            p.grad = None
        total = torch.zeros(())
        for rows in self.model.rows(parts):
            loss = self.model.loss(rows)
            loss.backward(create_graph=self.spec.traits.create_graph)
            total = total + loss.detach()
        return self.model.reduced(total)

    def step(self, parts: int = 1, *, norms: bool = False, by: Callable[..., Any] | None = None) -> Any:
        """One step.

        Args:
            parts: micro-batches.
            norms: whether to pass the norms that `step` accepts as keywords.
            by: callable with closure and keywords; the optimizer's `step` if None.

        Returns:
            What it returned.
        """
        seed(self.seeds + len(self.calls))
        with torch.enable_grad():
            loss = self.backward(parts)
        evaluate = once_known(loss, self.params, lambda: self.backward(parts))
        self.calls.append(0)

        def closure() -> Tensor:
            self.calls[-1] += 1
            return evaluate()

        told: dict[str, Tensor] = {}
        if norms:
            norm = torch.cat([p.grad.flatten() for p in self.params]).norm()
            told = dict.fromkeys(self.spec.step_keywords, norm)
        return (by or self.optimizer.step)(closure, **told)

    def run(self, steps: int = STEPS, **how: Any) -> "Stepper":
        """Several steps; returns itself."""
        for _ in range(steps):
            self.step(**how)
        return self

    def gap(self, other: "Stepper") -> float:
        """Distance of the weights from another's, relative to the distance that the other moved."""
        return gap(self.params, other.params, other.start)


def gradients(shapes: Iterable[Sequence[int]], step: int) -> list[Tensor]:
    """Synthetic gradients of a step, always the same."""
    random = torch.Generator().manual_seed(step)
    return [0.3 * torch.randn(tuple(shape), generator=random, dtype=torch.float64) for shape in shapes]


def values(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies, without autograd."""
    return [t.detach().clone() for t in tensors]


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All elements as one float64 vector."""
    return torch.cat([t.detach().double().reshape(-1) for t in tensors])


def gap(a: Sequence[Tensor], b: Sequence[Tensor], start: Sequence[Tensor]) -> float:
    """Largest difference of a and b relative to the largest distance of b from its start; inf if one is not finite."""
    x, y = flat(a), flat(b)
    difference, way = (float(d.abs().max()) for d in (x - y, y - flat(start)))
    if not (np.isfinite(difference) and np.isfinite(way)):
        return inf
    return difference / way if way else (inf if difference else 0.0)


def seed(number: int) -> None:
    """Seed the generators that an optimizer may draw from."""
    # `torch.manual_seed` seeds every kind of device, which takes far longer; all checks run on the CPU.
    torch.default_generator.manual_seed(number)
    np.random.seed(number)
    random.seed(number)
