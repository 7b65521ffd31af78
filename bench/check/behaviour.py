"""Checks that an optimizer optimizes and takes the right steps."""

import inspect
from collections.abc import Callable
from math import inf, isfinite
from typing import Any

import numpy as np
import torch
from torch.nn.utils import vector_to_parameters
from torch.optim import Optimizer

from bench.check.catalogue import CHECKS
from bench.check.findings import Failed, Measured, NotApplicable, Raised
from bench.check.steps import Stepper, flat
from bench.check.subject import Subject
from bench.errors import described

_TOLERANCE = CHECKS["quadratic"].tolerance or 0.0
_FACTORS = (1.0, 10.0, 100.0, 0.1, 1000.0, 0.01)


def builds(subject: Subject) -> Measured:
    """Build it in the usual ways, and take one step."""
    ways: dict[str, Callable[[list[Any]], Any]] = {
        "a list of parameters": list,
        "a generator of parameters": iter,
    }
    for name, groups in ways.items():
        try:
            stepper = subject.stepper(groups=groups)
        except Exception as error:
            raise Raised(f"made from {name}: {described(error)}") from error
        optimizer = stepper.optimizer
        if not isinstance(optimizer, Optimizer):
            raise Failed(f"the result is a {type(optimizer).__name__}, not a torch.optim.Optimizer")
        owned = sorted(id(p) for group in optimizer.param_groups for p in group["params"])
        if owned != sorted(id(p) for p in stepper.params):
            raise Failed(f"made from {name}, its param_groups do not contain each parameter exactly once")
        stepper.step()
    return Measured(None, "on matrices only" if subject.matrices else "by role" if subject.by_role else "")


def _lowered(subject: Subject, model: Callable[[], Any]) -> Measured:
    """Lowest loss after some steps over the initial loss, and its factor on lr."""
    best, at = inf, 1.0
    for factor in _FACTORS if subject.lr else _FACTORS[:1]:
        stepper = subject.stepper(model(), arguments={"lr": factor * subject.lr} if subject.lr else {})
        before = float(stepper.backward())
        stepper.run(60)
        if callable(getattr(stepper.optimizer, "eval", None)):
            stepper.optimizer.eval()  # methods that keep other weights for evaluation
        ratio = float(stepper.backward()) / before
        if isfinite(ratio) and ratio < best:
            best, at = ratio, factor
        if best <= _TOLERANCE:
            break
    return Measured(best, f"at lr {at * subject.lr:g}" if subject.lr else "")


def quadratic(subject: Subject) -> Measured:
    """Remaining fraction of a quadratic's value."""
    return _lowered(subject, subject.quadratic)


def attention(subject: Subject) -> Measured:
    """Remaining fraction of an attention head's loss."""
    return _lowered(subject, subject.attention)


def reference(subject: Subject) -> Measured:
    """Compare its steps with a function.

        reference(weights, gradient, loss, step, memory, **hyperparameters) -> new weights

    Weights and gradient are float64 numpy vectors of all elements, loss is a float, step counts from 0, memory is a
    dict for the method's state, initially empty. The function receives the constructor's arguments that it names;
    with `**more` also all that were set by hand.
    """
    formula = subject.reference
    if formula is None:
        raise NotApplicable("no reference was given; name one with --reference module:function")
    subject.refuse_chance()
    parameters = inspect.signature(formula).parameters
    takes_more = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    told = {name: value for name, value in subject.hparams.items() if name in parameters}
    told |= subject.arguments if takes_more else {}
    stepper, at = subject.stepper(), Stepper(subject.spec, subject.attention())
    weights, memory = flat(at.params).numpy(), {}
    worst = 0.0
    for step in range(10):
        vector_to_parameters(torch.from_numpy(np.asarray(weights, dtype=np.float64)), at.params)
        loss = float(at.backward())
        gradient = flat([p.grad for p in at.params if p.grad is not None]).numpy()
        weights = formula(weights, gradient, loss, step, memory, **told)
        stepper.step()
        vector_to_parameters(torch.from_numpy(np.asarray(weights, dtype=np.float64)), at.params)
        worst = max(worst, stepper.gap(at))
    return Measured(worst, "largest gap in 10 steps")
