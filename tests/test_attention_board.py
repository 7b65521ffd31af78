"""Boards and charts of observed runs: attention at equal loss and along the steps."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.boards.attention import SHOWN, against, at_loss, over_heads
from bench.config.run_config import resolve
from bench.execute import Effort
from bench.execute.request import results_of
from bench.progress import SweepProgress
from bench.store.block import CURVE_FIELDS
from tasks import TASKS
from tests import tiny_lm
from tests.entered import board, rows, seeds
from tests.stored import put


def test_the_mean_over_heads_is_of_all_layers_and_of_one_measurement() -> None:
    table = {
        "step": np.array([0.0, 1.0]),
        "rank_l0_h0": np.array([1.0, 2.0]),
        "rank_l1_h0": np.array([3.0, 6.0]),
        "stable_rank_QK_l0_h0": np.array([9.0, 9.0]),
        "top_rank_l0_h0": np.array([9.0, 9.0]),
    }
    result = over_heads({"measurements": table}, "rank")
    assert result is not None
    assert [values.tolist() for values in result] == [[0, 1], [2, 4]]
    assert over_heads({"measurements": table}, "entropy") is None
    assert over_heads({}, "rank") is None


@pytest.mark.parametrize(
    ("level", "value"), [(5.0, 10.0), (4.0, 10.0), (3.0, 15.0), (2.0, 20.0), (1.5, 25.0), (0.5, None)]
)
def test_a_value_at_a_loss_lies_where_it_first_comes_down_to_it(level: float, value: float | None) -> None:
    losses = np.array([np.nan, 4.0, 2.0, 3.0, 1.0])
    assert at_loss(losses, np.array([0.0, 10.0, 20.0, 20.0, 25.0]), level) == (
        value if level != 1.5 else pytest.approx(20 + 5 * 0.75)
    )


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three seeds of two optimizers on a tiny language model."""
    store = tmp_path_factory.mktemp("observed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS.built_in, "tiny_lm", replace(tiny_lm.TINY_LM, lanes=True))
        for opt, lr in (("sgdm", 0.3), ("adam", 0.01)):
            words = {"task": "tiny_lm", **tiny_lm.SIZES, "opt": opt, "opt.lr": lr, "store": store, "device": "cpu"}
            words |= {"trainer.max_steps": 60, "trainer.observe": 2}
            configs = [resolve(words | {"seed": seed}) for seed in range(3)]
            assert results_of(configs, SweepProgress("test", "min"), Effort("lanes", width=3), plan="test")
    return store


def test_the_board_compares_attention_at_equal_loss(cli, observed: Path, tmp_path: Path) -> None:
    file = tmp_path / "board.md"
    answer = cli("leaderboard", "--board", "attention", "--store", observed, "--reference", "sgdm", "-o", file)
    assert answer.code == 0, answer.err
    text = file.read_text()
    assert "entropy minus reference's" in text
    (adam,) = [line for line in text.splitlines() if line.startswith("| adam")]
    (sgdm,) = [line for line in text.splitlines() if line.startswith("| sgdm")]
    assert adam.count("[") == sgdm.count("[") + 1  # the difference
    assert "the lowest that all compared runs reach (sgdm is the reference)" in text


def test_verdicts_are_of_entropy_on_common_seeds() -> None:
    values: dict[Any, float | None] = {seed: 1.0 + 0.01 * seed for seed in range(8)}
    base = {seed: value + 0.1 for seed, value in values.items() if value is not None}
    result = against(values, base)
    assert result["verdict"] == "sparser"
    assert result["difference"].mean == pytest.approx(-0.1)
    assert against(base, values)["verdict"] == "less sparse"
    assert against(values | {0: 9.9}, base)["verdict"] == "no difference found"
    assert against(dict.fromkeys(values), base) == {"difference": None, "verdict": None}
    assert against({seed: values[seed] for seed in range(3)}, base)["verdict"] == "too few seeds"


def add_observed(store: Path, opt: str, n: int, **known: float) -> None:
    """Write runs whose losses and observations are 1, but these quantities."""
    steps = np.arange(5.0)
    curve = {"step": steps[1:], **dict.fromkeys(CURVE_FIELDS[1:], np.ones(4))}
    values = {f"{name}_l0_h0": np.full(5, known.get(name, 1.0)) for name in SHOWN}
    for run in seeds(opt, [0.5] * n, steps=4, words={"trainer.observe": 2}):
        put(store, run, tables={"curve": {run.run_id: curve}, "measurements": {run.run_id: {"step": steps, **values}}})


def test_rows_of_the_board_are_compared_with_its_reference(store: Path) -> None:
    for opt, entropy in (("adam", 1.0), ("sgd", 0.5), ("sngd", 1.25)):
        add_observed(store, opt, 7, entropy=entropy)
    shown = rows("attention", store)
    verdicts = {opt: row["verdict"] for opt, row in shown.items()}
    assert verdicts == {"adam": "reference", "sgd": "sparser", "sngd": "less sparse"}
    assert [shown[opt]["difference"].mean for opt in ("sgd", "sngd")] == [-0.5, 0.25]


def test_a_head_that_is_0_has_no_stable_rank(store: Path) -> None:
    """It is 0 / 0."""
    add_observed(store, "adam", 3, stable_rank_QK=math.nan)
    (table,) = board("attention", store).tables
    assert table.rows[0]["end_entropy"].mean == 1
    assert table.rows[0]["end_stable_rank_QK"] == "3 of 3 runs have none"


def test_a_store_without_observations_says_how_to_make_some(cli, tmp_path: Path) -> None:
    store = tmp_path / "plain"
    cli("fit", "--task", "synthetic", "--opt", "ngd", "--trainer.max_steps", "20", "--store", store)
    why = "no run has observations; train with `--trainer.observe 4`"
    assert why in cli("leaderboard", "--board", "attention", "--store", store).out
    answer = cli("plot", "attention", "--store", store, "-o", tmp_path / "x.png")
    assert (answer.code, why in answer.err) == (2, True)
