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
    """The processor's name from the system."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def this_process() -> dict[str, Any]:
    """Identifies this process, so that others can check whether it is alive."""
    return {
        "host": socket.gethostname(),
        "boot": _boot(),
        "space": _pid_space(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
    }


def lives(process: Mapping[str, Any]) -> bool | None:
    """Whether a process (`this_process`) is alive; None if it is on another machine and so unknown."""
    here = {"host": socket.gethostname(), "boot": _boot(), "space": _pid_space()}
    if {name: process.get(name) for name in here} != here:
        return None
    return _started(process["pid"]) == process["started"]


def _started(pid: int) -> str | None:
    """Start time of a process, since its id may be reused; None if it does not exist, empty if unknown."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # a Mac, or another user's process
        return ""
    return None if state == "Z" else fields[18]


def _boot() -> str:
    """Distinguishes machines with the same name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_space() -> int:
    """Distinguishes containers with the same host name."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def crowding() -> float:
    """Runnable processes per processor, at least 1: time limits grow with it, so a busy machine causes no failures."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
