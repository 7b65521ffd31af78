"""Running out of memory."""

import pytest
import torch

from bench.train.memory import ran_out


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("unable to mmap 8 bytes from file: Cannot allocate memory (12)"),
    ],
    ids=lambda error: str(error)[:20],
)
def test_memory_is_short(error):
    assert ran_out(error)
