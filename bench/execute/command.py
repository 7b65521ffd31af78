"""Runs of a command: found in the store or trained."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from bench.config.checks import check_engine, check_places
from bench.config.run_config import RunConfig
from bench.config.tuned import Sources
from bench.errors import RunFailed
from bench.execute import Effort
from bench.execute.blocks import check_all, missing
from bench.grammar.parse import Args
from bench.output import note, reply
from bench.progress import SweepProgress, doing
from bench.store.record import RunResult
from bench.store.store import Store
from bench.text import counted, options_text


def dry_run(args: Args, configs: Sequence[RunConfig], about: Iterable[Mapping[str, Any]]) -> int:
    """Check the runs of a command, and print each with what distinguishes it; on standard error, how many are missing.

    The exit code is 0; it is a UserError if a run cannot be trained, or not with this engine.
    """
    check_all(configs)
    check_engine(args.engine, configs)
    runs = {config.run_id: own for config, own in zip(configs, about, strict=True)}
    reply(args, runs, (f"{run_id}  {options_text(own)}" for run_id, own in runs.items()))
    note(f"{counted(len(runs), 'run')}, {len(missing(configs))} of them to be trained")
    return 0


def results_of(
    configs: Sequence[RunConfig],
    progress: SweepProgress,
    effort: Effort,
    *,
    plan: str,
    sources: Sources | None = None,
) -> list[RunResult] | None:
    """The results of runs in order, after training missing ones; None if stopped.

    Torch is imported only if something is left to do. Standard output is reserved for the command.

    Args:
        configs: the runs, checked (`bench.execute.blocks.check_all`, `early` at least); all have one store and device.
        progress: shows progress.
        effort: how they are executed.
        plan: purpose of the runs (`RunResult.plan`).
        sources: the studies that found their hyperparameters (`RunResult.tuned_by`).

    Raises:
        UserError: data are missing, the store cannot be written, or a run cannot be trained.
        RunFailed: as in `bench.execute.execute.execute`.
    """
    store = Store(configs[0].store)
    if left := missing(configs):
        budget = effort.budget
        if budget is not None:
            budget.refuse_beyond(len(left))
        check_places(list(left.values()))
        with doing("importing torch"):
            from bench.execute.execute import STOPPED, execute
            from bench.train.stop import deadline

        with redirect_stdout(sys.stderr):
            # Pass all runs, also the stored ones: the blocks depend on all.
            done = False
            with deadline(budget and budget.seconds) as spent:
                done = execute(configs, progress, effort, plan=plan, sources=sources)
            if not done:
                over = budget and spent() and f"bench: the budget of {budget.text} is spent"
                stored = f"{len(configs) - len(missing(configs))} of {len(configs)} runs are stored"
                progress.say(f"{over}; {stored}, and the same command continues" if over else STOPPED)
                return None
    else:
        progress.say(f"all {len(configs)} runs are stored")
    there = store.finished_all(config.run_id for config in configs)
    if lost := sum(config.run_id not in there for config in configs):
        raise RunFailed(f"{lost} of {len(configs)} runs are missing in {store.folder}; repeat the command")
    return [there[config.run_id] for config in configs]
