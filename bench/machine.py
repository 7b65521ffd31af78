"""Facts about this process and machine that need no torch."""

import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

LIBRARIES = ("torch", "lightning", "timm", "torchmetrics", "torchvision", "transformers", "optuna", "numpy")


def is_main_process() -> bool:
    """Whether this process is rank 0, or alone; the other ranks run the same command and write nothing."""
    for name in ("RANK", "SLURM_PROCID"):
        if name in os.environ:
            return os.environ[name] == "0"
    return os.environ.get("LOCAL_RANK", "0") == os.environ.get("NODE_RANK", "0") == "0"


@cache
def cpu_name() -> str:
    """The processor's name from the system."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def crowding() -> float:
    """Runnable processes per processor, at least 1: time limits grow with it, so a busy machine causes no failures."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
