"""`--trainer.compile step`: loss and gradient through `torch.compile`.

The optimizer's update is not compiled: its kernels already update all parameters at once, and it takes about 1 % of a
step of the suite's own models. So one compiled program serves all optimizers.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch

from tasks.core.randomness import BatchRandomness


class CompileError(RuntimeError):
    """`torch.compile` cannot compile the task's loss, on this machine or at all."""


def through_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function through `torch.compile`, with the same numbers from torch's generators as without it."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 256  # for all runs together: beyond it torch silently stops compiling
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # warns of a CUDA toolkit without a GPU
    return torch.compile(function, options={"fallback_random": True})


def compiled_loss(loss: Callable[[Any], Any], where: BatchRandomness, device: torch.device) -> Callable[[Any], Any]:
    """A task's loss through `torch.compile`, for any step and rows set in `where`; it raises `CompileError`."""
    program = through_compiler(loss)

    def compiled(batch: Any) -> Any:
        try:
            with where.at(*where.position(device)):
                return program(batch)
        except Exception as error:
            loss(batch)  # an error of the task itself is raised here
            raise CompileError((str(error).strip().splitlines() or [type(error).__name__])[0]) from error

    return compiled
