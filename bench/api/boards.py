"""Stored runs that a call selects, as boards, charts and the report."""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from bench.api.calls import Choice, Names, Place, folders, names, pairs, path_of, public
from bench.errors import UserError, check_known, unknown
from bench.output import Answer, check_output, format_of, note, open_stores, warn_of, write
from bench.text import cell

if TYPE_CHECKING:
    import altair as alt

    from bench.boards.collect import Collected
    from bench.results.table import Board
    from bench.store.stores import Stores

BOARD_NAMES = ("quality", "pairs", "speed", "theory", "attention")


def _warned(stores: "Stores", entries: "Collected") -> tuple[int, dict[str, list[str]]]:
    """Report what is damaged or excluded on standard error; the exit code, and the same for JSON."""
    code = warn_of(stores, sorted(set(entries.damaged)))
    for text in entries.notes:
        note(f"note: {text}")
    damaged = [*map(str, stores.damaged), *entries.damaged]
    return code, {"damaged": list(dict.fromkeys(damaged)), "notes": entries.notes}


def _chosen(
    choice: Mapping[str, Any], target: float | None = None, *, community: bool = False
) -> tuple["Stores", "Collected"]:
    """The stores, and the entries that arguments of `bench.api.calls.Choice` select (UserError)."""
    from bench.boards.collect import collect

    if target is not None and not math.isfinite(target):
        raise UserError(f"--target {target}: it is not a finite number")
    is_alone = choice.get("no_reference", False)
    stores = open_stores(folders(choice.get("store")), reference=not is_alone, community=community)
    reference = choice.get("reference")
    entries = collect(
        stores, tasks=names("task", choice.get("task")), opts=names("opt", choice.get("opt")),
        only=pairs("only", choice.get("only")), settings=choice.get("settings", "best"), reference=reference,
        target=target,
    )  # fmt: skip
    opts = sorted({name for entry in entries.chosen for name in (entry.opt, entry.name)})
    if reference is not None and reference not in opts:
        raise unknown("optimizer of --reference", reference, opts)
    metrics = sorted({problem.metric for problem in entries.problems})
    if target is not None and len(metrics) > 1:
        raise UserError(f"--target {target:g}: which of {' and '.join(metrics)}? Choose tasks with --task")
    return stores, entries


@public
def leaderboard(
    board: Names | None = None,
    *,
    all: bool = False,
    explain: str | None = None,
    out: Place | None = None,
    target: float | None = None,
    community: bool = False,
    **choice: Unpack[Choice],
) -> Answer:
    """Compare optimizers from the stored runs, with verdicts that stay valid when seeds are added, and intervals.

    Exit code 1: a run could not be read.

    Args:
        board: quality (final metric at the tuned settings), pairs (all pairs of optimizers), speed (steps and seconds
            to the target), theory (alignment, rates), attention (runs with --trainer.observe), or a function of yours
            (my_board.py:board); without one, the verdicts of all optimizers on all tasks (in a file: quality).
        all: all boards.
        explain: explain this row instead: search space, trials, split, cost, reductions, commands.
        out: write to this file: .md, .csv, .json, .tex, .html or .txt.
        target: value of the metric that counts as reached, for `speed` (default: the task's).
        community: also show the results that others have submitted, marked (see 'Submit results' in the docs).
    """
    from bench.results.render import FORMATS, as_json, printed

    file, requested = path_of(out), names("board", board)
    if all:
        requested = [*BOARD_NAMES, *(requested or [])]
    if file is not None:
        format_of(file, FORMATS)  # fail before the boards are made
    check_known("board", [name for name in requested or [] if ":" not in name], BOARD_NAMES)
    stores, entries = _chosen(choice, target, community=community)
    if explain is not None:
        from bench.boards import explain as explanations

        rows = explanations.explain(entries, explain)
        text = [line for row in rows for line in explanations.lines(row)]
        code, _ = _warned(stores, entries)
        if file is not None:
            write(file, "\n".join(text))
        return Answer(rows, [] if file is not None else text, code)
    from bench.boards import BOARDS
    from bench.boards.collect import NO_ROWS
    from bench.boards.matrix import summary

    shown = dict.fromkeys(requested or ["quality"])
    boards = [_foreign(stores, entries, name) if ":" in name else BOARDS[name](entries) for name in shown]
    code, left_out = _warned(stores, entries)
    if not entries.entries:
        raise UserError(f"nothing to compare: {NO_ROWS}")
    notes = dict.fromkeys(text for texts in left_out.values() for text in texts)
    answer = Answer(partial(as_json, boards), [], code, boards, [*notes])
    if file is not None:
        answer.write(file)
    else:
        answer.lines = [summary(entries) if requested is None else printed(boards)]
    return answer


