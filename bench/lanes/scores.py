"""A metric of many lanes at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torchmetrics import Metric


@contextmanager
def without_warning() -> Iterator[None]:
    """Silence `vmap`'s warning about kernels that it cannot batch, such as CPU attention: looping costs little here."""
    functorch: Any = import_module("torch._C._functorch")  # missing in torch's type stubs
    functorch._set_vmap_fallback_warning_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_warning_enabled(True)


class Scores:
    """A fresh metric for many runs: stacked states if `torch.func.vmap` supports it, else a copy for each run."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.states: dict[str, Tensor] | None = None
        self.copies: list[Metric] = []

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """Update with predictions and labels, shape (G, R, rows, ...)."""
        self.shape = predictions.shape[:2]
        predictions, labels = predictions.flatten(0, 1), labels.flatten(0, 1)
        if self.states is not None:
            self.states = self._updated(self.states, predictions, labels)
        elif not self.copies:
            self._begin(predictions, labels)
        for i, metric in enumerate(self.copies):
            metric.update(predictions[i], labels[i])

    def _begin(self, predictions: Tensor, labels: Tensor) -> None:
        """Update with the first predictions, and decide between stacked states and copies."""
        fresh = self.metric.to(labels.device)
        self.metric = deepcopy(fresh)
        self.metric.update(predictions[0], labels[0])  # else `compute` warns of a missing update
        try:
            if any(isinstance(part, Metric) for part in fresh.children()):
                raise TypeError("a metric of metrics")
            state: Any = fresh.metric_state
            states = {name: torch.stack([value] * len(predictions)) for name, value in state.items()}
            self.states = self._updated(states, predictions, labels)
        except (RuntimeError, TypeError):  # it depends on values, or keeps lists or other metrics
            self.copies = [deepcopy(fresh) for _ in predictions]

    @without_warning()
    def compute(self) -> Tensor:
        """The metric's values, shape (G, R)."""
        if self.states is None:
            return torch.stack([states.compute() for states in self.copies]).view(self.shape)
        try:
            values = vmap(lambda state: self._with(state).compute())(self.states)
        except (RuntimeError, TypeError):
            states = zip(*self.states.values(), strict=True)
            values = torch.stack([self._with(dict(zip(self.states, state, strict=True))).compute() for state in states])
        return values.view(self.shape)

    @without_warning()
    def _updated(self, states: dict[str, Tensor], predictions: Tensor, labels: Tensor) -> dict[str, Tensor]:
        def one(state: dict[str, Tensor], p: Tensor, y: Tensor) -> dict[str, Tensor]:
            metric = self._with(state)
            metric.update(p, y)
            return {name: getattr(metric, name) for name in state}

        return vmap(one)(states, predictions, labels)

    def _with(self, state: dict[str, Tensor]) -> Metric:
        metric = copy(self.metric)
        for name, value in state.items():
            setattr(metric, name, value.clone())  # an update may write into it
        return metric
