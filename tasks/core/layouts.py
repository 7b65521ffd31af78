"""Tables as people have them: shards, JSON lines, CSV and TSV, compressed or not; converted once, in the cache."""

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tasks.core.cache import converted_folder, digest_of
from tasks.core.files import DataError, refuse_if_reading
from tasks.core.tables import one_line, readable, sha256

if TYPE_CHECKING:
    import pyarrow as pa

ENDINGS = (".parquet", ".jsonl", ".json", ".csv", ".tsv")
_COMPRESSED = {b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "Zstandard", b"7z": "7z"}
_MARK = b"\xef\xbb\xbf"  # of the byte order
_NO_LABEL = ("-", "-1", "", "None")


@dataclass(frozen=True)
class Columns:
    """The columns of a table, and their forms elsewhere.

    Attributes:
        names: the required columns.
        renamed: ours by another name.
        label: the column with the label; empty for none.
        classes: names of the labels 0, 1, ... in words.
    """

    names: tuple[str, ...]
    renamed: Mapping[str, str]
    label: str = ""
    classes: tuple[str, ...] = ()


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


def is_official(path: Path, columns: Columns) -> bool:
    """Whether a Parquet file can be read as it is: it has our columns, and labels as numbers, all of them known."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix != ".parquet":
        return False
    with readable(path):
        schema = pq.read_schema(path)
        if not columns.classes or columns.label not in schema.names:
            return not any(old in schema.names and new not in schema.names for old, new in columns.renamed.items())
        if not pa.types.is_integer(schema.field(columns.label).type):
            return pa.types.is_floating(schema.field(columns.label).type)
        labels = pq.read_table(path, columns=[columns.label])[columns.label]
    return not len(labels) or cast(int, labels.to_numpy().min()) >= 0


def converted(files: Sequence[Path], columns: Columns) -> tuple[Path, str]:
    """Where `as_parquet` keeps the rows of these files, and the digest of files and columns."""
    digest = digest_of([sha256(path) for path in files], vars(columns))
    return converted_folder() / f"{digest[:32]}.parquet", digest


def as_parquet(files: Sequence[Path], columns: Columns) -> Path:
    """The rows of files as one Parquet file with our columns, in the cache; rows without a label are dropped."""
    target, digest = converted(files, columns)
    if not target.is_file() or not target.with_suffix(".json").is_file():
        import pyarrow as pa
        import pyarrow.parquet as pq

        refuse_if_reading()
        tables = [_converted(path, columns) for path in files]
        dropped = sum(count for _, count in tables)
        with readable(files[0]):
            table = pa.concat_tables([table for table, _ in tables])
        about = {"files": [str(path) for path in files], "sha256": digest, "dropped": dropped}
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_suffix(f".{os.getpid()}.tmp")
            target.with_suffix(".json").write_text(json.dumps(about), "utf-8")
            pq.write_table(table, temporary)
            temporary.replace(target)
        except OSError as error:
            raise DataError(f"cannot write {target} ({error.strerror}); name another cache with BENCH_CACHE") from None
    return target


def dropped_rows(path: Path) -> int:
    """How many rows without a label were left out of a converted file."""
    return json.loads(path.with_suffix(".json").read_text("utf-8"))["dropped"]


def _converted(path: Path, columns: Columns) -> tuple["pa.Table", int]:
    """A file's rows with our columns, and the number of rows without a label."""
    table = read_rows(path, [*{*columns.names, *columns.renamed} - {columns.label}])
    names = [columns.renamed.get(name, name) for name in table.column_names]
    taken = {name: i for i, name in reversed([*enumerate(names)])}
    if lacking := [name for name in columns.names if name not in taken]:
        raise DataError(f"{path} has no column {lacking[0]!r}, only {', '.join(table.column_names)}")
    table = table.select([taken[name] for name in columns.names]).rename_columns([*columns.names])
    if not columns.classes:
        return table, 0
    at, rows = table.column_names.index(columns.label), len(table)
    words = [str(word).strip() for word in table[columns.label].to_pylist()]
    known = {name: i for i, name in enumerate(columns.classes)} | {str(i): i for i in range(len(columns.classes))}
    known |= {f"{i}.0": i for i in range(len(columns.classes))}
    labels = [None if word in _NO_LABEL else known.get(word.lower(), -1) for word in words]
    if -1 in labels:
        row = labels.index(-1)
        raise DataError(
            f"{path}: row {row} has the {columns.label} {words[row]!r}; it must be one of"
            f" {', '.join(f'{i} or {name}' for i, name in enumerate(columns.classes))}: rename your labels"
        )
    table = table.set_column(at, columns.label, [labels]).filter([label is not None for label in labels])
    return table, rows - len(table)


def is_table(path: Path) -> bool:
    """Whether a file is a table other than Parquet, by its name, or JSON lines by its content."""
    name = path.name.removesuffix(".gz")
    if name.endswith(ENDINGS) or not path.is_file():
        return name.endswith(ENDINGS[1:])
    with open_bytes(path) as file:
        first = file.read(2**20).removeprefix(_MARK).partition(b"\n")[0]
    if first[:1] != b"{":
        return False
    with suppress(ValueError):
        return isinstance(json.loads(first), dict)
    return False


def read_rows(path: Path, texts: Sequence[str]) -> "pa.Table":
    """The table in a file, by its ending: Parquet, JSON lines or a JSON list, CSV, or TSV as GLUE has it, unquoted.

    Args:
        path: of the file.
        texts: columns whose values are texts, even if they read as numbers.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet as pq

    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    with readable(path):
        if kind == "parquet":
            return pq.read_table(path)
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
        try:
            with gzip.open(raw) if first.startswith(b"\x1f\x8b") else raw as file:
                yield file
        except (EOFError, zlib.error) as error:
            raise DataError(f"damaged data file {path} ({error}); delete it and copy it again") from None
