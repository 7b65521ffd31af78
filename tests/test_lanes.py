"""Lanes: vectorised runs equal the runs that `bench fit` trains."""

import inspect
import itertools
import operator
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.plugins import DoublePrecision
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryF1Score, MulticlassAccuracy, MulticlassAUROC
from torchmetrics.regression import MeanSquaredError, R2Score

from bench.config.run_config import RunConfig, resolve
from bench.lanes.runs import Grid, LanesRecorder, make_lanes, train_block
from bench.lanes.scores import Scores
from bench.progress import SweepProgress
from bench.store.record import RunResult
from bench.train import runner
from bench.train.stop import StopRequest
from optimizers import OPTIMIZERS, OptimizerSpec, Traits
from tasks import TASKS, BatchRandomness, Outcome, Task, TaskData, TaskSpec
from tests import tiny, tiny_lm
from tests.equivalence import BY_ROLE, HYPERPARAMETERS, may_clip
from tests.optimizer_cases import VALUES
from tests.stored import Store, unfinished

pytestmark = pytest.mark.numeric

# -- a task with everything that a task may have ----------------------------------------------------------------------


class Blobs(TaskData):
    """Points of two classes, different for each seed.

    Args:
        root: unused.
        seed: decides the points.
    """

    def __init__(self, root: Any = None, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def split(n: int) -> tuple[Tensor, Tensor]:
            labels = torch.arange(n) % 2
            points = torch.randn(n, 4, generator=generator, dtype=torch.float64)
            points[:, 0] += 2 * labels - 1
            return points, labels

        self.splits = {"train": split(24), "val": split(14), "test": split(14)}
        self.sizes = {name: len(labels) for name, (_, labels) in self.splits.items()}

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        self.splits = {name: (x.to(device, dtype), y.to(device)) for name, (x, y) in self.splits.items()}

    def batch(
        self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None
    ) -> tuple[Tensor, Tensor]:
        x, y = self.splits[split]
        return x[rows], y[rows]


class Net(Task):
    """Parameters of several shapes, including a scalar, two with the same gradient, a frozen and an unused one.

    Args:
        data: points.
        dropout: rate in [0, 1).
    """

    def __init__(self, data: Blobs, *, dropout: float = 0.0) -> None:
        super().__init__(data)
        self.A, self.v = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))
        self.b, self.c = (nn.Parameter(torch.randn(3)) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.frozen = nn.Parameter(1 + torch.rand(3), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))
        self.dropout = nn.Dropout(dropout)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Outcome:
        points, labels = batch
        hidden = self.dropout(torch.tanh(points @ self.A + (self.b + self.c)) * self.frozen)
        output = torch.tensor(1.1) * self.scale * (hidden @ self.v)  # a constant of the default precision
        return Outcome(self.loss_of((2 * labels - 1) * output).mean(), output.detach().sigmoid(), labels)

    def loss_of(self, margins: Tensor) -> Tensor:
        return nn.functional.softplus(-margins)

    def metrics(self) -> dict[str, Metric]:
        return {"accuracy": BinaryAccuracy(), "area": BinaryAUROC()}

    def measure_at(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"norm": weights["A"].flatten(1).norm(dim=1), "scale": weights["scale"]}


class Hinge(Net):
    """Has a gradient of 0 once all margins are large."""

    def loss_of(self, margins: Tensor) -> Tensor:
        return torch.relu(0.5 - margins)


class Square(Net):
    """Has a loss that grows as fast as its weights."""

    def loss_of(self, margins: Tensor) -> Tensor:
        return margins.square()


NET = TaskSpec(
    name="net", title="", module="tests.test_lanes:Net", data="tests.test_lanes:Blobs", metric="accuracy", mode="max",
    target=0.8, budget={"max_steps": 40}, source="tests", batch_size=6, micro_batch_size=7, precision="64-true",
    steps_per_call=7, measure_every=10, lanes=True,
)  # fmt: skip


@pytest.fixture(autouse=True)
def the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in (
        NET,
        replace(NET, name="hinge", module="tests.test_lanes:Hinge", metric="loss", mode="min", target=None),
        replace(NET, name="square", module="tests.test_lanes:Square", metric="loss", mode="min", target=None),
        replace(tiny.TINY, lanes=True, precision="64-true"),
        replace(tiny_lm.TINY_LM, precision="64-true"),
    ):
        monkeypatch.setitem(TASKS.built_in, spec.name, spec)


