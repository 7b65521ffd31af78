"""What every task shares: its data's interface and the one training step that serves every optimizer."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import nan
from types import MappingProxyType
from typing import Any, NamedTuple, final

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.func import functional_call, vmap
from torch.optim import Optimizer
from torchmetrics import Metric, MetricCollection

from optimizers.closures import once_known
from optimizers.global_norm import global_norm
from tasks.dropout import BatchRandomness, use_batch_dropout
from tasks.order import BatchOrder, micro_batches_per_rank
from tasks.schedule import Schedule
from tasks.sharding import cut_like, whole


class TaskData(ABC):
    """Samples that live on the training device.

    Attributes:
        sizes: number of samples by split; "train" is always there.
        select: the split on which runs are compared while training ("train" where the task has no other).
        report: the split whose metric is the run's result.
        also: splits that are evaluated in the end beside `report`.
        part: what part of the data this is ("10,000 of 55,000 training samples"), or None for the whole.
        lengths: tokens of each row of "train", int64 on the CPU, for samples that are padded to their batch's longest; or None.
        seeded: whether the samples depend on the seed; where they do not, runs of several seeds share them.
        f_star: least value of the training loss, where it is known.
        loss_offset: by split, the mean over its samples of what `loss` leaves out, so that a loss near its minimum keeps
            its digits. Added back to what is recorded; for a mini-batch that is the mean's, not its own.
    """

    sizes: dict[str, int]
    select: str = "val"
    report: str = "test"
    also: Sequence[str] = ()
    part: str | None = None
    lengths: Tensor | None = None
    seeded: bool = True
    f_star: float | None = None
    loss_offset: Mapping[str, float] = MappingProxyType({})

    def facts(self) -> dict[str, Any]:
        """What is known of this instance of the problem and belongs into the run's record; plain numbers and words."""
        return {}

    @abstractmethod
    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the samples to the device; floating-point ones also to the dtype."""

    @abstractmethod
    def batch(self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None) -> Any:
        """The samples of these rows of the split, ready for the model.

        `randomness` is given in training and decides augmentation; without it the samples come as they are.
        """


class Outcome(NamedTuple):
    """Of one micro-batch: its mean loss, shape (), and the predictions (logits or classes) and labels that metrics read."""

    loss: Tensor
    predictions: Tensor
    labels: Tensor


@dataclass
class Plan:
    """How a task is trained; the runner fills it in.

    Attributes:
        make_optimizer: parameters to optimizer.
        hyperparameters: all that the optimizer's constructor takes, by name.
        total_steps: number of optimizer steps.
        batch_size: samples of one optimizer step, over micro-batches and ranks.
        micro_batch_size: samples of one forward pass on one device, at most.
        evaluation_batch_size: samples of one forward pass in evaluation, at most.
        data_seed: decides the order of the samples.
        seed: decides dropout and augmentation.
        clip: bound on the gradient's global norm, or None.
        schedule: of the learning rate, or None to leave it alone.
        create_graph: gradients keep their graph, for methods that differentiate them.
        step_keywords: which of `STEP_KEYWORDS` the optimizer's `step` takes.
        measure_every: optimizer steps between measurements, or None for none.
    """

    make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    hyperparameters: Mapping[str, Any]
    total_steps: int
    batch_size: int
    micro_batch_size: int = 1000
    evaluation_batch_size: int = 1000
    data_seed: int = 0
    seed: int = 0
    clip: float | None = None
    schedule: Schedule | None = None
    step_keywords: Collection[str] = ()
    create_graph: bool = False
    measure_every: int | None = None


class CurveRow(NamedTuple):
    """One optimizer step as recorded: 0-dim device tensors or floats, so that recording never waits for the device."""

    loss: Tensor
    grad_norm: Tensor
    raw_step: Tensor | float
    applied_step: Tensor | float


@dataclass
class Record:
    """What the training step leaves for whoever watches: steps and measurements since the last look, the last micro-batch.

    Measurements are the numbers of optimizer steps done, and the values by name at these points, shape (K,).
    """

    curve: list[CurveRow] = field(default_factory=list)
    measurements: list[tuple[list[int], dict[str, Tensor]]] = field(default_factory=list)
    outcome: Outcome | None = None


class Task(pl.LightningModule, ABC):
    """A model with its loss and metrics. Subclasses say what is trained; how it is trained is the same for all.

    Optimization is manual, so that one path serves every optimizer: the loss and the gradient are those of the whole
    batch, summed over micro-batches and averaged over ranks; only then is the gradient clipped, and the optimizer
    gets the loss of that batch, unscaled, through its closure.
    """

    plan: Plan
    part: str | None = None
    """What the model is, where it is less than what the task is named for."""

    def __init__(self, data: TaskData) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.data = data
        self.randomness = BatchRandomness()
        self.steps_done = 0
        self.record = Record()
        self.best_weights: dict[str, Tensor] | None = None
        self.order: BatchOrder | None = None
        self._sharded = False
        self._loop: _Loop | None = None

    @abstractmethod
    def loss(self, batch: Any) -> Outcome:
        """Mean loss of the batch (less `data.loss_offset`) with the predictions and labels for the metrics."""

    @abstractmethod
    def metrics(self) -> dict[str, Metric]:
        """Fresh metrics by name; each is updated with (predictions, labels)."""

    def facts(self) -> dict[str, Any]:
        """What is known of the model and belongs into the run's record beside `TaskData.facts`; plain numbers and words."""
        return {}

    def specimen(self) -> str | None:
        """What the trained model makes, for a person to look at, or None.

        Called once after training, in eval mode, on all ranks; what it draws follows from `plan.seed`.
        """
        return None

    @final
    def forward(self, batch: Any) -> Outcome:
        """`loss`, as a call of the module: what `torch.func.functional_call` needs."""
        return self.loss(batch)

    def loss_at(self, weights: Mapping[str, Tensor], batch: Any) -> Outcome:
        """`loss` with other weights, for K points at once: a pure function of weights and batch, differentiable.

        Tasks whose operations are cheaper in another layout than `torch.func.vmap` finds may write it themselves.

        Args:
            weights: parameters by name, each with a leading dimension of K points.
            batch: as for `loss`, the same at all points.

        Returns:
            Losses, shape (K,), predictions, shape (K, rows, ...), and labels, shape (K, rows, ...).
        """

        def at(point: Mapping[str, Tensor]) -> Outcome:
            return functional_call(self, dict(point), (batch,))

        # Dropout belongs to the batch, so it is the same at all points.
        return vmap(at, randomness="same")(weights)

    def measure_at(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What science wants to know of weights, recorded along the curve: a pure function of them and of the data.

        It makes no host synchronisation. Many points of the run are measured at once, so that small models are cheap.

        Args:
            weights: parameters by name, each with a leading dimension of K points; without gradients, unsharded.

        Returns:
            Values by name, shape (K,) each; the names are always the same.
        """
        return {}

    @final
    @torch.no_grad()
    def measure(self) -> dict[str, Tensor]:
        """`measure_at` the present weights: 0-dim tensors."""
        weights = {name: whole(p.detach())[None] for name, p in self.named_parameters()}
        return {name: value[0] for name, value in self.measure_at(weights).items()}

    @final
    def configure_model(self) -> None:
        """Swap in dropout that micro-batches do not change, and shard under FSDP2."""
        use_batch_dropout(self, self.randomness)
        mesh = self.device_mesh
        if mesh is None or self._sharded:
            return
        from torch.distributed.fsdp import fully_shard

        self._sharded = True
        shards = mesh["data_parallel"]
        for blocks in [m for m in self.modules() if isinstance(m, nn.ModuleList)]:
            for block in blocks:
                fully_shard(block, mesh=shards)
        for child in self.children():
            fully_shard(child, mesh=shards)
        for name, parameter in self.named_parameters():
            if not isinstance(parameter, DTensor):
                raise ValueError(f"parameter {name} belongs to no submodule of the task, so FSDP2 cannot shard it")

    @final
    def configure_optimizers(self) -> Optimizer:
        """The optimizer of the plan over the parameters that require gradients."""
        return self.plan.make_optimizer(p for p in self.parameters() if p.requires_grad)

    @final
    def on_fit_start(self) -> None:
        """Put the data on the device once, and fix the order."""
        self.data.to(self.device, self.dtype)  # type: ignore[arg-type]
        self.randomness.seed = self.plan.seed
        n, plan = self.data.sizes["train"], self.plan
        self.order = BatchOrder(n, plan.batch_size, plan.data_seed, self.device, self.data.lengths)

    @final
    def training_step(self, steps: tuple[int, int]) -> None:
        """Make the optimizer steps from steps[0] up to, but without, steps[1]."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        if self._loop is None:
            self._loop = _Loop(self, optimizer)
        loop = self._loop
        # The precision plugin has turned autocast on for all of this method; only forward passes want it.
        with torch.autocast(self.device.type, enabled=False) if loop.mixed else nullcontext():
            if steps[0] == 0:
                loop.note_weights(0)
            for step in range(*steps):
                loop.step(step)
                loop.note_weights(step + 1)
            loop.measure()
        self.steps_done = steps[1]

    @final
    @torch.no_grad()
    def evaluate(self, split: str, *, best: bool = False) -> dict[str, float]:
        """Loss and metrics over a whole split, in eval mode; every rank computes all of it.

        Args:
            split: a key of `data.sizes`.
            best: the weights are those of `load_best_weights`, which are for evaluation already.

        Returns:
            Values by name, "loss" among them, and "excess", the loss above its infimum, where `data.loss_offset` has that
            of the split. They may be infinite or NaN if the weights are.
        """
        metrics = MetricCollection(dict(self.metrics())).to(self.device)
        # In float64, where the device has it. Not torchmetrics' mean, which without its check for NaN forgets the weights.
        total = torch.zeros((), dtype=torch.float32 if self.device.type == "mps" else torch.float64, device=self.device)
        for metric in metrics.values():
            metric.sync_on_compute = False
        size = self.plan.evaluation_batch_size
        with self.in_eval_mode(None if best else self.optimizers(use_pl_optimizer=False)):
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
    def in_eval_mode(self, optimizer: Any) -> Iterator[None]:
        """The model, and an optimizer that keeps other weights for evaluation, in eval mode."""
        self.eval()
        with evaluation_weights(optimizer):
            yield
        self.train()

    @final
    @torch.no_grad()
    def keep_best_weights(self) -> None:
        """Remember the present weights, as they are evaluated, as the best on the selection split."""
        with evaluation_weights(self.optimizers(use_pl_optimizer=False)):
            self.best_weights = {name: value.detach().clone() for name, value in self.state_dict().items()}

    @final
    @torch.no_grad()
    def load_best_weights(self) -> None:
        """Go back to the best weights; only for evaluation after training."""
        assert self.best_weights is not None
        for name, value in self.state_dict().items():
            value.copy_(cut_like(self.best_weights[name], value))

    @final
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the position in the run. Order, dropout and augmentation follow from it; Lightning's counters do not."""
        checkpoint["steps_done"] = self.steps_done
        checkpoint["best_weights"] = self.best_weights and {k: whole(v) for k, v in self.best_weights.items()}
        checkpoint.pop("loops", None)

    @final
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up the position in the run."""
        self.steps_done = checkpoint["steps_done"]
        self.best_weights = checkpoint["best_weights"]


@contextmanager
def evaluation_weights(optimizer: Any) -> Iterator[None]:
    """In eval mode an optimizer that keeps other weights for evaluation (schedule-free methods)."""
    evaluate, train = (getattr(optimizer, mode, None) for mode in ("eval", "train"))
    if evaluate:
        evaluate()
    yield
    if train:
        train()


class _Loop:
    """The inner loop of `Task.training_step`, with what it needs looked up once: attributes of modules are slow."""

    def __init__(self, task: Task, optimizer: Optimizer) -> None:
        trainer = task.trainer
        assert task.order is not None
        self.task, self.plan = task, task.plan
        self.optimizer: Any = optimizer  # torch's type knows neither a closure that returns a tensor nor our keywords
        self.data, self.record, self.where, self.order = task.data, task.record, task.randomness, task.order
        self.strategy = trainer.strategy
        self.world, self.rank = trainer.world_size, trainer.global_rank
        precision = trainer.precision_plugin
        self.mixed = isinstance(precision, MixedPrecision)
        self.forward_context = precision.forward_context if self.mixed else nullcontext
        self.scaler: torch.amp.GradScaler | None = getattr(precision, "scaler", None)
        if self.scaler is not None:
            optimizer.register_step_post_hook(self._was_taken)
        self.named_parameters = list(task.named_parameters())
        self.noted: list[tuple[int, dict[str, Tensor]]] = []
        # Leaves averaging over ranks to a batch's last micro-batch, where the strategy can.
        self.without_sync = getattr(self.strategy, "block_backward_sync", nullcontext)
        if self.plan.create_graph:  # torch warns of a cycle of references, which ends where gradients are set to None
            warnings.filterwarnings("ignore", r"Using backward\(\) with create_graph=True")

    def _was_taken(self, *_: Any) -> None:
        self.taken = True

    def step(self, step: int) -> None:
        """One optimizer step."""
        if self.plan.schedule is not None:
            self.plan.schedule.apply(self.optimizer, step)
        loss, norms, params = self.evaluate(step)
        closure = once_known(loss, params, lambda: self.evaluate(step)[0])
        keywords = {name: norms[name] for name in self.plan.step_keywords}
        self.taken = True
        if self.scaler is None:
            self.optimizer.step(closure, **keywords)
        else:
            self.taken = False  # the optimizer's own step says otherwise; it is skipped where a gradient overflowed
            self.scaler.step(self.optimizer, closure, **keywords)  # takes a closure by position only
            self.scaler.update()
        lr = self.optimizer.param_groups[0].get("lr", nan)
        raw, applied = (getattr(self.optimizer, "step_sizes", None) or (lr, lr)) if self.taken else (0.0, 0.0)
        self.record.curve.append(CurveRow(loss, norms["loss_grad_norm"], raw, applied))

    def note_weights(self, done: int) -> None:
        """Keep the weights after so many steps for `measure`, if they are to be measured."""
        every = self.plan.measure_every
        if every and (done % every == 0 or done == self.plan.total_steps):
            with evaluation_weights(self.optimizer):  # not the model: walking through its modules takes longer
                weights = {name: whole(p.detach()).clone() for name, p in self.named_parameters}
            self.noted.append((done, weights))

    @torch.no_grad()
    def measure(self) -> None:
        """Measure the weights that were noted, all at once."""
        if self.noted:
            points, weights = zip(*self.noted, strict=True)
            self.noted.clear()
            stacked = {name: torch.stack([w[name] for w in weights]) for name in weights[0]}
            self.record.measurements.append((list(points), self.task.measure_at(stacked)))

    def evaluate(self, step: int) -> tuple[Tensor, dict[str, Tensor], list[Tensor]]:
        """Loss of the batch; norms by `STEP_KEYWORDS`; the parameters that have a gradient, in `.grad`, unscaled, clipped."""
        loss = self.backward(step)
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        params = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        grads = [p.grad.detach() if self.plan.create_graph else p.grad for p in params]
        norm = clipped = global_norm(grads)
        if self.plan.clip is not None:
            factor = (self.plan.clip / (norm + 1e-6)).clamp(max=1)  # as torch.nn.utils.clip_grad_norm_
            torch._foreach_mul_(grads, factor)
            clipped = norm * factor
        return loss, {"loss_grad_norm": norm, "grad_norm": clipped}, params

    def backward(self, step: int) -> Tensor:
        """Leave the gradient of the whole batch in `.grad` and return the batch's mean loss, equal on all ranks."""
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                p.grad = None
        batch_rows = self.order.rows(step)
        size = len(batch_rows)
        start, stop = size * self.rank // self.world, size * (self.rank + 1) // self.world
        # As many micro-batches on every rank: FSDP2 communicates in each.
        cuts = micro_batches_per_rank(size, self.world, self.plan.micro_batch_size)
        where = self.where
        where.step, where.batch_size, where.width = step, size, self.order.width(step)
        total: Tensor | None = None
        for cut in range(cuts):
            first, last = start + (stop - start) * cut // cuts, start + (stop - start) * (cut + 1) // cuts
            where.rows = slice(first, last)
            # DDP and FSDP average over ranks, so each rank's share counts `world` times.
            weight = (last - first) * self.world / size
            with self.forward_context():
                rows = batch_rows if last - first == size else batch_rows[first:last]
                outcome = self.task.loss(self.data.batch("train", rows, where))
                loss = outcome.loss if weight == 1 else outcome.loss * weight
            with self.without_sync() if last < stop else nullcontext():
                # What `manual_backward` does, less the hooks, which cost more than a small model's step.
                scaled = loss if self.scaler is None else self.scaler.scale(loss)
                self.strategy.pre_backward(scaled)
                scaled.backward(create_graph=self.plan.create_graph)
            total = loss.detach() if total is None else total + loss.detach()
            self.record.outcome = outcome
        assert total is not None
        if self.world > 1:
            torch.distributed.all_reduce(total)
            total /= self.world
        return total
