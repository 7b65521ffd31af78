"""Checks of parameters: every kind of them, groups with their hyperparameters, schedules, and gradients."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from bench.check.catalogue import group
from bench.check.state import difference
from bench.check.steps import ROUNDING, STEPS, Fault, Stepper, at_most, gap, gradients, values
from bench.check.subject import KERNELS, Subject, in_training, pytest, without_decay

_PUSHES = 4
_MATTERS = 1e-6  # a gap above rounding
_HALVES = (slice(2), slice(2, None))  # the parameters of two groups
_KINDS = ((), (1,), (7,), (3, 5), (5, 3), (4, 4), (1, 6), (6, 1), (130, 140), (2, 3, 4), (4, 3, 3, 3), (2, 2, 2, 2, 2))
_REFUSALS = (ValueError, NotImplementedError)


@group("changes results")
def check_kinds(optimizer: Subject) -> None:
    """Parameters of every shape and dtype are trained: scalars, vectors, matrices, convolutions.

    A forgotten branch leaves biases or convolutions at their initial values, and the loss still falls. Each parameter
    must move in 6 steps with gradients, most of its elements too. Mend: handle every number of dimensions, or raise an
    error for one that the method does not know.
    """
    for dtype in (torch.float64, torch.float32):
        start = [(1 + g).to(dtype) for g in gradients(_KINDS, 8) if g.ndim == 2 or not optimizer.matrices]
        params = [nn.Parameter(t.clone()) for t in start]
        instance, changed = optimizer.make(params), [torch.zeros_like(t, dtype=torch.bool) for t in start]
        for step in range(STEPS):
            optimizer.push(instance, params, [g.to(dtype) for g in gradients([p.shape for p in params], step)])
            for p, before, ever in zip(params, start, changed, strict=True):
                ever |= p.detach() != before  # signs may lead back
        for ever in changed:
            if (share := float(ever.double().mean())) < 0.5:
                raise Fault(f"6 steps change {share:.0%} of a parameter of shape {tuple(ever.shape)}, {dtype}")


def _two_groups(optimizer: Subject, **more: Any) -> Stepper:
    """A stepper with two groups; a refusal skips the check."""
    try:
        return optimizer.stepper(groups=lambda params: [{"params": params[:1]}, {"params": params[1:]}], **more)
    except _REFUSALS as error:
        pytest.skip(f"it refuses parameter groups: {error}")


@group("changes results")
def check_groups(optimizer: Subject) -> None:
    """Two parameter groups equal one, also if the second is added later.

    Weight decay by layer needs groups. Tolerance 1e-9 of the way: only the order of summation may differ. Mend: loop
    over all of self.param_groups, and compute norms and other sums over all groups before changing any weight.
    """
    ways = {"two groups": _two_groups(optimizer)}
    if not optimizer.by_role:
        later = ways["a group added later"] = optimizer.stepper(groups=lambda params: params[:2])
        later.optimizer.add_param_group({"params": later.params[2:]})
        in_training(later.optimizer)
    for name, way in ways.items():
        one = optimizer.stepper().run(1)
        differs = _difference(one, way.run(1), name)
        measured = way.run(STEPS - 1).gap(one.run(STEPS - 1))
        at_most(ROUNDING, measured, f"{differs or name}; the gap to one group is")


def _difference(one: Stepper, other: Stepper, name: str) -> str:
    """Differences of a step: state of a parameter, or updates of some."""
    states = (stepper.optimizer.state_dict()["state"] for stepper in (one, other))
    if what := difference(*states, at="state", tolerance=1e-6):
        return f"{name}: {what}"
    pairs = enumerate(zip(other.params, one.params, one.start, strict=True))
    moved = [str(i) for i, (p, q, start) in pairs if gap([p], [q], [start]) > ROUNDING]
    return f"{name}: parameters {', '.join(moved)} get other updates" if moved else ""


@group("changes results")
def check_added_group(optimizer: Subject) -> None:
    """A group that is added during training leaves the steps of the others as they are.

    Gradual unfreezing adds groups: the momentum of the old parameters must stay. The new parameter has no gradient, so
    that norms stay too. Tolerance 1e-9 of the way. Mend: create state for new parameters only.
    """
    _two_groups(optimizer)
    plain, grown = optimizer.stepper().run(3), optimizer.stepper().run(3)
    extra = nn.Parameter(torch.ones(3, 2, dtype=torch.float64))
    added = {"params": [extra]} | ({"use_muon": True} if "use_muon" in grown.optimizer.param_groups[0] else {})
    try:
        grown.optimizer.add_param_group(added)
    except _REFUSALS as error:
        pytest.skip(f"it refuses further groups: {error}")
    in_training(grown.optimizer)
    at_most(ROUNDING, grown.run(3).gap(plain.run(3)), "after add_param_group, the gap of the old parameters is")
    if not torch.equal(extra, torch.ones_like(extra)):
        raise Fault("the new parameter, which has no gradient, has moved")


@group("changes results")
def check_group_values(optimizer: Subject) -> str:
    """Each group uses its own hyperparameters and flags: lr, momentum, decay, nesterov, ...

    Each number and flag of the constructor gets two values in two groups. Neither the order of the groups nor the
    constructor's value may matter; if groups do not interact, as through a global norm, each must move as if all had
    its value. To refuse two values is no fault. Tolerance 1e-9 of the way. Mend: read each option from the current
    group, not from self.defaults or param_groups[0].
    """
    optimizer.refuse_chance()
    _two_groups(optimizer)
    plain = _moved(optimizer)
    separable = all(
        _gap(optimizer, _moved(optimizer, shifted=other), plain, half) == 0
        for half, other in zip(_HALVES, reversed(_HALVES), strict=True)
    )
    held, refused = [], []
    names = optimizer.stepper().optimizer.param_groups[0]
    for label, name, others in optimizer.variants():
        value = optimizer.hparams[name]
        for other in others if name in names and name not in KERNELS else ():
            try:
                uniform = _moved(optimizer, {name: other})
            except Exception:
                continue
            if not _MATTERS < _gap(optimizer, uniform, plain) < inf:
                continue
            try:
                worst = _two(optimizer, name, (value, other), (plain, uniform), separable=separable)
            except Exception:
                refused.append(label)
                break
            held.append(label)
            at_most(ROUNDING, worst, f"{label}: {value} in one group and {other} in another are not both used; gap")
            break
    return ", ".join(held) + f"; it refuses two values of {', '.join(refused)}" * bool(refused)


def _moved(
    optimizer: Subject,
    arguments: Mapping[str, Any] | None = None,
    own: Sequence[Mapping[str, Any]] = ({}, {}),
    order: Sequence[int] = (0, 1),
    shifted: slice = slice(0),
) -> list[Tensor]:
    """Weights after some steps with synthetic gradients, always the same.

    Args:
        optimizer: what is checked.
        arguments: of the constructor.
        own: values of the two halves' groups.
        order: of the halves among the groups.
        shifted: weights that are shifted, and whose gradients are doubled, after the first step.
    """
    params = list(optimizer.attention().parameters())
    instance = optimizer.make([{"params": params[_HALVES[i]], **own[i]} for i in order], **(arguments or {}))
    for step in range(_PUSHES):
        grads = gradients([p.shape for p in params], step)
        if step > 0:
            grads[shifted] = [2 * g for g in grads[shifted]]
        optimizer.push(instance, params, grads)
        if step == 0:
            with torch.no_grad():
                for p in params[shifted]:
                    p.add_(0.1)
    return values(params)


def _gap(optimizer: Subject, a: list[Tensor], b: list[Tensor], half: slice = slice(None)) -> float:
    """The gap of all weights, or of one half."""
    return gap(a[half], b[half], list(optimizer.attention().parameters())[half])


def _two(
    optimizer: Subject,
    name: str,
    of: tuple[Any, Any],
    uniform: tuple[list[Tensor], list[Tensor]],
    *,
    separable: bool,
) -> float:
    """The largest gap of two groups with these values from the expected weights.

    Args:
        optimizer: what is checked.
        name: the hyperparameter.
        of: its values in the two groups.
        uniform: weights if all have the first value, and the second.
        separable: whether the halves do not interact.
    """
    own = [{name: value} for value in of]
    results = [_moved(optimizer, {name: of[0]}, own), _moved(optimizer, {name: of[1]}, own, order=(1, 0))]
    if separable:
        expected = list(zip(uniform, _HALVES, strict=True))
        return max(_gap(optimizer, each, weights, half) for each in results for weights, half in expected)
    both_matter = all(_gap(optimizer, *uniform, half) > _MATTERS for half in _HALVES)
    if both_matter and min(_gap(optimizer, results[0], each) for each in uniform) <= _MATTERS:
        return inf
    return _gap(optimizer, results[0], results[1])


class _ReadKeys(dict):
    """A dict that notes which keys are read, also by `**` and by iteration."""

    def __init__(self, values: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(values)
        self.read = read

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def _all(self, name: str) -> Any:
        self.read.update(super().keys())
        return getattr(dict, name)(self)

    def __iter__(self) -> Any:
        return self._all("__iter__")

    def keys(self) -> Any:
        return self._all("keys")

    def values(self) -> Any:
        return self._all("values")

    def items(self) -> Any:
        return self._all("items")


@group("changes results")
def check_unread(optimizer: Subject) -> None:
    """Every hyperparameter that the constructor puts into the groups is read by a step.

    One that is declared and never read is tuned for nothing. It counts as read if a step looks it up, at the default or
    at another value of some hyperparameter. Mend: use it, or remove it.
    """
    if optimizer.by_role:
        pytest.skip("several optimizers share its groups")
    settings: list[dict[str, Any]] = [{}]
    settings += [{name: other} for _, name, others in optimizer.variants() for other in others]
    names = {name for name in optimizer.stepper().optimizer.param_groups[0] if name in optimizer.hparams}
    unread = names - {*KERNELS}
    for setting in settings:
        read = set[str]()
        try:
            stepper = optimizer.stepper(arguments=setting)
            groups = stepper.optimizer.param_groups
            groups[:] = [_ReadKeys(group, read) for group in groups]
            stepper.optimizer.defaults = _ReadKeys(stepper.optimizer.defaults, read)
            stepper.run(2)
        except Exception:
            if not setting:
                raise
        unread -= read
        if not unread:
            return
    plain = optimizer.stepper().run()
    for _, name, others in optimizer.variants():
        for other in others if name in unread else ():  # the constructor may use it
            with suppress(Exception):
                if optimizer.stepper(arguments={name: other}).run().gap(plain):
                    unread.discard(name)
    if unread:
        raise Fault(f"no step reads {', '.join(sorted(unread))} from the groups")


@group("changes results")
def check_schedule(optimizer: Subject) -> str:
    """It follows torch schedulers: lr halved by a schedule equals half of lr from the start.

    Tolerance 1e-9 of the way, without weight decay, which may be relative to the initial lr. Mend: read group['lr'] in
    every step, not the constructor's argument; every group needs an 'lr'.
    """
    without = without_decay(optimizer)
    scheduled, plain = optimizer.stepper(arguments=without), optimizer.stepper(arguments=without)
    _check_lr(optimizer, scheduled)
    LambdaLR(scheduled.optimizer, lambda step: 0.5)
    scheduled.run()
    if optimizer.lr is None:
        if scheduled.gap(plain.run()) == 0:
            raise Fault("half of the groups' lr gives the same steps")
        return "the constructor has no argument lr; half of it gave other steps"
    expected = optimizer.stepper(arguments={**without, "lr": optimizer.lr / 2}).run()
    at_most(ROUNDING, scheduled.gap(expected), "the gap to half of lr from the start is")
    return ""


def _check_lr(optimizer: Subject, stepper: Stepper) -> None:
    if optimizer.spec.traits.sets_lr and optimizer.spec.traits.unscheduled:
        pytest.skip("it declares that it sets lr by itself and that no schedule of lr makes sense")
    for i, options in enumerate(stepper.optimizer.param_groups):
        if "lr" in options and options["lr"] is None:
            pytest.skip("its lr is None: it sets its own step size")
        if not isinstance(options.get("lr"), float | int | Tensor):
            raise Fault(f"param_groups[{i}] has no numeric 'lr'")


@group("changes results")
def check_lr_changes(optimizer: Subject) -> None:
    """A change of lr during training changes the steps.

    Halved and doubled after three steps: if this changes the first step, it must also change later ones; only a
    difference above rounding counts. Mend: read group['lr'] in every step and keep no copy of the first one.
    """
    rates = [group.get("lr") for group in optimizer.stepper().optimizer.param_groups]
    if not all(isinstance(rate, float | int | Tensor) for rate in rates):
        pytest.skip("its groups have no numeric 'lr', as `schedule` says")
    factors = [factor for factor in (0.5, 2.0) if _gap_by_lr(optimizer, 0, factor) > _MATTERS]
    if not factors:
        pytest.skip("half and double of lr give the same steps")
    stepper = optimizer.stepper().run(3)
    before = values(stepper.params)
    if gap(before, stepper.run(2).params, stepper.start) <= _MATTERS:
        pytest.skip("it has converged after 3 steps")
    for factor in factors:
        if _gap_by_lr(optimizer, 3, factor) <= _MATTERS:
            raise Fault(f"lr times {factor:g} changes the steps from the start, but not after 3 steps")


def _gap_by_lr(optimizer: Subject, before: int, factor: float) -> float:
    """Gap of two steps from those with another lr, after some steps with the same."""
    changed, plain = optimizer.stepper().run(before), optimizer.stepper().run(before)
    changed.set_lr(factor)
    return changed.run(2).gap(plain.run(2))


@group("changes results")
def check_own_lr(optimizer: Subject) -> str:
    """A step leaves group['lr'] unchanged, or the optimizer declares sets_lr.

    Schedulers read and write it. Exact. Mend: store your own step sizes under another name, or declare
    Traits(sets_lr=True) in the OptimizerSpec.
    """
    stepper = optimizer.stepper()
    for _ in range(4):
        before = [_number(group.get("lr")) for group in stepper.optimizer.param_groups]
        stepper.step()
        for i, (now, lr) in enumerate(zip(stepper.optimizer.param_groups, before, strict=True)):
            if _number(now.get("lr")) != lr:
                if optimizer.spec.traits.sets_lr:
                    return "as declared"
                raise Fault(f"param_groups[{i}]['lr'] was {lr} before a step and is {_number(now['lr']):g} after it")
    return ""


def _number(lr: Any) -> Any:
    return float(lr) if isinstance(lr, Tensor) else lr


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
    stepper.set_lr(0.0)
    zeros = [torch.zeros_like(p) for p in stepper.start]
    at_most(ROUNDING, gap(stepper.run(3).params, stepper.start, zeros), "3 steps at lr = 0 from the start move by")
    stepper = optimizer.stepper()
    low, high = values(stepper.params), values(stepper.params)
    for _ in range(3):
        stepper.step()
        low, high = (list(map(f, now, stepper.params)) for f, now in ((torch.minimum, low), (torch.maximum, high)))
    before = values(stepper.params)
    rates = [group["lr"] for group in stepper.optimizer.param_groups]
    stepper.set_lr(0.0)
    stepper.run(3)
    if not optimizer.spec.traits.averages:
        bounded = [p.detach().clamp(a, b) for p, a, b in zip(stepper.params, low, high, strict=True)]
        at_most(ROUNDING, gap(stepper.params, bounded, zeros), "after 3 steps, 3 at lr = 0 move beyond where it was by")
    for options, lr in zip(stepper.optimizer.param_groups, rates, strict=True):
        options["lr"] = lr
    now = values(stepper.params)
    stepper.run(3)
    if not all(p.isfinite().all() for p in stepper.params):
        raise Fault("after a pause at lr = 0, weights are not finite")
    if all(map(torch.equal, stepper.params, now)) and not all(map(torch.equal, before, stepper.start)):
        if all(map(torch.equal, optimizer.stepper().run(6).params, before)):
            pytest.skip("it has converged before the pause")
        raise Fault("after a pause at lr = 0, the weights no longer change")


@group("blocks a set-up")
def check_frozen(optimizer: Subject) -> None:
    """Frozen parameters and those without a gradient stay unchanged and do not affect the others.

    Fine-tuning freezes layers, and unused ones have no gradient. Tolerance 1e-9 of the way. Mend: skip parameters whose
    .grad is None before creating their state.
    """
    still, unused = nn.Parameter(torch.ones(3, 1), requires_grad=False), nn.Parameter(torch.ones(2, 1))
    alone = optimizer.stepper().run()
    among = optimizer.stepper(groups=lambda params: [still, unused, *params]).run()
    for name, p in (("a frozen parameter", still), ("a parameter without a gradient", unused)):
        if not torch.equal(p, torch.ones_like(p)):
            raise Fault(f"{name} has moved")
    at_most(ROUNDING, among.gap(alone), "the gap to a run without them is")
    if not optimizer.spec.traits.create_graph:
        none = optimizer.stepper()
        optimizer.push(none.optimizer, none.params, [None] * len(none.params))
        if none.moved():
            raise Fault("a step without gradients changes weights")


@group("blocks a set-up")
def check_late_gradient(optimizer: Subject) -> None:
    """A parameter may get its first gradient later, and may be without one in between.

    Unfrozen layers and experts have none for a while. It must be trained once it has one, stay where it is without, and
    weights must be finite. Mend: create a parameter's state at its first gradient, with a step count of its own.
    """
    params = [nn.Parameter(t) for t in gradients([(4, 3), (3, 2)], 9)]
    instance = optimizer.make(params)
    start = values(params)
    for step, has in enumerate((False, False, False, True, True, False, True)):
        grads: list[Any] = gradients([p.shape for p in params], step)
        optimizer.push(instance, params, [grads[0], grads[1] if has else None])
        if step == 2 and not torch.equal(params[1], start[1]):
            raise Fault("a parameter moves before its first gradient")
    if torch.equal(params[1], start[1]):
        raise Fault("a parameter whose first gradient comes in step 4 is never trained")
    if not all(p.isfinite().all() for p in params):
        raise Fault("after a gradient that first comes in step 4, weights are not finite")


@group("changes results")
def check_gradients(optimizer: Subject) -> None:
    """A step does not change, replace or zero .grad.

    Logging, gradient accumulation and clipping read it after the step. Exact, also with weight decay, which is often
    added in place. Mend: create a new tensor (grad = grad + weight_decay * p) instead of grad.add_ or grad.mul_, and
    leave zero_grad to the caller.
    """
    ways: list[dict[str, Any]] = [{}]
    if optimizer.hparams.get("weight_decay") == 0:
        ways.append({"weight_decay": 0.1})
    for way, with_closure in itertools.product(ways, (True, False)):
        stepper = optimizer.stepper(arguments=way)
        left: list[tuple[Any, Tensor]] = []
        step = functools.partial(_noted_step, stepper, left, with_closure=with_closure)
        for _ in range(3):
            try:
                stepper.step(by=step)
            except Exception:
                if with_closure:
                    raise
                break  # it needs a closure
            for i, (p, (grad, value)) in enumerate(zip(stepper.params, left, strict=True)):
                what = "None"
                if p.grad is not None:
                    changed = not torch.equal(p.grad.nan_to_num(), value.nan_to_num())
                    what = ("0" if not p.grad.any() else "changed") if changed else "" if p.grad is grad else "replaced"
                if what:
                    how = "".join(f", with {name} {value}" for name, value in way.items())
                    raise Fault(f".grad of parameter {i}, shape {tuple(p.shape)}, is {what} after step{how}")


def _noted_step(stepper: Stepper, left: list[Any], closure: Any, *, with_closure: bool, **keywords: Tensor) -> None:
    """A step that notes the gradients at its begin, and those of each call of the closure."""

    def note() -> None:
        left[:] = [(p.grad, p.grad.detach().clone()) for p in stepper.params]

    def noted() -> Tensor:
        loss = closure()
        note()
        return loss

    note()
    stepper.optimizer.step(noted, **keywords) if with_closure else stepper.optimizer.step()


@group("changes results")
def check_aliases(optimizer: Subject) -> None:
    """Nothing that it keeps shares memory with .grad: gradients that are written in place give the same steps.

    zero_grad(set_to_none=False), DDP's buckets and gradient accumulation write into the same tensor, and a momentum
    that begins as the gradient itself is overwritten. Exact. Mend: clone() the first gradient.
    """
    optimizer.refuse_graph()
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
