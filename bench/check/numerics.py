"""Checks of what a step computes: descent, formulas, dtypes, layouts, kernels, and its cost."""

import inspect
import statistics
import timeit
from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from bench.check.catalogue import group
from bench.check.probes import Memory, Reads, watched
from bench.check.steps import ROUNDING, STEPS, Fault, Stepper, at_most, flat, gap, gradients, values
from bench.check.subject import KERNELS, Subject, pytest, reference_of, without_decay

_PUSHES = 3
_FACTORS = (1.0, 10.0, 100.0, 0.1, 1000.0, 0.01)


@group("blocks a set-up")
def check_builds(optimizer: Subject) -> str:
    """The constructor takes a list and a generator of parameters, and a step works.

    Everything else needs this. Mend: it must work with its defaults (or --opt.NAME VALUE) on dense gradients of small
    matrices and vectors, and derive from torch.optim.Optimizer.
    """
    for name, form in {"a list of parameters": list, "a generator of parameters": iter}.items():
        stepper = optimizer.stepper(groups=form)
        if not isinstance(stepper.optimizer, Optimizer):
            raise Fault(f"the result is a {type(stepper.optimizer).__name__}, not a torch.optim.Optimizer")
        owned = sorted(id(p) for group in stepper.optimizer.param_groups for p in group["params"])
        if owned != sorted(id(p) for p in stepper.params):
            raise Fault(f"made from {name}, its param_groups do not contain each parameter exactly once")
        stepper.step()
    return "on matrices only" if optimizer.matrices else "by role" if optimizer.by_role else ""


def _lowered(optimizer: Subject, model: Callable[[], Any]) -> str:
    """The loss must fall by half in 60 steps at its lr times a power of 10; working methods come far below."""
    best, at = inf, 1.0
    for factor in _FACTORS if optimizer.lr else _FACTORS[:1]:
        stepper = optimizer.stepper(model(), arguments={"lr": factor * optimizer.lr} if optimizer.lr else {})
        before = float(stepper.backward())
        stepper.run(60)
        if callable(getattr(stepper.optimizer, "eval", None)):
            stepper.optimizer.eval()  # methods that keep other weights for evaluation
        ratio = float(stepper.backward()) / before
        if isfinite(ratio) and ratio < best:
            best, at = ratio, factor
        if best <= 0.5:
            return f"at lr {at * optimizer.lr:g}" if optimizer.lr else ""
    raise Fault(f"after 60 steps the loss is {best:.3g} of the initial one, at the best lr (at most 0.5)", best)


@group("changes results")
def check_quadratic(optimizer: Subject) -> str:
    """It decreases a quadratic with condition number 10, at its lr times a power of 10.

    At most half of the loss may remain after 60 steps. Mend: look for a wrong sign, a step that does not depend on lr,
    or a default that leaves the weights unchanged.
    """
    return _lowered(optimizer, optimizer.quadratic)


@group("changes results")
def check_attention(optimizer: Subject) -> str:
    """It decreases the loss of a small attention head, at its lr times a power of 10.

    At most half of the loss may remain after 60 steps. Mend: look for a wrong sign, state shared by parameters of
    different shapes, or a loss that is changed before use.
    """
    return _lowered(optimizer, optimizer.attention)


