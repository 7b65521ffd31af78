"""What all checks share: a small model, steps of an optimizer on it, and comparisons of weights and of state."""

import itertools
import pickle
import random
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.optim import Optimizer

from optimizers import OptimizerSpec

STEPS = 6  # of most checks: enough for momentum and bias corrections. Ours.
ROUNDING = 1e-9  # tolerance of a gap: rounding of float64 stays below it; a real fault gives 1e-3 and more
MATTERS = 1e-6  # a gap that rounding does not explain
SAMPLES, TOKENS, WIDTH = 12, 4, 5  # of the attention head


class Fault(AssertionError):
    """The optimizer (or task) does not have the property; `measured` is the number that is too large, if any."""

    def __init__(self, message: str, measured: float | None = None) -> None:
        super().__init__(message)
        self.measured = measured


def at_most(tolerance: float, measured: float, message: str) -> None:
    """Fail if the measured number exceeds the tolerance (or is NaN)."""
    if not measured <= tolerance:
        raise Fault(f"{message} {measured:.3g} (at most {tolerance:g})", measured)


class Attention(nn.Module):
    """An attention head with a linear readout and a logistic loss; all parameters may be matrices."""

    def __init__(self, dtype: torch.dtype = torch.float64, *, matrices: bool = False) -> None:
        super().__init__()
        column = (1,) if matrices else ()
        self.keys = nn.Parameter(0.5 * _draw(1, WIDTH, WIDTH).to(dtype))
        self.values = nn.Parameter(0.5 * _draw(2, WIDTH, 3).to(dtype))
        self.readout = nn.Parameter(0.5 * _draw(3, 3, *column).to(dtype))
        self.bias = nn.Parameter(0.5 * _draw(4, 1, *column).to(dtype))
        self.inputs = _draw(5, SAMPLES, TOKENS, WIDTH).to(dtype)
        self.labels = torch.sign(self.inputs[:, 0, 0] + self.inputs[:, 0, 1])

    def rows(self, parts: int) -> list[slice]:
        """The batch, cut into micro-batches of different sizes."""
        cuts = [SAMPLES * part * (part + 1) // (parts * (parts + 1)) for part in range(parts + 1)]
        return [slice(a, b) for a, b in itertools.pairwise(cuts)]

    def forward(self, rows: slice) -> Tensor:
        """Sum of the rows' losses over the number of all rows, so that micro-batches add up to the mean."""
        x = self.inputs[rows]
        scores = torch.einsum("nd,de,nte->nt", x[:, 0], self.keys, x)
        seen = torch.einsum("nt,ntd->nd", scores.softmax(-1), x)
        margin = self.labels[rows] * ((seen + x[:, 0]) @ self.values @ self.readout.flatten() + self.bias.flatten())
        return softplus(-margin).sum() / SAMPLES

    loss = forward

    def reduced(self, loss: Tensor) -> Tensor:
        """The loss of the batch, from the loss of this process."""
        return loss


class Stepper:
    """A model and its optimizer, and the number of steps `taken`.

    Every protocol works: gradients are in `.grad` before `step(closure)`, and the closure, as torch documents it,
    clears them and evaluates again.
    """

    def __init__(self, spec: OptimizerSpec, model: Any, optimizer: Any, seeds: int = 0) -> None:
        self.spec, self.model, self.optimizer, self.seeds = spec, model, optimizer, seeds
        self.params: list[Any] = list(model.parameters())
        self.start = values(self.params)
        self.taken = 0

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

    def step(self, parts: int = 1, by: Callable[..., Any] | None = None) -> Any:
        """One step of so many micro-batches, by a function of the closure or the optimizer's own `step`."""
        seed(self.seeds + self.taken)
        self.taken += 1
        self.backward(parts)
        return (by or self.optimizer.step)(lambda: self.backward(parts))

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
        return not equal(self.params, self.start)

    def has_lr(self) -> bool:
        """Whether each group has a number as lr."""
        return all(isinstance(group.get("lr"), float | int | Tensor) for group in self.optimizer.param_groups)

    def scale_lr(self, factor: float) -> None:
        """Multiply the learning rate of every group, if all have one."""
        for group in self.optimizer.param_groups if self.has_lr() else ():
            group["lr"] = group["lr"] * factor


def _draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(shapes: Iterable[Sequence[int]], step: int) -> list[Tensor]:
    """Synthetic gradients of a step, always the same."""
    generator = torch.Generator().manual_seed(step)
    return [0.3 * torch.randn(tuple(shape), generator=generator, dtype=torch.float64) for shape in shapes]


def values(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies, without autograd."""
    return [t.detach().clone() for t in tensors]


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All elements as one float64 vector."""
    return torch.cat([t.detach().double().reshape(-1) for t in tensors])


def equal(a: Iterable[Tensor], b: Iterable[Tensor]) -> bool:
    """Whether all tensors are equal, NaN to NaN too."""
    return all(torch.equal(x.detach().nan_to_num(), y.detach().nan_to_num()) for x, y in zip(a, b, strict=True))


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


def generators() -> dict[str, Any]:
    """The states of the global generators."""
    return {
        "torch's generator": pickle.dumps(torch.default_generator.get_state().numpy()),
        "numpy's generator": pickle.dumps(np.random.get_state()),
        "Python's generator": random.getstate(),
    }


def leaves(
    value: Any, place: str = "", of: Callable[[Tensor], Any] = lambda t: t.detach().clone(), depth: int = 8,
    seen: set[int] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Tensors (as `of` gives them), numbers, words and states of generators in containers and objects, by place."""
    if value is None or isinstance(value, int | float | str):
        return {place: value}
    if isinstance(value, Tensor):
        return {place: of(value)}
    if isinstance(value, torch.Generator):
        return {place: value.get_state().numpy().tobytes()}
    if isinstance(value, random.Random | np.random.Generator | np.ndarray | itertools.count | itertools.cycle):
        return {place: pickle.dumps(value)}
    seen = seen if seen is not None else set[int]()
    if id(value) in seen or not depth or isinstance(value, type | nn.Module | ModuleType) or callable(value):
        return {}
    seen.add(id(value))
    if isinstance(value, Optimizer):
        usual = vars(torch.optim.SGD([torch.zeros(1)]))
        others = {f"self.{name}": member for name, member in vars(value).items() if name not in usual}
        members = {"state_dict()": value.state_dict(), **others}
    elif isinstance(value, Mapping):  # keyed by tensors, which are others after loading
        keys = [i if isinstance(key, Tensor) else key for i, key in enumerate(value)]
        members = {f"{place}[{key!r}]" if place else str(key): value[k] for key, k in zip(keys, value, strict=True)}
    elif isinstance(value, list | tuple | set | deque):
        members = {f"{place}[{i}]": member for i, member in enumerate(value)}
    else:
        members = {f"{place}.{name}": member for name, member in getattr(value, "__dict__", {}).items()}
    return {k: v for at, member in members.items() for k, v in leaves(member, at, of, depth - 1, seen).items()}


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Where two results of `leaves` first differ."""
    for place, a in one.items():
        if place not in other:
            return f"{place} is missing"
        b = other[place]
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            if (a.dtype, a.shape) != (b.dtype, b.shape):
                return f"{place} is {b.dtype} of shape {tuple(b.shape)} in place of {a.dtype} of {tuple(a.shape)}"
            if not equal([a], [b]):
                return f"{place} differs"
        elif type(a) is not type(b) or (a != b and a == a):
            return f"{place} is in another state" if isinstance(a, bytes) else f"{place} is {b!r} in place of {a!r}"
    return next((f"{place} is new" for place in other if place not in one), "")
