"""Memory: what is free, how much a computation needs, and running out of it."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import bench.train.memory
from bench.grammar.values import Memory, read_memory
from bench.train.memory import bytes_of, free_memory, keep_freed_memory, ran_out, watch_peak

MB = 2**20
NO_LIMIT = 2**63 - 4096  # as cgroups v1 writes it


# -- --memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8G", 8 * 2**30), ("8g", 8 * 2**30), ("8GB", 8 * 2**30), ("8GiB", 8 * 2**30), ("8 G", 8 * 2**30),
        (" 8G ", 8 * 2**30), ("500M", 500 * MB), ("0.5k", 512), (".5K", 512), ("2T", 2**41), ("1.5G", 3 * 2**29),
        ("4096", 4096), ("4096B", 4096), ("1", 1),
    ],
)  # fmt: skip
def test_memory_may_be_a_size(text, size):
    assert bytes_of(read_memory(text), "cpu") == size


@pytest.mark.parametrize(("text", "share"), [("80%", 0.8), ("100%", 1), ("0.5%", 0.005), ("50 %", 0.5)])
def test_memory_may_be_a_share_of_the_free_memory(monkeypatch, text, share):
    monkeypatch.setattr(bench.train.memory, "free_memory", {"cuda": 1000 * MB}.get)
    assert bytes_of(read_memory(text), "cuda") == int(share * 1000 * MB)


@pytest.mark.parametrize(
    "text",
    ["", "lots", "G", "%", "0", "0G", "0%", "-5%", "-8G", "+8G", "101%", "1e9", "inf", "nan", "nan%", "8X", "8KM",
     "80%%"]
    + ["8G%", "8%G", "8,5G", "1.2.3", "0.0001", "8Gi B", "8 9"],
)  # fmt: skip
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"^write a fraction of the free memory, such as 80%, or a size, such as 8G$"):
        read_memory(text)


# -- what is free ---------------------------------------------------------------------------------------------------


def test_some_memory_of_this_machine_is_free():
    pages = Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0] if sys.platform == "linux" else 2**40
    assert 10 * MB < free_memory("cpu") <= int(pages) * 1024


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Fake control groups as files: their limits by path, and the file that names this process's group."""

    def make(says: str, limits: dict[str, tuple[object, int, int]], names: tuple[str, str, str]) -> None:
        for path, values in limits.items():
            folder = tmp_path / "cgroup" / path
            folder.mkdir(parents=True, exist_ok=True)
            limit, used, cached = values
            (folder / names[0]).write_text(f"{limit}\n")
            (folder / names[1]).write_text(f"{used}\n")
            (folder / "memory.stat").write_text(f"anon 7\n{names[2]} {cached}\nslab 9\n")
        (tmp_path / "self").write_text(says)
        monkeypatch.setattr(bench.train.memory, "_GROUPS", tmp_path / "cgroup")
        monkeypatch.setattr(bench.train.memory, "_GROUP_OF_PROCESS", tmp_path / "self")

    return make


V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")


def test_a_container_has_its_limit_minus_the_used_memory(groups):
    groups("0::/\n", {"": (3 * MB, MB, 0)}, V2)
    assert free_memory("cpu") == 2 * MB


def test_files_in_the_cache_are_no_use(groups):
    groups("0::/\n", {"": (3 * MB, 3 * MB - 5, 2 * MB)}, V2)
    assert free_memory("cpu") == 2 * MB + 5


@pytest.mark.parametrize("job", [(MB, 0, 0), (4 * MB, 3 * MB, 0)])
def test_the_tightest_group_counts(groups, job):
    limits = {"slurm": (50 * MB, 10, 0), "slurm/job": job, "slurm/job/step": ("max", 5, 0)}
    groups("0::/slurm/job/step\n", limits, V2)
    assert free_memory("cpu") == MB


def test_groups_of_version_1(groups):
    limits = {"memory/docker/x": (3 * MB, 2 * MB, MB), "memory/docker": (NO_LIMIT, MB, 0), "memory": (NO_LIMIT, MB, 0)}
    groups("9:name=systemd:/\n4:cpu,memory:/docker/x\n1:cpu:/\n0::/\n", limits, V1)
    assert free_memory("cpu") == 2 * MB


