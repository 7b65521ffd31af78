"""Optimizers with one fault each, and the checks that must find it, and no other checks; sound ones fail none.

`mutant("Name", "check ...", hook=function)` makes a subclass of a sound optimizer with one method replaced;
`@fault("check ...", hook)` makes one of the function below it: `SetsRate` of `sets_rate`.
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from bench.check import catalogue
from optimizers import OptimizerSpec, Traits, global_norm, run_closure
from optimizers.registry import BY_FLAG
from optimizers.step_size import safe_divide

FAULTS: dict[str, set[str]] = {}
"""Names of mutants, and the checks that must fail on them."""
SPECS: dict[str, OptimizerSpec] = {}
DECAY = "weight_decay"


def mutant(name: str, caught_by: str = "", base: Any = None, update: str = "", traits: str = "", **hooks: Any) -> Any:
    """Define an optimizer of this module.

    Args:
        name: of the class.
        caught_by: the checks that must fail, with spaces between them.
        base: the class whose methods `hooks` replace; `init` is its constructor.
        update: function of this module, its pure update.
        traits: that its spec declares, with spaces between them.
    """
    methods = {"__init__" if hook == "init" else hook: function for hook, function in hooks.items()}
    assert all(hasattr(base or Sound, hook) for hook in methods)
    globals()[name] = type(name, (base or Sound,), methods | {"__module__": __name__})
    note(name, caught_by, update, traits)
    return globals()[name]


def fault(caught_by: str = "", hook: str = "move", **more: Any) -> Any:
    """Define an optimizer with the decorated function in place of one method of `Sound`, under its name in capitals."""
    return lambda function: mutant(function.__name__.title().replace("_", ""), caught_by, **{hook: function}, **more)


def per(function: Any) -> Any:
    """A hook that does this with each parameter."""
    return lambda self, group, params: [function(self, group, p) for p in params]


def note(name: str, caught_by: str = "", update: str = "", traits: str = "") -> None:
    """Note the checks that fail on a class of this module, and its spec."""
    assert not set(caught_by.split()) - catalogue().keys(), name
    FAULTS[name] = set(caught_by.split())
    declared = Traits(**dict.fromkeys(traits.split(), True))
    pure = f"tests.mutants:{update}" if update else None
    SPECS[name] = OptimizerSpec(name, f"tests.mutants:{name}", "", "tests", traits=declared, update=pure)


# ---- Sound optimizers, the base classes of the others ----------------------------------------------------------------


class Sound(Optimizer):
    """Heavy ball with decoupled weight decay."""

    setting: Any = 0  # for hooks to keep something in the class

    def __init__(
        self,
        params: Any,
        lr: float = 0.05,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        nesterov: bool = False,
        foreach: bool = False,
    ) -> None:
        options = dict(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov, foreach=foreach)
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = run_closure(closure)
        for group in self.groups():
            params = self.chosen([p for p in group["params"] if p.grad is not None])
            self.before(group, params)
            self.move(self.options(group), params)
        return loss

    def groups(self) -> list[dict[str, Any]]:
        return self.param_groups

    def chosen(self, params: list[Tensor]) -> list[Tensor]:
        return params

    def before(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Act before the group moves."""

    def options(self, group: dict[str, Any]) -> dict[str, Any]:
        """What the step of a group uses."""
        return group

    def move(self, group: dict[str, Any], params: Sequence[Tensor]) -> None:
        lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
        if group["foreach"] and params:
            buffers = [self.buffer(p) for p in params]
            torch._foreach_mul_(params, 1 - lr * decay)
            torch._foreach_mul_(buffers, momentum)
            torch._foreach_add_(buffers, [p.grad for p in params])
            torch._foreach_sub_(params, buffers, alpha=lr)
        for p in params if not group["foreach"] else ():
            buffer = self.buffer(p).mul_(momentum).add_(p.grad)
            p.mul_(1 - lr * decay).sub_(buffer, alpha=lr)
        for p in params if group["nesterov"] else ():
            p.sub_(p.grad, alpha=lr)

    def buffer(self, p: Tensor) -> Tensor:
        if "buffer" not in self.state[p]:
            self.state[p]["buffer"] = torch.zeros_like(p)
        return self.state[p]["buffer"]


