"""The optimizers: formulas, properties, extreme numbers, and cost; test_check has their groups, copies and closures."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from optimizers import NGD, OPTIMIZERS, PS, SNGD, SPS, global_norm
from optimizers.step_size import StepSizeOptimizer
from tests.optimizer_cases import CASES, ILLEGAL, Case, begin, flat, loss_and_gradient, start, torch_loss

pytestmark = pytest.mark.numeric

STEPS = 20
# Our own classes; the others are torch's, for which only formulas and usage are tested.
OWN = {name: spec.cls for name, spec in OPTIMIZERS.items() if issubclass(spec.cls, StepSizeOptimizer)}
OWN_CASES = [case for case in CASES if case.name in OWN]
DTYPES = (torch.float64, torch.float32, torch.bfloat16)

every_case = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.mark.parametrize("cls", [NGD, SNGD])
def test_each_group_moves_by_its_own_rate_over_the_norm_of_all(cls: Any) -> None:
    params = [nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2)]
    for p, g in zip(params, ([3.0, 0.0], [0.0, 4.0]), strict=True):
        p.grad = torch.tensor(g, dtype=torch.float64)
    cls([{"params": params[:1], "lr": 0.5}, {"params": params[1:], "lr": 0.25}], lr=1.0).step()
    assert torch.cat([p.detach() for p in params]).tolist() == pytest.approx([-0.3, 0.0, 0.0, -0.2])


every_own_case = pytest.mark.parametrize("case", OWN_CASES, ids=str)
every_own = pytest.mark.parametrize("cls", OWN.values(), ids=OWN)
properties = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def build(case: Case, params: Any, **more: Any) -> Any:
    return OPTIMIZERS[case.name].cls(params, **{**case.arguments, **more})


def train(opt: Any, params: list[nn.Parameter], steps: int) -> None:
    def closure() -> Tensor:
        opt.zero_grad()
        loss = torch_loss(params)
        loss.backward()
        return loss

    for _ in range(steps):
        opt.step(closure)


def push(opt: Any, params: list[Any], seed: int, loss: float = 0.5) -> None:
    """One step with random gradients in `.grad`; the closure only returns the loss."""
    random = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = (torch.randn(p.shape, generator=random) * 0.3).to(p.dtype)
    opt.step(lambda: loss)


def point(*values: float, grad: tuple[float, ...], dtype: torch.dtype = torch.float64) -> nn.Parameter:
    """A parameter with its gradient."""
    p = nn.Parameter(torch.tensor(values, dtype=dtype))
    p.grad = torch.tensor(grad, dtype=dtype)
    return p


def values(params: list[Any]) -> list[Tensor]:
    return [p.detach().clone() for p in params]


def same(a: list[Any], b: list[Any]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# ---- Formulas --------------------------------------------------------------------------------------------------------


def test_every_registered_optimizer_has_a_case() -> None:
    assert {case.name for case in CASES} >= set(OPTIMIZERS)


@every_case
def test_steps_equal_the_formula_in_float64(case: Case) -> None:
    weights, memory, params = flat(begin(case.name)), {}, start(name=case.name)
    opt = build(case, params)
    for k in range(STEPS):
        loss, gradient = loss_and_gradient(weights)
        weights = case.formula(weights, gradient, loss, k, memory, **case.arguments)
        train(opt, params, 1)
        # Rounding errors, which differ between machines, grow from step to step.
        tolerance = 1e-13 * 1.3**k
        np.testing.assert_allclose(
            flat([p.detach() for p in params]), weights, rtol=10 * tolerance, atol=tolerance, err_msg=f"step {k}"
        )


# ---- Properties of normalised steps ----------------------------------------------------------------------------------

vectors = st.lists(st.floats(-100, 100), min_size=1, max_size=5).filter(lambda v: max(map(abs, v)) > 1e-3)
rates = st.floats(1e-4, 1e2)


def moved(cls: Any, gradients: list[list[float]], **arguments: Any) -> Tensor:
    """The update of one step from the origin, where nothing is lost to rounding."""
    params = [point(*[0.0] * len(g), grad=tuple(g)) for g in gradients]
    cls(params, **arguments).step()
    return torch.cat(values(params))


@properties
@given(gradients=st.lists(vectors, min_size=1, max_size=4), lr=rates)
def test_a_normalised_step_has_the_length_lr(gradients: list[list[float]], lr: float) -> None:
    for cls in (NGD, SNGD):
        assert float(moved(cls, gradients, lr=lr).norm()) == pytest.approx(lr, rel=1e-12)


@pytest.mark.parametrize(("cls", "loss"), [(NGD, {}), (SNGD, {}), (PS, {"loss": 2.0}), (SPS, {"loss": 2.0})])
def test_the_norm_before_clipping_sets_the_step(cls: Any, loss: dict[str, float]) -> None:
    """So raw step size times gradient norm means the same for all: the step length without cap and clipping."""
    whole, clipped = point(1.0, 2.0, grad=(3.0, 4.0)), point(1.0, 2.0, grad=(0.3, 0.4))
    a, b = cls([whole], lr=0.1), cls([clipped], lr=0.1)
    a.step(**loss)
    b.step(**loss, loss_grad_norm=torch.tensor(5.0, dtype=torch.float64))
    torch.testing.assert_close(a.step_sizes, b.step_sizes, rtol=1e-14, atol=0)
    start = torch.tensor([1.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(clipped.detach() - start, (whole.detach() - start) / 10, rtol=1e-12, atol=0)


# ---- Properties of Polyak steps --------------------------------------------------------------------------------------


@properties
@given(gradient=vectors, loss=st.floats(-1e3, 1e3), f_star=st.floats(-1e3, 1e3), c=st.floats(0.1, 10), cap=rates)
def test_a_polyak_step_is_never_negative(
    gradient: list[float], loss: float, f_star: float, c: float, cap: float
) -> None:
    for cls, arguments in ((PS, {}), (SPS, {}), (SPS, {"max_step": cap}), (SPS, {"gamma": 2.0})):
        p = point(*[0.0] * len(gradient), grad=tuple(gradient))
        opt = cls([p], c=c, f_star=f_star, **arguments)
        opt.step(loss=loss)
        expected = min(max(loss - f_star, 0.0) / c / np.dot(gradient, gradient), arguments.get("max_step", np.inf))
        np.testing.assert_allclose(p.detach(), -expected * np.array(gradient), rtol=1e-11)
        assert opt.step_sizes[1] >= 0


def test_a_norm_in_half_precision_does_not_overflow_the_step() -> None:
    p = point(0.0, grad=(2.0**-9,), dtype=torch.float32)
    SPS([p], c=0.5).step(loss=1.0, loss_grad_norm=torch.tensor(2.0**-9, dtype=torch.float16))
    assert p.item() == -(2.0**10)


DOUBLE = torch.tensor(0.1, dtype=torch.float64)


@pytest.mark.parametrize("loss", [0.1, DOUBLE, DOUBLE.clone().requires_grad_()])
def test_a_loss_may_be_a_number_or_a_tensor(loss: Any) -> None:
    p = point(0.0, grad=(1.0,))
    assert SPS([p], c=0.5).step(loss=loss) is loss
    assert p.item() == -0.2


@pytest.mark.parametrize("cls", [PS, SPS])
def test_a_missing_loss_is_an_error(cls: Any) -> None:
    with pytest.raises(ValueError, match=rf"{cls.__name__} needs the loss: call step\(closure\).*or step\(loss="):
        cls([point(1.0, grad=(1.0,))]).step()


@pytest.mark.parametrize(("loss", "gradient"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("first", [True, False])
def test_smoothing_survives_a_step_of_length_zero(loss: float, gradient: float, first: bool) -> None:
    p = point(0.0, grad=(1.0,))
    opt = SPS([p], c=0.5, gamma=2.0, max_step=0.25)
    if not first:
        opt.step(loss=1.0)
    before = p.item()
    p.grad.fill_(gradient)
    opt.step(loss=loss)
    assert p.item() == before
    p.grad.fill_(1.0)
    opt.step(loss=1.0)
    assert before - p.item() == (0.25 if first else 0.5)


# ---- Zero and tiny gradients -----------------------------------------------------------------------------------------


TINY = [
    (torch.float32, (1e-30, 1e-40, 1e-45)),
    (torch.float64, (1e-170, 1e-310, 5e-324)),
    (torch.bfloat16, (1e-30, 1e-40)),
]


@every_own_case
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("gradient", [(1.0,), (1.0, 0.0, -1.0)], ids=["one", "many"])
def test_tiny_gradients_give_no_nan(case: Case, fused: bool | None, gradient: tuple[float, ...]) -> None:
    for dtype, sizes in TINY:
        for size in sizes:
            p = point(*[1.0] * len(gradient), grad=tuple(size * g for g in gradient), dtype=dtype)
            opt = build(case, [p], fused=fused)
            for _ in range(3):
                opt.step(lambda: 0.5)
                assert p.isfinite().all(), (dtype, size, p)


# ---- Update paths and odd tensors ------------------------------------------------------------------------------------

TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-9}


@every_own_case
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_fused_and_plain_updates_agree(case: Case, dtype: torch.dtype) -> None:
    fused, plain = start(dtype), start(dtype)
    a, b = build(case, fused), build(case, plain, fused=False)
    for seed in range(3):
        push(a, fused, seed)
        push(b, plain, seed)
    torch.testing.assert_close(fused, plain, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


class Watch(TorchDispatchMode):
    """Notes the size of the largest new tensor."""

    largest_new = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs, outputs = ([t for t in tree_leaves(x) if isinstance(t, Tensor)] for x in ((args, kwargs), out))
        known = {t.untyped_storage()._cdata for t in inputs}
        new = [t.numel() for t in outputs if t.untyped_storage()._cdata not in known]
        self.largest_new = max([self.largest_new, *new])
        return out


def large() -> Iterator[nn.Parameter]:
    for shape in ((300, 1000), (250_001,), (8,)):
        p = nn.Parameter(torch.zeros(shape))
        p.grad = torch.ones(shape)
        yield p


@every_own_case
@pytest.mark.parametrize("fused", [None, False])
def test_a_step_makes_no_large_temporaries(case: Case, fused: bool | None) -> None:
    params = list(large())
    opt = build(case, params, fused=fused)
    opt.step(lambda: 0.5)  # makes the buffers
    with Watch() as watch:
        opt.step(lambda: 0.5)
    assert watch.largest_new < 3000  # 1 % of the largest parameter


@every_own
@pytest.mark.parametrize("fused", [None, False])
def test_parameters_of_mixed_precision_share_one_step(cls: Any, fused: bool | None) -> None:
    params = [point(0.0, grad=(g,), dtype=dtype) for g, dtype in zip((3.0, 4.0, 12.0), DTYPES, strict=True)]
    opt = cls(params, fused=fused)
    opt.step(lambda: 2.0)
    step = opt.step_sizes[1]
    assert step.dtype == torch.float64
    for p in params:
        torch.testing.assert_close(p.detach(), (-step * p.grad.double()).to(p.dtype))


@every_own
def test_sparse_gradients_are_refused(cls: Any) -> None:
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3).to_sparse()
    with pytest.raises(RuntimeError, match=f"{cls.__name__} does not support sparse"):
        cls([p]).step(lambda: 1.0)


# ---- Illegal hyperparameters -----------------------------------------------------------------------------------------

illegal = pytest.mark.parametrize(
    ("name", "argument", "value", "legal"),
    [(name, argument, value, legal) for name, argument, bad, legal in ILLEGAL for value in bad],
)


@illegal
def test_an_illegal_hyperparameter_is_refused_with_its_range(
    name: str, argument: str, value: float, legal: str
) -> None:
    first, second = start()[:2]
    with pytest.raises(ValueError, match=rf"{argument}.*={value} is out of range.*{re.escape(legal)}$"):
        OWN[name]([first], **{argument: value})
    opt = OWN[name]([first])
    legal = legal if argument in opt.defaults else f"has one {argument} for all parameters"
    with pytest.raises(ValueError, match=re.escape(legal)):
        opt.add_param_group({"params": [second], argument: value})
    assert len(opt.param_groups) == 1


# ---- The global norm -------------------------------------------------------------------------------------------------

BLOCK = 65_536
SIZES = ((), (1,), (0,), (3, 5), (BLOCK - 1,), (BLOCK,), (BLOCK + 1,), (257, 300), (2 * BLOCK + 12_345,))
tensors = st.tuples(
    st.sampled_from(SIZES), st.sampled_from((*DTYPES, torch.float16)), st.sampled_from((1e-3, 1.0, 1e3))
)


@settings(properties, max_examples=40)
@given(kinds=st.lists(tensors, min_size=1, max_size=6), seed=st.integers(0, 2**31))
def test_the_global_norm_is_that_of_the_concatenation(kinds: list[Any], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    parts = [(torch.randn(shape, generator=random) * scale).to(dtype) for shape, dtype, scale in kinds]
    parts.append(torch.randn(301, 307, generator=random).t())
    norm = global_norm(parts)
    double = torch.float64 in [part.dtype for part in parts]
    assert (norm.shape, norm.dtype) == ((), torch.float64 if double else torch.float32)
    expected = torch.cat([part.reshape(-1).double() for part in parts]).norm()
    torch.testing.assert_close(norm.double(), expected, rtol=1e-12 if double else 5e-6, atol=0)


@pytest.mark.parametrize("parts", [[], [torch.zeros(0)], [torch.zeros(()), torch.zeros(3)]])
def test_the_norm_of_nothing_is_zero(parts: list[Tensor]) -> None:
    assert global_norm(parts) == 0


def test_the_norm_of_a_very_large_tensor_is_precise() -> None:
    part = torch.full((20_000_003,), 0.1)
    expected = float(part[0]) * len(part) ** 0.5
    assert float(global_norm([part])) == pytest.approx(expected, rel=1e-5)


# ---- The registry ----------------------------------------------------------------------------------------------------


def test_listing_the_optimizers_imports_no_torch() -> None:
    code = (
        "import sys; from optimizers import OPTIMIZERS; assert len(OPTIMIZERS) >= 8; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
