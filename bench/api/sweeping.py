"""`bench.sweep`: many settings and seeds, and how results depend on them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from bench.api.calls import Call
from bench.api.results import Sweep
from bench.api.runs import Run, Runs
from bench.config.run_config import RunConfig, settings_of
from bench.config.settings import sources_of
from bench.errors import RunBroke
from bench.execute import command as runs
from bench.execute.blocks import check_all
from bench.output import Answer, check_output
from bench.progress import SweepProgress, doing
from bench.store.store import Store
from bench.sweeps.grid import configurations
from bench.sweeps.sensitivity import analyse, write
from optimizers.plugins import slug


def sweep(call: Call, seeds: Sequence[int], folder: Path | None, *, tuned: bool) -> Sweep | Answer:
    """Train the missing runs, analyse all, and write table and plot, as the command does, or if a folder is given.

    Raises:
        UserError: a setting is illegal, or a run cannot be trained.
        RunFailed: runs failed; for the command, `Sweep.failed` says so after the others are shown.
    """
    with doing("reading the grid"):
        configs, varied = configurations(call.words, seeds, call.places, config=call.config, tuned=tuned)
        check_all(configs, early=True)
        sources = sources_of(configs) if tuned else {}
    if call.dry_run:
        settings = [settings_of(config.model_dump()) for config in configs]
        names = ("opt", *varied, "seed")
        return runs.dry_run(configs, call.effort, ({k: s[k] for k in names if k in s} for s in settings))
    if folder is None and call.command is not None:
        folder = _default_folder(configs)
    if folder is not None:
        check_output(folder)  # fail before hours of training
    store, mode, failed = configs[0].store, configs[0].task_spec.mode, None
    try:
        view = SweepProgress(f"sweep {configs[0].task}", mode, enabled=call.progress)
        results = runs.results_of(configs, view, call.effort, plan="sweep", sources=sources)
    except RunBroke as error:
        results = [run for config in configs if (run := Store(store).get(config.run_id)) is not None]
        if call.command is None or not any(run.finished for run in results):
            raise
        failed = str(error)
    with doing("drawing"):
        sensitivity = analyse(results, varied, mode)
        paths = [] if folder is None else write(folder, sensitivity, call.made_by("bench.sweep"))
    return Sweep(Runs([Run(result, store) for result in results]), sensitivity, paths, failed)


def _default_folder(configs: Sequence[RunConfig]) -> Path:
    """`swept/TASK/OPT-HASH`; the hash identifies the set of runs."""
    digest = hashlib.sha256(" ".join(sorted(config.run_id for config in configs)).encode()).hexdigest()
    names = "-".join(dict.fromkeys(slug(config.opt) for config in configs))[:60].rstrip("-")
    return Path("swept", slug(configs[0].task), f"{names}-{digest[:8]}")
