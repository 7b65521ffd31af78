"""Memory of this machine's devices: free memory, peak use, and errors for lack of it."""

import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_GROUPS, _GROUP_OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def free_memory(device: str) -> int:
    """Free bytes on the device; on a CPU those that the system or a control group leaves to us."""
    if device == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info()
        return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024
    return max(0, min([free, *_left_by_groups()]))


def _left_by_groups() -> Iterator[int]:
    """Bytes that each control group of this process leaves to it; its file cache counts as free."""
    with suppress(OSError, StopIteration):
        line = next(line for line in _GROUP_OF_PROCESS.read_text().splitlines() if line.startswith("0::"))
        group = _GROUPS / line.removeprefix("0::").lstrip("/")
        for folder in [group, *group.parents][: len(group.parts) - len(_GROUPS.parts) + 1]:
            with suppress(OSError, ValueError, KeyError):  # `max` without a limit; a container does not see all groups
                cached = dict(row.split() for row in (folder / "memory.stat").read_text().splitlines())["inactive_file"]
                used = int((folder / "memory.current").read_text()) - int(cached)
                yield int((folder / "memory.max").read_text()) - used


def usable_memory(device: str) -> int:
    """Bytes of a device that lanes may take together: 80 % of the free ones, at least one."""
    return max(1, int(0.8 * free_memory(device)))


@dataclass
class Peak:
    """Peak memory of a piece of work beyond the memory before it, in bytes."""

    bytes: int = 0


@contextmanager
def watch_peak(device: str) -> Iterator[Peak]:
    """Measure peak memory within the context; on a CPU by the system's count, which is coarse."""
    peak = Peak()
    if device == "cuda":
        import torch

        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        yield peak
        peak.bytes = torch.cuda.max_memory_allocated() - before
        return
    give_back()  # else memory that was kept would be reused without being counted
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _resident("VmRSS")
    yield peak
    peak.bytes = max(0, _resident("VmHWM") - before)


def _resident(field: str) -> int:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def ran_out(error: BaseException) -> bool:
    """Whether an error is for lack of memory."""
    words = ("out of memory", "allocate memory", "not enough memory", "alloc_failed")  # the last from cuBLAS and cuDNN
    return isinstance(error, MemoryError) or any(word in str(error).lower() for word in words)


def give_back() -> None:
    """Return memory that was freed and kept to the system: by torch on a GPU, or see `keep_freed_memory`."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Let the process keep the memory of temporaries (glibc): returning and reallocating it takes half of a step."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, 2**30)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
