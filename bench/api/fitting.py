"""`bench.fit`: one run, or one for each of several seeds; heavy imports happen after all checks."""

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import yaml

from bench.api.calls import Call
from bench.config.run_config import RunConfig, on_device, resolve
from bench.config.settings import sources_of
from bench.config.tuned import Sources, tuned_file
from bench.config.values import Seeds, read_seeds
from bench.errors import UserError
from bench.execute import command as runs
from bench.execute.blocks import check_all
from bench.output import Answer, note
from bench.progress import SweepProgress, doing
from bench.store.store import Store
from bench.text import plain

if TYPE_CHECKING:
    from bench.api.runs import Run, Runs


def fit(call: Call, seeds: Seeds | None, *, tuned: bool, rerun: bool) -> "Run | Runs | Answer":
    """One run, or one for each of several seeds: stored ones, or new ones.

    Raises:
        UserError: the request is invalid.
        KeyboardInterrupt: it was stopped and saved.
    """
    several, words = None if seeds is None else read_seeds(seeds), call.folders | call.words
    config = _configuration(words, call, tuned=tuned)
    sources: Sources = {}
    if tuned:
        sources = sources_of([config.model_copy(update={"seed": seed}) for seed in several or [config.seed]])
        note(f"settings from {tuned_file(config.task, config.opt)}")
    if several is None:
        for name in call.efforts:
            raise UserError(f"--{name} is for several runs; give --seeds too, or leave it out")
        return _dry_run(config) if call.dry_run else _one(config, sources, call, rerun=rerun)
    for name, value in (("seed", words.get("seed")), ("rerun", rerun or None)):
        if value is not None:
            raise UserError(f"--{name} is for one run; remove it or --seeds")
    return _several(config, several, sources, call)


def _configuration(words: Mapping[str, Any], call: Call, *, tuned: bool) -> RunConfig:
    """The configuration of one run; for several values, UserError names the command that takes them."""
    try:
        with doing("reading the settings"):
            return resolve(words, config=call.config, tuned=tuned, fallback=call.places)
    except UserError as error:
        for name, value in words.items():
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            named = "," in text and ":" not in text if name in ("task", "opt") else f"--{name} " in str(error)
            if named and re.search(r"\w[:,]", text):
                why = "bench fit trains one run; `bench sweep` takes several values, `bench compare` several tasks"
                raise UserError(f"--{name} {text}: {why}") from None
        raise


def _one(config: RunConfig, sources: Sources, call: Call, *, rerun: bool) -> "Run":
    """The stored run, or a new one."""
    from bench.api.runs import Run

    if config.trainer.ranks > 1 and call.command is None:
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
            result = run(config, rerun=rerun, progress=call.progress, tuned_by=sources.get((config.task, config.opt)))
    elif call.command is not None:
        note(f"already stored{', so nothing goes to a logger' * bool(config.logger)}; --rerun trains again")
    if result.status == "killed" and call.command is None:
        raise KeyboardInterrupt(f"run {result.run_id} was stopped and saved; the same call continues")
    return Run(result, config.store)


def _several(config: RunConfig, seeds: Sequence[int], sources: Sources, call: Call) -> "Runs | Answer":
    """The stored or new run of each seed; errors as for `bench.execute.command.results_of`."""
    from bench.api.runs import Run, Runs

    seeded = ["seed"] if "data_seed" in call.settings else ["seed", "data_seed"]
    configs = [on_device(config).model_copy(update=dict.fromkeys(seeded, seed)) for seed in seeds]
    check_all(configs, early=True)
    if call.dry_run:
        return runs.dry_run(configs, call.effort, [{"seed": seed} for seed in seeds])
    view = SweepProgress(f"{config.task} {config.opt}", config.task_spec.mode, enabled=call.progress)
    results = runs.results_of(configs, view, call.effort, plan="fit", sources=sources)
    return Runs([Run(result, config.store) for result in results])


def _dry_run(config: RunConfig) -> Answer:
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
