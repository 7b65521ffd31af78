"""Tensors of odd shapes, layouts and dtypes, and kernels that should agree."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bench.check.findings import Failed, Measured, NotApplicable
from bench.check.steps import gap, gradients, values
from bench.check.subject import Subject

_PUSHES = 3


def _push_both(
    subject: Subject, one: list[Any], other: list[Any], both: Callable[[int], tuple[list[Tensor], list[Tensor]]]
) -> None:
    """A few steps of two lists of parameters; `both` has the gradients of each in a step."""
    optimizers = subject.make(one), subject.make(other)
    for step in range(_PUSHES):
        for optimizer, params, own in zip(optimizers, (one, other), both(step), strict=True):
            subject.push(optimizer, params, own)


def _like(value: Tensor, p: Tensor) -> Tensor:
    """The value in the other tensor's memory layout."""
    laid = torch.empty_strided(p.shape, p.stride(), dtype=p.dtype)
    return laid.copy_(value)


def noncontiguous(subject: Subject) -> Measured:
    """Transposed, strided and channels-last parameters.

    Gradients have their parameter's layout, and in one step are contiguous.
    """
    subject.refuse_chance()
    matrix, wide, vector, cube = gradients([(5, 3), (4, 6), (8,), (2, 3, 2, 2)], 7)
    laid = [matrix.t(), wide[:, ::2]]
    if not subject.matrices:
        laid += [vector[::2], cube.to(memory_format=torch.channels_last)]
    start = [t.contiguous().clone() for t in laid]
    odd, plain = [nn.Parameter(t) for t in laid], [nn.Parameter(t.clone()) for t in start]

    def both(step: int) -> tuple[list[Tensor], list[Tensor]]:
        own = gradients([p.shape for p in plain], step)
        return [g.clone() if step == 1 else _like(g, p) for g, p in zip(own, odd, strict=True)], own

    _push_both(subject, odd, plain, both)
    return Measured(gap(odd, plain, start))


def scalar_empty(subject: Subject) -> Measured:
    """A scalar and an empty tensor next to a vector, against two vectors."""
    if subject.matrices:
        raise NotApplicable("it takes matrices only")
    shapes = [(), (0, 3), (4,)]

    def both(step: int) -> tuple[list[Tensor], list[Tensor]]:
        odd = gradients(shapes, step)
        return odd, [odd[0].clone().view(1), odd[2].clone()]

    odd, plain = ([nn.Parameter(t) for t in tensors] for tensors in both(6))
    start = values(plain)
    _push_both(subject, odd, plain, both)
    if [tuple(p.shape) for p in odd] != shapes:
        raise Failed("a parameter has changed its shape")
    return Measured(gap(odd, plain, start))


def bf16(subject: Subject) -> Measured:
    """Start at zero, where bfloat16 resolves the smallest steps."""
    subject.refuse_chance()
    shapes = [(4, 3), (5, 1) if subject.matrices else (5,)]
    exact, half = (
        [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes] for dtype in (torch.float64, torch.bfloat16)
    )

    def both(step: int) -> tuple[list[Tensor], list[Tensor]]:
        rounded = [g.bfloat16() for g in gradients(shapes, step)]
        return [g.double() for g in rounded], rounded

    _push_both(subject, exact, half, both)
    if others := [p.dtype for p in half if p.dtype != torch.bfloat16]:
        raise Failed(f"a bfloat16 parameter became {others[0]}")
    return Measured(gap(half, exact, [torch.zeros(shape) for shape in shapes]))


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
