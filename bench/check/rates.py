"""Checks of the learning rate: schedules, tensors as lr, pauses."""

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from bench.check.catalogue import group
from bench.check.steps import MATTERS, ROUNDING, Fault, Stepper, at_most, difference, equal, gap, leaves, values
from bench.check.subject import Subject, pytest


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
    groups = [options for options in stepper.optimizer.param_groups if "lr" in options]
    for rate in {id(options["lr"]): options["lr"] for options in groups}.values():  # the groups may share one
        if isinstance(rate, Tensor):
            rate.mul_(0.5)
    for options in groups:
        if not isinstance(options["lr"], Tensor):
            options["lr"] *= 0.5
    at_most(1e-6, stepper.run(3).gap(plain.run(3)), "the gap to a number as lr, halved after 3 steps, is")


@group("changes results")
def check_own_lr(optimizer: Subject) -> str:
    """A step leaves group['lr'] unchanged, or the optimizer declares sets_lr.

    Schedulers read and write it. Exact. Mend: store your own step sizes under another name, or declare
    Traits(sets_lr=True) in the OptimizerSpec.
    """
    stepper = optimizer.stepper()
    for _ in range(4):
        before = [leaves(group.get("lr")) for group in stepper.optimizer.param_groups]
        stepper.step()
        for i, (options, lr) in enumerate(zip(stepper.optimizer.param_groups, before, strict=True)):
            if what := difference(lr, leaves(options.get("lr"))):
                if optimizer.spec.traits.sets_lr:
                    return "as declared"
                raise Fault(f"a step changes param_groups[{i}]['lr'],{what.replace(' is ', ' which is ')}")
    return ""


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
