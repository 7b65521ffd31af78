"""`bench.sweep`: many settings and seeds, and how results depend on them."""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.api.results import Sweep
from bench.api.runs import Run, Runs
from bench.config.run_config import RunConfig, settings_of
from bench.config.settings import sources_of
from bench.config.tuned import Sources
from bench.errors import RunBroke
from bench.execute import Effort
from bench.execute import command as runs
from bench.execute.blocks import check_all
from bench.output import Answer, check_output
from bench.progress import SweepProgress, doing
from bench.store.store import Store
from bench.sweeps.grid import configurations
from bench.sweeps.sensitivity import analyse, write
from optimizers.plugins import slug


class Request(NamedTuple):
    """The runs of a sweep, the dotted names of what varies, and the studies that found tuned settings."""

    configs: list[RunConfig]
    varied: list[str]
    sources: Sources


def request(
    words: Mapping[str, Any], seeds: Sequence[int], places: Mapping[str, Path], config: Path | None, *, tuned: bool
) -> Request:
    """The runs of a sweep, checked; `UserError` if a setting is illegal, or a run cannot be trained."""
    with doing("reading the grid"):
        configs, varied = configurations(words, seeds, places, config=config, tuned=tuned)
        check_all(configs, early=True)
        return Request(configs, varied, sources_of(configs) if tuned else {})


def dry_run(request: Request, effort: Effort) -> Answer:
    """The runs with the settings that distinguish them."""
    settings = [settings_of(config.model_dump()) for config in request.configs]
    names = ("opt", *request.varied, "seed")
    return runs.dry_run(request.configs, effort, ({k: s[k] for k in names if k in s} for s in settings))


def default_folder(request: Request) -> Path:
    """Where the command writes: `swept/TASK/OPT-HASH`; the hash identifies the set of runs."""
    digest = hashlib.sha256(" ".join(sorted(config.run_id for config in request.configs)).encode()).hexdigest()
    names = "-".join(dict.fromkeys(slug(config.opt) for config in request.configs))[:60].rstrip("-")
    return Path("swept", slug(request.configs[0].task), f"{names}-{digest[:8]}")


def sweep(
    request: Request, effort: Effort, folder: Path | None, *, progress: bool, command: Sequence[str] | None
) -> Sweep:
    """Train the missing runs, analyse all, and write table and plot into a folder, if given.

    Raises:
        RunFailed: runs failed; for the command, `Sweep.failed` says so after the others are shown.
    """
    configs, failed = request.configs, None
    store, mode = configs[0].store, configs[0].task_spec.mode
    if folder is not None:
        check_output(folder)  # fail before hours of training
    try:
        view = SweepProgress(f"sweep {configs[0].task}", mode, enabled=progress)
        results = runs.results_of(configs, view, effort, plan="sweep", sources=request.sources)
    except RunBroke as error:
        results = [run for config in configs if (run := Store(store).get(config.run_id)) is not None]
        if command is None or not any(run.finished for run in results):
            raise
        failed = str(error)
    with doing("drawing"):
        sensitivity = analyse(results, request.varied, mode)
        paths = [] if folder is None else write(folder, sensitivity, shlex.join(command or ["bench.sweep"]))
    return Sweep(Runs([Run(result, store) for result in results]), sensitivity, paths, failed)