@group("changes results")
def check_reference(optimizer: Subject) -> str:
    """Its steps equal those of a reference: another optimizer, or a function of flat vectors.

    A formula that is off by one in the bias correction, decays twice or has eps inside the root still trains, and only
    a statement of what is right shows it. Tolerance 1e-9 of the way, over 10 float64 steps. Another optimizer is
    compared at the default and at another value of each number and flag that both have. A function is

        reference(weights, gradient, loss, step, memory, **hyperparameters) -> new weights

    with float64 numpy vectors of all elements, the loss as a float, step from 0, and a dict for the method's state,
    initially empty. It receives the constructor's arguments that it names; with `**more` also all that were set by
    hand. Mend: compare the first step by hand: the order of bias correction, decay and momentum, the place of lr.
    """
    if optimizer.reference is None:
        pytest.skip("no reference was given; name one with --reference adamw or module:function")
    optimizer.refuse_chance()
    reference = reference_of(optimizer.reference)
    if not isinstance(reference, Subject):
        return _compare_with_function(optimizer, reference)
    shared = [name for name in reference.hparams if name in optimizer.hparams and name not in KERNELS]
    compared = []
    for label, setting in _settings(optimizer):
        if set(setting) <= set(shared):
            both = {name: optimizer.hparams[name] for name in shared} | setting
            try:
                pair = [each.stepper(arguments=both) for each in (optimizer, reference)]
            except Exception:
                continue  # not a legal value of both
            mine, right = (stepper.run(10) for stepper in pair)
            if not all(map(torch.isfinite, [flat(right.params).sum()])):
                continue
            compared.append(label)
            at_most(ROUNDING, mine.gap(right), f"after 10 steps with {label}, the gap to {reference.spec.name} is")
    return f"with {', '.join(compared)}"


def _settings(optimizer: Subject) -> list[tuple[str, dict[str, Any]]]:
    """The defaults, and another value of each number and flag, as different from the default as possible."""
    found: list[tuple[str, dict[str, Any]]] = [("the defaults", {})]
    for _, name, others in optimizer.variants():
        if name not in KERNELS:
            found += [(f"{name}={value}", {name: value}) for value in others]
    return found


def _compare_with_function(optimizer: Subject, formula: Any) -> str:
    parameters = inspect.signature(formula).parameters
    takes_more = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    arguments = {name: value for name, value in optimizer.hparams.items() if name in parameters}
    arguments |= optimizer.arguments if takes_more else {}
    stepper, at = optimizer.stepper(), Stepper(optimizer.spec, optimizer.attention())
    weights, memory, worst = flat(at.params).numpy(), {}, 0.0
    for step in range(10):
        vector_to_parameters(torch.from_numpy(np.asarray(weights, dtype=np.float64)), at.params)
        loss = float(at.backward())
        gradient = flat([p.grad for p in at.params if p.grad is not None]).numpy()
        weights = formula(weights, gradient, loss, step, memory, **arguments)
        stepper.step()
        vector_to_parameters(torch.from_numpy(np.asarray(weights, dtype=np.float64)), at.params)
        worst = max(worst, stepper.gap(at))
    at_most(ROUNDING, worst, "the largest gap to the function in 10 steps is")
    return ""


@group("changes results")
def check_zero_gradient(optimizer: Subject) -> None:
    """A zero gradient makes no weight NaN or infinite.

    Dead units, masked rows and the first steps of zero-initialised heads have one. Mend: protect divisions by norms and
    by second moments: add eps, or take a zero step where the norm is 0.
    """
    for before in (0, 2):
        for which in (slice(None), slice(1)):
            stepper = optimizer.stepper().run(before)
            for _ in range(2):
                stepper.backward()
                grads: list[Any] = [p.grad for p in stepper.params]
                grads[which] = [torch.zeros_like(p) for p in stepper.params[which]]
                optimizer.push(stepper.optimizer, stepper.params, grads)
            broken = sum(int((~p.isfinite()).sum()) for p in stepper.params)
            at_most(0, broken, f"after {before} steps and 2 with gradients of 0, the weights that are not finite are")


@group("changes results")
def check_nan_gradient(optimizer: Subject) -> str:
    """A NaN in a gradient is not replaced by a number.

    Training code detects divergence by NaN; an optimizer that hides it trains on with wrong gradients, and nobody
    learns of it. To skip the whole step, to raise an error, or to keep the NaN in the state is fine; methods of signs,
    where NaN has none, are skipped. Mend: remove nan_to_num and masks of NaN.
    """
    for before in (0, 3):
        params = [nn.Parameter(t) for t in gradients([(4, 3), (5, 1) if optimizer.matrices else (5,)], 20)]
        instance = optimizer.make(params)
        for step in range(before):
            optimizer.push(instance, params, gradients([p.shape for p in params], step))
        start, grads = values(params), gradients([p.shape for p in params], before)
        grads[0][0, 0] = torch.nan
        try:
            optimizer.push(instance, params, grads)
        except (ArithmeticError, RuntimeError, ValueError) as error:
            return f"it raises {type(error).__name__}"
        moved = flat(params) - flat(start)
        sizes = moved[moved != 0].abs()
        if len(sizes) and sizes.allclose(sizes[0]):
            pytest.skip("its steps are signs, and NaN has none")
        kept = tree_leaves(instance.state_dict())
        if any(isinstance(t, Tensor) and t.isnan().any() for t in kept) or params[0][0, 0].isnan():
            continue
        if len(sizes):
            raise Fault(f"after {before} steps, a NaN in the gradient becomes a finite weight: it is hidden")
    return ""


