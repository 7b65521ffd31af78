"""Data files: found, checked and, where there is a network, downloaded."""

import gzip
import hashlib
import json
import shutil
import tarfile
import traceback
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
"""The clone of the suite, or where an installed package is."""


class DataError(Exception):
    """Data are missing or damaged, or cannot be fetched or cached; the message says which file and what to do."""


def md5(path: Path) -> str:
    """MD5 of a file's content, uncompressed if its name ends in .gz, as 32 hex digits."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        what = f"damaged data file {path}: {path.stat().st_size:,} bytes ({error})"
        raise DataError(f"{what}; delete it and copy or download it again") from None


def digest_of(*parts: Any) -> str:
    """SHA-256 of plain values, as 64 hex digits."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def require_present(paths: Iterable[Path], download: Callable[[list[Path]], object], note: str = "") -> None:
    """Make sure that files exist, by `download` of the missing ones; the note says what they must contain."""
    missing = [path for path in paths if not path.is_file()]
    if missing:
        try:
            download(missing)
        except Exception as error:  # of the network, of the Hub, of the disk
            what = f"missing data: {', '.join(path.name for path in missing)} expected in {missing[0].parent}{note}"
            todo = "copy the files there, or name the folder that has them with --data DIR or BENCH_DATA"
            raise DataError(f"{what}, and downloading failed ({one_line(error)}); {todo}") from error


def one_line(error: Exception) -> str:
    """An error in one short line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def splits_of(task: str, samples: Callable[[Path], Any], root: Path) -> Mapping[str, Any]:
    """The samples of "train" and of "test" that a user's function of the data folder returns."""
    try:
        splits = samples(root)
    except DataError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{frame.filename}, line {frame.lineno}; the data folder is {root} (--data DIR or BENCH_DATA)"
        what = f"{type(error).__name__}: {one_line(error)}"
        raise DataError(f"{task}: its samples cannot be read: {what} ({where})") from error
    if not isinstance(splits, Mapping) or sorted(splits) != ["test", "train"]:
        shown = [*splits] if isinstance(splits, Mapping) else type(splits).__name__
        raise DataError(f"{task}: its samples are {shown}; return a dict with the keys train and test")
    return splits


def unpack(archive: Path, folder: Path, names: Collection[str]) -> None:
    """Unpack those files of these names that a folder lacks from a tar archive of a folder of its name."""
    with TemporaryDirectory(dir=folder.parent) as temporary:
        try:
            with tarfile.open(archive) as members:
                # Not `extractall(filter="data")`, which came with Python 3.11.4: Debian 12 has 3.11.2.
                wanted = {f"{folder.name}/{name}": name for name in names}
                for member in members:
                    if member.name in wanted and (file := members.extractfile(member)):
                        with (Path(temporary) / wanted[member.name]).open("wb") as copy:
                            shutil.copyfileobj(file, copy)
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            what = f"damaged archive {archive} ({error or 'it is truncated'})"
            raise DataError(f"{what}; delete it and copy or download it again") from None
        folder.mkdir(exist_ok=True)
        for path in Path(temporary).iterdir():
            if not (folder / path.name).exists():
                path.replace(folder / path.name)


def not_installed(package: str, extra: str) -> str:
    """The message about an optional package, with the extra of the suite that installs it."""
    clone = (ROOT / "pyproject.toml").is_file()
    how = f"uv sync --extra {extra}" if clone else f"pip install 'attention-optimizer-bench[{extra}]'"
    return f"the package {package} is not installed: {how}"
