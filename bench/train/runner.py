"""run(config): from a resolved configuration to a stored result. The only place that builds a Trainer."""

import logging
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins import DoublePrecision, MixedPrecision
from lightning.pytorch.plugins.environments import LightningEnvironment

from bench import __version__, process
from bench.config.checks import check, task_errors
from bench.config.files import TunedBy
from bench.config.options import imported_options
from bench.config.run_config import RunConfig, on_device
from bench.errors import RunBroke, RunBusy, UserError, described, was_interrupted
from bench.machine import LIBRARIES, cpu_name, is_main_process
from bench.output import remark
from bench.progress import Progress, SweepProgress, doing
from bench.store.record import RunResult, now
from bench.store.stores import Contents, last_checkpoint
from bench.store.writer import BlockWriter
from bench.train.callbacks import Recorder
from bench.train.checkpoints import usable_steps
from bench.train.memory import peak_memory
from bench.train.stop import StopRequest
from bench.train.threads import limit_threads
from bench.train.training_plan import make_plan
from optimizers.plugins import bare
from tasks.core.data import TaskData
from tasks.core.files import not_installed
from tasks.core.order import derive_seed
from tasks.core.sharding import ShardedStrategy
from tasks.core.task import Task
from tasks.core.training_step import CompileError, TrainingPlan

WAITING = (
    "bench: waiting for all {} machines; start the same command on each, with NODE_RANK (0 on the first), MASTER_ADDR"
    " (the address of the first) and MASTER_PORT (a free port there)"
)
_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE")


def run(
    config: RunConfig,
    *,
    rerun: bool = False,  # train again even if the result is stored or the run could be resumed
    progress: bool | SweepProgress = True,  # a bar, or the view of a plan that it reports to
    stop: StopRequest | None = None,  # lets the caller ask the run to stop; it handles signals as well
    tuned_by: TunedBy | None = None,  # the study that found its hyperparameters
    plan: str | None = None,  # the command that requested the run (`RunResult.plan`)
) -> RunResult:
    """Train as configured and store the result; or return the stored result.

    An interrupted run continues where it stopped. With several devices Lightning starts the other ranks with the same
    command; they call this function too and write nothing.

    Raises:
        UserError: the configuration cannot be run, data are missing, or the store cannot be written.
        RunBusy: another process is training this run.
        RunBroke: the run failed; the failure is stored too.
        KeyboardInterrupt: a signal asked to stop after the run had ended; its result is stored.
    """
    config = on_device(config)
    main = is_main_process()
    stored = Contents([config.store], [config.run_id]).get(config.run_id)
    if not rerun and stored is not None and stored.finished:
        return stored
    if stored is not None and stored.status == "running" and main:
        raise RunBusy(f"run {config.run_id} is in training by another process")
    check(config)
    task, training = build(config)
    result = new_result(config, task, training, plan, tuned_by)
    loggers = _loggers(config) if main else []  # before the run begins: this may fail, and writes nothing yet
    # All ranks find the same checkpoint: the previous process's, which stays until the run has ended.
    checkpoint = last_checkpoint(config.store, [config.run_id]) if not rerun else None
    saved = usable_steps(checkpoint, put_aside=main)
    if saved and stored is not None:
        result.begun, result.plan = stored.begun or result.begun, stored.plan
    writer = BlockWriter(config.store, [result], resume=saved, again=rerun) if main else None
    checkpoint = writer.checkpoint if writer is not None else checkpoint
    stop = stop or StopRequest()
    try:
        label = f"{bare(config.task)} {bare(config.opt)}"
        view = progress if isinstance(progress, SweepProgress) else None
        bar = Progress(training.total_steps, label, enabled=bool(progress) and main, view=view)
        recorder = Recorder(config, result, writer, stop, bar, task, loggers)
        for logger in loggers:
            logger.log_hyperparams(result.config)
        with quiet(), stop.listening(), isolated_rendezvous(config):
            trainer = make_trainer(config, [recorder])
            steps = StepRanges(task, recorder.val_every, config.task_spec.steps_per_call)
            if config.trainer.num_nodes > 1:
                if main and isinstance(getattr(trainer.strategy, "cluster_environment", None), LightningEnvironment):
                    print(WAITING.format(config.trainer.num_nodes), file=sys.stderr, flush=True)
                stop.leave_to_system()
            trainer.fit(task, steps, ckpt_path=checkpoint if saved else None, weights_only=True)
        result.memory = peak_memory()
        if writer is not None:
            writer.leave([result]) if result.status == "killed" else writer.end([result], recorder.measured)
    except BaseException as error:
        if isinstance(error, CompileError):
            error = UserError(f"--trainer.compile step: torch.compile does not work here ({error}); leave it out")
        if isinstance(error, SystemExit) and (stop.signal is not None or was_interrupted(error)):
            error = KeyboardInterrupt()  # Lightning turns it into an exit with code 1
        interrupted = isinstance(error, KeyboardInterrupt)
        result.status = "killed" if interrupted else "failed"
        result.reason = "interrupted at once" if interrupted else described(error)
        if writer is not None:
            writer.leave([result])
        _finalize(loggers, "failed")
        if isinstance(error, UserError | KeyboardInterrupt):
            raise error from None
        anew = "; it had continued from a checkpoint, and --rerun begins anew" * bool(saved)
        raise RunBroke(f"run {config.run_id} failed: {result.reason}{anew}") from error
    _finalize(loggers, "success" if result.status == "completed" else "failed")
    if stop.signal is not None and result.status != "killed":
        raise KeyboardInterrupt  # too late for this run, but callers with further runs must stop
    return result


