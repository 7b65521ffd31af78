"""Tables as people have them: Parquet and its shards, JSON lines, CSV and TSV, compressed or not."""

import gzip
import hashlib
import importlib
import io
import json
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.core.files import DataError, digest_of, not_installed, one_line

if TYPE_CHECKING:
    import pyarrow as pa

ENDINGS = (".parquet", ".jsonl", ".json", ".csv", ".tsv")
_COMPRESSED = {b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "Zstandard", b"7z": "7z"}
_MARK = b"\xef\xbb\xbf"  # of the byte order


class Hub(NamedTuple):
    """A data set on the Hugging Face Hub: its name, its configuration, and the names of our splits."""

    name: str
    configuration: str | None
    splits: Mapping[str, str]


def fetch(hub: Hub | None, split: str, path: Path) -> None:
    """Write a split from the Hub to a Parquet file."""
    if hub is None:
        raise LookupError("the suite knows no source of it")
    try:
        load_dataset = importlib.import_module("datasets").load_dataset
    except ImportError:
        raise LookupError(not_installed("datasets", "hub")) from None
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    get_hf_file_metadata(hf_hub_url(hub.name, "README.md", repo_type="dataset"), timeout=10)  # fails fast
    rows = load_dataset(hub.name, hub.configuration, split=hub.splits[split])
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    rows.to_parquet(str(temporary))
    temporary.replace(path)


def find_files(folders: Iterable[Path], stems: Sequence[str]) -> list[Path]:
    """The file of one of these names without ending, or its shards as on the Hugging Face Hub; empty without any."""
    for folder in folders:
        for stem in stems:
            for ending in ENDINGS:
                for path in (folder / f"{stem}{ending}", folder / f"{stem}{ending}.gz"):
                    if path.is_file():
                        return [path]
            shards = sorted(folder.glob(f"{stem}-[0-9]*-of-[0-9]*.parquet"))
            if shards:
                count = int(shards[0].stem.rpartition("-of-")[2])
                names = [f"{stem}-{i:05}-of-{count:05}.parquet" for i in range(count)]
                if missing := [name for name in names if not (folder / name).is_file()]:
                    raise DataError(f"missing data: {', '.join(missing[:3])} expected in {folder}, beside other shards")
                return [folder / name for name in names]
    return []


def is_table(path: Path) -> bool:
    """Whether a file is a table, by its name, or JSON lines by its content."""
    if path.name.removesuffix(".gz").endswith(ENDINGS):
        return True
    with open_bytes(path) as file, suppress(ValueError):
        return isinstance(json.loads(file.read(2**20).removeprefix(_MARK).partition(b"\n")[0]), dict)
    return False


def read_rows(path: Path, texts: Collection[str]) -> "pa.Table":
    """The table in a file, by its ending: Parquet, JSON lines or a JSON list, CSV, or TSV as GLUE has it, unquoted.

    Values of the columns `texts` are texts, even if they read as numbers.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet as pq

    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        with readable(path):
            table = pq.read_table(path)
            table.validate(full=True)  # texts are UTF-8
            return table
    with open_bytes(path) as file:
        content = file.read().removeprefix(_MARK)
    try:
        if kind in ("csv", "tsv"):
            style: Any = {"newlines_in_values": True} if kind == "csv" else {"delimiter": "\t", "quote_char": False}
            return pyarrow.csv.read_csv(
                io.BytesIO(content),
                pyarrow.csv.ReadOptions(block_size=2**26),
                pyarrow.csv.ParseOptions(**style),
                pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(texts, pa.string())),
            )
        if content.lstrip()[:1] == b"[":
            return pa.Table.from_pylist(json.loads(content))
        return pyarrow.json.read_json(io.BytesIO(content), pyarrow.json.ReadOptions(block_size=2**26))
    except (ValueError, TypeError, AttributeError) as error:  # includes errors of pyarrow and of JSON
        raise DataError(f"{path} is no {kind.upper()} table ({one_line(error)}); repair it") from None


@contextmanager
def open_bytes(path: Path) -> Iterator[Any]:
    """A file's content, uncompressed if it is gzip's."""
    with readable(path), path.open("rb") as raw:
        first = raw.read(6)
        raw.seek(0)
        for magic, kind in _COMPRESSED.items():
            if first.startswith(magic):
                raise DataError(f"{path} is compressed ({kind}); decompress it")
        with gzip.open(raw) if first.startswith(b"\x1f\x8b") else raw as file:
            yield file


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Name the file in the error if it cannot be read."""
    import pyarrow as pa

    try:
        yield
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        what = f"damaged data file {path} ({one_line(error)})"
        raise DataError(f"{what}; delete it and copy or download it again") from None


def amount(path: Path) -> int:
    """Rows of a Parquet file, bytes of any other file."""
    import pyarrow.parquet as pq

    with readable(path):
        return pq.read_metadata(path).num_rows if path.suffix == ".parquet" else path.stat().st_size


def sha256(path: Path, *shards: Path) -> str:
    """SHA-256 of a file as 64 hex digits, or a digest of several files in order."""
    if shards:
        return digest_of(sha256(path), *map(sha256, shards))
    with readable(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