# -- results of runs, and how they are compared -----------------------------------------------------------------------

CLOCKS = ("wall_s", "train_s", "seconds_to_target", "memory", "engine", "begun", "plan")
OF_ONE_RUN = ("specimen",)  # nobody would read the sample texts of all lanes
SIZES = {"tiny": tiny.SIZES, "tiny_lm": tiny_lm.SIZES}
Settings = dict[str, Any]


def block(
    store: Path, task: str, opt: str, lanes: Sequence[Settings], seeds: Sequence[int] = (0, 1), **words: Any
) -> Grid:
    """Configurations, shape (seeds, lanes)."""
    named = {name.replace("__", "."): value for name, value in words.items()}
    common = {"task": task, "opt": opt, "device": "cpu", "store": store, **SIZES.get(task, {}), **named}
    return [
        [resolve(common | {f"opt.{name}": value for name, value in lane.items()} | {"seed": seed}) for lane in lanes]
        for seed in seeds
    ]


def without(results: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The same block without these entries of its tables."""
    return {table: {k: v for k, v in columns.items() if k not in names} for table, columns in results.items()}


def lrs(*values: float) -> list[Settings]:
    return [{"lr": value} for value in values]


class Silent(SweepProgress):
    """Shows nothing, and calls a function after this many calls of steps."""

    def __init__(self, at: int = 0, act: Callable[[], None] = lambda: None) -> None:
        super().__init__("", operator.gt, enabled=False)
        self.calls, self.at, self.act = 0, at, act

    def advance(self, *args: Any, **words: Any) -> None:
        super().advance(*args, **words)
        self.calls += 1
        if self.calls == self.at:
            self.act()


def train(grid: Grid, stop: StopRequest | None = None, progress: SweepProgress | None = None) -> list[RunResult] | None:
    progress = progress or Silent()
    with progress.showing(sum(map(len, grid))):
        return train_block(grid, stop or StopRequest(), progress)


def stored_results(store: Path, run_id: str) -> dict[str, Any]:
    """Everything that a store has of a run, except times."""
    result = Store(store).get(run_id)
    assert result is not None
    record = {name: value for name, value in asdict(result).items() if name not in (*CLOCKS, *OF_ONE_RUN)}
    record["validations"] = [{k: v for k, v in row.items() if k != "train_s"} for row in result.validations]
    return {"record": record, **Store(store).tables(run_id)}


def lanes_of(grid: Grid, progress: SweepProgress | None = None) -> list[dict[str, Any]]:
    """The stored lanes, after training."""
    assert train(grid, progress=progress) is not None
    return [stored_results(config.store, config.run_id) for row in grid for config in row]


def fit(config: RunConfig) -> dict[str, Any]:
    """The stored run of `bench fit`."""
    alone = config.model_copy(update={"store": config.store.with_name("fit")})
    runner.run(alone, progress=False)
    return stored_results(alone.store, alone.run_id)


def fits(grid: Grid) -> list[dict[str, Any]]:
    return [fit(config) for row in grid for config in row]


def gap(a: Any, b: Any) -> float:
    """Largest difference of numbers, absolute up to 1 and relative above; infinite if anything else differs."""
    if isinstance(b, dict):
        return max((gap(a[k], b[k]) for k in b), default=0.0) if a.keys() == b.keys() else inf
    if isinstance(b, list | tuple):
        return max(map(gap, a, b), default=0.0) if len(a) == len(b) else inf
    if isinstance(b, np.ndarray):
        if a.shape != b.shape or (np.isfinite(a) != np.isfinite(b)).any():
            return inf
        finite = np.isfinite(b)
        return float(np.max(np.abs(a - b)[finite] / np.maximum(1, np.abs(b[finite])), initial=0.0))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) / max(1, abs(b))
    return 0.0 if a == b else inf


# -- a lane is the run that `bench fit` makes -------------------------------------------------------------------------

STEPS = 50


@dataclass(frozen=True)
class Problem:
    """A task at a small size.

    Attributes:
        task: its name.
        words: its options.
        factors: of the learning rates of `tests.equivalence`.
        coarse: quantities that it measures in float32.
    """

    task: str
    words: Settings = field(default_factory=dict)
    factors: tuple[float, ...] = (0.1, 1.0)
    coarse: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.task

    def block(self, store: Path, opt: str, factors: Sequence[float], **words: Any) -> Grid:
        """Two seeds, and lanes with the learning rate of `tests.equivalence` times each factor."""
        usual = {"lr": inspect.signature(OPTIMIZERS[opt].cls).parameters["lr"].default} | HYPERPARAMETERS[opt]
        usual |= BY_ROLE.get(opt, {}) if self.task.startswith("tiny") else {}
        lanes = [usual | {"lr": usual["lr"] * factor} for factor in factors]
        return block(store, self.task, opt, lanes, **{"trainer__max_steps": STEPS, **self.words, **words})


SMALL = {"task__n": 8, "task__n_test": 6, "task__T": 4, "task__d": 6}
PROBLEMS = [
    Problem("synthetic", {**SMALL, "task__recipe": "sphere"}),  # its infimum depends on the seed
    Problem("synthetic_joint", SMALL),
    Problem("mha_dm1", {**SMALL, "task__M": 3, "task__zeta": 0.25, "task__H": 2}, coarse=("test_loss", "test_error")),
    Problem("mha_planted", {**SMALL, "task__T": 3, "task__d": 3}, coarse=("test_loss", "test_error")),
    Problem(
        "tiny",
        {"task__dropout": 0.1, "task__flip": True, "task__crop": 1, "task__depth": 1},
        factors=(0.002, 0.02),
    ),
    Problem("tiny_lm", {"task__dropout": 0.1, "task__layers": 1}, factors=(0.002, 0.02)),
]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=str)
each_optimizer = pytest.mark.parametrize("opt", OPTIMIZERS)


@pytest.mark.matrix(keep=2)
@each_problem
def test_lanes_of_any_task_equal_single_runs(problem: Problem, store: Path) -> None:
    grid = problem.block(store, "sngd", problem.factors)
    for lane, alone in zip(lanes_of(grid), fits(grid), strict=True):
        assert gap(without(lane, *problem.coarse), without(alone, *problem.coarse)) < 1e-9
        for name in problem.coarse:
            assert gap(lane["measurements"][name], alone["measurements"][name]) < 1e-6


@pytest.mark.matrix(keep=6)
@each_optimizer
def test_lanes_that_differ_in_every_number_equal_single_runs(opt: str, store: Path) -> None:
    points = random.Random(0).sample([*itertools.product(*VALUES[opt].values())], 6)
    lanes = [dict(zip(VALUES[opt], point, strict=True)) for point in points]
    grid = block(store, "net", opt, lanes, seeds=(1,), trainer__max_steps=6)
    for lane, alone in zip(lanes_of(grid), fits(grid), strict=True):
        assert gap(lane, alone) < 1e-9


# -- optimizers without a pure update, clipping, parameters without a gradient -----------------------------------------


def moved(params: Sequence[Tensor], moves: Sequence[Tensor], by: float) -> None:
    for p, move in zip(params, moves, strict=True):
        p.add_(move, alpha=by)


class Base(torch.optim.Optimizer):
    """An optimizer whose only hyperparameter is lr."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @property
    def lr(self) -> float:
        return self.param_groups[0]["lr"]

    @property
    def trained(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]


class Sam(Base):
    """Changes the weights before it calls the closure, and calls it twice."""

    @torch.no_grad()
    def step(self, closure: Any) -> Any:  # type: ignore[override]
        params, moves = self.trained, []
        for _ in range(2):
            moves.append([p.grad.clone() for p in params])  # type: ignore[union-attr]
            moved(params, moves[-1], by=0.1)
            with torch.enable_grad():
                loss = closure()
        for move in moves:
            moved(params, move, by=-0.1)
        moved(params, [p.grad for p in params], by=-self.lr)  # type: ignore[misc]
        return loss


class SamByData(Base):
    """Assigns `.data` of its parameters, as many implementations of SAM do."""

    @torch.no_grad()
    def step(self, closure: Any) -> Any:  # type: ignore[override]
        before = [p.data for p in self.trained]
        for p in self.trained:
            p.data = p.data + 0.1 * p.grad  # type: ignore[operator]
        with torch.enable_grad():
            loss = closure()
        for p, old in zip(self.trained, before, strict=True):
            p.data = old - self.lr * p.grad  # type: ignore[operator]
        return loss


class ByNorm(Base):
    """Uses the norm that it receives, and keeps a number as state."""

    @torch.no_grad()
    def step(self, closure: Any, *, grad_norm: Tensor) -> Any:  # type: ignore[override]
        group = self.param_groups[0]
        group["length"] = 0.5 * group.get("length", 0.0) + float(grad_norm)
        moved(self.trained, [p.grad for p in self.trained], by=-self.lr / (1 + group["length"]))  # type: ignore[misc]


class Averaged(Base):
    """Evaluates at the average of all its iterates, as schedule-free methods do."""

    @torch.no_grad()
    def step(self, closure: Any) -> Any:  # type: ignore[override]
        for p in self.trained:
            state = self.state[p]
            state["steps"] = state.get("steps", 0) + 1
            p.sub_(p.grad, alpha=self.lr)  # type: ignore[arg-type]
            state["other"] = p.clone() if state["steps"] == 1 else state["other"].lerp(p, 1 / state["steps"])

    def _swap(self) -> None:
        for p, state in self.state.items():
            other = state["other"].clone()
            state["other"].copy_(p.data)
            p.data.copy_(other)

    def eval(self) -> None:
        self._swap()

    def train(self) -> None:
        self._swap()


def other(name: str, target: str, again: bool = False, **defaults: Any) -> OptimizerSpec:
    traits = Traits(calls_closure_again=again)
    return OptimizerSpec(name=name, target=target, formula="", source="tests", traits=traits, defaults=defaults)


OTHERS = [
    other("rmsprop", "torch.optim.rmsprop:RMSprop"),
    other("adagrad", "torch.optim.adagrad:Adagrad"),
    other("lbfgs", "torch.optim.lbfgs:LBFGS", again=True, max_iter=2, history_size=1),
    other("sam", "tests.test_lanes:Sam", again=True),
    other("sam-by-data", "tests.test_lanes:SamByData", again=True),
    other("by-norm", "tests.test_lanes:ByNorm"),
]
AVERAGED = other("averaged", "tests.test_lanes:Averaged")
ONE_BY_ONE = [*OTHERS, *(replace(spec, update=None) for spec in OPTIMIZERS.values())]
AT_ONCE = [spec for spec in OPTIMIZERS.values() if spec.update]


def way_of(spec: OptimizerSpec) -> str:
    return f"{spec.name}-{'together' if spec.update else 'one by one'}"


@pytest.fixture
def opt(spec: OptimizerSpec, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an optimizer registered with `spec`."""
    monkeypatch.setitem(OPTIMIZERS.built_in, spec.name, spec)
    return spec.name


DRAWN = {"task__dropout": 0.2, "trainer__gradient_clip_val": 0.2, "trainer__micro_batch_size": 4, "data_seed": 7}
UNCLIPPED = {name: value for name, value in DRAWN.items() if name != "trainer__gradient_clip_val"}
RUNS = [(spec, {}) for spec in OTHERS]
RUNS += [(spec, DRAWN if may_clip(spec) else UNCLIPPED) for spec in (*AT_ONCE, *ONE_BY_ONE)]


@pytest.mark.matrix(keep=6)
@pytest.mark.parametrize(
    ("spec", "words"), RUNS, ids=[f"{way_of(spec)}{'-drawn and clipped' * bool(words)}" for spec, words in RUNS]
)
def test_lanes_of_any_optimizer_equal_single_runs(spec: OptimizerSpec, opt: str, words: Settings, store: Path) -> None:
    grid = block(store, "net", opt, lrs(0.01, 0.05), trainer__max_steps=25, trainer__val_every=10, **words)
    lanes = lanes_of(grid)
    assert gap(lanes[0], fit(grid[0][0])) < 1e-9
    assert gap(lanes[-1], fit(grid[-1][-1])) < 1e-9  # another problem, other hyperparameters


@pytest.mark.parametrize("spec", [other("sam", "tests.test_lanes:Sam", again=True)], ids=["sam"])
@pytest.mark.parametrize("lanes", [True, False])
def test_a_budget_counts_the_gradients_that_steps_compute(
    spec: OptimizerSpec, opt: str, lanes: bool, store: Path
) -> None:
    words = {"trainer__max_steps": 20, "trainer__val_every": 2, "trainer__schedule": "linear"}
    grid = block(store, "net", opt, lrs(0.01), seeds=(0,), **words)
    run = lanes_of(grid)[0] if lanes else fit(grid[0][0])
    record = run["record"]
    assert (record["steps"], record["evaluations"]) == (7, 21)  # three a step
    assert record["status"] == "completed"
    assert [(row["step"], row["evaluations"]) for row in record["validations"]] == [(2, 6), (4, 12), (6, 18), (7, 21)]
    assert run["curve"]["raw_step"] == pytest.approx(0.01 * (1 - 3 * np.arange(7) / 20))
    assert run["measurements"]["step"].tolist() == [0, 7]


@pytest.mark.parametrize("task", ["net", "tiny"])
def test_random_draws_are_replayed_as_those_of_the_step(
    task: str, store: Path, monkeypatch: pytest.MonkeyPatch, recorded: list[bool]
) -> None:
    monkeypatch.setattr("bench.lanes.engine.REPLAYED_FROM", 1)
    words = {"task__dropout": 0.2, "trainer__max_steps": 8, "trainer__batch_size": 7, "trainer__micro_batch_size": 4}
    grid = block(store, task, "sngd", lrs(0.01, 0.05), seeds=range(3), **words)
    for lane, alone in zip(lanes_of(grid), fits(grid), strict=True):
        assert gap(lane, alone) < 1e-9
    assert recorded
    assert all(recorded)


@pytest.mark.parametrize(("problems", "lanes"), [(1, 1), (1, 3), (3, 1)])
@pytest.mark.parametrize("task", ["net", "synthetic"])
def test_a_block_of_any_shape_equals_single_runs(task: str, problems: int, lanes: int, store: Path) -> None:
    grid = block(store, task, "sngd", lrs(0.01, 0.02, 0.05)[:lanes], seeds=range(problems), trainer__max_steps=20)
    for lane, alone in zip(lanes_of(grid), fits(grid), strict=True):
        assert gap(lane, alone) < 1e-9


@pytest.mark.parametrize("problems", [1, 2])
def test_lengths_and_further_splits_equal_single_runs(
    problems: int, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = Blobs(Path()).sizes["train"]
    monkeypatch.setattr(Blobs, "lengths", torch.arange(n) * 5 % 7)
    monkeypatch.setattr(Blobs, "also", ("train", "val"))
    grid = block(store, "net", "sgd", lrs(0.01, 0.02), seeds=range(problems), trainer__max_steps=20)
    for lane, alone in zip(lanes_of(grid), fits(grid), strict=True):
        assert gap(lane, alone) < 1e-9
        assert {"train", "val"} < lane["record"]["metrics"]["final"].keys()


# -- lanes that end early, and lanes that continue ---------------------------------------------------------------------


def numbers(value: Any) -> list[float]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    return [value] if isinstance(value, float) else [x for part in parts if part is not value for x in numbers(part)]


@pytest.mark.matrix(keep=2)
@pytest.mark.parametrize(
    ("task", "wild", "reason"),
    [
        # The square overflows float64, so that the second loss is not finite. With 1e6 the fourth may be finite.
        ("tiny", 1e200, "loss or gradient is not finite"),
        ("net", 1e200, "loss or gradient is not finite"),
        ("square", 2.0, "the loss grew from"),
    ],
)
@pytest.mark.parametrize("way", [{}, {"update": None}], ids=["together", "one by one"])
def test_a_diverging_lane_ends_early_and_harms_no_other(
    task: str, wild: float, reason: str, way: Settings, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPTIMIZERS.built_in, "sgd", replace(OPTIMIZERS["sgd"], **way))
    words = {"trainer__max_steps": 40, "trainer__schedule": "cosine", "task__dropout": 0.0}
    first, gone, last, *others = lanes_of(block(store, task, "sgd", lrs(0.01, wild, 0.02), **words))
    record = gone["record"]
    assert (record["status"], record["final"]) == ("diverged", None)
    assert record["reason"].startswith(reason)
    assert record["steps"] < 40
    assert all(map(np.isfinite, numbers([record["metrics"], record["validations"]])))
    alone = fit(block(store, task, "sgd", lrs(wild), seeds=(0,), **words)[0][0])
    assert gap(record, alone["record"]) < 1e-9
    np.testing.assert_equal(np.isfinite(gone["curve"]["loss"]), np.isfinite(alone["curve"]["loss"]))
    without_it = lanes_of(block(store.with_name("others"), task, "sgd", lrs(0.01, 0.02), **words))
    assert [lane["record"]["status"] for lane in without_it] == ["completed"] * 4
    for lane, same in zip([first, last, others[0], others[2]], without_it, strict=True):
        assert gap(lane, same) < 1e-12


def test_time_is_divided_among_the_lanes_that_train(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def clock(recorder: LanesRecorder) -> tuple[float, float]:
        return 3.0 * recorder.lanes.steps_done, 2.0 * recorder.lanes.steps_done  # in all, and of training

    monkeypatch.setattr(LanesRecorder, "seconds", clock)
    words = {"trainer__max_steps": 40, "trainer__val_every": 4}
    results = train(block(store, "net", "sgd", lrs(0.01, 1e200, 0.02), seeds=(0,), **words))
    assert results is not None
    steps = [4 / 3 + 36 / 2, 4 / 3, 4 / 3 + 36 / 2]  # one lane diverges before the first validation
    assert [result.wall_s for result in results] == pytest.approx([3 * share for share in steps])
    assert [result.train_s for result in results] == pytest.approx([2 * share for share in steps])
    assert results[0].validations[-1]["train_s"] == results[0].train_s


def test_a_converged_lane_of_a_resumed_block_keeps_its_final_weights(store: Path) -> None:
    lanes = [{"lr": 0.3, "momentum": 0.9}, {"lr": 0.001, "momentum": 0.9}]  # momentum moves weights without a gradient
    grid = block(store, "hinge", "gd", lanes, seeds=(0,), trainer__max_steps=120)
    stop = StopRequest()
    assert train(grid, stop, Silent(12, lambda: stop.note(signal.SIGINT))) is None  # after one lane has converged
    converged, other = lanes_of(grid)
    assert converged["record"]["reason"] == "converged: the norm of the gradient is 0 in this precision"
    assert converged["record"]["steps"] < other["record"]["steps"] == 120
    assert converged["record"]["saturated_at"] is None
    assert converged["measurements"]["step"][-1] == converged["record"]["steps"]
    assert [lane["record"]["status"] for lane in (converged, other)] == ["completed"] * 2
    for lane, alone in zip((converged, other), fits(grid), strict=True):
        assert gap(lane, alone) < 1e-9


@pytest.mark.deep
def test_a_missing_measurement_is_missing_in_its_lanes_only(store: Path) -> None:
    words = {"task__n": 8, "task__n_test": 6, "task__T": 4, "task__d": 3, "trainer__max_steps": 40}
    grid = block(store, "synthetic", "gd", lrs(0.1, 1.0), seeds=(1, 2), **words)  # infeasible, feasible
    lanes, alone = lanes_of(grid), fits(grid)
    extra = set(alone[2]["measurements"]) - set(alone[0]["measurements"])
    assert extra == {"alignment", "distance"}
    for lane, run in zip(lanes[:2], alone[:2], strict=True):
        assert all(np.isnan(lane["measurements"].pop(name)).all() for name in extra)
        assert gap(lane, run) < 1e-9
    for lane, run in zip(lanes[2:], alone[2:], strict=True):
        assert np.isfinite(lane["measurements"]["alignment"]).all()
        assert gap(lane, run) < 1e-9


# -- metrics of many runs ----------------------------------------------------------------------------------------------


def drawn(rows: int, kind: str) -> tuple[Tensor, Tensor]:
    """Predictions and labels of 2 x 3 runs."""
    many, predictions = {
        "classes": (2, torch.randint(0, 2, (2, 3, rows))),
        "numbers": (2, torch.rand(2, 3, rows)),
        "logits": (4, torch.randn(2, 3, rows, 4, dtype=torch.float64)),
    }[kind]
    return predictions, torch.randint(0, many, (2, 3, rows))


@pytest.mark.parametrize(
    ("metric", "kind", "stacked"),
    [
        (BinaryAccuracy(validate_args=False), "classes", True),
        (BinaryAccuracy(validate_args=False), "numbers", False),  # tests whether they are probabilities
        (BinaryF1Score(validate_args=False), "classes", True),
        (BinaryF1Score(), "classes", False),
        (BinaryAUROC(), "numbers", False),  # keeps lists
        (MulticlassAccuracy(4, average="micro", validate_args=False), "logits", True),
        (MulticlassAccuracy(4, average="macro", validate_args=False), "logits", True),
        (MulticlassAUROC(4, thresholds=5), "logits", False),
        (MeanSquaredError(), "numbers", True),  # writes into its states
        (R2Score(), "numbers", True),  # reads its states at the end
        (2 * MeanSquaredError(), "numbers", False),  # keeps its states in another metric
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Metric) else str(value),
)
def test_metrics_of_many_runs_are_those_of_each(metric: Metric, kind: str, stacked: bool) -> None:
    torch.manual_seed(0)
    scores, alone = Scores(metric.clone()), [metric.clone() for _ in range(6)]
    for rows in (16, 9, 16):
        predictions, labels = drawn(rows, kind)
        scores.update(predictions, labels)
        for result, p, y in zip(alone, predictions.flatten(0, 1), labels.flatten(0, 1), strict=True):
            result.update(p, y)
    expected = torch.stack([result.compute() for result in alone]).view(2, 3)
    assert (scores.states is not None) == stacked
    assert len(expected.unique()) > 1
    torch.testing.assert_close(scores.compute(), expected)


@pytest.mark.parametrize("size", [3, 5, 14])
@pytest.mark.parametrize("task", ["net", "tiny"])
def test_uneven_evaluation_batches_cover_the_whole_split(task: str, size: int, store: Path) -> None:
    lanes = make_lanes(block(store, task, "sgd", lrs(0.1, 0.2)))
    lanes.plan.evaluation_batch_size = size
    lanes.step()
    scores = lanes.evaluate_split("val")
    with DoublePrecision().forward_context(), torch.no_grad():
        for g, of_problem in enumerate(lanes.tasks):
            of_problem.eval()
            of_split = of_problem.data.batch("val", slice(None))
            for r in range(2):
                for name, p in of_problem.named_parameters():
                    p.copy_(lanes.weights[name][g, r])
                outcome = of_problem.loss(of_split)
                assert scores["loss"][g, r] == pytest.approx(float(outcome.loss), rel=1e-12)
                for name, metric in of_problem.metrics().items():
                    expected = float(metric(outcome.predictions, outcome.labels))
                    assert scores[name][g, r] == pytest.approx(expected, rel=1e-6)


# -- interrupted blocks ------------------------------------------------------------------------------------------------


def elsewhere(grid: Grid) -> Grid:
    """The same runs in another store."""
    return [[c.model_copy(update={"store": c.store.with_name("whole")}) for c in row] for row in grid]


def interrupted_block(store: Path, opt: str, **words: Any) -> Grid:
    """A block with one lane that diverges early."""
    words |= {"trainer__max_steps": 24, "trainer__val_every": 8} | DRAWN
    return block(store, "net", opt, lrs(0.01, 1e200, 0.05), **words)


def assert_goes_on(grid: Grid, whole: list[dict[str, Any]], steps: int) -> None:
    """Train the rest of a block, at most this many steps, and compare it with the uninterrupted one."""
    progress = Silent()
    assert gap(lanes_of(grid, progress), whole) == 0
    assert 0 < progress.steps <= steps * len(whole)
    assert unfinished(grid[0][0].store) == []


@pytest.mark.matrix(keep=2)
@pytest.mark.parametrize("spec", [*AT_ONCE, *OTHERS, AVERAGED], ids=way_of)
def test_a_stopped_block_resumes_bit_for_bit(spec: OptimizerSpec, opt: str, store: Path) -> None:
    grid, stop = interrupted_block(store, opt), StopRequest()
    whole = lanes_of(elsewhere(grid))
    # The third call ends at step 15, or at step 3 if lanes may spend their budgets at any step.
    assert train(grid, stop, Silent(4, lambda: stop.note(signal.SIGINT))) is None
    (left,) = unfinished(store)
    assert not left.busy
    assert {run.status for run in Store(store).runs()} == {"killed"}
    steps = [lane["record"]["steps"] for lane in whole]
    assert [lane["record"]["status"] for lane in whole].count("completed") >= 4
    assert_goes_on(grid, whole, max(steps) - (3 if spec.traits.calls_closure_again else 15))
