"""Checks of what a step computes: descent, formulas, dtypes and kernels."""

from math import inf, isfinite
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from bench.check.catalogue import group
from bench.check.steps import ROUNDING, Fault, at_most, flat, gap, gradients, values
from bench.check.subject import Subject

_FACTORS = (1.0, 10.0, 100.0, 0.1, 1000.0, 0.01)


@group("blocks a set-up")
def check_builds(optimizer: Subject) -> str:
    """The constructor takes a list and a generator of parameters, and a step works.

    Mend: it must work with its defaults (or --opt.NAME VALUE) on dense gradients of small matrices and vectors, and
    derive from torch.optim.Optimizer.
    """
    for form in (list, iter):
        stepper = optimizer.stepper(groups=form)
        if not isinstance(stepper.optimizer, Optimizer):
            raise Fault(f"the result is a {type(stepper.optimizer).__name__}, not a torch.optim.Optimizer")
        held = sorted(id(p) for group in stepper.optimizer.param_groups for p in group["params"])
        if held != sorted(id(p) for p in stepper.params):
            kind = "list" if form is list else "generator"
            raise Fault(f"made from a {kind} of parameters, its param_groups do not contain each of them exactly once")
        stepper.step()
    return "on matrices only" if optimizer.matrices else "by role" if optimizer.by_role else ""


@group("changes results")
def check_descent(optimizer: Subject) -> str:
    """It decreases the loss of a small attention head, at its lr times a power of 10.

    At most half of the loss may remain after 60 steps; working methods come far below. Mend: look for a wrong sign, a
    step that does not depend on lr, a default that leaves the weights unchanged, state shared by parameters, or a loss
    that is changed before use.
    """
    best = inf
    for factor in _FACTORS if optimizer.lr else (1.0,):
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


@group("changes results")
def check_reference(optimizer: Subject) -> str:
    """Its steps equal those of a reference optimizer.

    A formula that is off by one in the bias correction, decays twice or has eps inside the root still trains, and only
    a statement of what is right shows it. Tolerance 1e-9 of the way, over 10 float64 steps, at the default and at
    another value of each number and flag that both have. Mend: compare the first step by hand: the order of bias
    correction, decay and momentum, the place of lr.
    """
    if optimizer.reference is None:
        pytest.skip("no reference was given; name one with --reference adamw or module:Class")
    optimizer.refuse_chance()
    reference = Subject(optimizer.reference)
    shared = {name: value for name, value in optimizer.hparams.items() if name in reference.hparams}
    compared = []
    for label, setting in optimizer.settings():
        if set(setting) <= shared.keys():
            try:
                pair = [subject.stepper(arguments=shared | setting) for subject in (optimizer, reference)]
            except Exception:
                continue  # not a legal value of both
            tested, right = (stepper.run(10) for stepper in pair)
            if flat(right.params).isfinite().all():
                compared.append(label)
                message = f"after 10 steps with {label}, the gap to {reference.spec.name} is"
                at_most(ROUNDING, tested.gap(right), message)
    return f"with {', '.join(compared)}"


@group("changes results")
def check_zero_gradient(optimizer: Subject) -> None:
    """A zero gradient makes no weight NaN or infinite.

    Dead units, masked rows and zero-initialised heads have one. Mend: add eps to norms and second moments before
    dividing, or take a zero step where the norm is 0.
    """
    for before in (0, 2):
        for which in (slice(None), slice(1)):
            stepper = optimizer.stepper().run(before)
            for _ in range(2):
                stepper.backward()
                grads: list[Any] = [p.grad for p in stepper.params]
                grads[which] = [torch.zeros_like(p) for p in stepper.params[which]]
                optimizer.push(stepper.optimizer, stepper.params, grads)
            broken = int((~flat(stepper.params).isfinite()).sum())
            at_most(0, broken, f"after {before} steps and 2 with gradients of 0, the weights that are not finite are")


