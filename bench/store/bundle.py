"""Bundles: results to share, written by `bench bundle` and repeated by `bench verify`.

    BUNDLE/runs/               a store with one block for each task; curves may be thinned
    BUNDLE/tuned/TASK/OPT.yaml settings found by the studies of these runs
    BUNDLE/sources/NAME.py     the source code of plug-ins and what they import, with digests in the records

A bundle is a folder, or a zip file with these names in it. It is data: its code is imported only on request.
"""

import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.errors import UserError
from bench.store.attempt import write_block
from bench.store.block import DONE, name_of
from bench.store.files import disk_errors, existing, replacing
from bench.store.load import Damaged
from bench.store.record import FILE_NAME, RunResult
from bench.store.reports import StudyRecord, write_record
from bench.store.stores import Stores
from bench.store.tables import Columns
from optimizers.plugins import bare, provenance, slug, sources

STORE, TUNED, SOURCES = "runs", "tuned", "sources"
_NAMES = re.compile(
    rf"{STORE}/(studies|checks|ladders)/{FILE_NAME}\.json"
    rf"|{STORE}/{FILE_NAME}/{DONE}/(runs\.jsonl|curve\.parquet|measurements\.parquet)"
    rf"|{TUNED}/{FILE_NAME}/{FILE_NAME}\.yaml|{SOURCES}/({FILE_NAME}/){{0,20}}{FILE_NAME}\.py",
    re.ASCII,
)
_MOST_BYTES = 8 * 2**30
"""Maximum bytes of an unpacked zip file. Ours."""
_NO_ZIP = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error, lzma.LZMAError)
"""What zipfile raises for archives that are damaged, encrypted, or compressed in a way that it does not know."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Bundled:
    """The written bundle.

    Attributes:
        runs, studies, tuned, sources: how many of each.
        damaged: runs that were left out, because their tables cannot be read.
    """

    runs: int
    studies: int
    tuned: int
    sources: int
    damaged: list[Damaged]


def bundle(
    stores: Stores,
    runs: Sequence[RunResult],
    out: Path,
    *,
    points: int | None,
    tuned: Sequence[Path],
    plugins: Sequence[str] = (),
) -> Bundled:
    """Write finished runs with everything needed to show and repeat them.

    Runs of trials keep only their last evaluation and no specimen; with `points`, a tenth of them and no measurements.

    Args:
        stores: the stores with the runs, their tables and studies.
        runs: the runs to write.
        out: a new folder, or a file that ends in .zip, which replaces an earlier bundle.
        points: rows kept of a curve, half evenly spaced and half log-spaced, and those of observations; all if None.
        tuned: folders with tuned settings; those of the written studies are copied.
        plugins: files of plug-ins, as `file.py:NAME`; those that the records name are copied.

    Raises:
        UserError: there are no finished runs, `out` exists or is inside a store, or a plug-in's source differs from the
            recorded one.
        RunFailed: the disk is full.
    """
    tables, damaged = dict[str, dict[str, Columns]](), list[Damaged]()
    for run in runs:
        try:
            tables[run.run_id] = stores.blocks[run.run_id].tables(run.run_id)
        except Damaged as error:
            damaged.append(error)
    runs = [run for run in runs if run.finished and run.run_id in tables]
    if not runs:
        raise UserError(f"no matching finished runs in {stores.shown}")
    if out.suffix in (".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z"):
        raise UserError(f"{out}: a bundle is a folder or a zip file; write {out.with_suffix('.zip').name}")
    zipped = out.suffix.lower() == ".zip"
    if out.exists() and not (zipped and _is_bundle(out)):
        raise UserError(f"{out} exists; name another {'file' if zipped else 'folder'}, or delete it")
    if inside := next((store.folder for store in stores.stores if store.folder in out.resolve().parents), None):
        raise UserError(f"{out} is inside the store {inside}; name a place outside")
    ids = {run.run_id for run in runs}
    studies = [study for study in stores.studies if study.run_ids & ids]
    trials = {run_id for study in studies for run_id in study.run_ids}
    code = _sources(runs, plugins)
    paths = (_tuned_of(study, tuned) for study in studies)
    settings = [path for path in paths if path is not None]
    ladders = [ladder for ladder in stores.ladders if ladder.run_ids & ids]
    with disk_errors(out), TemporaryDirectory(dir=existing(out.parent)) as temporary:
        folder = Path(temporary) / "bundle"
        for task in sorted({bare(run.config["task"]) for run in runs}):
            own = sorted((run for run in runs if bare(run.config["task"]) == task), key=lambda run: run.run_id)
            kept = [_kept(run, tables[run.run_id], points, trial=run.run_id in trials) for run in own]
            _add_block(folder / STORE, kept)
        for record in (*studies, *ladders):
            write_record(record.places(folder / STORE)[0], vars(record))
        copies = {folder / TUNED / path.parent.name / path.name: path for path in settings}
        copies |= {folder / SOURCES / to: path for to, path in code.items()}
        for to, path in copies.items():
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())
        out.parent.mkdir(parents=True, exist_ok=True)
        if zipped:
            with replacing(out) as packed:
                _zip(folder, packed)
        else:
            folder.rename(out)
    return Bundled(len(runs), len(studies), len(settings), len(code), damaged)


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """The folder of a bundle; a zip file is unpacked while the context lasts. A store counts as a bundle too.

    Raises:
        UserError: the path does not exist, or is a zip file with names that a bundle cannot have.
    """
    if path.is_dir():
        yield path
        return
    if not path.is_file():
        raise UserError(f"there is no bundle {path}; `bench bundle -o {path}` writes one")
    with TemporaryDirectory() as temporary:
        try:
            with zipfile.ZipFile(path) as packed:
                _unpack(packed, Path(temporary), str(path))
        except _NO_ZIP as error:
            raise UserError(f"{path} is not a bundle: {error}") from None
        yield Path(temporary)


def store_in(folder: Path) -> Path:
    """The store in a bundle's folder, or the folder itself if it is a store."""
    return folder / STORE if os.path.isdir(folder / STORE) else folder  # noqa: PTH112 - also where it cannot be read


