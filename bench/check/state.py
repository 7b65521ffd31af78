"""Checks of an optimizer's state: resuming, copies, averages."""

import copy
import io
import pickle
import re
import sys
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bench.check.catalogue import group
from bench.check.steps import ROUNDING, STEPS, Fault, Stepper, at_most, difference, equal, gap, leaves, values
from bench.check.subject import Subject, pytest
from bench.errors import described


@group("changes results")
def check_resume(optimizer: Subject) -> None:
    """A run resumed from state_dict() equals the uninterrupted one, also where lr is halved afterwards.

    Every preemption resumes. Exact, since the operations and the numbers are the same: in float32 after 3 and after 60
    steps, and with bfloat16 parameters, whose dtype load_state_dict gives to floating-point state. An attribute, or a
    value of the class or its module, that changes with the steps and is not restored fails even if the weights agree:
    signs may hide it for a while. Of seven published Polyak-type optimizers five fail (results/conformance). Mend: keep
    all state in self.state[p] or in the groups, as tensors and plain numbers, which torch.load(weights_only=True) can
    read, and wider state than the parameters in the group; read self.param_groups in every step, since load_state_dict
    replaces them.
    """
    dtypes = {torch.float32: ((3, 4), (60, 60)), torch.bfloat16: ((3, 4),)}
    for dtype, steps in dtypes.items():
        try:
            optimizer.stepper(optimizer.attention(dtype)).run(3)
        except Exception:
            if dtype == torch.float32:
                raise
            continue  # it does not step on bfloat16
        for before, after in steps:
            _check_resumed(optimizer, dtype, before, after)


def _check_resumed(optimizer: Subject, dtype: torch.dtype, before: int, after: int) -> None:
    whole, resumed = _resumed(optimizer, dtype, before)
    where = f"interrupted after {before} steps" + " on bfloat16" * (dtype == torch.bfloat16)
    outside = leaves(values_outside(whole.optimizer))
    lost = ""
    for steps in (1, after - 1):
        whole.run(steps)
        resumed.run(steps)
        lost = difference(leaves(whole.optimizer), leaves(resumed.optimizer))
        if not equal(resumed.params, whole.params):
            why = f"; {lost}" if lost else " (after a change of lr)" if steps > 1 else ""
            at_most(0, resumed.gap(whole), f"{where}, the gap to the uninterrupted run{why} is")
        if whole.has_lr():
            whole.scale_lr(0.5)
            resumed.scale_lr(0.5)
    # One that has converged computes nothing; torch casts scalars of ASGD and NAdam to bfloat16, which changes nothing.
    if lost and whole.moved() and dtype == torch.float32:
        raise Fault(f"{where}, {lost}")
    if changed := difference(outside, leaves(values_outside(whole.optimizer))):
        raise Fault(f"{changed} after {after} more steps: no checkpoint has the values of a class or a module")


def _resumed(optimizer: Subject, dtype: torch.dtype, before: int) -> tuple[Stepper, Stepper]:
    """A run after some steps, and another one with its weights and its loaded state."""
    whole, file = optimizer.stepper(optimizer.attention(dtype)).run(before), io.BytesIO()
    torch.save(whole.optimizer.state_dict(), file)
    file.seek(0)
    try:
        state = torch.load(file, weights_only=True)
    except pickle.UnpicklingError as error:
        kind = re.search(r"GLOBAL (\S+)", str(error))
        raise Fault("torch.load(weights_only=True) refuses its state" + (f": a {kind[1]}" if kind else "")) from None
    resumed = optimizer.stepper(optimizer.attention(dtype))
    with torch.no_grad():
        for p, value in zip(resumed.params, whole.params, strict=True):
            p.copy_(value)
    resumed.optimizer.load_state_dict(state)
    resumed.calls = [0] * before  # so that it draws the random numbers of these steps
    whole.start = values(whole.params)
    return whole, resumed


def values_outside(optimizer: Any) -> dict[str, Any]:
    """Numbers, tensors and containers that its classes and their modules hold."""
    kinds = int | float | Tensor | list | dict | torch.Generator
    members = dict[str, Any]()
    for cls in type(optimizer).__mro__:
        if cls is not object and cls.__module__.partition(".")[0] != "torch":
            members |= {f"{cls.__name__}.{name}": value for name, value in vars(cls).items()}
            members |= vars(sys.modules.get(cls.__module__, object))
    return {k: v for k, v in members.items() if isinstance(v, kinds) and not k.rpartition(".")[2].startswith("__")}


@group("blocks a set-up")
def check_copies(optimizer: Subject) -> None:
    """Copies by deepcopy and by pickle continue as the original does.

    Averaged models, spawned processes and searches copy optimizers. Exact. Mend: Optimizer.__getstate__ keeps only
    defaults, state and param_groups: add your attributes in __getstate__ and __setstate__. A class with a state_dict of
    its own, which restores what this loses, is skipped.
    """
    for steps in (0, 3):
        for name, copied in {"copy.deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}.items():
            stepper = optimizer.stepper().run(steps)
            before = values(stepper.params)
            for p in stepper.params:
                p.grad = None  # one with a graph cannot be copied
            try:
                twin = Stepper(optimizer.spec, *copied((stepper.model, stepper.optimizer)))
                twin.calls = [0] * steps
                twin.run(4)
            except Exception as error:
                if type(stepper.optimizer).state_dict is not Optimizer.state_dict:
                    pytest.skip(f"{described(error)}, but its own state_dict() has more")
                error.add_note(f"{name} after {steps} steps")
                raise
            if not equal(stepper.params, before):
                raise Fault(f"{name}: steps of the copy change the original")
            at_most(0, twin.gap(stepper.run(4)), f"{name} after {steps} steps: the gap to the original is")


@group("changes results")
def check_deterministic(optimizer: Subject) -> None:
    """The same seeds give the same bits, also for two instances that step in turn.

    Sweeps train many runs in one process. Exact. Mend: draw random numbers from torch's, numpy's or Python's seeded
    generators; keep no state in the class or the module.
    """
    alone, first, second = optimizer.stepper().run(), optimizer.stepper(), optimizer.stepper()
    for _ in range(STEPS):
        first.step()
        second.step()
    at_most(0, max(first.gap(alone), second.gap(alone)), "the gap of equal runs, two of them in turn, is")


@group("changes results")
def check_eval_train(optimizer: Subject) -> None:
    """eval() and then train() leave the weights and the later steps as they are.

    Every validation calls them on methods with averages of their own. Tolerance 1e-9 of the way: the weights may be
    computed back. Mend: swap the weights, or interpolate with the same factor in both directions.
    """
    if not all(callable(getattr(optimizer.spec.cls, name, None)) for name in ("eval", "train")):
        pytest.skip("it has no eval() and train()")
    for steps in (0, 1, STEPS):
        disturbed, plain = (optimizer.stepper().run(steps) for _ in range(2))
        for _ in range(2):
            disturbed.optimizer.eval()
            disturbed.optimizer.eval()  # twice is as once
            disturbed.optimizer.train()
        scale = plain.start if steps else [torch.zeros_like(p) for p in plain.params]
        at_most(ROUNDING, gap(disturbed.params, plain.params, scale), f"eval() and train() after {steps} steps change")
        at_most(ROUNDING, disturbed.run(3).gap(plain.run(3)), f"steps after eval() and train() at {steps} change by")
