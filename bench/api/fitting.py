"""`bench.fit` and `bench.sweep`: one run, one for each of several seeds, or many; heavy imports follow all checks."""

import hashlib
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import yaml

from bench.api.calls import Call
from bench.api.results import Run, Runs, Sweep
from bench.config.checks import check, check_early, check_places
from bench.config.files import Sources, TunedBy, origin_of, tuned_file
from bench.config.run_config import RunConfig, on_device, resolve, settings_of
from bench.config.values import Seeds, read_seeds
from bench.errors import RunBroke, UserError
from bench.execute import request
from bench.execute.blocks import check_all
from bench.output import Answer, check_output, note
from bench.progress import SweepProgress, doing
from bench.store.stores import Contents
from bench.sweeps.grid import configurations
from bench.text import plain
from optimizers.plugins import slug


def fit(call: Call, seeds: Seeds | None, *, tuned: bool, rerun: bool) -> Run | Runs | Answer:
    """One run, or one for each of several seeds: stored ones, or new ones."""
    several, words = None if seeds is None else read_seeds(seeds), call.folders | call.words
    config = _configuration(words, call, tuned=tuned)
    sources: Sources = {}
    if tuned:
        sources = _sources_of([config.model_copy(update={"seed": seed}) for seed in several or [config.seed]])
        note(f"settings from {tuned_file(config.task, config.opt)}")
    if several is None:
        for name in call.efforts:
            raise UserError(f"--{name} is for several runs; give --seeds too, or leave it out")
        return _dry_run(config) if call.dry_run else _single_run(config, sources, call, rerun=rerun)
    for name, value in (("seed", words.get("seed")), ("rerun", rerun or None)):
        if value is not None:
            raise UserError(f"--{name} is for one run; remove it or --seeds")
    seeded = ["seed"] if "data_seed" in call.settings else ["seed", "data_seed"]
    configs = [on_device(config).model_copy(update=dict.fromkeys(seeded, seed)) for seed in several]
    check_all(configs, early=True)
    if call.dry_run:
        return request.dry_run(configs, call.effort, [{"seed": seed} for seed in several])
    view = SweepProgress(f"{config.task} {config.opt}", config.task_spec.mode, enabled=call.progress)
    results = request.results_of(configs, view, call.effort, plan="fit", sources=sources)
    return Runs([Run(result, config.store) for result in results])


def _configuration(words: Mapping[str, Any], call: Call, *, tuned: bool) -> RunConfig:
    """The configuration of one run; for several values, UserError names the command that takes them."""
    try:
        with doing("reading the settings"):
            return resolve(words, config=call.config, tuned=tuned, fallback=call.places)
    except UserError as error:
        for name, value in words.items():
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            named = "," in text and ":" not in text if name in ("task", "opt") else f"--{name} " in str(error)
            if named and re.search(r"\d[:,]|\w,", text) and not re.search(r"it takes \w+,", str(error)):
                why = "bench fit trains one run; `bench sweep` takes several values, `bench compare` several tasks"
                raise UserError(f"--{name} {text}: {why}") from None
        if call.config and not any(f"--{name}" in str(error) for name in words):
            raise UserError(f"{call.config}: {str(error).removeprefix(f'{call.config}: ')}") from None
        raise


def _sources_of(configs: Iterable[RunConfig]) -> Sources:
    """The studies that found the hyperparameters, by task and optimizer; none unless all runs of a pair have them.

    UserError if a run has a seed that helped to choose its settings.
    """
    pairs: dict[tuple[str, str], list[RunConfig]] = {}
    for config in configs:
        pairs.setdefault((config.task, config.opt), []).append(config)
    sources = dict[tuple[str, str], TunedBy]()
    for (task, opt), alike in pairs.items():
        of_task = {f"task.{name}": value for name, value in alike[0].task_options.items()}
        tuned = resolve({"task": task, "opt": opt, **of_task}, tuned=True).opt_options
        if any(config.opt_options != tuned for config in alike):
            continue
        path = tuned_file(task, opt)
        sources[task, opt], chosen = origin_of(path)
        if seeds := {*chosen} & {config.seed for config in alike}:
            why = f"seed {min(seeds)} helped to choose the tuned settings of {path}, so its result would be optimistic"
            raise UserError(f"{why}: take seeds from {max(chosen) + 1} on")
    return sources


