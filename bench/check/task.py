"""Checks of a task: its data, its loss and its model under the suite's own training, in a few short runs."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins import DoublePrecision
from torch import Tensor

from bench.check.findings import Failed, Measured, NotApplicable
from bench.check.steps import gap, values
from bench.config.run_config import RunConfig, resolve
from bench.lanes.runs import make_lanes
from bench.train.runner import build, make_trainer, quiet
from optimizers.groups import ROLES
from tasks import TASKS
from tasks.core.dropout import BatchDropout

_STEPS = 6
_BATCH = 13  # cut into micro-batches of 4, 4 and 5
_ROWS = 50_000  # examined rows of a split
_LR = 0.05
_ROUNDING = 1e-9  # the order of the same samples does not matter


@dataclass
class Run:
    """Result of a short training: initial and final weights, in order, and the loss of each step."""

    start: list[Tensor]
    weights: list[Tensor]
    losses: list[float]

    def gap(self, other: "Run") -> float:
        """Distance of the weights from another run's, relative to the distance that the other moved."""
        return gap(self.weights, other.weights, other.start)


class TaskSubject:
    """The checked task, trained by `sgdm` on the CPU in float64.

    Args:
        name: in the registry, `module:SPEC` or `file.py:SPEC`.
        given: its options, as words of the command line or as values.
        data: the data folder; None for the default.

    Attributes:
        arguments: the given options.
        batch: samples of a batch.

    Raises:
        UserError: there is no such task or option, or data are missing.
    """

    def __init__(self, name: str, given: Mapping[str, Any], data: Path | None = None) -> None:
        self.spec, self.arguments = TASKS[name], dict(given)
        self._settings: dict[str, Any] = {
            "task": name,
            "opt": "sgdm",
            "opt.lr": _LR,
            "device": "cpu",
            "precision": "64-true",
            "trainer.max_steps": _STEPS,
            "store": tempfile.gettempdir(),
        }
        self._settings |= {} if data is None else {"data": data}
        self._settings |= {f"task.{option}": value for option, value in given.items()}
        self.batch = min(_BATCH, self.make().data.sizes["train"])
        self._settings["trainer.batch_size"] = self.batch
        self.make()

    def config(self, **more: Any) -> RunConfig:
        """A configuration of few steps; `more` has `__` in place of dots."""
        return resolve(self._settings | {name.replace("__", "."): value for name, value in more.items()})

    def make(self) -> Any:
        """The task, with weights initialised from the seed."""
        return build(self.config())[0]

    def run(self, steps: int = _STEPS, begin: Path | None = None, end: Path | None = None, **more: Any) -> Run:
        """Train.

        Args:
            steps: after which to stop.
            begin: a checkpoint to resume from.
            end: where to save one.
            more: settings.
        """
        config = self.config(**more)
        task = build(config)[0]
        trained = [p for p in task.parameters() if p.requires_grad]
        start = values(trained)
        with quiet():
            trainer = make_trainer(config, [])
            trainer.fit(task, _Steps(task, steps), ckpt_path=begin, weights_only=True)
            if end is not None:
                trainer.save_checkpoint(end)
        return Run(start, values(trained), [float(row.loss) for row in task.record.curve])


class _Steps:
    """A dataloader for Lightning: one range of steps, from the task's current step."""

    def __init__(self, task: Any, stop: int) -> None:
        self.task, self.stop = task, stop

    def __iter__(self) -> Iterator[tuple[int, int]]:
        yield self.task.steps_done, self.stop


def builds(subject: TaskSubject) -> Measured:
    """Build data and model, and train a few steps."""
    run = subject.run()
    if not all(map(isfinite, run.losses)):
        raise Failed(f"losses of the first steps are {', '.join(f'{loss:g}' for loss in run.losses)}")
    if all(map(torch.equal, run.weights, run.start)):
        raise Failed("six steps change no weight: no gradient reaches the parameters")
    found = Counter(parameter.role for parameter in subject.make().parameter_roles())
    roles = ", ".join(f"{found[role]} {role}" for role in ROLES if found[role])
    return Measured(None, f"loss {run.losses[0]:.4g}, after {_STEPS - 1} steps {run.losses[-1]:.4g}; {roles}")


