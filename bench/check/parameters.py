"""Checks of parameters, gradients and state: every kind of parameter, resuming, averages, memory that grows."""

import io
import pickle
import re
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bench.check import failing
from bench.check.steps import ROUNDING, STEPS, Fault, at_most, difference, equal, gap, gradients, leaves, values
from bench.check.subject import Subject

_MATRICES = ((3, 5), (5, 3), (4, 4), (1, 6), (140, 140), (1030, 4), (4, 1030))
_OTHERS = ((), (1,), (7,), (0, 3), (2, 3, 4), (4, 3, 3, 3), (2, 2, 2, 2, 2))


@failing("results")
def check_kinds(optimizer: Subject) -> None:
    """Parameters of every shape and layout are trained: scalars, vectors, convolutions, transposed, empty ones.

    A forgotten branch leaves biases or convolutions at their initial values, and the loss still falls. In float64 and
    float32, most elements of each parameter must move in 6 steps with gradients of its layout or contiguous, and stay
    finite. Mend: handle every number of dimensions, use reshape instead of view, do not average over zero elements.
    """
    for dtype in (torch.float64, torch.float32):
        _check_kinds(optimizer, dtype, 1.0)


@failing("set-up")
def check_bf16(optimizer: Subject) -> None:
    """Parameters in bfloat16 are trained and keep their dtype.

    As for `kinds`, from small weights, where bfloat16 resolves small steps. Mend: create state and constants in the
    parameter's dtype or wider, and update the parameter in place.
    """
    _check_kinds(optimizer, torch.bfloat16, 0.0)


def _check_kinds(optimizer: Subject, dtype: torch.dtype, size: float) -> None:
    shapes = _MATRICES if optimizer.matrices else _MATRICES + _OTHERS
    start = [(size * (1 + g)).to(dtype) for g in gradients(shapes, 8)]
    start[0] = start[0].t().contiguous().t()
    params = [nn.Parameter(t.clone()) for t in start]
    instance, changed = optimizer.make(params), [torch.zeros_like(t, dtype=torch.bool) for t in start]
    for step in range(STEPS):
        grads = [g.to(dtype) for g in gradients(shapes, step)]
        laid = [torch.empty_like(p).copy_(g) for p, g in zip(params, grads, strict=True)]
        optimizer.push(instance, params, grads if step == 1 else laid)
        for p, before, ever in zip(params, start, changed, strict=True):
            ever |= p.detach() != before  # signs may lead back
    for p, shape, ever in zip(params, shapes, changed, strict=True):
        if p.shape != shape or p.dtype != dtype or not p.isfinite().all():
            raise Fault(f"6 steps make a parameter of shape {shape}, {dtype}, {tuple(p.shape)}, {p.dtype} or NaN")
        if ever.numel() and (share := float(ever.double().mean())) < 0.5:
            raise Fault(f"6 steps change {share:.0%} of a parameter of shape {shape}, {dtype}")


@failing("set-up")
def check_frozen(optimizer: Subject) -> None:
    """Frozen parameters and those without a gradient stay unchanged and do not affect the others; one may come later.

    Tolerance 1e-9 of the way. Mend: skip parameters whose .grad is None, and create their state at the first gradient.
    """
    still, unused = nn.Parameter(torch.ones(3, 1), requires_grad=False), nn.Parameter(torch.ones(2, 1))
    for label, setting in optimizer.additions():
        alone = optimizer.stepper(arguments=setting).run()
        among = optimizer.stepper(groups=lambda params: [still, unused, *params], arguments=setting).run()
        if not equal([still, unused], [torch.ones(3, 1), torch.ones(2, 1)]):
            raise Fault(f"with {label}, a frozen parameter, or one without a gradient, has moved")
        at_most(ROUNDING, among.gap(alone), f"with {label}, the gap to a run without them is")
    if optimizer.spec.traits.create_graph:
        return
    params = [nn.Parameter(t) for t in gradients([(4, 3), (3, 2)], 9)]
    instance, start = optimizer.make(params), values(params)
    for step, has_gradient in enumerate((False, False, False, True, True, False, True)):
        grads: list[Any] = gradients([p.shape for p in params], step)
        optimizer.push(instance, params, [grads[0], grads[1] if has_gradient else None])
        if step == 2 and not torch.equal(params[1], start[1]):
            raise Fault("a parameter moves before its first gradient")
    if torch.equal(params[1], start[1]) or not all(p.isfinite().all() for p in params):
        raise Fault("a parameter whose first gradient comes in step 4 is never trained, or not finite")


