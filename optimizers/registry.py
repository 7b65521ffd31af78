"""The optimizers that the suite knows by name. Importing this file imports no torch."""

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from optimizers.plugins import PluginError, Registry, load, provenance


@dataclass(frozen=True)
class Traits:
    """Traits of an optimizer that the runner and the tests use instead of its name."""

    needs_loss: bool = False  #: `step` uses the loss; it takes `loss_grad_norm`, the norm before clipping
    full_batch: bool = False  #: the method is defined on the full batch, which is its default batch
    calls_closure_again: bool = False  #: `step` evaluates the closure more than once, so it must recompute gradients
    create_graph: bool = False  #: `step` differentiates the gradients, so they keep their graph
    unscheduled: bool = False  #: it sets its own step size or is designed without a schedule of `lr`
    coupled: bool = False  #: a parameter's step depends on others beyond the norms; the pure update takes all of them
    averages: bool = False  #: it evaluates its own averages of weights (`eval()`, or `evaluated` of the pure update)
    by_piece: bool = False  #: it treats matrices stacked by rows in a parameter apart: as many as its group's `pieces`
    draws: bool = False  #: `step` draws from the global random generators
    sets_lr: bool = False  #: `step` changes `group["lr"]` by itself

    def named(self) -> list[str]:
        """The names of the traits that are set."""
        return [name for name, holds in vars(self).items() if holds]


@dataclass(frozen=True)
class LogUniform:
    """A range that is searched on a log scale, with 0 < low < high."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The middle on the log scale."""
        return math.sqrt(self.low * self.high)


TASK_VALUE = "task"
"""As a default: the task's value for the option of that name, else the constructor's default."""


STEP_KEYWORDS = {
    "grad_norm": "norm of the gradient in `.grad`",
    "loss_grad_norm": "norm of the loss's gradient, before clipping",
}
"""Further inputs of an optimizer's `step` or pure update, if it has a keyword of that name: 0-dim tensors."""


@dataclass(frozen=True)
class OptimizerSpec:
    """The specification of an optimizer.

    Hyperparameter names, types and defaults come from the constructor's signature.

    The pure update (`optimizers/pure.py` has an example and common parts)::

        def update(grads, state, params, loss, hparams, *, grad_norm=None, loss_grad_norm=None) -> (params, state)

    It changes nothing in place and never reads a tensor's value (no `if`, no `.item()`). All tensors have the same
    floating dtype, float32 or float64.

     - `grads`, `params`: lists in the same order; parameters without a gradient are left out. Returned are new tensors.
     - `state`: `{}` at the first step, then what the last step returned: a dict of tensors, lists and tuples of
       tensors, whose structure stays the same. `step_sizes`, if present, is the pair (raw, applied) that the curve
       shows in place of lr: the step before and after its cap, 0-dim. `evaluated`, if present, are the weights to
       evaluate in place of the parameters, a list in the same order.
     - `loss`: of the batch, 0-dim.
     - `hparams`: all of the constructor's arguments by name. `lr` is always a 0-dim tensor; any other float is a
       Python float if all runs agree, else a 0-dim tensor. Anything else (flags, integers, tuples, None) is a plain
       value, so the function may branch on it.
     - keywords: the `STEP_KEYWORDS` that it accepts; computed from `grads` if None.
    """

    name: str  #: as given to `--opt`
    target: str  #: ``module:Class``, imported when `cls` is first used
    formula: str  #: the update rule in one line
    source: str  #: paper or documentation
    version: int = 1  #: incremented when a change alters results; part of every run's identity
    #: values that replace those of the signature in the suite; `TASK_VALUE` takes the task's
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: the hyperparameters to tune, including those that define the method, each with its range or, as a tuple, its
    #: values; sweeps and plots vary the first one
    search: Mapping[str, LogUniform | tuple[Any, ...]] = field(default_factory=dict)
    traits: Traits = Traits()  #: facts about the method
    #: ``module:function``, the method as a pure function of one run, for vectorised runs (`torch.func.vmap`); without
    #: it a sweep has one instance of the class for each run, which is slower
    update: str | None = None
    #: of a plug-in: its distribution and version, or a digest of its file; part of every run's identity
    package: str | None = None
    #: the default optimizer for all parameters except matrices; without it and without a user's, `target` has all
    rest: str | None = None
    #: ``module:function``, called with all `optimizers.Parameter` and the method's hyperparameters: for each parameter
    #: a mapping of those that differ. Values that the user gives for a role override them
    groups: str | None = None
    #: values that replace `defaults` on tasks of a family (`TaskSpec.family`); the suite's are measured
    #: (`results/defaults`)
    by_family: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    family: str = ""  #: family of tasks that `defaults` are for; empty for all
    reference: str | None = None  #: name of an optimizer whose steps its own must equal, for `bench check`

    def on(self, family: str) -> "OptimizerSpec":
        """The spec with the defaults for a family of tasks."""
        return replace(self, family=family, defaults={**self.defaults, **self.by_family.get(family, {})})

    @property
    def step_keywords(self) -> set[str]:
        """Which of `STEP_KEYWORDS` the optimizer's `step` takes."""
        return keywords_of(self.cls.step)

    @cached_property
    def cls(self) -> Any:
        """The optimizer class, a `torch.optim.Optimizer` whose `step` takes a closure."""
        from optimizers.adapters import adapted

        return adapted(load(self.target))

    @cached_property
    def pure_update(self) -> Any:
        """The function that `update` names, or None."""
        return load(self.update) if self.update else None

    @cached_property
    def update_keywords(self) -> set[str]:
        """Which of `STEP_KEYWORDS` the pure update takes."""
        return keywords_of(self.pure_update) if self.pure_update else set()


