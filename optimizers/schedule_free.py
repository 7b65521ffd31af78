"""Schedule-free AdamW: an average of the iterates in place of a schedule."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from optimizers import pure
from optimizers.pure import Hparams, State, Tensors
from optimizers.step_size import CheckedOptimizer, run_closure
from optimizers.torch_updates import average_square, correction


class ScheduleFreeAdamW(CheckedOptimizer):
    """AdamW without a schedule: gradients are computed between the iterate z and its average x; x is evaluated.

        y = (1 - beta1) z + beta1 x, where the gradient g is taken
        v <- beta2 v + (1 - beta2) g^2
        z <- z - lr_t (g / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay y),   lr_t = lr min(1, t / warmup_steps)
        x <- (1 - c) x + c z,   c = lr_t^2 / (sum of lr_s^2 over s <= t)

    The parameters hold y while training, and x between `eval()` and `train()`, without rounding: z and x are both
    stored. A step in eval mode is an error.

    Source: Defazio et al., The Road Less Scheduled, arXiv 2405.15682; v is bias-corrected here, as in Adam and in the
    authors' code, where the paper has sqrt(1 - beta2^t) in lr_t.

    Args:
        params: parameters or parameter groups.
        lr: learning rate, in [0, inf); the best values are 1 to 10 times AdamW's with a schedule.
        betas: beta1, the position of y between z and x, and beta2, the decay of v, each in [0, 1).
        eps: added to the denominator, in [0, inf).
        weight_decay: decoupled weight decay per unit of lr, in [0, inf).
        warmup_steps: steps over which lr rises linearly, at least 0.
    """

    RANGES: ClassVar = dict.fromkeys(("lr", "eps", "weight_decay", "warmup_steps"), "[0, inf)") | {"betas": "[0, 1)"}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2.5e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
    ) -> None:
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, warmup_steps=warmup_steps)
        # Python numbers, which loading does not round: steps done, sum of the weights of x.
        super().__init__(params, defaults | dict(done=0, weight_sum=0.0, training=True))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; `.grad` must hold the gradient of the whole batch. In eval mode it is a RuntimeError."""
        loss = run_closure(closure)
        for group in self.param_groups:
            if not group["training"]:
                raise RuntimeError("ScheduleFreeAdamW is in eval mode: call train() before step()")
            if params := self._trained(group):
                self._move(group, params, [p.grad for p in params])
        return loss

    def _move(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p] |= {"z": p.clone(), "x": p.clone(), "v": torch.zeros_like(p)}
        z, x, v = ([self.state[p][name] for p in params] for name in ("z", "x", "v"))
        beta2 = group["betas"][1]
        group["done"] += 1
        lr = float(group["lr"]) * min(1.0, group["done"] / max(1, group["warmup_steps"]))
        group["weight_sum"] += lr**2
        share = lr**2 / group["weight_sum"] if group["weight_sum"] > 0 else 0.0
        torch._foreach_mul_(v, beta2)
        torch._foreach_addcmul_(v, grads, grads, 1 - beta2)
        root = torch._foreach_div(v, 1 - beta2 ** group["done"])
        torch._foreach_sqrt_(root)
        torch._foreach_add_(root, group["eps"])
        torch._foreach_addcdiv_(z, grads, root, -lr)
        if group["weight_decay"] != 0:
            torch._foreach_add_(z, params, alpha=-lr * group["weight_decay"])
        torch._foreach_lerp_(x, z, share)
        self._place(group, params)

    def _place(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Put the parameters at y."""
        for p in params:
            p.copy_(torch.lerp(self.state[p]["z"], self.state[p]["x"], group["betas"][0]))

    @torch.no_grad()
    def eval(self) -> None:
        """Put the parameters at x, the average."""
        for group in self.param_groups:
            group["training"] = False
            for p in group["params"]:
                if self.state.get(p):
                    p.copy_(self.state[p]["x"])

    @torch.no_grad()
    def train(self) -> None:
        """Put the parameters back at y."""
        for group in self.param_groups:
            group["training"] = True
            self._place(group, [p for p in group["params"] if self.state.get(p)])


def update(grads: Tensors, state: State, params: Tensors, loss: Tensor, hparams: Hparams) -> tuple[Tensors, State]:
    """One step as a pure function (`OptimizerSpec.update`); `evaluated` is x."""
    lr, (beta1, beta2), decay = hparams["lr"], hparams["betas"], hparams["weight_decay"]
    if not state:
        zero, v = torch.zeros_like(lr), [torch.zeros_like(p) for p in params]
        state = {"z": params, "evaluated": params, "v": v, "done": zero, "weight_sum": zero}
    done = state["done"] + 1
    lr = lr * (done / max(1, hparams["warmup_steps"])).clamp(max=1)
    weight_sum = state["weight_sum"] + lr.square()
    share = torch.where(weight_sum > 0, lr.square() / weight_sum, 0.0)
    v = [average_square(v, g, beta2) for v, g in zip(state["v"], grads, strict=True)]
    root = correction(beta2, done).sqrt()
    moves = [g / (a.sqrt() / root + hparams["eps"]) for a, g in zip(v, grads, strict=True)]
    if not pure.known_zero(decay):
        moves = [pure.plus(m, decay, p) for m, p in zip(moves, params, strict=True)]
    z = pure.descend(state["z"], moves, lr)
    x = [torch.lerp(old, new, share.to(new)) for old, new in zip(state["evaluated"], z, strict=True)]
    y = [torch.lerp(a, b, beta1.to(a) if isinstance(beta1, Tensor) else beta1) for a, b in zip(z, x, strict=True)]
    return y, {"z": z, "evaluated": x, "v": v, "done": done, "weight_sum": weight_sum}
