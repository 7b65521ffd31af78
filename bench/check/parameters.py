"""Checks of parameters: every kind of them, groups with their hyperparameters, and gradients."""

import itertools
from collections import UserDict
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from bench.check.catalogue import group
from bench.check.steps import (
    MATTERS,
    ROUNDING,
    STEPS,
    Fault,
    Stepper,
    at_most,
    difference,
    equal,
    gap,
    gradients,
    leaves,
    values,
)
from bench.check.subject import KERNELS, Subject, in_training, pytest

_HALVES = (slice(2), slice(2, None))  # the parameters of two groups
_MATRICES = ((3, 5), (5, 3), (4, 4), (1, 6), (6, 1), (130, 140))
_OTHERS = ((), (1,), (7,), (0, 3), (2, 3, 4), (4, 3, 3, 3), (2, 2, 2, 2, 2))
_REFUSALS = (ValueError, NotImplementedError)


@group("changes results")
def check_kinds(optimizer: Subject) -> None:
    """Parameters of every shape, layout and dtype are trained: scalars, vectors, convolutions, transposed, empty ones.

    A forgotten branch leaves biases or convolutions at their initial values, and the loss still falls; sharded models
    have ranks without elements. Each parameter must move in 6 steps with gradients, of its layout or contiguous, most
    of its elements too, and stay finite. Mend: handle every number of dimensions, use reshape instead of view, do not
    average over zero elements, or raise an error for a kind that the method does not know.
    """
    shapes = _MATRICES if optimizer.matrices else _MATRICES + _OTHERS
    for dtype in (torch.float64, torch.float32):
        start = [(1 + g).to(dtype) for g in gradients(shapes, 8)]
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
            if p.shape != shape or not p.isfinite().all():
                raise Fault(f"6 steps make a parameter of shape {shape}, {dtype}, {tuple(p.shape)} or not finite")
            if ever.numel() and (share := float(ever.double().mean())) < 0.5:
                raise Fault(f"6 steps change {share:.0%} of a parameter of shape {shape}, {dtype}")


@group("changes results")
def check_groups(optimizer: Subject) -> None:
    """Two parameter groups equal one, also if the second is added later; a further one leaves the others as they are.

    Weight decay by layer and gradual unfreezing need groups; the momentum of old parameters must stay. Tolerance 1e-9
    of the way: only the order of summation may differ. To refuse groups is no fault. Mend: loop over all of
    self.param_groups, compute norms and other sums over all groups before changing any weight, and create state for new
    parameters only.
    """
    try:
        ways = {"two groups": optimizer.stepper(groups=lambda params: [{"params": params[h]} for h in _HALVES])}
        if not optimizer.by_role:
            later = ways["a group added later"] = optimizer.stepper(groups=lambda params: params[:2])
            _add_group(later, later.params[2:])
        for name, way in ways.items():
            one = optimizer.stepper().run(1)
            differs = _first_difference(one, way.run(1), name)
            message = f"{differs or name}; the gap to one group is"
            at_most(ROUNDING, way.run(STEPS - 1).gap(one.run(STEPS - 1)), message)
        plain, grown = optimizer.stepper().run(3), optimizer.stepper().run(3)
        extra = nn.Parameter(torch.ones(3, 2, dtype=torch.float64))  # without a gradient, so that norms stay
        _add_group(grown, [extra])
    except _REFUSALS as error:
        pytest.skip(f"it refuses parameter groups: {error}")
    at_most(ROUNDING, grown.run(3).gap(plain.run(3)), "after add_param_group, the gap of the old parameters is")
    if not equal([extra], [torch.ones_like(extra)]):
        raise Fault("the parameter of a new group, which has no gradient, has moved")


def _add_group(stepper: Stepper, params: list[Any]) -> None:
    role = {"use_muon": True} if "use_muon" in stepper.optimizer.param_groups[0] else {}
    stepper.optimizer.add_param_group({"params": params, **role})
    in_training(stepper.optimizer)


