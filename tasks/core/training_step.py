"""The training step for every optimizer, its plan, and its records for observers."""

import logging
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.optim import Optimizer

from optimizers.groups import Part
from optimizers.norms import global_norm, whole
from optimizers.step_size import once_known
from tasks.core.averaging import Average, Averaging
from tasks.core.order import micro_batches_per_rank
from tasks.core.randomness import BatchRandomness
from tasks.core.schedule import Schedule

if TYPE_CHECKING:
    from tasks.core.task import Task


class Outcome(NamedTuple):
    """A micro-batch's mean loss, shape (), with the predictions (logits or classes) and labels that metrics read."""

    loss: Tensor
    predictions: Tensor
    labels: Tensor


@dataclass
class TrainingPlan:
    """The training plan of a task, filled in by the runner from the options of training.

    `parts` are the optimizer's methods with their hyperparameters and parameters; `micro_batch_size` is the most
    samples of one forward pass on one device; `total_steps` is the budget of gradients, one or more for each step.
    Measurements are taken every `measure_every` steps; attention is observed after the steps `observed`, ascending
    (`tasks.core.observatory`).
    """

    make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    parts: Sequence[Part]
    total_steps: int
    batch_size: int
    micro_batch_size: int = 1000
    evaluation_batch_size: int = 1000
    data_seed: int = 0
    seed: int = 0
    clip: float | None = None
    schedule: Schedule | None = None
    average: Averaging | None = None
    step_keywords: Collection[str] = ()
    create_graph: bool = False
    measure_every: int | None = None
    observed: Sequence[int] = ()
    compiled: bool = False

    @property
    def step_of(self) -> str:
        """Method and roles of the largest parameter group, whose step size the curve records; empty for one group."""
        first = self.parts[0]
        if len(self.parts) == len(first.groups) == 1:
            return ""
        return f"{first.spec.name}: {' and '.join(first.groups[0].roles)}"

    @property
    def averaged(self) -> list[int]:
        """Indices of the averaged parameters: all trained ones, except for methods with their own average."""
        if self.average is None:
            return []
        parts = [part for part in self.parts if not part.spec.traits.averages]
        return sorted(i for part in parts for group in part.groups for i in group.indices)


class CurveRow(NamedTuple):
    """One optimizer step as recorded: 0-dim device tensors or floats, so that recording never waits for the device."""

    loss: Tensor
    grad_norm: Tensor
    raw_step: Tensor | float
    applied_step: Tensor | float


@dataclass
class Record:
    """What callbacks read from the training step: steps and measurements since the last read, the last micro-batch.

    A measurement has the optimizer steps done at each of K points, and the values by name there, shape (K,).
    """

    curve: list[CurveRow] = field(default_factory=list)
    measurements: list[tuple[list[int], dict[str, Tensor]]] = field(default_factory=list)
    outcome: Outcome | None = None


@contextmanager
def evaluation_weights(optimizer: Any, average: Average | None, averaged: Sequence[Tensor]) -> Iterator[None]:
    """Put the evaluation weights in place of the trained ones.

    An optimizer with other weights for evaluation (schedule-free methods) is put in eval mode; an average, if any,
    replaces the averaged weights.
    """
    evaluate, train = (getattr(optimizer, mode, None) for mode in ("eval", "train"))
    if evaluate:
        evaluate()
    with nullcontext() if average is None else average.in_place_of(averaged):
        yield
    if train:
        train()


class CompileError(RuntimeError):
    """`torch.compile` cannot compile the task's loss, on this machine or at all."""


def through_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function through `torch.compile`, with the same numbers from torch's generators as without it."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 256  # for all runs together: beyond it torch silently stops compiling
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # warns of a CUDA toolkit without a GPU
    return torch.compile(function, options={"fallback_random": True})


def compiled_loss(loss: Callable[..., Any], randomness: BatchRandomness, device: torch.device) -> Callable[..., Any]:
    """A task's loss through `torch.compile`, for any step and rows set in `randomness`; it raises `CompileError`.

    The optimizer's update is not compiled: its kernels already update all parameters at once, and it takes about 1 % of
    a step of the suite's own models. So one compiled program serves all optimizers.
    """
    program = through_compiler(loss)

    def compiled(batch: Any) -> Any:
        try:
            with randomness.at(*randomness.position(device)):
                return program(batch)
        except Exception as error:
            loss(batch)  # an error of the task itself is raised here
            raise CompileError((str(error).strip().splitlines() or [type(error).__name__])[0]) from error

    return compiled


def _sample(p: Any) -> Tensor:
    """Copies of a parameter's first values, of this rank's shard."""
    return getattr(p, "to_local", lambda: p)().detach().flatten()[:1000].clone()


