"""Averages of the weights: their definition, that they are evaluated, and that they do not affect training."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

import bench.lanes.engine
from bench.boards.collect import collect
from bench.boards.shared import flags
from bench.config import run_config as config_module
from bench.config.run_config import RunConfig, resolve
from bench.errors import UserError
from bench.progress import Progress
from bench.run_summary import result_lines
from bench.store.record import RunResult
from bench.store.store import Store
from bench.store.stores import Stores
from bench.train import runner, training_plan
from bench.train.stop import StopRequest
from optimizers import OPTIMIZERS
from tasks import TASKS
from tasks.core.averaging import Average, Averaging
from tests import slow, tiny
from tests.depth import selected
from tests.entered import keep, seeds
from tests.equivalence import STEPS, Case, build, by_plain_loop, config_of, flat
from tests.programs import Program
from tests.test_lanes import NET, Silent, block, elsewhere, fits, gap, lanes_of, lrs, train
from tests.test_resume import outcome

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


# -- the average itself -----------------------------------------------------------------------------------------------


def walk(steps: int, dtype: torch.dtype) -> list[list[Tensor]]:
    """Weights after each step: a matrix, a scalar and two lanes of a vector."""
    draw = torch.Generator().manual_seed(0)
    moves = [torch.randn(steps, *shape, generator=draw, dtype=torch.float64) for shape in ((3, 2), (), (2, 1, 4))]
    return [list(each) for each in zip(*(list(m.cumsum(0).to(dtype)) for m in moves), strict=True)]


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


@each_average
def test_before_and_after_the_first_step_the_average_is_the_weights(kind: str) -> None:
    average, (weights, later) = Average({"ema": EMA, "lawa": LAWA}[kind]), walk(2, torch.float32)
    for _ in range(2):
        assert all(map(torch.equal, average.of(weights), weights))
        average.take(1, weights)
    if kind == "ema":
        assert not torch.equal(average.of(later)[0], later[0])


def test_a_taken_average_stays_when_the_weights_change() -> None:
    for how in (EMA, Averaging("lawa", window=2, every=1)):
        average, (weights, *_) = Average(how), walk(1, torch.float64)
        average.take(1, weights)
        before = [w.clone() for w in weights]
        for w in weights:
            w.zero_()
        assert all(map(torch.equal, average.of(weights), before))


@pytest.mark.parametrize("how", [EMA, LAWA], ids=lambda how: how.kind)
def test_weights_come_back_bit_for_bit_and_a_state_goes_on(how: Averaging) -> None:
    points = walk(13, torch.float32)
    average, other = Average(how), Average(how)
    for step, weights in enumerate(points[:9], 1):
        average.take(step, weights)
    before = [w.clone() for w in points[8]]
    with average.in_place_of(points[8]):
        assert not torch.equal(points[8][0], before[0])
    assert all(map(torch.equal, points[8], before))
    other.load_state_dict(average.state_dict(), points[8])
    for step, weights in enumerate(points[9:], 10):
        for each in (average, other):
            each.take(step, weights)
    assert all(map(torch.equal, average.of(points[-1]), other.of(points[-1])))
    with pytest.raises(ValueError, match="to other weights"):
        other.load_state_dict(average.state_dict(), points[8][::-1])


def test_a_skipped_step_does_not_count_and_a_snapshot_due_there_is_taken_after_the_next() -> None:
    points = walk(10, torch.float64)
    taken = [step for step in range(1, 11) if step not in (1, 2, 4, 8)]
    ema, lawa = Average(EMA), Average(LAWA)
    for step in taken:
        ema.take(step, points[step - 1])
        lawa.take(step, points[step - 1])
    expected = average_of("ema", np.stack([joined(points[step - 1]) for step in taken]))
    np.testing.assert_allclose(joined(ema.of(points[-1])), expected, rtol=1e-12)
    snapshots = np.stack([joined(points[step - 1]) for step in (5, 9)])
    np.testing.assert_allclose(joined(lawa.of(points[-1])), snapshots.mean(axis=0), rtol=1e-12)


# -- a run ------------------------------------------------------------------------------------------------------------


class Evaluating(pl.Callback):
    """Evaluates after each call of steps, as the recorder does."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.losses.append(pl_module.evaluate("val")["loss"])


