"""Data files: found, checked and, where there is a network, downloaded."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path


class DataError(Exception):
    """Data are missing or damaged; the message says which file and what to do."""


def md5(path: Path) -> str:
    """MD5 of a file as 32 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def require_files(folder: Path, expected: Mapping[str, str], download: Callable[[], object]) -> None:
    """Make sure that a folder holds the expected files, unharmed.

    Args:
        folder: where they belong.
        expected: MD5 by file name.
        download: fetches them into the folder; called when one is missing.

    Raises:
        DataError: a file is missing and cannot be downloaded, or is damaged.
    """
    missing = [name for name in expected if not (folder / name).is_file()]
    if missing:
        try:
            download()
        except Exception as error:
            raise DataError(
                f"missing data: {', '.join(missing)} expected in {folder}, and downloading failed"
                f" ({' '.join(str(error).split())[:200] or type(error).__name__});"
                " copy the files there, or name the folder that has them with --data DIR or BENCH_DATA"
            ) from error
    for name, expected_md5 in expected.items():
        path = folder / name
        found = md5(path)
        if found != expected_md5:
            raise DataError(
                f"damaged data file {path}: {path.stat().st_size:,} bytes with MD5 {found}, expected {expected_md5};"
                " delete it and copy or download it again"
            )