note("Sound", update="heavy_ball")


def heavy_ball(grads: Any, state: Any, params: Any, loss: Any, hparams: Any) -> Any:
    buffers = state.get("buffers") or [torch.zeros_like(g) for g in grads]
    buffers = [hparams["momentum"] * b + g for b, g in zip(buffers, grads, strict=True)]
    factor = 1 - hparams["lr"] * hparams["weight_decay"]
    return [factor * p - hparams["lr"] * b for p, b in zip(params, buffers, strict=True)], {"buffers": buffers}


class SoundNorm(Optimizer):
    """Normalised gradient descent."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = run_closure(closure)
        pairs = [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = self.norm([p.grad for _, p in pairs])
        for group, p in pairs:
            p.sub_(p.grad * self.factor(group, norm, loss).to(p.dtype))
        return loss

    def norm(self, grads: Any) -> Tensor:
        return global_norm(grads)

    def factor(self, group: dict[str, Any], norm: Tensor, loss: Any) -> Tensor:
        return safe_divide(group["lr"], norm)


def polyak(self: Any, group: Any, norm: Tensor, loss: Any) -> Tensor:
    return 10 * group["lr"] * safe_divide(safe_divide(loss.to(norm), norm), norm)


note("SoundNorm")
SoundPolyak: Any = mutant("SoundPolyak", base=SoundNorm, traits="needs_loss", factor=polyak)
mutant("WithoutClosure", step=lambda self: Sound.step(self))
mutant("TakesLoss", base=SoundPolyak, traits="needs_loss", step=lambda self, loss: SoundPolyak.step(self, lambda: loss))
mutant("MatricesOnly", before=lambda self, group, params: [p @ p.mT @ p.new_ones(len(p), 1) for p in params])


class Differentiates(SoundNorm):
    """Divides by the curvature."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = run_closure(closure)
        pairs = [(g, p) for g in self.param_groups for p in g["params"] if p.grad is not None]
        with torch.enable_grad():
            total = sum(p.grad.sum() for _, p in pairs)
        curvature = torch.autograd.grad(total, [p for _, p in pairs], retain_graph=True)
        for (group, p), h in zip(pairs, curvature, strict=True):
            p.sub_(p.grad.detach() / (1 + h.abs()), alpha=group["lr"])
        return loss


note("Differentiates", traits="create_graph")


