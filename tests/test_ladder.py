"""Ladders: step ratios against closed forms; the shipped ones from their stored runs; a new one."""

import itertools
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import bench
from bench.errors import UserError
from bench.results.step_ratio import median_ends, seed_ratios, smoothing, step_ratio
from bench.train.runner import build
from bench.tuning.suite import load

ROOT = Path(__file__).parents[1]
STEPS = np.arange(10.0, 201.0, 10.0)


def falling(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    return 2 + 3 * steps**-0.5


@pytest.mark.parametrize(("smooth", "within"), [(False, 2e-3), (True, 3e-3)])
@pytest.mark.parametrize("ratio", [0.3, 0.71, 1.0, 1.4, 3.0])
def test_the_ratio_of_shifted_curves_is_their_shift(ratio: float, smooth: bool, within: float) -> None:
    curves = np.tile(falling(STEPS / ratio), (2, 1)), np.tile(falling(STEPS), (2, 1))
    assert math.exp(step_ratio(STEPS, *curves, smooth=smooth).mean) == pytest.approx(ratio, rel=within)


def test_it_is_the_hodges_lehmann_estimate_of_the_ratios_of_seeds() -> None:
    """If the curves of a seed differ by a constant, its ratio has a closed form."""
    shifts = np.array([0.02, -0.05, 0.01, 0.04, -0.01])
    method, reference = falling(STEPS / 0.6) + shifts[:, None], np.tile(falling(STEPS), (5, 1))
    found, end = step_ratio(STEPS, method, reference, smooth=False), falling(STEPS[-1:])
    below = 0.6 * (3 / (end - shifts - 2)) ** 2 / STEPS[-1]
    above = STEPS[-1] / (3 / (falling(STEPS[-1:] / 0.6) + shifts - 2)) ** 2
    expected = np.sort(np.log(np.where(below < 1, below, above)))
    means = [(x + y) / 2 for x, y in itertools.combinations_with_replacement(expected, 2)]
    assert found.mean == pytest.approx(np.median(means), abs=2e-3)
    assert found.ends == pytest.approx((expected[0], expected[-1]), abs=2e-3)
    turned = step_ratio(STEPS, reference, method, smooth=False)
    assert [turned.mean, turned.low, turned.high] == pytest.approx([-found.mean, -found.high, -found.low], abs=1e-9)


@pytest.mark.parametrize(("lost", "bound"), [(1, ""), (2, ""), (3, ">=")])
def test_diverged_seeds_leave_a_median_or_a_bound(lost: int, bound: str) -> None:
    method, reference = (falling(STEPS / ratio) + 0.01 * np.arange(5)[:, None] for ratio in (1.6, 1.0))
    alone = np.sort(seed_ratios(STEPS, method, reference))
    method[5 - lost :] = math.inf
    found = step_ratio(STEPS, method, reference)
    assert (found.bound, found.high) == (bound, math.inf)
    if lost == 2:
        assert found.mean == pytest.approx(alone[2])
    assert found.mean == pytest.approx(math.log(20)) if bound else found.mean < alone[-1] + 0.1


@pytest.mark.parametrize(("one", "other"), [(0.3, 0.5), (0.5, 0.3), (0.4, 0.4)])
def test_two_methods_at_the_floor_are_compared_by_their_arrival(one: float, other: float) -> None:
    steps = np.arange(1.0, 101.0)
    curves = (np.maximum(-16.0, -16 * steps / (100 * share))[None] for share in (one, other))
    assert math.exp(seed_ratios(steps, *curves, floor=-16 + 1e-9)[0]) == pytest.approx(one / other)


def test_smoothing_keeps_straight_lines_and_the_interval_of_a_median_covers_it() -> None:
    places = np.log(STEPS / STEPS[-1])
    assert smoothing(places) @ (3 - 2 * places) == pytest.approx(3 - 2 * places)
    samples = np.random.default_rng(0).exponential(size=(4000, 11)) - math.log(2)  # of median 0
    ends = np.array([median_ends(sample) for sample in samples])
    assert np.mean((ends[:, 0] <= 0) & (ends[:, 1] >= 0)) == pytest.approx(0.95, abs=0.012)


@pytest.mark.parametrize("task", ["cifar10", "lm"])
def test_a_shipped_ladder_is_reproduced_from_its_runs(task: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "results/ladder" / task / "runs", tmp_path / "store")
    answer = bench.suite(f"ladder-{task}", store=tmp_path / "store", out=tmp_path / "out", progress=False)
    page = (ROOT / "results/ladder" / task / "ladder.md").read_text()
    assert (tmp_path / "out/ladder.md").read_text() == page
    assert len([*(tmp_path / "store").glob("block-*")]) == 1  # nothing was trained
    assert answer.table["opt"].tolist()[0] == "muon"


@pytest.mark.parametrize("task", ["cifar10", "lm"])
def test_the_size_of_a_rung_is_that_of_its_model(task: str, real_data: Path, tmp_path: Path) -> None:
    for suite in load(f"ladder-{task}"):
        places = {"data": real_data, "store": tmp_path}
        module, _ = build(suite.specs(places)[0].typical(places))
        assert sum(p.numel() for p in module.parameters()) == suite.rungs[0].size


def test_a_ladder_trains_its_suite_at_each_size(tmp_path: Path) -> None:
    path = tmp_path / "ladder.yaml"
    path.write_text(
        "title: tiny\ntasks: [synthetic]\noptimizers: {gd: {opt.lr: '0.1:1'}, ngd: {opt.lr: '0.1:1'}}\naxis: steps\n"
        "settings: {trainer.val_every: 2}\ntune: {trials: 2, seeds: 1, sampler: qmc}\nseeds: 2\n"
        "rungs: [{size: 10, settings: {trainer.max_steps: 10}}, {size: 20, settings: {trainer.max_steps: 20},"
        " optimizers: {ngd: {opt.lr: '0.2:0.4'}}}]\n"
    )
    with pytest.raises(UserError, match="cannot write to"):
        bench.suite(str(path), store=tmp_path / "store", out=path, workers=1, progress=False)
    assert not (tmp_path / "store").exists()  # refused before training
    answer = bench.suite(str(path), store=tmp_path / "store", out=tmp_path / "out", workers=1, progress=False)
    assert list(answer.table.columns) == ["table", "opt", "10", "20"]
    assert {run.steps for run in bench.load(tmp_path / "store")} == {10, 20}
    assert (tmp_path / "out/ladder.png").stat().st_size > 10_000
    path.write_text(path.read_text().replace("{ngd: {opt.lr: '0.2:0.4'}}}", "{sgd: {}}}"))
    with pytest.raises(UserError, match="unknown optimizer of the ladder 'sgd'"):
        bench.suite(str(path), store=tmp_path / "store")
    path.write_text(path.read_text().replace("[synthetic]", "[synthetic, mha_dm1]").replace("{sgd: {}}}", "{}}"))
    with pytest.raises(UserError, match="a ladder takes one task"):
        bench.suite(str(path), store=tmp_path / "store")
