"""Threads of torch on a CPU: one for small models, whose steps take longer with several if other programs run."""

from collections.abc import Iterable

import torch

SMALL = 10_000
"""Parameters below which a model trains on one thread. Ours.

Measured on two cores with 4,096 parameters, alone as in blocks of 64: two threads gain nothing on an idle machine and
take 2 to 4 times as long on a busy one, since each operation waits for the slower thread.
"""

_before: int | None = None


def set_threads(count: int) -> None:
    """Set the number of threads of this process, also for later models."""
    global _before
    _before = None
    torch.set_num_threads(count)


def limit_threads(parameters: Iterable[torch.Tensor]) -> None:
    """Use one thread from now on if these parameters are few, else as many as before a small model."""
    global _before
    now = torch.get_num_threads()
    if sum(p.numel() for p in parameters) < SMALL:
        if now > 1:
            _before = now
            torch.set_num_threads(1)
    elif _before is not None and now == 1:
        set_threads(_before)