def keywords_of(function: Callable[..., Any]) -> set[str]:
    """Which of `STEP_KEYWORDS` a step or an update takes."""
    return STEP_KEYWORDS.keys() & inspect.signature(function).parameters.keys()


_PAPER = "Vasudeva, Deora, Thrampoulidis, Implicit Bias and Fast Convergence Rates for Self-attention, TMLR 2025"
_LOIZOU = "Loizou et al., Stochastic Polyak Step-size for SGD, arXiv 2002.10542"
_sgd = partial(
    OptimizerSpec,
    target="torch.optim.sgd:SGD",
    formula="w <- w - lr * g, with heavy-ball or Nesterov momentum and L2 weight decay",
    source="torch.optim.SGD",
    search={"lr": LogUniform(1e-3, 1e1)},
    update="optimizers.torch_updates:sgd",
)
_FROM_TASK = {"f_star": TASK_VALUE}


BY_FLAG = "optimizers.groups:flags"
"""The `OptimizerSpec.groups` of classes that ask for groups with `use_muon`, as the best-known Muons do."""


def _asks_for_flags(cls: type) -> bool:
    """Whether a constructor asks for groups with `use_muon`, also one of a base class, and has no argument for it."""
    with suppress(OSError, TypeError):  # it has no source
        sources = (inspect.getsource(vars(base)["__init__"]) for base in cls.__mro__[:-1] if "__init__" in vars(base))
        return "use_muon" not in inspect.signature(cls).parameters and any("use_muon" in text for text in sources)
    return False


def _plugin(name: str, value: Any, target: str) -> OptimizerSpec:
    """The spec of a plug-in, or a generic one for an optimizer class."""
    # Every record has the version of torch, which is not part of the identity of the suite's own methods either.
    source = provenance(target)
    package = None if source.startswith("torch ") else source
    if isinstance(value, OptimizerSpec):
        of_suite = target.startswith("optimizers.")  # it has a version, as the built-in ones
        return replace(value, name=name, package=None if of_suite else package)
    from torch.optim import Optimizer  # a spec may need no torch

    from optimizers.adapters import adapted, traits_of

    if not (isinstance(value, type) and issubclass(value, Optimizer)):
        what = f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
        how = "a class that derives from torch.optim.Optimizer, or an optimizers.OptimizerSpec that names one"
        raise PluginError(f"{target} is {what}; an optimizer is {how}")
    doc = inspect.cleandoc(vars(value).get("__doc__") or "").partition("\n")[0]  # not an inherited one
    rates = [name for name in inspect.signature(value).parameters if name in ("lr", "learning_rate")]
    averages = hasattr(value, "eval")  # as in schedule-free methods
    traits = replace(traits_of(adapted(value)), unscheduled="lr" not in rates or averages, averages=averages)
    return OptimizerSpec(
        name=name,
        target=target,
        formula=doc or value.__name__,
        source=source,
        search=dict.fromkeys(rates, _ANY_LR),
        package=package,
        traits=traits,
        groups=BY_FLAG if _asks_for_flags(value) else None,
    )


_ANY_LR = LogUniform(1e-5, 1e0)
"""Range of the learning rate of an optimizer that declares none; a grid extends beyond it where necessary. Ours."""

