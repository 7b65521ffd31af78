"""Behaviour that may differ on a GPU: these tests train on CUDA if available, else on the CPU (`make gpu`)."""

import os
import signal
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

import tasks
from bench.progress import Progress
from bench.train import runner
from optimizers import OPTIMIZERS
from tasks.core.training_step import Loop
from tests.conftest import Cli
from tests.equivalence import TASKS, Case, build, by_suite, config_of, distance, scale_of_gradients
from tests.stored import Store

pytestmark = pytest.mark.gpu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
UNIT = {"16-mixed": 2.0**-11, "bf16-mixed": 2.0**-8}
"""Rounding units of float16 and bfloat16."""

each_method = pytest.mark.parametrize(("task", "opt"), list(product(TASKS, OPTIMIZERS)))


@pytest.mark.skipif(DEVICE == "cpu", reason="only a GPU can be waited for")
@pytest.mark.matrix(keep=6)
@each_method
def test_the_host_never_waits_for_the_device_in_a_step(task: str, opt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, watched = Loop.step, []

    def step(self: Loop, number: int) -> None:
        watch = number in (2, 3)  # before, state is allocated and kernels are chosen; step 4 orders the next epoch
        torch.cuda.set_sync_debug_mode("error" if watch else "default")
        try:
            plain(self, number)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        watched.append(number)

    monkeypatch.setattr(Loop, "step", step)
    more: dict[str, Any] = {"device": DEVICE, "trainer.max_steps": 5}
    by_suite(config_of(Case(opt, 2, task=task), precision="32-true", **more))
    assert {2, 3} <= {*watched}


@pytest.mark.matrix(keep=4)
@pytest.mark.parametrize("precision", UNIT)
@each_method
def test_mixed_precision_agrees_with_float32_to_its_rounding(task: str, opt: str, precision: str) -> None:
    case = Case(opt, 2, task=task)
    words: dict[str, Any] = {"device": DEVICE, "trainer.max_steps": 1}
    # A scale at which nothing overflows, so that no step is skipped.
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10) if precision == "16-mixed" else None
    mixed = by_suite(config_of(case, precision=precision, **words), scaler=scaler)
    exact = by_suite(config_of(case, precision="32-true", **words))
    (loss, norm, *_), (true_loss, true_norm, *_) = mixed.curve[0], exact.curve[0]
    # As in test_equivalence: the error of each sample's gradient is its size times some tens of rounding units.
    scale = scale_of_gradients(case, "32-true")
    assert loss == pytest.approx(true_loss, rel=4 * UNIT[precision])
    assert norm == pytest.approx(true_norm, abs=4 * UNIT[precision] * (scale + true_norm))


def test_a_gpu_has_its_own_gradient_scaler() -> None:
    plugin = runner.make_trainer(config_of(Case("sgd"), device=DEVICE, precision="16-mixed"), []).precision_plugin
    assert isinstance(plugin, MixedPrecision)
    assert plugin.scaler is not None
    assert plugin.device == DEVICE


@pytest.mark.matrix(keep=2)
@each_method
def test_two_runs_of_a_seed_are_equal_bit_for_bit(task: str, opt: str) -> None:
    config = config_of(Case(opt, 2, task=task), device=DEVICE, precision="32-true", dropout=0.1)
    one, other = by_suite(config), by_suite(config)
    assert one.curve == other.curve
    assert distance(one.weights, other.weights) == 0


@pytest.mark.parametrize("task", TASKS)
def test_masks_are_the_same_bits_on_every_device(task: str) -> None:
    more: dict[str, Any] = {"trainer.max_steps": 1}
    config = config_of(Case("sgd", task=task), dropout=0.3, **more)
    here, there = by_suite(config), by_suite(config.model_copy(update={"device": DEVICE}))
    # In float64 another mask would change the loss by far more than another order of summation.
    assert there.curve[0][:2] == pytest.approx(here.curve[0][:2], rel=1e-12)


def words_of(task: str, opt: str, **more: Any) -> list[object]:
    """`bench fit` on a tiny task, on this device."""
    config_of(Case(opt, task=task))  # registers it
    settings = {"task": task, "opt": opt, "device": DEVICE, **TASKS[task], **more}
    return [word for name, value in settings.items() for word in (f"--{name}", value)]