class Fitted:
    """A run of `bench fit`'s loop: its task, the points after each step, shape (steps, weights), its evaluations."""

    def __init__(self, config: RunConfig, scaler: Any = None) -> None:
        self.task, self.plan = build(config)
        evaluating = Evaluating()
        trainer = runner.make_trainer(config, [evaluating])
        if scaler is not None:
            assert isinstance(trainer.precision_plugin, MixedPrecision)
            trainer.precision_plugin.scaler = scaler
        points, loop = [], runner.StepRanges(self.task, 5, 3)
        inner = type(self.task).training_step

        def one_by_one(task: Any, steps: tuple[int, int]) -> None:
            for step in range(*steps):
                inner(task, (step, step + 1))
                points.append(whole_weights(task))

        self.task.training_step = one_by_one.__get__(self.task)
        trainer.fit(self.task, loop)
        self.losses = evaluating.losses
        self.points = np.stack([joined(list(each.values())) for each in points])
        with torch.no_grad(), self.task.in_eval_mode():
            self.evaluated = whole_weights(self.task)


def whole_weights(task: Any) -> dict[str, Tensor]:
    full = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in task.named_parameters()}
    return {name: p.detach().clone() for name, p in full.items()}


def plain_points(case: Case) -> Points:
    """Points after each step of a plain PyTorch loop."""
    start = flat(build(config_of(case))[0].model)
    return np.stack([(start + sum).numpy() for sum in torch.stack(list(by_plain_loop(case).moves)).cumsum(0)])


@each_average
@pytest.mark.parametrize(
    "case",
    [
        Case("adam"),
        Case("sgd", 4),
        Case("sngd", 4, clip=True),
        Case("ngd"),
        Case("muon"),
        Case("adamw", task="tiny_lm"),
    ],
    ids=lambda case: case.name,
)
@pytest.mark.matrix(keep=4)
def test_the_evaluated_weights_are_the_average_of_a_plain_loops_iterates(case: Case, kind: str) -> None:
    found = Fitted(config_of(case, **WORDS[kind]))
    points = plain_points(case)
    np.testing.assert_allclose(found.points, points, rtol=0, atol=1e-9)
    np.testing.assert_allclose(joined(list(found.evaluated.values())), average_of(kind, points), rtol=0, atol=1e-9)
    assert np.abs(average_of(kind, points) - points[-1]).max() > 1e-4


@each_average
@pytest.mark.parametrize("words", [{}, {"trainer.schedule": "linear", "trainer.warmup": "0.2"}], ids=["", "scheduled"])
def test_training_is_that_without_an_average_bit_for_bit(kind: str, words: dict[str, str]) -> None:
    with_average, without = (Fitted(config_of(Case("adam"), **words, **more)) for more in (WORDS[kind], {}))
    assert (with_average.points == without.points).all()
    assert with_average.task.record.curve == without.task.record.curve
    expected = average_of(kind, without.points)
    np.testing.assert_allclose(joined(list(with_average.evaluated.values())), expected, rtol=0, atol=1e-12)
    # The loss of the validation samples there.
    task = without.task.eval()
    vectors = torch.from_numpy(expected).split([p.numel() for p in task.parameters()])
    weights = {name: v.view_as(p) for (name, p), v in zip(task.named_parameters(), vectors, strict=True)}
    loss = functional_call(task, weights, (task.data.batch("val", slice(0, 16)),)).loss
    assert with_average.losses[-1] == pytest.approx(float(loss), abs=1e-12)
    assert abs(without.losses[-1] - float(loss)) > 1e-6


def test_only_what_no_method_averages_by_itself_is_averaged() -> None:
    """Here SGD trains the matrices, and the method of the rest has its own average."""
    words = {"opt.rest": "sfadamw", "opt.lr": "0.1"}
    found = Fitted(config_of(Case("sgd", odd=False), **words, **WORDS["ema"]))
    own = Fitted(config_of(Case("sgd"), **words))
    matrices = {p.name for p in own.task.parameter_roles() if p.role == "matrix"}
    expected = dict(
        zip(
            own.evaluated,
            torch.from_numpy(average_of("ema", own.points)).split([w.numel() for w in own.evaluated.values()]),
            strict=True,
        )
    )
    assert 0 < len(matrices) < len(expected)
    for name, value in found.evaluated.items():
        if name in matrices:
            torch.testing.assert_close(value.flatten(), expected[name], rtol=0, atol=1e-12)
        else:
            assert torch.equal(value, own.evaluated[name])