def _push_both(
    optimizer: Subject, one: list[Any], other: list[Any], both: Callable[[int], tuple[list[Tensor], list[Tensor]]]
) -> None:
    """A few steps of two lists of parameters; `both` has the gradients of each in a step."""
    pair = optimizer.make(one), optimizer.make(other)
    for step in range(_PUSHES):
        for instance, params, grads in zip(pair, (one, other), both(step), strict=True):
            optimizer.push(instance, params, grads)


@group("changes results")
def check_noncontiguous(optimizer: Subject) -> None:
    """Transposed, strided and channels-last tensors get the same steps as contiguous ones.

    Gradients have their parameter's layout, and in one step are contiguous. Tolerance 1e-9 of the way. Mend: use
    reshape instead of view and torch.zeros_like for state, and do not assume the same memory layout for two tensors.
    """
    optimizer.refuse_chance()
    matrix, wide, vector, cube = gradients([(5, 3), (4, 6), (8,), (2, 3, 2, 2)], 7)
    laid = [matrix.t(), wide[:, ::2]]
    if not optimizer.matrices:
        laid += [vector[::2], cube.to(memory_format=torch.channels_last)]
    start = [t.contiguous().clone() for t in laid]
    odd, plain = [nn.Parameter(t) for t in laid], [nn.Parameter(t.clone()) for t in start]

    def both(step: int) -> tuple[list[Tensor], list[Tensor]]:
        grads = gradients([p.shape for p in plain], step)
        strided = [torch.empty_strided(p.shape, p.stride(), dtype=p.dtype) for p in odd]
        return [g.clone() if step == 1 else s.copy_(g) for g, s in zip(grads, strided, strict=True)], grads

    _push_both(optimizer, odd, plain, both)
    at_most(ROUNDING, gap(odd, plain, start), "the gap to contiguous parameters is")


@group("blocks a set-up")
def check_scalar_empty(optimizer: Subject) -> None:
    """0-dim and empty parameters work.

    Models have learnable temperatures and, when sharded, ranks without elements. Tolerance 1e-9 of the way. Mend: do
    not index the first dimension or average over zero elements, which gives NaN.
    """
    if optimizer.matrices:
        pytest.skip("it takes matrices only")
    shapes = [(), (0, 3), (4,)]

    def both(step: int) -> tuple[list[Tensor], list[Tensor]]:
        odd = gradients(shapes, step)
        return odd, [odd[0].clone().view(1), odd[2].clone()]

    odd, plain = ([nn.Parameter(t) for t in tensors] for tensors in both(6))
    start = values(plain)
    _push_both(optimizer, odd, plain, both)
    if [tuple(p.shape) for p in odd] != shapes:
        raise Fault("a parameter has changed its shape")
    at_most(ROUNDING, gap(odd, plain, start), "the gap to vectors with these elements is")


