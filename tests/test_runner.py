"""Decisions and records of a run, apart from the weights."""

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.config.run_config import resolve
from bench.errors import RunFailed, UserError
from bench.run_summary import result_lines
from bench.store.record import RunResult
from bench.train import runner
from bench.train.watch import Watch
from optimizers import OPTIMIZERS
from tasks import TASKS
from tasks.core.order import BatchOrder
from tests import tiny
from tests.equivalence import Case, build, by_suite, config_of, distance
from tests.slow import SLOW
from tests.stored import Store, read_curve
from tests.test_lanes import NET, Blobs, Sam

pytestmark = pytest.mark.numeric


@pytest.fixture(autouse=True)
def the_tiny_task() -> None:
    tiny.register()


def fit(store: Path, task: str = "tiny", opt: str = "sgd", **words: Any) -> RunResult:
    sizes = tiny.SIZES if task == "tiny" else {}
    named = {key.replace("__", "."): value for key, value in words.items()}
    settings = {"task": task, "opt": opt, "store": store, "device": "cpu", **sizes, **named}
    return runner.run(resolve(settings), progress=False)


def curve(store: Path, result: RunResult) -> list[dict[str, float]]:
    names = ("step", "loss", "grad_norm", "raw_step", "applied_step")
    return [dict(zip(names, row, strict=True)) for row in read_curve(store / result.run_id)]


