"""Data files: found, checked and, where there is a network, downloaded."""

import gzip
import hashlib
import json
import re
import shutil
import tarfile
import traceback
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
"""The clone of the suite, or where an installed package is."""

PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")  # endings of compressed files
_COMPRESSED = {
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"(\xb5/\xfd": "Zstandard",
    b"7z\xbc": "7z",
}
_BETWEEN = {"data", "raw", "glue", "gluedata"}  # folders with those of data sets, or within them


class DataError(Exception):
    """Data are missing or damaged, or cannot be fetched or cached; the message says which file and what to do."""


def folders_of(root: Path, names: Iterable[str]) -> list[Path]:
    """Folders of these names in the data folder and in each other, whatever their case and punctuation."""
    known = {_key(name) for name in names} - {""}

    def walk(folder: Path, is_known: bool, depth: int) -> Iterator[Path]:
        if is_known:
            yield folder
        for inner in sorted(folder.iterdir()) if depth and folder.is_dir() else ():
            if (key := _key(inner.name)) in known | _BETWEEN and inner.is_dir():
                yield from walk(inner, is_known or key in known, depth - 1)

    return [*walk(root, _key(root.resolve().name) in known, 3)]


def find_file(folders: Iterable[Path], names: Sequence[str]) -> Path | None:
    """The first file of one of these names, whatever their case and punctuation, compressed or not."""
    for folder in folders:
        here = {_key(path.name): path for path in sorted(folder.iterdir())} if folder.is_dir() else {}
        for key in (_key(name + ending) for name in names for ending in ("", *PACKED)):
            if key in here and here[key].is_file():
                return here[key]
    return None


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@contextmanager
def open_bytes(path: Path) -> Iterator[Any]:
    """A file's content, uncompressed if it is gzip's, whatever its name."""
    with readable(path), path.open("rb") as raw:
        first = raw.peek(6)
        for magic, kind in _COMPRESSED.items():
            if first.startswith(magic):
                raise DataError(f"{path} is compressed ({kind}); decompress it")
        with gzip.open(raw) if first.startswith(b"\x1f\x8b") else raw as file:
            yield file


@contextmanager
def readable(path: Path, *errors: type[Exception]) -> Iterator[None]:
    """Name the file in the error if it cannot be read, because of these errors or the system's, or is no text."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except (OSError, EOFError, zlib.error, *errors) as error:
        what = f"damaged data file {path} ({one_line(error)})"
        raise DataError(f"{what}; delete it and copy or download it again") from None


def md5(path: Path) -> str:
    """MD5 of a file's content, uncompressed, as 32 hex digits."""
    with open_bytes(path) as file:
        return hashlib.file_digest(file, "md5").hexdigest()


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
    """Unpack the files of these names from a tar archive of a folder of its name."""
    with TemporaryDirectory(dir=folder.parent) as temporary:
        try:
            with tarfile.open(archive) as members:
                # Not `extractall(filter="data")`, which came with Python 3.11.4: Debian 12 has 3.11.2.
                for member in members:
                    *_, parent, name = "", *PurePosixPath(member.name).parts
                    is_wanted = member.isfile() and parent == folder.name and name in names
                    if is_wanted and (file := members.extractfile(member)):
                        with (Path(temporary) / name).open("wb") as copy:
                            shutil.copyfileobj(file, copy)
            if missing := [name for name in names if not (Path(temporary) / name).exists()]:
                raise EOFError(f"it has no {', '.join(missing)} in {folder.name}")
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            what = f"damaged archive {archive} ({one_line(error)})"
            raise DataError(f"{what}; delete it and copy or download it again") from None
        folder.mkdir(exist_ok=True)
        for path in Path(temporary).iterdir():
            path.replace(folder / path.name)


def not_installed(package: str, extra: str) -> str:
    """The message about an optional package, with the extra of the suite that installs it."""
    clone = (ROOT / "pyproject.toml").is_file()
    how = f"uv sync --extra {extra}" if clone else f"pip install 'attention-optimizer-bench[{extra}]'"
    return f"the package {package} is not installed: {how}"
