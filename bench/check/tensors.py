"""Tensors of odd shapes, layouts and dtypes, and kernels that should agree."""

from typing import Any

import torch
from torch import Tensor, nn

from bench.check.steps import NotApplicable, gap, push, values
from bench.check.subject import Failed, Measured, Subject

_PUSHES = 3


def _gradients(shapes: list[Any], step: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(step)
    return [0.3 * torch.randn(tuple(shape), generator=random, dtype=torch.float64) for shape in shapes]


def _against(subject: Subject, odd: list[Any], plain: list[Any]) -> Measured:
    """The gap between parameters in odd layouts and contiguous ones with the same elements and gradients.

    Gradients have their parameter's layout, and in one step are contiguous.
    """
    start = values(plain)
    a, b = subject.make(odd), subject.make(plain)
    for step in range(_PUSHES):
        grads = _gradients([p.shape for p in plain], step)
        as_they_lie = [_like(g, p) if step != 1 else g.clone() for g, p in zip(grads, odd, strict=True)]
        push(subject, a, list(zip(odd, as_they_lie, strict=True)))
        push(subject, b, list(zip(plain, grads, strict=True)))
    return Measured(gap(values(odd), values(plain), start))


def _like(value: Tensor, p: Tensor) -> Tensor:
    """The value in the other tensor's memory layout."""
    laid = torch.empty_strided(p.shape, p.stride(), dtype=p.dtype)
    return laid.copy_(value)


def noncontiguous(subject: Subject) -> Measured:
    """Transposed, strided and channels-last parameters."""
    subject.refuse_chance()
    matrix, wide, vector, cube = _gradients([(5, 3), (4, 6), (8,), (2, 3, 2, 2)], 7)
    odd = [matrix.t(), wide[:, ::2]]
    if not subject.matrices:
        odd += [vector[::2], cube.to(memory_format=torch.channels_last)]
    return _against(subject, *([nn.Parameter(t) for t in ts] for ts in (odd, [t.contiguous().clone() for t in odd])))


def scalar_empty(subject: Subject) -> Measured:
    """A scalar and an empty tensor next to a vector, against two vectors."""
    if subject.matrices:
        raise NotApplicable("it takes matrices only")
    numbers = _gradients([(), (4,)], 6)
    odd = [
        nn.Parameter(numbers[0].clone()),
        nn.Parameter(torch.zeros(0, 3, dtype=torch.float64)),
        nn.Parameter(numbers[1].clone()),
    ]
    plain = [nn.Parameter(numbers[0].view(1).clone()), nn.Parameter(numbers[1].clone())]
    start = values(plain)
    a, b = subject.make(odd), subject.make(plain)
    for step in range(_PUSHES):
        grads = _gradients([(), (4,)], step)
        push(subject, a, [(odd[0], grads[0].clone()), (odd[1], torch.zeros_like(odd[1])), (odd[2], grads[1].clone())])
        push(subject, b, [(plain[0], grads[0].view(1).clone()), (plain[1], grads[1].clone())])
    if any(p.shape != q for p, q in zip(odd, [(), (0, 3), (4,)], strict=True)):
        raise Failed("a parameter has changed its shape")
    return Measured(gap([odd[0], odd[2]], values(plain), start))


def bf16(subject: Subject) -> Measured:
    """Start at zero, where bfloat16 resolves the smallest steps."""
    subject.refuse_chance()
    shapes = [(4, 3), (5, 1) if subject.matrices else (5,)]
    exact, half = (
        [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes] for dtype in (torch.float64, torch.bfloat16)
    )
    a, b = subject.make(exact), subject.make(half)
    for step in range(_PUSHES):
        grads = [g.bfloat16() for g in _gradients(shapes, step)]
        push(subject, a, [(p, g.double()) for p, g in zip(exact, grads, strict=True)])
        push(subject, b, list(zip(half, grads, strict=True)))
    if any(p.dtype != torch.bfloat16 for p in half):
        raise Failed(f"a bfloat16 parameter became {next(p.dtype for p in half if p.dtype != torch.bfloat16)}")
    return Measured(gap(values(half), values(exact), [torch.zeros(shape) for shape in shapes]))


def foreach(subject: Subject) -> Measured:
    """Each flag that chooses a kernel, on against off."""
    flags = [name for name in ("foreach", "fused") if name in subject.options]
    worst, held = 0.0, []
    for flag in flags:
        others = {other: False for other in flags if other != flag}
        plain = subject.stepper(arguments={**others, flag: False}).run()
        try:
            stepper = subject.stepper(arguments={**others, flag: True})
        except RuntimeError:
            continue  # this kernel does not exist here
        held.append(flag)
        worst = max(worst, stepper.run().gap(plain))
    if not held:
        raise NotApplicable("its constructor takes neither foreach nor fused")
    return Measured(worst, " and ".join(held))