class Kept(Blobs):
    """Points that do not depend on the seed; making them sets torch's."""

    seeded = False

    def __init__(self, root: Any = None, seed: int = 0, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        torch.manual_seed(0)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function that builds a task with such points, like the first run of a process if `first`."""
    monkeypatch.setitem(TASKS.built_in, "kept", replace(NET, name="kept", data=Kept))
    monkeypatch.setattr(runner, "_loaded", {})

    def build(*, first: bool, **words: Any) -> Any:
        if first:
            runner._loaded.clear()
        return runner.build(resolve({"task": "kept", "opt": "sgd", "device": "cpu", **words}))[0]

    return build


def test_data_are_kept_for_a_run_with_the_same_options_only(built: Callable[..., Any]) -> None:
    one, other, again = (built(first=False, **{"task.scale": scale}).data for scale in (1.0, 2.0, 2.0))
    assert (one.scale, other.scale) == (1.0, 2.0)
    assert again is other


def test_the_seed_alone_decides_the_initial_weights(built: Callable[..., Any]) -> None:
    one, again, other = (built(first=first, seed=seed) for first, seed in ((True, 0), (False, 0), (True, 1)))
    assert torch.equal(one.A, again.A)
    assert not torch.equal(one.A, other.A)


def test_the_data_seed_changes_the_order_and_not_the_start(store: Path) -> None:
    one, other = (fit(store, opt="gd", data_seed=seed, trainer__max_steps=3) for seed in (0, 1))
    assert [row["loss"] for row in curve(store, one)] == [row["loss"] for row in curve(store, other)]
    one, other = (fit(store, data_seed=seed, trainer__max_steps=3) for seed in (0, 1))
    assert curve(store, one)[0]["loss"] != curve(store, other)[0]["loss"]


def test_the_best_step_reports_the_metric_at_that_step(store: Path) -> None:
    long = fit(store, opt="adam", opt__lr=0.3, trainer__max_steps=40, trainer__val_every=5)  # which is too large
    assert long.best_step is not None
    assert long.best_step < 40
    short = fit(store, opt="adam", opt__lr=0.3, trainer__max_steps=long.best_step, trainer__val_every=5)
    assert long.metrics["best"] == short.metrics["final"]
    best = max(row["accuracy"] for row in long.validations)
    assert next(row["step"] for row in long.validations if row["accuracy"] == best) == long.best_step


def test_a_cap_that_binds_on_nearly_every_step_is_said(store: Path) -> None:
    bound = fit(store, opt="sps", opt__max_step=1e-4, trainer__max_steps=20)
    assert bound.cap_share == 1
    assert any("cap was active on 100% of the steps" in line for line in result_lines(bound, store))
    free = fit(store, opt="sps", opt__c=10, trainer__max_steps=20)
    assert free.cap_share == 0
    assert not any("cap bound" in line for line in result_lines(free, store))
    # With such a cap SPS equals SGD with that rate, step by step, as the note warns.
    same = fit(store, opt="sgd", opt__lr=1e-4, trainer__max_steps=20)
    assert [row["loss"] for row in curve(store, bound)] == pytest.approx(
        [row["loss"] for row in curve(store, same)], rel=1e-6
    )


def test_a_step_that_alone_saturates_the_model_is_said(store: Path) -> None:
    absurd = fit(store, "synthetic", "gd", opt__lr=1e300, trainer__max_steps=50)
    assert (absurd.status, absurd.excess(), absurd.saturated_at) == ("completed", 0.0, 1)
    assert [line for line in result_lines(absurd, store) if "step 1 alone saturated the model" in line]
    honest = fit(store, "synthetic", "gd", trainer__max_steps=50)
    assert honest.saturated_at is None
    assert not any("saturated" in line for line in result_lines(honest, store))


def test_the_polyak_step_follows_from_loss_norm_and_minimum(store: Path) -> None:
    result = fit(store, "synthetic", "ps", opt__c=1.0, trainer__max_steps=20)
    f_star = TASKS["synthetic"].data_cls(seed=0).f_star
    for row in curve(store, result):
        assert row["raw_step"] == pytest.approx((row["loss"] - f_star) / row["grad_norm"] ** 2, rel=1e-6)
    lower = fit(store, "synthetic", "ps", opt__c=1.0, opt__lr=0.5, opt__f_star=0.1, trainer__max_steps=1)
    row = curve(store, lower)[0]
    assert row["raw_step"] == pytest.approx(0.5 * (row["loss"] - 0.1) / row["grad_norm"] ** 2, rel=1e-12)


def test_polyak_converges_to_a_zero_gradient_in_float64(store: Path) -> None:
    result = fit(store, "synthetic", "ps", opt__c=1.0)
    assert (result.status, result.reason) == ("completed", "converged: the norm of the gradient is 0 in this precision")
    assert 300 < result.steps < 600
    rows = curve(store, result)
    assert all(value is not None for row in rows for value in row.values())
    assert result.final == pytest.approx(TASKS["synthetic"].data_cls(seed=0).f_star, rel=1e-12)


def test_a_run_out_of_time_is_a_result(store: Path) -> None:
    result = fit(store, trainer__max_steps=1000, trainer__max_seconds=1e-6)
    assert result.status == "timeout"
    assert result.steps == tiny.TINY.steps_per_call
    assert result.final is not None


def test_moving_weights_before_the_closure_triggers_a_new_evaluation(store: Path) -> None:
    config = config_of(Case("sgd", 4), **{"trainer.max_steps": 15})  # gradients, three a step
    task, plan = build(config)
    plan.make_optimizer = Sam
    trainer = runner.make_trainer(config, [])
    trainer.fit(task, runner.StepRanges(task, 1000, 7))
    plain, _ = build(config)
    params, order = list(plain.double().parameters()), BatchOrder(64, 16, 0, torch.device("cpu"))
    plain.data.to(torch.device("cpu"), torch.float64)
    optimizer = Sam(params)
    for step in range(5):
        batch = plain.data.batch("train", order.rows(step))

        def closure(batch: Any = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = plain.loss(batch).loss
            loss.backward()
            return loss

        closure()
        optimizer.step(closure)
    assert distance(dict(task.named_parameters()), dict(plain.named_parameters())) < 1e-12


@pytest.mark.deep
def test_a_failed_run_goes_on_from_its_checkpoint(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"trainer__max_steps": 60, "trainer__val_every": 10, "trainer__checkpoint_seconds": 1e-9}
    whole = fit(store / "whole", opt="adam", **words)
    take = Watch.take

    def break_at_30(self: Watch, *args: Any) -> None:
        if self.result.steps >= 30:
            raise RuntimeError("no space left")
        take(self, *args)

    monkeypatch.setattr(Watch, "take", break_at_30)
    with pytest.raises(RunFailed, match=r"no space left .*test_runner"):
        fit(store, opt="adam", **words)
    monkeypatch.setattr(Watch, "take", take)
    resumed = fit(store, opt="adam", **words)
    assert resumed.status == "completed"
    assert resumed.metrics == whole.metrics
    assert read_curve(store / resumed.run_id) == read_curve(store / "whole" / whole.run_id)


def test_persistent_half_precision_overflow_is_counted_and_ends_the_run(store: Path) -> None:
    # Pixels times 1e30: the loss is finite through the layer norm, every gradient overflows.
    good = fit(store, precision="16-mixed", trainer__max_steps=14)
    assert (good.status, good.skipped) == ("completed", 0)
    task = TASKS["tiny"].module_cls
    loss = task.loss

    def steep(self: Any, batch: Any) -> Any:
        outcome = loss(self, batch)
        if not torch.is_grad_enabled():
            return outcome
        value = outcome.loss.detach() + (outcome.loss - outcome.loss.detach()) * 1e38
        return outcome._replace(loss=value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "loss", steep)
        bad = fit(store, precision="16-mixed", trainer__max_steps=100)
    assert bad.status == "diverged"
    assert bad.skipped == bad.steps > 16
    assert "overflows in half precision" in str(bad.reason)


@pytest.mark.parametrize(("micro", "legal"), [(8, True), (4, True), (1, False)])
def test_shares_that_cannot_be_cut_alike_are_refused(micro: int, legal: bool) -> None:
    config = config_of(Case("sgd"), devices=2, **{"trainer.batch_size": 15, "trainer.micro_batch_size": micro})
    if legal:
        assert build(config)[1].batch_size == 15
    else:
        with pytest.raises(UserError, match="micro_batch_size 1: 2 devices cannot divide 15 samples"):
            build(config)


class HostReads(TorchDispatchMode):
    """Counts how often a tensor's value is read by Python."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("opt", OPTIMIZERS)
def test_recording_the_curve_adds_no_host_synchronisation(opt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(Case(opt, clip=True), precision="32-true", **{"trainer.max_steps": 7})
    watch, reads = HostReads(), HostReads()
    training_step = TASKS["tiny"].module_cls.training_step

    def watched(step: Any) -> Any:
        def watched_step(self: Any, *args: Any, **keywords: Any) -> Any:
            with reads:  # do not count what the optimizer itself reads
                return step(self, *args, **keywords)

        watched_step.__signature__ = inspect.signature(step)  # type: ignore[attr-defined]
        return watched_step

    def watched_training_step(self: Any, steps: tuple[int, int]) -> None:
        with watch:
            training_step(self, steps)

    monkeypatch.setattr(TASKS["tiny"].module_cls, "training_step", watched_training_step)
    for method in config.methods:
        monkeypatch.setattr(method.cls, "step", watched(method.cls.step))
    assert len(by_suite(config).curve) == 7
    assert watch.count == reads.count


# -- several processes, through the command line --------------------------------------------------------------------

BENCH = [sys.executable, "-m", "bench"]
NODES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.mark.deep
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_that_waits_for_other_machines(store: Path, number: int, devices: int) -> None:
    alone = {name: value for name, value in os.environ.items() if name not in NODES}
    words = ["--task", "synthetic", "--opt", "sgd", "--device", "cpu", "--trainer.num_nodes", "2"]
    waiting = start(store, *words, "--trainer.devices", str(devices), env=alone)
    assert waiting.stderr is not None
    group = os.getpgid(waiting.pid)
    assert any(line.startswith("bench: waiting for all 2 machines") for line in waiting.stderr)
    time.sleep(2)  # until it waits in C++
    os.killpg(group, number)  # as a terminal and a scheduler do
    waiting.communicate(timeout=60)
    assert waiting.returncode == -number
    assert gone(group)
    assert [run.status for run in Store(store).runs()] == ["killed"]


def gone(group: int) -> bool:
    """Whether no process of a group is left, within a minute."""
    for _ in range(600):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def start(store: Path, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    command = [*BENCH, "fit", "--store", str(store), "--json", *words]
    return subprocess.Popen(
        command,
        cwd=tiny.ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert out.count("\n") == 1, (out, err)
    return json.loads(out)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("strategy", "opt", "steps", "tolerance"),
    [
        ("ddp", [SLOW], 200, 1e-9),
        pytest.param("ddp", ["sps", "--opt.gamma", "2"], 2000, 1e-9, marks=pytest.mark.ci),
        pytest.param("fsdp", ["adam", "--trainer.average", "ema"], 800, 1e-6, marks=pytest.mark.ci),
    ],
    ids=["ddp, file", "ddp, sps", "fsdp, adam, ema"],
)
def test_two_devices_stop_resume_and_equal_one_device(
    strategy: str, opt: list[str], steps: int, tolerance: float, store: Path
) -> None:
    words = ["--task", "synthetic", "--trainer.batch_size", "10", "--trainer.max_steps", str(steps), "--opt", *opt]
    words += ["--trainer.checkpoint_seconds", "0.1"]
    devices = ["--trainer.devices", "2", "--device", "cpu", "--trainer.strategy", strategy]
    two = start(store, *words, *devices)
    deadline = time.monotonic() + 200
    while not any(path.stat().st_size for path in store.glob("*/last.ckpt")):
        assert two.poll() is None, two.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(two.pid, signal.SIGINT)  # as a terminal does: both ranks get it
    stopped = answer(two)
    assert stopped["status"] == "killed"
    assert 0 < stopped["steps"] < steps
    resumed = answer(start(store, *words, *devices))
    assert (resumed["status"], resumed["steps"]) == ("completed", steps)
    settings = {word.lstrip("-"): value for word, value in zip(words[::2], words[1::2], strict=True)}
    one = runner.run(resolve({**settings, "store": store, "device": "cpu"}), progress=False)
    assert resumed["final"] == pytest.approx(one.final, abs=tolerance)
