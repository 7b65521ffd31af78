"""Checks before anything is loaded: illegal hyperparameters, and runs that would differ from their settings.

`check_early` and `check_places` import no torch, which takes seconds; `check` calls the optimizer's constructor.
"""

import inspect
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import Any

from bench.config.options import optimizer_options
from bench.config.run_config import RunConfig
from bench.config.values import existing
from bench.errors import UserError, described
from bench.machine import is_main_process
from bench.progress import doing
from bench.store.files import making
from optimizers import TASK_VALUE, OptimizerSpec
from optimizers.groups import REST, split_rest
from optimizers.plugins import BROKEN, load
from tasks.core.files import DataError


def check_places(configs: Iterable[RunConfig]) -> None:
    """Ensure that the store is writable and that the data files exist, fetching them if necessary (UserError)."""
    for config in {repr((c.store, c.data, c.task, c.task_options)): c for c in configs}.values():
        if is_main_process():  # the other ranks write nothing
            with making(config.store), TemporaryFile(dir=existing(config.store)):  # leaves no trace
                pass
        if config.task_spec.files:
            require = load(config.task_spec.files)
            names = inspect.signature(require).parameters
            with task_errors(config.task_options), doing(f"looking for the data of {config.task}"):
                require(config.data, **{name: x for name, x in config.task_options.items() if name in names})


def check_early(config: RunConfig) -> None:
    """Refuse errors that need no torch to detect (UserError); `check` includes this."""
    trainer, opt, size = config.trainer, config.opt, config.trainer.batch_size
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "SLURM_PROCID"):  # launchers set them
        if not os.environ.get(name, "0").isdecimal():
            raise UserError(f"the environment has {name}={os.environ[name]}, which is no number; unset it")
    if (rank := int(os.environ.get("RANK", "0"))) and "WORLD_SIZE" not in os.environ:
        raise UserError(f"the environment has RANK={rank} without WORLD_SIZE; unset it, or use a launcher")
    again = next((spec.name for spec in config.methods if spec.traits.calls_closure_again), None)
    full = next((spec.name for spec in config.methods if spec.traits.full_batch), None)
    every, points, clips = trainer.measure_every, trainer.observe, trainer.gradient_clip_val is not None
    graph, measures = config.traits.create_graph, config.task_spec.measure_every is not None
    is_fsdp, is_fp16 = trainer.strategy == "fsdp", config.precision == "16-mixed"
    compiles, is_apart = trainer.compile == "step", trainer.ranks > 1 or trainer.strategy != "auto"
    twice, curved = f"{again} evaluates the loss several times a step", f"{opt} differentiates the gradients"
    todo = "use its stochastic form, or --trainer.micro_batch_size to save memory"
    faults = [
        (again and config.rest_spec, f"--opt.{REST}: {twice}, so it must move all parameters"),
        (full and size != "full", f"--trainer.batch_size {size}: {full} is a full-batch method; {todo}"),
        (every and not measures, f"--trainer.measure_every {every}: the task {config.task} measures nothing"),
        (points and measures, f"--trainer.observe {points}: the task {config.task} has its own measurements"),
        (points and is_fsdp, "--trainer.observe needs whole weights, and --trainer.strategy fsdp shards them"),
        (is_fp16 and is_fsdp, "--precision 16-mixed: ranks of fsdp would not agree on overflows; use bf16-mixed"),
        (is_fp16 and again, f"--precision 16-mixed: {twice}, which a gradient scaler does not support; use bf16-mixed"),
        (compiles and graph, f"--trainer.compile step: {curved}, which a compiled program cannot; leave it out"),
        (compiles and is_apart, "--trainer.compile step: it was tried on one device without a strategy; leave it out"),
        (graph and clips, f"--trainer.gradient_clip_val: {curved}, and clipping would change them"),
    ]
    for is_wrong, message in faults:
        if is_wrong:
            raise UserError(message)


