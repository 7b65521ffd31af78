"""Tables as people have them: Parquet and its shards, JSON lines, CSV and TSV, compressed or not."""

import hashlib
import importlib
import io
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.core.files import PACKED, DataError, digest_of, find_file, not_installed, one_line, open_bytes, readable

if TYPE_CHECKING:
    import pyarrow as pa

ENDINGS = (".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")
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
    for folder in filter(Path.is_dir, folders):
        for stem in stems:
            if path := find_file([folder], [stem + ending for ending in (*ENDINGS, ".txt")]):
                return [path]
            pattern = rf"{re.escape(stem)}-(\d+)-of-(\d+)(-\w+)?(\.\w+)+"  # some have a hash
            named = filter(None, (re.fullmatch(pattern, path.name) for path in sorted(folder.iterdir())))
            if shards := {(int(name[2]), int(name[1])): folder / name[0] for name in named}:
                count, end = min(shards)[0], shards[min(shards)].suffix
                if missing := [f"{stem}-{i:05}-of-{count:05}{end}" for i in range(count) if (count, i) not in shards]:
                    what = f"missing data: {', '.join(missing[:3])} expected in {folder}, beside other shards"
                    raise DataError(f"{what}; copy them there")
                return [shards[count, i] for i in range(count)]
    return []


def kind_of(path: Path) -> str:
    """A table's kind, such as `csv`, by its content or else by its name; empty for plain text."""
    name = Path(path.name.lower())
    ending = Path(name.stem).suffix if name.suffix in PACKED else name.suffix
    with open_bytes(path) as file:
        start = file.read(2**10)
    if start.startswith(b"PAR1"):
        return "parquet"
    if (at := start.find(0)) >= 0 and ending != ".parquet":  # such as UTF-16
        raise DataError(f"{path} is not UTF-8 text (byte {at}); save it as UTF-8")
    if ending in ENDINGS:
        return ending[1:]
    return "json" if re.match(rb'\[?\s*\{\s*"(\\.|[^"\\\n])*"\s*:', start.removeprefix(_MARK).lstrip()) else ""


def read_rows(path: Path, texts: Collection[str], kind: str) -> "pa.Table":
    """The table in a file of this kind (`kind_of`). TSV is unquoted, as GLUE has it.

    Values of the columns `texts` are texts, even if they read as numbers or dates.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet as pq

    if kind == "parquet":
        with readable(path, pa.ArrowException), open_bytes(path) as file:
            table = pq.read_table(file)
            table.validate(full=True)  # texts are UTF-8
            return table
    with open_bytes(path) as file:
        content = file.read().removeprefix(_MARK)
        content.decode()  # fails if it is no UTF-8
    strings = [(name, pa.string()) for name in texts]
    try:
        if kind in ("csv", "tsv"):
            style: Any = {"newlines_in_values": True} if kind == "csv" else {"delimiter": "\t", "quote_char": False}
            return pyarrow.csv.read_csv(
                io.BytesIO(content),
                pyarrow.csv.ReadOptions(block_size=2**26),
                pyarrow.csv.ParseOptions(**style),
                pyarrow.csv.ConvertOptions(column_types=dict(strings)),
            )
        if content.lstrip().startswith(b"["):
            content = "\n".join(map(json.dumps, json.loads(content))).encode()
        options = pyarrow.json.ReadOptions(block_size=2**26), pyarrow.json.ParseOptions(pa.schema(strings))
        table = pyarrow.json.read_json(io.BytesIO(content), *options)
        # A column of the schema is there even if no row has it.
        return table.select([name for name in table.column_names if table[name].null_count < len(table)])
    except (ValueError, TypeError) as error:  # includes errors of pyarrow and of JSON
        raise DataError(f"{path} is no {kind.upper()} table ({one_line(error)}); repair it") from None


def amount(path: Path) -> int:
    """Rows of a Parquet file, bytes of any other file."""
    import pyarrow.parquet as pq

    with readable(path, ValueError), open_bytes(path) as file:
        return pq.read_metadata(file).num_rows if kind_of(path) == "parquet" else path.stat().st_size


def sha256(path: Path, *shards: Path) -> str:
    """SHA-256 of a file as 64 hex digits, or a digest of several files in order."""
    if shards:
        return digest_of(sha256(path), *map(sha256, shards))
    with readable(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
