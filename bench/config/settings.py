"""The settings of a configuration beyond the defaults, for readers of its record without task and optimizer."""

from collections.abc import Iterable
from typing import Any

from bench.config.options import MISSING, optimizer_options, task_options
from bench.config.run_config import RunConfig, TrainerOptions, resolve, settings_of
from bench.config.tuned import Sources, TunedBy, origin_of, tuned_file
from bench.errors import UserError
from bench.text import comparable, plain
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
    usual |= {**dict.fromkeys(_BUDGET), "precision": spec.precision}
    settings = {f"task.{name}": value for name, value in config.task_options.items()}
    settings |= {f"trainer.{name}": value for name, value in config.trainer if name not in SAME_RESULT}
    return _differing(settings | {"precision": config.precision}, usual)


def chosen_of(config: RunConfig) -> dict[str, Any]:
    """The settings, in dotted form, that differ from `bench fit --task TASK --opt OPT`, without seeds and device.

    An optimizer for the rest other than the method's default is one of them; its defaults are then left out. Options
    without a default are among them.
    """
    settings = settings_of(config.model_dump(exclude={"data", "store", "logger"}))
    options = {f"task.{name}": option for name, option in task_options(config.task_spec).items()}
    options |= {f"opt.{name}": option for name, option in optimizer_options(config.opt_spec).items()}
    rest = f"opt.{REST}"
    required = {name: settings[name] for name, option in options.items() if option.default is MISSING}
    given = {name: settings[name] for name in ("task", "opt", rest, *required) if name in settings}
    usual = settings_of(resolve(given).model_dump())
    usual = {name: value for name, value in usual.items() if name not in required} | {rest: config.opt_spec.rest}
    chosen = _differing({name: value for name, value in settings.items() if name not in _PLACES}, usual)
    if any(name in chosen for name in _BUDGET):  # one alone would replace both
        chosen |= {name: settings[name] for name in _BUDGET}
    return chosen


def _differing(settings: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    return {k: plain(v) for k, v in settings.items() if k not in usual or comparable(v) != comparable(usual[k])}


def sources_of(configs: Iterable[RunConfig]) -> Sources:
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
