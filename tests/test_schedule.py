"""Learning rate schedules: their formulas, which methods follow them, and what they do not change."""

import numpy as np
import pytest
import torch

from bench.boards.collect import collect
from bench.config.run_config import resolve
from bench.errors import UserError
from bench.run_summary import result_lines
from bench.store.record import RunResult
from bench.store.stores import Stores
from bench.train.runner import run
from optimizers import OPTIMIZERS
from tasks.core.schedule import Schedule
from tests.entered import keep, seeds
from tests.stored import Store

pytestmark = pytest.mark.numeric

STEPS = 40
SMALL = {
    "task": "synthetic",
    "task.n": "8",
    "task.T": "4",
    "task.d": "6",
    "device": "cpu",
    "trainer.max_steps": str(STEPS),
}


def train(store, opt: str, **trainer: object) -> tuple[RunResult, np.ndarray]:
    """A run, and the step sizes that it applied."""
    words = {f"trainer.{name}": str(value) for name, value in trainer.items()}
    config = resolve({**SMALL, "opt": opt, **words}, fallback={"store": store})
    result = run(config, progress=False)
    return result, Store(store).tables(result.run_id)["curve"]["applied_step"]


@pytest.mark.parametrize(
    ("n", "warmup", "floor", "share"),
    [(40, 0.0, 0.0, 0.2), (40, 0.25, 0.1, 0.75), (7, 0.5, 1.0, 0.5), (1, 0.9, 0.0, 0.1)],
)
def test_factors_are_those_of_the_formulas(n: int, warmup: float, floor: float, share: float) -> None:
    d = min(round(share * n), n - round(warmup * n))
    w, t = round(warmup * n), np.arange(n, dtype=np.float64)
    rising = (t + 1) / max(w, 1)
    decays = {
        "constant": np.ones(n),
        "cosine": floor + (1 - floor) * np.cos(np.pi / 2 * (t - w) / max(n - w, 1)) ** 2,  # the half-angle form
        "linear": np.interp(t, [w, max(n, w + 1)], [1, floor]),
        "wsd": np.interp(t, [n - d, n], [1, floor]) if d else np.ones(n),
        "inverse_sqrt": np.maximum(floor, (max(w, 1) / (t + 1)) ** 0.5),
    }
    for kind, decay in decays.items():
        expected = np.where(t < w, rising, decay)
        factors = [Schedule(kind, n, warmup, floor, share).factor(step) for step in range(n)]
        # A cosine near -1 has a rounding error of 1e-16, however small the resulting factor.
        np.testing.assert_allclose(factors, expected, rtol=1e-14, atol=1e-15)


def test_the_share_of_the_decay_belongs_to_wsd_alone() -> None:
    words = {**SMALL, "opt": "sgd", "trainer.warmup": "0.5"}
    for idle in ({"trainer.decay": "0.3"}, {"trainer.floor": "0.3"}):
        with pytest.raises(UserError, match=r"0\.3: the schedule is constant and has no"):
            resolve(words | idle)
    stable = resolve(words | {"trainer.schedule": "wsd"})
    assert stable.run_id != resolve(words | {"trainer.schedule": "wsd", "trainer.decay": "0.3"}).run_id
    with pytest.raises(UserError, match=r"--trainer\.decay 0\.6: with a warm-up over 0\.5 .* at most 0\.5"):
        resolve(words | {"trainer.schedule": "wsd", "trainer.decay": "0.6"})


def test_every_group_keeps_its_initial_learning_rate() -> None:
    def optimizer() -> torch.optim.Optimizer:
        groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (1.0, 0.5)]
        return torch.optim.SGD(groups)

    schedule, first, second = Schedule("inverse_sqrt", 100, 0.1), optimizer(), optimizer()
    schedule.apply(first, 30)
    second.load_state_dict(first.state_dict())  # as in a resumed run: its lr is not the initial one
    schedule.apply(second, 39)
    assert [group["lr"] for group in second.param_groups] == [0.5, 0.25]


@pytest.mark.parametrize("opt", ["adamw", "ngd", "torch.optim:NAdam"])
def test_a_run_follows_its_schedule(opt: str, store) -> None:
    _, plain = train(store, opt, batch_size="full")
    result, steps = train(store, opt, batch_size="full", schedule="cosine", warmup=0.25, floor=0.1)
    assert not result.unscheduled
    lr = resolve({**SMALL, "opt": opt}).opt_options["lr"]
    schedule = Schedule("cosine", STEPS, 0.25, 0.1)
    if opt == "ngd":  # which divides by the gradient's norm
        steps = steps * Store(store).tables(result.run_id)["curve"]["grad_norm"]
    else:
        assert set(plain) == {lr}
    np.testing.assert_allclose(steps, [lr * schedule.factor(step) for step in range(STEPS)], rtol=1e-9)


@pytest.mark.parametrize("opt", ["ps", "sps"])
def test_a_method_with_its_own_step_is_not_scheduled(opt: str, store) -> None:
    plain, steps = train(store, opt, batch_size="full")
    result, same = train(store, opt, batch_size="full", schedule="cosine")
    assert (result.final, steps.tolist()) == (plain.final, same.tolist())
    assert (plain.unscheduled, result.unscheduled) == (False, True)
    notes = ["no schedule: this optimizer" in "\n".join(result_lines(run_, store)) for run_ in (plain, result)]
    assert notes == [False, True]


@pytest.mark.parametrize(
    ("opt", "unscheduled", "averages"),
    [("torch.optim:Adagrad", False, False), ("tests.test_schedule:Free", True, True),
     ("tests.test_schedule:Without", True, False)],
)  # fmt: skip
def test_traits_of_plug_ins_follow_from_their_class(opt: str, unscheduled: bool, averages: bool) -> None:
    traits = OPTIMIZERS[opt].traits
    assert (traits.unscheduled, traits.averages) == (unscheduled, averages)


class Free(torch.optim.SGD):
    """Swaps weights for evaluation, as schedule-free methods do."""

    def eval(self) -> None:
        """Weights for evaluation."""

    def train(self) -> None:
        """Weights for training."""


class Without(torch.optim.Optimizer):
    """Has no learning rate."""

    def __init__(self, params) -> None:
        super().__init__(params, {})

    def step(self, closure=None):
        """Do nothing."""
        return closure() if closure else None


def test_a_board_says_who_was_left_out_of_the_schedule(store) -> None:
    words = {"trainer.schedule": "cosine"}
    keep(store, *seeds("adam", [0.5, 0.6], words=words), *seeds("sps", [0.4, 0.5], words=words, unscheduled=True))
    flagged = {entry.opt: "no schedule" in entry.flags for entry in collect(Stores([store])).entries}
    assert flagged == {"adam": False, "sps": True}