class LooksAhead(Sound):
    """Steps by the gradient at ascended weights, as sharpness-aware methods do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = run_closure(closure)
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = global_norm([p.grad for p in params])
        ascents = [p.grad * safe_divide(0.05, norm).to(p.dtype) for p in params]
        for p, ascent in zip(params, ascents, strict=True):
            p.add_(ascent)
        run_closure(closure)
        for p, ascent in zip(params, ascents, strict=True):
            p.sub_(ascent)  # which rounds, also at lr 0
        Sound.step(self)
        return loss


note("LooksAhead", traits="calls_closure_again")


class KeepsAverage(Sound):
    """Evaluates the mean of its weights, as schedule-free methods do."""

    def move(self, group: dict[str, Any], params: Sequence[Tensor]) -> None:
        assert group["training"]
        super().move(group, params)
        for p in params:
            self.state[p].setdefault("mean", p.clone()).lerp_(p, 0.2)

    def train(self) -> None:
        self.change(True)

    def eval(self) -> None:
        self.change(False)

    @torch.no_grad()
    def change(self, training: bool) -> None:
        for group in self.param_groups:
            for p in group["params"] if training is not group.get("training", training) else ():
                if p in self.state:
                    self.swap(p, self.state[p]["mean"], training)
            group["training"] = training

    def swap(self, p: Tensor, mean: Tensor, training: bool) -> None:
        weights = p.clone()
        p.copy_(mean)
        mean.copy_(weights)


note("KeepsAverage")


class Adam(Sound):
    """AdamW, written out; wrong formulas change one method."""

    def __init__(
        self, params: Any, lr: float = 0.01, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
    ) -> None:
        Optimizer.__init__(self, params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    def move(self, group: dict[str, Any], params: Any) -> None:
        for p in params:
            state = self.state[p]
            t = state["t"] = state.get("t", 0) + 1
            m, v = (state.setdefault(name, torch.zeros_like(p)) for name in ("m", "v"))
            (b1, b2), g = group["betas"], self.decayed(p, group["lr"] * group["weight_decay"], group["weight_decay"])
            m.lerp_(g, 1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            m_hat, v_hat = (x / (1 - b ** self.power(t)) for x, b in ((m, b1), (v, b2)))
            p.sub_(m_hat / self.root(v_hat, group["eps"]) * group["lr"])

    def decayed(self, p: Any, relative: float, decay: float) -> Tensor:
        p.mul_(1 - relative)
        return p.grad

    def power(self, t: int) -> int:
        return t

    def root(self, v: Tensor, eps: float) -> Tensor:
        return v.sqrt() + eps


WRONG_FORMULAS = {
    "OffByOne": {"power": lambda self, t: t + 1},
    "DecaysTwice": {"decayed": lambda self, p, relative, _: Adam.decayed(self, p, 1 - (1 - relative) ** 2, _)},
    "EpsInRoot": {"root": lambda self, v, eps: (v + eps).sqrt()},
    "CoupledDecay": {"decayed": lambda self, p, relative, decay: p.grad + decay * p},
}
"""They differ from AdamW, some only with decay."""
for name, hooks in WRONG_FORMULAS.items():
    mutant(name, base=Adam, **hooks)
    del FAULTS[name]  # only a reference finds them


# ---- Steps -----------------------------------------------------------------------------------------------------------


mutant("Nothing", "descent kinds bf16 frozen unread lanes", update="heavy_ball", move=lambda self, group, params: None)
mutant("Ascends", "descent", options=lambda self, group: group | {"lr": -group["lr"]})
mutant("ForeachForgetsDecay", "foreach", options=lambda self, g: {**g, "weight_decay": 0.0} if g["foreach"] else g)
mutant(
    "ForgetsDecayOfBoth",
    "foreach",
    options=lambda self, g: {**g, DECAY: g[DECAY] * (not (g["foreach"] and g["nesterov"]))},
)
mutant("OneMomentum", "lanes", update="first_momentum")
mutant("SkipsVectors", "kinds bf16", chosen=lambda self, params: [p for p in params if p.ndim != 1])
mutant("SkipsVocabulary", "kinds bf16", chosen=lambda self, ps: [p for p in ps if max(p.shape, default=0) < 1000])
mutant("SkipsConvolutions", "kinds bf16", chosen=lambda self, params: [p for p in params if p.ndim != 4])
mutant("DividesByNorm", "zero_or_nan", base=SoundNorm, factor=lambda self, group, norm, loss: group["lr"] / norm)
mutant("FlatViews", "kinds bf16", before=per(lambda self, group, p: hasattr(p, "to_local") or p.grad.view(-1)))
mutant("ZeroesInf", "zero_or_nan", before=per(lambda self, g, p: p.grad.masked_fill_(p.grad.isinf(), 0)))
mutant(
    "ReplacesNaN",
    "zero_or_nan unread",
    move=per(lambda self, g, p: p.sub_(self.buffer(p).add_(p.grad.nan_to_num()), alpha=g["lr"])),
)


def first_momentum(grads: Any, state: Any, params: Any, loss: Any, hparams: Any) -> Any:
    """It is right only if all lanes have one momentum."""
    momentum = 0.9 if isinstance(hparams["momentum"], Tensor) else hparams["momentum"]
    return heavy_ball(grads, state, params, loss, {**hparams, "momentum": momentum})


@fault("bf16 unread")
def forgets_half(self: Any, group: Any, params: Any) -> None:
    for p in params:
        wide = p.to(torch.promote_types(p.dtype, torch.float32))  # the parameter itself, if its dtype is wide enough
        wide.sub_(self.buffer(p).mul_(group["momentum"]).add_(p.grad), alpha=group["lr"])


# ---- State -----------------------------------------------------------------------------------------------------------


class Box:
    """A class that `torch.load(weights_only=True)` refuses."""


mutant("ObjectInState", "resume", before=per(lambda self, group, p: self.state[p].update(box=Box())))
mutant("EvalChangesWeights", "eval_train", KeepsAverage, swap=lambda self, p, m, b: p.lerp_(m, -0.5 if b else 0.5))


@fault("resume", "buffer")
def state_outside(self: Any, p: Tensor) -> Tensor:
    return vars(self).setdefault("buffers", {}).setdefault(p, torch.zeros_like(p))


@fault("resume", "load_state_dict")
def keeps_rate(self: Any, state_dict: Any) -> None:
    rates = [group["lr"] for group in self.param_groups]
    Optimizer.load_state_dict(self, state_dict)
    for group, lr in zip(self.param_groups, rates, strict=True):
        group["lr"] = lr


@fault("resume", "before")
def counts_in_class(self: Any, group: Any, params: Any) -> None:
    type(self).setting += 1


@fault("resume unread")
def wide_state(self: Any, group: Any, params: Any) -> None:
    for p in params:
        wide = torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
        buffer = self.state[p].setdefault("buffer", wide).mul_(group["momentum"]).add_(p.grad)
        p.sub_((group["lr"] * buffer).to(p.dtype))


@fault("resume", "options")
def late_state(self: Any, group: Any) -> Any:
    self.setting += 1
    return group | {"lr": group["lr"] / (1 + (self.setting > 50))}


@fault("resume unread")
def lion_counts(self: Any, group: Any, params: Any) -> None:
    """Signs, whose warm-up depends on a count that no checkpoint has."""
    self.setting += group is self.param_groups[0]
    for p in params:
        buffer = self.buffer(p)
        p.sub_(buffer.lerp(p.grad, 0.1 / (1 - 0.9**self.setting)).sign(), alpha=0.2 * group["lr"])
        buffer.lerp_(p.grad, 0.01)


@fault("resume", "init", groups=lambda self: self.setting or self.param_groups)
def detached_groups(self: Any, params: Any, lr: float = 0.05) -> None:
    Sound.__init__(self, params, lr)
    self.setting = self.param_groups


# ---- Groups and rates ------------------------------------------------------------------------------------------------


mutant(
    "FirstGroupOnly",
    "groups group_values",
    move=lambda self, group, params: Sound.move(self, group, params if group is self.param_groups[0] else []),
)
mutant("DropsState", "groups", add_param_group=lambda self, g: (Optimizer.add_param_group(self, g), self.state.clear()))
mutant(
    "RateOfFirstGroup",
    "group_values",
    base=SoundNorm,
    factor=lambda self, group, norm, loss: safe_divide(self.param_groups[0]["lr"], norm),
)
mutant("DecayOfFirstGroup", "group_values", options=lambda self, g: g | {DECAY: self.param_groups[0][DECAY]})
mutant("FlagFromDefaults", "group_values", options=lambda self, g: {**g, "nesterov": self.defaults["nesterov"]})
mutant("FixedRate", "schedule group_values lr_zero tensor_lr", options=lambda self, g: {**g, "lr": self.defaults["lr"]})
mutant(
    "KeepsFirstRate",
    "schedule tensor_lr",
    options=lambda self, g: g | {"lr": g["lr"] and g.setdefault("first", g["lr"])},
)
mutant("DecayWithoutRate", "lr_zero", before=lambda self, group, params: [p.mul_(0.999) for p in params])
mutant("DecaysAll", "frozen groups", before=lambda self, g, params: [p.mul_(1 - 0.01 * g["lr"]) for p in g["params"]])


@fault("groups", "factor", base=SoundNorm)
def norm_of_a_group(self: Any, group: Any, norm: Tensor, loss: Any) -> Tensor:
    return safe_divide(group["lr"], global_norm([p.grad for p in group["params"] if p.grad is not None]))


@fault("frozen", "options")
def gives_zero_gradients(self: Any, group: Any) -> Any:
    for p in [p for p in group["params"] if p.grad is None]:
        p.grad = torch.zeros_like(p)
    return group


def sets_rate(self: Any, group: Any, params: Any) -> None:
    Sound.move(self, group, params)
    group.update(lr=0.99 * group["lr"])


mutant("SetsRate", "schedule", move=sets_rate)
mutant("SetsRateAsDeclared", traits="sets_lr", move=sets_rate)


@fault("", "options")
def refuses_two_values(self: Any, group: Any) -> Any:
    if len({other["weight_decay"] for other in self.param_groups}) > 1:
        raise ValueError("weight_decay differs between groups")
    return group


@fault("tensor_lr", "init")
def number_as_rate(self: Any, params: Any, lr: float = 0.05) -> None:
    if not isinstance(lr, float | int):
        raise TypeError("lr must be a number")
    Sound.__init__(self, params, lr)


@fault("unread", "init")
def never_reads(self: Any, params: Any, lr: float = 0.05, momentum: float = 0.9, warmup: int = 10) -> None:
    Sound.__init__(self, params, lr, momentum)
    for group in self.param_groups:
        group["warmup"] = warmup


@fault("frozen", "before", buffer=lambda self, p: self.state[p]["buffer"])
def late_gradient_raises(self: Any, group: Any, params: Any) -> None:
    """It creates all states in the first step."""
    if "begun" not in group:
        group["begun"] = [Sound.buffer(self, p) is None for p in params]


class NoRate(Sound):
    """Has a step size by another name."""

    def __init__(self, params: Any, rate: float = 0.05) -> None:
        Optimizer.__init__(self, params, dict(rate=rate))

    def move(self, group: dict[str, Any], params: Sequence[Tensor]) -> None:
        for p in params:
            p.sub_(p.grad, alpha=group["rate"])


note("NoRate", "schedule lr_zero")


@fault("unread", "init", base=NoRate)
def none_as_rate(self: Any, params: Any, lr: float | None = None) -> None:
    NoRate.__init__(self, params)
    for group in self.param_groups:
        group["lr"] = lr


# ---- Closures, gradients, globals ------------------------------------------------------------------------------------


mutant("StepsFirst", "closure", step=lambda self, closure=None: (Sound.step(self), run_closure(closure))[1])
mutant("HalvesGradients", "gradients", before=lambda self, group, params: [p.grad.mul_(0.5) for p in params])
mutant("DecaysGradients", "gradients", before=per(lambda self, g, p: p.grad.add_(p.detach(), alpha=g["weight_decay"])))
mutant("AliasesGradient", "gradients", buffer=lambda self, p: self.state[p].setdefault("buffer", p.grad))
mutant("ClipsInPlace", "gradients", before=lambda self, group, ps: torch.nn.utils.clip_grad_norm_(ps, 5.0))
mutant("SetsDeterministic", "globals", before=lambda self, g, params: torch.use_deterministic_algorithms(True))
mutant("SetsDtype", "globals", before=lambda self, group, params: torch.set_default_dtype(torch.float64))
mutant("NoLoss", "closure", step=lambda self, closure=None: (Sound.step(self, closure), None)[1])


@fault("closure", "step")
@torch.no_grad()
def closure_without_gradients(self: Any, closure: Any = None) -> Any:
    loss = closure() if closure is not None else None
    Sound.step(self)
    return loss


@fault("closure", "step")
def changes_loss_late(self: Any, closure: Any = None) -> Any:
    loss = Sound.step(self, closure)
    self.param_groups[0]["times"] = times = self.param_groups[0].get("times", 0) + 1
    return loss if loss is None or times < 4 else loss.zero_()


@fault("closure", "step")
def changes_loss(self: Any, closure: Any = None) -> Any:
    loss = Sound.step(self, closure)
    return loss if loss is None else loss.mul_(2)


@fault("closure grad_scaler", "step")
def moves_data(self: Any, closure: Any = None) -> Any:
    """Takes the gradient at ascended weights, whose change it hides."""
    params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
    start = [p.detach().clone() for p in params]
    for p in params:
        p.data.add_(p.grad, alpha=0.05)
    loss = run_closure(closure)
    for p, value in zip(params, start, strict=True):
        p.data.copy_(value)
    Sound.step(self)
    return loss


@fault("closure_gradients gradients grad_scaler", "step")
@torch.no_grad()
def preconditions(self: Any, closure: Any = None) -> Any:
    for p in [p for group in self.param_groups for p in group["params"] if p.grad is not None]:
        p.grad.mul_(0.5)
    return Sound.step(self, closure)


@fault("globals", "before")
def draws_every_tenth(self: Any, group: Any, params: Any) -> None:
    group["times"] = group.get("times", 0) + 1
    if group["times"] % 10 == 0:
        torch.rand(())


@fault("globals", "before")
def sets_threads(self: Any, group: Any, params: Any) -> None:
    if not dist.is_initialized():  # two threads of a forked rank would wait for each other
        torch.set_num_threads(2)


@fault("globals", "init")
def seeds_globally(self: Any, params: Any, lr: float = 0.05) -> None:
    torch.manual_seed(0)
    Sound.__init__(self, params, lr)


def per_backward(self: Any, group: Any, params: Any) -> None:
    for p in params:
        Sound.move(self, {**group, "lr": group["lr"] / max(1, getattr(p, "times", 0))}, [p])
        p.times = 0


@fault("micro_batches closure_gradients groups", "init", move=per_backward)
def counts_backwards(self: Any, params: Any, lr: float = 0.05) -> None:
    Sound.__init__(self, params, lr)
    for p in [p for group in self.param_groups for p in group["params"] if p.requires_grad]:
        p.register_post_accumulate_grad_hook(lambda p: setattr(p, "times", getattr(p, "times", 0) + 1))


# ---- Ranks, cost -----------------------------------------------------------------------------------------------------


def noise(self: Any, group: Any, p: Any) -> None:
    p.add_(torch.randn_like(p), alpha=0.05 * group["lr"])


mutant("DrawsNoise", "ddp", traits="draws", before=per(noise))
mutant(
    "RateByRank",
    "ddp fsdp",
    options=lambda self, g: g | {"lr": g["lr"] / (1 + (dist.is_initialized() and dist.get_rank()))},
)
mutant(
    "NormOfShards",
    "fsdp",
    base=SoundNorm,
    norm=lambda self, gs: global_norm([getattr(g, "to_local", lambda g=g: g)() for g in gs]),
)
mutant("ClaimsToScale", "grad_scaler")._step_supports_amp_scaling = True
mutant("Lists", "syncs", SoundNorm, factor=lambda self, g, norm, loss: safe_divide(g["lr"], norm) * (norm.tolist() > 0))
mutant("Leaks", "leaks resume", before=per(lambda self, g, p: vars(self).setdefault("seen", []).append(p.grad.clone())))
mutant("ListInGroup", "leaks", before=lambda self, group, params: group.setdefault("rates", []).append(group["lr"]))


@fault("leaks", "before")
def keeps_graph(self: Any, group: Any, params: Any) -> None:
    with torch.enable_grad():
        past = self.state[params[0]].get("past", torch.zeros((), requires_grad=True)) if params else None
        for p in params[:1]:
            self.state[p]["past"] = past + p.grad.detach().to(past.dtype).sum()


@fault("", "before")
def counts_on_the_host(self: Any, group: Any, params: Any) -> None:
    for p in params:
        step = self.state[p].setdefault("step", torch.tensor(0.0))
        step += 1
        assert step.item() > 0


# ---- Innocents of issue 63; LBFGS, Adafactor and schedule-free methods are others ------------------------------------


@fault()
def looks_back(self: Any, group: Any, params: Any) -> None:
    """Every third step, weights go back halfway to slow ones, also at lr 0."""
    for p in params:
        self.state[p].setdefault("slow", p.clone())
    Sound.move(self, group, params)
    group["times"] = group.get("times", 0) + 1
    for p in params if group["times"] % 3 == 0 else ():
        p.copy_(self.state[p]["slow"].lerp_(p, 0.5))


mutant("BoundedHistory", before=lambda self, g, params: g.update(history=[*g.get("history", [])[-99:], g["lr"]]))


@fault()
def signs_in_eigenbasis(self: Any, group: Any, params: Any) -> None:
    """Gradients have low rank, so rounding chooses eigenvectors and signs, as in SOAP."""
    Sound.move(self, group, params)
    for p in (p for p in params if p.ndim == 2 and p.numel()):
        gradient = p.grad.double()
        basis = torch.linalg.eigh(gradient @ gradient.mT)[1]
        p.sub_((basis @ (basis.mT @ gradient).sign()).to(p), alpha=0.1 * group["lr"])


class RelativeDecay(Sound):
    """Its decay is relative to the initial lr."""

    def __init__(self, params: Any, lr: float = 0.05, weight_decay: float = 0.01) -> None:
        super().__init__(params, lr, weight_decay=weight_decay)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self.param_groups[-1].setdefault("first_lr", self.param_groups[-1]["lr"])

    def options(self, group: dict[str, Any]) -> dict[str, Any]:
        return {**group, "weight_decay": group["weight_decay"] / group["first_lr"] if group["first_lr"] else 0.0}


class OwnGenerator(Sound):
    """Draws noise from a generator whose state it saves."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, lr)
        self.generator = torch.Generator().manual_seed(0)

    def before(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            noise = torch.randn(p.shape, generator=self.generator, dtype=torch.float64)
            p.add_(noise.to(p.dtype), alpha=0.01 * group["lr"])

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "generator"})
        self.generator.set_state(state_dict["generator"])


