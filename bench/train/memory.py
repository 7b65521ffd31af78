"""Memory of this machine's devices: peaks, errors for lack of it, and what is kept and given back."""

import ctypes
import resource
import sys
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>


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


def peak_memory() -> dict[str, int]:
    """Peak resident bytes of this process, and peak bytes that torch had allocated on the GPU."""
    torch, unit = sys.modules["torch"], 1 if sys.platform == "darwin" else 1024
    peak = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    if torch.cuda.is_available():
        peak["gpu"] = torch.cuda.max_memory_allocated()
    return peak
