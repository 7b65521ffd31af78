"""What is checked: names, meanings, tolerances and advice. Importing this file imports no torch.

A gap is the greatest difference of two results, relative to the greatest way of a weight in the checked steps.
"""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["results", "set-up", "speed", "hygiene"]

SEVERITIES: dict[Severity, str] = {
    "results": "changes results",
    "set-up": "blocks a set-up",
    "speed": "costs speed",
    "hygiene": "hygiene",
}
"""What a failure does, the worst first."""

SERIOUS: tuple[Severity, ...] = ("results", "set-up")
"""What headlines and boards count."""


@dataclass(frozen=True)
class Check:
    """A property of optimizers or tasks, and the function that measures it.

    Attributes:
        name: what `--only` takes.
        target: `module:function`; from a `Subject` (`TaskSubject`) to a `Measured` (`bench/check/subject.py`).
        meaning: one line.
        tolerance: greatest number that passes; None for what is only reported.
        because: why that much.
        advice: what to do about a failure.
        severity: what a failure does; None for what is only reported.
    """

    name: str
    target: str
    meaning: str
    tolerance: float | None
    because: str
    advice: str
    severity: Severity | None = None


_ROUNDING = "rounding of float64 over a few steps; a real fault gives 1e-3 and more"
_EXACT = "the same operations on the same numbers"
_REPORT = "a property of the method, not a fault"

