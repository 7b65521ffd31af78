"""Cache of preprocessed data, as memory-mapped arrays."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tasks.core.files import DataError, is_reading, refuse_if_reading

_T = TypeVar("_T")

FORMAT = 3  # incremented when the content or format of the cache changes


def cache_folder() -> Path:
    """Folder of cached tokens: $BENCH_CACHE, else `~/.cache/attention-optimizer-bench`."""
    named = os.environ.get("BENCH_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "attention-optimizer-bench"


def cached_tokens(digest: str) -> list[dict[str, Any]]:
    """The cached records of the file with this digest, one for each tokenizer and length; `bytes` is their size."""
    entries = []
    for record in (cache_folder() / "tokens").glob(f"{digest[:16]}-*/record.json"):
        with suppress(OSError, ValueError, KeyError):
            known = json.loads(record.read_text("utf-8"))
            size = sum(file.stat().st_size for file in record.parent.iterdir())
            entries.append({**known, "vocabulary": known["vocabulary"], "bytes": size})
    return sorted(entries, key=lambda entry: (entry["vocabulary"], entry.get("max_length", 0)))


def cached_arrays(
    path: Path,
    digest: str,
    meaning: Any,
    names: Sequence[str],
    make: Callable[[], tuple[Mapping[str, NDArray[Any]], Mapping[str, Any]]],
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The preprocessed text of a file, from the cache or newly computed. Several processes may request it at once.

    `make` computes arrays of these names, and a record of plain values with the number of tokens as `vocabulary`. They
    depend on the file, given by its digest, and on the plain values of `meaning`. The arrays are memory-mapped, private
    to the process.
    """
    folder = cache_folder() / "tokens" / f"{digest[:16]}-{digest_of(FORMAT, digest, meaning)[:16]}"
    with _alone(folder):
        cached = _load(folder, names)
        if cached is None:
            refuse_if_reading()
            _save(folder, path, *make())
            cached = _load(folder, names)
            assert cached is not None
        return cached


def cached(meaning: Any, read: Callable[[str], _T], make: Callable[[], str]) -> _T:
    """`read` applied to a cached text; `make` creates the text if the cache has none, or one for which `read` raises.

    The text depends on the plain values of `meaning`.
    """
    file = cache_folder() / "tokenizers" / f"{digest_of(FORMAT, meaning)[:32]}.json"
    with _alone(file):
        with suppress(Exception):  # it is missing or damaged
            return read(file.read_text("utf-8"))
        refuse_if_reading()
        temporary = file.with_suffix(".tmp")
        temporary.write_text(text := make(), "utf-8")
        temporary.replace(file)
    return read(text)


def _load(folder: Path, names: Sequence[str]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """The arrays and record that `_save` wrote; None if missing or damaged."""
    try:
        record = json.loads((folder / "record.json").read_text("utf-8"))
        return {name: np.load(folder / f"{name}.npy", mmap_mode="c") for name in names}, record
    except (OSError, ValueError, EOFError):
        return None


def _save(folder: Path, path: Path, arrays: Mapping[str, NDArray[Any]], record: Mapping[str, Any]) -> None:
    """Write the arrays atomically."""
    temporary = folder.with_name(f"{folder.name}.tmp")
    for old in (temporary, folder):  # left by a killed process; damaged
        shutil.rmtree(old, ignore_errors=True)
    temporary.mkdir()
    for name, array in arrays.items():
        try:
            np.save(temporary / f"{name}.npy", array)
        except OSError as error:  # numpy reports only how much it wrote
            raise OSError(
                error.errno or errno.ENOSPC, error.strerror or os.strerror(errno.ENOSPC), str(temporary)
            ) from None
    (temporary / "record.json").write_text(json.dumps({"path": str(path), **record}), "utf-8")
    temporary.replace(folder)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Lock this path of the cache for one process; readers need no lock, since entries are written atomically."""
    if is_reading():
        yield
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f"{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # the caller reports a full disk
        raise DataError(
            f"cannot write the cache {path.parent} ({error.strerror}); name another folder with BENCH_CACHE"
        ) from None


def digest_of(*parts: Any) -> str:
    """SHA-256 of plain values, as 64 hex digits."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