def deterministic(subject: TaskSubject) -> Measured:
    """Train twice with a seed, and once with another."""
    first = subject.run()
    measured = subject.run().gap(first)
    if subject.run(seed=1).gap(first) <= _ROUNDING:
        raise Failed("seed 1 gives the same run as seed 0: weights and samples ignore the seed")
    return Measured(measured)


def micro_batches(subject: TaskSubject) -> Measured:
    """Train with batches in one piece and in three."""
    whole = subject.run()
    cut = subject.run(trainer__micro_batch_size=-(-subject.batch // 3))
    return Measured(cut.gap(whole))


def resume(subject: TaskSubject) -> Measured:
    """Resume from a checkpoint, saved halfway, in a new task."""
    whole = subject.run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        subject.run(_STEPS // 2, end=path)
        torch.manual_seed(1)  # as in another process
        again = subject.run(begin=path)
    return Measured(again.gap(whole))


def dropout(subject: TaskSubject) -> Measured:
    """The largest number of further calls of one dropout in a forward pass."""
    task = subject.make()
    task.configure_model()
    calls: Counter[str] = Counter()
    for name, module in task.named_modules():
        if isinstance(module, BatchDropout):
            module.register_forward_pre_hook(lambda *_, name=name: calls.update([name]))
    rows = slice(0, subject.batch)
    task.data.to(task.device, task.dtype)
    task.randomness.rows = rows
    with DoublePrecision().forward_context():
        task.loss(task.data.batch("train", rows, task.randomness))
    if not calls:
        return Measured(0, "no dropout")
    (most, count), *_ = calls.most_common(1)
    return Measured(count - 1, f"{most} is called {count} times" if count > 1 else f"{len(calls)} dropouts")


def lanes(subject: TaskSubject) -> Measured:
    """Train two learning rates of two seeds as lanes, against four single runs."""
    if not subject.spec.lanes:
        raise NotApplicable("its TaskSpec does not declare lanes=True, so its runs train one by one")
    rates = (_LR, _LR / 2)
    together = make_lanes([[subject.config(seed=seed, opt__lr=lr) for lr in rates] for seed in (0, 1)])
    for _ in range(_STEPS):
        together.step()
    worst = 0.0
    for g in range(2):
        for r, lr in enumerate(rates):
            alone = subject.run(seed=g, opt__lr=lr)
            weights = [together.weights[name][g, r] for name in together.trained]
            worst = max(worst, gap(weights, alone.weights, alone.start))
    return Measured(worst)


def leakage(subject: TaskSubject) -> Measured:
    """Share of held-out rows that are also in the training split, for the worst split."""
    data = subject.make().data
    held_out = [split for split in data.sizes if split != "train"]
    if not held_out:
        raise NotApplicable("it has no split but train")
    train = set(_rows(data, "train"))
    found = {split: list(_rows(data, split)) for split in held_out}
    shared = {split: sum(row in train for row in rows) for split, rows in found.items()}
    worst = max(held_out, key=lambda split: shared[split] / max(1, len(found[split])))
    note = ", ".join(f"{shared[split]} of {len(found[split])} rows of {split}" for split in held_out)
    return Measured(shared[worst] / max(1, len(found[worst])), f"{note} are rows of train")


def _rows(data: Any, split: str) -> Iterator[bytes]:
    """A digest of each row, without randomness and without padding to other rows."""
    size = 1 if data.lengths is not None else 500
    for start in range(0, min(data.sizes[split], _ROWS), size):
        stop = min(start + size, data.sizes[split])
        batch = [t for t in _tensors(data.batch(split, slice(start, stop))) if t.ndim and len(t) == stop - start]
        for row in zip(*(t.reshape(stop - start, -1).contiguous().numpy() for t in batch), strict=True):
            yield sha256(b"|".join(part.tobytes() for part in row)).digest()


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree.detach()]
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    elif not isinstance(tree, tuple | list):
        tree = list(vars(tree).values()) if hasattr(tree, "__dict__") else []
    return [tensor for branch in tree for tensor in _tensors(branch)]
