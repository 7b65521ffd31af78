"""Checks of a task: its data, its loss and its model under the suite's own training, in a few short runs."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from lightning.pytorch.plugins import DoublePrecision
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bench.check import failing
from bench.check.steps import ROUNDING, Fault, at_most, equal, gap, values
from bench.config.run_config import RunConfig, resolve
from bench.lanes.runs import make_lanes
from bench.train.runner import build, make_trainer, quiet
from optimizers.groups import ROLES
from tasks import TASKS
from tasks.core.randomness import BatchDropout

STEPS = 6
_BATCH = 13  # cut into micro-batches of 4, 4 and 5
_ROWS = 50_000  # examined rows of a split
_LR = 0.05
_TRAINED: Mapping[str, Any] = MappingProxyType({"opt": "sgdm", "opt.lr": _LR})
_NONE: Mapping[str, Any] = MappingProxyType({})


class Run(NamedTuple):
    """Result of a short training: initial and final weights, in order, and the loss of each step."""

    start: list[Tensor]
    weights: list[Tensor]
    losses: list[float]

    def gap(self, other: "Run") -> float:
        """The gap of the weights from another run's."""
        return gap(self.weights, other.weights, other.start)


class TaskSubject:
    """The checked task with its options, trained on the CPU in float64, by default by `sgdm`."""

    def __init__(
        self, name: str, given: Mapping[str, Any], data: Path | None = None, by: Mapping[str, Any] = _TRAINED
    ) -> None:
        self.spec, self.arguments = TASKS[name], dict(given)
        fixed = {"device": "cpu", "precision": "64-true", "trainer.max_steps": STEPS, "store": tempfile.gettempdir()}
        self._settings: dict[str, Any] = {"task": name, **by, **fixed}
        self._settings |= ({} if data is None else {"data": data}) | {f"task.{k}": v for k, v in given.items()}
        self.batch = min(_BATCH, self.make().data.sizes["train"])
        self._settings["trainer.batch_size"] = self.batch
        self.make()

    def config(self, more: Mapping[str, Any] = _NONE) -> RunConfig:
        """A configuration of few steps, with further settings."""
        return resolve({**self._settings, **more})

    def make(self) -> Any:
        """The task, with weights initialised from the seed."""
        return build(self.config())[0]

    def run(
        self, more: Mapping[str, Any] = _NONE, *, stop: int = STEPS, begin: Path | None = None, end: Path | None = None
    ) -> Run:
        """Train up to a step, with further settings, from a checkpoint; `end` is where to save one."""
        config = self.config(more)
        task = build(config)[0]
        trained = [p for p in task.parameters() if p.requires_grad]
        start = values(trained)
        with quiet():
            trainer = make_trainer(config, [])
            trainer.fit(task, ((task.steps_done, stop) for _ in range(1)), ckpt_path=begin, weights_only=True)
            if end is not None:
                trainer.save_checkpoint(end)
        return Run(start, values(trained), [float(row.loss) for row in task.record.curve])


@failing("set-up")
def check_builds(task: TaskSubject) -> str:
    """Data and model can be created, and six steps give finite losses and change weights.

    Mend: the task must train in float64 on the CPU (--precision 64-true).
    """
    run = task.run()
    if not all(map(isfinite, run.losses)):
        raise Fault(f"losses of the first steps are {', '.join(f'{loss:g}' for loss in run.losses)}")
    if equal(run.weights, run.start):
        raise Fault("six steps change no weight: no gradient reaches the parameters")
    count = Counter(parameter.role for parameter in task.make().parameter_roles())
    roles = ", ".join(f"{count[role]} {role}" for role in ROLES if count[role])
    return f"loss {run.losses[0]:.4g}, after {STEPS - 1} steps {run.losses[-1]:.4g}; {roles}"


@failing("results")
def check_deterministic(task: TaskSubject) -> None:
    """The same seed gives the same run, and another seed gives a different one.

    Exact. Mend: draw initial weights from torch's generator, data from `seed`, and random numbers in training from
    `randomness.uniform`; keep no state in the class or the module.
    """
    first = task.run()
    at_most(0, task.run().gap(first), "the gap of two equal runs is")
    if task.run({"seed": 1}).gap(first) <= ROUNDING:
        raise Fault("seed 1 gives the same run as seed 0: weights and samples ignore the seed")


