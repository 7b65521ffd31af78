"""`bench.fit`: one run, or one for each of several seeds; heavy imports happen after all checks."""

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bench.config.plugins import allowed
from bench.config.run_config import RunConfig, on_device, resolve, settings_of
from bench.config.settings import sources_of
from bench.config.tuned import Sources, tuned_file
from bench.errors import UserError, unknown_run
from bench.execute import Effort
from bench.execute import command as runs
from bench.execute.blocks import check_all
from bench.output import Answer, note
from bench.progress import SweepProgress, doing
from bench.store.store import Store
from bench.store.stores import no_store
from bench.sweeps.grid import settings_in
from bench.text import plain
from optimizers.plugins import bare

if TYPE_CHECKING:
    from bench.api.runs import Run, Runs


def configuration(
    words: Mapping[str, Any], config: Path | None, places: Mapping[str, Path], *, tuned: bool
) -> RunConfig:
    """The configuration of one run; for several values, UserError names the command that takes them."""
    try:
        with doing("reading the settings"):
            return resolve(words, config=config, tuned=tuned, fallback=places)
    except UserError as error:
        for name, value in words.items():
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            named = "," in text and ":" not in text if name in ("task", "opt") else f"--{name} " in str(error)
            if named and re.search(r"\w[:,]", text):
                why = "bench fit trains one run; `bench sweep` takes several values, `bench compare` several tasks"
                raise UserError(f"--{name} {text}: {why}") from None
        raise


def sources(config: RunConfig, seeds: Sequence[int] | None) -> Sources:
    """The study that found the tuned settings, which a note names; UserError if a seed helped to choose them."""
    chosen = sources_of([config.model_copy(update={"seed": s}) for s in (seeds or [config.seed])])
    note(f"settings from {tuned_file(config.task, config.opt)}")
    return chosen


def fit(config: RunConfig, sources: Sources, *, rerun: bool, progress: bool, is_command: bool) -> "Run":
    """The stored run, or a new one; KeyboardInterrupt if it was stopped and saved."""
    from bench.api.runs import Run

    if config.trainer.ranks > 1 and not is_command:
        why = "a run with several processes restarts its command; use `bench fit`, and `bench.load` for the result"
        raise UserError(f"trainer.devices and trainer.num_nodes: {why}")
    result = None if rerun else Store(config.store).get(on_device(config).run_id)
    if result is None or not result.finished:
        from bench.config.checks import check_early, check_places

        check_early(config)
        check_places([config])
        with doing("importing torch"):
            from bench.train.runner import run

        with redirect_stdout(sys.stderr):  # standard output is only for the result, regardless of what libraries print
            result = run(config, rerun=rerun, progress=progress, tuned_by=sources.get((config.task, config.opt)))
    elif is_command:
        note(f"already stored{', so nothing goes to a logger' * bool(config.logger)}; --rerun trains again")
    if result.status == "killed" and not is_command:
        raise KeyboardInterrupt(f"run {result.run_id} was stopped and saved; the same call continues")
    return Run(result, config.store)


def resumed(
    run: str, settings: dict[str, Any], places: dict[str, Path], given: Sequence[str], command: Sequence[str] | None
) -> RunConfig:
    """The configuration of a stored run, by its id or the path of its folder; UserError if options would change it."""
    path = Path(run)
    if path.name != run:  # the path of a run's folder
        path = path if path.name else path.resolve()  # of `.`
        places = {**places, "store": path.parent}
    run_id, store = path.name, Store(places["store"])
    named = {kind: [str(settings[kind])] for kind in ("task", "opt") if kind in settings}
    if more := [*given, *sorted(settings.keys() - {"task", "opt", "store", "data", "logger"})]:
        raise UserError(f"--resume takes the run's own settings; remove --{more[0]}, or start a new run")
    if not store.folder.is_dir():
        raise no_store(store.folder, "name it with --store DIR")
    result = store.get(run_id)
    if result is None:
        raise unknown_run(run_id, (run.run_id for run in store.runs()), f"the store {store.folder}")
    for kind, (name,) in named.items():
        if bare(name) != bare(result.config[kind]):
            raise UserError(
                f"--{kind} {name}: run {run_id} was begun with {result.config[kind]}, which cannot be changed"
            )
    words = command or ["bench", "fit", "--resume", run]
    names = allowed(result.config, result.versions, named, f"run {run_id}", words)
    config = resolve(settings_of(result.config) | settings | names | places, recorded=True)
    if config.run_id != run_id:
        why = "was started with another version of its task or optimizer"
        raise UserError(f"run {run_id} {why}; train again without --resume")
    return config


def dry_run(config: RunConfig) -> Answer:
    """The resolved configuration, which `--config` reads back."""
    from bench.config.checks import check

    config = on_device(config)
    check(config)
    values = plain(config.model_dump(mode="python"))
    nested = {name: value for name, value in values.items() if not name.endswith("_options")}
    nested |= {name: {"name": values[name], **values[f"{name}_options"]} for name in ("task", "opt")}
    if config.data_seed == config.seed:
        del nested["data_seed"]  # so that it follows another seed, such as those of `--seeds`
    text = yaml.safe_dump(nested, sort_keys=False).rstrip("\n")
    return Answer({"run_id": config.run_id, **values}, [f"# run_id: {config.run_id}", text])


def with_seeds(
    config: RunConfig, seeds: Sequence[int], settings: Mapping[str, Any], file: Path | None
) -> list[RunConfig]:
    """A run for each seed, checked; the order of the samples follows it unless given."""
    seeded = ["seed"] if "data_seed" in {**settings_in(file), **settings} else ["seed", "data_seed"]
    configs = [on_device(config).model_copy(update=dict.fromkeys(seeded, seed)) for seed in seeds]
    check_all(configs, early=True)
    return configs


def fit_seeds(configs: Sequence[RunConfig], effort: Effort, sources: Sources, *, progress: bool) -> "Runs":
    """The stored or new run of each seed, and their mean; errors as for `bench.execute.command.results_of`."""
    from bench.api.runs import Run, Runs

    first = configs[0]
    view = SweepProgress(f"{first.task} {first.opt}", first.task_spec.mode, enabled=progress)
    results = runs.results_of(configs, view, effort, plan="fit", sources=sources)
    return Runs([Run(result, first.store) for result in results])