OPTIMIZERS = Registry(
    "bench.optimizers",
    (
        _sgd(name="gd", defaults={"lr": 0.1}, traits=Traits(full_batch=True)),
        _sgd(name="sgd", defaults={"lr": 0.1}, by_family={"vision": {"lr": 0.3162}}),
        _sgd(
            name="sgdm",
            formula="b <- momentum b + g, w <- w - lr * (g + momentum b): Nesterov momentum",
            source="torch.optim.SGD; Sutskever et al., ICML 2013",
            defaults={"lr": 0.1, "momentum": 0.9, "nesterov": True},
            search={"lr": LogUniform(1e-3, 1e1), "momentum": (0.7, 0.9, 0.97)},
            by_family={
                "vision": {"lr": 0.1, "momentum": 0.9},
                "lm": {"lr": 0.1, "momentum": 0.9},
                "text": {"lr": 0.003162, "momentum": 0.9},
            },
        ),
        OptimizerSpec(
            name="ngd",
            version=2,
            target="optimizers.normalized:NGD",
            formula="w <- w - lr * g / ||g||",
            source=f"{_PAPER}; Nacson et al., arXiv 1803.01905",
            search={"lr": LogUniform(1e-3, 1e1)},
            traits=Traits(full_batch=True),
            update="optimizers.normalized:update",
        ),
        OptimizerSpec(
            name="sngd",
            version=2,
            target="optimizers.normalized:SNGD",
            formula="w <- w - min(lr / ||g||, max_step) * g",
            source=f"{_PAPER} (the place of the cap is our reading)",
            search={"lr": LogUniform(1e-4, 1e0), "max_step": LogUniform(1e-1, 1e2)},
            by_family={
                "vision": {"lr": 0.3162, "max_step": 4.642},
                "lm": {"lr": 0.3162, "max_step": 4.642},
                "text": {"lr": 0.03162, "max_step": 21.54},
            },
            update="optimizers.normalized:update",
        ),
        OptimizerSpec(
            name="ps",
            target="optimizers.polyak:PS",
            formula="w <- w - lr * (L - f_star) / (c ||g||^2) * g",
            source=_PAPER,
            defaults=_FROM_TASK,
            search={"lr": LogUniform(1e-2, 1e1)},
            traits=Traits(needs_loss=True, full_batch=True, unscheduled=True),
            update="optimizers.polyak:update",
        ),
        OptimizerSpec(
            name="sps",
            target="optimizers.polyak:SPS",
            formula="w <- w - lr * min((L - f_star) / (c ||g||^2), max_step) * g",
            source=_LOIZOU,
            defaults={**_FROM_TASK, "batches_per_epoch": TASK_VALUE},
            search={"max_step": LogUniform(1e-2, 1e1), "c": LogUniform(1e-1, 1e3)},
            by_family={
                "vision": {"max_step": 0.3162, "c": 2.154},
                "lm": {"max_step": 4.217, "c": 16.68},
                "text": {"max_step": 0.1334, "c": 0.7743},
            },
            traits=Traits(needs_loss=True, unscheduled=True),
            update="optimizers.polyak:update",
        ),
        OptimizerSpec(
            name="momo",
            target="optimizers.momo:MoMo",
            formula="w <- w - min((f_bar - f_star + <d, w> - gamma)_+ / ||d||^2, lr) * d, d the averaged gradient",
            source="Schaipp et al., MoMo: Momentum Models for Adaptive Learning Rates, arXiv 2305.07583",
            defaults=_FROM_TASK,
            search={"lr": LogUniform(1e-2, 1e1)},
            by_family={"vision": {"lr": 0.3162}, "text": {"lr": 0.1}},  # of text: ours, no study has it
            traits=Traits(needs_loss=True, coupled=True),
            update="optimizers.momo:update",
        ),
        OptimizerSpec(
            name="adam",
            target="torch.optim.adam:Adam",
            formula="w <- w - lr * m_hat / (sqrt(v_hat) + eps)",
            source="torch.optim.Adam; Kingma and Ba, arXiv 1412.6980",
            search={"lr": LogUniform(1e-5, 1e-1)},
            by_family={"vision": {"lr": 0.001778}},
            update="optimizers.torch_updates:adam",
        ),
        OptimizerSpec(
            name="adamw",
            target="torch.optim.adamw:AdamW",
            formula="w <- (1 - lr * weight_decay) w - lr * m_hat / (sqrt(v_hat) + eps)",
            source="torch.optim.AdamW; Loshchilov and Hutter, arXiv 1711.05101",
            search={"lr": LogUniform(1e-5, 1e-1), "weight_decay": LogUniform(1e-3, 1e-1)},
            by_family={
                "vision": {"lr": 0.001778, "weight_decay": 0.001186},
                "lm": {"lr": 1e-3, "weight_decay": 0.004642},
                "text": {"lr": 3.162e-5, "weight_decay": 0.007743},
            },
            update="optimizers.torch_updates:adamw",
        ),
        OptimizerSpec(
            name="sfadamw",
            target="optimizers.schedule_free:ScheduleFreeAdamW",
            formula="z <- z - lr * (g / (sqrt(v_hat) + eps) + weight_decay y), x <- average of z, y between z and x",
            source="Defazio et al., The Road Less Scheduled, arXiv 2405.15682",
            search={"lr": LogUniform(1e-4, 1e-1)},
            traits=Traits(unscheduled=True, averages=True),
            update="optimizers.schedule_free:update",
        ),
        OptimizerSpec(
            name="muon",
            target="optimizers.muon:Muon",
            formula="w <- (1 - lr * weight_decay) w - lr * s * NS(u), u the Nesterov momentum of a matrix",
            source="Jordan et al., Muon (2024); Liu et al., arXiv 2502.16982",
            search={"lr": LogUniform(1e-3, 1e0), "rest.lr": LogUniform(1e-4, 1e-2)},
            # Also the weight decay with which it was tuned, which is not that of `adamw` on these families.
            by_family={
                "vision": {"lr": 0.002371, "rest.lr": 0.0007743, "rest.weight_decay": 0.01},
                "lm": {"lr": 0.002371, "rest.lr": 0.0007743, "rest.weight_decay": 0.01},
                "text": {"lr": 0.002371, "rest.lr": 0.0007743, "rest.weight_decay": 0.01},
            },
            traits=Traits(by_piece=True),
            update="optimizers.muon:update",
            rest="adamw",
        ),
    ),
    _plugin,
)
