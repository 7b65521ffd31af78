"""Types and meaning of parameters that several functions share."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import TypedDict

from bench.config.values import Seeds as Seeds

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from optimizers import OptimizerSpec
    from tasks import TaskSpec

    Opt = str | type[Optimizer] | OptimizerSpec
    Task = str | TaskSpec
else:
    Opt = Task = Any  # `bench.api.source.name_of` judges them

Place = str | Path
Names = str | Sequence[str]
Stores = Sequence[Place] | Place | None
Settings = Mapping[str, Any]
Which = Literal["best", "all"]

MEANINGS = {
    "task": "a name of `bench list tasks`, or `file.py:SPEC`.",
    "opt": "a name of `bench list optimizers`, `file.py:Class`, or a class; if several are allowed: A,B.",
    "trials": "number of trials (default nine). A grid adds up to 8 points beyond an edge while the best is there.",
    "report_seeds": "fresh seeds of each winner: a number (default 7: 0 to 6) or a list; fewer decide no verdict.",
    "seed": "seed of problem instance, initialisation and dropout, from 0 (default 0).",
    "logger": "also log to tensorboard, csv or wandb (extras).",
    "config": "YAML file of settings; options override it.",
    "data_seed": "seed of the order of the samples (default: the run's seed).",
    "precision": "32-true, bf16-mixed, 16-mixed or 64-true (default: the task's; lanes need 32-true or 64-true).",
    "device": "cpu, cuda, mps or auto (default auto).",
    "task_options": "options of the task by name (`bench show TASK` lists them).",
    "trainer": 'budget, batch and schedule by name: `{"max_epochs": 2, "batch_size": 64}`.',
    "settings": 'further settings in dotted form, `{"opt.matrix.lr": 0.01}`; they override the others.',
    "engine": "lanes: vectorised runs; lightning: one by one; auto (default): the faster in a short measurement.",
    "workers": "number of processes that share the runs, or auto: one per GPU, or else one per CPU core.",
    "cluster": "train on a Dask cluster: its address, or its scheduler's file.",
    "width": "number of lanes at once (default: measured).",
    "budget": "stop after this time (6h, 90min); the next call continues.",
    "dry_run": "print what would be trained, and exit.",
    "command": "words of the command line, for the suite's own use.",
    "data": "folder of the data sets (default: $BENCH_DATA, else ./data).",
    "store": "folder of the runs (default: $BENCH_STORE, else ./runs).",
    "progress": "show progress and notes on standard error.",
    "only": "only runs with this setting (trainer.max_steps=1000), version (versions.torch=2.15.0) or engine; may be"
    " given several times.",
    "which": "those to show of each optimizer: best takes the tuned ones, else the defaults, else the one set by hand"
    " if there is exactly one.",
    "reference": "optimizer to compare the others with (default: adamw, or gd for full batches).",
    "no_reference": "leave out the shipped reference results.",
    "hyperparameters": 'of the optimizer: `lr=0.1`; `matrix={"lr": 0.01}` for the parameters of one role.',
}
"""The meaning of parameters by name, where a docstring does not say it; `which` is that of `settings: Which`."""


class Executing(TypedDict, total=False):
    """Of functions that train a given plan."""

    engine: Literal["auto", "lanes", "lightning"] | None
    workers: int | str | None
    cluster: str | None
    width: int | None
    budget: str | None
    dry_run: bool
    command: Sequence[str] | None
    data: Place | None
    store: Place | None
    progress: bool


class Fitting(Executing, total=False, extra_items=Any):
    """Of functions that train settings of the call; other names are hyperparameters."""

    config: Place | None
    data_seed: int | None
    precision: str | None
    device: str | None
    task_options: Settings | None
    trainer: Settings | None
    settings: Settings | None


class Choice(TypedDict, total=False):
    """Of functions that compare stored runs."""

    task: Names | None
    opt: Names | None
    only: Mapping[str, Any] | Sequence[str] | None
    settings: Which
    reference: str | None
    no_reference: bool
    store: Stores
    progress: bool
