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

from bench.check import failing
from bench.check.steps import MATTERS, ROUNDING, Fault, Stepper, at_most, equal, flat, gap, gradients, values
from bench.check.subject import KERNELS, Subject, in_training
from optimizers.groups import flagged

_HALVES = (slice(2), slice(2, None))  # the parameters of two groups
_REFUSALS = (ValueError, NotImplementedError)


@failing("results")
def check_groups(optimizer: Subject) -> None:
    """Two parameter groups equal one, also if the second is added later; a further one leaves the others as they are.

    Tolerance 1e-9 of the way: only the order of sums may differ. To refuse groups is no fault. Mend: loop over all
    of self.param_groups, take norms over all before changing any weight, and create state for new parameters only.
    """
    one, extra = optimizer.stepper().run(), nn.Parameter(torch.ones(3, 2, dtype=torch.float64))
    try:
        two = optimizer.stepper(groups=lambda params: [{"params": params[half]} for half in _HALVES])
        at_most(ROUNDING, two.run().gap(one), "two groups: the gap to one group is")
        later = optimizer.stepper(groups=lambda params: params[:2])
        for group in flagged(optimizer.spec, [{"params": later.params[2:]}]):
            later.optimizer.add_param_group(group)
        in_training(later.optimizer)
        at_most(ROUNDING, later.run().gap(one), "a group added later: the gap to one group is")
        grown = optimizer.stepper().run(3)
        (group,) = flagged(optimizer.spec, [{"params": [extra]}])
        grown.optimizer.add_param_group(group)  # without a gradient, so that norms stay
        in_training(grown.optimizer)
    except _REFUSALS as error:
        pytest.skip(f"it refuses parameter groups: {error}")
    at_most(ROUNDING, grown.run(3).gap(one), "after add_param_group, the gap of the old parameters is")
    if not equal([extra], [torch.ones_like(extra)]):
        raise Fault("the parameter of a new group, which has no gradient, has moved")


@failing("results")
def check_group_values(optimizer: Subject) -> str:
    """Each group uses its own hyperparameters and flags: lr, momentum, decay, nesterov, ...

    Each number and flag of the constructor gets two values in two groups. Neither the order of the groups nor the
    constructor's value may matter. To refuse two values is no fault. Tolerance 1e-9 of the way. Mend: read each option
    from the current group, not from self.defaults or param_groups[0].
    """
    optimizer.refuse_chance()
    start = values(optimizer.attention().parameters())

    def moved(arguments: Mapping[str, Any], pair: Any = ({}, {}), order: Any = (0, 1)) -> list[Tensor]:
        """Weights after some steps of two groups with a pair of values, in an order, with synthetic gradients."""
        params = list(optimizer.attention().parameters())
        instance = optimizer.make([{"params": params[_HALVES[i]], **pair[i]} for i in order], **arguments)
        for step in range(4):
            optimizer.push(instance, params, gradients([p.shape for p in params], step))
        return values(params)

    try:
        plain = moved({})
    except _REFUSALS as error:
        pytest.skip(f"it refuses parameter groups: {error}")
    options = optimizer.stepper().optimizer.param_groups[0]
    used, refused = [], []
    for label, name, others in optimizer.variants():
        value = optimizer.hparams[name]
        for other in others if name in options else ():
            with suppress(Exception):  # an illegal value
                if MATTERS < gap(moved({name: other}), plain, start) < inf:
                    break
        else:
            continue
        pair = [{name: value}, {name: other}]
        try:
            mixed, swapped = moved({name: value}, pair), moved({name: other}, pair, (1, 0))
        except Exception:
            refused.append(label)
            continue
        used.append(label)
        message = f"{label}: {value} in one group and {other} in another are not both used: the gap is"
        at_most(ROUNDING, gap(mixed, swapped, start), message)
    return ", ".join(used) + f"; it refuses two values of {', '.join(refused)}" * bool(refused)


class _Noted(UserDict):
    """Options that note which of them are read, also by `**` and by iteration over items."""

    def __init__(self, options: Mapping[str, Any], read: set[str]) -> None:
        self.read = read
        super().__init__(options)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


@failing("results")
def check_unread(optimizer: Subject) -> None:
    """Every hyperparameter that the constructor puts into the groups is read by a step.

    One that is never read is tuned for nothing. It counts as read if a step looks it up at some value of some
    hyperparameter, or if another value changes the steps. Mend: use it, or remove it.
    """
    plain, read = optimizer.stepper().run(), set[str]()
    unread = {name for name in plain.optimizer.param_groups[0] if name in optimizer.hparams} - {*KERNELS}
    for _, setting in optimizer.settings():
        with suppress(Exception):  # an illegal value
            if unread & setting.keys() and optimizer.stepper(arguments=setting).run().gap(plain):
                read |= setting.keys()  # the constructor may use it
        with suppress(Exception):
            stepper = optimizer.stepper(arguments=setting)
            stepper.optimizer.param_groups[:] = [_Noted(group, read) for group in stepper.optimizer.param_groups]
            stepper.optimizer.defaults = _Noted(stepper.optimizer.defaults, read)
            stepper.run(2)
        if unread <= read:
            return
    raise Fault(f"no step reads {', '.join(sorted(unread - read))} from the groups")


