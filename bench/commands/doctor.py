"""`bench doctor`: what works on this machine, and how to fix the rest."""

import fcntl
import importlib
import math
import os
import platform
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from bench.config.run_config import Precision
from bench.errors import first_line
from bench.machine import cpu_name
from bench.output import Answer
from bench.process import WAIT_POLICY
from bench.results.render import shown
from bench.results.table import Column, Table

if TYPE_CHECKING:
    from tasks import TaskSpec

SUITE = "attention-optimizer-bench"
MODULES = (
    "torch",
    "torchvision",
    "lightning.pytorch",
    "timm",
    "torchmetrics",
    "transformers",
    "optuna",
    "pyarrow.parquet",
)
COLUMNS = (Column("level", least=4), Column("subject", least=13), Column("text", wraps=True))
LITTLE_DISK, LEAST_DISK = 2 * 2**30, 100 * 2**20


VOLTA_FIX = 'for a V100 pip install "torch==2.10.0" "torchvision==0.25.0" (the last wheels with code for it)'
DRIVER = Path("/proc/driver/nvidia/gpus")


class Diagnosis(NamedTuple):
    """What was examined, and whether it works: a `FAIL` says how to mend it, a `note` prevents nothing."""

    level: Literal["ok", "note", "FAIL"]
    subject: str
    text: str


def examine(data: Path, store: Path) -> Iterator[list[Diagnosis]]:
    """Check this machine, its data and its store, section by section."""
    failed = False
    sections: list[tuple[str, Callable[[], list[Diagnosis]]]] = [
        ("versions", lambda: version_diagnoses((_installed(SUITE) and requires(SUITE)) or [], _installed)),
        ("imports", import_diagnoses),
        ("devices", device_diagnoses),
        ("data", lambda: dataset_diagnoses(data)),
        ("disk", lambda: disk_diagnoses(store)),
        ("store", lambda: store_diagnoses(store)),
    ]
    for subject, section in sections:
        try:
            found = section()
        except Exception as error:
            advice = "fix the failures above first" if failed else "please report this"
            if isinstance(error, OSError) and error.filename:
                advice = "permit it, or name another folder with --data or --store"
            found = [Diagnosis("FAIL", subject, f"check failed ({first_line(error)}); {advice}")]
        yield found
        failed = failed or any(each.level == "FAIL" for each in found)


def doctor(data: Path, store: Path) -> Answer:
    """A line for each diagnosis; exit code 1 if something will not work."""
    diagnoses = [each for several in examine(data, store) for each in several]
    failed = sum(each.level == "FAIL" for each in diagnoses)
    lines = shown(Table.of(COLUMNS, ((each.level, each.subject, each.text) for each in diagnoses)))
    end = f"{failed} FAIL: fix them as the lines say" if failed else "everything found here works"
    return Answer(
        {"ok": not failed, "diagnoses": [each._asdict() for each in diagnoses]}, [*lines, "", end], int(failed > 0)
    )


# -- software -----------------------------------------------------------------------------------------------------


def version_diagnoses(requirements: Iterable[str], installed: Callable[[str], str | None]) -> list[Diagnosis]:
    """Versions of Python, suite and libraries, against what the suite requires.

    Args:
        requirements: as in package metadata (`lightning<2.7,>=2.6.4`).
        installed: version of a package, or None.
    """
    from packaging.requirements import Requirement

    suite = installed(SUITE)
    found = [
        Diagnosis("ok", "python", platform.python_version()),
        Diagnosis("ok", "suite", suite)
        if suite
        else Diagnosis("FAIL", "suite", "not installed; pip install -e . in its folder"),
    ]
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        name, there = requirement.name, installed(requirement.name)
        fix = f'pip install "{name}{requirement.specifier}"'
        if there is None:
            found.append(Diagnosis("FAIL", name, f"not installed; {fix}"))
        elif not requirement.specifier.contains(there, prereleases=True):
            found.append(
                Diagnosis("FAIL", name, f"{there} is installed, the suite needs {requirement.specifier}; {fix}")
            )
        else:
            found.append(Diagnosis("ok", name, there))
    return found


