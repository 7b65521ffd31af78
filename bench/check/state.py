"""Checks of an optimizer's state."""

import copy
import io
import pickle
import re
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from bench.check.findings import Failed, Measured, NotApplicable, Raised
from bench.check.steps import Stepper, gap, values
from bench.check.subject import Subject
from bench.errors import described

_BEFORE, _AFTER = 3, 4


def resume(subject: Subject) -> Measured:
    """Interrupt a run in float32."""
    return _resumed(subject, torch.float32)


def resume_bf16(subject: Subject) -> Measured:
    """Interrupt a run in bfloat16."""
    try:
        subject.stepper(subject.attention(torch.bfloat16)).run(_BEFORE)
    except Exception as error:
        raise NotApplicable(f"it does not step on bfloat16 ({type(error).__name__})") from None
    return _resumed(subject, torch.bfloat16)


def _resumed(subject: Subject, dtype: torch.dtype) -> Measured:
    whole = subject.stepper(subject.attention(dtype)).run(_BEFORE)
    weights, file, before = values(whole.params), io.BytesIO(), _remembered(whole.optimizer)
    torch.save(whole.optimizer.state_dict(), file)
    whole.run(_AFTER)
    file.seek(0)
    try:
        state = torch.load(file, weights_only=True)
    except pickle.UnpicklingError as error:
        kind = re.search(r"GLOBAL (\S+)", str(error))
        raise Failed("torch.load(weights_only=True) refuses its state" + (f": a {kind[1]}" if kind else "")) from None
    again = subject.stepper(subject.attention(dtype))
    with torch.no_grad():
        for p, value in zip(again.params, weights, strict=True):
            p.copy_(value)
    try:
        again.optimizer.load_state_dict(state)
    except Exception as error:
        raise Raised(f"load_state_dict raises {described(error)}") from error
    lost = difference(before, _remembered(again.optimizer))
    again.calls = [0] * _BEFORE  # so that it draws the random numbers of these steps
    again.run(_AFTER)
    measured = gap(again.params, whole.params, weights)
    return Measured(measured, f"after resuming, {lost}" if measured and lost else "")


def _remembered(optimizer: Any) -> dict[str, Any]:
    """Copies of its state_dict and of its own attributes."""
    usual = vars(torch.optim.SGD([torch.zeros(1)]))
    found: dict[str, Any] = {"state_dict()": optimizer.state_dict()}
    found |= {f"self.{name}": value for name, value in vars(optimizer).items() if name not in usual}
    copied: dict[str, Any] = {}
    for name, value in found.items():
        with suppress(Exception):
            copied[name] = copy.deepcopy(value)
    return copied


def difference(one: Any, other: Any, at: str = "", tolerance: float = 0.0) -> str:
    """The first place where two nested values differ, in words; nothing if they agree.

    Args:
        one: tensors, numbers, words, and dicts and lists of them; of other things only the type counts.
        other: the same.
        at: name of both.
        tolerance: largest difference of two elements that is ignored, relative to the largest element.
    """
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return f"{at} is {_kind(other)} in place of {_kind(one)}"
        close = torch.equal(one, other) or (
            tolerance > 0 and bool(((one - other).abs() <= tolerance * one.abs().max()).all())
        )
        return "" if close else f"{at} differs"
    if isinstance(one, dict) and isinstance(other, dict):
        names = [f"{at}[{key!r}]" if at else str(key) for key in one if not isinstance(key, Tensor)]
        if len(names) < len(one):  # keyed by tensors, which are others after loading
            return difference(list(one.values()), list(other.values()), at, tolerance)
        pairs = [(name, value, other.get(key, _MISSING)) for name, (key, value) in zip(names, one.items(), strict=True)]
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return f"{at} has {len(other)} entries in place of {len(one)}"
        pairs = [(f"{at}[{i}]", *pair) for i, pair in enumerate(zip(one, other, strict=True))]
    elif other is _MISSING:
        return f"{at} is missing"
    elif isinstance(one, int | float | str | None) and isinstance(other, int | float | str | None):
        return "" if one == other or one != one else f"{at} is {other!r} in place of {one!r}"
    else:
        return "" if type(one) is type(other) else f"{at} is a {type(other).__name__}, not a {type(one).__name__}"
    return next((found for name, a, b in pairs if (found := difference(a, b, name, tolerance))), "")


_MISSING = object()


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def copies(subject: Subject) -> Measured:
    """Copy model and optimizer together, at the start and later."""
    ways: dict[str, Any] = {"copy.deepcopy": copy.deepcopy, "pickle": _pickled}
    worst = 0.0
    for steps in (0, _BEFORE):
        for name, copied in ways.items():
            stepper = subject.stepper().run(steps)
            before = values(stepper.params)
            for p in stepper.params:
                p.grad = None  # one with a graph cannot be copied
            try:
                model, optimizer = copied((stepper.model, stepper.optimizer))
                twin = Stepper(subject.spec, model, optimizer)
                twin.calls = [0] * steps
                twin.run(_AFTER)
            except Exception as error:
                raise Raised(f"{name} after {steps} steps: {described(error)}") from error
            if not all(map(torch.equal, stepper.params, before)):
                raise Failed(f"{name}: steps of the copy change the original")
            stepper.run(_AFTER)
            worst = max(worst, twin.gap(stepper))
    return Measured(worst, " and ".join(ways))


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def deterministic(subject: Subject) -> Measured:
    """Run twice."""
    first, second = subject.stepper().run(), subject.stepper().run()
    return Measured(second.gap(first))
