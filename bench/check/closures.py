"""Checks of `step(closure)`: what it returns, the global state that it must leave alone, and its cost."""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bench.check import failing
from bench.check.steps import ROUNDING, STEPS, Fault, Stepper, at_most, equal, generators, values
from bench.check.subject import Subject
from optimizers.step_size import once_known


@failing("set-up")
def check_closure(optimizer: Subject) -> None:
    """The closure runs with gradients enabled, also under no_grad; step returns its loss and leaves it as it is.

    Exact. A move through .data before the closure would hide from it that its loss is old. Mend: write `with
    torch.enable_grad(): loss = closure()` first, `return loss`, and move weights under torch.no_grad().
    """
    stepper = optimizer.stepper()
    losses, at, versions = list[tuple[Tensor, Tensor]](), list[list[Tensor]](), list[int]()

    def closure() -> Tensor:  # a fault raised here names the line of the caller
        if not torch.is_grad_enabled():
            raise Fault("the closure runs with gradients disabled")
        at.append(values(stepper.params))
        if len(at) == 1 and stepper.moved() and versions == [p._version for p in stepper.params]:
            raise Fault("it moves weights through .data before it calls the closure; move them under torch.no_grad()")
        loss = stepper.backward()
        losses.append((loss, loss.clone()))
        return loss

    for _ in range(STEPS):
        stepper.backward()
        stepper.start, versions = values(stepper.params), [p._version for p in stepper.params]
        losses.clear()
        at.clear()
        with torch.no_grad():
            returned = stepper.optimizer.step(closure)
            if torch.is_grad_enabled():
                raise Fault("gradients are enabled after a step under no_grad")
        if not losses:
            raise Fault("step(closure) does not call the closure")
        if len(at) == 1 and not equal(at[0], stepper.start) and equal(at[0], stepper.params):
            raise Fault("it steps first and then calls the closure, whose gradients it uses a step late")
        if not equal(*zip(*losses, strict=True)):
            raise Fault("it changes the closure's loss in place, which the caller logs")
        if not isinstance(returned, Tensor | float) or float(returned) != float(losses[0][1]):
            raise Fault(f"step(closure) returns {returned!r}, not the closure's loss")


@failing("set-up")
def check_closure_gradients(optimizer: Subject) -> None:
    """Gradients from the closure, which clears and computes them anew, give the same step as gradients from before.

    torch's protocol is `step(closure)` with `zero_grad()` and `backward()` inside. A step that changes .grad before it
    calls the closure loses this work. Tolerance 1e-9 of the way. Mend: call the closure first.
    """
    ahead, moves = optimizer.stepper(), list[bool]()

    def known(closure: Callable[[], Tensor]) -> Any:
        before = values(ahead.params)
        return ahead.optimizer.step(lambda: moves.append(not equal(before, ahead.params)) or closure())

    def stale(closure: Callable[[], Tensor]) -> Any:
        for p in inside.params:
            p.grad = torch.full_like(p, 0.7)  # of another batch
        return inside.optimizer.step(closure)

    ahead.run(by=known)
    if optimizer.spec.traits.calls_closure_again or any(moves):
        pytest.skip("it evaluates the closure at other weights, so it needs the gradients from before")
    inside, shifted, without = (optimizer.stepper() for _ in range(3))
    at_most(ROUNDING, inside.run(by=stale).gap(ahead), "with gradients only from the closure, the gap is")
    shifted.run(by=lambda closure: shifted.optimizer.step(lambda: closure() + 1.0))
    if not optimizer.spec.traits.needs_loss and shifted.gap(ahead) == 0:
        with suppress(Exception):  # it needs a closure
            without.run(by=lambda closure: without.optimizer.step())
        if without.taken == STEPS:
            at_most(ROUNDING, without.gap(ahead), "without a closure, the gap to step(closure) is")


