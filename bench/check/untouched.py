"""Checks that a step leaves gradients, random generators and the learning rate unchanged."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.check.findings import Failed, Measured
from bench.check.steps import seed
from bench.check.subject import Subject


def gradients(subject: Subject) -> Measured:
    """Compare `.grad` with its value after the last closure call, also with weight decay, often added in place."""
    ways: list[dict[str, Any]] = [{}]
    if subject.hparams.get("weight_decay") == 0:
        ways.append({"weight_decay": 0.1})
    if found := next(filter(None, (_touched(subject, way) for way in ways)), ""):
        raise Failed(found)
    # What a kernel does that the user did not request is only reported.
    return Measured(0.0, "".join(_touched(subject, way) for way in subject.kernels[1:]))


def _touched(subject: Subject, arguments: dict[str, Any]) -> str:
    """Changes of `.grad` by two steps, or nothing."""
    stepper, left = subject.stepper(arguments=arguments), []

    def note() -> None:
        left[:] = [(p.grad, p.grad.detach().clone()) for p in stepper.params]

    def by(evaluate: Callable[[], Tensor], **told: Tensor) -> None:
        note()

        def closure() -> Tensor:
            loss = evaluate()
            note()
            return loss

        stepper.optimizer.step(closure, **told)

    for _ in range(2):
        stepper.step(by=by)
        for i, (p, (grad, value)) in enumerate(zip(stepper.params, left, strict=True)):
            found = "None"
            if p.grad is not None:
                changed = not torch.equal(p.grad.nan_to_num(), value.nan_to_num())
                found = ("0" if not p.grad.any() else "changed") if changed else "" if p.grad is grad else "replaced"
            if found:
                how = "".join(f", with {name} {value}" for name, value in arguments.items())
                return f".grad of parameter {i}, shape {tuple(p.shape)}, is {found} after step{how}"
    return ""


def generators(subject: Subject) -> Measured:
    """Compare the states of torch's, numpy's and Python's global generators before and after constructor and steps."""
    stepper = subject.stepper()
    seed(0)  # as `make` does
    if touched := _touched_generators(lambda: subject.make(list(stepper.params))):
        raise Failed(f"its constructor touches {' and '.join(touched)}")

    found: list[str] = []

    def by(evaluate: Callable[[], Tensor], **told: Tensor) -> None:
        found.extend(_touched_generators(lambda: stepper.optimizer.step(evaluate, **told)))

    for _ in range(2):
        stepper.step(by=by)
    if found and not subject.spec.traits.draws:
        raise Failed(f"a step touches {' and '.join(dict.fromkeys(found))}")
    return Measured(0.0, "as declared" if found else "")


def _touched_generators(call: Callable[[], Any]) -> list[str]:
    """The global generators whose state a call changes."""
    before = _generators()
    call()
    return [name for name, state in _generators().items() if state != before[name]]


def _generators() -> dict[str, Any]:
    return {
        "torch's generator": torch.default_generator.get_state().numpy().tobytes(),
        "numpy's generator": [
            part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()
        ],
        "Python's generator": random.getstate(),
    }


def own_lr(subject: Subject) -> Measured:
    """Compare the groups' lr before and after steps."""
    stepper = subject.stepper()
    for _ in range(4):
        before = [_number(group.get("lr")) for group in stepper.optimizer.param_groups]
        stepper.step()
        for i, (group, lr) in enumerate(zip(stepper.optimizer.param_groups, before, strict=True)):
            if _number(group.get("lr")) != lr:
                if subject.spec.traits.sets_lr:
                    return Measured(0.0, "as declared")
                raise Failed(
                    f"param_groups[{i}]['lr'] was {lr:g} before a step and is {_number(group['lr']):g} after it"
                )
    return Measured(0.0)


def _number(lr: Any) -> Any:
    return float(lr) if isinstance(lr, Tensor) else lr
