"""Checks of `step(closure)`, of what it returns, and of the global state that a step must leave alone."""

import gc
import inspect
import random
from collections.abc import Callable, Iterator
from math import inf, isnan
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.check.catalogue import group
from bench.check.probes import place
from bench.check.steps import ROUNDING, STEPS, Fault, Stepper, at_most, equal, generators, gradients, values
from bench.check.subject import Subject

_LONG = 110
"""Steps after which something that happens every tenth or fiftieth step has happened."""


@group("blocks a set-up")
def check_closure(optimizer: Subject) -> None:
    """The closure runs with gradients enabled, also under no_grad; step returns its loss and leaves it as it is.

    Exact. A step must not come before the closure, nor hide moved weights from it: moves through .data keep the version
    of a weight, and a closure that knows the loss already would return the old one. Mend: write `with
    torch.enable_grad(): loss = closure()` first, `return loss`, and move weights under torch.no_grad().
    """
    stepper = optimizer.stepper()
    code = getattr(inspect.unwrap(type(stepper.optimizer).step), "__code__", None)
    where = f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""
    disabled, losses, at, versions = list[str](), list[tuple[Tensor, Tensor]](), list[list[Tensor]](), list[int]()

    def closure() -> Tensor:
        if not torch.is_grad_enabled():
            disabled.append(place())
        at.append(values(stepper.params))
        if len(at) == 1 and stepper.moved() and versions == [p._version for p in stepper.params]:
            raise Fault(
                "it moves weights through .data before it calls the closure, which may then return the loss from"
                f" before; move them under torch.no_grad(){where}"
            )
        loss = stepper.backward()
        losses.append((loss, loss.clone()))
        return loss

    for _ in range(2):
        stepper.backward()
        stepper.start, versions = values(stepper.params), [p._version for p in stepper.params]
        losses.clear()
        at.clear()
        with torch.no_grad():
            returned = stepper.optimizer.step(closure)
            if torch.is_grad_enabled():
                raise Fault(f"gradients are enabled after a step under no_grad{where}")
        if not losses:
            raise Fault(f"step(closure) does not call the closure{where}")
        if disabled:
            raise Fault("the closure runs with gradients disabled" + (f" ({disabled[0]})" if disabled[0] else ""))
        if len(at) == 1 and not equal(at[0], stepper.start) and equal(at[0], stepper.params):
            raise Fault(f"it steps first and then calls the closure, whose gradients it uses a step late{where}")
        if not equal(*zip(*losses, strict=True)):
            raise Fault(f"it changes the closure's loss in place, which the caller logs{where}")
        if not isinstance(returned, Tensor | float):
            raise Fault(f"step(closure) returns {returned!r}, not the closure's loss{where}")
        apart = abs(float(returned) - float(losses[0][1]))
        at_most(0, inf if isnan(apart) else apart, f"step returns another loss than the closure{where}; they differ by")


@group("blocks a set-up")
def check_closure_gradients(optimizer: Subject) -> None:
    """Gradients from the closure, which clears and computes them anew, give the same step as gradients from before.

    torch's protocol is `step(closure)` with `zero_grad()` and `backward()` inside. A step that works on .grad before it
    calls the closure, such as a preconditioner or a clip around another optimizer, loses its work there; one that uses
    gradients from before uses those of the last batch. Tolerance 1e-9 of the way. Mend: call the closure first.
    """
    ahead, moves = optimizer.stepper(), list[bool]()

    def by(closure: Callable[[], Tensor]) -> Any:
        before = values(ahead.params)

        def evaluate() -> Tensor:
            moves.append(not equal(before, ahead.params))
            return closure()

        return ahead.optimizer.step(evaluate)

    ahead.run(by=by)
    if optimizer.spec.traits.calls_closure_again or any(moves):
        pytest.skip("it evaluates the closure at other weights, so it needs the gradients from before")
    inside = optimizer.stepper()
    inside.run(by=lambda closure: _stale(inside, closure))
    at_most(ROUNDING, inside.gap(ahead), "with gradients only from the closure, the gap is")
    shifted, without = optimizer.stepper(), optimizer.stepper()
    shifted.run(by=lambda closure: shifted.optimizer.step(lambda: closure() + 1.0))
    if not optimizer.spec.traits.needs_loss and shifted.gap(ahead) == 0:
        try:
            without.run(by=lambda closure: without.optimizer.step())
        except Exception:
            return  # it needs a closure
        at_most(ROUNDING, without.gap(ahead), "without a closure, the gap to step(closure) is")


