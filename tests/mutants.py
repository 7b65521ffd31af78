"""Optimizers with one fault each, and the checks that must find it, and no other checks; sound ones come first."""

import os
import random
import time
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from bench.check.catalogue import catalogue
from optimizers import OptimizerSpec, Traits, global_norm, run_closure
from optimizers.step_size import safe_divide

FAULTS: dict[str, set[str]] = {}
"""Names of mutants, and the checks that must fail on them."""

SPECS: dict[str, OptimizerSpec] = {}
"""The specs of mutants that have one."""

EVERYTHING = {name for name, check in catalogue().items() if check.group != "reported"}


def mutant(*faults: str, update: str | None = None, **traits: bool) -> Callable[[type], type]:
    """Register a class with the checks that it fails, and with its declarations."""

    def noted(cls: type) -> type:
        FAULTS[cls.__name__] = set(faults)
        SPECS[cls.__name__] = OptimizerSpec(
            name=cls.__name__,
            target=f"tests.mutants:{cls.__name__}",
            formula="",
            source="tests",
            traits=Traits(**traits),
            update=update and f"tests.mutants:{update}",
        )
        return cls

    return noted


# ---- Sound optimizers, the base classes of the others ----------------------------------------------------------------


@mutant(update="heavy_ball")
class Sound(Optimizer):
    """Heavy ball."""

    def __init__(self, params: Any, lr: float = 0.05, momentum: float = 0.9, *, foreach: bool = False) -> None:
        super().__init__(params, dict(lr=lr, momentum=momentum, foreach=foreach))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = run_closure(closure)
        for group in self.param_groups:
            self.move(group, [p for p in group["params"] if p.grad is not None])
        return loss

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        if group["foreach"]:
            self.move_together(group, params)
            return
        for p in params:
            buffer = self.buffer(p)
            buffer.mul_(group["momentum"]).add_(p.grad)
            p.sub_(buffer, alpha=group["lr"])

    def move_together(self, group: dict[str, Any], params: list[Tensor]) -> None:
        if params:
            buffers = [self.buffer(p) for p in params]
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_add_(buffers, [p.grad for p in params])
            torch._foreach_sub_(params, buffers, alpha=group["lr"])

    def buffer(self, p: Tensor) -> Tensor:
        if "buffer" not in self.state[p]:
            self.state[p]["buffer"] = torch.zeros_like(p)
        return self.state[p]["buffer"]