_ALL = (
    Check(
        "builds",
        "bench.check.behaviour:builds",
        "it is made from a list and from a generator of parameters, and makes a step",
        None,
        "it works or it does not",
        (
            "see what it raised, and where: it must be made with its defaults (or --opt.NAME VALUE) and step on dense"
            " gradients of small matrices and vectors"
        ),
        "set-up",
    ),
    Check(
        "quadratic",
        "bench.check.behaviour:quadratic",
        "it lowers a quadratic with condition 10, at its lr or a power of 10 times it",
        0.5,
        "the loss after 60 steps over that before; working methods come far below",
        "look for a wrong sign, a step that does not depend on lr, or a default that keeps the weights where they are",
        "results",
    ),
    Check(
        "attention",
        "bench.check.behaviour:attention",
        "it lowers the loss of a small attention head, at its lr or a power of 10 times it",
        0.5,
        "the loss after 60 steps over that before; working methods come far below",
        (
            "look for a wrong sign, state that parameters of different shapes share,"
            " or a loss that is not used as it is given"
        ),
        "results",
    ),
    Check(
        "reference",
        "bench.check.behaviour:reference",
        "its steps equal a float64 function of flat vectors, written from the paper",
        1e-9,
        _ROUNDING,
        "compare the first step by hand: order of bias correction, weight decay and momentum, and where lr stands",
        "results",
    ),
    Check(
        "resume",
        "bench.check.state:resume",
        "a run that goes on from state_dict() equals the uninterrupted one (float32)",
        0.0,
        _EXACT,
        (
            "keep all that steps remember in self.state[p] or in the groups, as tensors and plain numbers,"
            " which weights_only=True reads"
        ),
        "results",
    ),
    Check(
        "resume_bf16",
        "bench.check.state:resume_bf16",
        "the same with bfloat16 parameters",
        0.0,
        _EXACT,
        "load_state_dict casts floating-point state to its parameter's dtype:"
        " keep wider state in the group, or override load_state_dict to put it back",
        "results",
    ),
    Check(
        "copies",
        "bench.check.state:copies",
        "copies by deepcopy and by pickle go on as the original does",
        0.0,
        _EXACT,
        (
            "Optimizer.__getstate__ keeps only defaults, state and param_groups: add your attributes in __getstate__"
            " and __setstate__"
        ),
        "hygiene",
    ),
    Check(
        "deterministic",
        "bench.check.state:deterministic",
        "the same seeds give the same bits",
        0.0,
        _EXACT,
        (
            "draw random numbers from torch's, numpy's or Python's seeded generators;"
            " keep nothing in the class or the module"
        ),
        "results",
    ),
    Check(
        "groups",
        "bench.check.groups:groups",
        "two parameter groups equal one, also if the second is added later",
        1e-9,
        "the order of summation may differ between groups, no more: " + _ROUNDING,
        (
            "walk through all of self.param_groups, and take norms and other sums over all groups before the"
            " first weight moves"
        ),
        "results",
    ),
    Check(
        "group_values",
        "bench.check.hyperparameters:group_values",
        "a number that differs between two groups acts on each as it was told: lr, momentum, decay, ...",
        1e-9,
        "the order of summation may differ between groups, no more: " + _ROUNDING,
        "read each option from the group that is walked through, not from self.defaults or param_groups[0];"
        " raise where two values make no sense",
        "results",
    ),
    Check(
        "schedule",
        "bench.check.groups:schedule",
        "a torch scheduler drives it: half of lr by schedule equals half of lr from the start",
        1e-9,
        _ROUNDING,
        "read group['lr'] in every step, not what the constructor was given; every group needs an 'lr'",
        "results",
    ),
    Check(
        "lr_changes",
        "bench.check.hyperparameters:lr_changes",
        "lr that changes in mid-run changes the steps",
        0.0,
        "it does or it does not; only a difference above rounding counts",
        "read group['lr'] in every step and keep no copy of the first one",
        "results",
    ),
    Check(
        "own_lr",
        "bench.check.untouched:own_lr",
        "a step leaves group['lr'] alone, or says that it does not",
        0.0,
        _EXACT,
        "keep step sizes of your own under another name, or declare Traits(sets_lr=True) in the OptimizerSpec:"
        " schedulers write and read group['lr']",
        "results",
    ),
    Check(
        "lr_zero",
        "bench.check.groups:lr_zero",
        "lr = 0 moves nothing, and a run goes on after it",
        0.0,
        "nothing is nothing",
        "multiply all that moves weights by lr, weight decay and noise too, and never divide by lr",
        "results",
    ),
    Check(
        "frozen",
        "bench.check.groups:frozen",
        "frozen parameters and those without a gradient stay, and do not change the others' way",
        1e-9,
        _ROUNDING,
        "skip parameters whose .grad is None, before their state is made",
        "set-up",
    ),
    Check(
        "zero_gradient",
        "bench.check.groups:zero_gradient",
        "a gradient of zero makes no weight NaN or infinite",
        0.0,
        "the number of weights that are not finite",
        "guard divisions by norms and by second moments: add eps, or take a step of 0 where the norm is 0",
        "results",
    ),
    Check(
        "noncontiguous",
        "bench.check.tensors:noncontiguous",
        "transposed, strided and channels-last tensors step as contiguous ones",
        1e-9,
        _ROUNDING,
        "use reshape instead of view, torch.zeros_like for state, and do not take two tensors as one flat memory",
        "results",
    ),
    Check(
        "scalar_empty",
        "bench.check.tensors:scalar_empty",
        "0-dim and empty parameters step as others",
        1e-9,
        _ROUNDING,
        "do not index the first dimension or take means over no elements; a mean of nothing is NaN",
        "set-up",
    ),
    Check(
        "bf16",
        "bench.check.tensors:bf16",
        "bfloat16 parameters keep their dtype and follow float64",
        0.1,
        "bfloat16 has 8 bits: three steps with averages round by up to 0.05",
        "make state and constants in the parameter's dtype or wider, and write back in place",
        "set-up",
    ),
    Check(
        "foreach",
        "bench.check.tensors:foreach",
        "foreach and fused kernels equal the loop over parameters",
        1e-6,
        "kernels may keep their scalars in float32; a real fault gives 1e-3 and more",
        "compare the two paths line by line, in-place operations on shared lists first",
        "results",
    ),
    Check(
        "closure",
        "bench.check.closures:closure",
        "the closure runs with gradients enabled, also under no_grad, and step returns its loss",
        0.0,
        "the difference of the loss returned and the closure's first",
        "write `with torch.enable_grad(): loss = closure()` and `return loss`",
        "set-up",
    ),
    Check(
        "closure_calls",
        "bench.check.closures:closure_calls",
        "it evaluates the closure once a step, or says that it does so more often",
        0.0,
        "calls a step beyond what is declared",
        "call the closure once, or declare Traits(calls_closure_again=True) in the OptimizerSpec",
        "speed",
    ),
    Check(
        "norm_keywords",
        "bench.check.closures:norm_keywords",
        "norms that step takes as keywords change nothing where they are right",
        1e-9,
        _ROUNDING,
        "use the keyword in the place of the norm that step would compute itself, squared or not as there",
        "results",
    ),
    Check(
        "micro_batches",
        "bench.check.closures:micro_batches",
        "a gradient summed over micro-batches steps as that of the whole batch",
        1e-9,
        _ROUNDING,
        "use .grad and the loss as they are in step; hooks on parameters see each micro-batch",
        "results",
    ),
    Check(
        "gradients",
        "bench.check.untouched:gradients",
        "a step leaves .grad as it is, and does not zero it",
        0.0,
        _EXACT,
        "make a new tensor (grad = grad + weight_decay * p) in place of grad.add_, and leave zero_grad to the caller:"
        " logging and gradient accumulation read .grad after the step",
        "hygiene",
    ),
    Check(
        "generators",
        "bench.check.untouched:generators",
        "making it and stepping leave torch's, numpy's and Python's global generators alone, or it says so",
        0.0,
        _EXACT,
        "draw from a torch.Generator of your own whose state is in state_dict, or declare Traits(draws=True) in the"
        " OptimizerSpec; never seed a global generator",
        "hygiene",
    ),
    Check(
        "grad_scaler",
        "bench.check.closures:grad_scaler",
        "a GradScaler changes nothing where it scales by a power of 2, and an overflow skips the step",
        1e-5,
        "float32 with a power of 2 rounds nowhere; the bound leaves room for norms",
        (
            "take the closure by position, and do not set _step_supports_amp_scaling unless step uses"
            " grad_scale and found_inf"
        ),
        "set-up",
    ),
    Check(
        "ddp",
        "bench.check.ranks:ddp",
        "under DDP two processes stay equal to the bit, and equal one process",
        1e-9,
        _ROUNDING,
        (
            "gradients and loss are averaged over ranks already: do not reduce or divide them again,"
            " and use nothing that differs by rank"
        ),
        "results",
    ),
    Check(
        "rank_seeds",
        "bench.check.ranks:rank_seeds",
        "two DDP processes whose global generators have seeds of their own stay equal to the bit",
        0.0,
        _EXACT,
        "draw from a torch.Generator of your own that has one seed on all ranks",
        "results",
    ),
    Check(
        "fsdp",
        "bench.check.ranks:fsdp",
        "under FSDP2 two processes equal one",
        1e-6,
        "sums over shards are made in another order, some of them by torch in float32",
        "norms and other sums must run over all shards: optimizers.norms does,"
        " .to_local() and float() see one shard; where it raises,"
        " an operation has no form for sharded tensors (DTensor)",
        "set-up",
    ),
    Check(
        "lanes",
        "bench.check.lanes:lanes",
        "many runs as one program: its pure update equals the class, or its instances do not disturb each other",
        1e-9,
        _ROUNDING,
        (
            "with OptimizerSpec.update: compare the function with step line by line;"
            " without: keep nothing in the class or the module"
        ),
        "results",
    ),
    Check(
        "syncs",
        "bench.check.cost:syncs",
        "a step never waits for a GPU: no .item(), float(), bool() or nonzero() of what lies there",
        0.0,
        "reads per step",
        "keep norms, losses and step sizes as 0-dim tensors, choose with torch.where and clamp instead of if",
        "speed",
    ),
    Check(
        "leaks",
        "bench.check.cost:leaks",
        "memory does not grow with the number of steps",
        0.0,
        "bytes that 40 late steps add, per byte of parameters",
        "detach() what is kept, and keep only as many tensors as the method needs",
        "set-up",
    ),
    Check(
        "temporaries",
        "bench.check.cost:temporaries",
        "a step makes no more full-size temporaries than is declared",
        0.05,
        "copies of the parameters at the peak, beyond OptimizerSpec.temporaries; scalars round it",
        "work in place or tensor by tensor, or declare OptimizerSpec(temporaries=N); 2 copies are what foreach kernels"
        " need",
        "speed",
    ),
    Check(
        "own_loss",
        "bench.check.ranks:own_loss",
        (
            "how far replicas drift apart under DDP where each rank's closure returns its own loss (the suite's"
            " return the mean)"
        ),
        None,
        "so do all methods that use the loss, unless they average it themselves",
        "",
    ),
    Check(
        "memory",
        "bench.check.cost:memory",
        "state, and temporaries at their peak, in copies of the parameters",
        None,
        _REPORT,
        "",
    ),
    Check(
        "time",
        "bench.check.cost:time",
        "time of a step, in copies of the parameters",
        None,
        _REPORT,
        "",
    ),
    Check(
        "scale",
        "bench.check.symmetry:scale",
        "what a loss ten times as large does to the first step",
        None,
        _REPORT,
        "",
    ),
    Check(
        "rotation",
        "bench.check.symmetry:rotation",
        "whether rotated coordinates give the rotated path",
        None,
        _REPORT,
        "",
    ),
    Check(
        "permutation",
        "bench.check.symmetry:permutation",
        "whether permuted coordinates give the permuted path",
        None,
        _REPORT,
        "",
    ),
)