def test_steps_that_a_scaler_skips_are_not_averaged() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, backoff_factor=0.25)
    config = config_of(Case("sgd"), precision="16-mixed", **WORDS["ema"])
    found = Fitted(config, scaler)
    taken = [row.applied_step != 0 for row in found.task.record.curve]
    assert not taken[0]
    assert 3 < sum(taken) < STEPS
    expected = average_of("ema", found.points[taken])
    np.testing.assert_allclose(joined(list(found.evaluated.values())), expected, rtol=0, atol=1e-5)
    assert np.abs(average_of("ema", found.points) - expected).max() > 1e-5


# -- as it is stored --------------------------------------------------------------------------------------------------

SMALL = {
    "task": "synthetic",
    "task.n": "8",
    "task.T": "4",
    "task.d": "6",
    "device": "cpu",
    "trainer.max_steps": "60",
    "trainer.batch_size": "3",
}


def fit(store: Path, opt: str = "adam", **words: Any) -> RunResult:
    named = {name.replace("__", "."): str(value) for name, value in words.items()}
    return runner.run(resolve({**SMALL, "opt": opt, "store": store, **named}), progress=False)


def tables(store: Path, result: RunResult) -> dict[str, dict[str, list[Any]]]:
    found = Store(store).tables(result.run_id)
    return {name: {k: v.tolist() for k, v in table.items()} for name, table in found.items()}


@each_average
def test_the_curve_is_that_of_the_weights_and_the_metric_that_of_the_average(kind: str, store: Path) -> None:
    usual = {"trainer__measure_every": 10, "trainer__val_every": 7}
    more = {name.replace(".", "__"): value for name, value in WORDS[kind].items()}
    plain, averaged = fit(store, **usual), fit(store, **usual, **more)
    rare = fit(store, **usual | {"trainer__val_every": 1000}, **more)
    curves = [tables(store, result)["curve"] for result in (plain, averaged, rare)]
    assert curves[0] == curves[1] == curves[2]
    assert averaged.final == rare.final != plain.final
    assert [row["step"] for row in averaged.validations] == [row["step"] for row in plain.validations]
    measured = [tables(store, result)["measurements"] for result in (plain, averaged, rare)]
    assert gap(measured[1], measured[2]) < 1e-12  # the rounding of points measured together depends on their number
    assert measured[0]["test_loss"][-1] != measured[1]["test_loss"][-1]


def test_a_run_of_one_step_is_evaluated_at_its_weights(store: Path) -> None:
    finals = {fit(store, trainer__max_steps=1, trainer__average=kind).final for kind in ("none", "ema", "lawa")}
    assert len(finals) == 1


def test_a_method_that_averages_by_itself_is_left_alone_and_that_is_said(store: Path) -> None:
    plain, asked = fit(store, "sfadamw"), fit(store, "sfadamw", trainer__average="ema")
    assert (plain.final, tables(store, plain)) == (asked.final, tables(store, asked))
    own = "note: this optimizer evaluates its own weight averages"
    assert own in result_lines(plain, store)
    assert f"{own}; --trainer.average ema does not change them" in result_lines(asked, store)
    assert own not in result_lines(fit(store, trainer__average="ema"), store)
    assert "averages" in runner.described(resolve({**SMALL, "opt": "muon", "opt.rest": "sfadamw"}))["traits"]


def test_optimizers_that_average_by_themselves() -> None:
    assert {name for name in OPTIMIZERS if OPTIMIZERS[name].traits.averages} == {"sfadamw"}
    assert OPTIMIZERS["tests.test_schedule:Free"].traits.averages
    assert not OPTIMIZERS["tests.test_schedule:Without"].traits.averages


