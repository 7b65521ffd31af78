"""The settings of a configuration beyond the defaults, for readers of its record without task and optimizer."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from bench.config.options import MISSING, optimizer_options, task_options
from bench.config.run_config import RunConfig, TrainerOptions, resolve, settings_of
from bench.config.tuned import Sources, TunedBy, read_tuned, tuned_file
from bench.errors import UserError
from bench.text import comparable, plain, seeds_from_words
from optimizers.groups import REST

SAME_RESULT = (
    "observe", "micro_batch_size", "compile", "checkpoint_seconds", "max_seconds", "devices", "num_nodes", "strategy",
)  # fmt: skip
"""Trainer options that do not change the compared result."""
_BUDGET = ("trainer.max_epochs", "trainer.max_steps")
_PLACES = ("task", "opt", "seed", "data_seed", "device")


def described(config: RunConfig) -> dict[str, Any]:
    """The fields of a record (`RunResult`) that its configuration determines."""
    spec = config.task_spec
    formulas = [method.formula for method in config.methods if method.formula]
    return {
        "run_id": config.run_id,
        "config": as_stored(config),
        "identity": config.identity,
        "task_name": spec.own_name,
        "problem": problem_of(config),
        "chosen": chosen_of(config),
        "metric": spec.metric,
        "mode": spec.mode,
        "scale": spec.scale,
        "target": spec.target,
        "measures": spec.measure_every is not None,
        "formula": f"; {REST}: ".join(formulas),
        "traits": config.traits.named(),
    }


def as_stored(config: RunConfig) -> dict[str, Any]:
    """The configuration for a record: without folders of this machine."""
    return plain(config.model_dump(mode="json", exclude={"data", "store", "logger"}))


def problem_of(config: RunConfig) -> dict[str, Any]:
    """The settings, in dotted form, in which a run's problem differs from the task at its defaults.

    Runs are compared if these are equal. Settings that change only how the same result is computed are left out.
    """
    spec = config.task_spec
    usual = {f"task.{name}": option.default for name, option in task_options(spec).items()}
    usual |= {f"trainer.{name}": field.default for name, field in TrainerOptions.model_fields.items()}
    usual |= {"trainer.batch_size": spec.batch_size, "trainer.measure_every": spec.measure_every}
    usual |= dict.fromkeys(_BUDGET)
    usual["precision"] = spec.precision
    own = {f"task.{name}": value for name, value in config.task_options.items()}
    own |= {f"trainer.{name}": value for name, value in config.trainer if name not in SAME_RESULT}
    return _differing(own | {"precision": config.precision}, usual)


def chosen_of(config: RunConfig) -> dict[str, Any]:
    """The settings, in dotted form, that differ from `bench fit --task TASK --opt OPT`, without seeds and device.

    An optimizer for the rest other than the method's default is one of them; its defaults are then left out. Options
    without a default are among them.
    """
    names, rest = {"task": config.task, "opt": config.opt}, f"opt.{REST}"
    other = {rest: config.opt_options[REST]} if REST in config.opt_options else {}
    own = settings_of(config.model_dump(exclude={"data", "store", "logger"}))
    options = {"task": task_options(config.task_spec), "opt": optimizer_options(config.opt_spec)}
    dotted = {f"{group}.{name}": option for group, each in options.items() for name, option in each.items()}
    required = {name: own[name] for name, option in dotted.items() if option.default is MISSING}
    usual = settings_of(resolve(names | other | required).model_dump())
    usual = {name: value for name, value in usual.items() if name not in required}
    usual[rest] = config.opt_spec.rest
    found = _differing({name: value for name, value in own.items() if name not in _PLACES}, usual)
    if any(name in found for name in _BUDGET):  # one alone would replace both
        found |= {name: own[name] for name in _BUDGET}
    return found


def _differing(own: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    return {k: plain(v) for k, v in own.items() if k not in usual or comparable(v) != comparable(usual[k])}


def _tuned_by(configs: Sequence[RunConfig]) -> TunedBy | None:
    """The study that found the hyperparameters of runs of one task and optimizer, if all have the tuned ones."""
    config = configs[0]
    tuned = _tuned_options(config)
    if any(each.opt_options != tuned for each in configs):
        return None
    path = tuned_file(config.task, config.opt)
    provenance = read_tuned(path)
    chosen = {*seeds_from_words(provenance.seeds)}
    if seeds := chosen & {each.seed for each in configs}:
        raise UserError(
            f"seed {min(seeds)} helped to choose the tuned settings of {path}, so its result would be optimistic:"
            f" take seeds from {max(chosen) + 1} on"
        )
    every = [settings_of(each.model_dump(mode="json")) for each in configs]
    names = [f"trainer.{name}" for name in ("max_epochs", "max_steps", "max_seconds", "batch_size")]
    # The file leaves out settings that were None, which is their default.
    usual = {f"task.{name}": plain(option.default) for name, option in task_options(config.task_spec).items()}
    tuned_on = provenance.settings and usual | provenance.settings
    for what, mark, then, now in (
        ("for another budget", "--", provenance.settings, [(k, each[k]) for each in every for k in names]),
        (
            "for another model or data",
            "--",
            tuned_on,
            [(k, v) for each in every for k, v in each.items() if k in usual],
        ),
        ("with other code", "", provenance.versions, config.spec_versions.items()),
    ):
        other = dict.fromkeys(f"{mark}{k} {v}, not {then.get(k)}" for k, v in now if then and v != then.get(k))
        if other:
            print(
                f"bench: {config.opt} is tuned {what} (here {'; '.join(other)}): other settings may be better",
                file=sys.stderr,
            )
    if provenance.split == "train" and not config.task_spec.ranks_training:
        print(
            f"bench: {config.opt} is tuned on training samples, but {config.task} ranks held-out ones: other settings"
            f" may be better; `bench tune --task {config.task} --opt {config.opt}` finds them",
            file=sys.stderr,
        )
    return TunedBy(provenance.study or path.name, provenance.split)


def tuning_seeds(config: RunConfig) -> set[int]:
    """The seeds that chose a configuration's hyperparameters; none if they are not the tuned ones, or it is unknown."""
    if config.opt_options != _tuned_options(config):
        return set()
    return {*seeds_from_words(read_tuned(tuned_file(config.task, config.opt)).seeds)}


def _tuned_options(config: RunConfig) -> dict[str, Any]:
    """The tuned hyperparameters of a configuration's task and optimizer."""
    of_task = {f"task.{name}": value for name, value in config.task_options.items()}
    return resolve({"task": config.task, "opt": config.opt, **of_task}, tuned=True).opt_options


def sources_of(configs: Iterable[RunConfig]) -> Sources:
    """The studies that found the hyperparameters, by task and optimizer.

    A pair has none unless all of its configurations have the tuned ones.

    It warns on standard error if a study's runs had another budget, other options of the task, or other versions of
    task and optimizer, or were compared on training samples although held-out ones are ranked.

    Raises:
        UserError: a run has a seed that helped to choose its settings.
    """
    found: dict[tuple[str, str], list[RunConfig]] = {}
    for config in configs:
        found.setdefault((config.task, config.opt), []).append(config)
    return {pair: study for pair, own in found.items() if (study := _tuned_by(own)) is not None}