class Loop:
    """The inner loop of `Task.training_step`, with attributes looked up once, since those of modules are slow."""

    def __init__(self, task: "Task", optimizer: Optimizer) -> None:
        trainer: Any = task.trainer
        assert task.order is not None
        self.task, self.plan = task, task.plan
        self.optimizer: Any = optimizer  # torch's type lacks closures that return tensors, and our keywords
        self.data, self.record, self.order, self.randomness = task.data, task.record, task.order, task.randomness
        self.strategy = trainer.strategy
        self.world: int = trainer.world_size
        self.rank: int = trainer.global_rank
        precision = trainer.precision_plugin
        self.mixed = isinstance(precision, MixedPrecision)
        self.forward_context = precision.forward_context if self.mixed else nullcontext
        self.scaler: torch.amp.GradScaler | None = getattr(precision, "scaler", None)
        if self.scaler is not None:
            optimizer.register_step_post_hook(self._step_was_taken)
        self.named_parameters = list(task.named_parameters())
        self.average, self.averaged = task.average, task.averaged()
        self.observer = task.observer
        self.unmeasured: list[tuple[int, dict[str, Tensor]]] = []
        self.initial: list[tuple[nn.Parameter, int, Tensor]] = []  # with versions and some values before the first step
        self.device = task.device
        self.loss: Callable[[Any], Outcome] = task.loss
        if self.plan.compiled:
            self.loss = compiled_loss(task.loss, self.randomness, self.device)
        # Averages over ranks only in a batch's last micro-batch, if the strategy can.
        self.without_sync = getattr(self.strategy, "block_backward_sync", nullcontext)
        if self.plan.create_graph:  # torch warns of a reference cycle; gradients set to None break it
            warnings.filterwarnings("ignore", r"Using backward\(\) with create_graph=True")

    def _step_was_taken(self, optimizer: Any, *_: Any) -> None:
        # A fused kernel gets what overflowed, and itself skips the step.
        self.taken = not getattr(optimizer, "found_inf", None)

    def step(self, step: int) -> None:
        """One optimizer step."""
        if self.plan.schedule is not None:
            self.plan.schedule.apply(self.optimizer, self.task.evaluations)
        if step == 0:
            self.initial = [(p, p._version, _sample(p)) for _, p in self.named_parameters if p.requires_grad]
        loss, norms, params = self.evaluate(step)
        if step == 0 and self.world == 1 and any(p._version != version for p, version, _ in self.initial):
            raise RuntimeError(
                "the optimizer changes weights during the backward pass (in hooks of parameters), before the gradient"
                " of the whole batch is known; it must do so in step()"
            )
        closure = once_known(loss, params, lambda needed: self.evaluate(step, needed)[0])
        keywords = {name: norms[name] for name in self.plan.step_keywords}
        self.taken = True
        if self.scaler is None:
            self.optimizer.step(closure, **keywords)
        else:
            self.taken = False  # set by the hook of a step; a step is skipped if a gradient overflowed
            self.scaler.step(self.optimizer, closure, **keywords)  # takes a closure by position only
            self.scaler.update()
        if self.average is not None and self.taken:
            self.average.take(step + 1, self.averaged)
        lr = self.optimizer.param_groups[0].get("lr", nan)
        sizes = (getattr(self.optimizer, "step_sizes", None) or (lr, lr)) if self.taken else (0.0, 0.0)
        # The optimizer may write the next step's values into the same tensors.
        raw, applied = (size.detach().clone() if isinstance(size, Tensor) else size for size in sizes)
        self.record.curve.append(CurveRow(loss, norms["loss_grad_norm"], raw, applied))
        if self.task.spent and self.scaler is None and self.initial:
            still = all(p._version == version and _sample(p).equal(before) for p, version, before in self.initial)
            if still and norms["loss_grad_norm"] > 0:
                raise RuntimeError("the optimizer never changes a weight; `bench check` may tell why")

    def record_weights(self, done: int) -> None:
        """Store the weights after `done` steps for `measure`, if due; and observe them."""
        if self.observer is not None:
            values = self.observer.note(done, lambda: {name: whole(p) for name, p in self.named_parameters})
            if values is not None:
                self.record.measurements.append(([done], {name: value[None] for name, value in values.items()}))
        every = self.plan.measure_every
        if every and (done % every == 0 or self.task.spent):
            # Not the model: walking through its modules takes longer.
            with evaluation_weights(self.optimizer, self.average, self.averaged):
                weights = {name: whole(p.detach()).clone() for name, p in self.named_parameters}
            self.unmeasured.append((done, weights))

    @torch.no_grad()
    def measure(self) -> None:
        """Measure all stored weights at once."""
        if self.unmeasured:
            points, weights = zip(*self.unmeasured, strict=True)
            self.unmeasured.clear()
            stacked = {name: torch.stack([w[name] for w in weights]) for name in weights[0]}
            self.record.measurements.append((list(points), self.task.measure_at(stacked)))

    def evaluate(self, step: int, needed: bool = True) -> tuple[Tensor, dict[str, Tensor], list[Tensor]]:
        """Loss of the batch; norms by `STEP_KEYWORDS`; parameters with a gradient, in `.grad`, unscaled, clipped."""
        loss = self.backward(step)
        self.task.evaluations += needed
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
        # Every rank has the same number of micro-batches: FSDP2 communicates in each.
        cuts = micro_batches_per_rank(size, self.world, self.plan.micro_batch_size)
        randomness = self.randomness
        randomness.step, randomness.width = step, self.order.width(step)
        total: Tensor | None = None
        for cut in range(cuts):
            first, last = start + (stop - start) * cut // cuts, start + (stop - start) * (cut + 1) // cuts
            randomness.rows = slice(first, last)
            # DDP and FSDP average over ranks, so each rank's share counts `world` times.
            weight = (last - first) * self.world / size
            with self.forward_context():
                rows = batch_rows if last - first == size else batch_rows[first:last]
                outcome = self.loss(self.data.batch("train", rows, randomness))
                loss = outcome.loss if weight == 1 else outcome.loss * weight
            with self.without_sync() if last < stop else nullcontext():
                # As `manual_backward`, without the hooks, which cost more than a small model's step.
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
