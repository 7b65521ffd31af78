"""A plug-in whose steps take time but no processor: for runs that are to be caught in the middle."""

import time
from pathlib import Path
from typing import Any

from torch.optim import SGD

SLOW = f"{Path(__file__).resolve()}:Slow"
"""What is typed after `--opt`."""


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