@failing("results")
def check_micro_batches(task: TaskSubject) -> None:
    """Three micro-batches per batch give the same run as one.

    Tolerance 1e-9 of the way. Mend: the loss must be a mean over independent rows: no batch normalisation, no sum;
    random numbers come from `randomness.uniform`, and weights of rows are divided by the split's mean.
    """
    cut = task.run({"trainer.micro_batch_size": -(-task.batch // 3)})
    at_most(ROUNDING, cut.gap(task.run()), "the gap to whole batches is")


@failing("results")
def check_resume(task: TaskSubject) -> None:
    """A run resumed from a checkpoint equals the uninterrupted one.

    Exact. Mend: keep all training state in parameters and buffers; draw numbers from `randomness.uniform`.
    """
    at_most(0, resumed_gap(task), "the gap of the resumed run is")


def resumed_gap(task: TaskSubject) -> float:
    """The gap of a run that is resumed halfway, by a new task, from the uninterrupted one."""
    whole = task.run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        task.run(stop=STEPS // 2, end=path)
        torch.manual_seed(1)  # as in another process
        return task.run(begin=path).gap(whole)


@failing("results")
def check_dropout(subject: TaskSubject) -> str:
    """A forward pass calls each dropout once: further calls would drop the same elements.

    Mend: create an `nn.Dropout` for each place of the model.
    """
    task, calls = subject.make(), Counter[str]()
    task.configure_model()
    for name, module in task.named_modules():
        if isinstance(module, BatchDropout):
            module.register_forward_pre_hook(lambda *_, name=name: calls.update([name]))
    task.randomness.rows = rows = slice(0, subject.batch)
    task.data.to(task.device, task.dtype)
    with DoublePrecision().forward_context():
        task.loss(task.data.batch("train", rows, task.randomness))
    for name, count in calls.items():
        if count > 1:
            raise Fault(f"{name} is called {count} times", count - 1)
    return f"{len(calls) or 'no'} dropout{'s' * (len(calls) > 1)}"


@failing("results")
def check_lanes(task: TaskSubject) -> None:
    """Vectorised runs equal those of `bench fit`: two learning rates of two seeds against four single runs.

    Tolerance 1e-9 of the way. Mend: compare `loss_at` with `loss` at one point; it may use weights and batch only.
    """
    if not task.spec.lanes:
        pytest.skip("its TaskSpec does not declare lanes=True, so its runs train one by one")
    at_most(ROUNDING, lanes_gap(task, [{"opt.lr": _LR}, {"opt.lr": _LR / 2}]), "the largest gap of a lane is")


def lanes_gap(task: TaskSubject, lanes: Sequence[Mapping[str, Any]]) -> float:
    """The largest gap of lanes with these settings, for two seeds each, from single runs."""
    together = make_lanes([[task.config({**lane, "seed": seed}) for lane in lanes] for seed in (0, 1)])
    for _ in range(STEPS):
        together.step()
    worst = 0.0
    for seed in (0, 1):
        for i, lane in enumerate(lanes):
            alone = task.run({**lane, "seed": seed})
            weights = [together.weights[name][seed, i] for name in together.trained]
            worst = max(worst, gap(weights, alone.weights, alone.start))
    return worst


@failing("results")
def check_leakage(task: TaskSubject) -> str:
    """No training row is in another split.

    At most 1 % of a split's rows: texts repeat some rows, a real leak is larger. Mend: draw each split from its own
    stream (`derive_seed(seed, split)`), or split the data before anything else.
    """
    data = task.make().data
    train = set(_rows(data, "train"))
    splits = {split: [row in train for row in _rows(data, split)] for split in data.sizes if split != "train"}
    if not splits:
        pytest.skip("it has no split but train")
    shared = ", ".join(f"{sum(rows)} of {len(rows)} rows of {split}" for split, rows in splits.items())
    worst = max(sum(rows) / max(1, len(rows)) for rows in splits.values())
    at_most(0.01, worst, f"{shared} are rows of train, a share of")
    return f"{shared} are rows of train"


def _rows(data: Any, split: str) -> Iterator[bytes]:
    """A digest of each row, without randomness and without padding to other rows."""
    size = 1 if data.lengths is not None else 500
    for start in range(0, min(data.sizes[split], _ROWS), size):
        stop = min(start + size, data.sizes[split])
        batch = data.batch(split, slice(start, stop))
        members = tree_leaves(vars(batch) if hasattr(batch, "__dict__") else batch)
        tensors = [t.detach() for t in members if isinstance(t, Tensor) and t.ndim and len(t) == stop - start]
        for row in zip(*(t.reshape(stop - start, -1).contiguous().numpy() for t in tensors), strict=True):
            yield sha256(b"|".join(part.tobytes() for part in row)).digest()
