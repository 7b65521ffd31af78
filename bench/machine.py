"""Facts about this process and machine that need no torch."""

import os
import platform
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "lightning", "timm", "torchmetrics", "torchvision", "transformers", "optuna", "numpy")


def is_main_process() -> bool:
    """Whether this process is rank 0, or alone; the other ranks run the same command and write nothing."""
    for name in ("RANK", "SLURM_PROCID"):
        if name in os.environ:
            return os.environ[name] == "0"
    return os.environ.get("LOCAL_RANK", "0") == os.environ.get("NODE_RANK", "0") == "0"


@cache
def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def this_process() -> dict[str, Any]:
    """This process, so that others can see whether it lives."""
    return {
        "host": socket.gethostname(),
        "space": _pid_space(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
    }


def is_dead(process: Mapping[str, Any]) -> bool:
    """Whether a process of this machine is gone; False of those of other machines."""
    if process.get("host") != socket.gethostname() or process.get("space") != _pid_space():
        return False
    return _started(process["pid"]) != process["started"]


def _started(pid: int) -> str | None:
    """When a process started: a number may be used again."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        state, *fields = text.rpartition(")")[2].split()
        return None if state == "Z" else fields[18]
    except OSError:
        pass
    if Path("/proc/self/stat").exists():
        return None
    try:  # no /proc on a Mac
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


def _pid_space() -> int:
    """Containers may share a host's name but not its processes."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
