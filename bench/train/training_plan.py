"""The training plan of a run, from its configuration and the task, or an error."""

from collections.abc import Callable, Iterable, Sequence

from torch import nn
from torch.optim import Optimizer

from bench.config.checks import option_error
from bench.config.options import all_optimizer_options
from bench.config.run_config import RunConfig
from bench.config.trainer import MOST_STEPS
from bench.errors import UserError, first_line
from bench.text import comparable, counted
from optimizers import TASK_VALUE
from optimizers.groups import REST, Parameter, Part, divide
from optimizers.hybrid import make
from optimizers.plugins import BROKEN
from tasks.core.averaging import Averaging
from tasks.core.order import micro_batches_per_rank
from tasks.core.quantities import observed_steps
from tasks.core.schedule import Schedule
from tasks.core.task import Task
from tasks.core.training_step import TrainingPlan


def make_plan(config: RunConfig, task: Task) -> TrainingPlan:
    """The training plan of a task.

    Raises:
        UserError: the batch does not fit the data or the devices.
    """
    trainer, n = config.trainer, task.data.sizes["train"]
    size = n if trainer.batch_size == "full" else trainer.batch_size
    assert isinstance(size, int)
    if size > n:
        raise UserError(
            f"--trainer.batch_size {size} is more than the {n} training samples; use at most {n}, or `full`"
        )
    ranks = trainer.ranks
    if size < ranks:
        raise UserError(f"--trainer.batch_size {size} is not divisible among {ranks} devices")
    per_epoch = n // size
    epochs = None if trainer.max_epochs is None else max(1, round(min(trainer.max_epochs * per_epoch, MOST_STEPS)))
    micro = trainer.micro_batch_size or config.task_spec.micro_batch_size
    if size // ranks < micro_batches_per_rank(size, ranks, micro):  # the smallest share could not be cut
        raise UserError(
            f"--trainer.micro_batch_size {micro}: {ranks} devices cannot divide {size} samples into equal numbers of"
            " micro-batches; use a larger one, or a batch size divisible by the number of devices"
        )
    hyperparameters = dict(config.opt_options)
    known = {"f_star": task.data.f_star, "batches_per_epoch": per_epoch}
    for name, value in list(hyperparameters.items()):
        if value == TASK_VALUE:
            hyperparameters[name] = known.get(name.rpartition(".")[2])
            if hyperparameters[name] is None:
                del hyperparameters[name]
        if name.rpartition(".")[2] == "f_star" and name in hyperparameters:
            # The task's loss excludes this constant, so that L - f_star keeps its precision.
            hyperparameters[name] -= task.data.loss_offset.get("train", 0.0)
    try:
        parameters = task.parameter_roles()
    except ValueError as error:
        raise UserError(f"task {config.task}: {error}") from None
    try:
        parts = divide(config.opt_spec, config.rest_spec, hyperparameters, parameters)
    except ValueError as error:
        raise option_error("opt", error, config.opt_options) from None
    if len(parts) < len(config.methods):
        _refuse_idle_rest(config)
    if trainer.observe is not None and not task.maps({name: p.detach() for name, p in task.named_parameters()}):
        why = f"{config.task} has no heads with their own attention to observe"
        raise UserError(f"--trainer.observe {trainer.observe}: {why}")
    steps = min(x for x in (trainer.max_steps, epochs) if x is not None)
    schedule = Schedule(trainer.schedule, steps, trainer.warmup, trainer.floor, trainer.decay)
    return TrainingPlan(
        make_optimizer=_maker(config, parts, parameters),
        parts=parts,
        total_steps=steps,
        batch_size=size,
        micro_batch_size=micro,
        evaluation_batch_size=config.task_spec.micro_batch_size,
        data_seed=config.data_seed,
        seed=config.seed,
        clip=trainer.gradient_clip_val,
        schedule=schedule if trainer.is_scheduled and not config.traits.unscheduled else None,
        average=average_of(config, steps, per_epoch),
        step_keywords=config.step_keywords,
        measure_every=trainer.measure_every,
        observed=() if trainer.observe is None else observed_steps(steps, trainer.observe),
        create_graph=config.traits.create_graph,
        compiled=trainer.compile == "step",
    )


def _refuse_idle_rest(config: RunConfig) -> None:
    """Refuse values of an optimizer for the rest if no parameters are left for it: they would have no effect."""
    options = all_optimizer_options(config.opt_spec.on(config.task_spec.family), config.opt_options)
    for name, value in config.opt_options.items():
        if name.partition(".")[0] == REST and comparable(value) != comparable(options[name].default):
            raise UserError(
                f"--opt.{name} {value}: all parameters of {config.task} are matrices, which {config.opt} moves, so"
                " nothing is left for the rest; remove it"
            )


def _maker(
    config: RunConfig, parts: Sequence[Part], parameters: Sequence[Parameter]
) -> Callable[[Iterable[nn.Parameter]], Optimizer]:
    """A function that builds the optimizer from the task's parameters; its errors are UserErrors."""

    def maker(params: Iterable[nn.Parameter]) -> Optimizer:
        try:
            optimizer = make(parts, [p for p in params if p.requires_grad], parameters)
            if callable(train := getattr(optimizer, "train", None)):
                train()  # some schedule-free methods begin in eval mode
            return optimizer
        except BROKEN as error:
            of_groups = bool(config.opt_spec.groups) and str(error).startswith(config.opt_spec.groups)
            if not of_groups and str(error).partition("=")[0] not in config.opt_options:
                stacked = [p for p in parameters if p.role == "matrix" and len(p.shape) > 2]
                advice = None
                if config.rest_spec is None and any(p.role != "matrix" for p in parameters):
                    advice = f"if it is a method for matrices, use another optimizer for the rest (--opt.{REST} adamw)"
                elif stacked:
                    shape = " x ".join(map(str, stacked[0].shape))
                    advice = f"the tensor {stacked[0].name} ({shape}) has more than two dimensions; --opt muon takes it"
                if advice:
                    what = f"{config.opt} cannot be made for the parameters of {config.task}"
                    raise UserError(f"{what}: {first_line(error)}; {advice}") from error
            raise option_error("opt", error, config.opt_options) from error

    return maker


def average_of(config: RunConfig, steps: int, per_epoch: int) -> Averaging | None:
    """The average of the weights for evaluation, or None; UserError if the run ends before the first snapshot."""
    trainer = config.trainer
    if trainer.average == "none":
        return None
    every = trainer.average_every
    if every is None:
        every = -(-steps // 20)
        if per_epoch * trainer.average_window <= steps:
            every = max(every, per_epoch)
    if every > steps:
        raise UserError(f"--trainer.average_every {every}: the run has {counted(steps, 'step')}; use at most {steps}")
    return Averaging(trainer.average, trainer.average_decay, trainer.average_window, every)
