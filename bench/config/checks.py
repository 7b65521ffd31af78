"""Checks before anything is loaded: illegal hyperparameters, and runs that would differ from their settings.

`check_early` and `check_places` import no torch, which takes seconds; `check` calls the optimizer's constructor.
"""

import inspect
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bench.config.options import all_optimizer_options
from bench.config.run_config import RunConfig
from bench.errors import UserError, described
from bench.machine import is_main_process
from bench.progress import doing
from bench.store.store import Store
from optimizers import OPTIMIZERS, TASK_VALUE, OptimizerSpec
from optimizers.groups import REST, split_rest
from optimizers.plugins import BROKEN, load
from tasks.core.files import DataError


def check_places(configs: Iterable[RunConfig]) -> None:
    """Ensure that the store is writable and that the data files exist, fetching them if necessary.

    Raises:
        UserError: the store is not writable, or a file is missing.
    """
    seen = set[str]()
    for config in configs:
        key = repr((config.store, config.data, config.task, config.task_options))
        if key not in seen:
            seen.add(key)
            if is_main_process():  # the other ranks write nothing
                Store(config.store).refuse_unwritable()
            check_files(config)


def check_files(config: RunConfig) -> None:
    """Ensure that the data files exist, fetching them if necessary.

    Raises:
        UserError: they do not exist.
    """
    if not config.task_spec.files:
        return
    require = load(config.task_spec.files)
    names = inspect.signature(require).parameters
    with task_errors(config.task_options), doing(f"looking for the data of {config.task}"):
        require(config.data, **{name: x for name, x in config.task_options.items() if name in names})


def check_early(config: RunConfig) -> None:
    """Refuse errors that need no torch to detect; `check` includes this.

    Raises:
        UserError: with the value at fault and what to do.
    """
    trainer, traits = config.trainer, config.traits
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "SLURM_PROCID"):  # launchers set them
        if not os.environ.get(name, "0").isdecimal():
            raise UserError(f"the environment has {name}={os.environ[name]}, which is no number; unset it")
    if all(spec.name in OPTIMIZERS.own for spec in config.methods):  # reading the options of others imports them
        options = all_optimizer_options(config.opt_spec, config.opt_options)
        for name, value in config.opt_options.items():
            option = options[name]
            if value != option.default and (why := _outside(option.help, value)):
                raise UserError(f"--opt.{name}={value}{why}")
    if traits.calls_closure_again and config.rest_spec is not None:
        which = next(spec.name for spec in config.methods if spec.traits.calls_closure_again)
        raise UserError(
            f"--opt.{REST}: {which} evaluates the loss several times a step, so it must move all parameters"
        )
    if trainer.batch_size != "full" and (rest := config.rest_spec) is not None and rest.traits.full_batch:
        raise UserError(
            f"--opt.{REST} {rest.name}: it is a full-batch method, and the batch has {trainer.batch_size} samples; name"
            " another one, or write --trainer.batch_size full"
        )
    if config.opt_spec.traits.full_batch and trainer.batch_size != "full":
        raise UserError(
            f"--trainer.batch_size {trainer.batch_size}: {config.opt} is a full-batch method;"
            " use its stochastic form, or --trainer.micro_batch_size to save memory"
        )
    if trainer.measure_every is not None and config.task_spec.measure_every is None:
        raise UserError(f"--trainer.measure_every {trainer.measure_every}: the task {config.task} measures nothing")
    if trainer.observe is not None and config.task_spec.measure_every is not None:
        raise UserError(f"--trainer.observe {trainer.observe}: the task {config.task} has its own measurements")
    if trainer.observe is not None and trainer.strategy == "fsdp":
        raise UserError("--trainer.observe needs whole weights, which --trainer.strategy fsdp shards; use ddp")
    if config.precision == "16-mixed" and trainer.strategy == "fsdp":
        raise UserError(
            "--precision 16-mixed does not work with --trainer.strategy fsdp: ranks would not agree on which steps"
            " overflow; use bf16-mixed"
        )
    if config.precision == "16-mixed" and traits.calls_closure_again:
        raise UserError(
            f"--precision 16-mixed: {config.opt} evaluates the loss several times a step,"
            " which a gradient scaler does not support; use bf16-mixed"
        )
    if trainer.compile == "step":
        if traits.create_graph:
            why = f"{config.opt} differentiates the gradients, which a compiled program cannot"
            raise UserError(f"--trainer.compile step: {why}; leave it out")
        if trainer.ranks > 1 or trainer.strategy != "auto":
            raise UserError(
                "--trainer.compile step: it was tried on one device only, and without --trainer.strategy; leave it out"
            )
    if traits.create_graph and trainer.gradient_clip_val is not None:
        raise UserError(
            f"--trainer.gradient_clip_val: {config.opt} differentiates the gradients, and clipping would change them"
        )


