"""Plug-ins whose steps take time but no CPU: for runs that a test has to interrupt midway."""

import time
from pathlib import Path
from typing import Any

from torch.optim import SGD

SLOW = f"{Path(__file__).resolve()}:Slow"
"""The value of `--opt`."""


class Slow(SGD):
    """SGD that sleeps for 10 ms before each step.

    Args:
        lr: step per unit of the gradient.
    """

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)

    def step(self, closure: Any = None) -> Any:
        """Sleep, and take a step."""
        time.sleep(0.01)
        return super().step(closure)
