"""`--trainer.compile`: loss and gradient through `torch.compile`, where that pays.

The optimizer's update stays as it is: its kernels move all parameters at once already, and it is about a hundredth of a
step of the suite's own models. So what is compiled is one program for all optimizers.
"""

import logging
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from tasks.core.randomness import BatchRandomness

if TYPE_CHECKING:
    from tasks.core.training_step import Loop

Compile = Literal["off", "auto", "step"]
Evaluated = tuple[Tensor, dict[str, Tensor], list[Tensor]]

WORTH_SECONDS = 300
"""`auto` compiles where the steps that are left take longer than this: compiling takes a minute or two. Ours."""
_WARM, _COMPILING, _PAIRS = 3, 2, 5
"""Evaluations at first; those in which programs are made, the second as the first one's strides may differ; pairs."""


def through_compiler(function: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., Any]:
    """The function through `torch.compile`, which makes its program when it is first called.

    Args:
        function: what it draws from torch's generators stays the same.
        dynamic: whether sizes of tensors may vary; None for those that were seen to.
    """
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 256  # of all runs together: beyond it nothing is compiled, silently
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # where the CUDA toolkit is, without a GPU
    return torch.compile(function, dynamic=dynamic, options={"fallback_random": True})


def compiled_loss(loss: Callable[[Any], Any], where: BatchRandomness, device: torch.device) -> Callable[[Any], Any]:
    """A task's loss through `torch.compile`, of whatever step and rows `where` says."""
    program = through_compiler(loss)

    def compiled(batch: Any) -> Any:
        with where.as_tensors(device):
            return program(batch)

    return compiled


class CompileError(RuntimeError):
    """`torch.compile` cannot make a program of the task's loss, on this machine or at all."""


class Trial:
    """The first evaluations of a run, which decide whether it goes on compiled: equal to rounding, they all count.

    With `step` only whether that works at all. With `auto` it has to be faster, in the median over pairs of
    evaluations, one of either kind; it is not tried where the run is short.

    Args:
        loop: whose `loss` is compiled, or not.
        mode: `auto` or `step`.
    """

    def __init__(self, loop: "Loop", mode: Compile) -> None:
        self.loop, self.mode = loop, mode
        self.eager = loop.loss
        self.compiled = compiled_loss(loop.loss, loop.where, loop.device)
        self.ways = [self.compiled]
        if mode == "auto":
            self.ways = [*[self.eager] * _WARM, *[self.compiled] * _COMPILING, *[self.eager, self.compiled] * _PAIRS]
        self.seconds: list[float] = []

    def evaluate(self, step: int) -> Evaluated:
        """`Loop.evaluate`, in the way that is tried next.

        Raises:
            CompileError: `step` was asked for, and does not work.
        """
        loop, done = self.loop, len(self.seconds)
        loop.loss = self.ways[done]
        self._settle()
        begun = time.perf_counter()
        try:
            found = loop.evaluate(step)
        except Exception as error:
            if loop.loss is self.eager:
                raise
            loop.loss = self.eager
            found = loop.evaluate(step)  # if the task is at fault, it says so here
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if self.mode == "step":
                raise CompileError(why) from error
            self._end(f"torch.compile does not work here ({why}); going on without it")
            return found
        self._settle()
        self.seconds.append(time.perf_counter() - begun)
        left = loop.plan.total_steps - step - 1
        if self.mode == "auto" and len(self.seconds) == _WARM and min(self.seconds) * left < WORTH_SECONDS:
            self._end()
        elif len(self.seconds) == len(self.ways):
            self._decide()
        return found

    def _decide(self) -> None:
        """Go on in the faster way; `loop.loss` is the compiled one."""
        if self.mode == "step":
            self._end()
            return
        pairs = self.seconds[_WARM + _COMPILING :]
        ratio = median(c / e for e, c in zip(pairs[::2], pairs[1::2], strict=True))
        if ratio >= 1:
            self.loop.loss = self.eager
        self._end(
            f"torch.compile took {sum(self.seconds[_WARM : _WARM + _COMPILING]):.0f} s; loss and gradient take"
            f" {ratio:.2f} times as long compiled; {'used' if ratio < 1 else 'not used'}"
        )

    def _end(self, said: str = "") -> None:
        loop = self.loop
        loop.record.compiled = loop.loss is self.compiled
        loop.record.said += [said] if said else []
        loop.trial = None

    def _settle(self) -> None:
        if self.loop.device.type == "cuda":
            torch.cuda.synchronize(self.loop.device)
