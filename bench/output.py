"""What the commands share that read stores and write a table, a page or a picture."""

import argparse
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UserError
from bench.text import clean
from bench.words import place

if TYPE_CHECKING:
    from bench.store.stores import Stores

ENDINGS = {".md": "md", ".csv": "csv", ".json": "json", ".tex": "tex", ".html": "html"}
"""Formats of tables by the ending of a file's name."""


def add_stores(parser: "argparse._ActionsContainer") -> None:
    """Give a command the option that names its stores."""
    parser.add_argument(
        "--store", action="append", type=partial(place, "store"), metavar="DIR",
        help="where runs are kept; several are read as one (default: $BENCH_STORE, else ./runs)",
    )  # fmt: skip


def stores_of(args: argparse.Namespace) -> list[Path]:
    """The stores that a command was given."""
    return args.store or [place("store")]


def add_output(parser: argparse.ArgumentParser, formats: Iterable[str]) -> "argparse._ActionsContainer":
    """Add the options for a table's place and format; return the group to which other places are added."""
    parser.add_argument("--format", choices=formats, help="default table, or what the name of the file says")
    places = parser.add_mutually_exclusive_group()
    places.add_argument("-o", "--out", type=Path, metavar="FILE", help="write there instead of to standard output")
    return places


def format_of(args: argparse.Namespace, formats: Mapping[str, object]) -> str:
    """The format that was asked for, else that of the file's name, else a table."""
    ending = ENDINGS.get(args.out.suffix.lower(), "table") if args.out else "table"
    return args.format or (ending if ending in formats else "table")


def write(out: Path | None, content: bytes | str | Iterable[str]) -> None:
    """Write a file in one atomic step, into a pipe or a device as it is, and say so; without one, to standard output.

    Raises:
        UserError: it cannot be written.
    """
    from bench.store.files import replacing

    pieces = [content] if isinstance(content, bytes | str) else content
    encoded = (piece if isinstance(piece, bytes) else piece.encode() for piece in pieces)
    if out is None:
        sys.stdout.flush()
        sys.stdout.buffer.writelines(encoded)
        return
    try:
        if out.exists() and not out.is_file() and not out.is_dir():
            with out.open("wb") as file:
                file.writelines(encoded)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            with replacing(out.resolve()) as temporary, temporary.open("wb") as file:
                file.writelines(encoded)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}; choose another file with -o") from None
    print(f"written to {out}", file=sys.stderr)


def remark(kind: str, text: object) -> None:
    """An error, a warning or a note on standard error: one line, although names in it may hold anything."""
    print(f"bench: {kind}: {clean(str(text))}", file=sys.stderr)


def warn_of(stores: "Stores", damaged: Iterable[object] = ()) -> int:
    """Say what cannot be read, or is there twice.

    Args:
        stores: what was read.
        damaged: what else was found damaged, in words.

    Returns:
        the exit code: 1 if something was left out.
    """
    lines = dict.fromkeys(map(str, [*stores.damaged, *damaged]))
    for what in lines:
        remark("warning", f"{what}; it is left out")
    for run_id in stores.conflicts:
        remark("warning", f"{run_id} is there several times with different results; one is taken")
    return 1 if lines else 0
