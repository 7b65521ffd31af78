"""Memory: what is free, how much a computation needs, and running out of it."""

import sys

import pytest
import torch

import bench.train.memory
from bench.train.memory import free_memory, keep_freed_memory, ran_out, usable_memory, watch_peak

MB = 2**20
NESTED = {"slurm": (50 * MB, 10, 0), "slurm/job": (4 * MB, 2 * MB, 0), "slurm/job/step": ("max", 5, 0)}


@pytest.mark.parametrize(
    ("group", "limits", "free"),
    [
        ("", {"": (3 * MB, MB, 0)}, 2 * MB),
        ("", {"": (3 * MB, 3 * MB - 5, 2 * MB)}, 2 * MB + 5),
        ("slurm/job/step", NESTED, 2 * MB),
        ("", {"": (MB, 2 * MB, 0)}, 0),
    ],
    ids=["a container", "files in the cache", "the tightest group", "used up"],
)
def test_a_control_group_bounds_the_free_memory(tmp_path, monkeypatch, group, limits, free):
    for path, (limit, used, cached) in limits.items():
        folder = tmp_path / "cgroup" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 7\ninactive_file {cached}\nslab 9\n")
    (tmp_path / "self").write_text(f"0::/{group}\n")
    monkeypatch.setattr(bench.train.memory, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(bench.train.memory, "_GROUP_OF_PROCESS", tmp_path / "self")
    assert free_memory("cpu") == free
    assert usable_memory("cpu") >= 1  # it is an estimate: one lane may still fit


def work(megabytes: int) -> None:
    x = torch.ones(megabytes * MB // 4)
    y = x + 1
    del x, y


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can begin a peak anew in one process")
def test_the_peak_counts_memory_that_the_process_kept():
    keep_freed_memory()
    peaks = []
    for _ in range(4):
        with watch_peak("cpu") as peak:
            work(64)
            work(1)
        peaks.append(peak.bytes)
    assert peaks[1:] == pytest.approx([128 * MB] * 3, rel=0.15)  # at first something is initialised lazily


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
