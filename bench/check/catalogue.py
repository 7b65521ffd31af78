"""The checks: names, meanings, tolerances and advice. Importing this file imports no torch.

A gap is the largest difference of two results, relative to the largest distance that a weight moves in the checked
steps.
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
"""Consequences of a failure, the worst first."""

SERIOUS: tuple[Severity, ...] = ("results", "set-up")
"""The severities that headlines and boards count."""


@dataclass(frozen=True)
class Check:
    """A property of optimizers or tasks, and the function that measures it.

    Attributes:
        name: what `--only` takes.
        target: `module:function`; from a `Subject` (`TaskSubject`) to a `Measured` (`bench/check/findings.py`).
        meaning: one line.
        tolerance: largest value that passes; None for a check that is only reported.
        because: reason for the tolerance.
        advice: how to fix a failure.
        severity: consequence of a failure; None for a check that is only reported.
    """

    name: str
    target: str
    meaning: str
    tolerance: float | None
    because: str
    advice: str
    severity: Severity | None

    @property
    def consequence(self) -> str | None:
        """Its severity in words."""
        return self.severity and SEVERITIES[self.severity]

    @property
    def weight(self) -> int:
        """Sort key: the worst failures first, checks that are only reported last."""
        return [*SEVERITIES, None].index(self.severity)


Bound = tuple[float | None, str]
"""Tolerance of a check, and the reason for it."""
Entry = tuple[str, Bound, Severity | None, str]
"""Meaning, bound, severity and advice."""

_ROUNDING: Bound = 1e-9, "rounding of float64 over a few steps; a real fault gives 1e-3 and more"
_SUMMED: Bound = 1e-9, f"the order of summation may differ between groups, no more: {_ROUNDING[1]}"
_EXACT: Bound = 0.0, "the operations and the numbers are the same"
_DECREASED: Bound = 0.5, "loss after 60 steps over initial loss; working methods come far below"
_PASS_OR_FAIL: Bound = None, "pass or fail"
_REPORTED: Bound = None, "a property of the method, not a fault"

# By function, as `module:name` in this package; the checks have the names of their functions.
_OF_OPTIMIZERS: dict[str, Entry] = {
    "behaviour:builds": (
        "the constructor takes a list and a generator of parameters, and a step works",
        _PASS_OR_FAIL,
        "set-up",
        "read the exception and its location: the optimizer must work with its defaults (or --opt.NAME VALUE) on"
        " dense gradients of small matrices and vectors",
    ),
    "behaviour:quadratic": (
        "it decreases a quadratic with condition number 10, at its lr times a power of 10",
        _DECREASED,
        "results",
        "look for a wrong sign, a step that does not depend on lr, or a default that leaves the weights unchanged",
    ),
    "behaviour:attention": (
        "it decreases the loss of a small attention head, at its lr times a power of 10",
        _DECREASED,
        "results",
        "look for a wrong sign, state shared by parameters of different shapes, or a loss that is changed before use",
    ),
    "behaviour:reference": (
        "its steps equal a float64 function of flat vectors, written from the paper",
        _ROUNDING,
        "results",
        "compare the first step by hand: the order of bias correction, weight decay and momentum, and the place of lr",
    ),
    "state:resume": (
        "a run resumed from state_dict() equals the uninterrupted one (float32)",
        _EXACT,
        "results",
        "keep all state in self.state[p] or in the groups, as tensors and plain numbers, which weights_only=True can"
        " read",
    ),
    "state:resume_bf16": (
        "the same with bfloat16 parameters",
        _EXACT,
        "results",
        "load_state_dict casts floating-point state to its parameter's dtype: keep wider state in the group, or"
        " override load_state_dict to put it back",
    ),
    "state:copies": (
        "copies by deepcopy and by pickle continue as the original does",
        _EXACT,
        "hygiene",
        "Optimizer.__getstate__ keeps only defaults, state and param_groups: add your attributes in __getstate__ and"
        " __setstate__",
    ),
    "state:deterministic": (
        "the same seeds give the same bits",
        _EXACT,
        "results",
        "draw random numbers from torch's, numpy's or Python's seeded generators; keep no state in the class or the"
        " module",
    ),
    "groups:groups": (
        "two parameter groups equal one, also if the second is added later",
        _SUMMED,
        "results",
        "loop over all of self.param_groups, and compute norms and other sums over all groups before changing any"
        " weight",
    ),
    "hyperparameters:group_values": (
        "each group uses its own hyperparameters: lr, momentum, decay, ...",
        _SUMMED,
        "results",
        "read each option from the current group, not from self.defaults or param_groups[0]; raise an error where two"
        " values make no sense",
    ),
    "groups:schedule": (
        "it follows torch schedulers: lr halved by a schedule equals half of lr from the start",
        _ROUNDING,
        "results",
        "read group['lr'] in every step, not the constructor's argument; every group needs an 'lr'",
    ),
    "hyperparameters:lr_changes": (
        "a change of lr during training changes the steps",
        (0.0, "pass or fail; only a difference above rounding counts"),
        "results",
        "read group['lr'] in every step and keep no copy of the first one",
    ),
    "untouched:own_lr": (
        "a step leaves group['lr'] unchanged, or the optimizer declares sets_lr",
        _EXACT,
        "results",
        "store your own step sizes under another name, or declare Traits(sets_lr=True) in the OptimizerSpec:"
        " schedulers read and write group['lr']",
    ),
    "groups:lr_zero": (
        "lr = 0 changes no weight, and training continues after it",
        (0.0, "no weight may change"),
        "results",
        "multiply every change of the weights by lr, including weight decay and noise, and never divide by lr",
    ),
    "groups:frozen": (
        "frozen parameters and those without a gradient stay unchanged and do not affect the others",
        _ROUNDING,
        "set-up",
        "skip parameters whose .grad is None before creating their state",
    ),
    "groups:zero_gradient": (
        "a zero gradient makes no weight NaN or infinite",
        (0.0, "number of weights that are not finite"),
        "results",
        "protect divisions by norms and by second moments: add eps, or take a zero step where the norm is 0",
    ),
    "tensors:noncontiguous": (
        "transposed, strided and channels-last tensors get the same steps as contiguous ones",
        _ROUNDING,
        "results",
        "use reshape instead of view and torch.zeros_like for state, and do not assume the same memory layout for two"
        " tensors",
    ),
    "tensors:scalar_empty": (
        "0-dim and empty parameters work",
        _ROUNDING,
        "set-up",
        "do not index the first dimension or average over zero elements, which gives NaN",
    ),
    "tensors:bf16": (
        "bfloat16 parameters keep their dtype and follow float64",
        (0.1, "bfloat16 has 8 bits: rounding in three steps with averages reaches 0.05"),
        "set-up",
        "create state and constants in the parameter's dtype or wider, and update the parameter in place",
    ),
    "tensors:foreach": (
        "foreach and fused kernels equal the loop over parameters",
        (1e-06, "kernels may keep their scalars in float32; a real fault gives 1e-3 and more"),
        "results",
        "compare the two paths line by line, in-place operations on shared lists first",
    ),
    "closures:closure": (
        "the closure runs with gradients enabled, also under no_grad, and step returns its loss",
        (0.0, "difference of the returned loss and the closure's first"),
        "set-up",
        "write `with torch.enable_grad(): loss = closure()` and `return loss`",
    ),
    "closures:closure_calls": (
        "it evaluates the closure once per step, or declares calls_closure_again",
        (0.0, "calls per step beyond the declared ones"),
        "speed",
        "call the closure once, or declare Traits(calls_closure_again=True) in the OptimizerSpec",
    ),
    "closures:norm_keywords": (
        "norms passed to step as keywords change nothing if they are correct",
        _ROUNDING,
        "results",
        "use the keyword exactly where step would compute the norm itself, squared or not",
    ),
    "closures:micro_batches": (
        "gradients summed over micro-batches give the step of the whole batch",
        _ROUNDING,
        "results",
        "use only .grad and the loss inside step; hooks on parameters see each micro-batch",
    ),
    "untouched:gradients": (
        "a step does not change or zero .grad",
        _EXACT,
        "hygiene",
        "create a new tensor (grad = grad + weight_decay * p) instead of grad.add_, and leave zero_grad to the"
        " caller: logging and gradient accumulation read .grad after the step",
    ),
    "untouched:generators": (
        "constructor and step do not use torch's, numpy's or Python's global generators, or the optimizer declares"
        " draws",
        _EXACT,
        "hygiene",
        "draw from your own torch.Generator and keep its state in state_dict, or declare Traits(draws=True) in the"
        " OptimizerSpec; never seed a global generator",
    ),
    "closures:grad_scaler": (
        "a GradScaler with a power-of-2 scale changes nothing, and an overflow skips the step",
        (1e-05, "scaling by a power of 2 is exact in float32; the bound leaves room for norms"),
        "set-up",
        "accept the closure by position, and set _step_supports_amp_scaling only if step uses grad_scale and found_inf",
    ),
    "ranks:ddp": (
        "under DDP two processes stay bit-identical and agree with one process",
        _ROUNDING,
        "results",
        "gradients and loss are already averaged over ranks: do not reduce or divide them again, and use nothing that"
        " differs between ranks",
    ),
    "ranks:rank_seeds": (
        "two DDP processes with different global seeds stay bit-identical",
        _EXACT,
        "results",
        "draw from your own torch.Generator with the same seed on all ranks",
    ),
    "ranks:fsdp": (
        "under FSDP2 two processes agree with one process",
        (1e-06, "sums over shards have another order, and torch computes some of them in float32"),
        "set-up",
        "norms and other sums must cover all shards: optimizers.norms does, .to_local() and float() see one shard; an"
        " exception means that an operation does not support sharded tensors (DTensor)",
    ),
    "lanes:lanes": (
        "vectorised runs: the pure update equals the class, or instances do not affect each other",
        _ROUNDING,
        "results",
        "with OptimizerSpec.update: compare the function with step line by line; without it: keep no state in the"
        " class or the module",
    ),
    "cost:syncs": (
        "a step never synchronises with the GPU: no .item(), float(), bool() or nonzero() of GPU tensors",
        (0.0, "synchronisations per step"),
        "speed",
        "keep norms, losses and step sizes as 0-dim tensors, use torch.where and clamp instead of if",
    ),
    "cost:leaks": (
        "memory does not grow with the number of steps",
        (0.0, "bytes added by 40 late steps, per byte of parameters"),
        "set-up",
        "detach() stored tensors, and store only as many as the method needs",
    ),
    "cost:temporaries": (
        "a step allocates no more full-size temporaries than declared",
        (
            0.05,
            "copies of the parameters at the peak, beyond OptimizerSpec.temporaries; the bound leaves room for scalars",
        ),
        "speed",
        "work in place or tensor by tensor, or declare OptimizerSpec(temporaries=N); foreach kernels need 2 copies",
    ),
    "ranks:own_loss": (
        "how far replicas diverge under DDP if each rank's closure returns its own loss (the suite's return the mean)",
        (None, "expected of all methods that use the loss, unless they average it themselves"),
        None,
        "",
    ),
    "cost:memory": ("state and peak temporaries, in copies of the parameters", _REPORTED, None, ""),
    "cost:time": ("time of a step, in units of copying the parameters", _REPORTED, None, ""),
    "symmetry:scale": ("effect of a ten times larger loss on the first step", _REPORTED, None, ""),
    "symmetry:rotation": ("whether rotated coordinates give the rotated trajectory", _REPORTED, None, ""),
    "symmetry:permutation": ("whether permuted coordinates give the permuted trajectory", _REPORTED, None, ""),
}

_OF_TASKS: dict[str, Entry] = {
    "task:builds": (
        "data and model can be created, and six steps give finite losses and change weights",
        _PASS_OR_FAIL,
        "set-up",
        "read the exception and its location: the task must train in float64 on the CPU (--precision 64-true)",
    ),
    "task:deterministic": (
        "the same seed gives the same run, and another seed gives a different one",
        _EXACT,
        "results",
        "draw initial weights from torch's generator, data from `seed`, and random numbers in training from"
        " `randomness.uniform`; keep no state in the class or the module",
    ),
    "task:micro_batches": (
        "three micro-batches per batch give the same run as one",
        _ROUNDING,
        "results",
        "the loss must be a mean over independent rows: no batch normalisation, no sum; random numbers come from"
        " `randomness.uniform`, and weights of rows are divided by the split's mean",
    ),
    "task:resume": (
        "a run resumed from a checkpoint equals the uninterrupted one",
        _EXACT,
        "results",
        "keep all training state in parameters and buffers; draw random numbers from `randomness.uniform`, not from"
        " the global generator",
    ),
    "task:dropout": (
        "a forward pass calls each dropout once: further calls would drop the same elements",
        _EXACT,
        "results",
        "create an `nn.Dropout` for each place of the model",
    ),
    "task:lanes": (
        "vectorised runs equal those of `bench fit`",
        _ROUNDING,
        "results",
        "compare `loss_at` with `loss` at one point; the loss may depend only on weights and batch",
    ),
    "task:leakage": (
        "no training row is in another split",
        (0.01, "share of a split's rows; texts repeat some rows, a real leak is larger"),
        "results",
        "draw each split from its own stream (`derive_seed(seed, split)`), or split the data before anything else",
    ),
}


Kind = Literal["optimizer", "task"]


def _by_name(entries: dict[str, Entry]) -> dict[str, Check]:
    found = {}
    for function, (meaning, bound, severity, advice) in entries.items():
        name = function.partition(":")[2]
        found[name] = Check(name, f"bench.check.{function}", meaning, *bound, advice, severity)
    return found


CATALOGUES: dict[Kind, dict[str, Check]] = {
    "optimizer": _by_name(_OF_OPTIMIZERS),
    "task": _by_name(_OF_TASKS),
}
"""All checks by kind and name, in the order they run."""

CHECKS = CATALOGUES["optimizer"]
