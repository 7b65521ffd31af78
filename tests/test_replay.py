"""Replay: recorded steps give the same numbers bit for bit, and steps that cannot be recorded are not."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bench.lanes.engine
import bench.lanes.replay
from bench.lanes.engine import Lanes
from bench.lanes.optimizers import Together
from bench.lanes.replay import Replay
from bench.lanes.runs import make_lanes
from optimizers.registry import OPTIMIZERS
from tests.test_lanes import Problem, each_problem, the_tasks

__all__ = ["the_tasks"]

assert_equal = partial(torch.testing.assert_close, rtol=0, atol=0, equal_nan=True)
PURE = [name for name, spec in OPTIMIZERS.items() if spec.pure_update is not None]


@pytest.fixture(autouse=True)
def any_call_is_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.lanes.replay, "SLOW_SECONDS", float("inf"))


class Counted:
    """A pure function that counts its calls from Python."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, given: dict[str, Any], x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        self.calls += 1
        (y,) = given["y"]
        squares = (x * x.detach()).view(x.shape)
        squares.add_(y)
        (x + 1).sum()  # an unused result
        return squares.expand(2, *x.shape).sum(0), {"log": x.abs().log()}


def test_a_recording_gives_the_same_without_going_through_python() -> None:
    function = Counted()
    replay = Replay(function)
    for seed in range(5):
        x, y = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        x[0, 0] = 0  # its log is infinite
        x[0, 1] = float("nan")
        kept = x.clone(), y.clone()
        outputs = replay({"y": (y,), "a": [y]}, x)
        calls = function.calls
        assert_equal(outputs, function({"y": (y,)}, x))
        assert_equal(kept, (x, y))
        function.calls = calls
    assert function.calls == 4  # two plain calls, one recorded, one compared


def test_other_shapes_layouts_and_precisions_are_recorded_apart() -> None:
    function = Counted()
    replay = Replay(function)
    square = torch.arange(9.0).view(3, 3)
    for x in (square, square.T, square.double(), square[:2]):
        for _ in range(5):
            outputs = replay({"y": (x,)}, x)
            assert outputs[0].equal(2 * (x * x + x))
            assert outputs[0].dtype == x.dtype
    assert function.calls == 4 * 4


@pytest.mark.parametrize(
    "function",
    [lambda x: x if x.sum() > 0 else -x, lambda x: x * x.tolist()[0], lambda x: x.add_(1)],
    ids=["branches", "reads", "changes its input"],
)
def test_steps_that_cannot_be_recorded_are_not(function: Any) -> None:
    replay, values = Replay(function), (1.0, 2.0, -3.0, 4.0, -5.0, 0.0)
    for value in values:
        x, y = torch.tensor([value]), torch.tensor([value])
        assert replay(x).equal(function(y))
        assert x.equal(y)


def test_steps_that_differ_from_their_recording_are_not_replayed() -> None:
    calls = []

    def function(x: Tensor) -> Tensor:
        calls.append(x)
        return x * len(calls)

    replay = Replay(function)
    assert [replay(torch.ones(1)).item() for _ in range(5)] == [1, 2, 5, 6, 7]


# -- lanes ------------------------------------------------------------------------------------------------------------


def replays(lanes: Lanes) -> list[Replay]:
    steps = getattr(lanes.stepper, "_updates", {}).values()
    return [*(lanes._replays or {}).values(), *(step for step in steps if isinstance(step, Replay))]


def recorded(replay: Replay) -> bool:
    """Whether a recording exists."""
    return any(program.run not in (None, program.plain) for program in replay._programs.values())


@pytest.mark.matrix(keep=4)
@pytest.mark.parametrize("opt", PURE)
@each_problem
def test_replayed_steps_are_the_steps(
    problem: Problem, opt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: dict[str, Any] = {"trainer__schedule": "cosine", "trainer__gradient_clip_val": 0.5}
    grid = problem.block(tmp_path, opt, problem.factors, **words)
    plain = make_lanes(grid)
    monkeypatch.setattr(bench.lanes.engine, "REPLAYED_FROM", 1)
    monkeypatch.setattr("bench.lanes.replay.SLOW_SECONDS", 10)
    lanes = make_lanes(grid)
    for _ in range(8):
        assert lanes.step().equal(plain.step())
    assert all(w.equal(plain.weights[name]) for name, w in lanes.weights.items())
    assert replays(plain) == []
    assert lanes._replays
    assert isinstance(lanes.stepper, Together)
    assert len(replays(lanes)) == len(lanes._replays) + len(lanes.stepper._updates)
    assert all(map(recorded, replays(lanes)))
