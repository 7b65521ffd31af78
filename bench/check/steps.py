"""Small models, steps of an optimizer on them, and gaps between results."""

import random
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from optimizers import OptimizerSpec

STEPS = 6
"""Steps of most checks: enough for momentum and bias corrections, few enough that rounding stays small."""
ROUNDING = 1e-9
"""Tolerance of a gap: rounding of float64 over a few steps stays below it; a real fault gives 1e-3 and more."""
SAMPLES, TOKENS, WIDTH = 12, 4, 5


class Fault(AssertionError):
    """The optimizer (or task) does not have the property; `measured` is the number that is too large, if any."""

    def __init__(self, message: str, measured: float | None = None) -> None:
        super().__init__(message)
        self.measured = measured


def at_most(tolerance: float, measured: float, message: str) -> None:
    """Fail if the measured number exceeds the tolerance (or is NaN)."""
    if not measured <= tolerance:
        raise Fault(f"{message}: {measured:.3g} (at most {tolerance:g})", measured)


class Attention(nn.Module):
    """An attention head with a linear readout and a logistic loss with learnable labels.

    Args:
        dtype: of weights and data.
        seed: of the weights.
        matrices: whether all parameters are matrices; else there are vectors among them.
    """

    def __init__(self, dtype: torch.dtype = torch.float64, seed: int = 0, *, matrices: bool = False) -> None:
        super().__init__()
        column = (1,) if matrices else ()
        self.keys = nn.Parameter(0.5 * _draw(seed + 1, WIDTH, WIDTH).to(dtype))
        self.values = nn.Parameter(0.5 * _draw(seed + 2, WIDTH, 3).to(dtype))
        self.readout = nn.Parameter(0.5 * _draw(seed + 3, 3, *column).to(dtype))
        self.bias = nn.Parameter(0.5 * _draw(seed + 4, 1, *column).to(dtype))
        self.inputs = _draw(5, SAMPLES, TOKENS, WIDTH).to(dtype)
        self.labels = torch.sign(self.inputs[:, 0, 0] + self.inputs[:, 0, 1])

    def rows(self, parts: int) -> list[slice]:
        """The batch, cut into micro-batches of different sizes."""
        cuts = [SAMPLES * part * (part + 1) // (parts * (parts + 1)) for part in range(parts + 1)]
        return [slice(a, b) for a, b in pairwise(cuts)]

    def forward(self, rows: slice) -> Tensor:
        """Sum of the rows' losses over the number of all rows, so that micro-batches add up to the mean."""
        x = self.inputs[rows]
        scores = torch.einsum("nd,de,nte->nt", x[:, 0], self.keys, x)
        seen = torch.einsum("nt,ntd->nd", scores.softmax(-1), x)
        margin = self.labels[rows] * ((seen + x[:, 0]) @ self.values @ self.readout.flatten() + self.bias.flatten())
        return softplus(-margin).sum() / SAMPLES

    def loss(self, rows: slice) -> Tensor:
        """`forward`."""
        return self(rows)

    def reduced(self, loss: Tensor) -> Tensor:
        """The loss of the batch, from the loss of this process."""
        return loss


class Quadratic(nn.Module):
    """Half of the sum of a_i y_i^2 with a from 1 to 10 and y = turn^T w; all components of the start are nonzero.

    Args:
        turn: an orthogonal matrix, shape (6, 6); the identity if None.
        matrices: whether w is a matrix with one column, else a vector.
    """

    def __init__(self, turn: Tensor | None = None, *, matrices: bool = False) -> None:
        super().__init__()
        self.turn = torch.eye(6, dtype=torch.float64) if turn is None else turn
        self.curvature = torch.linspace(1, 10, 6, dtype=torch.float64)
        start = self.turn @ torch.tensor([1.0, -0.8, 1.2, 0.9, -1.1, 0.7], dtype=torch.float64)
        self.weight = nn.Parameter(start.view(6, 1) if matrices else start)
        self.factor = 1.0

    def rows(self, parts: int) -> list[slice]:
        """One micro-batch."""
        return [slice(None)]

    def loss(self, rows: slice) -> Tensor:
        """The value, times `factor`."""
        return self.factor * 0.5 * (self.curvature * (self.turn.T @ self.weight.flatten()).square()).sum()

    def reduced(self, loss: Tensor) -> Tensor:
        """The loss itself."""
        return loss


class Stepper:
    """A model and an optimizer, stepped so that every protocol works: gradients are in `.grad` before `step(closure)`,
    and the closure, as torch documents it, clears them and evaluates again.

    Args:
        spec: of the optimizer.
        model: has `rows`, `loss` and `reduced`, such as `Attention`.
        optimizer: None for a model whose loss and gradients are only evaluated.
        seeds: the first step's seed.

    Attributes:
        calls: of the closure, by step.
    """  # noqa: D205 - one sentence

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
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Using backward\\(\\) with create_graph")
            for rows in self.model.rows(parts):
                loss = self.model.loss(rows)
                loss.backward(create_graph=self.spec.traits.create_graph)
                total = total + loss.detach()
        return self.model.reduced(total)

    def step(self, parts: int = 1, *, norms: bool = False, by: Callable[..., Any] | None = None) -> Any:
        """One step; returns what it returned.

        Args:
            parts: micro-batches.
            norms: whether to pass the norms that `step` accepts as keywords.
            by: callable with closure and keywords; the optimizer's `step` if None.
        """
        seed(self.seeds + len(self.calls))
        self.backward(parts)
        self.calls.append(0)

        def closure() -> Tensor:
            self.calls[-1] += 1
            return self.backward(parts)

        keywords: dict[str, Tensor] = {}
        if norms:
            keywords = dict.fromkeys(self.spec.step_keywords, flat([p.grad for p in self.params]).norm())
        return (by or self.optimizer.step)(closure, **keywords)

    def run(self, steps: int = STEPS, **how: Any) -> "Stepper":
        """Several steps; returns itself."""
        for _ in range(steps):
            self.step(**how)
        return self

    def gap(self, other: "Stepper") -> float:
        """Distance of the weights from another's, relative to the distance that the other moved."""
        return gap(self.params, other.params, other.start)

    def moved(self) -> bool:
        """Whether a weight has changed."""
        return not all(map(torch.equal, self.params, self.start))

    def set_lr(self, factor: float) -> None:
        """Multiply the learning rate of every group."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] * factor


def _draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(shapes: Iterable[Sequence[int]], step: int) -> list[Tensor]:
    """Synthetic gradients of a step, always the same."""
    random = torch.Generator().manual_seed(step)
    return [0.3 * torch.randn(tuple(shape), generator=random, dtype=torch.float64) for shape in shapes]


def values(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies, without autograd."""
    return [t.detach().clone() for t in tensors]


def flat(tensors: Iterable[Tensor]) -> Tensor:
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
