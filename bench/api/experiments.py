"""`bench quickstart` and `bench reproduce`: a first comparison within seconds, and the experiments of papers."""

from pathlib import Path
from typing import Unpack

from bench.api.calls import Call, Executing, Place, Seeds, Settings, path_of, public
from bench.api.stores import list_
from bench.config.values import counts_seeds, experiments, read_seeds
from bench.errors import UserError, check_known
from bench.output import Answer, write
from bench.progress import doing
from bench.terminal import wrapped_lines

RESULTS = Path(__file__).parents[2] / "results"
"""The shipped pages of papers, of a clone."""
TASK, OPTS, STEPS, SEEDS = "synthetic", ("gd", "ngd", "ps", "adam"), 100, 7
"""The comparison of `quickstart`. Seven seeds are the fewest that can decide a verdict (`bench.results.sequential`)."""
HONEST = "Defaults without tuning, on a toy problem: this shows what a comparison looks like, not which is best."
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
        from bench.execute.request import results_of
        from bench.plots.theme import check_ending
        from bench.progress import SweepProgress

        check_ending(file)
        chosen = {"task": TASK, "trainer.max_steps": str(STEPS), "device": "cpu"}
        runs = ({**chosen, "opt": opt, "seed": seed} for opt in OPTS for seed in range(SEEDS))
        configs = [resolve(settings, fallback=places) for settings in runs]
    # One width for all: measuring would take longer than training.
    effort = Effort(engine="lanes", width=SEEDS)
    results = results_of(configs, SweepProgress("quickstart", "min", enabled=progress), effort, plan="quickstart")
    from bench.boards.collect import collect
    from bench.boards.matrix import headline, summary
    from bench.boards.quality import quality
    from bench.plots.curves import curves
    from bench.results.render import as_json
    from bench.store.stores import Stores

    stores = Stores([places["store"]])
    stores.runs, stores.studies = results, []
    collected = collect(stores, mixed_versions=True)
    write(file, curves(collected).picture(file.suffix))
    (verdict,) = (headline(collected, problem) for problem in collected.problems)
    boards, notes = [quality(collected)], [verdict, HONEST]
    text = [summary(collected), *wrapped_lines(verdict), "", *wrapped_lines(HONEST), NEXT]
    return Answer({"boards": as_json(boards), "said": notes, "plot": file}, text, boards=boards, notes=notes)


@public
def reproduce(
    name: str | None = None,
    *,
    list: bool = False,
    claims: bool = False,
    quick: bool = False,
    search: bool = False,
    seeds: Seeds | None = None,
    out: Place | None = None,
    device: str = "auto",
    settings: Settings | None = None,
    **more: Unpack[Executing],
) -> Answer:
    """Run a paper's experiment and write a figure, the data behind it, and a page with tested claims.

    Settings in dotted form, as in `bench fit`, change all arms: --trainer.max_epochs 5. A claim holds, fails or is
    undecided only for an experiment as its paper defines it; the page 'Reproduce a paper' of the docs defines the other
    verdicts.

    Args:
        name: an experiment of `bench list experiments`.
        list: list the experiments.
        claims: show the shipped verdicts on the claims of all papers, or of paper NAME.
        quick: few seeds and steps, under a minute; not evidence.
        search: also search the constants that the paper does not state.
        seeds: a number (5: those of the experiment first, then the next integers) or a list (0,1,2; 10:15).
        out: folder of the output (default: reproduced/NAME, NAME-quick, NAME-changed).
    """
    if list:
        return list_("experiments")
    if claims:
        from bench.papers.shipped import board, read
        from bench.results import render

        boards = [board(read(RESULTS, name))]
        answer = Answer(render.as_json(boards), [render.printed(boards)] * (out is None), boards=boards)
        if out is not None:
            answer.write(out)
        return answer
    call = Call({**more, "settings": settings})
    if name is None:
        raise UserError("name an experiment: bench reproduce NAME; see `bench list experiments`")
    check_known("experiment", [name], experiments())
    with doing("reading the experiment"):
        from bench.execute.request import dry_run
        from bench.papers import reproduce as papers
        from bench.papers.reproduction import Version, as_json, claim_lines

    places = {**call.places, "device": call.words.pop("device", device)}
    chosen = None if seeds is None else read_seeds(seeds)
    number = len(chosen) if chosen and seeds is not None and counts_seeds(seeds) else chosen
    version = Version(quick, search, number, call.words)
    kind = "-quick" * quick + "-changed" * bool(call.words or seeds is not None)  # so that the real page stays
    folder = path_of(out) or Path("reproduced") / f"{name}{kind}"
    if call.dry_run:
        todo = [job for point in papers.ask(name, places, version) for job in point.jobs]
        about = [{"arm": arm, "seed": config.seed} for arm, config in todo]
        return dry_run([config for _, config in todo], call.effort, about)
    result = papers.reproduce(name, folder, places, version, call.effort)
    return Answer({"out": folder, **as_json(result)}, claim_lines(result, folder))
