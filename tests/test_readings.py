"""Other interpretations of paper A's methods: against their formulas in float64, as class and as pure update."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bench.train.runner import run
from optimizers import OPTIMIZERS
from optimizers.normalized import SeparateNGD, separate
from optimizers.polyak import LengthSPS, length_capped
from tests.optimizer_cases import START, flat, loss_and_gradient


def stepped(make: Any, steps: int) -> list[np.ndarray]:
    """The weights after steps of a class on the small network of the cases, in float64."""
    params = [nn.Parameter(torch.tensor(x, dtype=torch.float64)) for x in START]
    optimizer = make(params)
    for _ in range(steps):
        loss, gradient = loss_and_gradient(flat([p.detach().numpy() for p in params]))
        for p, g in zip(params, _parts(gradient), strict=True):
            p.grad = torch.tensor(g)
        optimizer.step(lambda value=loss: torch.tensor(value, dtype=torch.float64))
    return [p.detach().numpy() for p in params]


def purely(update: Any, hparams: dict[str, Any], steps: int) -> list[np.ndarray]:
    """The same with a pure update."""
    params = [torch.tensor(x, dtype=torch.float64) for x in START]
    state: dict[str, Any] = {}
    hparams = hparams | {"lr": torch.tensor(hparams["lr"], dtype=torch.float64)}
    for _ in range(steps):
        loss, gradient = loss_and_gradient(flat([p.numpy() for p in params]))
        grads = [torch.tensor(g) for g in _parts(gradient)]
        params, state = update(grads, state, params, torch.tensor(loss, dtype=torch.float64), hparams)
    return [p.numpy() for p in params]


def _parts(vector: np.ndarray) -> list[np.ndarray]:
    ends = np.cumsum([np.size(x) for x in START])[:-1]
    return [part.reshape(np.shape(x)) for part, x in zip(np.split(vector, ends), START, strict=True)]


def by_hand(rule: Any, steps: int) -> list[np.ndarray]:
    weights = [np.asarray(x, dtype=np.float64) for x in START]
    for t in range(1, steps + 1):
        loss, gradient = loss_and_gradient(flat(weights))
        weights = rule(weights, _parts(gradient), loss, t)
    return weights


@pytest.mark.parametrize("power", [0.0, 2 / 3, 1.0])
def test_each_parameter_moves_by_the_length_of_its_step(power: float) -> None:
    def rule(weights: Any, grads: Any, loss: float, t: int) -> Any:
        return [w - 0.3 * t**-power * g / np.linalg.norm(g) for w, g in zip(weights, grads, strict=True)]

    expected = by_hand(rule, 7)
    for found in (
        stepped(lambda p: SeparateNGD(p, lr=0.3, power=power), 7),
        purely(separate, {"lr": 0.3, "power": power}, 7),
    ):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_powers_of_groups_and_a_resumed_step_count() -> None:
    def made() -> tuple[list[nn.Parameter], SeparateNGD]:
        params = [nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2)]
        return params, SeparateNGD([{"params": params[:1], "power": 1.0}, {"params": params[1:]}], lr=1.0, power=0.5)

    params, optimizer = made()
    resumed_params, resumed = made()
    for t in range(1, 5):
        for p in params:
            p.grad = torch.tensor([3.0, 4.0], dtype=torch.float64)
        before = [p.detach().clone() for p in params]
        optimizer.step()
        lengths = [float((p.detach() - b).norm()) for p, b in zip(params, before, strict=True)]
        assert lengths == pytest.approx([1 / t, t**-0.5], rel=1e-12)
    resumed.load_state_dict(optimizer.state_dict())
    assert [group["steps"] for group in resumed.param_groups] == [4, 4]
    for own in (params, resumed_params):
        for p in own:
            p.grad = torch.tensor([3.0, 4.0], dtype=torch.float64)
    with torch.no_grad():
        for p, q in zip(params, resumed_params, strict=True):
            q.copy_(p)
    optimizer.step()
    resumed.step()
    for p, q in zip(params, resumed_params, strict=True):
        assert torch.equal(p, q)


def test_a_parameter_without_a_gradient_stays() -> None:
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.zeros(3)
    SeparateNGD([p], lr=1.0).step()
    assert torch.equal(p, torch.ones(3))


@pytest.mark.parametrize("cap", [0.05, 0.3, math.inf])
def test_the_cap_is_one_on_the_length_of_the_step(cap: float) -> None:
    def rule(weights: Any, grads: Any, loss: float, t: int) -> Any:
        norm = np.linalg.norm(flat(grads))
        size = 0.5 * min((loss - 0.1) / (2.0 * norm**2), cap / norm)
        return [w - size * g for w, g in zip(weights, grads, strict=True)]

    expected = by_hand(rule, 7)
    hparams = {"lr": 0.5, "c": 2.0, "max_length": cap, "f_star": 0.1}
    for found in (stepped(lambda p: LengthSPS(p, **hparams), 7), purely(length_capped, hparams, 7)):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("cls", "name", "value", "legal"),
    [
        (SeparateNGD, "lr", -1.0, "[0, inf)"),
        (SeparateNGD, "power", math.nan, "[0, inf)"),
        (LengthSPS, "lr", math.inf, "[0, inf)"),
        (LengthSPS, "c", 0.0, "(0, inf)"),
        (LengthSPS, "max_length", 0.0, "(0, inf]"),
        (LengthSPS, "f_star", math.inf, "(-inf, inf)"),
    ],
)
def test_values_out_of_range_are_refused(cls: Any, name: str, value: float, legal: str) -> None:
    with pytest.raises(ValueError, match=r"out of range") as error:
        cls([nn.Parameter(torch.ones(1))], **{name: value})
    assert str(error.value) == f"{name}={value} is out of range: it must be in {legal}"


def test_they_are_named_by_their_module_and_no_part_of_the_list(tmp_path: Any) -> None:
    from bench.config.run_config import resolve

    assert not {"separate_ngd", "length_sps"} & set(OPTIMIZERS)
    assert OPTIMIZERS["optimizers.readings:LENGTH_SPS"].package is None  # its version counts, not the suite's files
    words = {
        "task": "synthetic_joint",
        "opt": "optimizers.readings:SEPARATE_NGD",
        "opt.lr": 0.5,
        "opt.head.power": 0.5,
        "opt.matrix.power": 1.0,
        "trainer.max_steps": 3,
        "store": str(tmp_path),
        "device": "cpu",
    }
    result = run(resolve(words))
    assert (result.status, result.steps) == ("completed", 3)
