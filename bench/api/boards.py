"""The entries of boards that a call selects, and the boards shown."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.errors import UserError, check_known, unknown
from bench.output import Answer, format_of, open_stores, remark, warn_of, write

if TYPE_CHECKING:
    from bench.api.results import Table
    from bench.boards.collect import Collected
    from bench.store.stores import Stores

BOARD_NAMES = ("quality", "pairs", "speed", "theory", "attention")


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
    collected = collect(stores, target=target, **choice)
    known = sorted({name for entry in collected.chosen for name in (entry.opt, entry.name)})
    reference = choice["reference"]
    if reference is not None and reference not in known:
        raise unknown("optimizer of --reference", reference, known)
    metrics = sorted({problem.metric for problem in collected.problems})
    if target is not None and len(metrics) > 1:
        raise UserError(f"--target {target:g}: which of {' and '.join(metrics)}? Choose tasks with --task")
    return Chosen(stores, collected)


def finite(target: float | str | None) -> float | None:
    """The value of a target; None stays.

    Raises:
        UserError: it is not a finite number.
    """
    try:
        value = None if target is None or isinstance(target, bool) else float(target)
    except (TypeError, ValueError):
        value = math.nan
    if target is not None and (value is None or not math.isfinite(value)):
        raise UserError(f"--target {target}: it is not a finite number")
    return value


def explained(chosen: Chosen, row: str, out: Path | None) -> Answer:
    """How a row came about."""
    from bench.boards.explain import explain, lines

    rows = explain(chosen.entries, row)
    text = [line for each in rows for line in lines(each)]
    code = chosen.warn()
    if out is not None:
        write(out, "\n".join(text))
    return Answer(rows, [] if out is not None else text, code)


def format_of_boards(out: Path | None, format: str | None) -> str:
    """The requested format, else that of the file, else a table.

    Raises:
        UserError: there is no such format.
    """
    from bench.results.render import FORMATS

    check_known("format", [] if format is None else [format], FORMATS)
    return format or ("table" if out is None else format_of(out, FORMATS))


def leaderboard(chosen: Chosen, names: Sequence[str] | None, out: Path | None, kind: str) -> "Table":
    """The boards, written to a file if given.

    Raises:
        UserError: there is no such board, or nothing to compare.
    """
    from bench.api.results import Table
    from bench.boards import BOARDS
    from bench.boards.collect import NO_ROWS
    from bench.boards.matrix import summary
    from bench.results.render import written

    every = names or ["quality"]
    boards = [BOARDS[name](chosen.entries) for name in dict.fromkeys(BOARD_NAMES if "all" in every else every)]
    code = chosen.warn()
    if not chosen.entries.entries:
        raise UserError(f"nothing to compare: {NO_ROWS}")
    left_out = [text for several in chosen.left_out.values() for text in several]
    first = None if out is None else ""
    if names is None and kind == "table" and out is None:
        first = summary(chosen.entries)
    table = Table(boards, tuple(dict.fromkeys(left_out)), kind, code, first)
    if out is not None:
        write(out, written(boards, kind, out))
    return table
