"""Checks of closures, keywords of `step` and given gradients."""

import inspect
from math import inf, isnan
from typing import Any

import torch
from torch import Tensor

from bench.check.findings import Failed, Measured, NotApplicable
from bench.check.probes import place
from bench.check.steps import values
from bench.check.subject import Subject


def closure(subject: Subject) -> Measured:
    """Step as a plain training loop does, under no_grad."""
    stepper = subject.stepper()
    disabled: list[str] = []
    losses: list[Tensor] = []
    versions = [p._version for p in stepper.params]

    def evaluate() -> Tensor:
        unnoticed = versions == [p._version for p in stepper.params]
        if not losses and unnoticed and not all(map(torch.equal, stepper.params, stepper.start)):
            raise Failed(
                "it moves weights through .data before it calls the closure, which then returns the loss from before;"
                f" move them under torch.no_grad(){_step(stepper.optimizer)}"
            )
        if not torch.is_grad_enabled():
            disabled.append(place())
        with torch.enable_grad():
            losses.append(stepper.backward())
        return losses[-1]

    evaluate()
    del disabled[:], losses[:]
    with torch.no_grad():
        returned = stepper.optimizer.step(evaluate)
        if torch.is_grad_enabled():
            raise Failed(f"gradients are enabled after a step under no_grad{_step(stepper.optimizer)}")
    if not losses:
        raise Failed(f"step(closure) does not call the closure{_step(stepper.optimizer)}")
    if disabled:
        raise Failed("the closure runs with gradients disabled" + (f" ({disabled[0]})" if disabled[0] else ""))
    if not isinstance(returned, Tensor | float):
        raise Failed(f"step(closure) returns {returned!r}, not the closure's loss{_step(stepper.optimizer)}")
    apart = abs(float(returned) - float(losses[0]))
    return Measured(inf if isnan(apart) else apart)


def _step(optimizer: Any) -> str:
    """The source location of its `step`."""
    code = getattr(inspect.unwrap(type(optimizer).step), "__code__", None)
    return f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""


def closure_calls(subject: Subject) -> Measured:
    """Calls of the closure."""
    calls = max(subject.stepper().run(4).calls)
    declared = subject.spec.traits.calls_closure_again
    note = f"{calls} a step" + (", as declared" if declared else "")
    if calls == 0 and subject.spec.traits.needs_loss:
        raise Failed("it declares that it needs the loss but never calls the closure")
    return Measured(0.0 if declared else float(max(calls - 1, 0)), note)


def norm_keywords(subject: Subject) -> Measured:
    """Given norms against its own."""
    keywords = sorted(subject.spec.step_keywords)
    if not keywords:
        raise NotApplicable("its step takes no norm")
    return Measured(subject.stepper().run(norms=True).gap(subject.stepper().run()), ", ".join(keywords))


def micro_batches(subject: Subject) -> Measured:
    """Three micro-batches of different sizes against one batch."""
    return Measured(subject.stepper().run(parts=3).gap(subject.stepper().run()))


def grad_scaler(subject: Subject) -> Measured:
    """Scaled losses, unscaled before the step, against a run without; then a gradient that overflows."""
    if subject.spec.traits.calls_closure_again or subject.spec.traits.create_graph:
        raise NotApplicable("a GradScaler cannot follow a method that evaluates or differentiates the loss again")
    plain, scaled = (subject.stepper(subject.attention(torch.float32)) for _ in range(2))
    plain.run()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    overflow = False

    def by(evaluate: Any) -> Any:
        """The sequence of `tasks.core.training_step` with given gradients: scale, unscale, step, update."""
        with torch.no_grad():
            for p in scaled.params:
                p.grad.mul_(scaler.get_scale())
                if overflow:
                    p.grad.fill_(inf)
        scaler.scale(torch.zeros(()))  # tells the scaler that a loss was scaled
        scaler.unscale_(scaled.optimizer)
        value = scaler.step(scaled.optimizer, evaluate)
        scaler.update()
        return value

    scaled.run(by=by)
    result = scaled.gap(plain)
    before, overflow = values(scaled.params), True
    scaled.step(by=by)
    if not all(map(torch.equal, scaled.params, before)):
        raise Failed("a gradient that overflows moves the weights; GradScaler must be able to skip the step")
    overflow = False
    scaled.step(by=by)
    if not all(p.isfinite().all() for p in scaled.params):
        raise Failed("after a skipped step, weights are not finite")
    return Measured(result)