@group("blocks a set-up")
def check_bf16(optimizer: Subject) -> None:
    """bfloat16 parameters keep their dtype and follow float64.

    Pure bf16 training is usual. Weights start at 0, where bfloat16 resolves the smallest steps; its 8 bits give an
    error of 0.05 in three steps with averages, so the tolerance is 0.1 of the way. Mend: create state and constants in
    the parameter's dtype or wider, and update the parameter in place.
    """
    optimizer.refuse_chance()
    shapes = [(4, 3), (5, 1) if optimizer.matrices else (5,)]
    exact, half = ([nn.Parameter(torch.zeros(s, dtype=d)) for s in shapes] for d in (torch.float64, torch.bfloat16))

    def both(step: int) -> tuple[list[Tensor], list[Tensor]]:
        rounded = [g.bfloat16() for g in gradients(shapes, step)]
        return [g.double() for g in rounded], rounded

    _push_both(optimizer, exact, half, both)
    if others := [p.dtype for p in half if p.dtype != torch.bfloat16]:
        raise Fault(f"a bfloat16 parameter became {others[0]}")
    at_most(0.1, gap(half, exact, [torch.zeros(shape) for shape in shapes]), "the gap to float64 is")


@group("changes results")
def check_foreach(optimizer: Subject) -> str:
    """The kernels foreach and fused equal the loop over parameters, at the default and at other hyperparameters.

    On a GPU another kernel runs than on the CPU where the method was tested, and decay or momentum may be missing in
    one. Tolerance 1e-6 of the way: kernels may keep their scalars in float32. Mend: compare the paths line by line.
    """
    flags = [name for name in ("foreach", "fused") if name in optimizer.hparams]
    ran = []
    for flag in flags:
        others = {other: False for other in flags if other != flag}
        for label, setting in _settings(optimizer):
            try:
                plain = optimizer.stepper(arguments={**setting, **others, flag: False}).run(4)
                stepper = optimizer.stepper(arguments={**setting, **others, flag: True})
            except Exception:
                continue  # an illegal value, or this kernel does not exist here
            if flag not in ran:
                ran.append(flag)
            if flat(plain.params).isfinite().all():
                at_most(1e-6, stepper.run(4).gap(plain), f"{flag}=True with {label}: the gap to the loop is")
    if not ran:
        pytest.skip("its constructor takes neither foreach nor fused")
    return " and ".join(ran)


@group("blocks a set-up")
def check_tensor_lr(optimizer: Subject) -> None:
    """The lr may be a 0-dim tensor, also one whose value a scheduler changes in place.

    CUDA graphs and torch.compile need it: torch's own schedulers fill such a tensor. Tolerance 1e-6 of the way. Mend:
    use lr in arithmetic only, as `p.sub_(lr * d)` instead of `p.sub_(d, alpha=lr)`, and keep no copy.
    """
    if not optimizer.lr:
        pytest.skip("its constructor takes no numeric lr")
    without = without_decay(optimizer)
    plain, lr = optimizer.stepper(arguments=without), torch.tensor(optimizer.lr, dtype=torch.float64)
    try:
        stepper = optimizer.stepper(arguments={**without, "lr": lr}).run(3)
    except Exception as error:
        error.add_note("with lr as a 0-dim tensor")
        raise
    plain.run(3).set_lr(0.5)
    rates = {id(group["lr"]): group["lr"] for group in stepper.optimizer.param_groups if "lr" in group}
    for rate in rates.values():  # the groups may share one
        if isinstance(rate, Tensor):
            rate.mul_(0.5)
    for values_ in stepper.optimizer.param_groups:
        if "lr" in values_ and not isinstance(values_["lr"], Tensor):
            values_["lr"] *= 0.5
    at_most(1e-6, stepper.run(3).gap(plain.run(3)), "the gap to a number as lr, halved after 3 steps, is")


# ---- Cost ------------------------------------------------------------------------------------------------------------


@group("costs speed")
def check_syncs(optimizer: Subject) -> None:
    """A step never synchronises with the GPU: no .item(), float(), bool() or nonzero() of GPU tensors.

    Each makes the host wait for the device. Counted in two steps, with the kernels of a GPU. Mend: keep norms, losses
    and step sizes as 0-dim tensors, use torch.where and clamp instead of if.
    """
    most: list[str] = []
    for way in optimizer.kernels:
        stepper = optimizer.stepper(arguments=way).run(1)
        for _ in range(2):
            watch = Reads()
            watched(stepper, watch)
            most = max(most, watch.reads, key=len)
    at_most(0, len(most), f"{', '.join(dict.fromkeys(most))}: synchronisations in a step are")