@failing("results")
def check_gradients(optimizer: Subject) -> None:
    """A step does not change, replace or zero .grad, and nothing that it keeps shares memory with it.

    Logging, accumulation and clipping read it after the step; DDP and zero_grad(set_to_none=False) write into it, and
    would overwrite a momentum that begins as the gradient itself. Exact, also where it is large, and with each option
    that is off by default. Mend: create a new tensor (grad = grad + weight_decay * p), clone() the first gradient, and
    leave zero_grad to the caller.
    """
    for label, setting in optimizer.additions():
        stepper = optimizer.stepper(arguments=setting)
        for scale in (*[1.0] * 11, 1e4):  # the last one is clipped, if any
            loss, grads = stepper.backward(), [p.grad for p in stepper.params]
            torch._foreach_mul_(grads, scale)
            before, again = values(grads), list[Tensor]()

            def closure(known: Tensor = loss, stepper: Any = stepper, again: list[Tensor] = again) -> Tensor:
                if any(p.grad is None for p in stepper.params):  # cleared before it is evaluated, as torch documents it
                    again.append(stepper.backward())
                return known

            stepper.optimizer.step(closure)
            for i, (p, grad, value) in enumerate(zip(stepper.params, grads, before, strict=True)):
                if not again and (p.grad is not grad or not equal([grad], [value])):
                    raise Fault(f".grad of parameter {i}, shape {tuple(p.shape)}, differs after step, with {label}")
    if optimizer.spec.traits.create_graph:
        return
    fresh, reused = optimizer.stepper(), optimizer.stepper()
    buffers = [torch.zeros_like(p) for p in reused.params]
    for step in range(STEPS):
        grads = gradients([p.shape for p in fresh.params], step)
        torch._foreach_copy_(buffers, grads)
        optimizer.push(fresh.optimizer, fresh.params, grads)
        optimizer.push(reused.optimizer, reused.params, buffers)
        torch._foreach_zero_(buffers)
    at_most(0, reused.gap(fresh), "with gradients that are overwritten after each step, the gap is")


@failing("results")
def check_resume(optimizer: Subject) -> None:
    """A run resumed from state_dict() equals the uninterrupted one, also where lr is halved afterwards.

    Exact, with both runs stepping in turn: in float32 after 3 and after 110 steps, and with bfloat16 parameters, whose
    dtype load_state_dict gives to floating-point state. An attribute that changes and is not restored fails even if the
    weights agree: signs may hide it. Mend: keep all state in self.state[p] or in the groups, as tensors and plain
    numbers, which torch.load(weights_only=True) can read, and wider state than the parameters in the group; read
    self.param_groups in every step, since load_state_dict replaces them.
    """
    for dtype, before, after in ((torch.float32, 3, 4), (torch.float32, 110, 60), (torch.bfloat16, 3, 4)):
        try:
            optimizer.stepper(optimizer.attention(dtype)).run(3)
        except Exception:
            if dtype == torch.float32:
                raise
            return  # it does not step on bfloat16
        whole, resumed = _resumed(optimizer, dtype, before)
        where = f"interrupted after {before} steps" + " on bfloat16" * (dtype == torch.bfloat16)
        lost, shared = "", _shared(optimizer)
        for steps in (1, after - 1):
            whole.run(steps)
            resumed.run(steps)
            kept = (leaves([run.optimizer, [vars(p) for p in run.params]]) for run in (whole, resumed))
            lost = difference(*kept) or difference(shared, _shared(optimizer))
            if not equal(resumed.params, whole.params):
                reason = f"; {lost}" if lost else " (after a change of lr)" if steps > 1 else ""
                at_most(0, resumed.gap(whole), f"{where}{reason}: the gap to the uninterrupted run is")
            whole.scale_lr(0.5)
            resumed.scale_lr(0.5)
        # One that has converged computes nothing; torch casts scalars of ASGD and NAdam to bfloat16, harmlessly.
        if lost and whole.moved() and dtype == torch.float32:
            raise Fault(f"{where}, {lost}")


