"""What is refused before anything is loaded: illegal hyperparameters, and runs that would mean something else.

`check_early` and `check_places` import no torch, which takes seconds; `check` lets the optimizer's constructor look.
"""

import inspect
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from bench.config import RunConfig
from bench.errors import UserError, described
from bench.machine import is_main_process
from bench.options import MISSING, optimizer_options
from bench.progress import doing
from bench.store.store import Store
from optimizers import OPTIMIZERS, TASK_VALUE
from optimizers.plugins import load
from tasks.core.files import DataError


def check_places(configs: Iterable[RunConfig]) -> None:
    """Make sure that the store can be written and that the files of the data are there, fetched if need be.

    Raises:
        UserError: they are not; or it cannot.
    """
    seen = set[str]()
    for config in configs:
        key = repr((config.store, config.data, config.task, config.task_options))
        if key not in seen:
            seen.add(key)
            if is_main_process():  # the other ranks write nothing
                Store(config.store).refuse_unwritable()
            _check_files(config)


def _check_files(config: RunConfig) -> None:
    """Make sure that the files of the data are there."""
    if not config.task_spec.files:
        return
    require = load(config.task_spec.files)
    names = inspect.signature(require).parameters
    try:
        with doing(f"looking for the data of {config.task}"):
            require(config.data, **{name: x for name, x in config.task_options.items() if name in names})
    except ValueError as error:
        raise option_error("task", error, config.task_options) from None
    except DataError as error:
        raise UserError(str(error)) from None


def check_early(config: RunConfig) -> None:
    """Refuse what can be seen to be wrong without torch; `check` does so too.

    Raises:
        UserError: with the value at fault and what to do.
    """
    spec, trainer, traits = config.opt_spec, config.trainer, config.opt_spec.traits
    if config.opt in OPTIMIZERS.own:  # reading the options of others imports them
        for name, option in optimizer_options(spec).items():
            value = config.opt_options.get(name)
            if value != option.default and (place := _range_of(option.help, value)):
                raise UserError(f"--opt.{name}={value}{_outside(value, place)}")
    if traits.full_batch and trainer.batch_size != "full":
        raise UserError(
            f"--trainer.batch_size {trainer.batch_size}: {config.opt} is a full-batch method;"
            " use its stochastic form, or --trainer.micro_batch_size to save memory"
        )
    if trainer.measure_every is not None and config.task_spec.measure_every is None:
        raise UserError(f"--trainer.measure_every {trainer.measure_every}: the task {config.task} measures nothing")
    if config.precision == "16-mixed" and trainer.strategy == "fsdp":
        raise UserError(
            "--precision 16-mixed does not work with --trainer.strategy fsdp: ranks would not agree on which steps"
            " overflow; use bf16-mixed"
        )
    if config.precision == "16-mixed" and traits.calls_closure_again:
        raise UserError(
            f"--precision 16-mixed: {config.opt} evaluates the loss several times a step,"
            " which a gradient scaler cannot follow; use bf16-mixed"
        )
    if traits.create_graph and trainer.gradient_clip_val is not None:
        raise UserError(
            f"--trainer.gradient_clip_val: {config.opt} differentiates the gradients,"
            " which clipping would change under it"
        )


def check(config: RunConfig) -> None:
    """Refuse a configuration that cannot be run, or that would run but not be what it says.

    Raises:
        UserError: with the value at fault and what to do.
    """
    check_early(config)
    with doing("importing torch"):
        import torch  # noqa: F401
    _check_hyperparameters(config)
    traits, trainer, told = config.opt_spec.traits, config.trainer, config.opt_spec.step_keywords
    if traits.calls_closure_again and told:
        raise UserError(
            f"{config.opt} evaluates the loss several times a step, so a norm told before it would be of another point"
        )
    if traits.needs_loss and trainer.gradient_clip_val is not None and "loss_grad_norm" not in told:
        raise UserError(
            f"--trainer.gradient_clip_val: {config.opt} computes its step from loss and gradient, and its `step` takes"
            " no `loss_grad_norm`; with the gradient clipped the step would be wrong"
        )


def _check_hyperparameters(config: RunConfig) -> None:
    """Let the optimizer's constructor look at its arguments before anything is loaded."""
    import torch

    given = {name: value for name, value in config.opt_options.items() if value != TASK_VALUE}
    try:
        config.opt_spec.cls([torch.nn.Parameter(torch.zeros(1))], **given)
    except Exception as error:
        if config.opt_spec.package is None or isinstance(error, ValueError):
            raise _at_fault(config, given, error) or option_error("opt", error, config.opt_options) from None
        raise UserError(f"{config.opt} cannot be made: {described(error)}") from None


def _at_fault(config: RunConfig, given: Mapping[str, Any], error: Exception) -> UserError | None:
    """The error with the option that a constructor refuses, and its range, if the constructor names none itself.

    It is the one that is refused alike where all others have their defaults.
    """
    import torch

    if str(error).partition("=")[0] in given:
        return None
    options = optimizer_options(config.opt_spec)
    usual = {name: options[name].default if options[name].default not in (MISSING, TASK_VALUE) else value
             for name, value in given.items()}  # fmt: skip
    for name, value in given.items():
        if value == usual[name]:
            continue
        try:
            config.opt_spec.cls([torch.nn.Parameter(torch.zeros(1))], **usual | {name: value})
        except Exception as again:
            if str(again) == str(error):
                place = _range_of(options[name].help, value)
                why = _outside(value, place) if place else f": {str(error).partition(chr(10))[0]}"
                return UserError(f"--opt.{name}={value}{why}")
    return None


def _outside(value: Any, place: str) -> str:
    return f" is out of range: {'each' if isinstance(value, tuple | list) else 'it'} must lie in {place}"


def _range_of(text: str, value: Any) -> str | None:
    """The range that an option's help names, if the value, or one of several, lies outside of it."""
    found = re.search(r"in ([\[(])([^\s,]+), ([^\s,\])]+)([\])])", text)
    if found is None:
        return None
    opens, low, high, closes = found.groups()
    try:
        outside = [
            not (float(low) <= x <= float(high))
            or (x == float(low) and opens == "(")
            or (x == float(high) and closes == ")")
            for x in (value if isinstance(value, tuple | list) else [value])
        ]
    except (TypeError, ValueError):
        return None
    return found[0].removeprefix("in ") if any(outside) else None


def option_error(prefix: str, error: Exception, options: Collection[str]) -> UserError:
    """A constructor's complaint; ours begin with `name=value`, which becomes the option's name."""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    return UserError(f"--{prefix}.{text}" if text.partition("=")[0].split(" ")[0] in options else f"--{prefix}: {text}")
