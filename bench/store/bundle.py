"""Finished runs as a zip file, which `bench.execute.exchange` sends through PostgreSQL."""

import lzma
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.errors import UserError
from bench.store.attempt import write_block
from bench.store.block import DONE, name_of
from bench.store.load import Damaged
from bench.store.record import FILE_NAME, RunResult
from bench.store.store import Store
from bench.store.tables import Columns

STORE = "runs"
_RESULTS = re.compile(rf"{STORE}/{FILE_NAME}/{DONE}/(runs\.jsonl|curve\.parquet|measurements\.parquet)", re.ASCII)
_MOST_BYTES = 8 * 2**30
"""Maximum bytes of an unpacked zip file. Ours."""
_NO_ZIP = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error, lzma.LZMAError)
"""What zipfile raises for archives that are damaged, encrypted, or compressed in a way that it does not know."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(store: Store, run_ids: Iterable[str]) -> bytes | None:
    """The finished ones of these runs as a zip file with one block; None if there are none.

    Raises:
        Damaged: a table cannot be read.
    """
    found = store.find_all(run_ids)
    runs = {run_id: block for run_id, block in found.items() if block.runs[run_id].finished}
    if not runs:
        return None
    packed = BytesIO()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _add_block(folder / STORE, [(block.runs[run_id], block.tables(run_id)) for run_id, block in runs.items()])
        _zip(folder, packed)
    return packed.getvalue()


@contextmanager
def unpacked(packed: bytes, what: str) -> Iterator[Path]:
    """The store in a zip file (`pack`), while the context lasts.

    Raises:
        Damaged: it is not such a file.
    """
    with TemporaryDirectory() as temporary:
        try:
            with zipfile.ZipFile(BytesIO(packed)) as file:
                _unpack(file, Path(temporary), what)
        except (*_NO_ZIP, UserError) as error:
            raise Damaged(Path(what), str(error)) from None
        yield Path(temporary) / STORE


def _add_block(store: Path, runs: Sequence[tuple[RunResult, dict[str, Columns]]]) -> None:
    """Write finished runs with their tables into a store, as one block."""
    done = store / name_of([run.run_id for run, _ in runs]) / DONE
    done.mkdir(parents=True)
    write_block(done, runs)


def _zip(folder: Path, out: BytesIO) -> None:
    """Pack a folder reproducibly: equal content gives equal bytes."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            info = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(info, path.read_bytes())


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
    if wrong := next((name for name in names if not _RESULTS.fullmatch(name) or ".." in name), None):
        raise UserError(f"{path} is not a bundle: it contains {wrong[:200]!r}")
    if len({*names}) < len(names):
        raise UserError(f"{path} is not a bundle: two of its files have the same name")
    if sum(each.file_size for each in entries) > _MOST_BYTES:
        raise UserError(f"{path} would unpack to more than {_MOST_BYTES:,} bytes")
    for each in entries:
        (to / each.filename).parent.mkdir(parents=True, exist_ok=True)
        (to / each.filename).write_bytes(_read(packed, each))
