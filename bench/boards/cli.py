"""The command leaderboard, and what report and plot share with it."""

import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bench.errors import UserError, check_known, unknown
from bench.grammar.parse import Args
from bench.output import answer, format_of, open_stores, remark, warn_of, write, write_into

if TYPE_CHECKING:
    from bench.results.table import Board


def requested(args: Args) -> tuple[Any, Any]:
    """The stores, and their entries that these arguments ask for.

    Raises:
        UserError: there is nothing to show, or a name is unknown.
    """
    from bench.boards.collect import collect

    only: dict[str, str] = {}
    for word in args.only:
        name, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"--only {word}: write NAME=VALUE, as in --only trainer.max_steps=1000")
        only[name.removeprefix("--")] = value
    stores = open_stores(args)
    collected = collect(
        stores,
        tasks=args.task,
        opts=args.opt,
        only=only,
        settings=args.settings,
        mixed_versions=args.mixed_versions,
        reference=args.reference,
        target=args.target,
    )
    known = sorted({name for entry in collected.chosen for name in (entry.opt, entry.name)})
    _label(collected, args.label, known)
    if args.reference is not None and args.reference not in known:
        raise unknown("optimizer of --reference", args.reference, known)
    metrics = sorted({problem.metric for problem in collected.problems})
    if args.target is not None and len(metrics) > 1:
        raise UserError(f"--target {args.target:g}: which of {' and '.join(metrics)}? Choose tasks with --task")
    return stores, collected


def _label(collected: Any, words: list[str], known: list[str]) -> None:
    """Rename rows; the label of a row precedes that of its optimizer.

    Raises:
        UserError: a row is unknown, or two rows of a problem would have the same name.
    """
    texts: dict[str, str] = {}
    for word in words:
        name, equals, text = word.rpartition("=")
        if not (equals and name and text):
            raise UserError(f"--label {word}: write NAME=TEXT, as in --label my_opt.py:MyOpt=Ours")
        if name not in known:
            raise unknown("row of --label", name, known)
        texts[name] = text
    for entry in collected.chosen:
        renamed = texts.get(entry.name) or entry.name.replace(entry.opt, texts.get(entry.opt, entry.opt), 1)
        if collected.reference == entry.name != entry.opt:
            collected.reference = renamed
        entry.name = renamed
    count = Counter((entry.problem.name, entry.name) for entry in collected.chosen)
    for (problem, name), n in count.items():
        if n > 1 and name in texts.values():
            raise UserError(f"--label: {n} rows of {problem} would be called {name!r}; give them different names")


def warn(stores: Any, collected: Any) -> int:
    """Report on standard error what is damaged or excluded; return the exit code."""
    code = warn_of(stores, sorted(set(collected.damaged)))
    for note in collected.notes:
        remark("note", note)
    return code


def left_out(stores: Any, collected: Any) -> dict[str, list[str]]:
    """What is damaged or excluded, for JSON."""
    return {"damaged": list(dict.fromkeys([*map(str, stores.damaged), *collected.damaged])), "notes": collected.notes}


def run_leaderboard(args: Args) -> int:
    """`bench leaderboard`: 0 done, 1 a run could not be read."""
    for name in ("out", "json"):
        if args.into is not None and getattr(args, name):
            raise UserError(f"--into {args.into}: not allowed with --{name}; remove one of them")
    if args.explain is not None:
        if args.json and args.out is not None:
            raise UserError("--json prints the explanation; remove --out")
        for name in ("into", "columns", "board", "all"):
            if getattr(args, name):
                raise UserError(f"--{name}: --explain prints no board; remove one of them")
    from bench.boards import BOARDS
    from bench.boards.collect import NO_ROWS
    from bench.boards.matrix import summary
    from bench.results.render import FORMATS, markdown, written

    kind = format_of(args, FORMATS)
    names = list(dict.fromkeys(["all"] if args.all else args.board or ["quality"]))
    check_known("board", names, [*BOARDS, "all"])
    stores, what = requested(args)
    if args.explain is not None:
        from bench.boards.explain import explain, lines

        explained = explain(what, args.explain)
        code = warn(stores, what)
        if args.json:
            answer(explained)
        else:
            write(args.out, "\n".join(line for row in explained for line in lines(row)))
        return code
    boards = [BOARDS[name](what) for name in (BOARDS if "all" in names else names)]
    if args.columns:
        boards = _with_columns(boards, args.columns)
    code = warn(stores, what)
    if not what.entries:
        raise UserError(f"nothing to compare: {NO_ROWS}")
    if kind == "table" and args.out is None and not (args.into or args.columns or args.board or args.all):
        write(None, summary(what))
    elif args.into is not None:
        write_into(args.into, {board.name: markdown([board], 4) for board in boards})
        print(f"written into {args.into}", file=sys.stderr)
    else:
        write(args.out, written(boards, kind, args.out))
    return code


def _with_columns(boards: "list[Board]", names: list[str]) -> "list[Board]":
    """The boards with the optimizers and these columns alone, without tables that lack them."""
    check_known("column", names, sorted({c.key for board in boards for table in board.tables for c in table.columns}))
    kept = []
    for board in boards:
        tables = [replace(t, columns=[c for c in t.columns if c.key in ("opt", *names)]) for t in board.tables]
        kept.append(replace(board, tables=[table for table in tables if len(table.columns) > 1]))
    return kept
