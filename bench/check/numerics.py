"""Checks of what a step computes: descent, formulas, kernels, gradients of 0 and NaN."""

from math import inf, isfinite
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from bench.check import failing
from bench.check.steps import ROUNDING, Fault, at_most, equal, flat, gradients, values
from bench.check.subject import Subject


@failing("set-up")
def check_builds(optimizer: Subject) -> str:
    """The constructor takes a list and a generator of parameters, and a step works.

    Mend: it must work with its defaults (or --opt.NAME VALUE) on dense gradients of small matrices and vectors.
    """
    for form in (list, iter):
        stepper = optimizer.stepper(groups=form)
        if not isinstance(stepper.optimizer, Optimizer):
            raise Fault(f"the result is a {type(stepper.optimizer).__name__}, not a torch.optim.Optimizer")
        members = sorted(id(p) for group in stepper.optimizer.param_groups for p in group["params"])
        if members != sorted(map(id, stepper.params)):
            raise Fault("its param_groups do not contain each parameter exactly once")
        stepper.step()
    return "on matrices only" if optimizer.matrices else ""


@failing("results")
def check_descent(optimizer: Subject) -> str:
    """It decreases the loss of a small attention head, at its lr times a power of 10.

    At most half of the loss may remain after 60 steps. Mend: look for a wrong sign, a step that does not depend on lr,
    state shared by parameters, or a loss that is changed before use.
    """
    best = inf
    for factor in (1.0, 10.0, 100.0, 0.1, 1000.0, 0.01) if optimizer.lr else (1.0,):
        rate = {"lr": factor * optimizer.lr} if optimizer.lr else {}
        stepper = optimizer.stepper(arguments=rate)
        before = float(stepper.backward())
        stepper.run(60)
        if callable(getattr(stepper.optimizer, "eval", None)):
            stepper.optimizer.eval()  # methods that keep other weights for evaluation
        ratio = float(stepper.backward()) / before
        best = min(best, ratio if isfinite(ratio) else inf)
        if best <= 0.5:
            return "".join(f"at lr {lr:g}" for lr in rate.values())
    raise Fault(f"after 60 steps the loss is {best:.3g} of the initial one, at the best lr (at most 0.5)", best)


@failing("results")
def check_reference(optimizer: Subject) -> str:
    """Its steps equal those of a reference optimizer.

    A formula with a wrong bias correction, two decays or eps inside the root still trains. Tolerance 1e-9 of the way,
    over 10 float64 steps, at the default and at another value of each number and flag that both have. Mend: compare the
    first step by hand: the order of bias correction, decay and momentum, the place of lr.
    """
    if optimizer.reference is None:
        pytest.skip("no reference was given; name one with --reference adamw or module:Class")
    optimizer.refuse_chance()
    right = Subject(optimizer.reference)
    shared = {name: value for name, value in optimizer.hparams.items() if name in right.hparams}
    settings = [(label, setting) for label, setting in optimizer.settings() if setting.keys() <= shared.keys()]
    message = f"the gap to {right.spec.name} is"
    return "with " + ", ".join(_agree(settings, (optimizer, shared), (right, shared), ROUNDING, message))


@failing("results")
def check_foreach(optimizer: Subject) -> str:
    """The kernels foreach and fused equal the loop over parameters, at the default and at other hyperparameters.

    A GPU runs another kernel than the CPU where the method was tested. Tolerance 1e-6 of the way: kernels may keep
    their scalars in float32. Mend: compare the paths line by line; decay or momentum may be missing in one.
    """
    flags = [name for name in ("foreach", "fused") if name in optimizer.hparams]
    loop, ran = dict.fromkeys(flags, False), list[str]()
    for flag in flags:
        pair = (optimizer, loop | {flag: True}), (optimizer, loop)
        if _agree(optimizer.settings(), *pair, 1e-6, f"{flag}=True: the gap to the loop is"):
            ran.append(flag)
    if not ran:
        pytest.skip("its constructor takes neither foreach nor fused")
    return " and ".join(ran)


def _agree(settings: list[tuple[str, dict[str, Any]]], one: Any, other: Any, most: float, message: str) -> list[str]:
    """Compare 10 steps of two pairs (subject, arguments) at all settings legal for both, whose labels are returned."""
    labels = []
    for label, setting in settings:
        try:
            tested, right = (subject.stepper(arguments={**more, **setting}) for subject, more in (one, other))
            right.run(10)
        except Exception:
            continue  # an illegal value, or a kernel that does not exist here
        if flat(right.params).isfinite().all():
            labels.append(label)
            at_most(most, tested.run(10).gap(right), f"with {label}, {message}")
    return labels


@failing("results")
def check_zero_or_nan(optimizer: Subject) -> str:
    """A zero gradient makes no weight NaN or infinite, and a NaN in a gradient is not replaced by a number.

    Dead units have zero gradients; training code detects divergence by NaN. To skip the whole step, to raise an error,
    or to keep the NaN in the state is fine; signs have no NaN. Mend: add eps to norms and second moments before
    dividing; remove nan_to_num and masks of NaN.
    """
    shapes = [p.shape for p in optimizer.attention().parameters()]
    for before in (0, 3):
        for zeros in (slice(None), slice(1)):
            stepper = optimizer.stepper().run(before)
            for _ in range(2):
                grads = gradients(shapes, before)
                grads[zeros] = [torch.zeros_like(g) for g in grads[zeros]]
                optimizer.push(stepper.optimizer, stepper.params, grads)
            if not flat(stepper.params).isfinite().all():
                raise Fault(f"after {before} steps and 2 with gradients of 0, weights are not finite")
        without = list[Tensor]()
        for bad in (0.0, torch.nan, torch.inf):
            stepper, grads = optimizer.stepper().run(before), gradients(shapes, before)
            start = values(stepper.params)
            grads[0][0, 0] = bad
            try:
                optimizer.push(stepper.optimizer, stepper.params, grads)
            except (ArithmeticError, RuntimeError, ValueError) as error:
                return f"with {bad}, it raises {type(error).__name__}"
            moved = flat(stepper.params) - flat(start)
            sizes = moved[moved != 0].abs()
            kept = [*tree_leaves(stepper.optimizer.state_dict()), stepper.params[0][0, 0]]
            is_kept = any(isinstance(t, Tensor) and not t.isfinite().all() for t in kept)
            without = values(stepper.params) if not bad else without
            is_hidden = bad != bad or (bad and equal(stepper.params, without))  # an infinite one may be clipped
            if is_hidden and len(sizes) and not sizes.allclose(sizes[0]) and not is_kept:  # equal: its steps are signs
                raise Fault(f"after {before} steps, {bad} in the gradient becomes a finite weight: it is hidden")
    return ""
