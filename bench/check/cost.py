"""Cost of a step: synchronisations, memory, time."""

import gc
import statistics
import timeit
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bench.check.findings import Measured
from bench.check.probes import Memory, Reads
from bench.check.steps import Stepper
from bench.check.subject import Subject


def syncs(subject: Subject) -> Measured:
    """Synchronisations in two steps with the kernels of a GPU: foreach if available."""
    most: list[str] = []
    for way in subject.kernels:
        stepper = subject.stepper(arguments=way).run(1)
        for _ in range(2):
            watch = Reads()
            _watched(stepper, watch)
            most = max(most, watch.reads, key=len)
    return Measured(float(len(most)), ", ".join(dict.fromkeys(most)))


def leaks(subject: Subject) -> Measured:
    """Growth of live memory between steps 80 and 120."""
    stepper, watch = subject.stepper(), Memory()
    for _ in range(80):
        _watched(stepper, watch)
    first = _settled(watch)
    watch.places = True
    for _ in range(40):
        _watched(stepper, watch)
    grown = max(0, _settled(watch) - first)
    where = watch.most() if grown else ""
    return Measured(grown / _size(stepper.params), f"the remaining memory is allocated in {where}" if where else "")


def _watched(stepper: Stepper, watch: Any) -> None:
    """One step with observation of the optimizer's part; weights, gradients and loss are given."""

    def by(evaluate: Callable[[], Tensor], **told: Tensor) -> None:
        watch.given([*stepper.params, *(p.grad for p in stepper.params), evaluate()])
        stepper.calls[-1] = 0
        with watch:
            stepper.optimizer.step(evaluate, **told)

    stepper.step(by=by)


def _settled(memory: Memory) -> int:
    gc.collect()
    return memory.now()


def memory(subject: Subject) -> Measured:
    """State and temporaries in the third step."""
    state, temporaries = _copies(subject, {})
    return Measured(state, f"state {state:.2g}, temporaries {temporaries:.2g}")


def temporaries(subject: Subject) -> Measured:
    """Temporaries beyond the declared ones, with the kernels of GPUs."""
    most = max(_copies(subject, way)[1] for way in subject.kernels)
    declared = subject.spec.temporaries
    return Measured(max(0.0, most - declared), f"{most:.2g} copies, {declared:g} declared")


def _copies(subject: Subject, arguments: Mapping[str, Any]) -> tuple[float, float]:
    """State after two steps, and temporaries at the peak of a third, in copies of the parameters."""
    params = _large(subject, 40_000)
    with Memory(peaks=True) as watch:
        optimizer = subject.make(params, **arguments)
        _push(subject, optimizer, params)
        _push(subject, optimizer, params)
        state = watch.now()
        watch.peak = 0
        _push(subject, optimizer, params)
        peak = watch.peak
    size = _size(params)
    return state / size, max(0, peak - state) / size


def time(subject: Subject) -> Measured:
    """Median time of a step, in units of copying the parameters."""
    params = _large(subject, 250_000)
    optimizer, others = subject.make(params), [torch.empty_like(p) for p in params]
    _push(subject, optimizer, params)
    step = _median(lambda: _push(subject, optimizer, params))
    copy = _median(lambda: torch._foreach_copy_(others, [p.detach() for p in params]))
    return Measured(step / copy, f"{1e3 * step:.2g} ms for 1,000,000 parameters")


def _large(subject: Subject, elements: int) -> list[nn.Parameter]:
    """Four parameters with fixed gradients."""
    params = []
    others = [(100, elements // 100)] * 2 if subject.matrices else [(elements,), (elements // 100, 10, 10)]
    for shape in [(elements // 500, 500), (500, elements // 500), *others]:
        p = nn.Parameter(torch.full(shape, 0.1))
        p.grad = torch.full(shape, 0.01)
        params.append(p)
    return params


def _push(subject: Subject, optimizer: Any, params: list[nn.Parameter]) -> None:
    subject.push(optimizer, params, [p.grad for p in params])


def _size(params: list[Any]) -> int:
    return sum(p.numel() * p.element_size() for p in params)


def _median(call: Callable[[], Any]) -> float:
    return statistics.median(timeit.repeat(call, repeat=15, number=1))
