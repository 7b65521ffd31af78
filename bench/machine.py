"""Facts about this process and machine that need no torch."""

import os
import platform
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
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def crowding() -> float:
    """Runnable processes per processor, at least 1: time limits grow with it, so a busy machine causes no failures."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
