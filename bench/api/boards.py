"""The entries of boards that a call selects, and the boards shown."""

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.errors import UserError, check_known, unknown
from bench.output import Answer, format_of, open_stores, remark, warn_of, write

if TYPE_CHECKING:
    from bench.api.results import Table
    from bench.boards.collect import Collected
    from bench.results.table import Board
    from bench.store.stores import Stores

BOARD_NAMES = ("quality", "pairs", "speed", "theory", "attention")


@contextmanager
def reading() -> Iterator[None]:
    """Read many records, which have no cycles: looking for them takes a third of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class Chosen(NamedTuple):
    """The stores, and their entries that a call selects."""

    stores: "Stores"
    entries: "Collected"

    def warn(self) -> int:
        """Report on standard error what is damaged or excluded; return the exit code."""
        code = warn_of(self.stores, sorted(set(self.entries.damaged)))
        for note in self.entries.notes:
            remark("note", note)
        return code

    @property
    def left_out(self) -> dict[str, list[str]]:
        """What is damaged or excluded, for JSON."""
        damaged = [*map(str, self.stores.damaged), *self.entries.damaged]
        return {"damaged": list(dict.fromkeys(damaged)), "notes": self.entries.notes}


def requested(folders: Sequence[Path], *, shipped: bool, target: float | None, **choice: Any) -> Chosen:
    """The entries of boards.

    Args:
        folders: stores; by default the one of this folder.
        shipped: whether to read the reference results.
        target: value of the metric that counts as reached.
        choice: as for `bench.boards.collect.collect`.

    Raises:
        UserError: there is nothing to show, or a name is unknown.
    """
    from bench.boards.collect import collect

    stores = open_stores(folders, reference=shipped)
    with reading():
        collected = collect(stores, target=target, **choice)
    reference = choice["reference"]
    names = sorted({name for entry in collected.chosen for name in (entry.opt, entry.name)})
    if reference is not None and reference not in names:
        raise unknown("optimizer of --reference", reference, names)
    metrics = sorted({problem.metric for problem in collected.problems})
    if target is not None and len(metrics) > 1:
        raise UserError(f"--target {target:g}: which of {' and '.join(metrics)}? Choose tasks with --task")
    return Chosen(stores, collected)


def finite(target: float | str | None) -> float | None:
    """The value of a target; None stays; UserError if it is not a finite number."""
    with suppress(TypeError, ValueError):
        if target is None or math.isfinite(float(target)):
            return target if target is None else float(target)
    raise UserError(f"--target {target}: it is not a finite number")


def explained(chosen: Chosen, row: str, out: Path | None) -> Answer:
    """How a row came about."""
    from bench.boards.explain import explain, lines

    rows = explain(chosen.entries, row)
    text = [line for row in rows for line in lines(row)]
    code = chosen.warn()
    if out is not None:
        write(out, "\n".join(text))
    return Answer(rows, [] if out is not None else text, code)


def format_of_boards(out: Path | None, format: str | None) -> str:
    """The requested format, else that of the file, else a table; UserError if there is no such format."""
    from bench.results.render import FORMATS

    check_known("format", [] if format is None else [format], FORMATS)
    return format or ("table" if out is None else format_of(out, FORMATS))


def leaderboard(chosen: Chosen, names: Sequence[str] | None, out: Path | None, kind: str) -> "Table":
    """The boards, written to a file if given; UserError if there is no such board, or nothing to compare."""
    from bench.api.results import Table
    from bench.boards import BOARDS
    from bench.boards.collect import NO_ROWS
    from bench.boards.matrix import summary
    from bench.results.render import written

    makers: Mapping[str, Callable[[Collected], Board]] = BOARDS
    expanded = dict.fromkeys(BOARD_NAMES if "all" in (names or ()) else names or ["quality"])
    boards = [_foreign(chosen, name) if ":" in name else makers[name](chosen.entries) for name in expanded]
    code = chosen.warn()
    if not chosen.entries.entries:
        raise UserError(f"nothing to compare: {NO_ROWS}")
    left_out = [text for several in chosen.left_out.values() for text in several]
    first = None if out is None else ""
    if names is None and kind == "table" and out is None:
        first = summary(chosen.entries)
    if out is not None:
        write(out, written(boards, kind, out))
    return Table(boards, tuple(dict.fromkeys(left_out)), kind, code, first)


def _foreign(chosen: Chosen, name: str) -> "Board":
    """The board of a function `file.py:NAME` or `module:NAME`, from the DataFrame of the shown runs.

    Raises:
        UserError: it cannot be imported, raises an error, or returns no DataFrame.
    """
    import pandas as pd

    from bench.browse.sql import frame
    from bench.results.table import Board, Column, Table
    from optimizers.plugins import PluginError, load

    rows = {run.run_id: entry for entry in chosen.entries.entries for run in entry.runs.values()}
    runs = frame(chosen.stores, "runs", [*rows])
    runs.insert(0, "name", [rows[run_id].name for run_id in runs["run_id"]])
    runs.insert(0, "problem", [rows[run_id].problem.name for run_id in runs["run_id"]])
    try:
        table = load(name)(runs)
    except PluginError as error:
        raise UserError(f"--board {error}") from None
    except Exception as error:
        raise UserError(f"--board {name}: it raises {type(error).__name__}: {error}") from None
    if not isinstance(table, pd.DataFrame):
        raise UserError(f"--board {name}: it returned a {type(table).__name__}; return a pandas DataFrame")
    columns = [Column(str(column), str(column)) for column in table.columns]
    cells = table.astype(object).where(table.notna(), None).to_numpy().tolist()
    title = name.rpartition(":")[2]
    notes = [str(note) for note in table.attrs.get("notes", ())]
    return Board(title, title, [Table.of(columns, cells, title)], notes)