def _single_run(config: RunConfig, sources: Sources, call: Call, *, rerun: bool) -> Run:
    """The stored run, or a new one."""
    if config.trainer.ranks > 1 and call.command is None:
        why = "a run with several processes restarts its command; use `bench fit`, and `bench.load` for the result"
        raise UserError(f"trainer.devices and trainer.num_nodes: {why}")
    run_id = on_device(config).run_id
    result = None if rerun else Contents([config.store], [run_id]).get(run_id)
    if result is None or not result.finished:
        check_early(config)
        check_places([config])
        with doing("importing torch"):
            from bench.train.runner import run

        with redirect_stdout(sys.stderr):  # standard output is only for the result, regardless of what libraries print
            result = run(config, rerun=rerun, progress=call.progress, tuned_by=sources.get((config.task, config.opt)))
    elif call.command is not None:
        note(f"already stored{', so nothing goes to a logger' * bool(config.logger)}; --rerun trains again")
    if result.status == "killed" and call.command is None:
        raise KeyboardInterrupt(f"run {result.run_id} was stopped and saved; the same call continues")
    return Run(result, config.store)


def _dry_run(config: RunConfig) -> Answer:
    """The resolved configuration, which `--config` reads back."""
    config = on_device(config)
    check(config)
    values = plain(config.model_dump(mode="python"))
    nested = {name: value for name, value in values.items() if not name.endswith("_options")}
    nested |= {name: {"name": values[name], **values[f"{name}_options"]} for name in ("task", "opt")}
    if config.data_seed == config.seed:
        del nested["data_seed"]  # so that it follows another seed, such as those of `--seeds`
    text = yaml.safe_dump(nested, sort_keys=False).rstrip("\n")
    return Answer({"run_id": config.run_id, **values}, [f"# run_id: {config.run_id}", text])


def sweep(call: Call, seeds: Sequence[int], folder: Path | None, *, tuned: bool) -> Sweep | Answer:
    """Train the missing runs, analyse all, and write table and plot, as the command does, or if a folder is given.

    If runs failed, the command shows the others first (`Sweep.failed`).
    """
    with doing("reading the grid"):
        configs, varied = configurations(call.words, seeds, call.places, config=call.config, tuned=tuned)
        check_all(configs, early=True)
        sources = _sources_of(configs) if tuned else {}
    if call.dry_run:
        settings = [settings_of(config.model_dump()) for config in configs]
        names = ("opt", *varied, "seed")
        return request.dry_run(configs, call.effort, ({k: s[k] for k in names if k in s} for s in settings))
    if folder is None and call.command is not None:  # the hash identifies the set of runs
        digest = hashlib.sha256(" ".join(sorted(config.run_id for config in configs)).encode()).hexdigest()[:8]
        opts = "-".join(dict.fromkeys(slug(config.opt) for config in configs))[:60].rstrip("-")
        folder = Path("swept", slug(configs[0].task), f"{opts}-{digest}")
    if folder is not None:
        check_output(folder)  # fail before hours of training
    store, mode, failed = configs[0].store, configs[0].task_spec.mode, None
    try:
        view = SweepProgress(f"sweep {configs[0].task}", mode, enabled=call.progress)
        results = request.results_of(configs, view, call.effort, plan="sweep", sources=sources)
    except RunBroke as error:
        contents = Contents([store], [config.run_id for config in configs])
        results = [run for config in configs if (run := contents.get(config.run_id)) is not None]
        if call.command is None or not any(run.finished for run in results):
            raise
        failed = str(error)
    with doing("drawing"):
        from bench.sweeps.sensitivity import analyse, write  # imports numpy and scipy

        sensitivity = analyse(results, varied, mode)
        made_by = shlex.join(call.command or ["bench.sweep"])
        paths = [] if folder is None else write(folder, sensitivity, made_by)
    return Sweep(Runs([Run(result, store) for result in results]), sensitivity, paths, failed)
