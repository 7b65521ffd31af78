"""`bench doctor`: what works on this machine, and how to fix the rest."""

import importlib
import platform
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bench.commands.diagnosis import Diagnosis
from bench.errors import first_line
from bench.grammar.parse import Args
from bench.output import reply
from bench.process import PACKAGES, ROOT
from bench.results.render import shown
from bench.results.table import Column, Table

if TYPE_CHECKING:
    from tasks import TaskSpec

SUITE = "attention-optimizer-bench"
MALICIOUS = {"lightning": ("2.6.2", "2.6.3")}
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
TRIED_LANES = 64
"""Lanes whose memory is measured: with this many, a block's fixed memory counts little. Ours."""
LITTLE_DISK, LEAST_DISK = 2 * 2**30, 100 * 2**20


def examine(data: Path, store: Path) -> Iterator[list[Diagnosis]]:
    """Check this machine, its data and its store, section by section."""
    from bench.commands.devices import device_diagnoses

    failed = False
    sections: list[tuple[str, Callable[[], list[Diagnosis]]]] = [
        ("versions", lambda: version_diagnoses((_installed(SUITE) and requires(SUITE)) or [], _installed)),
        ("names", lambda: name_diagnoses(Path.cwd(), sys.path)),
        ("imports", import_diagnoses),
        ("devices", device_diagnoses),
        ("lanes", lane_diagnoses),
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
        if any(f.level == "FAIL" and f.subject in MALICIOUS for f in found):
            break  # later sections would import it


def main(args: Args) -> int:
    """Print a line for each diagnosis, or one JSON object; 1 if something will not work, else 0."""
    every: list[Diagnosis] = []
    for found in examine(args.data, args.store):
        every += found
        if not args.json:
            lines = shown(Table.of(COLUMNS, ((each.level, each.subject, each.text) for each in found)))
            print("\n".join(lines), flush=True)
    failed = sum(each.level == "FAIL" for each in every)
    said = f"\n{failed} FAIL: fix them as the lines say" if failed else "\neverything found here works"
    reply(args, {"ok": not failed, "diagnoses": [vars(each) for each in every]}, [said])
    return int(failed > 0)


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
        elif there in MALICIOUS.get(name, ()):
            more = "and replace the passwords and tokens that it could read (nothing else is checked now)"
            found.append(Diagnosis("FAIL", name, f"{there} is a malicious release; do not import it: {fix}, {more}"))
        elif not requirement.specifier.contains(there, prereleases=True):
            found.append(
                Diagnosis("FAIL", name, f"{there} is installed, the suite needs {requirement.specifier}; {fix}")
            )
        else:
            found.append(Diagnosis("ok", name, there))
    return found


def name_diagnoses(folder: Path, path: Sequence[str]) -> list[Diagnosis]:
    """Modules with the name of one of the suite's packages. `bench` ignores them, but Python may not."""
    found: list[Diagnosis] = []
    for name in PACKAGES:
        where = dict.fromkeys(_origin(PathFinder.find_spec(name, list(places))) for places in ([str(folder)], path))
        for other in where:
            if other is None or other.is_relative_to(ROOT / name):
                continue
            start = "start `bench` or `python -P -m bench`" if name == "bench" else "`bench` ignores it"
            file = other / "FILE.py" if other.is_dir() else other
            file = file.relative_to(folder) if file.is_relative_to(folder) else file
            code = f"code in it is named as a file: --{'task' if name == 'tasks' else 'opt'} {file}:CLASS"
            found.append(
                Diagnosis("note", name, f"{other} has the same name as a package of the suite; {start}; {code}")
            )
    return found or [Diagnosis("ok", "names", f"no module shadows {', '.join(PACKAGES)}")]


def _origin(spec: ModuleSpec | None) -> Path | None:
    """The file of a module, or the folder of a package."""
    if spec is None:
        return None
    if spec.submodule_search_locations is not None:
        return next((Path(each).absolute() for each in spec.submodule_search_locations), None)
    return Path(spec.origin).absolute() if spec.origin else None


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


# -- what fits ----------------------------------------------------------------------------------------------------


def lane_diagnoses() -> list[Diagnosis]:
    """How many runs fit into the memory of the device of `--device auto`, if they train as lanes."""
    import torch

    from bench.grammar.values import Memory
    from bench.train.memory import bytes_of

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [lanes_diagnosis(device, bytes_of(Memory(), device), Memory().share, lane_bytes(device))]


def lane_bytes(device: str) -> dict[str, int]:
    """Bytes of a lane by task, for tasks that need no files, with adamw at their defaults, as sweeps measure them."""
    from bench.config.run_config import resolve
    from bench.execute.choice import bytes_of_lane
    from tasks import TASKS

    found = {}
    for spec in TASKS.values():
        if spec.lanes and not spec.files:
            words = {"task": spec.name, "opt": "adamw", "device": device}
            found[spec.name] = bytes_of_lane(
                [[resolve(words | {"opt.lr": 1e-6 * (i + 1)}) for i in range(TRIED_LANES)]]
            )
    return found


def lanes_diagnosis(device: str, budget: int, share: float | None, each: Mapping[str, int]) -> Diagnosis:
    """How many lanes of each task fit into a budget of bytes, which is a share of the free memory."""
    counts = {task: budget // max(1, size) for task, size in each.items()}
    # Two digits, like the measurement behind them.
    fit = ", ".join(f"{task} {round(count, 2 - len(str(count))):,}" for task, count in counts.items())
    part = "" if share is None else f", {share:.0%} of what is free"
    text = f"runs that fit into {budget / 2**30:.3g} GiB{part}, as lanes: about {fit}"
    if short := [task for task, count in counts.items() if count < 1]:
        return Diagnosis("note", device, f"{text}; memory is short for {', '.join(short)}: free some")
    return Diagnosis("ok", device, text)


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
    """Whether the store is writable, and its contents."""
    from bench.store.store import Store

    place = _nearest(store)
    found: list[Diagnosis] = []
    try:
        with tempfile.TemporaryFile(dir=place):  # permissions are not enough on network or read-only file systems
            pass
    except OSError as error:
        fix = "permit it, or choose another with --store DIR or BENCH_STORE"
        found.append(Diagnosis("FAIL", "store", f"cannot write to {store}: {place}: {error.strerror}; {fix}"))
    if not store.is_dir():
        return found or [Diagnosis("note", "store", f"{store} does not exist yet; the first run creates it")]
    kept = Store(store)
    contents = kept.contents()
    counts = Counter(block.runs[run_id].status for run_id, block in contents.runs.items())
    by_status = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
    found.append(Diagnosis("ok", "store", f"{store}, runs: {by_status or 'none yet'}"))
    fix = "copy it again from its source, or delete it and train again"
    found += [Diagnosis("FAIL", "store", f"damaged: {each}; {fix}") for each in contents.damaged]
    return found


def _nearest(path: Path) -> Path:
    """The path itself or its nearest parent that exists."""
    path = path.absolute()
    return next((place for place in (path, *path.parents) if place.exists()), path)