@group("costs speed")
def check_temporaries(optimizer: Subject) -> None:
    """A step allocates no more full-size temporaries than declared.

    Peak memory decides which model fits. Tolerance 0.05 copies of the parameters beyond `OptimizerSpec.temporaries` (2
    if undeclared), for scalars. Mend: work in place or tensor by tensor, or declare OptimizerSpec(temporaries=N).
    """
    most = max(_copies(optimizer, way)[1] for way in optimizer.kernels)
    declared = optimizer.spec.temporaries
    at_most(declared + 0.05, most, f"{declared:g} copies of the parameters are declared, a step has")


@group("reported")
def check_memory(optimizer: Subject) -> float:
    """State after two steps, in copies of the parameters."""
    return _copies(optimizer, {})[0]


@group("reported")
def check_time(optimizer: Subject) -> float:
    """Time of a step, in units of copying the parameters."""
    params = _large(optimizer, 250_000)
    instance, others = optimizer.make(params), [torch.empty_like(p) for p in params]
    _push(optimizer, instance, params)
    copies = (
        (lambda: torch._foreach_copy_(others, [p.detach() for p in params])),
        lambda: _push(optimizer, instance, params),
    )
    copy, step = (statistics.median(timeit.repeat(call, repeat=5, number=1)) for call in copies)
    return step / copy


def _copies(optimizer: Subject, arguments: Mapping[str, Any]) -> tuple[float, float]:
    """State after two steps, and temporaries at the peak of a third, in copies of the parameters."""
    params = _large(optimizer, 40_000)
    with Memory(peaks=True) as watch:
        instance = optimizer.make(params, **arguments)
        _push(optimizer, instance, params)
        _push(optimizer, instance, params)
        state = watch.now()
        watch.peak = 0
        _push(optimizer, instance, params)
    size = sum(p.numel() * p.element_size() for p in params)
    return state / size, max(0, watch.peak - state) / size


def _large(optimizer: Subject, elements: int) -> list[nn.Parameter]:
    """Four parameters with fixed gradients."""
    params = []
    others = [(100, elements // 100)] * 2 if optimizer.matrices else [(elements,), (elements // 100, 10, 10)]
    for shape in [(elements // 500, 500), (500, elements // 500), *others]:
        p = nn.Parameter(torch.full(shape, 0.1))
        p.grad = torch.full(shape, 0.01)
        params.append(p)
    return params


def _push(optimizer: Subject, instance: Any, params: list[nn.Parameter]) -> None:
    optimizer.push(instance, params, [p.grad for p in params])


# ---- Symmetries ------------------------------------------------------------------------------------------------------


@group("reported")
def check_scale(optimizer: Subject) -> str:
    """Effect of a ten times larger loss on the first step: `invariant`, `x10`, ..."""
    lengths = []
    for factor in (1.0, 10.0):
        model = optimizer.quadratic()
        model.factor = factor
        stepper = optimizer.stepper(model).run(1)
        lengths.append(float((model.weight.detach() - stepper.start[0]).norm()))
    if not lengths[0]:
        return "the first step changes nothing"
    ratio = lengths[1] / lengths[0]
    return "invariant" if abs(ratio - 1) < 1e-3 else f"x{ratio:.3g}"


@group("reported")
def check_rotation(optimizer: Subject) -> str:
    """Whether rotated coordinates give the rotated trajectory."""
    turn, _ = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    return _turned(optimizer, turn)


@group("reported")
def check_permutation(optimizer: Subject) -> str:
    """Whether permuted coordinates give the permuted trajectory."""
    return _turned(optimizer, torch.eye(6, dtype=torch.float64)[[3, 0, 5, 1, 4, 2]])


def _turned(optimizer: Subject, turn: Tensor) -> str:
    plain, turned = (optimizer.stepper(optimizer.quadratic(way)).run(STEPS) for way in (None, turn))
    distance = gap([turn.T @ flat(turned.params)], plain.params, plain.start)
    return "equivariant" if distance < 1e-6 else "not equivariant"
