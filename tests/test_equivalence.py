"""However a batch is split, clipped, sharded or rounded, every optimizer takes the steps of a plain PyTorch loop."""

import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from optimizers import OPTIMIZERS
from tests import tiny
from tests.depth import selected
from tests.equivalence import (
    CASES,
    CLIP,
    ODD_CASES,
    STEPS,
    STRATEGIES,
    TASKS,
    Case,
    Trained,
    build,
    by_plain_loop,
    by_suite,
    can_clip,
    config_of,
    distance,
    scale_of_gradients,
    worker_cases,
)

pytestmark = pytest.mark.numeric

each_task = pytest.mark.parametrize("task", TASKS)
each_case = pytest.mark.parametrize("case", [*CASES, *ODD_CASES], ids=lambda case: case.name)


@lru_cache
def reference(case: Case) -> Trained:
    """Trained by the plain loop, which has no micro-batches."""
    return by_plain_loop(case)


def plain(case: Case) -> Trained:
    return reference(case._replace(micro_batches=1))


@pytest.fixture(scope="module")
def ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, "subprocess.CompletedProcess[str]"]:
    """Two ranks trained the selected cases with each strategy: the folder of their results, and how they ended."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "tests.equivalence",
        str(folder),
        *sorted(case.name for case in selected(request, "case")),
    ]
    return folder, subprocess.run(command, cwd=tiny.ROOT, capture_output=True, text=True, timeout=1200, check=False)


@pytest.fixture(scope="module")
def by_rank(ranks) -> Callable[[str], list[dict[str, dict]]]:
    folder, done = ranks
    files = {strategy: [folder / f"{strategy}-{rank}.pt" for rank in (0, 1)] for strategy in STRATEGIES}

    def load(strategy: str) -> list[dict[str, dict]]:
        assert all(file.is_file() for file in files[strategy]), done.stderr[-3000:]
        return [torch.load(file, weights_only=True) for file in files[strategy]]

    return load


@pytest.fixture(scope="module")
def ddp(by_rank: Callable[[str], list[dict[str, dict]]]) -> list[dict[str, dict]]:
    return by_rank("ddp")


@pytest.fixture(scope="module")
def fsdp(by_rank: Callable[[str], list[dict[str, dict]]]) -> list[dict[str, dict]]:
    return by_rank("fsdp")


@pytest.mark.ci
@pytest.mark.deep
def test_the_ranks_end_well(ranks) -> None:
    assert ranks[1].returncode == 0, ranks[1].stderr[-3000:]


@pytest.mark.matrix(keep=6)
@each_case
def test_one_process_equals_the_plain_loop(case: Case) -> None:
    trained, expected = by_suite(config_of(case)), plain(case)
    assert distance(trained.weights, expected.weights) < 1e-9
    assert [row[:2] for row in trained.curve] == [pytest.approx(row, abs=1e-9) for row in expected.curve]


@pytest.mark.matrix(keep=1)
@each_task
def test_the_matrix_moves_the_weights_and_clipping_matters(task: str) -> None:
    for opt in OPTIMIZERS:
        case = Case(opt, task=task)
        start = {f"model.{k}": p for k, p in build(config_of(case))[0].model.named_parameters()}
        assert distance(plain(case).weights, start) > 1e-3, opt
        norms = [norm for _, norm in plain(case._replace(clip=can_clip(opt))).curve]
        assert (min if task == "tiny" else max)(norms) > CLIP, opt  # on text NGD gets close to a stationary point


@pytest.mark.matrix(keep=0, ci=12)
@each_case
def test_two_ddp_processes_equal_the_plain_loop(case: Case, ddp: list[dict[str, dict]]) -> None:
    (first, second), expected = (rank[case.name] for rank in ddp), plain(case)
    assert all(torch.equal(weight, second["weights"][name]) for name, weight in first["weights"].items())
    assert first["curve"] == second["curve"]
    assert distance(first["weights"], expected.weights) < 1e-9
    assert [row[:2] for row in first["curve"]] == [pytest.approx(row, abs=1e-9) for row in expected.curve]


@pytest.mark.matrix(keep=0, ci=12)
@pytest.mark.parametrize("case", worker_cases("fsdp"), ids=lambda case: case.name)
def test_two_fsdp2_processes_equal_the_plain_loop(case: Case, fsdp: list[dict[str, dict]]) -> None:
    for rank in fsdp:
        assert distance(rank[case.name]["weights"], plain(case).weights) < 1e-6


@pytest.mark.matrix(keep=6)
@each_task
@pytest.mark.parametrize("opt", OPTIMIZERS)
def test_fp16_with_a_gradient_scaler_agrees_to_its_precision(opt: str, task: str) -> None:
    case = Case(opt, micro_batches=4, clip=can_clip(opt), task=task)
    steps = 10
    config = config_of(case, precision="16-mixed", **{"trainer.max_steps": steps})
    # A scale at which nothing overflows, so that no step is skipped.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    before: list[dict[str, torch.Tensor]] = []
    trained = by_suite(config, scaler=scaler, before=before)
    # Each step starts from the same weights: NGD's zigzag and Polyak's long steps amplify rounding a thousandfold in 20
    # steps. A method with separate evaluation weights keeps the others in its state, which nobody replaces.
    taken = [] if hasattr(OPTIMIZERS[opt].cls, "eval") else before
    plain = by_plain_loop(case, "16-mixed", steps, before=taken)
    points = [torch.cat([w.double().flatten() for w in each.values()]) for each in (*before, trained.weights)]
    moves = [after - point for point, after in pairwise(points)]
    assert len(moves) == len(trained.curve) == steps
    # The error of each sample's gradient is its size times some tens of rounding errors: 4 u, and 1.5 u were observed.
    # This does not shrink where the sum is close to 0, so no relative bound holds there. A loss, gradient or step that
    # is still scaled would be off by a factor of 1000.
    unit, scale = 2.0**-11, scale_of_gradients(case, "16-mixed")
    # Five iterations amplify errors of small singular values up to 3.4445^5 times.
    magnified, shares = 485 if OPTIMIZERS[opt].traits.by_piece else 1, []
    for (loss, norm, *_), (true_loss, true_norm), move, true_move in zip(
        trained.curve, plain.curve, moves, plain.moves, strict=True
    ):
        error = 4 * unit * (scale + true_norm)
        assert loss == pytest.approx(true_loss, rel=4 * unit)
        assert norm == pytest.approx(true_norm, abs=error)
        # Polyak's clipped step has the gradient as a factor three times, the others less often.
        shares.append(3 * error / true_norm)
        assert (move - true_move).norm() <= min(1, magnified * shares[-1]) * true_move.norm()
    assert sorted(shares)[steps // 2] < 0.3  # near a stationary point, as with NGD, the direction is lost


@pytest.mark.parametrize(("opt", "more"), [("sps", {}), ("adam", {"opt.fused": True})])
def test_a_gradient_that_overflows_in_fp16_skips_the_step_and_lowers_the_scale(opt: str, more: dict[str, Any]) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    trained = by_suite(config_of(Case(opt), precision="16-mixed", **more), scaler=scaler)
    overflowed = [row for row in trained.curve if row[1] == float("inf") or row[1] != row[1]]
    assert 0 < len(overflowed) < STEPS
    assert all(row[2:] == (0.0, 0.0) for row in overflowed)
    assert scaler.get_scale() < 2.0**24
    assert all(torch.isfinite(w).all() for w in trained.weights.values())


@pytest.mark.matrix(keep=6)
@each_task
@pytest.mark.parametrize("micro_batches", [2, 3, 16])
def test_micro_batches_change_nothing_with_dropout_and_augmentation(micro_batches: int, task: str) -> None:
    options = {"dropout": 0.3} | ({"task.flip": True, "task.crop": 2} if task == "tiny" else {})
    whole = by_suite(config_of(Case("sngd", task=task), **options))
    parts = by_suite(config_of(Case("sngd", micro_batches, task=task), **options))
    without = by_suite(config_of(Case("sngd", task=task)))
    assert distance(whole.weights, parts.weights) < 1e-9
    assert distance(whole.weights, without.weights) > 1e-3