def build(config: RunConfig, data: TaskData | None = None) -> tuple[Task, TrainingPlan]:
    """The task, with weights initialised from the seed, and its training plan; with `data` if they are loaded already.

    UserError if an option's value is illegal, or data are missing.
    """
    spec = config.task_spec
    options, seed = dict(config.task_options), derive_seed(config.seed, "init")
    torch.manual_seed(seed)
    with task_errors(config.task_options):
        of_data, of_module = imported_options(spec.data_cls, 2), imported_options(spec.module_cls)
        process.ready()  # all is imported, and nothing is built yet
        data = data or _load(spec.data_cls, config, {k: v for k, v in options.items() if k in of_data})
        options = {k: v for k, v in options.items() if k not in of_data or k in of_module}  # some are for both
        dtype = torch.float64 if config.precision == "64-true" else torch.float32
        torch.manual_seed(seed)  # reading the data may have drawn numbers, or set another seed, unless they were kept
        with doing(f"building the model of {config.task}"), _default_dtype(dtype):
            task = spec.module_cls(data, **options)
    limit_threads(task.parameters())
    plan = task.plan = make_plan(config, task)
    return task, plan


_loaded: dict[Any, TaskData] = {}


def _load(data_cls: Any, config: RunConfig, options: Mapping[str, Any]) -> TaskData:
    """The data; if they do not depend on the seed, they are kept for the next run, which usually needs the same.

    `TaskData.to` may have rounded them, so a run in float64 does not get those of one in float32.
    """
    key = data_cls, config.data, config.precision == "64-true", repr(sorted(options.items()))
    if key in _loaded:
        return _loaded[key]
    if not data_cls.seeded:
        torch.manual_seed(0)  # so that samples drawn from torch's generator do not depend on which run loads them first
    with doing(f"{'making' if data_cls.seeded else 'reading'} the data of {config.task}"):
        data = data_cls(config.data, seed=config.seed, **options)
    if not data_cls.seeded:
        _loaded.clear()
        _loaded[key] = data
    return data


def new_result(
    config: RunConfig, task: Task, training: TrainingPlan, plan: str | None = None, tuned_by: TunedBy | None = None
) -> RunResult:
    """The record of a run that is about to begin, with its plan and the study that found its hyperparameters."""
    study, tuned_on = tuned_by or (None, None)
    return RunResult(
        **config.record_fields,
        versions={"suite": __version__, **config.spec_versions, **_library_versions()},
        split=task.data.report,
        select_split=task.data.select,
        part="; ".join(filter(None, (task.part, task.data.part))) or None,
        environment=environment(config),
        facts=task.data.facts() | task.facts(),
        unscheduled=config.trainer.is_scheduled and config.traits.unscheduled,
        step_of=training.step_of,
        begun=now(),
        plan=plan,
        tuned_by=study,
        tuned_on=tuned_on,
    )


