"""Averages of the weights: their definition, that they are evaluated, and that they do not affect training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from numpy.typing import NDArray
from torch import Tensor

from bench.boards.collect import collect
from bench.config.run_config import RunConfig, resolve
from bench.errors import UserError
from bench.run_summary import result_lines
from bench.store.record import RunResult
from bench.store.stores import Stores
from bench.train import runner, training_plan
from tasks import TASKS
from tasks.core.averaging import Average, Averaging
from tests.entered import keep, seeds
from tests.equivalence import STEPS, Case, build, by_plain_loop, config_of, flat
from tests.stored import Store
from tests.test_lanes import NET, block, fits, gap, lanes_of, lrs

pytestmark = pytest.mark.numeric

EMA = Averaging("ema", decay=0.8)
LAWA = Averaging("lawa", window=3, every=4)
WORDS = {
    "ema": {"trainer.average": "ema", "trainer.average_decay": "0.8"},
    "lawa": {"trainer.average": "lawa", "trainer.average_window": "3", "trainer.average_every": "4"},
}
each_average = pytest.mark.parametrize("kind", WORDS)
Points = NDArray[np.float64]


def average_of(kind: str, points: Points) -> Points:
    """The average of the points after each step, shape (steps, weights), by explicit sums."""
    if kind == "lawa":
        snapshots = points[LAWA.every - 1 :: LAWA.every][-LAWA.window :]
        return snapshots.mean(axis=0) if len(snapshots) else points[-1]
    shares = 0.8 ** np.arange(len(points))[::-1]
    return shares @ points / shares.sum()


def walk(steps: int, dtype: torch.dtype) -> list[list[Tensor]]:
    """Weights after each step: a matrix, a scalar and two lanes of a vector."""
    draw = torch.Generator().manual_seed(0)
    moves = [torch.randn(steps, *shape, generator=draw, dtype=torch.float64) for shape in ((3, 2), (), (2, 1, 4))]
    return [list(weights) for weights in zip(*(list(m.cumsum(0).to(dtype)) for m in moves), strict=True)]


def joined(weights: Sequence[Tensor]) -> Points:
    return torch.cat([w.double().flatten() for w in weights]).numpy()


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 11, 12, 13, 40])
@pytest.mark.parametrize(
    ("dtype", "unit"), [(torch.float64, 2**-53), (torch.float32, 2**-24), (torch.bfloat16, 2**-24)]
)
@pytest.mark.parametrize("how", [EMA, LAWA], ids=lambda how: how.kind)
def test_an_average_is_that_of_its_formula(how: Averaging, dtype: torch.dtype, unit: float, steps: int) -> None:
    average, points = Average(how), walk(steps, dtype)
    for step, weights in enumerate(points, 1):
        average.take(step, [w.clone() for w in weights])
    precise = [w.to(torch.promote_types(dtype, torch.float32)) for w in points[-1]]
    expected = average_of(how.kind, np.stack([joined(weights) for weights in points]))
    # Three roundings per step or snapshot, each of numbers up to the largest point; old errors decay.
    most = max(np.abs(joined(weights)).max() for weights in points)
    np.testing.assert_allclose(joined(average.of(precise)), expected, rtol=0, atol=3 * 5 * unit * most)
    assert {w.dtype for w in average.of(points[-1])} == {dtype}


def test_a_snapshot_due_at_a_skipped_step_follows_it() -> None:
    average, points = Average(LAWA), walk(10, torch.float64)
    for step in (3, 5, 6, 7, 9, 10):
        average.take(step, points[step - 1])
    snapshots = np.stack([joined(points[step - 1]) for step in (5, 9)])
    np.testing.assert_allclose(joined(average.of(points[-1])), snapshots.mean(axis=0), rtol=1e-12)


class Fitted:
    """A run of `bench fit`'s loop: its task, the points after each step, shape (steps, weights)."""

    def __init__(self, config: RunConfig, scaler: Any = None) -> None:
        self.task, self.plan = build(config)
        trainer = runner.make_trainer(config, [])
        if scaler is not None:
            assert isinstance(trainer.precision_plugin, MixedPrecision)
            trainer.precision_plugin.scaler = scaler
        points, loop = [], runner.StepRanges(self.task, 5, 3)
        inner = type(self.task).training_step

        def one_by_one(task: Any, steps: tuple[int, int]) -> None:
            for step in range(*steps):
                inner(task, (step, step + 1))
                points.append(weights_of(task))

        self.task.training_step = one_by_one.__get__(self.task)
        trainer.fit(self.task, loop)
        self.points = np.stack([joined(list(weights.values())) for weights in points])
        with torch.no_grad(), self.task.in_eval_mode():
            self.evaluated = weights_of(self.task)