_OF_TASKS = (
    Check(
        "builds",
        "bench.check.task:builds",
        "data and model are made, and six steps give finite losses and move weights",
        None,
        "it works or it does not",
        "see what it raised, and where: it must train in float64 on the CPU (--precision 64-true)",
        "set-up",
    ),
    Check(
        "deterministic",
        "bench.check.task:deterministic",
        "the same seed gives the same run, and another seed another",
        0.0,
        _EXACT,
        "make initial weights from torch's generator, data from `seed`, and what is random in training from"
        " `randomness.uniform`; keep nothing in the class or the module",
        "results",
    ),
    Check(
        "micro_batches",
        "bench.check.task:micro_batches",
        "batches in three pieces give the run of batches in one",
        1e-9,
        _ROUNDING,
        "the loss is a mean over rows that are independent: no batch normalisation, no sum; what is random comes from"
        " `randomness.uniform`, and rows of unequal weight are divided by the split's mean",
        "results",
    ),
    Check(
        "resume",
        "bench.check.task:resume",
        "a run that goes on from a checkpoint equals the uninterrupted one",
        0.0,
        _EXACT,
        "keep what training changes in parameters and buffers; take random numbers from `randomness.uniform`, not from"
        " the global generator",
        "results",
    ),
    Check(
        "lanes",
        "bench.check.task:lanes",
        "runs that are trained as one program equal those of `bench fit`",
        1e-9,
        _ROUNDING,
        "compare `loss_at` with `loss` at one point; the loss may depend on weights and batch alone",
        "results",
    ),
    Check(
        "leakage",
        "bench.check.task:leakage",
        "no training row is in another split",
        0.01,
        "the share of a split's rows; texts repeat some, a real leak is greater",
        "draw each split from a stream of its own (`derive_seed(seed, split)`), or cut them apart before anything else",
        "results",
    ),
)

Kind = Literal["optimizer", "task"]

CATALOGUES: dict[Kind, dict[str, Check]] = {
    "optimizer": {check.name: check for check in _ALL},
    "task": {check.name: check for check in _OF_TASKS},
}
"""All checks by name, in the order in which they run, by what they are of."""

CHECKS = CATALOGUES["optimizer"]


def weight(check: Check) -> int:
    """Checks in order of this number have the worst failures first, and what is only reported last."""
    return list(SEVERITIES).index(check.severity) if check.severity else len(SEVERITIES)
