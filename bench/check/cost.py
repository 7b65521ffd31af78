"""Checks of what a step costs: synchronisations with a GPU, temporaries, memory that grows."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bench.check.catalogue import group
from bench.check.probes import Memory, Reads
from bench.check.state import values_outside
from bench.check.steps import Fault, Stepper, at_most, leaves
from bench.check.subject import Subject
from optimizers.step_size import once_known


def _kernels(optimizer: Subject) -> list[dict[str, Any]]:
    """Further arguments of the constructor: none, and those for the kernels of a GPU, if it takes them."""
    return [{}, {"foreach": True}] if "foreach" in optimizer.hparams and not optimizer.hparams.get("fused") else [{}]


@group("costs speed")
def check_syncs(optimizer: Subject) -> None:
    """A step never synchronises with the GPU: no .item(), float(), bool() or nonzero() of GPU tensors.

    Each makes the host wait for the device. Counted in two steps, with the kernels of a GPU. Mend: keep norms, losses
    and step sizes as 0-dim tensors, use torch.where and clamp instead of if.
    """
    most: list[str] = []
    for arguments in _kernels(optimizer):
        stepper = optimizer.stepper(arguments=arguments).run(1)
        for _ in range(2):
            watch = Reads()
            _watched(stepper, watch)
            most = max(most, watch.reads, key=len)
    at_most(0, len(most), f"{', '.join(dict.fromkeys(most))}: synchronisations in a step are")


def _watched(stepper: Stepper, watch: Any) -> None:
    """One step with observation of the optimizer's part; weights, gradients and loss are given."""

    def by(closure: Callable[[], Tensor]) -> None:
        loss = closure()
        stepper.calls[-1] = 0
        if isinstance(watch, Reads):
            watch.given([*stepper.params, *(p.grad for p in stepper.params), loss])
        with watch:
            stepper.optimizer.step(once_known(loss, stepper.params, closure))

    stepper.step(by=by)


@group("costs speed")
def check_temporaries(optimizer: Subject) -> str:
    """A step allocates no more full-size temporaries than declared.

    Peak memory decides which model fits. Tolerance 0.05 copies of the parameters beyond `OptimizerSpec.temporaries` (2
    if undeclared), for scalars. Mend: work in place or tensor by tensor, or declare OptimizerSpec(temporaries=N).
    """
    declared, sizes = optimizer.spec.temporaries, [_copies(optimizer, arguments) for arguments in _kernels(optimizer)]
    most = max(temporaries for _, temporaries in sizes)
    at_most(declared + 0.05, most, f"{declared:g} copies of the parameters are declared, a step has")
    return f"in copies of the parameters: state {sizes[0][0]:.3g}, temporaries {most:.2g}"


def _copies(optimizer: Subject, arguments: Mapping[str, Any]) -> tuple[float, float]:
    """State after two steps, and temporaries at the peak of a third, in copies of the parameters."""
    others = [(100, 400)] * 2 if optimizer.matrices else [(40_000,), (400, 10, 10)]
    params = [nn.Parameter(torch.full(shape, 0.1)) for shape in [(80, 500), (500, 80), *others]]
    grads = [torch.full_like(p, 0.01) for p in params]
    with Memory() as watch:
        instance = optimizer.make(params, **arguments)
        optimizer.push(instance, params, grads)
        optimizer.push(instance, params, grads)
        state = watch.now()
        watch.peak = 0
        optimizer.push(instance, params, grads)
    size = sum(p.numel() * p.element_size() for p in params)
    return state / size, max(0, watch.peak - state) / size


@group("blocks a set-up")
def check_leaks(optimizer: Subject) -> None:
    """Memory does not grow with the number of steps, neither in tensors nor in lists of numbers.

    Long runs die of it, and every checkpoint grows. Nothing may be added in 40 steps after 120, so a bounded history is
    fine. Mend: detach() stored tensors, and store only as many as the method needs.
    """
    stepper, (before, after) = optimizer.stepper(), ({}, {})
    for steps in (120, 40):
        stepper.run(steps)
        held = [vars(stepper.optimizer), [vars(p) for p in stepper.params], values_outside(stepper.optimizer)]
        before, after = after, leaves(held, of=_size)
    if new := [place for place in after if place not in before] if len(after) > len(before) else []:
        raise Fault(
            f"40 late steps add entries to what it keeps, such as {new[-1]}; their number is {len(new)}", len(new)
        )
    for place, size in after.items():
        if isinstance(size, tuple) and place in before and size > before[place]:
            raise Fault(
                f"in 40 late steps, {place} grows from {before[place]} to {size} bytes and operations in its graph"
            )


def _size(tensor: Tensor) -> tuple[int, int]:
    """The bytes of a tensor, and the operations in the graph that it keeps alive."""
    left, nodes = [tensor.grad_fn], set[Any]()
    while left:
        node = left.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            left += [function for function, _ in node.next_functions]
    return tensor.numel() * tensor.element_size(), len(nodes)
