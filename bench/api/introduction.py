"""`bench quickstart`: a first comparison within seconds, with the parts of other commands.

It trains four optimizers at their defaults as lanes (`bench sweep`), ranks them on the board `quality`
(`bench leaderboard`), and draws their training curves (`bench plot curves`).
"""

import os
import textwrap
from dataclasses import replace
from pathlib import Path

from bench.api import parameters as p
from bench.api.calls import Call, public
from bench.output import Answer, write
from bench.progress import doing

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


@public
def quickstart(*, out: p.Place = "quickstart.png", store: p.Place | None = None, progress: bool = True) -> Answer:
    """Train four optimizers on a small task with seven seeds, rank them, and draw their curves.

    Nothing is downloaded or tuned. If its runs are stored, it takes about 2 s.

    Args:
        out: plot, ends in .png, .pdf, .svg or .html (default: quickstart.png).
    """
    file, places = Path(out), Call({"store": store}).places
    with doing("reading the settings"):
        from bench.config.run_config import resolve
        from bench.execute import Effort
        from bench.execute.command import results_of
        from bench.plots.theme import check_ending
        from bench.progress import SweepProgress

        check_ending(file)
        chosen = {"task": TASK, "trainer.max_steps": str(STEPS), "device": "cpu"}
        runs = ({**chosen, "opt": opt, "seed": seed} for opt in OPTS for seed in range(SEEDS))
        configs = [resolve(settings, fallback=places) for settings in runs]
    # One width for all: measuring would take longer than training.
    effort = Effort(engine="lanes", width=SEEDS)
    results = results_of(configs, SweepProgress("quickstart", "min", enabled=progress), effort, plan="quickstart")
    from bench.boards.collect import Collected
    from bench.boards.matrix import headlines
    from bench.boards.quality import quality
    from bench.plots.curves import curves
    from bench.results.render import as_json, written
    from bench.store.stores import Stores

    collected = Collected.of(results, Stores([places["store"]]).tables)
    write(file, curves(collected).picture(file.suffix))
    board = quality(collected)
    (table,) = board.tables
    columns = [column for column in table.columns if column.key in SHOWN]
    board = replace(board, tables=[replace(table, columns=columns, notes=table.notes[1:])], notes=[])
    ((_, verdict),) = headlines(collected)
    tests = f"Sign tests over {SEEDS} seeds decide; at most 5 % of the verdicts of a row are false."
    sentences = [f"{verdict} {tests}", HONEST]
    data = {"boards": as_json([board]), "said": sentences, "plot": file, "next": [command for command, _ in NEXT]}
    prefix = "uv run " * ("UV_RUN_RECURSION_DEPTH" in os.environ)
    following = [f"  {prefix + command:<74} {why}" for command, why in NEXT]
    words = [textwrap.fill(text, 100) + "\n" for text in sentences]
    return Answer(data, [written([board], "table", None), *words, "Try next:", *following])
