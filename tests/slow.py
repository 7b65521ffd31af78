"""Plug-ins whose steps take time but no CPU: for runs that a test has to interrupt midway."""

import os
import time
from pathlib import Path
from typing import Any

from torch.optim import SGD

SLOW = f"{Path(__file__).resolve()}:Slow"
"""The value of `--opt`."""
HELD = f"{Path(__file__).resolve()}:Held"
"""The same; tasks of a Slurm array report that they train, and wait until they may continue. See `Held`."""
GATE = "TEST_GATE"
"""Environment variable with the folder that `Held` uses."""


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


class Held(Slow):
    """`Slow` that makes a file `trains-TASK` in the folder `$TEST_GATE` and waits there for a file `open`.

    It does so at the tenth step in a task of a Slurm array, so not where a command only tests the optimizer.

    Args:
        lr: step per unit of the gradient.
    """

    def step(self, closure: Any = None) -> Any:
        """Report that this task trains, wait for permission, and take a step."""
        self.taken = getattr(self, "taken", 0) + 1
        if self.taken == 10 and (task := os.environ.get("SLURM_ARRAY_TASK_ID")):
            folder = Path(os.environ[GATE])
            (folder / f"trains-{task}").touch()
            while not (folder / "open").exists():
                time.sleep(0.01)
        return super().step(closure)