def _long(optimizer: Subject) -> Iterator[Callable[[], Any]]:
    """The constructor, and then many steps, as functions to call."""
    model, instances = optimizer.attention(), list[Any]()
    yield lambda: instances.append(optimizer.make(list(model.parameters()), seeded=None))
    stepper = Stepper(optimizer.spec, model, instances[0])
    for _ in range(110):  # what happens every tenth or fiftieth step has happened
        loss = stepper.backward()
        yield lambda loss=loss: stepper.optimizer.step(lambda: loss)


_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], tuple[Any, ...]]] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype, (torch.float32, torch.float64)),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads, (1, 2)),
    "whether gradients are enabled": (torch.is_grad_enabled, torch.set_grad_enabled, (True, False)),
    "deterministic algorithms": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, (0, 0)),
    "float32 matmul": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, ("highest", "high")),
    "numpy's handling of errors": (np.geterr, lambda how: np.seterr(**how), (dict(np.geterr(), over="warn"),) * 2),
}
"""How to read and to write each, and two starting points, since a value that is set again to the same is not seen."""


@failing("results")
def check_globals(optimizer: Subject) -> str:
    """Constructor and step leave torch's, numpy's and Python's settings and random generators alone.

    Else dropout and the order of the data would change with the optimizer. Exact, over 110 steps. Mend: pass dtype=,
    use context managers, never seed a global generator; draw from your own torch.Generator and keep its state in
    state_dict, or declare Traits(draws=True).
    """
    usual, drawn = {name: read() for name, (read, _, _) in _SETTINGS.items()}, ""
    try:
        for start in (0, 1):
            before = {name: starts[start] for name, (_, _, starts) in _SETTINGS.items()}
            for name, value in before.items():
                _SETTINGS[name][1](value)
            for number, call in enumerate(_long(optimizer)):
                for draw in (np.random.rand, random.random, lambda: torch.rand(1)):
                    draw()  # so that seeding is seen
                states = generators()
                call()
                what = f"step {number}" if number else "its constructor"
                for name, (read, _, _) in _SETTINGS.items():
                    if (now := read()) != before[name]:
                        raise Fault(f"{what} changes {name} from {before[name]} to {now}")
                for name in [name for name, state in generators().items() if state != states[name]]:
                    if number == 0 or not optimizer.spec.traits.draws:
                        raise Fault(f"{what} touches {name}")
                    drawn = "it draws, as declared"
    finally:
        for name, value in usual.items():
            _SETTINGS[name][1](value)
    return drawn


@failing("speed")
def check_syncs(optimizer: Subject) -> None:
    """A step never synchronises with the GPU: no .item(), float(), bool() or nonzero() of GPU tensors.

    Each makes the host wait. Seen in three steps on torch's meta device, whose tensors have no values to read. Mend:
    keep norms, losses and step sizes as 0-dim tensors on the parameters' device, use torch.where and clamp, not if.
    """
    optimizer.refuse_graph()
    has_foreach = "foreach" in optimizer.hparams and not optimizer.hparams.get("fused")  # the default of a GPU
    for arguments in [{}, {"foreach": True}] if has_foreach else [{}]:
        params = [nn.Parameter(p.detach().to("meta")) for p in optimizer.attention().parameters()]
        instance = optimizer.make(params, **arguments)

        def closure(params: Any = params) -> Tensor:
            for p in params:
                p.grad = torch.empty_like(p)
            return torch.empty((), dtype=torch.float64, device="meta")

        for _ in range(3):
            known = closure()
            try:
                instance.step(once_known(known, params, lambda _: closure()))
            except (NotImplementedError, RuntimeError) as error:
                if isinstance(error, NotImplementedError) or "on meta tensors" in str(error):
                    message = f"a step needs values on the host: {error}".partition("\n")[0]
                    raise Fault(message).with_traceback(error.__traceback__) from None
                pytest.skip(f"it does not step on torch's meta device: {error}")
