"""Processor and GPUs for `bench doctor`: whether this torch can use them, and in which precisions."""

import math
import os
import platform
import re
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import get_args

from bench.commands.diagnosis import Diagnosis
from bench.errors import first_line
from bench.process import WAIT_POLICY

VOLTA_FIX = 'pip install "torch==2.10.0" "torchvision==0.25.0" (the last wheels with code for a V100)'
DRIVER = Path("/proc/driver/nvidia/gpus")


def device_diagnoses() -> list[Diagnosis]:
    """Processor and GPUs: their names, whether this torch has code for them, and which precisions work on them."""
    import torch

    from bench.machine import cpu_name

    name = cpu_name() or platform.machine()
    threads = f"{torch.get_num_threads()} torch threads, OMP_WAIT_POLICY {os.environ.get(WAIT_POLICY, 'unset')}"
    found = [Diagnosis("ok", "cpu", f"{name}, {os.cpu_count()} cores, {threads}")]
    found += precision_diagnoses("cpu")
    with warnings.catch_warnings(record=True) as caught:  # torch gives its reason as a warning
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        reason = str(caught[0].message).splitlines()[0] if caught else ""
        found += unused_gpu_diagnoses(
            visible_gpus(), torch.version.cuda, os.environ.get("CUDA_VISIBLE_DEVICES"), reason
        )
    for i in range(torch.cuda.device_count() if available else 0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gpu = torch.cuda.get_device_properties(i)
        capability = (gpu.major, gpu.minor)
        diagnosis = gpu_diagnosis(
            f"cuda:{i}", gpu.name, gpu.total_memory, capability, torch.cuda.get_arch_list(), torch.__version__
        )
        found.append(diagnosis)
        if diagnosis.level != "FAIL":
            found += precision_diagnoses(f"cuda:{i}", None if torch.version.hip else gpu_halves(capability))
    if torch.backends.mps.is_available():
        found += [Diagnosis("ok", "mps", "Apple GPU"), *precision_diagnoses("mps")]
    return found


def gpu_diagnosis(
    device: str, name: str, memory: int, capability: tuple[int, int], arch_list: Sequence[str], torch_version: str
) -> Diagnosis:
    """Whether this torch has code for a GPU.

    Args:
        device: such as `cuda:0`.
        name: of the GPU.
        memory: its bytes.
        capability: its compute capability.
        arch_list: what torch was built for: `sm_XY` is machine code, `compute_XY` is PTX.
        torch_version: named in the message.
    """
    what = f"{name}, {memory / 2**30:.0f} GiB, compute capability {capability[0]}.{capability[1]}"
    if any(arch.startswith("gfx") for arch in arch_list):
        return Diagnosis("ok", device, f"{what} (ROCm)")
    wanted = 10 * capability[0] + capability[1]
    matches = [m for m in (re.fullmatch(r"(sm|compute)_(\d+)([af]?)", arch) for arch in arch_list) if m]
    built = [(int(number), kind, suffix) for kind, number, suffix in (m.groups() for m in matches)]
    for number, kind, suffix in sorted(built, reverse=True):
        # Machine code runs on later minor versions; PTX compiles for all later versions; `a` code runs nowhere else.
        same_major = number // 10 == capability[0]
        if number == wanted or (
            number < wanted and suffix != "a" and (same_major or (kind == "compute" and not suffix))
        ):
            return Diagnosis("ok", device, f"{what}; torch {torch_version} has code for it ({kind}_{number}{suffix})")
    if wanted == 70:
        fix = VOLTA_FIX
    elif wanted > max((number for number, _, _ in built), default=0):
        fix = "pip install --upgrade torch torchvision"
    else:
        fix = f"install a torch that was built for sm_{wanted}"
    why = f"torch {torch_version} has no code for sm_{wanted} (it has {', '.join(arch_list) or 'none'})"
    return Diagnosis("FAIL", device, f"{what}; {why}; {fix}, or use --device cpu")


def unused_gpu_diagnoses(
    gpus: Sequence[str], cuda_build: str | None, hidden: str | None, reason: str
) -> list[Diagnosis]:
    """The report if torch finds no CUDA device.

    Args:
        gpus: names of the NVIDIA GPUs that the driver shows.
        cuda_build: the CUDA version that torch was built with, or None.
        hidden: value of CUDA_VISIBLE_DEVICES.
        reason: torch's warning, or empty.
    """
    if not gpus:
        return [Diagnosis("note", "gpu", "no NVIDIA GPU found: runs use the CPU")]
    names = ", ".join(gpus)
    if hidden is not None and hidden.strip() in ("", "-1"):
        return [Diagnosis("note", "gpu", f"{names}: hidden by CUDA_VISIBLE_DEVICES={hidden!r}, so runs use the CPU")]
    if cuda_build is None:
        why = "this torch was built without CUDA"
        fix = "install CUDA builds of torch and torchvision (see pytorch.org/get-started)"
    else:
        why = reason or f"torch, built with CUDA {cuda_build}, cannot use it"
        fix = (
            f"update the NVIDIA driver to one for CUDA {cuda_build},"
            " or install a torch for the CUDA that nvidia-smi shows"
        )
    if "V100" in names and not (cuda_build or "").startswith(("11.", "12.")):  # CUDA 13 has no code for a V100
        fix = VOLTA_FIX
    return [Diagnosis("FAIL", "gpu", f"{names} found, but {why.rstrip('.')}; {fix}, or use --device cpu")]


def visible_gpus() -> list[str]:
    """Names of the GPUs that the NVIDIA driver shows, whether or not torch can use them."""
    try:
        texts = [path.read_text() for path in sorted(DRIVER.glob("*/information"))]
    except OSError:
        return []
    return [name.strip() for text in texts for name in re.findall(r"^Model:(.*)", text, re.MULTILINE)]


def gpu_halves(capability: tuple[int, int]) -> list[str]:
    """Half precisions for which an NVIDIA GPU of a compute capability has tensor cores; torch emulates bf16 elsewhere.

    Source: CUDA C++ Programming Guide, "Compute Capabilities".
    """
    since = {"bf16-mixed": (8, 0), "16-mixed": (7, 0)}
    return [precision for precision, first in since.items() if capability >= first]


def precision_diagnoses(
    device: str, native: Collection[str] | None = None, *, attempt: Callable[[str, str], str | None] | None = None
) -> list[Diagnosis]:
    """Which precisions work on a device, by trying each.

    Args:
        device: such as `cuda:0`.
        native: half precisions that it supports in hardware; None if unknown.
        attempt: trains a step on a device in a precision and returns the error, or None.
    """
    from bench.config.run_config import Precision

    errors = {precision: (attempt or try_precision)(device, precision) for precision in get_args(Precision)}
    works = [precision for precision, error in errors.items() if error is None]
    own = [precision for precision in works if native is not None and precision in native]
    halves = "" if native is None else f"; half precision in hardware: {', '.join(own) or 'none'}"
    found = [Diagnosis("ok", device, f"--precision that works: {', '.join(works)}{halves}")] if works else []
    if device.startswith("cuda") and "bf16-mixed" in works and native is not None and "bf16-mixed" not in native:
        found.append(
            Diagnosis("note", device, "no bf16 in hardware, torch emulates it slowly: use 16-mixed or 32-true")
        )
    for precision, error in errors.items():
        if error is not None:
            level = "FAIL" if precision == "32-true" else "note"
            fix = f"use {' or '.join(works) or 'another --device'}"
            found.append(Diagnosis(level, device, f"--precision {precision} does not work ({error}); {fix}"))
    return found


def try_precision(device: str, precision: str) -> str | None:
    """Train a step of attention on a device in a precision; the error, or None."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    kind, half = device.partition(":")[0], {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)
    dtype = torch.float64 if precision == "64-true" else torch.float32
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            layer = torch.nn.Linear(16, 16, device=device, dtype=dtype)
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler(kind, enabled=precision == "16-mixed")
            with torch.autocast(kind, dtype=half, enabled=half is not None):
                x_BNTH = layer(torch.ones(2, 1, 4, 16, device=device, dtype=dtype))
                loss = scaled_dot_product_attention(x_BNTH, x_BNTH, x_BNTH).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return None if math.isfinite(loss.item() + layer.weight.sum().item()) else "the result is not finite"
    except Exception as error:
        return first_line(error)
