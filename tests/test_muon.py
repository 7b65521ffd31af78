"""Muon: its updates of matrices, stacks and pieces, and agreement with torch's Muon to the latter's precision."""

from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from optimizers import Muon

pytestmark = pytest.mark.numeric


def matrix(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def moved(grad: Tensor, **arguments: Any) -> Tensor:
    """The update of the first step from 0 with lr 1."""
    p = nn.Parameter(torch.zeros_like(grad))
    p.grad = grad
    groups = [{"params": [p], **{name: arguments.pop(name) for name in ("pieces",) if name in arguments}}]
    Muon(groups, **{"lr": 1.0, **arguments}).step()
    return p.detach()


@pytest.mark.parametrize("size", [1e300, 1.0, 1e-30, 1e-170, 1e-310])
def test_the_gradients_size_does_not_matter(size: float) -> None:
    grad = matrix(4, 3)
    torch.testing.assert_close(moved(size * grad), moved(grad), rtol=1e-2 if size < 1e-300 else 1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_zero_gradients_move_nothing_and_tiny_ones_are_finite(dtype: torch.dtype) -> None:
    assert moved(torch.zeros(3, 2, dtype=dtype)).count_nonzero() == 0
    smallest = torch.full((3, 2), torch.finfo(dtype).smallest_normal, dtype=dtype)
    assert moved(smallest).isfinite().all()


def test_stacked_matrices_and_pieces_are_orthogonalised_separately() -> None:
    parts = [matrix(4, 5, seed=seed) for seed in range(3)]
    expected = [moved(part) for part in parts]
    torch.testing.assert_close(moved(torch.stack(parts)), torch.stack(expected), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(moved(torch.cat(parts), pieces=3), torch.cat(expected), rtol=1e-12, atol=1e-14)
    assert not torch.allclose(moved(torch.cat(parts)), torch.cat(expected), rtol=1e-3)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize(("adjust", "theirs"), [("original", "original"), ("rms", "match_rms_adamw")])
@pytest.mark.parametrize("shape", [(24, 16), (16, 24), (16, 16)])
def test_it_is_torchs_muon_to_the_precision_of_bfloat16(
    shape: tuple[int, int], adjust: Literal["original", "rms"], theirs: str, nesterov: bool
) -> None:
    start = matrix(*shape, dtype=torch.float32)
    ours, other = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    common: dict[str, Any] = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1, "nesterov": nesterov}
    a = Muon([ours], adjust=adjust, bf16=True, **common)
    b = torch.optim.Muon([other], adjust_lr_fn=theirs, **common)
    for seed in range(5):
        ours.grad = matrix(*shape, seed=seed + 1, dtype=torch.float32)
        other.grad = ours.grad.clone()
        a.step()
        b.step()
    path = (other.detach() - start).norm()
    assert (ours.detach() - other.detach()).norm() < 0.05 * path  # bfloat16 has 8 bits; errors accumulate
    assert path > 0.1


def test_parameters_that_are_no_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\).*--opt\.rest adamw"):
        Muon([nn.Parameter(torch.ones(3))])
    with pytest.raises(ValueError, match=r"pieces=3: a parameter of shape \(4, 2\)"):
        Muon([{"params": [nn.Parameter(torch.ones(4, 2))], "pieces": 3}])
