"""`bench quickstart`: a first comparison within seconds, with the parts of `bench sweep`, `leaderboard` and `plot`."""

import textwrap
from pathlib import Path

from bench.api.calls import Call, Place, public
from bench.output import Answer, write
from bench.progress import doing

TASK, OPTS, STEPS, SEEDS = "synthetic", ("gd", "ngd", "ps", "adam"), 100, 7
"""The comparison. Seven seeds are the fewest that can decide a verdict (`bench.results.sequential`)."""
HONEST = (
    f"All four ran at their default settings, without tuning, and {TASK} is a small problem of random tokens:\n"
    "this shows the format of a comparison, not which optimizer is best."
)
NEXT = """
Try next:
  bench compare --task mha_dm1 --opt ngd --trainer.max_steps 50    tune both sides, then compare
  bench new optimizer my_opt                                       write your own
  bench report -o report.html                                      all boards and plots on one page"""


@public
def quickstart(*, out: Place = "quickstart.png", store: Place | None = None, progress: bool = True) -> Answer:
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
    from bench.boards.matrix import headline, summary
    from bench.boards.quality import quality
    from bench.plots.curves import curves
    from bench.results.render import as_json
    from bench.store.stores import Stores

    collected = Collected.of(results, Stores([places["store"]]).tables)
    write(file, curves(collected).picture(file.suffix))
    (verdict,) = (headline(collected, problem) for problem in collected.problems)
    boards = [quality(collected)]
    data = {"boards": as_json(boards), "said": [verdict, HONEST], "plot": file}
    return Answer(
        data,
        [summary(collected), textwrap.fill(verdict, 100), "", HONEST, NEXT],
        boards=boards,
        notes=[verdict, HONEST],
    )
