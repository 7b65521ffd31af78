"""Many runs of an optimizer as one program, as sweeps train them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from bench.check.steps import STEPS, NotApplicable, Pair, flat
from bench.check.subject import Finding, Subject

_LANES = 3


def lanes(subject: Subject) -> Finding:
    """The pure update of three lanes, or their instances on one stack of weights, against three runs alone."""
    factors = (1.0, 0.5, 2.0)
    rates = [{} if subject.lr is None else {"lr": factor * subject.lr} for factor in factors]
    alone = [subject.pair(subject.attention(seed=10 * lane), arguments=rate).run() for lane, rate in enumerate(rates)]
    if subject.spec.pure_update is None:
        return _one_by_one(subject, alone, rates)
    subject.refuse_chance()
    if subject.lr is None:
        raise NotApplicable("pure updates need a constructor with lr")
    return _together(subject, alone, [factor * subject.lr for factor in factors])


def _worst(alone: list[Pair], models: list[Any]) -> float:
    return max(Pair(pair.subject, model, None).gap(pair) for pair, model in zip(alone, models, strict=True))


def _one_by_one(subject: Subject, alone: list[Pair], rates: list[dict[str, Any]]) -> Finding:
    models = [subject.attention(seed=10 * lane) for lane in range(_LANES)]
    for name, _ in list(models[0].named_parameters()):
        stack = torch.stack([getattr(model, name).detach() for model in models])
        for model, view in zip(models, stack, strict=True):
            setattr(model, name, nn.Parameter(view))
    pairs = [subject.pair(model, arguments=rate) for model, rate in zip(models, rates, strict=True)]
    for _ in range(STEPS):
        for pair in pairs:
            pair.step()
    return Finding(_worst(alone, models), "instances, lane by lane")


def _together(subject: Subject, alone: list[Pair], rates: list[float]) -> Finding:
    """With norms that are told, as sweeps tell them, and without."""
    ways = [(), tuple(sorted(subject.spec.update_keywords))]
    found = [_moved(subject, alone, rates, keywords) for keywords in dict.fromkeys(ways)]
    return Finding(max(found), "pure update through vmap")


def _moved(subject: Subject, alone: list[Pair], rates: list[float], keywords: tuple[str, ...]) -> float:
    models = [subject.attention(seed=10 * lane) for lane in range(_LANES)]
    # Only evaluates; what steps is the update.
    pairs = [Pair(subject, model, torch.optim.SGD(model.parameters())) for model in models]
    hparams = {**subject.hparams, "lr": torch.tensor(rates, dtype=torch.float64)}
    update = subject.spec.pure_update
    assert update is not None

    def one(grads: Any, state: Any, params: Any, loss: Any, hparams: Any, norm: Tensor) -> Any:
        return update(grads, state, params, loss, hparams, **dict.fromkeys(keywords, norm))

    many = vmap(one, in_dims=(0, 0, 0, 0, {name: 0 if name == "lr" else None for name in hparams}, 0))
    state: Any = {}
    for _ in range(STEPS):
        losses = torch.stack([pair.backward() for pair in pairs])
        params = _stacked([[p.detach() for p in pair.params] for pair in pairs])
        grads = _stacked([[p.grad for p in pair.params] for pair in pairs])
        norms = torch.stack([flat([p.grad for p in pair.params]).norm() for pair in pairs])
        with torch.no_grad():
            moved, state = many(grads, state, params, losses, hparams, norms)
            for pair, *new in zip(pairs, *moved, strict=True):
                for p, value in zip(pair.params, new, strict=True):
                    p.copy_(value)
    return _worst(alone, models)


def _stacked(lanes: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(list(tensors)) for tensors in zip(*lanes, strict=True)]
