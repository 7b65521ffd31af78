"""Cache of preprocessed texts, as memory-mapped arrays."""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from tasks.core.files import DataError, digest_of

Entry = tuple[Mapping[str, NDArray[Any]], dict[str, Any]]

FORMAT = 5  # incremented when the content or format of the cache changes


def cached(digest: str, meaning: Any, make: Callable[[], Entry]) -> Entry:
    """What `make` computes from the text with this digest, from the cache or anew: arrays by name, and plain values.

    They depend on the text and on the plain values of `meaning`. The arrays are memory-mapped, private to the process.
    Several processes may request an entry at once. The cache is in $BENCH_CACHE, or in the user's `~/.cache`.
    """
    folder = Path(os.environ.get("BENCH_CACHE") or Path.home() / ".cache" / "attention-optimizer-bench")
    path = folder / "tokens" / f"{digest[:16]}-{digest_of(FORMAT, digest, meaning)[:16]}.pt"
    with _alone(path):
        entry = _load(path)
        if entry is None:
            arrays, values = make()
            temporary = path.with_suffix(".tmp")
            with temporary.open("wb") as file:
                torch.save(({name: torch.from_numpy(array) for name, array in arrays.items()}, values), file)
            temporary.replace(path)
            entry = _load(path)
            assert entry is not None
        return entry


def _load(path: Path) -> Entry | None:
    """The entry in a file; None if missing or damaged."""
    try:
        tensors, values = torch.load(path, mmap=True, weights_only=True)
        return {name: tensor.numpy() for name, tensor in tensors.items()}, values
    except Exception:  # torch raises nothing more specific
        return None


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
