"""Checks of an optimizer's state: resuming, copies, averages, growth."""

import copy
import gc
import io
import pickle
import random
import re
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bench.check.catalogue import group
from bench.check.probes import Memory, watched
from bench.check.steps import ROUNDING, STEPS, Fault, Stepper, at_most, gap, values
from bench.check.subject import Subject, pytest
from bench.errors import described

_BEFORE, _AFTER = 3, 4


@group("changes results")
def check_resume(optimizer: Subject) -> None:
    """A run resumed from state_dict() equals the uninterrupted one (float32), after 3 and after 60 steps.

    Every preemption resumes. Exact, since the operations and the numbers are the same; an attribute, or a value of the
    class or its module, that changes with the steps and is not restored fails even if the weights agree: signs may hide
    it for a while. Of seven published Polyak-type optimizers five fail (results/conformance). Mend: keep all state in
    self.state[p] or in the groups, as tensors and plain numbers, which torch.load(weights_only=True) can read.
    """
    for before, after in ((_BEFORE, _AFTER), (60, 60)):
        whole, again = _resumed(optimizer, torch.float32, before)
        outside = _copied(_outside(whole.optimizer))
        _compare(whole.run(after), again.run(after), before)
        if changed := difference(outside, _outside(whole.optimizer)):
            raise Fault(f"{changed} after {after} more steps: no checkpoint has the values of a class or a module")


@group("changes results")
def check_resume_bf16(optimizer: Subject) -> None:
    """The same with bfloat16 parameters.

    load_state_dict casts floating-point state to its parameter's dtype: keep wider state in the group, or override
    load_state_dict to put it back. Exact for the weights; torch casts scalars of ASGD and NAdam, which changes none.
    """
    try:
        optimizer.stepper(optimizer.attention(torch.bfloat16)).run(_BEFORE)
    except Exception as error:
        pytest.skip(f"it does not step on bfloat16 ({type(error).__name__})")
    whole, again = _resumed(optimizer, torch.bfloat16, _BEFORE)
    _compare(whole.run(_AFTER), again.run(_AFTER), _BEFORE, weights_only=True)


@group("changes results")
def check_resumed_schedule(optimizer: Subject) -> None:
    """A schedule acts on a resumed run as on the uninterrupted one: lr is halved after the state is loaded.

    load_state_dict replaces param_groups; a group that was kept elsewhere is detached then, and the schedule acts on
    nothing. Exact. Mend: read self.param_groups in every step, also those of an inner optimizer.
    """
    try:
        whole, again = _resumed(optimizer, torch.float32, _BEFORE)
        _compare(whole.run(1), again.run(1), _BEFORE)
    except Fault:
        pytest.skip("it does not resume, as `resume` says")
    whole, again = _resumed(optimizer, torch.float32, _BEFORE)
    for stepper in (whole, again):
        if not all(isinstance(group.get("lr"), float | int | Tensor) for group in stepper.optimizer.param_groups):
            pytest.skip("its groups have no numeric 'lr'")
        stepper.set_lr(0.5)
    _compare(whole.run(_AFTER), again.run(_AFTER), _BEFORE)


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
    again = optimizer.stepper(optimizer.attention(dtype))
    with torch.no_grad():
        for p, value in zip(again.params, whole.params, strict=True):
            p.copy_(value)
    again.optimizer.load_state_dict(state)
    again.calls = [0] * before  # so that it draws the random numbers of these steps
    whole.start = values(whole.params)
    return whole, again


def _compare(whole: Stepper, again: Stepper, before: int, *, weights_only: bool = False) -> None:
    lost = difference(_remembered(whole.optimizer), _remembered(again.optimizer))
    same = all(torch.equal(p.nan_to_num(), q.nan_to_num()) for p, q in zip(again.params, whole.params, strict=True))
    measured = 0.0 if same else gap(again.params, whole.params, whole.start)
    why = f"; {lost}" if lost else ""
    at_most(0, measured, f"interrupted after {before} steps, the gap to the uninterrupted run{why} is")
    if lost and whole.moved() and not weights_only:  # one that has converged computes nothing
        raise Fault(f"interrupted after {before} steps, {lost}")


def _remembered(optimizer: Any) -> dict[str, Any]:
    """Its state_dict and its own attributes."""
    usual = vars(torch.optim.SGD([torch.zeros(1)]))
    own = {f"self.{name}": value for name, value in vars(optimizer).items() if name not in usual}
    return {"state_dict()": optimizer.state_dict()} | own


def _outside(optimizer: Any) -> dict[str, Any]:
    """Numbers, tensors and containers that its classes and their modules hold."""
    kinds = int | float | Tensor | list | dict | torch.Generator
    found = {}
    for cls in type(optimizer).__mro__:
        if cls is not object and cls.__module__.partition(".")[0] != "torch":
            places = (f"{cls.__name__}.", vars(cls)), ("", vars(sys.modules.get(cls.__module__, object)))
            found |= {
                f"{at}{name}": value
                for at, names in places
                for name, value in names.items()
                if isinstance(value, kinds) and not name.startswith("__")
            }
    return found


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    copies: dict[str, Any] = {}
    for name, value in values.items():
        with suppress(Exception):
            copies[name] = copy.deepcopy(value)
    return copies


