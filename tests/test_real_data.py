"""Optimizers learn on a slice of the real files; the full results are in docs/results.md."""

import os
from pathlib import Path

import pytest

from bench.config import resolve
from bench.runner import run
from tests.stored import read_curve

pytestmark = pytest.mark.numeric


@pytest.mark.deep
@pytest.mark.parametrize(
    ("opt", "options"),
    [
        ("sngd", {"opt.lr": 0.3, "opt.max_step": 0.3}),
        ("sps", {"opt.c": 2, "opt.max_step": 0.5}),
    ],
)
def test_the_loss_falls_on_the_plateau_at_the_start_of_real_mnist(
    opt: str, options: dict[str, float], real_data: Path, store: Path
) -> None:
    words = {
        "task": "mnist",
        "opt": opt,
        "data": real_data,
        "store": store,
        "task.n_train": 3000,
        "trainer.max_steps": 60,
    }
    result = run(resolve(words | options), progress=False)
    losses = [row[1] for row in read_curve(store / result.run_id)]
    assert result.status == "completed"
    assert sum(losses[-10:]) < 0.98 * sum(losses[:10])
    assert result.part == "3,000 of 55,000 training images"


@pytest.mark.deep
@pytest.mark.parametrize(("task", "lr", "least"), [("mnist", 3e-3, 0.35), ("cifar10", 2e-3, 0.2)])
def test_adam_learns_a_slice_of_the_real_images(
    task: str, lr: float, least: float, real_data: Path, store: Path
) -> None:
    words = {"task": task, "opt": "adam", "opt.lr": lr, "data": real_data, "store": store, "task.n_train": 4000}
    result = run(resolve(words | {"trainer.max_steps": 90, "trainer.val_every": 90}), progress=False)
    assert result.status == "completed"
    assert result.final is not None
    assert result.final > least


@pytest.mark.deep
def test_the_tiny_language_model_learns_real_text(store: Path) -> None:
    folder = Path(os.environ.get("BENCH_DATA", "data"))
    if not (folder / "tiny_shakespeare" / "input.txt").is_file():
        pytest.skip(
            f"no real data: tiny_shakespeare/input.txt is not in {folder.resolve()}; name its folder with BENCH_DATA"
        )
    words = {"task": "lm", "opt": "adamw", "opt.lr": 3e-3, "data": folder, "store": store, "trainer.max_steps": 30}
    result = run(resolve(words), progress=False)
    assert result.status == "completed"
    assert result.part is None
    assert result.facts["validation"] == "c54f3753a4e6e3c3"  # the standard split: the last tenth
    assert (result.facts["vocabulary"], result.facts["tokens"]) == (65, {"train": 1_003_854, "val": 111_540})
    assert result.final is not None
    assert result.final < 2.8  # log 65 is 4.17
