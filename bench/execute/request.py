"""Runs of a request: read from the store or trained."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from bench.config.checks import check_engine, check_places
from bench.config.files import Sources
from bench.config.run_config import RunConfig, on_device
from bench.errors import RunFailed
from bench.execute import CONTINUES, Effort
from bench.execute.blocks import check_all, missing
from bench.output import Answer, note
from bench.progress import SweepProgress, doing
from bench.store.record import RunResult
from bench.store.stores import Contents
from bench.text import counted, options_text


def dry_run(configs: Sequence[RunConfig], effort: Effort, about: Iterable[Mapping[str, Any]]) -> Answer:
    """The runs of a request with what distinguishes each, after their checks (UserError)."""
    check_all(configs)
    check_engine(effort.engine, configs)
    runs = {config.run_id: settings for config, settings in zip(configs, about, strict=True)}
    note(f"{counted(len(runs), 'run')}, {len(missing(configs))} of them to be trained")
    return Answer(runs, [f"{run_id}  {options_text(settings)}" for run_id, settings in runs.items()])


def results_of(
    configs: Sequence[RunConfig],
    progress: SweepProgress,
    effort: Effort,
    *,
    plan: str,
    sources: Sources | None = None,
) -> list[RunResult]:
    """The results of runs in order, after training missing ones; the arguments are those of `execute`.

    The runs are checked (`bench.execute.blocks.check_all`, `early` at least). Torch is imported only if something is
    left to do. Errors are those of `execute`; it is a KeyboardInterrupt if a signal stopped it, or the budget is spent.
    """
    store, left, budget = configs[0].store, missing(configs), effort.budget
    if len(left) < len(configs):
        progress.say(f"{f'{len(configs) - len(left)} of' if left else 'all'} {len(configs)} runs are stored")
    if left:
        check_places(list(left.values()))
        with doing("importing torch"):
            from bench.execute.cluster import Crew
            from bench.execute.execute import execute
            from bench.train.stop import deadline

        # Pass all runs, also the stored ones: the blocks depend on all.
        crew = Crew(effort, on_device(configs[0]), len(configs))
        with crew, redirect_stdout(sys.stderr), deadline(budget and budget.seconds) as spent:
            done = execute(configs, progress, crew, plan=plan, sources=sources)
        if not done:
            stored = f"{len(configs) - len(missing(configs))} of {len(configs)} runs are stored"
            over = budget is not None and spent() and f"the budget of {budget.text} is spent; {stored}"
            raise KeyboardInterrupt(f"{over or 'stopped; finished runs are stored'}, and {CONTINUES}")
    results = Contents([store], (config.run_id for config in configs)).finished
    if lost := sum(config.run_id not in results for config in configs):
        raise RunFailed(f"{lost} of {len(configs)} runs are missing in {store}; repeat the call")
    return [results[config.run_id] for config in configs]