def _shared(optimizer: Subject) -> dict[str, Any]:
    """What all instances share: in their classes and in the module, which a new process does not have."""
    cls = optimizer.spec.cls
    owners = [*cls.__mro__[: cls.__mro__.index(Optimizer)], sys.modules.get(cls.__module__, cls)]
    members = {f"{o.__name__}.{k}": v for o in owners for k, v in vars(o).items() if not k.startswith("__")}
    return leaves({k: v for k, v in members.items() if isinstance(v, int | float | list | dict | Tensor)})


def _resumed(optimizer: Subject, dtype: torch.dtype, before: int) -> Any:
    """A run after some steps, and another one with its weights and its loaded state."""
    whole, file = optimizer.stepper(optimizer.attention(dtype)).run(before), io.BytesIO()
    whole.scale_lr(0.5)  # as a schedule does
    torch.save(whole.optimizer.state_dict(), file)
    file.seek(0)
    try:
        state = torch.load(file, weights_only=True)
    except pickle.UnpicklingError as error:
        kind = re.findall(r"GLOBAL (\S+)", str(error))
        raise Fault(f"torch.load(weights_only=True) refuses its state: a {', '.join(kind)}") from None
    resumed = optimizer.stepper(optimizer.attention(dtype))
    resumed.model.load_state_dict(whole.model.state_dict())
    resumed.optimizer.load_state_dict(state)
    resumed.taken = before  # so that it draws the random numbers of these steps
    whole.start = values(whole.params)
    return whole, resumed


@failing("results")
def check_eval_train(optimizer: Subject) -> None:
    """eval() and then train() leave the weights and the later steps as they are.

    Every validation calls them. Tolerance 1e-9 of the way: the weights may be computed back. Mend: swap the weights, or
    interpolate with the same factor in both directions.
    """
    if not all(callable(getattr(optimizer.spec.cls, name, None)) for name in ("eval", "train")):
        pytest.skip("it has no eval() and train()")
    for steps in (0, 1, STEPS):
        disturbed, plain = (optimizer.stepper().run(steps) for _ in range(2))
        for mode in ("eval", "eval", "train", "eval", "train"):  # twice is as once
            getattr(disturbed.optimizer, mode)()
        scale = plain.start if steps else [torch.zeros_like(p) for p in plain.params]
        at_most(ROUNDING, gap(disturbed.params, plain.params, scale), f"eval() and train() after {steps} steps change")
        at_most(ROUNDING, disturbed.run(3).gap(plain.run(3)), f"steps after eval() and train() at {steps} change by")


@failing("set-up")
def check_leaks(optimizer: Subject) -> None:
    """Memory does not grow with the number of steps, neither in tensors and their graphs nor in lists of numbers.

    Nothing may be added in 40 steps after 120, neither to it nor to its class or module, so a bounded history is fine.
    Mend: detach() stored tensors, and store only as many as the method needs.
    """
    stepper, sizes = optimizer.stepper(), list[dict[str, Any]]()
    for steps in (120, 40):
        stepper.run(steps)
        sizes.append(leaves([vars(stepper.optimizer), [*map(vars, stepper.params)], _shared(optimizer)], of=_bytes))
    before, after = sizes
    if len(after) > len(before):
        raise Fault(f"40 late steps add entries to what it keeps, such as {[x for x in after if x not in before][-1]}")
    for place, size in after.items():
        if isinstance(size, tuple) and place in before and size > before[place]:
            raise Fault(f"in 40 late steps, {place} grows from {before[place]} to {size} bytes and operations")


def _bytes(tensor: Tensor) -> tuple[int, int]:
    """The bytes of a tensor, and the operations in a row in the graph that it keeps alive."""
    node, operations = tensor.grad_fn, 0
    while node is not None:
        operations += 1
        node = node.next_functions[0][0] if node.next_functions else None
    return tensor.numel() * tensor.element_size(), operations