def test_boards_compare_runs_of_the_same_average_and_say_whose_is_its_own(store: Path) -> None:
    words = {"trainer.average": "ema"}
    keep(store, *seeds("adam", [0.5, 0.6]), *seeds("sgd", [0.4, 0.5], words=words))
    keep(store, *seeds("sfadamw", [0.3, 0.4], words=words))
    found = collect(Stores([store]))
    problems = {problem.name: [entry.opt for entry in own] for problem, own in found.problems.items()}
    assert problems == {"mnist, max_steps 100": ["adam"], "mnist, max_steps 100, average ema": ["sfadamw", "sgd"]}
    assert {entry.opt for entry in found.entries if "own average" in flags(entry)} == {"sfadamw"}


# -- options ----------------------------------------------------------------------------------------------------------


def test_a_run_without_an_average_is_the_run_that_it_was() -> None:
    plain = resolve({**SMALL, "opt": "adam"})
    assert not [name for name in plain.identity["trainer"] if name.startswith("average")]
    assert resolve({**SMALL, "opt": "adam", "trainer.average": "none"}).run_id == plain.run_id
    ema = resolve({**SMALL, "opt": "adam", "trainer.average": "ema"})
    assert resolve({**SMALL, "opt": "adam", **WORDS["ema"], "trainer.average_decay": "0.999"}).run_id == ema.run_id
    others = [resolve({**SMALL, "opt": "adam", **words}).run_id for words in WORDS.values()]
    assert len({plain.run_id, ema.run_id, *others}) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"trainer.average": "swa"}, r"--trainer\.average 'swa'"),
        ({"trainer.average": "ema", "trainer.average_decay": "1"}, r"--trainer\.average_decay '1'"),
        ({"trainer.average": "lawa", "trainer.average_window": "1"}, r"--trainer\.average_window '1'"),
        ({"trainer.average": "lawa", "trainer.average_every": "0"}, r"--trainer\.average_every '0'"),
    ],
)
def test_impossible_averages_are_refused(words: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        resolve({**SMALL, "opt": "adam", **words})


@pytest.mark.parametrize(
    ("words", "of"),
    [
        ({"trainer.average_decay": "0.9"}, "none"),
        ({"trainer.average": "lawa", "trainer.average_decay": "0.9"}, "lawa"),
        ({"trainer.average": "ema", "trainer.average_window": "4"}, "ema"),
        ({"trainer.average": "ema", "trainer.average_every": "4"}, "ema"),
    ],
)
def test_settings_without_effect_are_left_out_with_a_note(words: dict[str, str], of: str, capsys) -> None:
    config_module.say_once.cache_clear()
    own = {name: value for name, value in words.items() if name == "trainer.average"}
    assert resolve({**SMALL, "opt": "adam", **words}).run_id == resolve({**SMALL, "opt": "adam", **own}).run_id
    (name, value), *_ = words.items() - own.items()
    assert capsys.readouterr().err == f"bench: --{name} {value} is ignored: the average is {of} and has no {name[8:]}\n"


def test_a_run_that_ends_before_its_first_snapshot_is_refused(store: Path) -> None:
    with pytest.raises(UserError, match=r"^--trainer\.average_every 61: the run has 60 steps; use at most 60$"):
        fit(store, trainer__average="lawa", trainer__average_every=61)


@pytest.mark.parametrize(
    ("steps", "per_epoch", "every"),
    [(60, 10, 10), (50, 10, 10), (49, 10, 3), (500, 10, 25), (3, 1, 1), (1, 100, 1), (1000, 4000, 50)],
)
def test_snapshots_are_an_epoch_apart_where_the_run_has_several(steps: int, per_epoch: int, every: int) -> None:
    config = resolve({**SMALL, "opt": "adam", "trainer.average": "lawa"})
    assert training_plan.average_of(config, steps, per_epoch) == Averaging("lawa", window=5, every=every)


# -- resumed ----------------------------------------------------------------------------------------------------------


class Stopping(Progress):
    """Asks a run to stop at its 30th step."""

    def __init__(self, stop: StopRequest) -> None:
        super().__init__(60, "", enabled=False)
        self.asked = stop

    def update(self, now: int, *rest: Any) -> None:
        if now >= 30 and self.asked.signal is None:
            self.asked.note(signal.SIGINT)


@each_average
def test_a_run_that_was_interrupted_goes_on_bit_for_bit(kind: str, store: Path) -> None:
    configs = [
        resolve({**SMALL, "opt": "adam", "trainer.val_every": "7", "store": folder, **WORDS[kind]})
        for folder in (store, store.with_name("whole"))
    ]
    stop = StopRequest()
    assert runner.run(configs[0], stop=stop, progress=lambda *_: Stopping(stop)).status == "killed"
    for config in configs:
        assert runner.run(config, progress=False).status == "completed"
    assert outcome(store) == outcome(store.with_name("whole"))


@pytest.mark.deep
@each_average
def test_a_run_that_was_killed_goes_on_bit_for_bit(kind: str, store: Path, tmp_path: Path) -> None:
    words = ["fit", "--opt", slow.SLOW, "--trainer.checkpoint_seconds", "1e-3", "--trainer.val_every", "7"]
    settings = {**SMALL, "trainer.max_steps": "300", **WORDS[kind]}
    words += [f"--{k}={v}" for k, v in settings.items()]

    def start(name: str, store: Path) -> Program:
        return Program(tmp_path / name, [*words, "--store", store])

    assert start("undisturbed", tmp_path / "whole").end()[0] == 0
    killed = start("killed", store)
    killed.until(lambda: any(path.stat().st_size for path in store.glob("*/attempt-1/last.ckpt")))
    killed.close()
    assert [run.status for run in Store(store).runs()] == ["killed"]
    code, _, err = start("repeated", store).end()
    assert code == 0
    assert "step 7/300" not in err
    assert outcome(store) == outcome(tmp_path / "whole")


def wait_for(store: Path, pattern: str, process: "subprocess.Popen[Any]") -> None:
    deadline = time.monotonic() + 200
    while not any(path.stat().st_size for path in store.glob(pattern)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


# -- lanes ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "net", NET)


def in_lanes(kind: str) -> dict[str, str]:
    return {name.replace(".", "__"): value for name, value in WORDS[kind].items()} | {"trainer__val_every": "5"}


@each_average
@pytest.mark.parametrize(
    ("opt", "words"),
    [
        ("adam", {}),
        ("sps", {"trainer__gradient_clip_val": 0.5}),
        ("torch.optim:RMSprop", {}),
        ("sfadamw", {}),
        ("adamw", {"trainer__schedule": "cosine", "task__dropout": 0.1}),
        ("gd", {}),
    ],
)
@pytest.mark.usefixtures("net")
@pytest.mark.matrix(keep=1)
def test_lanes_are_the_runs_that_fit_makes(kind: str, opt: str, words: dict[str, Any], store: Path) -> None:
    grid = block(store, "net", opt, lrs(0.05, 0.5), **in_lanes(kind), **words)
    lanes = lanes_of(grid)
    assert gap(lanes, fits(grid)) < 1e-9
    plain = lanes_of(block(store, "net", opt, lrs(0.05, 0.5), trainer__val_every=5, **words))
    assert gap([lane["curve"] for lane in lanes], [lane["curve"] for lane in plain]) == 0
    finals = [[lane["record"]["metrics"]["final"]["loss"] for lane in each] for each in (lanes, plain)]
    assert (gap(*finals) == 0) == (opt == "sfadamw")


@pytest.mark.deep
@each_average
@pytest.mark.usefixtures("net")
def test_lanes_of_two_methods_are_the_runs_that_fit_makes(kind: str, store: Path) -> None:
    """One of the methods has its own average."""
    words = {"opt.rest": "sfadamw", "trainer__measure_every": 10}
    grid = block(store, "net", "sgd", lrs(0.05, 0.2), **in_lanes(kind), **words)
    assert gap(lanes_of(grid), fits(grid)) < 1e-9


@pytest.mark.deep
@each_average
def test_lanes_that_are_replayed_are_those_that_are_not(
    kind: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = block(
        store,
        "synthetic",
        "adam",
        lrs(0.05, 0.2),
        task__n=8,
        task__T=4,
        task__d=6,
        trainer__max_steps=40,
        **in_lanes(kind),
    )
    plain = lanes_of(elsewhere(grid))
    monkeypatch.setattr(bench.lanes.engine, "REPLAYED_FROM", 1)
    assert gap(lanes_of(grid), plain) == 0
    assert gap(plain, fits(grid)) < 1e-9


@pytest.mark.deep
@each_average
@pytest.mark.usefixtures("net")
def test_a_block_that_was_stopped_goes_on_as_if_it_had_not_been(kind: str, store: Path) -> None:
    grid = block(store, "net", "adam", lrs(0.05, 1e200), **in_lanes(kind))
    whole = lanes_of(elsewhere(grid))
    stop = StopRequest()
    assert train(grid, stop, Silent(4, lambda: stop.note(signal.SIGINT))) is None
    assert gap(lanes_of(grid), whole) == 0


# -- two processes ----------------------------------------------------------------------------------------------------

RANKS = [(opt, kind) for opt in ("adam", "muon") for kind in WORDS] + [("sfadamw", "none")]
each_of_ranks = pytest.mark.parametrize(("opt", "kind"), RANKS)


def by_ranks(opt: str, kind: str, **words: Any) -> dict[str, Any]:
    found = Fitted(config_of(Case(opt, 2), **words, **WORDS.get(kind, {})))
    return {"evaluated": found.evaluated, "points": torch.from_numpy(found.points), "losses": found.losses}


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "tests.test_averaging", str(folder), *sorted(selected(request, "strategy"))]
    done = subprocess.run(command, cwd=tiny.ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.deep
@each_of_ranks
@pytest.mark.parametrize(("strategy", "most"), [("ddp", 1e-9), ("fsdp", 1e-6)], ids=["ddp", "fsdp"])
def test_two_processes_evaluate_what_one_does(strategy: str, most: float, opt: str, kind: str, ranks: Path) -> None:
    alone = by_ranks(opt, kind)
    for rank in (0, 1):
        found = torch.load(ranks / f"{strategy}-{opt}-{kind}-{rank}.pt", weights_only=True)
        assert found["losses"] == pytest.approx(alone["losses"], abs=most)
        torch.testing.assert_close(found["points"], alone["points"], rtol=0, atol=most)
        torch.testing.assert_close(found["evaluated"], alone["evaluated"], rtol=0, atol=most)


@pytest.mark.deep
@pytest.mark.parametrize(("strategy", "kind", "most"), [("ddp", "lawa", 1e-9), ("fsdp", "ema", 1e-6)])
def test_two_processes_stop_and_go_on_with_their_average(strategy: str, kind: str, most: float, store: Path) -> None:
    settings = {**SMALL, "opt": "adam", "trainer.batch_size": "4", "trainer.max_steps": "600", **WORDS[kind]}
    settings |= {"trainer.val_every": "20"}
    words = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "bench.cli", "fit", "--store", str(store), *words]
    command += ["--trainer.devices=2", f"--trainer.strategy={strategy}"]
    with subprocess.Popen(command, cwd=tiny.ROOT, start_new_session=True) as two:
        wait_for(store, "*/attempt-1/curve.raw", two)
        os.killpg(two.pid, signal.SIGINT)
    (stopped,) = Store(store).runs()
    assert stopped.status == "killed"
    assert 0 < stopped.steps < 600
    assert subprocess.run(command, cwd=tiny.ROOT, check=False).returncode == 0
    (resumed,) = Store(store).runs()
    one = runner.run(resolve({**settings, "store": store.with_name("one")}), progress=False)
    assert (resumed.final, resumed.best) == pytest.approx((one.final, one.best), abs=most)
    losses = [[row["loss"] for row in run.validations] for run in (resumed, one)]
    assert losses[0] == pytest.approx(losses[1], abs=most)


def main(folder: Path, strategies: list[str]) -> None:
    """Train on this rank and save its results."""
    for strategy in strategies:
        for opt, kind in RANKS:
            found = by_ranks(opt, kind, devices=2, strategy=strategy)
            torch.save(found, folder / f"{strategy}-{opt}-{kind}-{torch.distributed.get_rank()}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
