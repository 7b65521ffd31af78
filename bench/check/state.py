"""What an optimizer remembers, and where."""

import copy
import io
import pickle
import re
from typing import Any

import torch

from bench.check.steps import NotApplicable, Stepper, gap, values
from bench.check.subject import Failed, Measured, Raised, Subject
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
    weights, file = values(whole.params), io.BytesIO()
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
    again.calls = [0] * _BEFORE  # so that it draws the random numbers of these steps
    again.run(_AFTER)
    return Measured(gap(values(again.params), values(whole.params), weights))


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
                twin = Stepper(subject, model, optimizer)
                twin.calls = [0] * steps
                twin.run(_AFTER)
            except Exception as error:
                raise Raised(f"{name} after {steps} steps: {described(error)}") from error
            if any(not torch.equal(p, value) for p, value in zip(stepper.params, before, strict=True)):
                raise Failed(f"{name}: steps of the copy move the original")
            stepper.run(_AFTER)
            worst = max(worst, twin.gap(stepper))
    return Measured(worst, " and ".join(ways))


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def deterministic(subject: Subject) -> Measured:
    """Run twice."""
    first, second = subject.stepper().run(), subject.stepper().run()
    return Measured(second.gap(first))
