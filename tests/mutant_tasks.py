"""Tasks with one fault each, and the checks that must find it, and no other checks; the sound task comes first."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.classification import BinaryAccuracy

from tasks import BatchRandomness, Outcome, Task, TaskData, TaskSpec, derive_seed

FAULTS: dict[str, set[str]] = {}
"""Names of specs in this module, and the checks that must fail on them."""


class Points(TaskData):
    """Points of two classes, different for each seed."""

    counts: ClassVar[dict[str, int]] = {"train": 40, "val": 20, "test": 20}

    def __init__(self, root: Any = None, seed: int = 0) -> None:
        self.splits = {name: self.made(derive_seed(seed, name), n) for name, n in self.counts.items()}
        self.sizes = {name: len(labels) for name, (_, labels) in self.splits.items()}

    def made(self, seed: int, n: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(n) % 2
        points = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        points[:, 0] += 2 * labels - 1
        return points, labels

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        self.splits = {name: (x.to(device, dtype), y.to(device)) for name, (x, y) in self.splits.items()}

    def batch(self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None) -> Any:
        x, y = self.splits[split]
        return x[rows], y[rows]


class Net(Task):
    """A layer and a readout."""

    def __init__(self, data: TaskData) -> None:
        super().__init__(data)
        self.hidden, self.readout = nn.Linear(4, 3), nn.Parameter(torch.randn(3))

    def loss(self, batch: tuple[Tensor, Tensor]) -> Outcome:
        points, labels = self.inputs(batch[0]), batch[1]
        output = torch.tanh(self.hidden(points)) @ self.readout
        return Outcome(self.loss_of((2 * labels - 1) * output), output.detach().sigmoid(), labels)

    def inputs(self, points: Tensor) -> Tensor:
        return points

    def loss_of(self, margins: Tensor) -> Tensor:
        return nn.functional.softplus(-margins).mean()

    def metrics(self) -> dict[str, Metric]:
        return {"accuracy": BinaryAccuracy()}


FIXED: dict[str, Any] = dict(
    metric="accuracy", mode="max", target=None, budget={"max_steps": 20}, source="tests", batch_size=10
)


def spec(*faults: str, data: str = "Points", lanes: bool = True) -> Callable[[type], type]:
    """Note a module's spec under its name in capitals, with the checks that it fails."""

    def noted(cls: type) -> type:
        name = cls.__name__.upper()
        FAULTS[name] = set(faults)
        module = cls.__name__ if issubclass(cls, Task) else "Net"
        globals()[name] = TaskSpec(
            name=name,
            title="",
            module=f"tests.mutant_tasks:{module}",
            data=f"tests.mutant_tasks:{data if issubclass(cls, Task) else cls.__name__}",
            lanes=lanes,
            **FIXED,
        )
        return cls

    return noted


@spec()
class Sound(Net):
    roles: ClassVar[Any] = {"readout": "head"}


@spec()
class Drops(Net):
    """Dropouts of two places, one in another's name."""

    def __init__(self, data: TaskData) -> None:
        super().__init__(data)
        self.first = self.second = nn.Dropout(0.2)

    def inputs(self, points: Tensor) -> Tensor:
        return self.second(self.first(points))


@spec()
class Creates(Net):
    """Its loss creates tensors in the default precision."""

    def inputs(self, points: Tensor) -> Tensor:
        return points @ torch.linspace(0.1, 1.3, 4).diag()


@spec("builds")
class Detached(Net):
    def loss_of(self, margins: Tensor) -> Tensor:
        return super().loss_of(margins) * torch.nan


@spec("deterministic", "micro_batches", "resume", "lanes")
class Unseeded(Net):
    own: ClassVar[torch.Generator] = torch.Generator().manual_seed(0)

    def loss_of(self, margins: Tensor) -> Tensor:
        return super().loss_of(margins + 0.1 * torch.rand((), generator=self.own))


class SamePoints(Points):
    """The same points for every seed."""

    counts: ClassVar[dict[str, int]] = {"train": 10, "val": 20, "test": 20}

    def __init__(self, root: Any = None, seed: int = 0) -> None:
        super().__init__(root)


@spec("deterministic", data="SamePoints", lanes=False)
class OneSeed(Net):
    """Neither samples nor weights depend on the seed."""

    def __init__(self, data: TaskData) -> None:
        torch.manual_seed(0)
        super().__init__(data)


@spec("micro_batches")
class Summed(Net):
    """Sums the loss: twice the batch gives twice the loss."""

    def loss_of(self, margins: Tensor) -> Tensor:
        return nn.functional.softplus(-margins).sum() / 10


@spec("micro_batches")
class Standardised(Net):
    """Standardises over the batch, like batch normalisation in training."""

    def loss_of(self, margins: Tensor) -> Tensor:
        return super().loss_of(margins - margins.mean())


@spec("resume", "micro_batches", lanes=False)
class Remembers(Net):
    """Keeps state that is not in checkpoints: a count of calls."""

    calls = 0

    def loss_of(self, margins: Tensor) -> Tensor:
        self.calls += 1
        return super().loss_of(margins) / self.calls


@spec("dropout")
class DropsTwice(Net):
    """Calls one dropout in two places."""

    def __init__(self, data: TaskData) -> None:
        super().__init__(data)
        self.drop = nn.Dropout(0.2)

    def inputs(self, points: Tensor) -> Tensor:
        return self.drop(self.drop(points))


@spec("lanes")
class OtherLanes(Net):
    def loss_at(self, weights: Mapping[str, Tensor], batch: Any) -> Outcome:
        outcome = super().loss_at(weights, batch)
        return outcome._replace(loss=outcome.loss * 1.01)


@spec("leakage")
class Leaks(Points):
    """One row of the validation split is a training row."""

    def __init__(self, root: Any = None, seed: int = 0) -> None:
        super().__init__(root, seed)
        (x, y), (val_x, val_y) = self.splits["train"], self.splits["val"]
        val_x[3], val_y[3] = x[17], y[17]


CLASSES = TaskSpec(name="classes", title="given by classes", module=Net, data=Points, lanes=True, **FIXED)
REFUSED = {
    "MISSPELT": "roles of Misspelt: it has no parameter readuot",
    "NOSUCHROLE": "roles of NoSuchRole: readout has 'output'; roles are matrix, embedding, head, vector",
}
"""Specs whose models the suite refuses to build, and why."""


@spec()
class Misspelt(Net):
    roles: ClassVar[Any] = {"readuot": "head"}


@spec()
class NoSuchRole(Net):
    roles: ClassVar[Any] = {"readout": "output"}


for refused in REFUSED:
    del FAULTS[refused]
