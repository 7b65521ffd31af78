"""Cache of preprocessed texts, as memory-mapped arrays."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.files import DataError

Entry = tuple[Mapping[str, NDArray[Any]], dict[str, Any]]

FORMAT = 4  # incremented when the content or format of the cache changes


def cache_folder() -> Path:
    """Folder of cached tokens: $BENCH_CACHE, else `~/.cache/attention-optimizer-bench`."""
    named = os.environ.get("BENCH_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "attention-optimizer-bench"


def cached(digest: str, meaning: Any, make: Callable[[], Entry]) -> Entry:
    """What `make` computes from the text with this digest, from the cache or anew: arrays by name, and plain values.

    They depend on the text and on the plain values of `meaning`. The arrays are memory-mapped, private to the process.
    Several processes may request an entry at once.
    """
    folder = cache_folder() / "tokens" / f"{digest[:16]}-{digest_of(FORMAT, digest, meaning)[:16]}"
    with _alone(folder):
        entry = _load(folder)
        if entry is None:
            _save(folder, *make())
            entry = _load(folder)
            assert entry is not None
        return entry


def _load(folder: Path) -> Entry | None:
    """The entry that `_save` wrote; None if missing or damaged."""
    try:
        record = json.loads((folder / "record.json").read_text("utf-8"))
        return {name: np.load(folder / f"{name}.npy", mmap_mode="c") for name in record.pop("arrays")}, record
    except (OSError, ValueError, EOFError):
        return None


def _save(folder: Path, arrays: Mapping[str, NDArray[Any]], record: Mapping[str, Any]) -> None:
    """Write the entry atomically."""
    temporary = folder.with_name(f"{folder.name}.tmp")
    for old in (temporary, folder):  # left by a killed process; damaged
        shutil.rmtree(old, ignore_errors=True)
    temporary.mkdir()
    for name, array in arrays.items():
        try:
            np.save(temporary / f"{name}.npy", array)
        except OSError as error:  # numpy reports only how much it wrote
            number = error.errno or errno.ENOSPC
            raise OSError(number, error.strerror or os.strerror(number), str(temporary)) from None
    (temporary / "record.json").write_text(json.dumps({**record, "arrays": [*arrays]}), "utf-8")
    temporary.replace(folder)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Lock this path of the cache for one process; readers need no lock, since entries are written atomically."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f"{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # the caller reports a full disk
        why = f"cannot write the cache {path.parent} ({error.strerror})"
        raise DataError(f"{why}; name another folder with BENCH_CACHE") from None


def digest_of(*parts: Any) -> str:
    """SHA-256 of plain values, as 64 hex digits."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
