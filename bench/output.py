"""Common parts of commands that read stores and write a table, a page or a picture."""

import os
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from bench.grammar.parse import Args
from bench.grammar.values import place, reference_folder
from bench.text import clean, strict_json

if TYPE_CHECKING:
    from bench.store.stores import Stores

ENDINGS = {".md": "md", ".html": "html", ".csv": "csv", ".json": "json", ".tex": "tex"}
"""Formats of tables by the ending of a file's name."""


def answer(value: Any) -> None:
    """Print the output of `--json`: strict JSON on one line (`docs/reference/json.md` shows that of each command)."""
    print(strict_json(value))


def reply(args: Args, value: Any, lines: Iterable[str]) -> None:
    """Print the result of a command: with `--json` the value (`answer`), else the lines."""
    if args.json:
        answer(value)
    else:
        print("\n".join(lines))


def stores_of(args: Args) -> list[Path]:
    """The stores that a command was given."""
    return args.store or [place("store")]


def existing_stores(args: Args) -> list[Path]:
    """The stores that a command was given; none for a default store that does not exist yet.

    Raises:
        UserError: a store that the command names does not exist.
    """
    from bench.store.stores import no_store

    folders = stores_of(args)
    for folder in folders if args.store else []:
        if not folder.is_dir():
            raise no_store(folder, "name one with --store DIR")
    return [folder for folder in folders if folder.is_dir()]


def open_stores(args: Args) -> "Stores":
    """The stores that a command was given, and the reference results unless it leaves them out.

    Raises:
        UserError: a store does not exist; the default store may be missing if there are reference results.
    """
    from bench.store.stores import Stores

    reference = None if args.no_reference else reference_folder()
    folders = stores_of(args)
    if not args.store and reference is not None:
        folders = [folder for folder in folders if os.path.lexists(folder)]
    return Stores(folders, reference)


def format_of(args: Args, formats: Container[str]) -> str:
    """The requested format, else that of the file's name, else a table.

    Raises:
        UserError: --json and another format are given.
    """
    if args.json and args.format not in (None, "json"):
        raise UserError(f"--json and --format {args.format}: remove one of them")
    if args.json:
        return "json"
    ending = args.out.suffix.lower() if args.out else ""
    if args.format or ending in ("", ".txt") or not (args.out and (args.out.is_file() or not args.out.exists())):
        return args.format or "table"
    if (kind := ENDINGS.get(ending)) is None or kind not in formats:
        known = ", ".join(known for known, kind in ENDINGS.items() if kind in formats)
        raise UserError(f"-o {args.out}: {ending} names no format; use {known} or .txt, or add --format")
    return kind


def write(out: Path | None, content: bytes | str | Iterable[str]) -> None:
    """Write a file atomically (a pipe or a device directly), and say so; without a file, write to standard output.

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
    if out.is_dir():
        raise UserError(f"cannot write {out}: it is a folder; name a file with -o")
    try:
        if out.exists() and not out.is_file():
            with out.open("wb") as file:
                file.writelines(encoded)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            with replacing(out.resolve()) as temporary, temporary.open("wb") as file:
                file.writelines(encoded)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}; choose another place with -o") from None
    print(f"written to {out}", file=sys.stderr)


def write_into(path: Path, texts: Mapping[str, str]) -> None:
    """Write texts into a file, each between its markers: `<!-- leaderboard NAME -->` and `<!-- /leaderboard -->`.

    Raises:
        UserError: the file does not exist, lacks a marker, or cannot be written.
    """
    from bench.store.files import replacing

    if path.exists() and not path.is_file():  # a device may have no end
        raise UserError(f"cannot write into {path}: it is not a file")
    try:
        content = path.read_bytes().decode()
        for name, text in texts.items():
            begin, end = f"<!-- leaderboard {name} -->", "<!-- /leaderboard -->"
            head, found, rest = content.partition(begin)
            old, closed, tail = rest.partition(end)
            if not found or not closed or "<!-- leaderboard" in old:
                raise UserError(f"{path} has no markers for this board: add the lines {begin} and {end}, in this order")
            content = f"{head}{begin}\n{text}{end}{tail}"
        with replacing(path.resolve()) as temporary:
            temporary.write_bytes(content.encode())
            temporary.chmod(path.stat().st_mode)
    except OSError as error:
        raise UserError(f"cannot write into {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UserError(f"cannot write into {path}: it is not text in UTF-8") from None


def remark(kind: str, text: object) -> None:
    """Print an error, a warning or a note on standard error: one line, whatever characters names in it have."""
    print(f"bench: {kind}: {clean(str(text))}", file=sys.stderr)


def warn_of(stores: "Stores", damaged: Iterable[object] = ()) -> int:
    """Warn of files that cannot be read, and of runs stored twice.

    Args:
        stores: the stores that were read.
        damaged: other damaged files, in words.

    Returns:
        The exit code: 1 if something was left out.
    """
    lines = dict.fromkeys(map(str, [*stores.damaged, *damaged]))
    for what in lines:
        remark("warning", f"{what}; it is ignored")
    for run_id in stores.conflicts:
        remark("warning", f"{run_id} is stored several times with different results; one of them is used")
    return 1 if lines else 0


def note(text: str | None) -> None:
    """Print the text, if any, on standard error."""
    if text is not None:
        print(clean(f"bench: {text}"), file=sys.stderr, flush=True)


def check_output(folder: Path) -> None:
    """Check before hours of training that a folder can be created and written, without leaving a trace.

    Raises:
        UserError: it cannot.
    """
    from bench.store.files import existing

    with writing(folder), TemporaryFile(dir=existing(folder)):
        pass


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn disk errors into one line for the user.

    Args:
        place: what is written.

    Raises:
        UserError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write to {place}: {error.strerror or error}; choose another with --out DIR") from None
