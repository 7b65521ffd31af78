"""Checks of parameter groups and their hyperparameters, and of the learning rate."""

from collections import UserDict
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

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
from bench.check.subject import KERNELS, Subject, in_training

_HALVES = (slice(2), slice(2, None))  # the parameters of two groups
_REFUSALS = (ValueError, NotImplementedError)


@group("changes results")
def check_groups(optimizer: Subject) -> None:
    """Two parameter groups equal one, also if the second is added later; a further one leaves the others as they are.

    Weight decay by layer and gradual unfreezing need groups; the momentum of old parameters must stay. Tolerance 1e-9
    of the way: only the order of summation may differ. To refuse groups is no fault. Mend: loop over all of
    self.param_groups, compute norms and other sums over all groups, with each group's own lr, before changing any
    weight, and create state for new parameters only.
    """
    try:
        ways = {"two groups": optimizer.stepper(groups=lambda params: [{"params": params[h]} for h in _HALVES])}
        if not optimizer.by_role:
            later = ways["a group added later"] = optimizer.stepper(groups=lambda params: params[:2])
            _add_group(later, later.params[2:])
        for name, way in ways.items():
            one = optimizer.stepper().run(1)
            message = f"{_first_difference(one, way.run(1), name) or name}; the gap to one group is"
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
    used, refused = [], []
    for label, name, others in optimizer.variants():
        value = optimizer.hparams[name]
        for other in others if name in options else ():
            try:
                uniform = [plain, _moved(optimizer, {name: other})]
            except Exception:
                continue  # an illegal value
            if not MATTERS < gap(uniform[1], plain, start) < inf:
                continue
            pair = [{name: value}, {name: other}]
            try:
                mixed = _moved(optimizer, {name: value}, pair)
                swapped = _moved(optimizer, {name: other}, pair, order=(1, 0))
            except Exception:
                refused.append(label)
                break
            used.append(label)
            message = f"{label}: {value} in one group and {other} in another are not both used; gap"
            at_most(ROUNDING, gap(mixed, swapped, start), message)
            both_matter = all(gap(uniform[1][half], plain[half], start[half]) > MATTERS for half in _HALVES)
            if both_matter and any(gap(mixed, weights, start) <= MATTERS for weights in uniform):
                raise Fault(f"{message} inf")
            break
    return ", ".join(used) + f"; it refuses two values of {', '.join(refused)}" * bool(refused)


