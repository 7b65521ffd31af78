"""The pure updates agree with the classes, for one run and for many stacked ones."""

import inspect
import textwrap
from typing import Any

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_structure

from optimizers import OPTIMIZERS, pure
from tests.optimizer_cases import CASES, MORE_ARGUMENTS, VALUES, start, torch_loss

pytestmark = pytest.mark.numeric

# They choose a kernel or its precision but do not change the method.
KERNELS = {"foreach", "fused", "capturable", "differentiable", "bf16"}

Arguments = dict[str, Any]
ALL = [(case.name, case.arguments) for case in CASES] + MORE_ARGUMENTS
every_case = pytest.mark.parametrize(
    ("name", "arguments"), ALL, ids=["-".join([name, *(f"{k}={v}" for k, v in a.items())]) for name, a in ALL]
)
every_name = pytest.mark.parametrize("name", OPTIMIZERS)
properties = settings(max_examples=80, deadline=None, derandomize=True, database=None)


def signature(name: str) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(OPTIMIZERS[name].cls).parameters
    return {key: parameter for key, parameter in parameters.items() if key != "params"}


def all_of(name: str, arguments: Arguments) -> Arguments:
    """Every hyperparameter, with the constructor's defaults; `lr` is a tensor."""
    given_ = {key: parameter.default for key, parameter in signature(name).items()} | arguments
    return given_ | {"lr": torch.as_tensor(given_["lr"], dtype=torch.float64)}


def loss_and_gradient(params: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    params = [p.detach().requires_grad_() for p in params]
    loss = torch_loss(params)  # type: ignore[arg-type]
    return loss.detach(), list(torch.autograd.grad(loss, params))


def begin(name: str, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [p.detach() for p in start(dtype, name)]


def walk(name: str, hparams: Arguments, steps: int) -> tuple[list[Tensor], dict[str, Any]]:
    """Parameters and state of one run after this many pure steps."""
    params, state = begin(name), {}
    for _ in range(steps):
        loss, grads = loss_and_gradient(params)
        params, state = OPTIMIZERS[name].pure_update(grads, state, params, loss, hparams)
    return params, state


def close(actual: Any, expected: Any, rtol: float = 1e-12) -> None:
    # A weight close to 0 has the rounding errors of its earlier values: 1e-16 in each of up to 30 steps.
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol / 100, equal_nan=False)


@every_name
def test_every_hyperparameter_has_cases_and_values(name: str) -> None:
    target = OPTIMIZERS[name].target
    tried = set().union(*(arguments for other, arguments in ALL if OPTIMIZERS[other].target == target))
    assert tried == signature(name).keys() - KERNELS
    assert OPTIMIZERS[name].update_keywords == OPTIMIZERS[name].step_keywords
    assert VALUES[name].keys() == {key for key, p in signature(name).items() if "float" in str(p.annotation)}


def assert_as_the_class(name: str, arguments: Arguments, hparams: Arguments) -> None:
    """The class and its pure form agree at each of four steps, with the norms of clipped gradients."""
    spec = OPTIMIZERS[name]
    weights, params, state = start(name=name), begin(name), {}
    opt = spec.cls(weights, **arguments)
    for _ in range(4):
        loss, grads = loss_and_gradient(list(weights))
        for p, g in zip(weights, grads, strict=True):
            p.grad = g
        opt.step(lambda loss=loss: loss, **dict.fromkeys(spec.step_keywords, 2 * pure.norm(grads)))
        loss, grads = loss_and_gradient(params)
        norms = dict.fromkeys(spec.update_keywords, 2 * pure.norm(grads))
        params, state = spec.pure_update(grads, state, params, loss, hparams, **norms)
        close(params, [p.detach() for p in weights])
        close(state.get("step_sizes"), getattr(opt, "step_sizes", None))


@every_case
def test_a_pure_update_takes_the_steps_of_the_class(name: str, arguments: Arguments) -> None:
    assert_as_the_class(name, arguments, all_of(name, arguments))


@pytest.mark.matrix(keep=4)
@properties
@given(data=st.data())
@every_name
def test_any_hyperparameters_give_the_classs_steps(name: str, data: Any) -> None:
    arguments = {key: data.draw(st.sampled_from(values), key) for key, values in VALUES[name].items()}
    booleans = [key for key, p in signature(name).items() if p.default in (True, False) and str(p.annotation) == "bool"]
    arguments |= {key: data.draw(st.booleans(), key) for key in booleans if key not in KERNELS}
    try:
        OPTIMIZERS[name].cls(start(name=name), **arguments)
    except ValueError:
        reject()
    assert_as_the_class(name, arguments, all_of(name, arguments))
    tensors = {key: tree_map(lambda v: torch.tensor(v, dtype=torch.float64), arguments[key]) for key in VALUES[name]}
    assert_as_the_class(name, arguments, all_of(name, arguments | tensors))


@every_case
def test_an_update_neither_changes_nor_returns_its_input(name: str, arguments: Arguments) -> None:
    params, state = walk(name, all_of(name, arguments), 2)
    for state_before in ({}, state):
        loss, grads = loss_and_gradient(params)
        given_ = (grads, state_before, params, loss, all_of(name, arguments))
        before = tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, given_)
        new = OPTIMIZERS[name].pure_update(*given_)
        if state_before:
            assert tree_structure(new[1]) == tree_structure(state_before)
        leaves, old = tree_flatten(given_)
        assert old == tree_structure(before)
        for a, b in zip(leaves, tree_leaves(before), strict=True):
            assert torch.equal(a, b) if isinstance(a, Tensor) else a == b
        storages = [t.untyped_storage().data_ptr() for t in tree_leaves(new)]
        assert not {t.untyped_storage().data_ptr() for t in leaves if isinstance(t, Tensor)} & set(storages)
        assert not {t.untyped_storage().data_ptr() for t in new[0]} & set(storages[len(new[0]) :])


@pytest.mark.matrix
@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-40, 1e-45, 1e-170, 1e-310, 5e-324])
def test_zero_and_tiny_gradients_give_no_nan(name: str, arguments: Arguments, dtype: torch.dtype, size: float) -> None:
    for loss in (0.5, 0.0):
        hparams = all_of(name, arguments)
        hparams["lr"] = hparams["lr"].to(dtype)
        params, state = begin(name, dtype), {}
        for _ in range(3):
            grads = [torch.full_like(p, size) for p in params]
            params, state = OPTIMIZERS[name].pure_update(grads, state, params, torch.tensor(loss, dtype=dtype), hparams)
            assert all(p.isfinite().all() for p in params)
            assert not any(t.isnan().any() for t in tree_leaves(state))


def test_the_example_of_a_pure_update_is_torchs_sgd() -> None:
    scope: dict[str, Any] = vars(pure).copy()
    assert pure.__doc__
    exec(textwrap.dedent(pure.__doc__[pure.__doc__.index("    def update") :]), scope)
    weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    weight.grad = torch.tensor([0.5, 0.25], dtype=torch.float64)
    hparams = {"lr": torch.tensor(0.1, dtype=torch.float64), "weight_decay": 0.3}
    params, _ = scope["update"]([weight.grad], {}, [weight.detach()], torch.tensor(0.0), hparams)
    torch.optim.SGD([weight], lr=0.1, weight_decay=0.3).step()
    close(params, [weight.detach()])