class StepRanges:
    """A dataloader for Lightning: pairs (first step, step after the last), cut where an evaluation is due.

    They begin at `steps_done` of the training, a task or lanes, and end with its plan.
    """

    def __init__(self, training: Any, val_every: int, steps_per_call: int) -> None:
        self.training, self.val_every, self.steps_per_call = training, val_every, steps_per_call

    def __iter__(self) -> Iterator[tuple[int, int]]:
        start, total = self.training.steps_done, self.training.plan.total_steps
        while start < total:
            boundary = (start // self.val_every + 1) * self.val_every
            stop = min(start + self.steps_per_call, boundary, total)
            yield start, stop
            start = stop


def make_trainer(config: RunConfig, callbacks: list[pl.Callback]) -> pl.Trainer:
    """A Trainer for what the suite leaves to Lightning: devices, processes, precision, checkpoints, hooks."""
    options = config.trainer
    ranks = options.ranks
    precision: dict[str, Any] = {"precision": config.precision}
    if config.precision == "16-mixed" and config.device == "cpu":
        # Lightning would silently use bf16 on a CPU.
        precision = {"plugins": [MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))]}
    if config.precision == "64-true":
        precision = {"plugins": [DoublePrecision()]}  # by name Lightning refuses it under FSDP2, although it works
    strategy: Any = "auto" if options.strategy == "auto" and ranks == 1 else "ddp"
    if options.strategy == "fsdp":
        strategy = ShardedStrategy(ranks)
    # cuDNN's default algorithms for the gradients of convolutions add in an order that differs between calls.
    torch.backends.cudnn.deterministic = True
    return pl.Trainer(
        accelerator=config.device,
        devices=options.devices,
        num_nodes=options.num_nodes,
        strategy=strategy,
        max_epochs=1,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        **precision,
    )


@contextmanager
def isolated_rendezvous(config: RunConfig) -> Iterator[None]:
    """Leave nothing of the run's ranks behind: later runs and child processes need their own rendezvous.

    Lightning writes the ranks' address, port and number into the environment, and keeps the process group and its port.
    A group of several ranks stays until the process ends, since others may still use its store.
    """
    initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
    before = {name: os.environ[name] for name in _RENDEZVOUS if name in os.environ}
    try:
        yield
    finally:
        for name in _RENDEZVOUS:
            os.environ.pop(name, None)
        os.environ.update(before)
        if config.trainer.ranks == 1 and not initialized and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


@cache
def _library_versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


def environment(config: RunConfig) -> dict[str, Any]:
    """Facts about the machine that affect speed and rounding."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if config.device == "cuda" else None,
    }


def _loggers(config: RunConfig) -> list[Any]:
    if config.logger is None:
        return []
    from lightning.pytorch import loggers

    folder, name = str(config.store / config.run_id), config.run_id
    make: dict[str, Callable[[], Any]] = {
        # Without a version each process (`--rerun`, `--resume`) gets the next one; a fixed one would be overwritten.
        "tensorboard": lambda: loggers.TensorBoardLogger(folder, name="tensorboard", default_hp_metric=False),
        "csv": lambda: loggers.CSVLogger(folder, name="csv"),
        "wandb": lambda: loggers.WandbLogger(name=name, save_dir=folder, project="attention-optimizer-bench"),
    }
    try:
        logger = make[config.logger]()
    except ImportError:
        raise UserError(f"--logger {config.logger}: {not_installed(config.logger, config.logger)}") from None
    return [logger]


def _finalize(loggers: Iterable[Any], status: str) -> None:
    """Close the loggers; a failure is only reported, since the record is already written."""
    for logger in loggers:
        try:
            logger.finalize(status)
        except Exception as error:
            remark("warning", f"{type(logger).__name__} could not finish: {error}")


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Lightning's notes on hardware and its tips."""
    levels = {log: log.level for log in map(logging.getLogger, ("lightning.pytorch", "lightning.fabric"))}
    for log in levels:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            yield
    finally:
        for log, level in levels.items():
            log.setLevel(level)
