"""Parquet files: fetched from the Hugging Face Hub where they are missing, and read with errors that say what to do."""

import hashlib
import importlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tasks.core.cache import converted_folder
from tasks.core.extras import not_installed
from tasks.core.files import DataError, refuse_if_reading


class Hub(NamedTuple):
    """A data set on the Hugging Face Hub: its name, its configuration, the names of our splits, and a revision."""

    name: str
    configuration: str | None
    splits: Mapping[str, str]
    revision: str | None = None


def or_part(path: Path) -> Path:
    """The file, or NAME_part if only a part of it exists."""
    part = path.with_name(f"{path.stem}_part{path.suffix}")
    return part if part.is_file() and not path.is_file() else path


def require_tables(paths: Mapping[str, Path], columns: Sequence[str], hub: Hub | None) -> None:
    """Make sure that the files of each split exist, from the Hub if they do not; messages name their columns."""
    missing = [split for split, path in paths.items() if not path.is_file()]
    try:
        for split in missing:
            refuse_if_reading()
            _fetch(hub, split, paths[split])
    except Exception as error:  # of the network, of the Hub, of the disk
        names, several = ", ".join(paths[split].name for split in missing), "s" * (len(columns) > 1)
        raise DataError(
            f"missing data: {names} expected in {paths[missing[0]].parent}, with the column{several}"
            f" {', '.join(columns)}; fetching from the Hub failed ({one_line(error)});"
            " copy the files there, or name the folder that has them with --data DIR or BENCH_DATA"
        ) from error


def _fetch(hub: Hub | None, split: str, path: Path) -> None:
    """Write a split's file from the Hub."""
    if hub is None:
        raise LookupError("it does not exist")
    try:
        load_dataset = importlib.import_module("datasets").load_dataset
    except ImportError:
        raise LookupError(not_installed("datasets", "hub")) from None
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    get_hf_file_metadata(hf_hub_url(hub.name, "README.md", repo_type="dataset"), timeout=10)  # fails fast
    more = {} if hub.revision is None else {"revision": hub.revision}
    rows = load_dataset(hub.name, hub.configuration, split=hub.splits[split], **more)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    rows.to_parquet(str(temporary))
    temporary.replace(path)


def columns_of(path: Path) -> list[str]:
    """The names of a file's columns."""
    import pyarrow.parquet as pq

    with readable(path):
        return pq.read_schema(path).names


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Name the file in the error if it cannot be read."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"damaged data file {path} ({one_line(error)}); delete it and copy or download it again"
        ) from None


def amount(path: Path) -> int:
    """Rows of a Parquet file, bytes of any other file."""
    import pyarrow.parquet as pq

    with readable(path):
        return pq.read_metadata(path).num_rows if path.suffix == ".parquet" else path.stat().st_size


def sha256(path: Path) -> str:
    """SHA-256 of a file as 64 hex digits; of a converted table, a digest of the original files."""
    if path.parent == converted_folder():
        return json.loads(path.with_suffix(".json").read_text("utf-8"))["sha256"]
    with readable(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def one_line(error: Exception) -> str:
    """An error in one short line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
