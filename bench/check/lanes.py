"""Checks of vectorised runs, as in sweeps."""

import itertools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from bench.check.catalogue import CHECKS
from bench.check.findings import Measured, NotApplicable
from bench.check.hyperparameters import others
from bench.check.problem import Attention
from bench.check.steps import STEPS, Stepper, flat
from bench.check.subject import Subject

_TOLERANCE = CHECKS["lanes"].tolerance or 0.0
_FACTORS = (1.0, 0.5, 2.0)  # of lr, one for each lane


def lanes(subject: Subject) -> Measured:
    """The pure update of three lanes, or their instances on one stack of weights, against three runs alone.

    The lanes of a pure update differ in lr, and in each other float in turn, as in sweeps.
    """
    rates = [{} if subject.lr is None else {"lr": factor * subject.lr} for factor in _FACTORS]
    if subject.spec.pure_update is None:
        return Measured(_gap(subject, rates, [_one_by_one(subject, rates)]), "instances, lane by lane")
    subject.refuse_chance()
    if subject.lr is None:
        raise NotApplicable("pure updates need a constructor with lr")
    # Without norms, and with given ones, as in sweeps.
    ways = dict.fromkeys([(), tuple(sorted(subject.spec.update_keywords))])
    worst, differs = 0.0, ""
    for name, own in _varied(subject, rates):
        found = _gap(subject, own, [_updated(subject, own, keywords) for keywords in ways])
        if found > worst:
            worst, differs = found, f", with values of {name}"
    return Measured(worst, "pure update through vmap" + (differs if worst > _TOLERANCE else ""))


def _varied(subject: Subject, rates: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The lanes' arguments: lr alone, then with other values of one float hyperparameter, where they are legal."""
    yield "lr", rates
    for name, value in subject.hparams.items():
        if isinstance(value, float) and name != "lr":
            values = [value]
            for other in others(value):
                with suppress(Exception):  # an illegal value
                    subject.stepper(arguments={name: other})
                    values.append(other)
            if len(values) > 1:
                lanes = zip(rates, itertools.cycle(values), strict=False)
                yield name, [{**rate, name: each} for rate, each in lanes]


def _gap(subject: Subject, arguments: list[dict[str, Any]], found: list[list[Attention]]) -> float:
    """The largest gap of lanes from runs alone with these arguments."""
    models = zip(_models(subject), arguments, strict=True)
    alone = [subject.stepper(model, arguments=own).run() for model, own in models]
    return max(
        Stepper(subject.spec, model).gap(stepper)
        for models in found
        for stepper, model in zip(alone, models, strict=True)
    )


def _models(subject: Subject) -> list[Attention]:
    return [subject.attention(seed=10 * lane) for lane in range(len(_FACTORS))]


def _one_by_one(subject: Subject, rates: list[dict[str, Any]]) -> list[Attention]:
    """Models whose weights are views of one stack, after steps of an instance for each."""
    models = _models(subject)
    for name, _ in list(models[0].named_parameters()):
        stack = torch.stack([getattr(model, name).detach() for model in models])
        for model, view in zip(models, stack, strict=True):
            setattr(model, name, nn.Parameter(view))
    steppers = [subject.stepper(model, arguments=rate) for model, rate in zip(models, rates, strict=True)]
    for _ in range(STEPS):
        for stepper in steppers:
            stepper.step()
    return models


def _updated(subject: Subject, arguments: list[dict[str, Any]], keywords: tuple[str, ...]) -> list[Attention]:
    """Models after steps of the pure update; arguments that the lanes have are tensors."""
    models = _models(subject)
    steppers = [Stepper(subject.spec, model) for model in models]
    varied = {name: torch.tensor([own[name] for own in arguments], dtype=torch.float64) for name in arguments[0]}
    hparams = subject.hparams | varied
    update = subject.spec.pure_update
    assert update is not None

    def one(grads: Any, state: Any, params: Any, loss: Any, hparams: Any, norm: Tensor) -> Any:
        return update(grads, state, params, loss, hparams, **dict.fromkeys(keywords, norm))

    many = vmap(one, in_dims=(0, 0, 0, 0, {name: 0 if name in varied else None for name in hparams}, 0))
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
    return models


def _stacked(lanes: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(list(tensors)) for tensors in zip(*lanes, strict=True)]
