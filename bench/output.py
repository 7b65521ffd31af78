"""Common parts of commands that read stores and write a table, a page or a picture."""

import html
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from bench.config.values import community_folders, existing, place, reference_folder
from bench.errors import UserError
from bench.progress import say
from bench.text import clean

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from bench.plots.panels import Figure
    from bench.results.table import Board
    from bench.store.stores import Stores


@dataclass(eq=False, repr=False)
class Answer:
    """A result, which shows itself as text, in a notebook as HTML, and to programs as JSON."""

    data: Any  #: what `--json` prints, or a function that returns it
    lines: Sequence[str] | Callable[[], Sequence[str]]  #: the text, or a function that returns it
    code: int = 0  #: exit code of the command that prints it
    boards: Sequence["Board"] = ()  #: its tables as data, with their notes
    notes: Sequence[str] = ()  #: what was left out, or verdicts, in sentences
    chart: "Callable[[], Figure] | None" = None  #: returns its figure as data

    if TYPE_CHECKING:  # a function that also answers a dry run or a command returns this or a result

        def __getattr__(self, name: str) -> Any: ...

    def as_json(self) -> Any:
        """The data."""
        return self.data() if callable(self.data) else self.data

    def __str__(self) -> str:
        return "\n".join(self.lines() if callable(self.lines) else self.lines).rstrip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self.boards:
            return f"<pre>{html.escape(str(self))}</pre>"
        from bench.results.render import html_fragment
        from bench.results.table import Board

        return html_fragment([*self.boards, *[Board("notes", "", [], [*self.notes])] * bool(self.notes)])

    @property
    def table(self) -> "pd.DataFrame":
        """All rows with their values by column; `table` is a row's table by title. UserError if there are none yet."""
        import pandas as pd

        if not self.boards:
            raise UserError("there is no table: no run has ended on fresh seeds yet")
        return pd.concat([board.table for board in self.boards], ignore_index=True)

    def figure(self) -> "alt.TopLevelMixin":
        """The chart of the result; UserError if there is nothing to draw."""
        if self.chart is None or not (figure := self.chart()).drawn:
            raise UserError("there is nothing to draw: no run has ended yet")
        return figure.altair()

    def write(self, path: str | Path) -> None:
        """Write the tables to a file that ends in .md, .csv, .json, .tex, .html or .txt (UserError)."""
        from bench.results.render import FORMATS

        write(Path(path), FORMATS[format_of(Path(path), FORMATS)](self.boards))


def open_stores(folders: Sequence[Path], *, reference: bool = True, community: bool = False) -> "Stores":
    """Stores, by default the one of this folder if it exists, and the reference results unless left out."""
    from bench.store.stores import Stores

    shipped = reference_folder() if reference else None
    if not folders:
        default = place("store")
        folders = [] if shipped is not None and not os.path.lexists(default) else [default]
    return Stores(list(folders), shipped, community_folders() if community else [])


def existing_stores(folders: Sequence[Path]) -> list[Path]:
    """Stores, by default the one of this folder; none if that does not exist yet."""
    return list(folders) or [folder for folder in [place("store")] if folder.is_dir()]


def format_of(out: Path, formats: Iterable[str]) -> str:
    """The format of a file of tables, by its ending."""
    ending = out.suffix.lower()
    if ending in ("", ".txt") or (out.exists() and not out.is_file()):
        return "table"
    endings = [f".{kind}" for kind in formats if kind != "table"]
    if ending not in endings:
        raise UserError(f"-o {out}: {ending} names no format; use {', '.join(endings)} or .txt")
    return ending[1:]


def write(out: Path, content: bytes | str) -> None:
    """Write a file atomically (a pipe or a device directly), and say so."""
    from bench.store.files import replacing

    if out.is_dir():
        raise UserError(f"-o {out}: it is a folder; name a file")
    with writing(out, "-o FILE"):
        out.parent.mkdir(parents=True, exist_ok=True)
        is_device = out.exists() and not out.is_file()
        with nullcontext(out) if is_device else replacing(out.resolve()) as path:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    say(f"written to {out}")


@contextmanager
def writing(place: Path, option: str = "--out DIR") -> Iterator[None]:
    """Turn disk errors while a place is written into one line for the user, which names the option."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write to {place}: {error.strerror or error}; choose another with {option}") from None


def check_output(folder: Path) -> None:
    """Check before hours of training that a folder can be created and written, without leaving a trace."""
    with writing(folder), TemporaryFile(dir=existing(folder)):
        pass


def remark(kind: str, text: object) -> None:
    """Print an error or a warning on standard error: one line, whatever characters names in it have."""
    print(f"bench: {kind}: {clean(str(text))}", file=sys.stderr)


def note(text: str) -> None:
    """Print the text on standard error, unless progress is off."""
    say(clean(f"bench: {text}"))


def warn_of(stores: "Stores", damaged: Iterable[object] = ()) -> int:
    """Warn of files that cannot be read, `damaged` and in stores, and of runs stored twice; exit code 1 if any."""
    lines = dict.fromkeys(map(str, [*stores.damaged, *damaged]))
    for what in lines:
        remark("warning", f"{what}; it is ignored")
    for run_id in stores.conflicts:
        remark("warning", f"{run_id} is stored several times with different results; one of them is used")
    return int(bool(lines))