@failing("results")
def check_schedule(optimizer: Subject) -> str:
    """It follows torch schedulers: lr halved by a schedule equals half of lr from the start, and later changes count.

    Tolerance 1e-9 of the way, without weight decay; later, half or double of lr must change the steps if it does so at
    the start. Mend: every group needs an 'lr'; read it in every step, keep no copy, and leave it as it is, or declare
    Traits(sets_lr=True) in the OptimizerSpec.
    """
    without = optimizer.without_decay
    scheduled, plain = optimizer.stepper(arguments=without), optimizer.stepper(arguments=without)
    _check_lr(optimizer, scheduled)
    LambdaLR(scheduled.optimizer, lambda step: 0.5)
    scheduled.run()
    before = [options.get("lr") for options in plain.optimizer.param_groups]
    after = [options.get("lr") for options in plain.run().optimizer.param_groups]
    if after != before and not optimizer.spec.traits.sets_lr:
        raise Fault(f"after 6 steps, lr is {after} in place of {before}")
    if optimizer.lr is not None:
        expected = optimizer.stepper(arguments={**without, "lr": optimizer.lr / 2}).run()
        at_most(ROUNDING, scheduled.gap(expected), "the gap to half of lr from the start is")
    elif scheduled.gap(plain) == 0:
        raise Fault("half of the groups' lr gives the same steps")
    stepper = optimizer.stepper().run(3)
    if gap(values(stepper.params), stepper.run(2).params, stepper.start) > MATTERS:  # else it has converged
        for factor in (0.5, 2.0):
            early, late = (_gap_by_lr(optimizer, steps, factor) for steps in (0, 3))
            if early > MATTERS >= late:
                raise Fault(f"lr times {factor:g} changes the steps from the start, but not after 3 steps")
    return "the constructor has no argument lr; half of it gave other steps" if optimizer.lr is None else ""


def _check_lr(optimizer: Subject, stepper: Stepper) -> None:
    if optimizer.spec.traits.sets_lr and optimizer.spec.traits.unscheduled:
        pytest.skip("it declares that it sets lr by itself and that no schedule of lr makes sense")
    if any(options.get("lr", 0) is None for options in stepper.optimizer.param_groups):
        pytest.skip("its lr is None: it sets its own step size")
    if not stepper.has_lr():
        raise Fault("param_groups[0] has no numeric 'lr'")


def _gap_by_lr(optimizer: Subject, before: int, factor: float) -> float:
    """Gap of two steps from those with another lr, after some steps with the same."""
    changed, plain = optimizer.stepper().run(before), optimizer.stepper().run(before)
    changed.scale_lr(factor)
    return changed.run(2).gap(plain.run(2))


@failing("set-up")
def check_tensor_lr(optimizer: Subject) -> None:
    """The lr may be a 0-dim tensor, also one whose value a scheduler changes in place.

    CUDA graphs and torch.compile need it. Tolerance 1e-6 of the way. Mend: use lr in arithmetic only, as
    `p.sub_(lr * d)` instead of `p.sub_(d, alpha=lr)`, and keep no copy.
    """
    if not optimizer.lr:
        pytest.skip("its constructor takes no numeric lr")
    without = optimizer.without_decay
    plain, lr = optimizer.stepper(arguments=without), torch.tensor(optimizer.lr, dtype=torch.float64)
    stepper = optimizer.stepper(arguments={**without, "lr": lr}).run(3)
    plain.run(3).scale_lr(0.5)
    LambdaLR(stepper.optimizer, lambda step: 0.5)
    at_most(1e-6, stepper.run(3).gap(plain.run(3)), "the gap to a number as lr, halved after 3 steps, is")


@failing("results")
def check_lr_zero(optimizer: Subject) -> None:
    """At lr = 0 no weight leaves the place where training has been, and training continues after it.

    Warm-up starts at 0, and schedules may pause there: a weight may then move back (a lookahead), but not beyond where
    it was. Tolerance 1e-9 of its size. Mend: multiply every change by lr, also decay, and never divide by lr.
    """
    stepper = optimizer.stepper()
    _check_lr(optimizer, stepper)
    stepper.scale_lr(0.0)
    zeros = [torch.zeros_like(p) for p in stepper.start]
    at_most(ROUNDING, gap(stepper.run(3).params, stepper.start, zeros), "3 steps at lr = 0 from the start move by")
    stepper = optimizer.stepper()
    places = [stepper.start, *(values(stepper.run(1).params) for _ in range(3))]
    rates = [group["lr"] for group in stepper.optimizer.param_groups]
    stepper.scale_lr(0.0)
    paused = values(stepper.run(3).params)
    if not optimizer.spec.traits.averages:
        ranges = [torch.stack(list(visited)) for visited in zip(*places, strict=True)]
        within = [p.clamp(r.amin(0), r.amax(0)) for p, r in zip(paused, ranges, strict=True)]
        at_most(ROUNDING, gap(paused, within, zeros), "after 3 steps, 3 at lr = 0 move beyond where it was by")
    for options, lr in zip(stepper.optimizer.param_groups, rates, strict=True):
        options["lr"] = lr
    if not flat(stepper.run(3).params).isfinite().all():
        raise Fault("after a pause at lr = 0, weights are not finite")
    if equal(stepper.params, paused) and not equal(optimizer.stepper().run(6).params, places[-1]):  # not converged
        raise Fault("after a pause at lr = 0, the weights no longer change")