@group("changes results")
def check_nan_gradient(optimizer: Subject) -> str:
    """A NaN in a gradient is not replaced by a number.

    Training code detects divergence by NaN. To skip the whole step, to raise an error, or to keep the NaN in the state
    is fine; methods of signs, where NaN has none, are skipped. Mend: remove nan_to_num and masks of NaN.
    """
    shapes = [(4, 3), (5, 1) if optimizer.matrices else (5,)]
    for before in (0, 3):
        params = [nn.Parameter(t) for t in gradients(shapes, 20)]
        instance = optimizer.make(params)
        for step in range(before):
            optimizer.push(instance, params, gradients(shapes, step))
        start, grads = values(params), gradients(shapes, before)
        grads[0][0, 0] = torch.nan
        try:
            optimizer.push(instance, params, grads)
        except (ArithmeticError, RuntimeError, ValueError) as error:
            return f"it raises {type(error).__name__}"
        moved = flat(params) - flat(start)
        sizes = moved[moved != 0].abs()
        if len(sizes) and sizes.allclose(sizes[0]):
            pytest.skip("its steps are signs, and NaN has none")
        kept = [*tree_leaves(instance.state_dict()), params[0][0, 0]]
        if len(sizes) and not any(isinstance(t, Tensor) and t.isnan().any() for t in kept):
            raise Fault(f"after {before} steps, a NaN in the gradient becomes a finite weight: it is hidden")
    return ""


@group("blocks a set-up")
def check_bf16(optimizer: Subject) -> None:
    """bfloat16 parameters keep their dtype and follow float64.

    Weights start at 0, where bfloat16 resolves the smallest steps; its 8 bits give an error of 0.05 in three steps with
    averages, so the tolerance is 0.1 of the way. Mend: create state and constants in the parameter's dtype or wider,
    and update the parameter in place.
    """
    optimizer.refuse_chance()
    shapes = [(4, 3), (5, 1) if optimizer.matrices else (5,)]
    exact, half = ([nn.Parameter(torch.zeros(s, dtype=d)) for s in shapes] for d in (torch.float64, torch.bfloat16))
    instances = [optimizer.make(params) for params in (exact, half)]
    for step in range(3):
        rounded = [g.bfloat16() for g in gradients(shapes, step)]
        optimizer.push(instances[0], exact, [g.double() for g in rounded])
        optimizer.push(instances[1], half, rounded)
    if others := [p.dtype for p in half if p.dtype != torch.bfloat16]:
        raise Fault(f"a bfloat16 parameter became {others[0]}")
    at_most(0.1, gap(half, exact, [torch.zeros(shape) for shape in shapes]), "the gap to float64 is")


@group("changes results")
def check_foreach(optimizer: Subject) -> str:
    """The kernels foreach and fused equal the loop over parameters, at the default and at other hyperparameters.

    A GPU runs another kernel than the CPU where the method was tested. Tolerance 1e-6 of the way: kernels may keep
    their scalars in float32. Mend: compare the paths line by line; decay or momentum may be missing in one.
    """
    flags, ran = [name for name in ("foreach", "fused") if name in optimizer.hparams], list[str]()
    loop = dict.fromkeys(flags, False)
    for label, setting in optimizer.settings() if flags else ():
        try:
            plain = optimizer.stepper(arguments=setting | loop).run(4)
        except Exception:
            continue  # an illegal value
        for flag in flags if flat(plain.params).isfinite().all() else ():
            try:
                stepper = optimizer.stepper(arguments={**setting, **loop, flag: True})
            except Exception:
                continue  # this kernel does not exist here
            ran += [flag] * (flag not in ran)
            at_most(1e-6, stepper.run(4).gap(plain), f"{flag}=True with {label}: the gap to the loop is")
    if not ran:
        pytest.skip("its constructor takes neither foreach nor fused")
    return " and ".join(ran)
