"""Checks of parameter groups, learning rates by group, and frozen parameters."""

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from bench.check.catalogue import CHECKS
from bench.check.findings import Failed, Measured, NotApplicable
from bench.check.state import difference
from bench.check.steps import STEPS, Stepper, gap, values
from bench.check.subject import Subject, in_training

_TOLERANCE = CHECKS["groups"].tolerance or 0.0


def groups(subject: Subject) -> Measured:
    """Two groups, from the start and added later, against one."""
    ways = {
        "one group": subject.stepper(),
        "two groups": subject.stepper(groups=lambda params: [{"params": params[:1]}, {"params": params[1:]}]),
    }
    if not subject.by_role:
        later = ways["a group added later"] = subject.stepper(groups=lambda params: params[:2])
        later.optimizer.add_param_group({"params": later.params[2:]})
        in_training(later.optimizer)
    differs = ""
    one = ways.pop("one group").run(1)
    for name, way in ways.items():
        differs = differs or _difference(one, way.run(1), name)
    one.run(STEPS - 1)
    measured = max(way.run(STEPS - 1).gap(one) for way in ways.values())
    return Measured(measured, differs if measured > _TOLERANCE else "")


def _difference(one: Stepper, other: Stepper, name: str) -> str:
    """Differences of a step: state of a parameter, or updates of some."""
    states = (stepper.optimizer.state_dict()["state"] for stepper in (one, other))
    if what := difference(*states, at="state", tolerance=1e-6):
        return f"{name}: {what}"
    pairs = enumerate(zip(other.params, one.params, one.start, strict=True))
    moved = [str(i) for i, (p, q, start) in pairs if gap([p], [q], [start]) > _TOLERANCE]
    return f"{name}: parameters {', '.join(moved)} get other updates" if moved else ""


def schedule(subject: Subject) -> Measured:
    """Compare lr halved by a scheduler with lr halved in the constructor; the scheduler must make a difference."""
    scheduled, plain = subject.stepper(), subject.stepper()
    _check_lr(subject, scheduled)
    LambdaLR(scheduled.optimizer, lambda step: 0.5)
    scheduled.run()
    if subject.lr is None:
        if scheduled.gap(plain.run()) == 0:
            raise Failed("half of the groups' lr gives the same steps")
        return Measured(None, "the constructor has no argument lr; half of it gave other steps")
    return Measured(scheduled.gap(subject.stepper(arguments={"lr": subject.lr / 2}).run()))


def lr_zero(subject: Subject) -> Measured:
    """Distance that weights move at lr = 0, relative to the distance before."""
    stepper = subject.stepper().run(3)
    _check_lr(subject, stepper)
    before = values(stepper.params)
    rates = [group["lr"] for group in stepper.optimizer.param_groups]
    for group in stepper.optimizer.param_groups:
        group["lr"] = 0.0
    moved = gap(stepper.run(3).params, before, stepper.start)
    for group, lr in zip(stepper.optimizer.param_groups, rates, strict=True):
        group["lr"] = lr
    stepper.run(3)
    if not all(p.isfinite().all() for p in stepper.params):
        raise Failed("after a pause at lr = 0, weights are not finite")
    unmoved = moved == 0 and all(map(torch.equal, stepper.params, before))
    if unmoved and not all(map(torch.equal, before, stepper.start)):
        if all(map(torch.equal, subject.stepper().run(6).params, before)):
            raise NotApplicable("it has converged before the pause")
        raise Failed("after a pause at lr = 0, the weights no longer change")
    return Measured(moved)


def _check_lr(subject: Subject, stepper: Stepper) -> None:
    if subject.spec.traits.sets_lr and subject.spec.traits.unscheduled:
        raise NotApplicable("it declares that it sets lr by itself and that no schedule of lr makes sense")
    for i, group in enumerate(stepper.optimizer.param_groups):
        if not isinstance(group.get("lr"), float | int | torch.Tensor):
            raise Failed(f"param_groups[{i}] has no numeric 'lr'")


def frozen(subject: Subject) -> Measured:
    """Parameters without a gradient among others, and a step without any gradient."""
    still, unused = nn.Parameter(torch.ones(3, 1), requires_grad=False), nn.Parameter(torch.ones(2, 1))
    alone = subject.stepper().run()
    among = subject.stepper(groups=lambda params: [still, unused, *params]).run()
    for name, p in (("a frozen parameter", still), ("a parameter without a gradient", unused)):
        if not torch.equal(p, torch.ones_like(p)):
            raise Failed(f"{name} has moved")
    if subject.spec.traits.create_graph:
        return Measured(among.gap(alone))
    none = subject.stepper()
    subject.push(none.optimizer, none.params, [None] * len(none.params))
    if not all(map(torch.equal, none.params, none.start)):
        raise Failed("a step without gradients changes weights")
    return Measured(among.gap(alone))


def zero_gradient(subject: Subject) -> Measured:
    """Weights that are not finite after steps with gradients of zero, of all parameters and of one."""
    broken = 0
    for before in (0, 2):
        for which in (slice(None), slice(1)):
            stepper = subject.stepper().run(before)
            for _ in range(2):
                stepper.backward()
                grads: list[Any] = [p.grad for p in stepper.params]
                grads[which] = [torch.zeros_like(p) for p in stepper.params[which]]
                subject.push(stepper.optimizer, stepper.params, grads)
            broken += sum(int((~p.isfinite()).sum()) for p in stepper.params)
    return Measured(float(broken))
