"""Memory of this machine's devices: how much is free, what a piece of work takes, and whether an error says it is short."""

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.errors import UserError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def free_memory(device: str) -> int:
    """Bytes that are free on the device; on a CPU those that the system or a control group leaves us."""
    if device == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info()
        return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # `max` where there is no limit
        free = min(free, int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return max(0, free)


def read_memory(text: str, device: str) -> int:
    """Bytes from a share of what is free (`80%`) or a size (`8G`, `500M`).

    Raises:
        UserError: it is neither, or less than a byte.
    """
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    with suppress(ValueError):
        share = number.endswith("%")
        value = float(number.rstrip("%KMGT")) * (
            free_memory(device) / 100 if share else _UNITS[number.lstrip("0123456789.")]
        )
        if value >= 1 and not (share and float(number[:-1]) > 100):
            return int(value)
    raise UserError(f"--memory {text}: write a share of what is free, such as 80%, or a size, such as 8G")


@dataclass
class Peak:
    """What a piece of work took at most beyond what there was before, in bytes."""

    bytes: int = 0


@contextmanager
def watch_peak(device: str) -> Iterator[Peak]:
    """Measure the memory of what is done inside; on a CPU as the system counts it, which is coarse."""
    peak = Peak()
    if device == "cuda":
        import torch

        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        yield peak
        peak.bytes = torch.cuda.max_memory_allocated() - before
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # so that the peak counts from now
    before = _resident("VmRSS")
    yield peak
    peak.bytes = max(0, _resident("VmHWM") - before)


def _resident(field: str) -> int:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory is short."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(word in str(error).lower() for word in words)