class AsksForFlags(Sound):
    def __init__(self, params: Any, lr: float = 0.05) -> None:
        params = list(params)
        assert all("use_muon" in group for group in params)
        super().__init__(params, lr)


class AsksForNames(Sound):
    def __init__(self, named_parameters: Any, lr: float = 0.05) -> None:
        super().__init__([p for _, p in named_parameters], lr=lr)


class AsksForModelParams(Sound):
    def __init__(self, model_params: Any, lr: float = 0.05) -> None:
        super().__init__(model_params, lr)


class AsksForModel(Sound):
    def __init__(self, model: Any, lr: float = 0.05) -> None:
        super().__init__([p for name, p in model.named_parameters() if name and p.requires_grad], lr=lr)


mutant(
    "Centralises",
    base=Adam,
    decayed=lambda self, p, *decay: (
        Adam.decayed(self, p, *decay) - (p.grad.mean(tuple(range(1, p.ndim)), keepdim=True) if p.ndim > 1 else 0)
    ),
)


@fault("", "step", base=LooksAhead, traits="calls_closure_again")
def clears_first(self: Any, closure: Any = None) -> Any:
    """Clears the gradients before each evaluation, as torch documents."""
    return LooksAhead.step(self, closure and (lambda: (self.zero_grad(), closure())[1]))