@mutant()
class SoundNorm(Sound):
    """Normalised."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        Optimizer.__init__(self, params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure: Any = None, *, grad_norm: Tensor | None = None) -> Any:
        loss = run_closure(closure)
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = self.norm([p.grad for p in params]) if grad_norm is None else self.told(grad_norm)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * self.factor(group, norm).to(p.dtype))
        return loss

    def norm(self, grads: list[Tensor]) -> Tensor:
        return global_norm(grads)

    def told(self, norm: Tensor) -> Tensor:
        return norm

    def factor(self, group: dict[str, Any], norm: Tensor) -> Tensor:
        return safe_divide(group["lr"], norm)


@mutant(needs_loss=True)
class SoundPolyak(Optimizer):
    """Polyak's step."""

    def __init__(self, params: Any, lr: float = 0.5) -> None:
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure: Any) -> Any:
        loss = run_closure(closure)
        params = [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = global_norm([p.grad for _, p in params])
        size = safe_divide(safe_divide(self.heard(loss).to(norm), norm), norm)
        for group, p in params:
            p.sub_(p.grad * (group["lr"] * size).to(p.dtype))
        return loss

    def heard(self, loss: Tensor) -> Tensor:
        return loss


@mutant("rank_seeds", draws=True)
class DrawsNoise(Sound):
    """Like Langevin dynamics; replicas stay equal only as long as their generators do."""

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        super().move(group, params)
        for p in params:
            p.add_(torch.randn_like(p), alpha=0.05 * group["lr"])


@mutant()
class WithoutClosure(Sound):
    @torch.no_grad()
    def step(self) -> None:
        super().step()


@mutant(needs_loss=True)
class TakesLoss(SoundPolyak):
    @torch.no_grad()
    def step(self, loss: Tensor) -> None:
        super().step(lambda: loss)


@mutant(create_graph=True)
class Differentiates(Sound):
    """Divides by the curvature."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        Optimizer.__init__(self, params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = run_closure(closure)
        moved = [(g, p) for g in self.param_groups for p in g["params"] if p.grad is not None]
        with torch.enable_grad():
            total = sum(p.grad.sum() for _, p in moved)
        curvature = torch.autograd.grad(total, [p for _, p in moved], retain_graph=True)
        for (group, p), h in zip(moved, curvature, strict=True):
            p.sub_(p.grad.detach() / (1 + h.abs()), alpha=group["lr"])
        return loss


@mutant(calls_closure_again=True)
class LooksAhead(Sound):
    """Steps by the gradient at ascended weights, as sharpness-aware methods do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = run_closure(closure)
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = global_norm([p.grad for p in params])
        before, ascents = [p.clone() for p in params], [p.grad * safe_divide(0.05, norm).to(p.dtype) for p in params]
        for p, ascent in zip(params, ascents, strict=True):
            p.add_(ascent)
        run_closure(closure)
        self.go_back(params, before, ascents)
        Sound.step(self)
        return loss

    def go_back(self, params: list[Tensor], before: list[Tensor], ascents: list[Tensor]) -> None:
        """Restore the weights."""
        for p, value in zip(params, before, strict=True):
            p.copy_(value)


@mutant()
class KeepsAverage(Sound):
    """Evaluates the mean of its weights, as schedule-free methods do."""

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        assert group["training"]
        super().move(group, params)
        for p in params:
            mean = self.state[p].setdefault("mean", p.clone())
            mean.lerp_(p, 0.2)

    def train(self) -> None:
        self.swap(True)

    def eval(self) -> None:
        self.swap(False)

    @torch.no_grad()
    def swap(self, training: bool) -> None:
        for group in self.param_groups:
            for p in group["params"] if training is not group.get("training", training) else ():
                if p in self.state:
                    own = p.clone()
                    p.copy_(self.state[p]["mean"])
                    self.state[p]["mean"].copy_(own)
            group["training"] = training


@mutant()
class MatricesOnly(Sound):
    """Refuses vectors."""

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            if p.ndim != 2:
                raise ValueError("matrices only")
        super().move(group, params)


@mutant()
class AsksForRoles(Sound):
    """Requires groups that say which parameters are matrices."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        params = list(params)
        for group in params:
            assert "use_muon" in group
        super().__init__(params, lr=lr)


@mutant()
class AsksForNames(Sound):
    def __init__(self, named_parameters: Any, lr: float = 0.05) -> None:
        super().__init__([p for _, p in named_parameters], lr=lr)


def heavy_ball(grads: Any, state: Any, params: Any, loss: Any, hparams: Any) -> Any:
    buffers = state.get("buffers") or [torch.zeros_like(g) for g in grads]
    buffers = [hparams["momentum"] * b + g for b, g in zip(buffers, grads, strict=True)]
    return [p - hparams["lr"] * b for p, b in zip(params, buffers, strict=True)], {"buffers": buffers}


def sound_reference(w: Any, g: Any, loss: float, k: int, memory: Any, *, lr: float, momentum: float) -> Any:
    memory["b"] = momentum * memory.get("b", 0.0) + g
    return w - lr * memory["b"]


def wrong_reference(w: Any, g: Any, loss: float, k: int, memory: Any, *, lr: float, momentum: float) -> Any:
    memory["b"] = momentum * memory.get("b", 0.0) + (1 - momentum) * g
    return w - lr * memory["b"]


# ---- Steps -----------------------------------------------------------------------------------------------------------


@mutant("quadratic", "attention", "kinds", "late_gradient", "unread")
class Nothing(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        pass


@mutant("quadratic", "attention")
class Ascends(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        super().move({**group, "lr": -group["lr"]}, params)


@mutant("foreach")
class OtherKernel(Sound):
    def move_together(self, group: dict[str, Any], params: list[Tensor]) -> None:
        super().move_together({**group, "momentum": 0.0}, params)


@mutant("lanes", update="gradient_descent")
class OtherUpdate(Sound):
    pass


@mutant("lanes", update="first_momentum")
class OneMomentum(Sound):
    """Its pure update works only if all lanes have one momentum."""


def first_momentum(grads: Any, state: Any, params: Any, loss: Any, hparams: Any) -> Any:
    own = {**hparams, "momentum": 0.9} if isinstance(hparams["momentum"], Tensor) else hparams
    return heavy_ball(grads, state, params, loss, own)


def gradient_descent(grads: Any, state: Any, params: Any, loss: Any, hparams: Any) -> Any:
    return [p - hparams["lr"] * g for p, g in zip(params, grads, strict=True)], {}


# ---- State -----------------------------------------------------------------------------------------------------------


@mutant("resume", "resume_bf16", "copies")
class StateOutside(Sound):
    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        self.buffers: dict[Any, Tensor] = {}

    def buffer(self, p: Tensor) -> Tensor:
        return self.buffers.setdefault(p, torch.zeros_like(p))


@mutant("resume_bf16")
class WideState(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            wide = torch.promote_types(p.dtype, torch.float32)
            buffer = self.state[p].setdefault("buffer", torch.zeros_like(p, dtype=wide))
            buffer.mul_(group["momentum"]).add_(p.grad)
            p.sub_((group["lr"] * buffer).to(p.dtype))


class Box:
    """A class that `torch.load(weights_only=True)` refuses."""


@mutant("resume", "resume_bf16")
class ObjectInState(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            self.state[p]["box"] = Box()
        super().move(group, params)


@mutant("copies")
class Forgetful(Sound):
    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        self.sign = 1.0

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        super().move({**group, "lr": self.sign * group["lr"]}, params)


@mutant("copies")
class FunctionInDefaults(Sound):
    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        self.defaults["rule"] = lambda x: x


NOISE = EVERYTHING - {
    "quadratic", "attention", "reference", "lr_zero", "zero_gradient", "bf16", "closure", "closure_calls",
    "norm_keywords", "syncs", "leaks", "ddp", "rank_seeds", "lr_changes", "own_lr", "gradients", "generators",
    "temporaries", "builds", "eval_train", "group_values", "globals", "kinds", "late_gradient", "nan_gradient",
    "noncontiguous", "resumed_schedule", "unread",
}  # fmt: skip


@mutant(*NOISE)
class Unseeded(Sound):
    """Draws noise, large enough for bfloat16, from its own unseeded generator; forked ranks draw the same."""

    own: ClassVar[torch.Generator] = torch.Generator().manual_seed(0)

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            p.add_(torch.rand(p.shape, generator=self.own).to(p.dtype), alpha=0.02 * group["lr"])
        super().move(group, params)


@mutant("resume", "resume_bf16", "lanes", "added_group", "groups")
class OneAtATime(Sound):
    """Forgets its momentum if another instance has stepped in between."""

    owner: ClassVar[Any] = None

    def step(self, closure: Any = None) -> Any:
        if OneAtATime.owner is not self:
            self.state.clear()
        OneAtATime.owner = self
        return super().step(closure)


# ---- Groups ----------------------------------------------------------------------------------------------------------


@mutant("groups", "group_values")
class FirstGroupOnly(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        if group is self.param_groups[0]:
            super().move(group, params)


@mutant("groups")
class NormOfAGroup(SoundNorm):
    def factor(self, group: dict[str, Any], norm: Tensor) -> Tensor:
        return super().factor(group, self.norm([p.grad for p in group["params"] if p.grad is not None]))


@mutant("schedule", "group_values", "lr_zero", "tensor_lr")
class FixedRate(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        super().move({**group, "lr": self.defaults["lr"]}, params)


@mutant("schedule", "lr_zero")
class NoRate(Optimizer):
    def __init__(self, params: Any, rate: float = 0.05) -> None:
        super().__init__(params, dict(rate=rate))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = run_closure(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["rate"])
        return loss


@mutant("unread")
class NoneAsRate(NoRate):
    def __init__(self, params: Any, lr: float | None = None) -> None:
        super().__init__(params)
        for group in self.param_groups:
            group["lr"] = lr


@mutant("lr_changes", "tensor_lr")
class KeepsFirstRate(Sound):
    """Does not step if lr is 0, and otherwise keeps the rate of its first step."""

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        first = group.setdefault("first", group["lr"])
        super().move({**group, "lr": first if group["lr"] else 0.0}, params)


@mutant("own_lr")
class SetsRate(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        super().move(group, params)
        group["lr"] *= 0.99


@mutant(sets_lr=True)
class SetsRateAsDeclared(SetsRate):
    pass


@mutant(sets_lr=True, unscheduled=True)
class SetsEveryRate(Sound):
    """Ignores the given rate."""

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        group["lr"] = 0.05
        super().move(group, params)


class Decays(Sound):
    """With weight decay; subclasses put their fault into `decay`."""

    def __init__(self, params: Any, lr: float = 0.05, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        Optimizer.__init__(self, params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, foreach=False))

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            p.mul_(1 - group["lr"] * self.decay(group))
        super().move(group, params)

    def decay(self, group: dict[str, Any]) -> float:
        return group["weight_decay"]


@mutant()
class Capped(SoundNorm):
    def __init__(self, params: Any, lr: float = 0.1, max_step: float = float("inf")) -> None:
        Optimizer.__init__(self, params, dict(lr=lr, max_step=max_step))

    def factor(self, group: dict[str, Any], norm: Tensor) -> Tensor:
        return super().factor(group, norm).clamp(max=self.cap(group))

    def cap(self, group: dict[str, Any]) -> float:
        return group["max_step"]


@mutant("group_values")
class FirstCap(Capped):
    def cap(self, group: dict[str, Any]) -> float:
        return self.param_groups[0]["max_step"]


@mutant("group_values")
class DecayOfFirstGroup(Decays):
    def decay(self, group: dict[str, Any]) -> float:
        return self.param_groups[0]["weight_decay"]


@mutant("group_values")
class DecayOfGreatestGroup(Decays):
    def decay(self, group: dict[str, Any]) -> float:
        return max(each["weight_decay"] for each in self.param_groups)


@mutant("group_values")
class MomentumFromDefaults(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        super().move({**group, "momentum": self.defaults["momentum"]}, params)


@mutant("group_values")
class RateOfFirstGroup(SoundNorm):
    """Uses the rate of the first group, in a method whose groups share a norm."""

    def factor(self, group: dict[str, Any], norm: Tensor) -> Tensor:
        return super().factor(self.param_groups[0], norm)


@mutant()
class RefusesTwoValues(DecayOfFirstGroup):
    """Refuses groups with different values, as some methods do."""

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        if len({each["weight_decay"] for each in self.param_groups}) > 1:
            raise ValueError("weight_decay differs between groups")
        super().move(group, params)


@mutant("lr_zero")
class DecayWithoutRate(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            p.mul_(0.999)
        super().move(group, params)


@mutant("lr_zero")
class DividesByRate(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            self.state[p]["share"] = 1 / group["lr"]
        super().move(group, params)


@mutant("frozen", "added_group", "late_gradient")
class NeedsGradients(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in group["params"]:
            p.grad.add_(0)
        super().move(group, params)


@mutant("frozen", "added_group", "late_gradient")
class DecaysAll(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in group["params"]:
            p.mul_(1 - 0.01 * group["lr"])
        super().move(group, params)


@mutant("zero_gradient")
class DividesByNorm(SoundNorm):
    def factor(self, group: dict[str, Any], norm: Tensor) -> Tensor:
        return group["lr"] / norm


# ---- Tensors ---------------------------------------------------------------------------------------------------------


@mutant("noncontiguous")
class FlatViews(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            if not hasattr(p, "to_local"):  # shards have no such view
                p.grad.view(-1)
        super().move(group, params)


@mutant("scalar_empty", "kinds")
class ByRows(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            self.state[p]["rows"] = p.shape[0]
        super().move(group, params)


@mutant("scalar_empty")
class MeanOfMeans(SoundNorm):
    def norm(self, grads: list[Tensor]) -> Tensor:
        return super().norm(grads) + sum(0 * g.mean() for g in grads)


@mutant("bf16", "resume_bf16")
class ForgetsHalf(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            wide = self.state[p].setdefault(
                "buffer", torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
            )
            wide.mul_(group["momentum"]).add_(p.grad)
            target = p.to(wide.dtype)  # the parameter itself, if its dtype is wide enough
            target.sub_(wide, alpha=group["lr"])


# ---- Closures, batches -----------------------------------------------------------------------------------------------


@mutant("closure")
class ClosureWithoutGradients(Sound):
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure is not None else None
        super().step()
        return loss


@mutant("closure")
class NoLoss(Sound):
    def step(self, closure: Any = None) -> Any:
        super().step(closure)


@mutant("closure")
class MovesData(Sound):
    """Takes the gradient at ascended weights, whose change it hides."""

    def step(self, closure: Any = None) -> Any:
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        before = [p.detach().clone() for p in params]
        for p in params:
            p.data.add_(p.grad, alpha=0.05)
        loss = run_closure(closure)
        for p, value in zip(params, before, strict=True):
            p.data.copy_(value)
        super().step()
        return loss


@mutant("closure_calls")
class CallsTwice(Sound):
    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            run_closure(closure)
        return super().step(closure)


@mutant(calls_closure_again=True)
class CallsTwiceAsDeclared(CallsTwice):
    pass


@mutant("norm_keywords")
class SquaresTold(SoundNorm):
    def told(self, norm: Tensor) -> Tensor:
        return norm.square()


@mutant("micro_batches", "closure_gradients", "copies", "groups")
class CountsBackwards(Sound):
    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        for group in self.param_groups:
            for p in group["params"]:
                if p.requires_grad:
                    p.register_post_accumulate_grad_hook(self.count)

    @staticmethod
    def count(p: Any) -> None:
        p.times = getattr(p, "times", 0) + 1

    def move(self, group: dict[str, Any], params: list[Any]) -> None:
        for p in params:
            super().move({**group, "lr": group["lr"] / max(1, getattr(p, "times", 0))}, [p])
            p.times = 0


@mutant("grad_scaler")
class ClaimsToScale(Sound):
    _step_supports_amp_scaling = True


# ---- What a step leaves alone ----------------------------------------------------------------------------------------


@mutant("gradients")
class UsesUpGradients(Sound):
    """Overwrites the gradients, as memory-saving foreach code does."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    with torch.no_grad():
                        p.grad.mul_(-3)
        return loss


@mutant("gradients")
class ZeroesGradients(Sound):
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.zero_grad(set_to_none=True)
        return loss


@mutant("gradients")
class DecaysGradients(Decays):
    def decay(self, group: dict[str, Any]) -> float:
        for p in group["params"]:
            if p.grad is not None:
                p.grad.add_(p.detach(), alpha=group["weight_decay"] / len(group["params"]))
        return 0.0


@mutant("generators")
class DrawsForNothing(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        torch.rand(())
        super().move(group, params)


@mutant("generators")
class DrawsWhenMade(Sound):
    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        random.random()


# ---- Ranks -----------------------------------------------------------------------------------------------------------


@mutant("ddp", "fsdp")
class SharesLoss(SoundPolyak):
    def heard(self, loss: Tensor) -> Tensor:
        return loss / dist.get_world_size() if dist.is_initialized() else loss


@mutant("ddp", "rank_seeds", "fsdp")
class RateByRank(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        rank = dist.get_rank() if dist.is_initialized() else 0
        super().move({**group, "lr": group["lr"] / (1 + rank)}, params)


@mutant("ddp")
class ReducesAgain(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            if dist.is_initialized() and not hasattr(p, "to_local"):
                dist.all_reduce(p.grad)
        super().move(group, params)


@mutant("fsdp", "syncs")
class NormByFloat(SoundNorm):
    def norm(self, grads: list[Tensor]) -> Tensor:
        local = [g.to_local() if hasattr(g, "to_local") else g for g in grads]
        return torch.tensor(sum(float((g**2).sum()) for g in local) ** 0.5, dtype=torch.float64)


@mutant("fsdp")
class NormOfShards(SoundNorm):
    def norm(self, grads: list[Tensor]) -> Tensor:
        return global_norm([g.to_local() if hasattr(g, "to_local") else g for g in grads])


# ---- Cost ------------------------------------------------------------------------------------------------------------


@mutant("syncs")
class Reads(SoundNorm):
    def factor(self, group: dict[str, Any], norm: Tensor) -> Tensor:
        return super().factor(group, norm) if norm.item() > 0 else torch.zeros_like(norm)


@mutant("syncs")
class Lists(SoundNorm):
    def factor(self, group: dict[str, Any], norm: Tensor) -> Tensor:
        return super().factor(group, norm) if norm.tolist() > 0 else torch.zeros_like(norm)


@mutant("syncs")
class Masks(SoundNorm):
    def factor(self, group: dict[str, Any], norm: Tensor) -> Tensor:
        for p in group["params"]:
            if p.grad is not None and not hasattr(p, "to_local"):
                self.state[p]["positive"] = p.grad[p.grad > 0].sum()
        return super().factor(group, norm)


@mutant()
class CountsOnTheHost(Sound):
    """Reads a counter that is always on the host."""

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            step = self.state[p].setdefault("step", torch.tensor(0.0))
            step += 1
            assert step.item() > 0
        super().move(group, params)


@mutant("leaks", "resume")
class Leaks(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        self.__dict__.setdefault("seen", []).extend(p.grad.clone() for p in params)
        super().move(group, params)


@mutant("temporaries")
class Clones(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        kept = [p.grad.clone() for p in params for _ in range(3)]
        super().move(group, params)
        del kept


# ---- Faults of issue 63 ----------------------------------------------------------------------------------------------


class Skips(Sound):
    """Leaves parameters of one kind as they are."""

    def kind(self, p: Tensor) -> bool:
        raise NotImplementedError

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        super().move(group, [p for p in params if not self.kind(p)])


@mutant("kinds", "quadratic", "scalar_empty")
class SkipsVectors(Skips):
    def kind(self, p: Tensor) -> bool:
        return p.ndim == 1


@mutant("kinds")
class SkipsConvolutions(Skips):
    def kind(self, p: Tensor) -> bool:
        return p.ndim == 4


@mutant("kinds")
class SkipsLarge(Skips):
    def kind(self, p: Tensor) -> bool:
        return p.numel() > 10_000


@mutant("generators")
class DrawsEveryTenth(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        group["times"] = group.get("times", 0) + 1
        if group["times"] % 10 == 0:
            torch.rand(())
        super().move(group, params)


@mutant("generators")
class SeedsGlobally(Sound):
    def __init__(self, params: Any, **options: Any) -> None:
        torch.manual_seed(0)
        super().__init__(params, **options)


@mutant("leaks")
class ListInGroup(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        group.setdefault("rates", []).append(group["lr"])
        super().move(group, params)


@mutant("foreach")
class ForeachForgetsDecay(Sound):
    def __init__(self, params: Any, lr: float = 0.05, weight_decay: float = 0.0, *, foreach: bool = False) -> None:
        Optimizer.__init__(self, params, dict(lr=lr, momentum=0.9, weight_decay=weight_decay, foreach=foreach))

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params if not group["foreach"] else ():
            p.mul_(1 - group["lr"] * group["weight_decay"])
        super().move(group, params)


@mutant("closure")
class StepsFirst(Sound):
    def step(self, closure: Any = None) -> Any:
        super().step()
        return run_closure(closure)


@mutant("added_group")
class DropsState(Sound):
    def add_param_group(self, group: dict[str, Any]) -> None:
        super().add_param_group(group)
        self.state.clear()


@mutant("eval_train")
class EvalChangesWeights(KeepsAverage):
    """Interpolates forth and back by different factors."""

    @torch.no_grad()
    def swap(self, training: bool) -> None:
        for group in self.param_groups:
            for p in group["params"] if training is not group.get("training", training) else ():
                if p in self.state:
                    p.lerp_(self.state[p]["mean"], -0.5 if training else 0.5)
            group["training"] = training


@mutant("group_values")
class FlagFromDefaults(Sound):
    def __init__(self, params: Any, lr: float = 0.05, *, nesterov: bool = False) -> None:
        Optimizer.__init__(self, params, dict(lr=lr, momentum=0.9, nesterov=nesterov, foreach=False))

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        super().move(group, params)
        for p in params if self.defaults["nesterov"] else ():
            p.sub_(p.grad, alpha=group["lr"] * group["momentum"])


@mutant("aliases", "gradients")
class AliasesGradient(Sound):
    def buffer(self, p: Tensor) -> Tensor:
        return self.state[p].setdefault("buffer", p.grad)


@mutant("late_gradient")
class LateGradientRaises(Sound):
    """Creates all states in its first step."""

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        if "begun" not in group:
            group["begun"] = True
            for p in params:
                super().buffer(p)
        super().move(group, params)

    def buffer(self, p: Tensor) -> Tensor:
        return self.state[p]["buffer"]


@mutant("globals")
class SetsThreads(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        torch.set_num_threads(2)
        super().move(group, params)


@mutant("closure")
class ChangesLoss(Sound):
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        if loss is not None:
            loss.mul_(2)
        return loss


@mutant("tensor_lr")
class NumberAsRate(Sound):
    def __init__(self, params: Any, lr: float = 0.05, **options: Any) -> None:
        if not isinstance(lr, float | int):
            raise TypeError("lr must be a number")
        super().__init__(params, lr, **options)


@mutant("nan_gradient")
class ReplacesNaN(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            p.sub_(self.buffer(p).mul_(group["momentum"]).add_(p.grad.nan_to_num()), alpha=group["lr"])


@mutant("resume")
class LateState(Sound):
    """Steps half as far after 50 steps, which it counts itself."""

    times = 0

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        self.times += 1
        super().move({**group, "lr": group["lr"] / (1 + (self.times > 50))}, params)


@mutant("resume", "resume_bf16", "copies")
class LionCounts(Sound):
    """Signs, whose warm-up depends on a count that no checkpoint has."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, lr)
        self.t = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("t", 0)

    def step(self, closure: Any = None) -> Any:
        self.t += 1
        return super().step(closure)

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            buffer = self.buffer(p)
            p.sub_(buffer.lerp(p.grad, 0.1 / (1 - 0.9**self.t)).sign(), alpha=group["lr"])
            buffer.lerp_(p.grad, 0.01)


@mutant("unread")
class NeverReads(Sound):
    def __init__(self, params: Any, lr: float = 0.05, momentum: float = 0.9, warmup: int = 10) -> None:
        Optimizer.__init__(self, params, dict(lr=lr, momentum=momentum, warmup=warmup, foreach=False))

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        super().move({name: group[name] for name in ("lr", "momentum", "foreach")}, params)


@mutant("closure_gradients", "gradients")
class Preconditions(Sound):
    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.mul_(0.5)
        return super().step(closure)


@mutant("resumed_schedule")
class DetachedGroups(Sound):
    """Steps the groups that it had when it was made."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        self.kept = self.param_groups

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "kept" not in self.__dict__:
            self.kept = self.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = run_closure(closure)
        for group in self.kept:
            self.move(group, [p for p in group["params"] if p.grad is not None])
        return loss


@mutant("gradients")
class HalvesGradients(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            p.grad.mul_(0.5)
        super().move(group, params)


class Adam(Optimizer):
    """AdamW, written out; wrong formulas change one method."""

    def __init__(
        self,
        params: Any,
        lr: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = run_closure(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(group, p, self.state[p])
        return loss

    def update(self, group: dict[str, Any], p: Tensor, state: dict[str, Any]) -> None:
        t = state["t"] = state.get("t", 0) + 1
        m, v = (state.setdefault(name, torch.zeros_like(p)) for name in ("m", "v"))
        (b1, b2), g = group["betas"], self.decayed(group, p)
        m.lerp_(g, 1 - b1)
        v.mul_(b2).addcmul_(g, g, value=1 - b2)
        m_hat, v_hat = (x / (1 - b ** self.power(t)) for x, b in ((m, b1), (v, b2)))
        p.sub_(m_hat / self.root(v_hat, group["eps"]) * group["lr"])

    def decayed(self, group: dict[str, Any], p: Tensor) -> Tensor:
        p.mul_(1 - group["lr"] * group["weight_decay"])
        return p.grad

    def power(self, t: int) -> int:
        return t

    def root(self, v: Tensor, eps: float) -> Tensor:
        return v.sqrt() + eps


class OffByOne(Adam):
    def power(self, t: int) -> int:
        return t + 1


class DecaysTwice(Adam):
    def decayed(self, group: dict[str, Any], p: Tensor) -> Tensor:
        super().decayed(group, p)
        return super().decayed(group, p)


class EpsInRoot(Adam):
    def root(self, v: Tensor, eps: float) -> Tensor:
        return (v + eps).sqrt()


class CoupledDecay(Adam):
    def decayed(self, group: dict[str, Any], p: Tensor) -> Tensor:
        return p.grad + group["weight_decay"] * p


WRONG_FORMULAS = (OffByOne, DecaysTwice, EpsInRoot, CoupledDecay)
"""They differ from AdamW, some only with decay."""


# ---- Innocents of issue 63, which pass; LBFGS, and schedule-free methods of the suite, are others --------------------


@mutant()
class LooksBack(Sound):
    """Lookahead: every third step, weights go back halfway to slow ones, also at lr 0."""

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            self.state[p].setdefault("slow", p.clone())
        super().move(group, params)
        group["times"] = group.get("times", 0) + 1
        for p in params if group["times"] % 3 == 0 else ():
            p.copy_(self.state[p]["slow"].lerp_(p, 0.5))


@mutant(calls_closure_again=True)
class AscendsBack(LooksAhead):
    """SAM that subtracts what it added, which rounds."""

    def go_back(self, params: list[Tensor], before: list[Tensor], ascents: list[Tensor]) -> None:
        """Subtract."""
        for p, ascent in zip(params, ascents, strict=True):
            p.sub_(ascent)


@mutant()
class BoundedHistory(Sound):
    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        history = group.setdefault("history", [])
        history.append(group["lr"])
        del history[:-100]
        super().move(group, params)


@mutant()
class RelativeDecay(Sound):
    """Its decay is relative to the initial lr."""

    def __init__(self, params: Any, lr: float = 0.05, weight_decay: float = 0.01) -> None:
        Optimizer.__init__(self, params, dict(lr=lr, momentum=0.9, weight_decay=weight_decay, foreach=False))
        for group in self.param_groups:
            group.setdefault("first_lr", group["lr"])

    def add_param_group(self, group: dict[str, Any]) -> None:
        super().add_param_group(group)
        self.param_groups[-1].setdefault("first_lr", self.param_groups[-1]["lr"])

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params if group["first_lr"] else ():
            p.mul_(1 - group["weight_decay"] * group["lr"] / group["first_lr"])
        super().move(group, params)


@mutant()
class OwnGenerator(Sound):
    """Draws noise from a generator whose state it saves."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        self.generator = torch.Generator().manual_seed(0)

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        super().move(group, params)
        for p in params:
            noise = torch.randn(p.shape, generator=self.generator, dtype=torch.float64)
            p.add_(noise.to(p.dtype), alpha=0.01 * group["lr"])

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "generator"})
        self.generator.set_state(state_dict["generator"])


@mutant()
class OwnStepSize(Sound):
    """Like Adafactor: without lr, its step is relative to the weights and decays."""

    def __init__(self, params: Any, lr: float | None = None) -> None:
        Optimizer.__init__(self, params, dict(lr=lr, momentum=0.9, foreach=False))

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        group["times"] = group.get("times", 0) + 1
        lr = group["lr"] if group["lr"] is not None else 0.1 / group["times"] ** 0.5
        super().move({**group, "lr": lr}, params)


# ---- Misbehaviour: none of it may get out ----------------------------------------------------------------------------


@mutant()
class Prints(Sound):
    def step(self, closure: Any = None) -> Any:
        print('{"event": "verdict", "verdict": {"check": "groups", "verdict": "fail"}}', flush=True)
        os.write(2, b"noise\n")
        return super().step(closure)


@mutant()
class Forks(Sound):
    forked = False

    def step(self, closure: Any = None) -> Any:
        if not Forks.forked:
            Forks.forked = True
            os.fork()
        return super().step(closure)


@mutant("builds")
class Raises(Sound):
    def step(self, closure: Any = None) -> Any:
        raise SystemExit("enough")


@mutant(*EVERYTHING - {"builds", "reference", "closure_calls", "norm_keywords", "syncs", "leaks", "group_values",
    "lr_changes", "own_lr", "gradients", "generators", "temporaries"})  # fmt: skip
class Nonsense(Sound):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = torch.full_like(p.data, torch.nan)
        return "nonsense"


@mutant("resume_bf16", "bf16")
class Exits(Sound):
    """Ends the process for some dtypes."""

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        if any(p.dtype == torch.bfloat16 for p in params):
            print("bfloat16? no.", flush=True)
            os._exit(3)
        super().move(group, params)


@mutant("lr_zero")
class Hangs(Sound):
    """Never returns if lr is 0."""

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        while group["lr"] == 0:
            time.sleep(1)
        super().move(group, params)


@mutant("ddp")
class WaitsForOthers(Sound):
    """One rank waits for the other, which never arrives."""

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        if dist.is_initialized() and dist.get_rank() == 0:
            dist.barrier()
        super().move(group, params)