def _foreign(stores: "Stores", entries: "Collected", name: str) -> "Board":
    """The board of a function `file.py:NAME` or `module:NAME` of the DataFrame of the shown runs (UserError)."""
    import pandas as pd

    from bench.browse.sql import frame
    from bench.results.table import Board, Column, Table
    from optimizers.plugins import PluginError, load

    rows = {run.run_id: entry for entry in entries.entries for run in entry.runs.values()}
    runs = frame(stores, "runs", [*rows])
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
    if table.index.names != [None]:  # the keys of a groupby
        table = table.reset_index(allow_duplicates=True)
    heads = [*map(str, table.columns)]
    if twice := [head for head in heads if heads.count(head) > 1]:
        raise UserError(f"--board {name}: it returned the column {twice[0]!r} twice; rename one")
    notes = table.attrs.get("notes", [])
    notes = notes if isinstance(notes, list | tuple) else [notes]
    cells = table.astype(object).where(table.notna(), None).to_numpy().tolist()
    title = name.rpartition(":")[2]
    columns = [Column(head, head) for head in heads]
    return Board(title, title, [Table.of(columns, cells, title)], [*map(str, notes)])


@public
def report(*, out: Place = "report.html", **choice: Unpack[Choice]) -> Answer:
    """Write boards, charts and the commands behind each row as one HTML page that needs no network.

    The same store gives a bit-identical page. Exit code 1: a run could not be read.

    Args:
        out: the page (default: report.html).
    """
    from bench.plots.report import page

    file = Path(out)
    if file.suffix.lower() not in (".html", ".htm") or file.is_dir():
        raise UserError(f"-o {out}: the report is a page; name a file that ends in .html")
    if not file.exists():
        check_output(file.parent)  # fail before the boards are made
    stores, entries = _chosen(choice)
    text = page(entries, stores)
    code, left_out = _warned(stores, entries)
    write(file, text)
    return Answer({"out": file, "runs": len(stores.runs), **left_out}, [], code)


@public
def plot(
    chart: Literal["forest", "curves", "sensitivity", "profile", "attention"] = "forest",
    *,
    out: Place | None = None,
    y: str = "loss",
    x: Literal["steps", "epochs", "seconds"] = "steps",
    **choice: Unpack[Choice],
) -> "alt.TopLevelMixin | Answer":
    """Draw stored runs for a paper, one panel per problem.

    Exit code 1: a run could not be read.

    Args:
        chart: forest: effect of each optimizer against the reference, with interval and verdict; curves: training
            loss, or --y COLUMN, against optimizer steps; sensitivity: score of each trial against the searched
            settings; profile: share of runs that have reached the target against the budget; attention: measurements
            of runs with --trainer.observe.
        out: file, ends in .png, .pdf, .svg or .html; Python returns an Altair chart without one.
        y: for curves: a column such as grad_norm or alignment, or an evaluated quantity such as accuracy or val_loss
            (default loss).
        x: for curves (default steps).
    """
    from bench.boards.collect import NO_ROWS
    from bench.plots.charts import CHARTS, curves
    from bench.plots.theme import check_ending

    for name, value, default in (("y", y, "loss"), ("x", x, "steps")):
        if value != default and chart != "curves":
            raise UserError(f"--{name} {value}: only curves have selectable axes, not {chart}")
    if (file := path_of(out)) is not None:
        check_ending(file)
    stores, entries = _chosen(choice)
    figure = curves(entries, y, x) if chart == "curves" else CHARTS[chart](entries)
    tasks = sorted({panel.problem.partition(",")[0] for panel in figure.panels if panel.lines})
    if chart == "attention" and len(tasks) > 1 and choice.get("task") is None:
        raise UserError(f"--task is missing: name one or more of {', '.join(tasks)}")
    code, left_out = _warned(stores, entries)
    if not figure.drawn:
        why = "; ".join(f"{cell(panel.title)}: {cell('; '.join(panel.notes))}" for panel in figure.panels)
        raise UserError(f"nothing to draw: {why or NO_ROWS}")
    if file is None:
        return figure.altair()
    write(file, figure.picture(file.suffix))
    for panel in (panel for panel in figure.panels if not panel.lines):
        note(f"note: {panel.title}: not drawn, since {'; '.join(panel.notes)}")
    rows = [{"title": one.title, "drawn": bool(one.lines), "note": "\n".join(one.notes)} for one in figure.panels]
    return Answer({"out": file, "panels": rows, **left_out}, [], code)