def weights_of(task: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in task.named_parameters()}


def plain_points(case: Case) -> Points:
    """Points after each step of a plain PyTorch loop."""
    start = flat(build(config_of(case))[0].model)
    return np.stack([(start + sum).numpy() for sum in torch.stack(list(by_plain_loop(case).moves)).cumsum(0)])


@each_average
@pytest.mark.parametrize(
    "case",
    [Case("adam"), Case("sngd", 4, clip=True), Case("muon"), Case("adamw", task="tiny_lm")],
    ids=lambda case: case.name,
)
@pytest.mark.matrix(keep=4)
def test_evaluated_weights_average_the_iterates_of_a_plain_loop(case: Case, kind: str) -> None:
    run = Fitted(config_of(case, **WORDS[kind]))
    points = plain_points(case)
    np.testing.assert_allclose(run.points, points, rtol=0, atol=1e-9)
    np.testing.assert_allclose(joined(list(run.evaluated.values())), average_of(kind, points), rtol=0, atol=1e-9)
    assert np.abs(average_of(kind, points) - points[-1]).max() > 1e-4


def test_a_method_with_its_own_average_is_not_averaged() -> None:
    """Here SGD trains the matrices, and the method of the rest has its own average."""
    words = {"opt.rest": "sfadamw", "opt.lr": "0.1"}
    averaged, plain = Fitted(config_of(Case("sgd"), **words, **WORDS["ema"])), Fitted(config_of(Case("sgd"), **words))
    matrices = {p.name for p in plain.task.parameter_roles() if p.role == "matrix"}
    means = torch.from_numpy(average_of("ema", plain.points)).split([w.numel() for w in plain.evaluated.values()])
    assert 0 < len(matrices) < len(means)
    for (name, value), mean in zip(averaged.evaluated.items(), means, strict=True):
        expected = mean.view_as(value) if name in matrices else plain.evaluated[name]
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-12 if name in matrices else 0)


def test_steps_that_a_scaler_skips_are_not_averaged() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, backoff_factor=0.25)
    config = config_of(Case("sgd"), precision="16-mixed", **WORDS["ema"])
    run = Fitted(config, scaler)
    taken = [row.applied_step != 0 for row in run.task.record.curve]
    assert not taken[0]
    assert 3 < sum(taken) < STEPS
    expected = average_of("ema", run.points[taken])
    np.testing.assert_allclose(joined(list(run.evaluated.values())), expected, rtol=0, atol=1e-5)
    assert np.abs(average_of("ema", run.points) - expected).max() > 1e-5


SMALL = {"task": "synthetic", "task.n": "8", "task.T": "4", "task.d": "6", "device": "cpu"}
SMALL |= {"trainer.max_steps": "60", "trainer.batch_size": "3"}


def fit(store: Path, opt: str = "adam", **words: Any) -> RunResult:
    named = {name.replace("__", "."): str(value) for name, value in words.items()}
    return runner.run(resolve({**SMALL, "opt": opt, "store": store, **named}), progress=False)


def tables(store: Path, result: RunResult) -> dict[str, dict[str, list[Any]]]:
    stored = Store(store).tables(result.run_id)
    return {name: {k: v.tolist() for k, v in table.items()} for name, table in stored.items()}


def test_a_run_says_that_its_method_averages_by_itself(store: Path) -> None:
    plain, averaged = fit(store, "sfadamw"), fit(store, "sfadamw", trainer__average="ema")
    assert (plain.final, tables(store, plain)) == (averaged.final, tables(store, averaged))
    note = "note: this optimizer evaluates its own weight averages"
    assert note in result_lines(plain, store)
    assert f"{note}; --trainer.average ema does not change them" in result_lines(averaged, store)
    assert note not in result_lines(fit(store, trainer__average="ema"), store)