def why_no_lanes(config: RunConfig) -> str | None:
    """The reason why such runs cannot be lanes, or None."""
    trainer, lanes = config.trainer, config.task_spec.lanes
    in_steps = "lanes share the time, so their budget is in steps"
    reasons = [
        (config.traits.create_graph, f"{config.opt} differentiates the gradients"),
        (not lanes, f"the loss of {config.task} may be no function of weights and batch (TaskSpec.lanes)"),
        (trainer.strategy != "auto", f"--trainer.strategy {trainer.strategy}: lanes train on one device"),
        (trainer.ranks > 1, f"--trainer.devices {trainer.devices}: lanes train on one device"),
        ("true" not in config.precision, f"--precision {config.precision}: lanes train in 32-true or 64-true"),
        (trainer.compile == "step", "--trainer.compile step: it compiles the steps of one run"),
        (trainer.max_seconds, f"--trainer.max_seconds {trainer.max_seconds or 0:g}: {in_steps}"),
        (config.logger is not None, f"--logger {config.logger}: a logger follows one run"),
    ]
    return next((reason for holds, reason in reasons if holds), None)


def check_engine(engine: str, configs: Iterable[RunConfig]) -> None:
    """Refuse runs that this engine cannot train (UserError)."""
    obstacle = next(filter(None, map(why_no_lanes, configs)), None) if engine == "lanes" else None
    if obstacle:
        raise UserError(f"--engine lanes: {obstacle}; use --engine lightning")


def check(config: RunConfig) -> None:
    """Refuse a configuration that cannot run, or that would not run as specified (UserError)."""
    check_early(config)
    with doing("importing torch"):
        import torch  # noqa: F401
    first, rest = split_rest(config.opt_options) if config.rest_spec is not None else (config.opt_options, {})
    for spec, prefix, options in ((config.opt_spec, "opt", first), (config.rest_spec, f"opt.{REST}", rest)):
        if spec is not None:
            values = {name: x for name, x in options.items() if x != TASK_VALUE and "." not in name and name != REST}
            _check_constructor(spec, prefix, values)
    if config.traits.calls_closure_again and config.step_keywords:
        why = "so a norm computed before the step belongs to another point"
        raise UserError(f"{config.opt} evaluates the loss several times a step, {why}")
    for method in config.methods if config.trainer.gradient_clip_val is not None else []:
        if method.traits.needs_loss and "loss_grad_norm" not in method.step_keywords:
            why = f"{method.name} computes its step from loss and gradient, and its `step` takes no `loss_grad_norm`"
            raise UserError(f"--trainer.gradient_clip_val: {why}; with the gradient clipped the step would be wrong")


def _check_constructor(spec: OptimizerSpec, prefix: str, given: Mapping[str, Any]) -> None:
    """Validate arguments by a constructor, for a matrix, which every method accepts."""
    import torch

    from optimizers.groups import flagged
    from optimizers.hybrid import named, takes_names

    parameter = torch.nn.Parameter(torch.zeros(2, 2))
    try:
        pairs = [("weight", parameter)]
        spec.cls(named(spec.cls, pairs) if takes_names(spec.cls) else flagged(spec, [parameter]), **given)
    except BROKEN as error:
        if spec.package is not None and not isinstance(error, ValueError | TypeError):
            raise UserError(f"{spec.name} cannot be made: {described(error)}") from None
        for name, value in given.items():  # torch's message ends with the value: "Invalid learning rate: -1.0"
            if str(error).rpartition(": ")[2] in map(str, value if isinstance(value, tuple) else [value]):
                meaning = optimizer_options(spec, given)[name].help
                raise UserError(f"--{prefix}.{name}={value}: {error} ({meaning})") from None
        raise option_error(prefix, error, given) from None


def option_error(prefix: str, error: BaseException, options: Collection[str]) -> UserError:
    """A constructor's error; ours begin with `name=value`, which becomes the option's name."""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    return UserError(f"--{prefix}.{text}" if text.partition("=")[0].split(" ")[0] in options else f"--{prefix}: {text}")


@contextmanager
def task_errors(options: Collection[str]) -> Iterator[None]:
    """Turn errors of a task's code, which has these options, into one line for the user (UserError)."""
    try:
        yield
    except ValueError as error:
        raise option_error("task", error, options) from None
    except DataError as error:
        raise UserError(str(error)) from None
