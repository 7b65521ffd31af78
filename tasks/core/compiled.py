"""`--trainer.compile`: loss and gradient through `torch.compile`, where that pays.

The optimizer's update is not compiled: its kernels already update all parameters at once, and it takes about 1 % of a
step of the suite's own models. So one compiled program serves all optimizers.
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
"""`auto` compiles only if the remaining steps take longer than this: compiling takes a minute or two. Ours."""
_WARM, _COMPILING, _PAIRS = 3, 2, 5
"""Eager evaluations at first; compiling ones (two, since strides of the first may differ); pairs that are timed."""


def through_compiler(function: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., Any]:
    """The function through `torch.compile`, which compiles it at its first call.

    Args:
        function: it draws the same numbers from torch's generators as without compiling.
        dynamic: whether tensor sizes may vary; None for only those that have varied.
    """
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 256  # for all runs together: beyond it torch silently stops compiling
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # warns of a CUDA toolkit without a GPU
    return torch.compile(function, dynamic=dynamic, options={"fallback_random": True})


def compiled_loss(loss: Callable[[Any], Any], where: BatchRandomness, device: torch.device) -> Callable[[Any], Any]:
    """A task's loss through `torch.compile`, for any step and rows set in `where`."""
    program = through_compiler(loss)

    def compiled(batch: Any) -> Any:
        with where.at(*where.position(device)):
            return program(batch)

    return compiled


class CompileError(RuntimeError):
    """`torch.compile` cannot compile the task's loss, on this machine or at all."""


class CompileTrial:
    """The first evaluations of a run, which decide whether it continues compiled.

    Eager and compiled evaluations agree to rounding, so all of them count. `step` only tests that compiling works.
    `auto` requires it to be faster, in the median over pairs of one eager and one compiled evaluation; short runs are
    not compiled.

    Args:
        loop: the training loop; its `loss` may be compiled.
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
        """`Loop.evaluate`, eager or compiled, whichever is next.

        Raises:
            CompileError: the mode is `step`, and compiling fails.
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
            found = loop.evaluate(step)  # an error of the task itself is raised here
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if self.mode == "step":
                raise CompileError(why) from error
            self._end(f"torch.compile does not work here ({why}); continuing without it")
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
        """Continue with the faster of the two; `loop.loss` is the compiled one."""
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
