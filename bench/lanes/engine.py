"""Lanes: many runs of one task and one optimizer, trained as one vectorised program.

The runs form a grid of G problems (seeds of instance, initialisation and data order) by R lanes (hyperparameters) that
share a problem's data. One vectorised forward and backward pass computes all losses and gradients. The optimizer's pure
update then steps all lanes at once; without one, each lane's own `torch.optim` instance steps its view of the weights.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch.plugins import DoublePrecision
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from bench.lanes.optimizers import OneByOne, Together, Weights, beside, have_pure_update
from bench.lanes.replay import Replay
from bench.lanes.scores import Scores, without_warning
from tasks.core.averaging import Average
from tasks.core.observatory import Observer
from tasks.core.order import BatchOrder, micro_batches_per_rank
from tasks.core.randomness import use_batch_dropout
from tasks.core.task import Task
from tasks.core.training_step import Outcome, TrainingPlan

REPLAYED_FROM = 1_000  # steps of a replayed run at least: recording costs as much as a few hundred. Ours.


class Lanes:
    """The weights of a grid of runs, and one step for all of them.

    Args:
        tasks: one for each problem, length G; equal except for data, initial weights and seeds.
        plans: of each lane, shape (G, R); equal except for float hyperparameters and seeds.
        device, dtype: device and precision.

    Attributes:
        weights: parameters by name, shape (G, R, ...).
        best, final: parameters at each lane's best and last step, once reached; initial ones before.
        steps_done: number of optimizer steps taken.
        evaluations: gradients of the batch that each lane has computed, shape (G, R); a step may compute several.
        cuts: start and end (exclusive) of each micro-batch in the batch.
        alive: lanes that still train, shape (G, R); the weights of the others are no longer used.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        plans: Sequence[Sequence[TrainingPlan]],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.tasks, self.plans, self.device, self.dtype = tasks, plans, device, dtype
        self.plan = plans[0][0]
        # Tensors that a loss creates have the precision of the weights, as in single runs, also outside a Trainer.
        self.forward_context = DoublePrecision().forward_context if dtype == torch.float64 else nullcontext
        self.steps_done = 0
        self.alive = np.ones(self.shape, dtype=bool)
        self.evaluations = np.zeros(self.shape, dtype=int)
        self.orders = list[BatchOrder]()
        for task, (plan, *_) in zip(self.tasks, self.plans, strict=True):
            data = task.data
            use_batch_dropout(task, task.randomness)
            task.randomness.seed = plan.seed
            task.to(device, dtype).train()
            data.to(device, dtype)
            self.orders.append(BatchOrder(data.sizes["train"], plan.batch_size, plan.data_seed, device, data.lengths))
        R = len(self.plans[0])
        starts = [dict(task.named_parameters()) for task in self.tasks]
        self.trained = [name for name, p in starts[0].items() if p.requires_grad]
        self.weights: Weights = {
            name: torch.stack([start[name].detach() for start in starts])[:, None].repeat(1, R, *[1] * p.ndim)
            for name, p in starts[0].items()
        }
        self.best: Weights = {name: w.clone() for name, w in self.weights.items()}
        self.final: Weights = {name: w.clone() for name, w in self.weights.items()}
        self._whole: Any = None
        cuts = micro_batches_per_rank(self.plan.batch_size, 1, self.plan.micro_batch_size)
        self.cuts = [(self.plan.batch_size * i // cuts, self.plan.batch_size * (i + 1) // cuts) for i in range(cuts)]
        self.draws = self._draws()
        # Problems are evaluated one by one, and not replayed, if they have buffers or differ in batch width.
        self.apart = any(True for _ in tasks[0].buffers()) or tasks[0].data.lengths is not None
        replayed = self.plan.total_steps >= REPLAYED_FROM
        # By the micro-batch's share of the batch.
        self._replays: dict[float, Replay] | None = {} if replayed and not self.apart else None
        self.averaged = [self.trained[i] for i in self.plan.averaged]
        self.average = Average(self.plan.average) if self.plan.average is not None and self.averaged else None
        observed = self.plan.observed
        self.observers = [[Observer(task, observed) for _ in range(R)] for task in self.tasks] if observed else []
        self.stepper = Together(self, replayed=replayed) if have_pure_update(self.plan.parts) else OneByOne(self)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of problems, and of lanes of each: (G, R)."""
        return len(self.plans), len(self.plans[0])

    @property
    def full_batch(self) -> bool:
        """Whether a step uses all samples."""
        return self.plan.batch_size == self.tasks[0].data.sizes["train"]

    def step(self) -> Tensor:
        """Take one step in all lanes: loss, gradient norm, raw and applied step size, shape (4, G, R)."""
        loss, grads = self.evaluate(self.steps_done)
        grads, norm, clipped = self._clip(grads)
        if self.plan.schedule is not None:
            self.stepper.follow(self.plan.schedule, self.evaluations)
        self.evaluations += self.alive
        raw, applied = self.stepper.step(loss, grads, {"loss_grad_norm": norm, "grad_norm": clipped})
        self.steps_done += 1
        if self.average is not None:
            self.average.take(self.steps_done, self._of_average())
        return torch.stack([loss, norm, raw, applied])

    def evaluate(self, step: int) -> tuple[Tensor, Weights]:
        """Losses of the step's batches, shape (G, R), and gradients by name, shape (G, R, ...)."""
        return self._summed(
            lambda first, last, share: self._replayed_gradients(self._batches(step, first, last), share)
        )

    def evaluate_lane(self, step: int, g: int, r: int, params: Mapping[str, Tensor]) -> tuple[Tensor, Weights]:
        """Loss of one lane at other weights, shape (), and its gradients in the parameters' shapes, clipped if set."""
        lane = {name: params.get(name, w[g, r])[None] for name, w in self.weights.items()}
        loss, grads = self._summed(
            lambda first, last, share: self._gradients(
                lane, self._batch(step, g, first, last), partial(_outcome_of, self.tasks[g]), share
            )
        )
        clipped, *_ = self._clip({name: grad[None] for name, grad in grads.items()})
        return loss[0], {name: grad[0, 0] for name, grad in clipped.items()}

    def _summed(self, part: Callable[[int, int, float], tuple[Tensor, Weights]]) -> tuple[Tensor, Weights]:
        """Losses and gradients, summed over the micro-batches, which are given by first and last row, and share."""
        first, *others = ((first, last, (last - first) / self.plan.batch_size) for first, last in self.cuts)
        with self.forward_context():
            total, grads = part(*first)
            for cut in others:
                loss, more = part(*cut)
                total, grads = total + loss, {name: grads[name] + grad for name, grad in more.items()}
        return total, grads

    @without_warning()
    @torch.enable_grad()
    def _gradients(
        self, weights: Weights, batch: Any, loss_at: Callable[[Weights, Any], Outcome], share: float
    ) -> tuple[Tensor, Weights]:
        """Losses of a micro-batch, weighted by its share of the batch, and their gradients."""
        weights = {name: w.detach().requires_grad_(name in self.trained) for name, w in weights.items()}
        leaves = [weights[name] for name in self.trained]
        loss = loss_at(weights, batch).loss
        if share != 1:
            loss = loss * share
        parts = torch.autograd.grad(loss.sum(), leaves, allow_unused=True)
        grads = {name: part for name, part in zip(self.trained, parts, strict=True) if part is not None}
        return loss.detach(), grads

    def _replayed_gradients(self, batch: Any, share: float) -> tuple[Tensor, Weights]:
        """`_gradients` of all lanes, replayed if possible."""
        # Random draws read these tensors: stacked problems differ in them, and a recording does not repeat its draws.
        places = [task.randomness.position(self.device) for task in self.tasks] if self.draws else []
        places = [torch.stack(parts) for parts in zip(*places, strict=True)]

        def gradients(weights: Weights, batch: Any, places: Sequence[Tensor]) -> tuple[Tensor, Weights]:
            return self._gradients(weights, batch, partial(self._outcome, places=places), share)

        if self._replays is None:
            return gradients(self.weights, batch, places)
        if share not in self._replays:
            self._replays[share] = Replay(gradients)
        return self._replays[share](self.weights, batch, places)

    @torch.no_grad()
    def snapshot(self) -> Weights:
        """Copies of the current evaluation weights."""
        with self._evaluation_weights():
            return {name: w.clone() for name, w in self.weights.items()}

    @torch.no_grad()
    def observe(self, done: int) -> dict[str, Tensor] | None:
        """Observations (`Observer`) after `done` steps, shape (1, G, R) each; None if none are due."""
        notes = [
            [observer.note(done, partial(self._weights_of, g, r)) for r, observer in enumerate(row)]
            for g, row in enumerate(self.observers)
        ]
        due = [[values for values in row if values is not None] for row in notes]
        if not any(due):
            return None
        return {name: torch.stack([torch.stack([v[name] for v in row]) for row in due])[None] for name in due[0][0]}

    def _weights_of(self, g: int, r: int) -> Weights:
        return {name: w[g, r] for name, w in self.weights.items()}

    @torch.no_grad()
    def measure(self, points: Sequence[Weights]) -> dict[str, Tensor]:
        """`Task.measure_at` for the weights at P steps, shape (P, G, R) each; NaN if a problem lacks a measurement."""
        shape = len(points), self.shape[1]
        with self._in_eval_mode(switch=False):
            measured = []
            for g, task in enumerate(self.tasks):
                stacked = {name: torch.stack([weights[name][g] for weights in points]) for name in self.weights}
                measured.append(task.measure_at({name: w.flatten(0, 1) for name, w in stacked.items()}))
        names = list(dict.fromkeys(name for values in measured for name in values))
        absent = torch.full(shape, float("nan"), dtype=self.dtype, device=self.device)
        return {
            name: torch.stack([values[name].view(shape) if name in values else absent for values in measured], dim=1)
            for name in names
        }

    @torch.no_grad()
    def evaluate_split(self, split: str, weights: Weights | None = None) -> dict[str, NDArray[np.float64]]:
        """Loss and metrics over a whole split, in eval mode, at the current weights by default, shape (G, R) each."""
        G, R = self.shape
        size = self.tasks[0].data.sizes[split]
        most = self.plan.evaluation_batch_size
        rows = max(min(self.plan.batch_size, most), most // (G * R))
        total = torch.zeros(G, R, dtype=torch.float64)
        scores = {name: Scores(metric) for name, metric in self.tasks[0].metrics().items()}
        with self._in_eval_mode(switch=weights is None):
            for start in range(0, size, rows):
                batches = [task.data.batch(split, slice(start, start + rows)) for task in self.tasks]
                with self.forward_context():
                    outcome = self._outcome(weights or self.weights, batches if self.apart else _stacked(batches))
                total += outcome.loss.cpu().double() * outcome.labels.shape[2]
                for score in scores.values():
                    score.update(outcome.predictions, outcome.labels)
        mean = total / size
        values = {"loss": mean}
        if split in self.tasks[0].data.loss_offset:
            offsets = torch.tensor([[task.data.loss_offset[split]] for task in self.tasks], dtype=torch.float64)
            values = {"loss": mean + offsets, "excess": mean}
        values |= {name: score.compute() for name, score in scores.items()}
        return {name: value.cpu().double().numpy() for name, value in values.items()}

    @torch.no_grad()
    def keep(self, which: Weights, chosen: NDArray[np.bool_]) -> None:
        """Copy the current weights of the chosen lanes, shape (G, R), into `best` or `final`."""
        if not chosen.any():
            return
        with self._in_eval_mode():
            mask = torch.from_numpy(chosen).to(self.device)
            for name, w in self.weights.items():
                which[name] = torch.where(beside(mask, w), w, which[name])

    def state_dict(self) -> dict[str, Any]:
        """The state from which a block resumes."""
        return {
            "weights": self.weights,
            "best": self.best,
            "final": self.final,
            "steps_done": self.steps_done,
            "evaluations": self.evaluations.tolist(),
            "stepper": self.stepper.state_dict(),
            "average": self.average and self.average.state_dict(),
            "observers": [[{"kept": observer.kept} for observer in row] for row in self.observers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of lanes of the same shape."""
        for kind in ("weights", "best", "final"):
            for name, w in getattr(self, kind).items():
                w.copy_(state[kind][name])  # in place: the lanes' own optimizers hold views
        self.steps_done = state["steps_done"]
        self.evaluations[:] = state.get("evaluations", self.steps_done)
        self.stepper.load_state_dict(state["stepper"])
        if self.average is not None:
            self.average.load_state_dict(state["average"], self._of_average())
        for row, states in zip(self.observers, state["observers"], strict=True):
            for observer, saved in zip(row, states, strict=True):
                observer.kept = dict(saved["kept"])

    # -- inside -----------------------------------------------------------------------------------------------------

    def _batch(self, step: int, g: int, first: int, last: int) -> Any:
        """Rows `first` to `last` (exclusive) of a problem's batch."""
        task, order = self.tasks[g], self.orders[g]
        rows = order.rows(step)
        where = task.randomness
        where.step, where.rows, where.width = step, slice(first, last), order.width(step)
        return task.data.batch("train", rows if last - first == len(rows) else rows[first:last], where)

    def _batches(self, step: int, first: int, last: int) -> Any:
        """Those rows for all problems: stacked, or a list if problems are evaluated one by one."""
        if self._whole is not None:
            return self._whole
        batches = [self._batch(step, g, first, last) for g in range(len(self.tasks))]
        if self.apart:
            return batches
        stacked = _stacked(batches)
        if self.full_batch and len(self.cuts) == 1 and not self.draws:
            self._whole = stacked  # the same at every step
        return stacked

    @without_warning()
    def _draws(self) -> bool:
        """Whether training draws random numbers; those of torch's global generator, which lanes share, are refused."""
        before = torch.random.get_rng_state()
        batch = self._batch(0, 0, *self.cuts[0])
        with torch.no_grad(), self.forward_context():
            self.tasks[0].loss_at({name: w[0, :1] for name, w in self.weights.items()}, batch)
        if not torch.equal(before, torch.random.get_rng_state()):
            raise RuntimeError("the task draws from torch's global generator instead of the batch's `randomness`")
        return self.tasks[0].randomness.drawn

    @without_warning()
    def _outcome(self, weights: Weights, batches: Any, places: Sequence[Tensor] = ()) -> Outcome:
        """Losses, shape (G, R), predictions and labels, shape (G, R, rows, ...).

        Batches are stacked, or a list if problems are evaluated one by one; stacked problems draw at
        `places` (`BatchRandomness.position`), shape (G,) each.
        """
        if not self.apart and len(self.tasks) > 1:
            return vmap(partial(_outcome_of, self.tasks[0]))(weights, batches, *places)
        of_problem = batches if self.apart else [tree_map(lambda part: part[0], batches)]
        outcomes = [
            _outcome_of(task, {name: w[g] for name, w in weights.items()}, batch, *(part[g] for part in places))
            for g, (task, batch) in enumerate(zip(self.tasks, of_problem, strict=True))
        ]
        return Outcome(*(torch.stack(parts) for parts in zip(*outcomes, strict=True)))

    def _clip(self, grads: Weights) -> tuple[Weights, Tensor, Tensor]:
        """Clipped gradients, and their norm over all parameters before and after clipping."""
        flat = [g.reshape(*g.shape[:2], -1) for g in grads.values()]
        # Here, dot products are ten times as fast as norms.
        norm = torch.stack([torch.linalg.vecdot(g, g) for g in flat]).sum(0).sqrt()
        if self.plan.clip is None:
            return grads, norm, norm
        factor = (self.plan.clip / (norm + 1e-6)).clamp(max=1)  # as torch.nn.utils.clip_grad_norm_
        return {name: g * beside(factor, g) for name, g in grads.items()}, norm, norm * factor

    @contextmanager
    def _in_eval_mode(self, switch: bool = True) -> Iterator[None]:
        """Put all models into eval mode; with `switch`, use the evaluation weights instead of the training weights."""
        for task in self.tasks:
            task.eval()
        with self._evaluation_weights() if switch else nullcontext():
            yield
        for task in self.tasks:
            task.train()

    @contextmanager
    def _evaluation_weights(self) -> Iterator[None]:
        """Use the optimizers' evaluation weights, or averaged weights, while the context lasts."""
        with self.stepper.in_eval_mode():
            trained = dict(self.weights)
            if self.average is not None:
                self.weights |= zip(self.averaged, self.average.of(self._of_average()), strict=True)
            yield
            self.weights |= trained

    def _of_average(self) -> list[Tensor]:
        return [self.weights[name] for name in self.averaged]


def _outcome_of(task: Task, weights: Weights, batch: Any, *place: Tensor) -> Outcome:
    """`Task.loss_at`, with random draws at `place` if it is given."""
    with task.randomness.at(*place) if place else nullcontext():
        return task.loss_at(weights, batch)


def _stacked(batches: Sequence[Any]) -> Any:
    return tree_map(lambda *parts: torch.stack(parts), *batches)
