"""Checks of vectorised runs, as in sweeps."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from bench.check.steps import STEPS, NotApplicable, Stepper, flat
from bench.check.subject import Measured, Subject

_LANES = 3


def lanes(subject: Subject) -> Measured:
    """The pure update of three lanes, or their instances on one stack of weights, against three runs alone."""
    factors = (1.0, 0.5, 2.0)
    rates = [{} if subject.lr is None else {"lr": factor * subject.lr} for factor in factors]
    alone = [
        subject.stepper(subject.attention(seed=10 * lane), arguments=rate).run() for lane, rate in enumerate(rates)
    ]
    if subject.spec.pure_update is None:
        return _one_by_one(subject, alone, rates)
    subject.refuse_chance()
    if subject.lr is None:
        raise NotApplicable("pure updates need a constructor with lr")
    return _together(subject, alone, [factor * subject.lr for factor in factors])


def _worst(alone: list[Stepper], models: list[Any]) -> float:
    return max(Stepper(stepper.subject, model, None).gap(stepper) for stepper, model in zip(alone, models, strict=True))


def _one_by_one(subject: Subject, alone: list[Stepper], rates: list[dict[str, Any]]) -> Measured:
    models = [subject.attention(seed=10 * lane) for lane in range(_LANES)]
    for name, _ in list(models[0].named_parameters()):
        stack = torch.stack([getattr(model, name).detach() for model in models])
        for model, view in zip(models, stack, strict=True):
            setattr(model, name, nn.Parameter(view))
    steppers = [subject.stepper(model, arguments=rate) for model, rate in zip(models, rates, strict=True)]
    for _ in range(STEPS):
        for stepper in steppers:
            stepper.step()
    return Measured(_worst(alone, models), "instances, lane by lane")


def _together(subject: Subject, alone: list[Stepper], rates: list[float]) -> Measured:
    """With given norms, as in sweeps, and without."""
    ways = [(), tuple(sorted(subject.spec.update_keywords))]
    found = [_moved(subject, alone, rates, keywords) for keywords in dict.fromkeys(ways)]
    return Measured(max(found), "pure update through vmap")


def _moved(subject: Subject, alone: list[Stepper], rates: list[float], keywords: tuple[str, ...]) -> float:
    models = [subject.attention(seed=10 * lane) for lane in range(_LANES)]
    # Only evaluates; the update steps.
    steppers = [Stepper(subject, model, torch.optim.SGD(model.parameters())) for model in models]
    hparams = {**subject.hparams, "lr": torch.tensor(rates, dtype=torch.float64)}
    update = subject.spec.pure_update
    assert update is not None

    def one(grads: Any, state: Any, params: Any, loss: Any, hparams: Any, norm: Tensor) -> Any:
        return update(grads, state, params, loss, hparams, **dict.fromkeys(keywords, norm))

    many = vmap(one, in_dims=(0, 0, 0, 0, {name: 0 if name == "lr" else None for name in hparams}, 0))
    state: Any = {}
    for _ in range(STEPS):
        losses = torch.stack([stepper.backward() for stepper in steppers])
        params = _stacked([[p.detach() for p in stepper.params] for stepper in steppers])
        grads = _stacked([[p.grad for p in stepper.params] for stepper in steppers])
        norms = torch.stack([flat([p.grad for p in stepper.params]).norm() for stepper in steppers])
        with torch.no_grad():
            moved, state = many(grads, state, params, losses, hparams, norms)
            for stepper, *new in zip(steppers, *moved, strict=True):
                for p, value in zip(stepper.params, new, strict=True):
                    p.copy_(value)
    return _worst(alone, models)


def _stacked(lanes: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(list(tensors)) for tensors in zip(*lanes, strict=True)]