def import_diagnoses(load: Callable[[str], object] = importlib.import_module) -> list[Diagnosis]:
    """Whether the libraries can be imported, up to the first that cannot."""
    for name in MODULES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load(name)
        except Exception as error:  # a wrong binary may also raise OSError or RuntimeError
            package = name.partition(".")[0]
            fix = f"pip install --force-reinstall {package}"
            if package in ("torch", "torchvision"):
                fix = (
                    "their versions must match: pip install --force-reinstall"
                    f' "torch=={_installed("torch")}" torchvision'
                )
            return [Diagnosis("FAIL", "imports", f"{name} cannot be imported ({first_line(error)}); {fix}")]
    return [Diagnosis("ok", "imports", f"{', '.join(MODULES)} can be imported")]


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


# -- devices ------------------------------------------------------------------------------------------------------


def device_diagnoses() -> list[Diagnosis]:
    """Processor and GPUs: their names, and which precisions work on them."""
    import torch

    name = cpu_name() or platform.machine()
    threads = f"{torch.get_num_threads()} torch threads, {WAIT_POLICY} {os.environ.get(WAIT_POLICY, 'unset')}"
    found = [Diagnosis("ok", "cpu", f"{name}, {os.cpu_count()} cores, {threads}"), *precision_diagnoses("cpu")]
    with warnings.catch_warnings(record=True) as caught:  # torch gives its reason as a warning
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        gpus = [torch.cuda.get_device_properties(i) for i in range(count)]
    for i, gpu in enumerate(gpus):
        what = f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, compute capability {gpu.major}.{gpu.minor}"
        found += [Diagnosis("ok", f"cuda:{i}", what), *precision_diagnoses(f"cuda:{i}", (gpu.major, gpu.minor))]
    if not gpus:
        found.append(no_gpu_diagnosis(DRIVER.exists(), torch.version.cuda, " ".join(str(w.message) for w in caught)))
    if torch.backends.mps.is_available():
        found += precision_diagnoses("mps")
    return found


