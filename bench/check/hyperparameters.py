"""Checks of hyperparameters by group, and of an lr that changes during training."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor

from bench.check.findings import Failed, Measured, NotApplicable
from bench.check.steps import gap, gradients, values
from bench.check.subject import Subject
from bench.text import is_number

_PUSHES = 4
_MATTERS = 1e-6  # a gap above rounding
_HALVES = (slice(2), slice(2, None))  # the parameters of two groups


def lr_changes(subject: Subject) -> Measured:
    """Halve and double lr after three steps: if this changes the first step, it must also change later ones."""
    rates = [group.get("lr") for group in subject.stepper().optimizer.param_groups]
    if not all(isinstance(rate, float | int | Tensor) for rate in rates):
        raise NotApplicable("its groups have no numeric 'lr', as `schedule` says")
    factors = [factor for factor in (0.5, 2.0) if _gap_by_lr(subject, 0, factor) > _MATTERS]
    if not factors:
        raise NotApplicable("half and double of lr give the same steps")
    stepper = subject.stepper().run(3)
    before = values(stepper.params)
    if gap(before, stepper.run(2).params, stepper.start) <= _MATTERS:
        raise NotApplicable("it has converged after 3 steps")
    for factor in factors:
        if _gap_by_lr(subject, 3, factor) <= _MATTERS:
            raise Failed(f"lr times {factor:g} changes the steps from the start, but not after 3 steps")
    return Measured(0.0)


def _gap_by_lr(subject: Subject, before: int, factor: float) -> float:
    """Gap of two steps from those with another lr, after some steps with the same."""
    changed, plain = subject.stepper().run(before), subject.stepper().run(before)
    for group in changed.optimizer.param_groups:
        group["lr"] = group["lr"] * factor
    return changed.run(2).gap(plain.run(2))


def group_values(subject: Subject) -> Measured:
    """Give each number of the constructor two values in two groups.

    Neither the order of the groups nor the constructor's value may matter. If groups do not interact, as through a
    global norm, each must move as if all had its value. Refusing two values is no fault.
    """
    subject.refuse_chance()
    plain = _moved(subject)
    separable = all(
        _gap(subject, _moved(subject, shifted=other), plain, half) == 0
        for half, other in zip(_HALVES, reversed(_HALVES), strict=True)
    )
    worst, differs, held, refused = 0.0, "", [], []
    for label, name, others in _numbers(subject):
        value = subject.hparams[name]
        for other in others:
            try:
                uniform = _moved(subject, {name: other})
            except Exception:
                continue
            if not _MATTERS < _gap(subject, uniform, plain) < inf:
                continue
            try:
                found = _two(subject, name, (value, other), (plain, uniform), separable=separable)
            except Exception:
                refused.append(label)
                break
            held.append(label)
            if found > worst:
                worst, differs = found, f"{label}: {value} in one group and {other} in another are not both used"
            break
    if worst > 1e-9:
        return Measured(worst, differs)
    said = [", ".join(held)] * bool(held) + [f"it refuses two values of {', '.join(refused)}"] * bool(refused)
    return Measured(worst, "; ".join(said))


def _numbers(subject: Subject) -> Iterator[tuple[str, str, list[Any]]]:
    """Each numeric hyperparameter of groups: its label, its argument, other values."""
    group = subject.stepper().optimizer.param_groups[0]
    for name, value in subject.hparams.items():
        if name in group and is_number(value):
            yield name, name, others(value)
        elif name in group and isinstance(value, tuple | list) and all(map(is_number, value)):
            for i, each in enumerate(value):
                yield f"{name}[{i}]", name, [type(value)([*value[:i], x, *value[i + 1 :]]) for x in others(each)]


def others(value: float) -> list[Any]:
    """Values to try until one changes the steps."""
    if isinstance(value, int):
        return [value + 3, value + 1, value // 2]
    if value == inf:  # a cap: a low one always matters
        return [0.001, 0.1, 10.0]
    return [value / 2, 2 * value, value + 0.1] if value else [0.1, 1.5]


def _moved(
    subject: Subject,
    arguments: Mapping[str, Any] | None = None,
    own: Sequence[Mapping[str, Any]] = ({}, {}),
    order: Sequence[int] = (0, 1),
    shifted: slice = slice(0),
) -> list[Tensor]:
    """Weights after some steps with synthetic gradients, always the same.

    Args:
        subject: what is checked.
        arguments: of the constructor.
        own: values of the two halves' groups.
        order: of the halves among the groups.
        shifted: weights that are shifted, and whose gradients are doubled, after the first step.
    """
    params = list(subject.attention().parameters())
    optimizer = subject.make([{"params": params[_HALVES[i]], **own[i]} for i in order], **(arguments or {}))
    for step in range(_PUSHES):
        grads = gradients([p.shape for p in params], step)
        if step > 0:
            grads[shifted] = [2 * g for g in grads[shifted]]
        subject.push(optimizer, params, grads)
        if step == 0:
            with torch.no_grad():
                for p in params[shifted]:
                    p.add_(0.1)
    return values(params)


def _gap(subject: Subject, a: list[Tensor], b: list[Tensor], half: slice = slice(None)) -> float:
    """The gap of all weights, or of one half."""
    return gap(a[half], b[half], list(subject.attention().parameters())[half])


def _two(
    subject: Subject,
    name: str,
    of: tuple[Any, Any],
    uniform: tuple[list[Tensor], list[Tensor]],
    *,
    separable: bool,
) -> float:
    """The largest gap of two groups with these values from the expected weights.

    Args:
        subject: what is checked.
        name: the hyperparameter.
        of: its values in the two groups.
        uniform: weights if all have the first value, and the second.
        separable: whether the halves do not interact.
    """
    own = [{name: value} for value in of]
    told = [_moved(subject, {name: of[0]}, own), _moved(subject, {name: of[1]}, own, order=(1, 0))]
    if separable:
        expected = list(zip(uniform, _HALVES, strict=True))
        return max(_gap(subject, each, weights, half) for each in told for weights, half in expected)
    both_matter = all(_gap(subject, *uniform, half) > _MATTERS for half in _HALVES)
    if both_matter and min(_gap(subject, told[0], each) for each in uniform) <= _MATTERS:
        return inf
    return _gap(subject, told[0], told[1])