def test_boards_compare_runs_of_the_same_average(store: Path) -> None:
    words = {"trainer.average": "ema"}
    keep(store, *seeds("adam", [0.5, 0.6]), *seeds("sgd", [0.4, 0.5], words=words))
    keep(store, *seeds("sfadamw", [0.3, 0.4], words=words))
    collected = collect(Stores([store]))
    problems = {problem.name: [entry.opt for entry in entries] for problem, entries in collected.problems.items()}
    assert problems == {"mnist, max_steps 100": ["adam"], "mnist, max_steps 100, average ema": ["sfadamw", "sgd"]}
    assert {entry.opt for entry in collected.entries if "own average" in entry.flags} == {"sfadamw"}


def test_only_an_average_in_use_is_part_of_the_identity() -> None:
    identities = [
        resolve({**SMALL, "opt": "adam", **words}).identity["trainer"]
        for words in ({}, {"trainer.average": "none"}, {"trainer.average": "ema"}, *WORDS.values())
    ]
    assert identities[0] == identities[1]
    assert not [name for name in identities[0] if name.startswith("average")]
    assert all(a != b for i, a in enumerate(identities[1:]) for b in identities[i + 2 :])


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [("swa", "", "swa"), ("ema", "_decay", "1"), ("lawa", "_window", "1"), ("lawa", "_every", "0")],
)
def test_impossible_averages_are_refused(kind: str, name: str, value: str) -> None:
    with pytest.raises(UserError, match=rf"--trainer\.average{name} '{value}'"):
        resolve({**SMALL, "opt": "adam", "trainer.average": kind, f"trainer.average{name}": value})


def test_a_run_that_ends_before_its_first_snapshot_is_refused(store: Path) -> None:
    with pytest.raises(UserError, match=r"^--trainer\.average_every 61: the run has 60 steps; use at most 60$"):
        fit(store, trainer__average="lawa", trainer__average_every=61)


@pytest.mark.parametrize(
    ("steps", "per_epoch", "every"),
    [(60, 10, 10), (50, 10, 10), (49, 10, 3), (500, 10, 25), (1, 100, 1), (1000, 4000, 50)],
)
def test_snapshots_are_an_epoch_apart_in_long_runs(steps: int, per_epoch: int, every: int) -> None:
    config = resolve({**SMALL, "opt": "adam", "trainer.average": "lawa"})
    assert training_plan.average_of(config, steps, per_epoch) == Averaging("lawa", window=5, every=every)


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS.built_in, "net", NET)


def in_lanes(kind: str) -> dict[str, str]:
    return {name.replace(".", "__"): value for name, value in WORDS[kind].items()} | {"trainer__val_every": "5"}


@each_average
@pytest.mark.parametrize(
    ("opt", "words"),
    [
        ("sps", {"trainer__gradient_clip_val": 0.5}),
        ("torch.optim:RMSprop", {}),
        ("sfadamw", {}),
        ("adamw", {"trainer__schedule": "cosine", "task__dropout": 0.1}),
        ("sgd", {"opt.rest": "sfadamw", "trainer__measure_every": 10}),
    ],
)
@pytest.mark.usefixtures("net")
@pytest.mark.matrix(keep=1)
def test_averaged_lanes_equal_single_runs(kind: str, opt: str, words: dict[str, Any], store: Path) -> None:
    grid = block(store, "net", opt, lrs(0.05, 0.5), **in_lanes(kind), **words)
    lanes = lanes_of(grid)
    assert gap(lanes, fits(grid)) < 1e-9
    plain = lanes_of(block(store, "net", opt, lrs(0.05, 0.5), trainer__val_every=5, **words))
    assert gap([lane["curve"] for lane in lanes], [lane["curve"] for lane in plain]) == 0
    finals = [[lane["record"]["metrics"]["final"]["loss"] for lane in block_] for block_ in (lanes, plain)]
    assert (gap(*finals) == 0) == (opt == "sfadamw")
