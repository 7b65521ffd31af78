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
from bench.store.record import RESUMABLE
from bench.store.store import Store
from bench.store.stores import no_store
from bench.text import plain
from optimizers.plugins import bare

if TYPE_CHECKING:
    from bench.api.runs import Run, SeedRuns

_SEVERAL = re.compile(r"[-+.\de]+([:,][-+.\de]+)+", re.IGNORECASE)


def configuration(
    words: Mapping[str, Any], config: Path | None, places: Mapping[str, Path], *, tuned: bool
) -> RunConfig:
    """The configuration of one run.

    Raises:
        UserError: a setting is illegal; for several values it names the command that takes them.
    """
    task, opt = str(words.get("task", "")), str(words.get("opt", ""))
    if "," in opt and ":" not in opt:
        raise UserError(
            f"--opt {opt}: bench fit trains one optimizer; write bench sweep --task {task or 'TASK'} --opt {opt}"
        )
    if "," in task and ":" not in task:
        raise UserError(
            f"--task {task}: bench fit trains one task; give a command for each, or write a file for `bench suite`"
        )
    try:
        with doing("reading the settings"):
            return resolve(words, config=config, tuned=tuned, fallback=places)
    except UserError as error:
        for name, value in words.items():
            if isinstance(value, str) and _SEVERAL.fullmatch(value) and f"--{name} " in str(error):
                raise UserError(
                    f"--{name} {value}: bench fit trains one run; `bench sweep` takes several values"
                    f" (bench sweep --task {task} --opt {opt} --{name} {value})"
                ) from None
        raise


def sources(config: RunConfig, seeds: Sequence[int] | None) -> Sources:
    """The study that found the tuned settings, which a note names.

    Raises:
        UserError: a seed helped to choose them.
    """
    chosen = sources_of([config.model_copy(update={"seed": s}) for s in (seeds or [config.seed])])
    note(f"settings from {tuned_file(config.task, config.opt)}")
    return chosen


def fit(config: RunConfig, sources: Sources, *, rerun: bool, progress: bool, is_command: bool) -> "Run":
    """The stored run, or a new one.

    Raises:
        UserError: it cannot be trained.
        KeyboardInterrupt: it was stopped and saved.
    """
    from bench.api.runs import Run

    if config.trainer.ranks > 1 and not is_command:
        raise UserError(
            "trainer.devices and trainer.num_nodes: a run with several processes restarts its command in each of them;"
            " use `bench fit`, and `bench.load` for the result"
        )
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
    """The configuration of an interrupted run, with folders from this call.

    Args:
        run: its id, or the path of its folder.
        settings: the given settings.
        places: of data and store.
        given: names of given options that do not go with it.
        command: the words of the command line.

    Raises:
        UserError: there is no such run, it cannot continue, or a setting would change it.
    """
    if given:
        raise UserError(f"--resume takes the run's own settings; remove --{given[0]}")
    path = Path(run)
    if path.name != run:  # the path of a run's folder
        path = path if path.name else path.resolve()  # of `.`
        places = {**places, "store": path.parent}
    run_id, store = path.name, places["store"]
    named = {kind: [str(settings.pop(kind))] for kind in ("task", "opt") if kind in settings}
    if more := settings.keys() - {"store", "data", "logger"}:
        raise UserError(
            f"--resume takes the run's own settings; --{min(more)} cannot be changed (start a new run instead)"
        )
    kept = Store(store)
    result = kept.get(run_id)
    if result is None:
        if not kept.folder.is_dir():
            raise no_store(store, "name it with --store DIR")
        raise unknown_run(run_id, (run.run_id for run in kept.runs()), f"the store {store}")
    for kind, (name,) in named.items():
        if bare(name) != bare(result.config[kind]):
            raise UserError(
                f"--{kind} {name}: run {run_id} was begun with {result.config[kind]}, which cannot be changed"
                " (start a new run instead)"
            )
    names = allowed(
        result.config, result.versions, named, f"run {run_id}", command or ["bench", "fit", "--resume", run]
    )
    config = resolve(settings_of(result.config) | names | settings | places, recorded=True)
    if config.run_id != run_id:
        raise UserError(
            f"run {run_id} was started with another version of its task or optimizer and cannot continue;"
            " train again without --resume"
        )
    if result.status in RESUMABLE and result.engine == "lanes":
        raise UserError(
            f"run {run_id} was {result.status} in a sweep, which trains it with others; repeat the sweep's command,"
            " or train the run alone without --resume"
        )
    if result.status in RESUMABLE and kept.last_checkpoint([run_id]) is None:
        raise UserError(f"run {run_id} was {result.status} before its first checkpoint; train again without --resume")
    return config


def dry_run(config: RunConfig) -> Answer:
    """The resolved configuration, which `--config` reads back.

    Raises:
        UserError: it cannot be trained.
    """
    from bench.config.checks import check

    config = on_device(config)
    check(config)
    values = plain(config.model_dump(mode="python"))
    data = {"run_id": config.run_id, **values}
    nested = {name: value for name, value in values.items() if not name.endswith("_options")}
    for name in ("task", "opt"):
        nested[name] = {"name": values[name], **values[f"{name}_options"]}
    if config.data_seed == config.seed:
        del nested["data_seed"]  # so that it follows another seed, such as those of `--seeds`
    text = yaml.safe_dump(nested, sort_keys=False).rstrip("\n")
    return Answer(data, [f"# run_id: {config.run_id}", text])


# -- several seeds ----------------------------------------------------------------------------------------------------


def with_seeds(
    config: RunConfig, seeds: Sequence[int], settings: Mapping[str, Any], file: Path | None
) -> list[RunConfig]:
    """A run for each seed; the order of the samples follows it unless given.

    Raises:
        UserError: a run cannot be trained.
    """
    from bench.sweeps.grid import settings_in

    follows = "data_seed" not in {**settings_in(file), **settings}
    config = on_device(config)
    configs = [config.model_copy(update={"seed": seed, **({"data_seed": seed} if follows else {})}) for seed in seeds]
    check_all(configs, early=True)
    return configs


def fit_seeds(configs: Sequence[RunConfig], effort: Effort, sources: Sources, *, progress: bool) -> "SeedRuns":
    """The stored or new run of each seed, and their mean.

    Raises:
        UserError: a run cannot be trained.
        RunFailed: as in `bench.execute.execute.execute`.
        KeyboardInterrupt: they were stopped.
    """
    from bench.api.runs import Run, SeedRuns

    first = configs[0]
    view = SweepProgress(f"{first.task} {first.opt}", first.task_spec.mode, enabled=progress)
    results = runs.results_of(configs, view, effort, plan="fit", sources=sources)
    return SeedRuns([Run(result, first.store) for result in results])