def test_a_group_that_has_used_up_all_leaves_nothing(groups):
    groups("0::/\n", {"": (MB, 2 * MB, 0)}, V2)
    assert free_memory("cpu") == 0
    assert bytes_of(Memory(), "cpu") == 1  # it is an estimate: one lane may still fit


@pytest.mark.parametrize("says", ["0::/elsewhere/in/the/host\n", "3:cpu:/\n", ""])
def test_groups_without_a_limit_or_out_of_sight_change_nothing(groups, says):
    least = free_memory("cpu") // 2
    groups(says, {"": ("max", 5, 0), "cpu": (MB, 0, 0)}, V2)
    assert free_memory("cpu") > least


def test_without_control_groups_the_system_tells(tmp_path, monkeypatch):
    monkeypatch.setattr(bench.train.memory, "_GROUP_OF_PROCESS", tmp_path / "none")
    assert free_memory("cpu") > 10 * MB


# -- what is taken --------------------------------------------------------------------------------------------------


def work(megabytes: int) -> None:
    x = torch.ones(megabytes * MB // 4)
    y = x + 1
    del x, y


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can begin a peak anew in one process")
@pytest.mark.parametrize("megabytes", [64, 128])  # above the size that malloc may keep in its heap
def test_the_peak_is_the_largest_memory_in_use(megabytes):
    for _ in range(2):  # the second time nothing is initialised lazily, and the first time is discarded
        with watch_peak("cpu") as peak:
            work(megabytes)
            work(1)
    assert peak.bytes == pytest.approx(2 * megabytes * MB, rel=0.15)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can begin a peak anew in one process")
def test_memory_that_the_process_has_kept_counts_when_it_is_used_again():
    keep_freed_memory()
    peaks = []
    for _ in range(3):
        with watch_peak("cpu") as peak:
            work(64)
        peaks.append(peak.bytes)
    assert peaks == pytest.approx([128 * MB] * 3, rel=0.15)


def test_a_gpu_counts_what_torch_has_allocated(monkeypatch):
    facts = {"mem_get_info": (100, 999), "memory_reserved": 30, "memory_allocated": 10, "max_memory_allocated": 17}
    for name, value in facts.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    forgotten = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: forgotten.append(True))
    assert free_memory("cuda") == 120  # memory that torch reserves but does not use is free for us
    with watch_peak("cuda") as peak:
        pass
    assert (peak.bytes, forgotten) == (7, [True])


def test_work_that_fails_is_not_hidden():
    with pytest.raises(MemoryError), watch_peak("cpu"):
        raise MemoryError


def test_a_system_that_tells_nothing_still_gives_a_number(monkeypatch):
    def nothing(*args: object) -> str:
        raise OSError

    monkeypatch.setattr(Path, "read_text", nothing)
    monkeypatch.setattr(Path, "write_text", nothing)
    monkeypatch.setattr(bench.train.memory.ctypes, "CDLL", nothing)
    with watch_peak("cpu") as peak:
        work(1)
    assert peak.bytes >= 0
    assert free_memory("cpu") > 10 * MB
    keep_freed_memory()


# -- running out ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory: you tried to allocate"
        ),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        RuntimeError("CUDA error: out of memory\nCompile with"),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("unable to mmap 8 bytes from file: Cannot allocate memory (12)"),
    ],
    ids=lambda error: str(error)[:20],
)
def test_memory_is_short(error):
    assert ran_out(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ValueError(),
        OSError(28, "No space left"),
        KeyError("memory"),
    ],
)
def test_other_errors_are_others(error):
    assert not ran_out(error)


def test_an_allocation_that_fails_is_reported_as_short_memory():
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**50, dtype=torch.uint8)
    assert ran_out(error.value)
    with pytest.raises(MemoryError) as other:
        np.empty(2**50, dtype=np.uint8)
    assert ran_out(other.value)
