"""The base class of tasks: a Lightning module that defines what is trained; training itself is the same for all."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.func import functional_call, vmap
from torch.optim import Optimizer
from torchmetrics import Metric, MetricCollection

from optimizers.groups import Parameter, Role
from optimizers.norms import cut_like, whole
from tasks.core.attention import Maps, MultiHeadAttention
from tasks.core.averaging import Average
from tasks.core.data import TaskData
from tasks.core.observatory import Observer
from tasks.core.order import BatchOrder
from tasks.core.randomness import BatchRandomness, use_batch_dropout
from tasks.core.roles import parameters_with_roles
from tasks.core.training_step import Loop, Outcome, Record, TrainingPlan, evaluation_weights

EVALUATED_ON_CPU = 200
"""Samples of one forward pass in evaluation on a CPU, at most: ViTs took 1.1 to 1.8 times as long with 1,000. Ours."""


class Task(pl.LightningModule, ABC):
    """A model with its loss and metrics. Subclasses define what is trained; the training procedure is the same for all.

    Optimization is manual, so that one path serves every optimizer: the loss and the gradient are those of the whole
    batch, summed over micro-batches and averaged over ranks; only then is the gradient clipped, and the optimizer
    gets the loss of that batch, unscaled, through its closure.
    """

    plan: TrainingPlan
    part: str | None = None
    """Description of the model if it is smaller than the one that the task is named after."""
    roles: Mapping[str, Role] = {}
    """Roles that do not follow from the modules (`tasks.core.roles`), by patterns of parameters' names."""
    pieces: Mapping[str, int] = {}
    """Number of matrices stacked by rows in one parameter, by patterns of names."""

    def __init__(self, data: TaskData) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.data = data
        self.randomness = BatchRandomness()
        self.steps_done = self.evaluations = 0
        self.record = Record()
        self.best_weights: dict[str, Tensor] | None = None
        self.order: BatchOrder | None = None
        self.average: Average | None = None
        self.observer: Observer | None = None
        self._shards: list[Any] = []  # modules under FSDP2
        self._loop: Loop | None = None

    @abstractmethod
    def loss(self, batch: Any) -> Outcome:
        """Mean loss of the batch (less `data.loss_offset`) with the predictions and labels for the metrics."""

    @abstractmethod
    def metrics(self) -> dict[str, Metric]:
        """Fresh metrics by name; each is updated with (predictions, labels)."""

    def facts(self) -> dict[str, Any]:
        """Facts about the model for the run's record, in addition to `TaskData.facts`; plain numbers and words."""
        return {}

    @final
    def forward(self, batch: Any) -> Outcome:
        """`loss` as a call of the module, as `torch.func.functional_call` needs."""
        return self.loss(batch)

    def loss_at(self, weights: Mapping[str, Tensor], batch: Any) -> Outcome:
        """`loss` with other weights, for K points at once: a pure function of weights and batch, differentiable.

        Tasks may override it if a layout other than that of `torch.func.vmap` is faster. Weights are by name, each with
        a leading dimension of K points; the batch is the same at all points. Losses have the shape (K,), predictions
        and labels (K, rows, ...).
        """

        def at(point: Mapping[str, Tensor]) -> Outcome:
            return functional_call(self, dict(point), (batch,))

        # Dropout depends on the batch, so it is the same at all points.
        return vmap(at, randomness="same")(weights)

    def measure_at(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Measurements of the weights during training: a pure function of weights and data.

        It never synchronises with the host. Weights are by name, each with a leading dimension of K points of the run,
        without gradients, unsharded. Values are by name, shape (K,) each, always under the same names.
        """
        return {}

    def maps(self, weights: Mapping[str, Tensor]) -> list[Maps]:
        """The linear maps of all heads, layer by layer, given the parameters by name, for `--trainer.observe`.

        Heads that are composed for each pair of tokens have no separate attention and are excluded.
        """
        return [
            module.maps(weights[f"{name}.qkv.weight"], weights[f"{name}.proj.weight"])
            for name, module in self.named_modules()
            if isinstance(module, MultiHeadAttention) and module.composition is None
        ]

    @final
    @torch.no_grad()
    def measure(self) -> dict[str, Tensor]:
        """`measure_at` the current weights: 0-dim tensors."""
        weights = {name: whole(p.detach())[None] for name, p in self.named_parameters()}
        return {name: value[0] for name, value in self.measure_at(weights).items()}

    @final
    def setup(self, stage: str) -> None:
        """Start the plan's weight average and observations, if any, before a checkpoint is restored."""
        self.average = Average(self.plan.average) if self.plan.average is not None and self.plan.averaged else None
        self.observer = Observer(self, self.plan.observed) if self.plan.observed else None

    @final
    def averaged(self) -> list[nn.Parameter]:
        """The parameters that are averaged."""
        trained = [p for p in self.parameters() if p.requires_grad]
        return [trained[i] for i in self.plan.averaged]

    @final
    def configure_model(self) -> None:
        """Replace dropout by a version independent of micro-batches, and shard under FSDP2."""
        use_batch_dropout(self, self.randomness)
        mesh = self.device_mesh
        if mesh is None or self._shards:
            return
        from torch.distributed.fsdp import fully_shard

        shards = mesh["data_parallel"]
        for blocks in [m for m in self.modules() if isinstance(m, nn.ModuleList)]:
            for block in blocks:
                self._shards.append(fully_shard(block, mesh=shards))
        for child in self.children():
            self._shards.append(fully_shard(child, mesh=shards))
        for name, parameter in self.named_parameters():
            if not isinstance(parameter, DTensor):
                raise ValueError(f"parameter {name} is in no submodule of the task, so FSDP2 cannot shard it")

    @final
    def configure_optimizers(self) -> Optimizer:
        """The optimizer of the plan over the parameters that require gradients."""
        return self.plan.make_optimizer(p for p in self.parameters() if p.requires_grad)

    @final
    def parameter_roles(self) -> list[Parameter]:
        """Facts about each trained parameter, in the order of `parameters`."""
        return parameters_with_roles(self, self.roles, self.pieces)

    @final
    def on_fit_start(self) -> None:
        """Put the data on the device once, and fix the order."""
        self.data.to(self.device, self.dtype)  # type: ignore[arg-type]
        self.randomness.seed = self.plan.seed
        if self.average is not None:
            self.average.to(self.device)
        n, plan = self.data.sizes["train"], self.plan
        self.order = BatchOrder(n, plan.batch_size, plan.data_seed, self.device, self.data.lengths)

    @final
    def training_step(self, steps: tuple[int, int]) -> None:
        """Take the optimizer steps from steps[0] to steps[1] (exclusive), or up to the end of the budget."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        if self._loop is None:
            self._loop = Loop(self, optimizer)
        loop = self._loop
        # The precision plugin turned autocast on for the whole method; only forward passes need it.
        with torch.autocast(self.device.type, enabled=False) if loop.mixed else nullcontext():
            if steps[0] == 0:
                loop.record_weights(0)
            for step in range(*steps):
                if self.spent:
                    break
                loop.step(step)
                self.steps_done = step + 1
                loop.record_weights(self.steps_done)
            loop.measure()

    @property
    def spent(self) -> bool:
        """Whether the gradients of the budget are computed; a step may compute several."""
        return self.evaluations >= self.plan.total_steps

    @final
    @torch.no_grad()
    def evaluate(self, split: str, *, best: bool = False) -> dict[str, float]:
        """Loss and metrics over a whole split, in eval mode; every rank computes all of it.

        With `best` the weights are those of `load_best_weights`, already in evaluation form. Values are by name, "loss"
        among them, and "excess", the suboptimality gap, where `data.loss_offset` has the split.
        """
        metrics = MetricCollection(dict(self.metrics())).to(self.device)
        # In float64, where the device has it. torchmetrics' mean ignores its weights without its NaN check.
        total = torch.zeros((), dtype=torch.float32 if self.device.type == "mps" else torch.float64, device=self.device)
        for metric in metrics.values():
            metric.sync_on_compute = False
        size = self.plan.evaluation_batch_size
        if self.device.type == "cpu":
            size = min(size, EVALUATED_ON_CPU)
        with self.in_eval_mode(switch=not best):
            for start in range(0, self.data.sizes[split], size):
                with self.trainer.precision_plugin.forward_context():
                    outcome = self.loss(self.data.batch(split, slice(start, start + size)))
                total += outcome.loss.to(total) * len(outcome.labels)
                metrics.update(outcome.predictions, outcome.labels)
        mean, offset = float(total) / self.data.sizes[split], self.data.loss_offset.get(split)
        values = {"loss": mean} if offset is None else {"loss": mean + offset, "excess": mean}
        return values | {name: float(value) for name, value in metrics.compute().items()}

    @final
    @contextmanager
    def in_eval_mode(self, *, switch: bool = True) -> Iterator[None]:
        """Put the model in eval mode; with `switch`, with the evaluation weights in place of the trained ones.

        FSDP2 keeps parameters gathered after a forward pass, and the next one would use them although they are stale.
        """
        self.eval()
        with self._evaluation_weights() if switch else nullcontext():
            yield
            for module in self._shards:
                module.reshard()
        self.train()

    def _evaluation_weights(self) -> AbstractContextManager[None]:
        return evaluation_weights(self.optimizers(use_pl_optimizer=False), self.average, self.averaged())

    @final
    @torch.no_grad()
    def keep_best_weights(self) -> None:
        """Store the current evaluated weights as the best on the selection split."""
        with self._evaluation_weights():
            self.best_weights = {name: value.detach().clone() for name, value in self.state_dict().items()}

    @final
    @torch.no_grad()
    def load_best_weights(self) -> None:
        """Restore the best weights; only for evaluation after training."""
        assert self.best_weights is not None
        for name, value in self.state_dict().items():
            value.copy_(cut_like(self.best_weights[name], value))

    @final
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the position in the run. Order, dropout and augmentation follow from it; Lightning's counters do not."""
        checkpoint["steps_done"], checkpoint["evaluations"] = self.steps_done, self.evaluations
        checkpoint["best_weights"] = self.best_weights and {k: whole(v) for k, v in self.best_weights.items()}
        checkpoint["average"] = self.average and self.average.state_dict()
        if self.observer is not None:
            checkpoint["observer"] = {"kept": self.observer.kept}
        checkpoint.pop("loops", None)

    @final
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the position in the run."""
        self.steps_done = checkpoint["steps_done"]
        self.evaluations = checkpoint.get("evaluations", self.steps_done)
        self.best_weights = checkpoint["best_weights"]
        if self.average is not None:
            self.average.load_state_dict(checkpoint["average"], self.averaged())
        if self.observer is not None:
            self.observer.kept = dict(checkpoint["observer"]["kept"])
