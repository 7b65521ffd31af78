"""`bench doctor`: what works on this machine, and how to fix the rest."""

import fcntl
import importlib
import os
import platform
import tempfile
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple

from bench import __version__
from bench.commands.data import has_files, states
from bench.config.values import existing
from bench.errors import first_line
from bench.machine import cpu_name
from bench.output import Answer
from bench.process import WAIT_POLICY
from bench.results.render import shown
from bench.results.table import Column, Table
from bench.store.stores import Contents
from bench.text import counted, listed
from tasks import TASKS, TaskSpec
from tasks.core.files import DataError

LIBRARIES = (
    "torch", "torchvision", "lightning", "timm", "torchmetrics", "transformers", "optuna", "pyarrow", "duckdb",
    "altair", "distributed",
)  # fmt: skip
DRIVER = Path("/proc/driver/nvidia/gpus")
_FIX = "install a torch for the CUDA version of nvidia-smi (torch 2.10.0 is the last for a V100), or use --device cpu"


class Diagnosis(NamedTuple):
    """What was examined, and whether it works: a `FAIL` says how to mend it, a `note` prevents nothing."""

    level: Literal["ok", "note", "FAIL"]
    subject: str
    text: str


def doctor(data: Path, store: Path, *, named: bool = False) -> Answer:
    """A line for each diagnosis; exit code 1 if something will not work. A `named` folder of data must exist."""
    diagnoses = list[Diagnosis]()
    if named and not data.is_dir():
        diagnoses.append(Diagnosis("FAIL", "data", f"--data {data}: there is no such folder"))
    of_tasks = (data_diagnosis(spec, data) for spec in TASKS.values() if has_files(spec))
    for section in (software_diagnoses(), device_diagnoses(), of_tasks, store_diagnoses(store)):
        try:
            diagnoses += section
        except Exception as error:
            diagnoses.append(Diagnosis("FAIL", "doctor", f"check failed ({first_line(error)}); please report this"))
    works = all(diagnosis.level != "FAIL" for diagnosis in diagnoses)
    columns = (Column("level"), Column("subject"), Column("text", wraps=True))
    value = {"ok": works, "diagnoses": [diagnosis._asdict() for diagnosis in diagnoses]}
    return Answer(value, shown(Table.of(columns, diagnoses)), int(not works))


def software_diagnoses() -> Iterator[Diagnosis]:
    """Versions of Python, the suite and its libraries, up to the first that cannot be imported."""
    yield Diagnosis("ok", "python", platform.python_version())
    yield Diagnosis("ok", "suite", __version__)
    for name in LIBRARIES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(name)
            yield Diagnosis("ok", name, version(name))
        except Exception as error:  # a wrong binary may also raise OSError or RuntimeError
            fix = f"pip install --force-reinstall {'torch ' * (name == 'torchvision')}{name}"
            yield Diagnosis("FAIL", name, f"cannot be imported ({first_line(error)}); {fix}")
            return


def device_diagnoses() -> Iterator[Diagnosis]:
    """Processor and GPUs, whether torch can use them, and their half precisions."""
    import torch

    threads = f"torch threads {torch.get_num_threads()}, {WAIT_POLICY} {os.environ.get(WAIT_POLICY, 'unset')}"
    yield Diagnosis("ok", "cpu", f"{cpu_name() or platform.machine()}, {os.cpu_count()} cores, {threads}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not count and DRIVER.exists() and hidden not in ("", "-1"):
        yield Diagnosis("FAIL", "gpu", f"torch for CUDA {torch.version.cuda} cannot use the NVIDIA GPU here; {_FIX}")
    elif not count:
        yield Diagnosis("note", "gpu", f"none (CUDA_VISIBLE_DEVICES is {hidden or 'empty or unset'}): runs use the CPU")
    for i in range(count):
        gpu = torch.cuda.get_device_properties(i)
        what = f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, compute capability {gpu.major}.{gpu.minor}"
        half = "16-mixed, bf16-mixed" if gpu.major > 7 else "16-mixed; bf16 is emulated slowly"
        try:
            torch.ones(2, device=f"cuda:{i}").sum().item()
            yield Diagnosis("ok", f"cuda:{i}", f"{what}; half precision: {half}")
        except Exception as error:  # such as no code for this card
            yield Diagnosis("FAIL", f"cuda:{i}", f"{what}: it does not work ({first_line(error)}); {_FIX}")


def data_diagnosis(spec: TaskSpec, data: Path) -> Diagnosis:
    """Whether the files of a task exist, can be read, and are complete and undamaged."""
    try:
        files = states(spec, data)
    except DataError as error:
        return Diagnosis("FAIL", spec.name, f"{error}; permit it, or name another folder with --data DIR")
    folder = files[0].path.parent
    words = sorted({"incomplete" if " of " in file.state else file.state for file in files} - {"whole"})
    text = f"some files in {folder} are {listed(words)}; `bench data status --task {spec.name}` lists them"
    level = "FAIL" if "damaged" in words else "note"
    return Diagnosis(level, spec.name, text) if words else Diagnosis("ok", spec.name, f"complete in {folder}")


def store_diagnoses(store: Path) -> Iterator[Diagnosis]:
    """Whether the store is writable and has locks, and its contents."""
    place = existing(store)
    try:
        with tempfile.TemporaryFile(dir=place) as file:  # permissions say too little on network disks
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        text = f"cannot write to {store}, or lock files there: {place}: {error.strerror}"
        yield Diagnosis("FAIL", "store", f"{text}; permit it, or choose another with --store DIR or BENCH_STORE")
    contents = Contents([store])
    yield Diagnosis("ok", "store", f"{store}, {counted(len(contents.blocks), 'run')}")
    fix = "copy it again from its source, or delete it and train again"
    yield from (Diagnosis("FAIL", "store", f"damaged: {fault}; {fix}") for fault in contents.damaged)