def no_gpu_diagnosis(driver: bool, cuda_build: str | None, reason: str) -> Diagnosis:
    """The report if torch finds no CUDA device.

    Args:
        driver: whether there is an NVIDIA driver.
        cuda_build: the CUDA version that torch was built with, or None.
        reason: torch's warning, or empty.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not driver or (hidden is not None and hidden.strip() in ("", "-1")):
        why = "no NVIDIA GPU found" if not driver else f"GPUs are hidden by CUDA_VISIBLE_DEVICES={hidden!r}"
        return Diagnosis("note", "gpu", f"{why}: runs use the CPU")
    why = "this torch was built without CUDA" if cuda_build is None else f"torch for CUDA {cuda_build} cannot use it"
    fix = (
        "install a torch for the CUDA version that nvidia-smi shows (see pytorch.org/get-started), or use --device cpu"
    )
    return Diagnosis("FAIL", "gpu", f"an NVIDIA GPU is there, but {why} {reason[:200]}; {fix}; {VOLTA_FIX}")


def precision_diagnoses(
    device: str,
    capability: tuple[int, int] | None = None,
    attempt: Callable[[str, str], str | None] | None = None,
) -> list[Diagnosis]:
    """Which precisions work on a device, by training a step in each.

    Args:
        device: such as `cuda:0`.
        capability: compute capability of an NVIDIA GPU; before 8.0 torch emulates bf16.
        attempt: trains a step on a device in a precision and returns the error, or None.
    """
    errors = {precision: (attempt or try_precision)(device, precision) for precision in get_args(Precision)}
    works = [precision for precision, error in errors.items() if error is None]
    found = [Diagnosis("ok", device, f"--precision that works: {', '.join(works)}")] if works else []
    if capability is not None and capability < (8, 0) and "bf16-mixed" in works:
        found.append(Diagnosis("note", device, "torch emulates bf16 slowly here: use 16-mixed or 32-true"))
    for precision, error in errors.items():
        if error is not None:
            level = "FAIL" if precision == "32-true" else "note"
            fix = f"use {' or '.join(works)}" if works else f"use --device cpu, or {VOLTA_FIX}"
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


# -- data and store -----------------------------------------------------------------------------------------------


def dataset_diagnoses(data: Path) -> list[Diagnosis]:
    """Which datasets exist, for all tasks whose data are files."""
    from bench.commands.data import has_files
    from tasks import TASKS

    return [found for spec in TASKS.values() if has_files(spec) for found in data_diagnoses(spec, data)]


def data_diagnoses(spec: "TaskSpec", data: Path) -> list[Diagnosis]:
    """Whether the files of a task exist, can be read, and are complete and undamaged."""
    from bench.commands.data import can_be_fetched, is_text, states
    from tasks.core.files import DataError

    try:
        files = states(spec, data)
    except DataError as error:
        return [Diagnosis("FAIL", spec.name, str(error))]
    except OSError as error:
        where = f"cannot read {error.filename or data}: {error.strerror}"
        return [Diagnosis("FAIL", spec.name, f"{where}; permit it, or name another folder with --data DIR")]
    folder, text = files[0].path.parent, is_text(spec)
    fetched = can_be_fetched(spec, data)
    fix = "delete it, then copy it again" + ", or let the next run fetch it" * fetched
    found = [
        Diagnosis("FAIL", spec.name, f"damaged file {file.path} ({file.size}); {fix}")
        for file in files
        if file.state == "damaged"
    ]
    if missing := [file.path.name for file in files if file.state == "missing"]:
        what = ", ".join(missing) if text or len(missing) < len(files) else "its files"
        needs = "a network and the package datasets are" if text else "a network is"
        how = f"fetched on first use if {needs} available; else " * fetched
        how += "copy them there, or name their folder with --data DIR"
        found.append(Diagnosis("note", spec.name, f"{folder} lacks {what}; {how}"))
    parts = [f"{file.path.name} is {file.state}" for file in files if file.state.startswith("part")]
    stand_in = spec.data_cls.find(data).stand_in if text else None
    not_whole = "; ".join([*filter(None, [stand_in]), *parts])
    if not found and not_whole:
        found = [Diagnosis("note", spec.name, f"in {folder}: {not_whole}")]
    return found or [Diagnosis("ok", spec.name, f"complete in {folder}")]


def disk_diagnoses(store: Path) -> list[Diagnosis]:
    """Free space on the store's disk."""
    free = shutil.disk_usage(_nearest(store)).free
    level: Literal["ok", "note", "FAIL"] = "FAIL" if free < LEAST_DISK else "note" if free < LITTLE_DISK else "ok"
    advice = "" if level == "ok" else "; free some, or choose another disk with --store DIR"
    return [Diagnosis(level, "disk", f"{free / 2**30:.1f} GiB free at {_nearest(store)}{advice}")]


def store_diagnoses(store: Path) -> list[Diagnosis]:
    """Whether the store is writable and has locks, and its contents."""
    from bench.store.store import Store

    place = _nearest(store)
    found: list[Diagnosis] = []
    try:
        with tempfile.TemporaryFile(dir=place) as file:  # permissions say too little on network disks
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        fix = "permit it, or choose another with --store DIR or BENCH_STORE"
        found.append(
            Diagnosis(
                "FAIL", "store", f"cannot write to {store}, or lock files there: {place}: {error.strerror}; {fix}"
            )
        )
    if not store.is_dir():
        return found or [Diagnosis("note", "store", f"{store} does not exist yet; the first run creates it")]
    kept = Store(store)
    contents = kept.contents()
    counts = Counter(blocks[0].runs[run_id].status for run_id, blocks in contents.blocks.items())
    by_status = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
    found.append(Diagnosis("ok", "store", f"{store}, runs: {by_status or 'none yet'}"))
    fix = "copy it again from its source, or delete it and train again"
    found += [Diagnosis("FAIL", "store", f"damaged: {each}; {fix}") for each in contents.damaged]
    return found


def _nearest(path: Path) -> Path:
    """The path itself or its nearest parent that exists."""
    path = path.absolute()
    return next((place for place in (path, *path.parents) if place.exists()), path)
