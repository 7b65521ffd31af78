"""`bench quickstart`: a first comparison within seconds, with the parts of other commands.

It trains four optimizers at their defaults as lanes (`bench sweep`), ranks them on the board `quality`
(`bench leaderboard`), and draws their training curves (`bench plot curves`).
"""

import os
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.grammar.parse import Args
from bench.output import answer, write
from bench.progress import doing
from bench.text import listed

if TYPE_CHECKING:
    from bench.boards import Board

TASK, OPTS, STEPS, SEEDS = "synthetic", ("gd", "ngd", "ps", "adam"), 100, 7
"""The comparison. Seven seeds are the fewest that can decide a verdict (`bench.results.sequential`)."""
SHOWN = ("opt", "final", "verdict", "won", "effect", "n")
"""Columns of the board that are needed at first."""
HONEST = (
    f"All four ran at their default settings, without tuning, and {TASK} is a small problem of random tokens. The"
    " table shows the format of a comparison. It does not show which optimizer is best."
)
NEXT = (
    ("bench compare --task mha_dm1 --opt ngd --trainer.max_steps 50", "tune both sides, then compare"),
    ("bench new optimizer my_opt", "write your own"),
    ("bench report -o report.html", "all boards and plots on one page"),
)
"""Suggested next commands, with reasons."""


def main(args: Args) -> int:
    """`bench quickstart` with these arguments: 0 done, 130 stopped.

    Raises:
        UserError: the request is invalid.
        RunFailed: as in `bench.execute.execute.execute`.
    """
    with doing("reading the settings"):
        from bench.config.run_config import resolve
        from bench.execute import Effort
        from bench.execute.command import results_of
        from bench.plots.theme import check_ending
        from bench.progress import SweepProgress

        check_ending(args.out)
        chosen = {"task": TASK, "trainer.max_steps": str(STEPS), "device": "cpu"}
        places = {"data": args.data, "store": args.store}
        configs = [
            resolve({**chosen, "opt": opt, "seed": str(seed)}, fallback=places) for opt in OPTS for seed in range(SEEDS)
        ]
    # One width for all: measuring would take longer than training.
    effort = Effort(engine="lanes", width=SEEDS)
    results = results_of(configs, SweepProgress("quickstart", "min"), effort, plan="quickstart")
    if results is None:
        return 130
    from bench.boards.collect import Collected
    from bench.boards.quality import quality
    from bench.plots.curves import curves
    from bench.results.render import as_json, written
    from bench.store.store import Store

    found = Collected.of(results, Store(args.store).tables)
    board = _short(quality(found))
    verdict = _said(board)
    out = args.out
    if not args.json:
        words = (textwrap.fill(said, 100) + "\n" for said in (verdict, HONEST))
        print(written([board], "table", None), *words, sep="\n", flush=True)
    write(out, curves(found).picture(out.suffix))
    if args.json:
        following = [command for command, _ in NEXT]
        answer({"boards": as_json([board]), "said": [verdict, HONEST], "plot": out, "next": following})
    else:
        typed = "uv run " * ("UV_RUN_RECURSION_DEPTH" in os.environ)
        print("\n".join(["Try next:", *(f"  {typed + command:<74} {why}" for command, why in NEXT)]))
    return 0


def _short(board: "Board") -> "Board":
    """The board with the columns `SHOWN`."""
    (table,) = board.tables
    columns = [column for column in table.columns if column.key in SHOWN]
    return replace(board, tables=[replace(table, columns=columns, notes=table.notes[1:])], notes=[])


def _said(board: "Board") -> str:
    """The verdicts in plain words."""
    by_verdict: dict[str, list[str]] = {}
    for row in board.tables[0].rows:
        by_verdict.setdefault(row["verdict"], []).append(row["opt"])
    ((reference,), said) = by_verdict.pop("reference"), []
    for verdict, loss in (("better", "lower"), ("worse", "higher")):
        if names := by_verdict.pop(verdict, []):
            said.append(f"{listed(names)} {'end' if len(names) > 1 else 'ends'} with a {loss} training loss")
    unclear = [name for names in by_verdict.values() for name in names]
    first = f"After {STEPS} steps {', and '.join(said)} than {reference}" if said else "No verdict is decided"
    open_ = f" No significant difference from {reference}: {listed(unclear)}." if unclear else ""
    return f"{first}: sign tests over {SEEDS} seeds, at most 5 % false verdicts per row.{open_}"