def difference(one: Any, other: Any, at: str = "", tolerance: float = 0.0, depth: int = 8) -> str:
    """The first place where two nested values differ, in words; nothing if they agree.

    Args:
        one: tensors, numbers, words, generators, and dicts, lists and objects of them.
        other: the same.
        at: name of both.
        tolerance: largest difference of two elements that is ignored, relative to the largest element.
        depth: levels that are compared.
    """
    if isinstance(one, torch.Generator | np.random.Generator | random.Random) and type(one) is type(other):
        states = [_state_of(generator) for generator in (one, other)]
        return "" if states[0] == states[1] else f"{at} is in another state"
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return f"{at} is {_kind(other)} in place of {_kind(one)}"
        a, b = one.detach().nan_to_num(), other.detach().nan_to_num()
        close = torch.equal(a, b) or (tolerance > 0 and bool(((a - b).abs() <= tolerance * a.abs().max()).all()))
        return "" if close else f"{at} differs"
    if isinstance(one, dict) and isinstance(other, dict):
        names = [f"{at}[{key!r}]" if at else str(key) for key in one if not isinstance(key, Tensor)]
        if len(names) < len(one):  # keyed by tensors, which are others after loading
            return difference(list(one.values()), list(other.values()), at, tolerance, depth)
        pairs = [(name, value, other.get(key, _MISSING)) for name, (key, value) in zip(names, one.items(), strict=True)]
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return f"{at} has {len(other)} entries in place of {len(one)}"
        pairs = [(f"{at}[{i}]", *pair) for i, pair in enumerate(zip(one, other, strict=True))]
    elif other is _MISSING:
        return f"{at} is missing"
    elif isinstance(one, int | float | str | None) and isinstance(other, int | float | str | None):
        return "" if one == other or one != one else f"{at} is {other!r} in place of {one!r}"
    elif type(one) is not type(other):
        return f"{at} is a {type(other).__name__}, not a {type(one).__name__}"
    elif isinstance(one, Optimizer):
        pairs = [(at, _remembered(one), _remembered(other))]
    elif depth and hasattr(one, "__dict__") and not isinstance(one, type | nn.Module) and not callable(one):
        pairs = [(f"{at}.{name}", value, vars(other).get(name, _MISSING)) for name, value in vars(one).items()]
    else:
        return ""
    return next((found for name, a, b in pairs if (found := difference(a, b, name, tolerance, depth - 1))), "")


_MISSING = object()


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    return generator.getstate() if isinstance(generator, random.Random) else str(generator.bit_generator.state)


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


@group("blocks a set-up")
def check_copies(optimizer: Subject) -> None:
    """Copies by deepcopy and by pickle continue as the original does.

    Averaged models, spawned processes and searches copy optimizers. Exact. Mend: Optimizer.__getstate__ keeps only
    defaults, state and param_groups: add your attributes in __getstate__ and __setstate__. A class with a state_dict of
    its own, which restores what this loses, is skipped.
    """
    for steps in (0, _BEFORE):
        for name, copied in {"copy.deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}.items():
            stepper = optimizer.stepper().run(steps)
            before = values(stepper.params)
            for p in stepper.params:
                p.grad = None  # one with a graph cannot be copied
            try:
                twin = Stepper(optimizer.spec, *copied((stepper.model, stepper.optimizer)))
                twin.calls = [0] * steps
                twin.run(_AFTER)
            except Exception as error:
                if type(stepper.optimizer).state_dict is not Optimizer.state_dict:
                    pytest.skip(f"{described(error)}, but its own state_dict() has more")
                error.add_note(f"{name} after {steps} steps")
                raise
            if not all(map(torch.equal, stepper.params, before)):
                raise Fault(f"{name}: steps of the copy change the original")
            at_most(0, twin.gap(stepper.run(_AFTER)), f"{name} after {steps} steps: the gap to the original is")


@group("changes results")
def check_deterministic(optimizer: Subject) -> None:
    """The same seeds give the same bits.

    Exact. Mend: draw random numbers from torch's, numpy's or Python's seeded generators; keep no state in the class or
    the module.
    """
    first, second = optimizer.stepper().run(), optimizer.stepper().run()
    at_most(0, second.gap(first), "the gap of two equal runs is")


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


@group("blocks a set-up")
def check_leaks(optimizer: Subject) -> None:
    """Memory does not grow with the number of steps, neither in tensors nor in lists of numbers.

    Long runs die of it, and every checkpoint grows. Nothing may be added in 50 steps after 230, so a bounded history is
    fine. Mend: detach() stored tensors, and store only as many as the method needs.
    """
    stepper, watch = optimizer.stepper(optimizer.quadratic()).run(100), Memory()
    sizes = []
    for steps in (130, 50):
        for _ in range(steps):
            watched(stepper, watch)
        gc.collect()
        entries = _entries([vars(stepper.optimizer), [vars(p) for p in stepper.params], _outside(stepper.optimizer)])
        sizes.append((watch.now(), entries))
        watch.places = True
    (first, before), (last, after) = sizes
    where = f", allocated in {watch.most()}" if watch.most() else ""
    at_most(0, last - first, f"50 late steps add memory{where}, in bytes")
    at_most(0, after - before, "50 late steps add entries to its groups, state or attributes: their number is")


def _entries(root: Any) -> int:
    """The number of entries of all containers and objects that a value holds, each counted once."""
    seen, left, count = set[int](), [root], 0
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            members = list(value.values())
        elif isinstance(value, list | tuple | set) or type(value).__name__ == "deque":
            members = list(value)
        elif isinstance(value, Tensor | type | nn.Module) or callable(value):
            members = []
        else:
            members = list(getattr(value, "__dict__", {}).values())
        count += len(members)
        left += [member for member in members if not isinstance(member, int | float | str | None)]
    return count
