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
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from bench import __version__
from bench.config.run_config import Precision
from bench.errors import first_line
from bench.machine import cpu_name
from bench.output import Answer
from bench.process import WAIT_POLICY
from bench.results.render import shown
from bench.results.table import Column, Table

if TYPE_CHECKING:
    from tasks import TaskSpec

LIBRARIES = (
    "torch", "torchvision", "lightning", "timm", "torchmetrics", "transformers", "optuna", "pyarrow", "duckdb",
    "altair", "distributed",
)  # fmt: skip
COLUMNS = (Column("level", least=4), Column("subject", least=13), Column("text", wraps=True))
LITTLE_DISK, LEAST_DISK = 2 * 2**30, 100 * 2**20
VOLTA_FIX = 'for a V100 pip install "torch==2.10.0" "torchvision==0.25.0" (the last wheels with code for it)'
DRIVER = Path("/proc/driver/nvidia/gpus")


class Diagnosis(NamedTuple):
    """What was examined, and whether it works: a `FAIL` says how to mend it, a `note` prevents nothing."""

    level: Literal["ok", "note", "FAIL"]
    subject: str
    text: str


def doctor(data: Path, store: Path, *, named: bool = False) -> Answer:
    """A line for each diagnosis; exit code 1 if something will not work.

    Args:
        data: folder of data sets.
        store: folder of runs.
        named: whether the user named the folder of data, so that it must exist.
    """
    diagnoses, failed = list[Diagnosis](), False
    sections: dict[str, Callable[[], Iterable[Diagnosis]]] = {
        "software": software_diagnoses,
        "devices": device_diagnoses,
        "data": lambda: dataset_diagnoses(data, named),
        "disk": lambda: disk_diagnoses(store),
        "store": lambda: store_diagnoses(store),
    }
    for subject, section in sections.items():
        try:
            diagnoses += section()
        except Exception as error:
            advice = "fix the failures above first" if failed else "please report this"
            if isinstance(error, OSError) and error.filename:
                advice = "permit it, or name another folder with --data or --store"
            diagnoses.append(Diagnosis("FAIL", subject, f"check failed ({first_line(error)}); {advice}"))
        failed = any(item.level == "FAIL" for item in diagnoses)
    count = sum(item.level == "FAIL" for item in diagnoses)
    end = f"{count} FAIL: fix them as the lines say" if failed else "everything found here works"
    lines = [*shown(Table.of(COLUMNS, diagnoses)), "", end]
    return Answer({"ok": not failed, "diagnoses": [item._asdict() for item in diagnoses]}, lines, int(failed))


# -- software -----------------------------------------------------------------------------------------------------


def software_diagnoses(load: Callable[[str], object] = importlib.import_module) -> Iterator[Diagnosis]:
    """Versions of Python, the suite and its libraries, up to the first that cannot be imported."""
    yield Diagnosis("ok", "python", platform.python_version())
    yield Diagnosis("ok", "suite", __version__)
    for name in LIBRARIES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load(name)
            yield Diagnosis("ok", name, version(name))
        except Exception as error:  # a wrong binary may also raise OSError or RuntimeError
            fix = f"pip install --force-reinstall {'torch ' * (name == 'torchvision')}{name}"
            yield Diagnosis("FAIL", name, f"cannot be imported ({first_line(error)}); {fix}")
            return


# -- devices ------------------------------------------------------------------------------------------------------


def device_diagnoses() -> Iterator[Diagnosis]:
    """Processor and GPUs: their names, and which precisions work on them."""
    import torch

    threads = f"{torch.get_num_threads()} torch threads, {WAIT_POLICY} {os.environ.get(WAIT_POLICY, 'unset')}"
    yield Diagnosis("ok", "cpu", f"{cpu_name() or platform.machine()}, {os.cpu_count()} cores, {threads}")
    yield from precision_diagnoses("cpu")
    with warnings.catch_warnings(record=True) as caught:  # torch gives its reason as a warning
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        gpus = [torch.cuda.get_device_properties(i) for i in range(count)]
    for i, gpu in enumerate(gpus):
        what = f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, compute capability {gpu.major}.{gpu.minor}"
        yield Diagnosis("ok", f"cuda:{i}", what)
        yield from precision_diagnoses(f"cuda:{i}", emulates_bf16=gpu.major < 8)
    if not gpus:
        yield no_gpu_diagnosis(DRIVER.exists(), torch.version.cuda, " ".join(str(w.message) for w in caught))
    if torch.backends.mps.is_available():
        yield from precision_diagnoses("mps")


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
    fix = "install a torch for the CUDA version that nvidia-smi shows, or use --device cpu"
    return Diagnosis("FAIL", "gpu", f"an NVIDIA GPU is there, but {why} {reason[:200]}; {fix}; {VOLTA_FIX}")