def _stale(stepper: Stepper, closure: Callable[[], Tensor]) -> Any:
    """A step that finds the gradients of another batch, which the closure replaces."""
    for p in stepper.params:
        p.grad = torch.full_like(p, 0.7)
    return stepper.optimizer.step(closure)


@group("costs speed")
def check_closure_calls(optimizer: Subject) -> str:
    """It evaluates the closure once per step, or declares calls_closure_again.

    Budgets count evaluations. No call beyond the declared ones is tolerated. Mend: call the closure once, or declare
    Traits(calls_closure_again=True) in the OptimizerSpec.
    """
    calls = max(optimizer.stepper().run(4).calls)
    if calls == 0 and optimizer.spec.traits.needs_loss:
        raise Fault("it declares that it needs the loss but never calls the closure")
    if not optimizer.spec.traits.calls_closure_again:
        at_most(1, calls, "undeclared, the calls of the closure in a step are")
    return f"{calls} a step"


def _long(optimizer: Subject) -> Iterator[Callable[[], Any]]:
    """The constructor, and then many steps with small gradients, as functions to call."""
    params = [nn.Parameter(t) for t in gradients([(3, 2), (2, 1) if optimizer.matrices else (2,)], 4)]
    instance: list[Any] = []
    yield lambda: instance.append(optimizer.make(params, seeded=None))
    if optimizer.spec.traits.create_graph:
        stepper = optimizer.stepper()
        for _ in range(STEPS):
            stepper.backward()
            yield lambda: stepper.optimizer.step(lambda: torch.tensor(0.5))
        return
    for step in range(_LONG):
        for p, grad in zip(params, gradients([p.shape for p in params], step), strict=True):
            p.grad = 0.01 * grad
        yield lambda: instance[0].step(lambda: torch.tensor(0.5, dtype=torch.float64))


_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any] | None]] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "whether gradients are enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "the precision of float32 matmul": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "torch's default device": (torch.get_default_device, None),
    "anomaly detection": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "cudnn.benchmark": (lambda: torch.backends.cudnn.benchmark, None),
    "TF32 of cuda.matmul": (lambda: torch.backends.cuda.matmul.allow_tf32, None),
    "numpy's handling of errors": (np.geterr, lambda value: np.seterr(**value)),
    "whether garbage is collected": (gc.isenabled, lambda value: gc.enable() if value else gc.disable()),
}
"""Global settings: how to read them, and how to put them back."""


@group("changes results")
def check_globals(optimizer: Subject) -> str:
    """Constructor and step leave torch's, numpy's and Python's settings and random generators alone.

    Default dtype, threads, deterministic algorithms and others belong to the user, and with the generators dropout and
    the order of the data would change with the optimizer. Exact, over 110 steps. Mend: pass dtype=, use context
    managers that put a value back, never seed a global generator; draw from your own torch.Generator and keep its state
    in state_dict, or declare Traits(draws=True) in the OptimizerSpec.
    """
    usual, drawn = {name: read() for name, (read, _) in _SETTINGS.items()}, ""
    try:
        # Two starting points, since a value that is set again to the same is not seen.
        for dtype, threads in ((torch.float32, 1), (torch.float64, 2)):
            _put_back(usual | {"torch's default dtype": dtype, "torch's number of threads": threads})
            before = {name: read() for name, (read, _) in _SETTINGS.items()}
            for number, call in enumerate(_long(optimizer)):
                for draw in (np.random.rand, random.random, lambda: torch.rand(1)):
                    draw()  # so that seeding is seen
                states = generators()
                call()
                what = f"step {number}" if number else "its constructor"
                for name, (read, _) in _SETTINGS.items():
                    if (now := read()) != before[name]:
                        raise Fault(f"{what} changes {name} from {before[name]} to {now}")
                for name in [name for name, state in generators().items() if state != states[name]]:
                    if number == 0 or not optimizer.spec.traits.draws:
                        raise Fault(f"{what} touches {name}")
                    drawn = "it draws, as declared"
    finally:
        _put_back(usual)
    return drawn


def _put_back(settings: dict[str, Any]) -> None:
    for name, (_, write) in _SETTINGS.items():
        if write is not None:
            write(settings[name])
