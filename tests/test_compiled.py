"""`--trainer.compile`: compiled runs equal eager ones up to rounding, and runs that cannot be compiled are refused."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.config.checks import why_no_lanes
from bench.config.run_config import resolve
from bench.errors import UserError
from bench.store.record import RunResult
from bench.train import runner
from optimizers import OPTIMIZERS
from tasks.core import training_step as module
from tasks.core.randomness import BatchRandomness
from tests import tiny, tiny_lm, tiny_text
from tests.conftest import Cli
from tests.equivalence import BY_ROLE, HYPERPARAMETERS
from tests.stored import read_curve

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="there is no C++ compiler"
)
CUT = {"trainer.micro_batch_size": 5, "trainer.gradient_clip_val": 0.5, "trainer.schedule": "cosine"}


@pytest.fixture(autouse=True)
def tasks_are_known() -> None:
    tiny.register()
    tiny.register(tiny_lm.TINY_LM)
    tiny.register(tiny_text.TINY_TEXT)


def fit(store: Path, compile: str, opt: str = "adamw", task: str = "tiny", **words: Any) -> RunResult:
    sizes: dict[str, Any] = {"tiny": tiny.SIZES, "tiny_lm": tiny_lm.SIZES, "tiny_text": tiny_text.SIZES}[task]
    hyperparameters = HYPERPARAMETERS[opt] | (BY_ROLE.get(opt, {}) if task != "tiny" else {})
    settings = {
        "task": task, "opt": opt, "device": "cpu", "precision": "64-true", "store": store, **sizes,
        "task.dropout": 0.3, "trainer.max_steps": 20, "trainer.compile": compile,
        **{f"opt.{name}": value for name, value in hyperparameters.items()}, **words,
    }  # fmt: skip
    if OPTIMIZERS[opt].traits.unscheduled:
        settings.pop("trainer.schedule", None)
    if OPTIMIZERS[opt].traits.full_batch:
        settings["trainer.batch_size"] = "full"
    return runner.run(resolve(settings), progress=False)


def assert_equal_curves(folder: Path, **words: Any) -> None:
    """A compiled and an eager run have the same curve up to the rounding of twenty steps in float64."""
    eager, other = fit(folder / "eager", "off", **words), fit(folder / "compiled", "step", **words)
    assert (eager.run_id, eager.engine, other.engine) == (other.run_id, "lightning", "compiled")
    curves = [read_curve(folder / name / eager.run_id) for name in ("eager", "compiled")]
    assert len(curves[0]) == 20
    for rows in zip(*curves, strict=True):
        assert rows[0] == pytest.approx(rows[1], rel=1e-10, abs=1e-14)
    assert other.final == pytest.approx(eager.final, rel=1e-10)


@needs_compiler
@pytest.mark.deep
@pytest.mark.parametrize("opt", OPTIMIZERS.built_in)
def test_a_compiled_run_equals_the_eager_one(opt: str, tmp_path: Path) -> None:
    assert_equal_curves(tmp_path, opt=opt)


@needs_compiler
@pytest.mark.deep
@pytest.mark.parametrize("opt", ["sps", "muon"])
@pytest.mark.parametrize("task", ["tiny_lm", "tiny_text"])
def test_compiled_runs_cut_and_clip_batches_like_eager_ones(task: str, opt: str, tmp_path: Path) -> None:
    assert_equal_curves(tmp_path, opt=opt, task=task, **CUT)


def test_random_numbers_are_the_same_bits_from_tensors() -> None:
    for step, rows in ((0, slice(0, 7)), (2**40, slice(3, 9))):
        where = BatchRandomness(5)
        where.step, where.rows = step, rows
        expected = where.words(4, 11)
        with where.at(*where.position(torch.device("cpu"))):
            assert torch.equal(where.words(4, 11), expected)


def test_one_program_serves_all_steps_and_micro_batches() -> None:
    where, programs = BatchRandomness(5), 0

    def backend(graph: Any, inputs: Any) -> Any:
        nonlocal programs
        programs += 1
        return graph.forward

    drop = torch.compile(lambda x: x * where.keep(1, x, 0.5), backend=backend)
    x = torch.ones(4, 3)
    for step in range(3):
        for first in (0, 4):
            where.step, where.rows = step, slice(first, first + 4)
            with where.at(*where.position(x.device)):
                dropped = drop(x)
            assert torch.equal(dropped, x * where.keep(1, x, 0.5))
    assert programs == 1


def test_a_machine_that_cannot_compile_is_reported(cli: Cli, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def through(function: Callable[..., Any]) -> Callable[..., Any]:
        def broken(batch: Any) -> Any:
            raise RuntimeError("no g++\nand more")

        return broken

    monkeypatch.setattr(module, "through_compiler", through)
    words = ("fit", "--task", "synthetic", "--opt", "ngd", "--trainer.max_steps", 20, "--device", "cpu")
    answer = cli(*words, "--trainer.compile", "step")
    assert answer.code == 2
    assert "--trainer.compile step: torch.compile does not work here (no g++); leave it out\n" in answer.err
    assert cli(*words).code == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"opt": "tests.test_adapters:SecondOrder"}, "differentiates the gradients, which a compiled program cannot"),
        ({"opt": "adamw", "trainer.strategy": "ddp"}, "it was tried on one device without"),
        ({"opt": "adamw", "trainer.devices": 2}, "it was tried on one device without"),
    ],
)
def test_compilation_that_would_be_wrong_is_refused(words: dict[str, Any], why: str) -> None:
    config = resolve({"task": "tiny", "trainer.compile": "step", "device": "cpu", **words})
    with pytest.raises(UserError, match=f"--trainer.compile step: .*{why}.*; leave it out"):
        runner.check(config)


def test_a_compiled_run_is_no_lane() -> None:
    config = resolve({"task": "tiny_lm", "opt": "adamw", "trainer.compile": "step"})
    assert why_no_lanes(config) == "--trainer.compile step: it compiles the steps of one run"