def _first_difference(one: Stepper, other: Stepper, name: str) -> str:
    """Differences of a step: state of a parameter, or updates of some."""
    states = (leaves(stepper.optimizer.state_dict()["state"], "state") for stepper in (one, other))
    if what := difference(*states, tolerance=1e-6):
        return f"{name}: {what}"
    pairs = enumerate(zip(other.params, one.params, one.start, strict=True))
    moved = [str(i) for i, (p, q, start) in pairs if gap([p], [q], [start]) > ROUNDING]
    return f"{name}: parameters {', '.join(moved)} get other updates" if moved else ""


@group("changes results")
def check_group_values(optimizer: Subject) -> str:
    """Each group uses its own hyperparameters and flags: lr, momentum, decay, nesterov, ...

    Each number and flag of the constructor gets two values in two groups. Neither the order of the groups nor the
    constructor's value may matter, and the result must differ from those with one value for all. To refuse two values
    is no fault. Tolerance 1e-9 of the way. Mend: read each option from the current group, not from self.defaults or
    param_groups[0].
    """
    optimizer.refuse_chance()
    start = values(optimizer.attention().parameters())
    try:
        plain = _moved(optimizer)
    except _REFUSALS as error:
        pytest.skip(f"it refuses parameter groups: {error}")
    options = optimizer.stepper().optimizer.param_groups[0]
    held, refused = [], []
    for label, name, others in optimizer.variants():
        value = optimizer.hparams[name]
        for other in others if name in options else ():
            uniform = [plain, None]
            with suppress(Exception):  # an illegal value
                uniform[1] = _moved(optimizer, {name: other})
            if uniform[1] is None or not MATTERS < gap(uniform[1], plain, start) < inf:
                continue
            pair = [{name: value}, {name: other}]
            try:
                mixed = _moved(optimizer, {name: value}, pair)
                swapped = _moved(optimizer, {name: other}, pair, order=(1, 0))
            except Exception:
                refused.append(label)
                break
            held.append(label)
            message = f"{label}: {value} in one group and {other} in another are not both used; gap"
            at_most(ROUNDING, gap(mixed, swapped, start), message)
            both_matter = all(gap(uniform[1][half], plain[half], start[half]) > MATTERS for half in _HALVES)
            if both_matter and any(gap(mixed, weights, start) <= MATTERS for weights in uniform):
                raise Fault(f"{message} inf")
            break
    return ", ".join(held) + f"; it refuses two values of {', '.join(refused)}" * bool(refused)


def _moved(
    optimizer: Subject,
    arguments: Mapping[str, Any] | None = None,
    pair: Any = ({}, {}),
    order: tuple[int, ...] = (0, 1),
) -> list[Tensor]:
    """Weights after some steps of two groups with a pair of values, in an order, with synthetic gradients."""
    params = list(optimizer.attention().parameters())
    instance = optimizer.make([{"params": params[_HALVES[i]], **pair[i]} for i in order], **(arguments or {}))
    for step in range(4):
        optimizer.push(instance, params, gradients([p.shape for p in params], step))
    return values(params)


class _Noted(UserDict):
    """Options that note which of them are read, also by `**` and by iteration over items."""

    def __init__(self, options: Mapping[str, Any], read: set[str]) -> None:
        self.read = read
        super().__init__(options)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


@group("changes results")
def check_unread(optimizer: Subject) -> None:
    """Every hyperparameter that the constructor puts into the groups is read by a step.

    One that is declared and never read is tuned for nothing. It counts as read if a step looks it up, at the default or
    at another value of some hyperparameter, or if another value changes the steps. Mend: use it, or remove it.
    """
    if optimizer.by_role:
        pytest.skip("several optimizers share its groups")
    plain = optimizer.stepper().run()
    unread = {name for name in plain.optimizer.param_groups[0] if name in optimizer.hparams} - {*KERNELS}
    for _, setting in optimizer.settings():
        read = set[str]()
        with suppress(Exception):  # an illegal value
            stepper = optimizer.stepper(arguments=setting)
            groups = stepper.optimizer.param_groups
            groups[:] = [_Noted(group, read) for group in groups]
            stepper.optimizer.defaults = _Noted(stepper.optimizer.defaults, read)
            stepper.run(2)
        unread -= read
        if not unread:
            return
    for _, setting in optimizer.settings():
        if unread & setting.keys():  # the constructor may use it
            with suppress(Exception):
                unread -= setting.keys() if optimizer.stepper(arguments=setting).run().gap(plain) else set()
    if unread:
        raise Fault(f"no step reads {', '.join(sorted(unread))} from the groups")