def _moved(
    optimizer: Subject, arguments: Mapping[str, Any] | None = None, pair: Any = ({}, {}), order: Any = (0, 1)
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


@group("changes results")
def check_schedule(optimizer: Subject) -> str:
    """It follows torch schedulers: lr halved by a schedule equals half of lr from the start, and later changes count.

    Tolerance 1e-9 of the way, without weight decay, which may be relative to the initial lr; after three steps, half or
    double of lr must change the steps if it does so at the start. Mend: read group['lr'] in every step, not the
    constructor's argument, and keep no copy of the first one; every group needs an 'lr'.
    """
    without = optimizer.without_decay
    scheduled, plain = optimizer.stepper(arguments=without), optimizer.stepper(arguments=without)
    _check_lr(optimizer, scheduled)
    LambdaLR(scheduled.optimizer, lambda step: 0.5)
    scheduled.run()
    note = ""
    if optimizer.lr is None:
        if scheduled.gap(plain.run()) == 0:
            raise Fault("half of the groups' lr gives the same steps")
        note = "the constructor has no argument lr; half of it gave other steps"
    else:
        expected = optimizer.stepper(arguments={**without, "lr": optimizer.lr / 2}).run()
        at_most(ROUNDING, scheduled.gap(expected), "the gap to half of lr from the start is")
    stepper = optimizer.stepper().run(3)
    before = values(stepper.params)
    if gap(before, stepper.run(2).params, stepper.start) > MATTERS:  # else it has converged
        for factor in (0.5, 2.0):
            early, late = (_gap_by_lr(optimizer, steps, factor) for steps in (0, 3))
            if early > MATTERS >= late:
                raise Fault(f"lr times {factor:g} changes the steps from the start, but not after 3 steps")
    return note


def _check_lr(optimizer: Subject, stepper: Stepper) -> None:
    if optimizer.spec.traits.sets_lr and optimizer.spec.traits.unscheduled:
        pytest.skip("it declares that it sets lr by itself and that no schedule of lr makes sense")
    for i, options in enumerate(stepper.optimizer.param_groups):
        if "lr" in options and options["lr"] is None:
            pytest.skip("its lr is None: it sets its own step size")
        if not isinstance(options.get("lr"), float | int | Tensor):
            raise Fault(f"param_groups[{i}] has no numeric 'lr'")


def _gap_by_lr(optimizer: Subject, before: int, factor: float) -> float:
    """Gap of two steps from those with another lr, after some steps with the same."""
    changed, plain = optimizer.stepper().run(before), optimizer.stepper().run(before)
    changed.scale_lr(factor)
    return changed.run(2).gap(plain.run(2))


@group("blocks a set-up")
def check_tensor_lr(optimizer: Subject) -> None:
    """The lr may be a 0-dim tensor, also one whose value a scheduler changes in place.

    CUDA graphs and torch.compile need it: torch's own schedulers fill such a tensor. Tolerance 1e-6 of the way. Mend:
    use lr in arithmetic only, as `p.sub_(lr * d)` instead of `p.sub_(d, alpha=lr)`, and keep no copy.
    """
    if not optimizer.lr:
        pytest.skip("its constructor takes no numeric lr")
    without = optimizer.without_decay
    plain, lr = optimizer.stepper(arguments=without), torch.tensor(optimizer.lr, dtype=torch.float64)
    try:
        stepper = optimizer.stepper(arguments={**without, "lr": lr}).run(3)
    except Exception as error:
        error.add_note("with lr as a 0-dim tensor")
        raise
    plain.run(3).scale_lr(0.5)
    LambdaLR(stepper.optimizer, lambda step: 0.5)
    at_most(1e-6, stepper.run(3).gap(plain.run(3)), "the gap to a number as lr, halved after 3 steps, is")


@group("changes results")
def check_own_lr(optimizer: Subject) -> str:
    """A step leaves group['lr'] unchanged, or the optimizer declares sets_lr.

    Schedulers read and write it. Exact. Mend: store your own step sizes under another name, or declare
    Traits(sets_lr=True) in the OptimizerSpec.
    """
    stepper = optimizer.stepper()
    for _ in range(4):
        before = _rates(stepper)
        stepper.step()
        if what := difference(before, _rates(stepper)):
            if optimizer.spec.traits.sets_lr:
                return "as declared"
            raise Fault(f"after a step, {what}")
    return ""


def _rates(stepper: Stepper) -> dict[str, Any]:
    return leaves([group.get("lr") for group in stepper.optimizer.param_groups], "lr of group ")


@group("changes results")
def check_lr_zero(optimizer: Subject) -> None:
    """At lr = 0 no weight leaves the place where training has been, and training continues after it.

    Warm-up starts at 0, and schedules may end or pause there. From the start, nothing may move by more than 1e-9 of the
    weights' size, which is rounding; in a pause, averages may still be taken, so a weight may move back to where it was
    (a lookahead), but not beyond. Mend: multiply every change of the weights by lr, including weight decay and noise,
    and never divide by lr.
    """
    stepper = optimizer.stepper()
    _check_lr(optimizer, stepper)
    stepper.scale_lr(0.0)
    zeros = [torch.zeros_like(p) for p in stepper.start]
    at_most(ROUNDING, gap(stepper.run(3).params, stepper.start, zeros), "3 steps at lr = 0 from the start move by")
    stepper = optimizer.stepper()
    places = [stepper.start, *(values(stepper.run(1).params) for _ in range(3))]
    before, rates = places[-1], [group["lr"] for group in stepper.optimizer.param_groups]
    stepper.scale_lr(0.0)
    stepper.run(3)
    if not optimizer.spec.traits.averages:
        ranges = [torch.stack(list(visited)) for visited in zip(*places, strict=True)]
        within = [p.detach().clamp(r.amin(0), r.amax(0)) for p, r in zip(stepper.params, ranges, strict=True)]
        at_most(ROUNDING, gap(stepper.params, within, zeros), "after 3 steps, 3 at lr = 0 move beyond where it was by")
    for options, lr in zip(stepper.optimizer.param_groups, rates, strict=True):
        options["lr"] = lr
    paused = values(stepper.params)
    stepper.run(3)
    if not all(p.isfinite().all() for p in stepper.params):
        raise Fault("after a pause at lr = 0, weights are not finite")
    if equal(stepper.params, paused) and not equal(before, stepper.start):
        if equal(optimizer.stepper().run(6).params, before):
            pytest.skip("it has converged before the pause")
        raise Fault("after a pause at lr = 0, the weights no longer change")