@fault("", "init")
def requires_rate(self: Any, params: Any, lr: Any = Sound) -> None:
    Sound.__init__(self, params, 1 * lr)  # the default only marks that it is required


for name in ("RelativeDecay", "OwnGenerator", "AsksForFlags", "AsksForNames", "AsksForModel", "AsksForModelParams"):
    note(name)
SPECS["AsksForFlags"] = replace(SPECS["AsksForFlags"], groups=BY_FLAG)


# ---- Misbehaviour: none of it may get out ----------------------------------------------------------------------------


@fault("", "before")
def prints(self: Any, group: Any, params: Any) -> None:
    print('{"verdict": "fail"}', flush=True)
    os.write(2, b"noise\n")


@fault("", "before")
def forks(self: Any, group: Any, params: Any) -> None:
    if not type(self).setting:
        type(self).setting = True
        os.fork()


@fault("bf16", "before")
def exits(self: Any, group: Any, params: Any) -> None:
    if any(p.dtype == torch.bfloat16 for p in params):
        os._exit(3)


@fault("lr_zero", "before")
def hangs(self: Any, group: Any, params: Any) -> None:
    while group["lr"] == 0:
        time.sleep(1)


@fault("ddp", "before")
def waits_for_others(self: Any, group: Any, params: Any) -> None:
    """One rank waits for the other, which never arrives."""
    if dist.is_initialized() and dist.get_rank() == 0:
        dist.barrier()


mutant("Raises", "builds", before=lambda self, group, params: sys.exit("enough"))