@group("blocks a set-up")
def check_frozen(optimizer: Subject) -> None:
    """Frozen parameters and those without a gradient stay unchanged and do not affect the others; one may come later.

    Fine-tuning freezes layers; unfrozen ones and experts have no gradient for a while. Tolerance 1e-9 of the way. Mend:
    skip parameters whose .grad is None before creating their state, and create it at the first gradient, with a step
    count of its own.
    """
    still, unused = nn.Parameter(torch.ones(3, 1), requires_grad=False), nn.Parameter(torch.ones(2, 1))
    alone = optimizer.stepper().run()
    among = optimizer.stepper(groups=lambda params: [still, unused, *params]).run()
    for name, p in (("a frozen parameter", still), ("a parameter without a gradient", unused)):
        if not torch.equal(p, torch.ones_like(p)):
            raise Fault(f"{name} has moved")
    at_most(ROUNDING, among.gap(alone), "the gap to a run without them is")
    if optimizer.spec.traits.create_graph:
        return
    params = [nn.Parameter(t) for t in gradients([(4, 3), (3, 2)], 9)]
    instance, start = optimizer.make(params), values(params)
    for step, gradient in enumerate((False, False, False, True, True, False, True)):
        grads: list[Any] = gradients([p.shape for p in params], step)
        optimizer.push(instance, params, [grads[0] if step else None, grads[1] if gradient else None])
        if (step == 0 and not equal(params, start)) or (step == 2 and not torch.equal(params[1], start[1])):
            raise Fault("a parameter moves before its first gradient")
    if torch.equal(params[1], start[1]):
        raise Fault("a parameter whose first gradient comes in step 4 is never trained")
    if not all(p.isfinite().all() for p in params):
        raise Fault("after a gradient that first comes in step 4, weights are not finite")


@group("changes results")
def check_gradients(optimizer: Subject) -> None:
    """A step does not change, replace or zero .grad, and nothing that it keeps shares memory with it.

    Logging, gradient accumulation and clipping read it after the step; zero_grad(set_to_none=False), DDP's buckets and
    accumulation write into it, and would overwrite a momentum that begins as the gradient itself. Exact, also with
    weight decay, which is often added in place. Mend: create a new tensor (grad = grad + weight_decay * p) instead of
    grad.add_ or grad.mul_, clone() the first gradient, and leave zero_grad to the caller.
    """
    ways = [{}, {"weight_decay": 0.1}] if optimizer.hparams.get("weight_decay") == 0 else [{}]
    for way, with_closure in itertools.product(ways, (True, False)):
        stepper = optimizer.stepper(arguments=way)
        for _ in range(3):
            loss = stepper.backward()
            grads: list[Any] = [p.grad for p in stepper.params]
            before = values(grads)
            try:
                stepper.optimizer.step(lambda loss=loss: loss) if with_closure else stepper.optimizer.step()
            except Exception:
                if with_closure:
                    raise
                break  # it needs a closure
            for i, (p, grad, value) in enumerate(zip(stepper.params, grads, before, strict=True)):
                if p.grad is not grad or not equal([grad], [value]):
                    what = "None" if p.grad is None else "replaced" if p.grad is not grad else "changed"
                    how = "".join(f", with {name} {value}" for name, value in way.items())
                    raise Fault(f".grad of parameter {i}, shape {tuple(p.shape)}, is {what} after step{how}")
    if optimizer.spec.traits.create_graph:
        return
    fresh, reused = optimizer.stepper(), optimizer.stepper()
    buffers = [torch.zeros_like(p) for p in reused.params]
    for step in range(STEPS):
        grads = gradients([p.shape for p in fresh.params], step)
        optimizer.push(fresh.optimizer, fresh.params, values(grads))
        for buffer, grad in zip(buffers, grads, strict=True):
            buffer.copy_(grad)
        optimizer.push(reused.optimizer, reused.params, buffers)
        for buffer in buffers:
            buffer.zero_()
    at_most(0, reused.gap(fresh), "with gradients that are overwritten after each step, the gap is")