def precision_diagnoses(device: str, *, emulates_bf16: bool = False) -> Iterator[Diagnosis]:
    """Which precisions work on a device such as `cuda:0`, by training a step in each."""
    errors = {precision: try_precision(device, precision) for precision in get_args(Precision)}
    works = [precision for precision, error in errors.items() if error is None]
    if works:
        yield Diagnosis("ok", device, f"--precision that works: {', '.join(works)}")
    if emulates_bf16 and "bf16-mixed" in works:
        yield Diagnosis("note", device, "torch emulates bf16 slowly here: use 16-mixed or 32-true")
    fix = f"use {' or '.join(works)}" if works else f"use --device cpu, or {VOLTA_FIX}"
    for precision, error in errors.items():
        if error is not None:
            level = "FAIL" if precision == "32-true" else "note"
            yield Diagnosis(level, device, f"--precision {precision} does not work ({error}); {fix}")


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
        return None if math.isfinite(loss.item() + layer.weight.sum().item()) else "the result is not finite"
    except Exception as error:
        return first_line(error)


# -- data and store -----------------------------------------------------------------------------------------------


def dataset_diagnoses(data: Path, named: bool) -> Iterator[Diagnosis]:
    """Which datasets exist, for all tasks whose data are files."""
    from bench.commands.data import has_files
    from tasks import TASKS

    if named and not data.is_dir():
        yield Diagnosis("FAIL", "data", f"--data {data}: there is no such folder")
    for spec in filter(has_files, TASKS.values()):
        yield data_diagnosis(spec, data)


def data_diagnosis(spec: "TaskSpec", data: Path) -> Diagnosis:
    """Whether the files of a task exist, can be read, and are complete and undamaged."""
    from bench.commands.data import data_set
    from tasks.core.files import DataError

    try:
        files = data_set(spec, data, {})
    except DataError as error:
        return Diagnosis("FAIL", spec.name, str(error))
    except OSError as error:
        where = f"cannot read {error.filename or data}: {error.strerror}"
        return Diagnosis("FAIL", spec.name, f"{where}; permit it, or name another folder with --data DIR")
    names: dict[str, list[str]] = {}
    for file in files.files:
        names.setdefault(file.state.partition(" ")[0], []).append(file.path.name)
    if damaged := names.get("damaged"):
        fix = f"delete, then copy again{', or let the next run fetch' * files.can_be_fetched}"
        return Diagnosis("FAIL", spec.name, f"in {files.folder}: damaged {', '.join(damaged)}; {fix}")
    if missing := names.get("missing"):
        what = ", ".join(missing) if files.text or len(missing) < len(files.files) else "its files"
        package = " and the package datasets" * files.text
        fetch = f"the first use fetches them over the network{package}; else " * files.can_be_fetched
        return Diagnosis("note", spec.name, f"{files.folder} lacks {what}; {fetch}copy them there, or give --data DIR")
    parts = [f"{file.path.name} is {file.state}" for file in files.files if file.state.startswith("part")]
    if texts := [*filter(None, [files.stand_in]), *parts]:
        return Diagnosis("note", spec.name, f"in {files.folder}: {'; '.join(texts)}")
    return Diagnosis("ok", spec.name, f"complete in {files.folder}")


def disk_diagnoses(store: Path) -> Iterator[Diagnosis]:
    """Free space on the store's disk."""
    place = _existing(store)
    free = shutil.disk_usage(place).free
    level: Literal["ok", "note", "FAIL"] = "FAIL" if free < LEAST_DISK else "note" if free < LITTLE_DISK else "ok"
    advice = "; free some, or choose another disk with --store DIR" * (level != "ok")
    yield Diagnosis(level, "disk", f"{free / 2**30:.1f} GiB free at {place}{advice}")


def store_diagnoses(store: Path) -> Iterator[Diagnosis]:
    """Whether the store is writable and has locks, and its contents."""
    from bench.store.store import Store

    place = _existing(store)
    try:
        with tempfile.TemporaryFile(dir=place) as file:  # permissions say too little on network disks
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        fix = "permit it, or choose another with --store DIR or BENCH_STORE"
        text = f"cannot write to {store}, or lock files there: {place}: {error.strerror}; {fix}"
        yield Diagnosis("FAIL", "store", text)
    if not store.is_dir():
        yield Diagnosis("note", "store", f"{store} does not exist yet; the first run creates it")
        return
    contents = Store(store).contents()
    counts = Counter(blocks[0].runs[run_id].status for run_id, blocks in contents.blocks.items())
    by_status = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
    yield Diagnosis("ok", "store", f"{store}, runs: {by_status or 'none yet'}")
    fix = "copy it again from its source, or delete it and train again"
    yield from (Diagnosis("FAIL", "store", f"damaged: {fault}; {fix}") for fault in contents.damaged)


def _existing(path: Path) -> Path:
    """The path itself or its nearest parent that exists."""
    path = path.absolute()
    return next((place for place in (path, *path.parents) if place.exists()), path)
