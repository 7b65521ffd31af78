"""Symmetries of a method: reported, never a failure."""

import torch
from torch import Tensor

from bench.check.findings import Measured
from bench.check.steps import flat, gap
from bench.check.subject import Subject


def scale(subject: Subject) -> Measured:
    """Length of the first step with ten times the loss, over that with the loss itself."""
    plain, scaled = subject.quadratic(), subject.quadratic()
    scaled.factor = 10.0
    lengths = []
    for model in (plain, scaled):
        stepper = subject.stepper(model)
        stepper.step()
        lengths.append(float((model.weight.detach() - stepper.start[0]).norm()))
    if not lengths[0]:
        return Measured(None, "the first step changes nothing")
    ratio = lengths[1] / lengths[0]
    for word, expected in (("invariant", 1.0), ("x10", 10.0), ("x0.1", 0.1)):
        if abs(ratio / expected - 1) < 1e-3:
            return Measured(ratio, word)
    return Measured(ratio, f"x{ratio:.3g}")


def rotation(subject: Subject) -> Measured:
    """Compare a rotated vector."""
    turn, _ = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    return _turned(subject, turn)


def permutation(subject: Subject) -> Measured:
    """Compare a vector with permuted elements."""
    return _turned(subject, torch.eye(6, dtype=torch.float64)[[3, 0, 5, 1, 4, 2]])


def _turned(subject: Subject, turn: Tensor) -> Measured:
    plain, turned = subject.stepper(subject.quadratic()).run(), subject.stepper(subject.quadratic(turn)).run()
    distance = gap([turn.T @ flat(turned.params)], plain.params, plain.start)
    return Measured(distance, "equivariant" if distance < 1e-6 else "not equivariant")