def thinned(n: int, points: int) -> list[int]:
    """Indices of the at most `points` (>= 2) rows of n that a thinned table keeps.

    They are evenly and log-spaced, and include the first and the last.
    """
    import numpy as np

    if n <= points:
        return list(range(n))
    half = max(2, points // 2)
    even, log = np.linspace(0, n - 1, half), np.geomspace(1, n, half) - 1
    return np.unique(np.concatenate([even, log]).round().astype(int)).tolist()


def _kept(
    run: RunResult, tables: dict[str, Columns], points: int | None, *, trial: bool
) -> tuple[RunResult, dict[str, Columns]]:
    """What a bundle keeps of a run: its record without the folders of this machine, and its thinned tables."""
    import numpy as np

    changes: dict[str, Any] = {"config": run.config | {kind: bare(run.config[kind]) for kind in ("task", "opt")}}
    if trial:
        changes |= {"validations": run.validations[-1:], "specimen": None}
    if points is None:
        return replace(run, **changes), tables
    points = max(2, points // 10 if trial else points)
    thin = dict[str, Columns]()
    for name, table in tables.items():
        if trial and name == "measurements":
            continue
        # Boards relate observations to the curve at their steps.
        observed = name == "curve" and not trial and run.config["trainer"].get("observe")
        keep = np.isin(table["step"], tables.get("measurements", {}).get("step", ()) if observed else ())
        keep[thinned(len(keep), points)] = True
        thin[name] = {column: values[keep] for column, values in table.items()}
    return replace(run, **changes, thinned=run.thinned or run.steps > points), thin


def _tuned_of(study: StudyRecord, tuned: Sequence[Path]) -> Path | None:
    """The first file with a study's settings that names this study, if any."""
    from bench.config.tuned import read_tuned

    for folder in tuned:
        path = folder / slug(study.task) / f"{slug(study.opt)}.yaml"
        with suppress(UserError):
            if path.is_file() and read_tuned(path).study == study.name:
                return path
    return None


def _sources(runs: Sequence[RunResult], plugins: Sequence[str]) -> dict[Path, Path]:
    """The files of plug-ins that records name, with the files that they import, unchanged since the runs.

    They are keyed by their paths relative to the plug-in's folder.

    Raises:
        UserError: one has changed, or two have the same name.
    """
    wanted = {
        bare(run.config[kind]): run.versions.get(f"{kind}_package")
        for run in runs
        for kind in ("task", "opt")
        if ".py:" in run.config[kind]
    }
    found = {}
    for name in plugins:
        if bare(name) in wanted and (now := provenance(name)) != wanted[bare(name)]:
            raise UserError(f"{name} is {now}, but the runs used {wanted[bare(name)]}; name that file")
        if bare(name) in wanted:
            own, *helpers = sources(Path(name.rpartition(":")[0]))
            beside = {helper.relative_to(own.resolve().parent): helper for helper in helpers}
            for to, path in {Path(own.name): own, **beside}.items():
                if found.setdefault(to, path) != path:
                    raise UserError(f"{path} and {found[to]} have the same name; rename one of them")
    return found


def _add_block(store: Path, runs: Sequence[tuple[RunResult, dict[str, Columns]]]) -> None:
    """Write finished runs with their tables into a store, as one block."""
    done = store / name_of([run.run_id for run, _ in runs]) / DONE
    done.mkdir(parents=True)
    write_block(done, runs)


def _zip(folder: Path, out: Path) -> None:
    """Pack a folder reproducibly: equal content gives equal bytes."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            info = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(info, path.read_bytes())


def _is_bundle(path: Path) -> bool:
    """Whether a file is a zip file with the names of a bundle."""
    with suppress(OSError, *_NO_ZIP), zipfile.ZipFile(path) as packed:
        return all(_NAMES.fullmatch(name) for name in packed.namelist())
    return False


def _read(packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    try:
        return packed.read(entry)
    except OSError as error:
        if error.errno is not None:  # of the disk
            raise
        raise zipfile.BadZipFile(str(error)) from None  # bz2 reports damage so


def _unpack(packed: zipfile.ZipFile, to: Path, path: str) -> None:
    entries = [each for each in packed.infolist() if not each.is_dir()]
    names = [each.filename for each in entries]
    if wrong := next((name for name in names if not _NAMES.fullmatch(name) or ".." in name), None):
        raise UserError(f"{path} is not a bundle: it contains {wrong[:200]!r}")
    if len({*names}) < len(names):
        raise UserError(f"{path} is not a bundle: two of its files have the same name")
    if sum(each.file_size for each in entries) > _MOST_BYTES:
        raise UserError(f"{path} would unpack to more than {_MOST_BYTES:,} bytes")
    for each in entries:
        (to / each.filename).parent.mkdir(parents=True, exist_ok=True)
        (to / each.filename).write_bytes(_read(packed, each))