def stored_curves(store: Path) -> dict[str, Any]:
    return {run.run_id: Store(store).tables(run.run_id)["curve"] for run in Store(store).runs()}


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize(("task", "opt"), [("tiny", "sps"), ("tiny_text", "adamw"), ("tiny_lm", "muon")])
def test_an_interrupted_run_goes_on_bit_for_bit(
    task: str, opt: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Progress.update

    def interrupted(self: Progress, now: int, *rest: Any) -> None:
        if now >= 7:
            monkeypatch.setattr(Progress, "update", update)
            signal.raise_signal(signal.SIGINT)
        update(self, now, *rest)

    words = ["fit", *words_of(task, opt, **{"task.dropout": 0.1, "trainer.val_every": 7})]
    assert cli(*words, "--store", tmp_path / "whole").code == 0
    monkeypatch.setattr(Progress, "update", interrupted)
    assert cli(*words, "--store", tmp_path / "cut").code == 130
    assert cli(*words, "--store", tmp_path / "cut").code == 0
    (one,), (other,) = Store(tmp_path / "whole").runs(), Store(tmp_path / "cut").runs()
    assert (one.status, one.final, one.metrics) == (other.status, other.final, other.metrics)
    ((_, whole),), ((_, cut),) = (stored_curves(tmp_path / name).items() for name in ("whole", "cut"))
    assert {name: column.tobytes() for name, column in whole.items()} == {k: v.tobytes() for k, v in cut.items()}


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("opt", OPTIMIZERS)
def test_lanes_are_the_runs_that_fit_makes(opt: str, cli: Cli, tmp_path: Path) -> None:
    own = OPTIMIZERS[opt].traits.full_batch
    words = words_of("tiny_lm", opt, precision="64-true", **({} if own else {"trainer.batch_size": 16}))
    curves = {}
    for engine in ("lanes", "lightning"):
        store = tmp_path / engine
        answer = cli("fit", *words, "--seeds", 3, "--engine", engine, "--workers", 1, "--store", store)
        assert answer.code == 0, answer.err
        curves[engine] = stored_curves(store)
    assert len(curves["lanes"]) == 3
    assert curves["lanes"].keys() == curves["lightning"].keys()
    for run_id, lane in curves["lanes"].items():
        np.testing.assert_allclose(lane["loss"], curves["lightning"][run_id]["loss"], rtol=1e-8)


@pytest.mark.parametrize("opt", ["sngd", "muon"])
@pytest.mark.parametrize("task", ["tiny", "tiny_lm"])
def test_recorded_steps_of_lanes_give_the_same_bits(
    task: str, opt: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: list[bool]
) -> None:
    words, curves = words_of(task, opt, **{"task.dropout": 0.1, "precision": "32-true"}), []
    monkeypatch.setitem(tasks.TASKS.built_in, task, replace(tasks.TASKS[task], lanes=True))
    for shortest in (1, 10**9):
        monkeypatch.setattr("bench.lanes.engine.REPLAYED_FROM", shortest)
        more = "--seeds", 3, "--engine", "lanes", "--width", 3, "--workers", 1, "--store", tmp_path / str(shortest)
        answer = cli("fit", *words, *more)
        assert answer.code == 0, answer.err
        curves.append(stored_curves(tmp_path / str(shortest)))
    assert recorded
    assert all(recorded)
    for run_id, eager in curves[1].items():
        assert curves[0][run_id]["loss"].tobytes() == eager["loss"].tobytes()


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("opt", ["sps", "muon"])
def test_one_rank_of_a_strategy_is_the_run_without_it(opt: str, strategy: str, cli: Cli, tmp_path: Path) -> None:
    before = dict(os.environ)
    for name in ("auto", strategy):
        words = words_of("tiny_lm", opt, precision="64-true", **{"trainer.strategy": name})
        answer = cli("fit", *words, "--store", tmp_path / name)
        assert answer.code == 0, answer.err
    (alone,), (ranked,) = (stored_curves(tmp_path / name).values() for name in ("auto", strategy))
    np.testing.assert_allclose(ranked["loss"], alone["loss"], rtol=1e-9)
    # Otherwise the next run of this process, or a child of it, would use this run's port, which is not free.
    assert (dict(os.environ), torch.distributed.is_initialized()) == (before, False)


def test_a_model_is_built_alike_for_every_device() -> None:
    config = config_of(Case("sgd"), precision="32-true")
    here, there = (build(config.model_copy(update={"device": device}))[0] for device in ("cpu", DEVICE))
    assert distance(dict(here.named_parameters()), dict(there.named_parameters())) == 0


def test_a_lane_that_diverged_is_observed_beside_others(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = words_of("tiny", "sgd", **{"trainer.observe": 2})
    monkeypatch.setitem(tasks.TASKS.built_in, "tiny", replace(tasks.TASKS["tiny"], lanes=True))
    answer = cli("sweep", *words, "--opt.lr", "0.01,1e30", "--engine", "lanes", "--workers", 1, "--store", tmp_path)
    assert answer.code == 0, answer.err
    assert {run.status for run in Store(tmp_path).runs()} == {"completed", "diverged"}