def why_no_lanes(config: RunConfig) -> str | None:
    """The reason why such runs cannot be lanes, or None."""
    trainer, spec = config.trainer, config.task_spec
    if config.traits.create_graph:
        return f"{config.opt} differentiates the gradients"
    if not spec.lanes:
        return f"the task {config.task} does not say that its loss is a function of weights and batch (TaskSpec.lanes)"
    if trainer.strategy != "auto":
        return f"--trainer.strategy {trainer.strategy}: lanes train on one device"
    if trainer.ranks > 1:
        return f"--trainer.devices {trainer.devices}: lanes train on one device"
    if config.precision not in ("32-true", "64-true"):
        return f"--precision {config.precision}: lanes train in 32-true or 64-true"
    if trainer.compile == "step":
        return "--trainer.compile step: it compiles the steps of one run"
    if trainer.max_seconds is not None:
        return f"--trainer.max_seconds {trainer.max_seconds:g}: lanes share the time, so their budget is in steps"
    if config.logger is not None:
        return f"--logger {config.logger}: a logger follows one run"
    return None


def check_engine(engine: str, configs: Iterable[RunConfig]) -> None:
    """Refuse runs that this engine cannot train.

    Raises:
        UserError: with the first obstacle.
    """
    obstacle = next(filter(None, map(why_no_lanes, configs)), None) if engine == "lanes" else None
    if obstacle:
        raise UserError(f"--engine lanes: {obstacle}; use --engine lightning")


def check(config: RunConfig) -> None:
    """Refuse a configuration that cannot run, or that would not run as specified.

    Raises:
        UserError: with the value at fault and what to do.
    """
    check_early(config)
    with doing("importing torch"):
        import torch  # noqa: F401
    _check_hyperparameters(config)
    traits, trainer, told = config.traits, config.trainer, config.step_keywords
    if traits.calls_closure_again and told:
        raise UserError(
            f"{config.opt} evaluates the loss several times a step, so a norm computed before the step belongs to"
            f" another point"
        )
    untold = [m.name for m in config.methods if m.traits.needs_loss and "loss_grad_norm" not in m.step_keywords]
    if untold and trainer.gradient_clip_val is not None:
        raise UserError(
            f"--trainer.gradient_clip_val: {untold[0]} computes its step from loss and gradient, and its `step` takes"
            " no `loss_grad_norm`; with the gradient clipped the step would be wrong"
        )


def _check_hyperparameters(config: RunConfig) -> None:
    """Validate arguments by the optimizers' constructors before anything is loaded."""
    own, rest = split_rest(config.opt_options) if config.rest_spec is not None else (config.opt_options, {})
    given = [(config.opt_spec, "opt", own), (config.rest_spec, f"opt.{REST}", rest)]
    for spec, prefix, values in given:
        if spec is None:
            continue
        by_role: dict[str, dict[str, Any]] = {"": {}}
        for name, value in values.items():
            role, _, option = name.rpartition(".")
            if value != TASK_VALUE and name != REST:
                by_role.setdefault(role, {})[option] = value
        common = by_role.pop("")
        _check_constructor(spec, prefix, common)
        for role, different in by_role.items():
            _check_constructor(spec, f"{prefix}.{role}", common | different)


def _check_constructor(spec: OptimizerSpec, prefix: str, given: Mapping[str, Any]) -> None:
    """Validate arguments by a constructor."""
    try:
        spec.cls(_invented(spec), **given)
    except BROKEN as error:
        if spec.package is None or isinstance(error, ValueError):
            raise option_error(prefix, error, given) from None
        raise UserError(f"{spec.name} cannot be made: {described(error)}") from None


def _invented(spec: OptimizerSpec) -> Any:
    """A parameter valid for every method: a matrix."""
    import torch

    from optimizers.hybrid import takes_names

    parameter = torch.nn.Parameter(torch.zeros(2, 2))
    return [("weight", parameter) if takes_names(spec.cls) else parameter]


def _outside(text: str, value: Any) -> str:
    """The end of a sentence about a value outside the range in an option's help; nothing if it is not outside."""
    found = re.search(r"in ([\[(])([^\s,]+), ([^\s,\])]+)([\])])", text)
    if found is None:
        return ""
    opens, low, high, closes = found.groups()
    several = isinstance(value, tuple | list)
    try:
        outside = [
            not (float(low) <= x <= float(high))
            or (x == float(low) and opens == "(")
            or (x == float(high) and closes == ")")
            for x in (value if several else [value])
        ]
    except (TypeError, ValueError):
        return ""
    where = f" is out of range: {'each' if several else 'it'} must be {found[0]}"
    return where if any(outside) else ""


def option_error(prefix: str, error: BaseException, options: Collection[str]) -> UserError:
    """A constructor's error; ours begin with `name=value`, which becomes the option's name."""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    return UserError(f"--{prefix}.{text}" if text.partition("=")[0].split(" ")[0] in options else f"--{prefix}: {text}")


@contextmanager
def task_errors(options: Collection[str]) -> Iterator[None]:
    """Turn errors of a task's code, which has these options, into one line for the user.

    Raises:
        UserError: an option's value is illegal, or data are missing or damaged.
    """
    try:
        yield
    except ValueError as error:
        raise option_error("task", error, options) from None
    except DataError as error:
        raise UserError(str(error)) from None
