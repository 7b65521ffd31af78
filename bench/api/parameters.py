"""Types of parameters, and those that several functions share with their meaning."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from torch.optim import Optimizer

    Opt = str | type[Optimizer]
else:
    Opt = str | type

Place = str | Path
Names = str | Sequence[str]
Seeds = int | str | Sequence[int]
Settings = Mapping[str, Any]
Which = Literal["best", "tuned", "default", "all"]


class Training(TypedDict, total=False, extra_items=Any):
    """Of functions that train; a `hyperparameter` is `lr=0.1`, or `matrix={"lr": 0.01}` for the parameters of one role.

    Attributes:
        config: YAML file of settings; options override it.
        data_seed: seed of the order of the samples (default: the run's seed).
        precision: 32-true, bf16-mixed, 16-mixed or 64-true (default: the task's; lanes need 32-true or 64-true).
        device: cpu, cuda, mps or auto (default auto).
        task_options: options of the task by name (`bench show TASK` lists them).
        trainer: budget, batch and schedule by name: `{"max_epochs": 2, "batch_size": 64}`.
        settings: further settings in dotted form, `{"opt.matrix.lr": 0.01}`; they override the others.
    """

    config: Place | None
    data_seed: int | None
    precision: str | None
    device: str | None
    task_options: Settings | None
    trainer: Settings | None
    settings: Settings | None


class Execution(TypedDict, total=False):
    """How runs are executed.

    Attributes:
        engine: lanes: vectorised runs; lightning: one by one; auto (default): the faster in a short measurement.
        workers: number of processes that share the runs, or auto: one per GPU, or else one per CPU core.
        cluster: train on a Dask cluster: its address, or its scheduler's file.
        width: number of lanes at once (default: measured).
        budget: stop after this time (6h, 90min) and continue on the next call, or refuse more than N runs (200runs).
        dry_run: print what would be trained, and exit.
        command: words of the command line, for the suite's own use.
    """

    engine: Literal["auto", "lanes", "lightning"] | None
    workers: int | str | None
    cluster: str | None
    width: int | None
    budget: str | None
    dry_run: bool
    command: Sequence[str] | None


class Quiet(TypedDict, total=False):
    """Of all functions.

    Attributes:
        progress: show progress and notes on standard error.
    """

    progress: bool


class WithData(Quiet, total=False):
    """Of functions that need data.

    Attributes:
        data: folder of the data sets (default: $BENCH_DATA, else ./data).
    """

    data: Place | None


class InStore(Quiet, total=False):
    """Of functions that store runs.

    Attributes:
        store: folder of the runs (default: $BENCH_STORE, else ./runs).
    """

    store: Place | None


class InStores(Quiet, total=False):
    """Of functions that only read runs.

    Attributes:
        store: folder of the runs; may be given several times (default: $BENCH_STORE, else ./runs).
    """

    store: Sequence[Place] | Place | None


class Stored(WithData, InStore, total=False):
    """Of functions that need data and store runs."""


class Executing(Execution, Stored, total=False):
    """Of functions that train a given plan."""


class Fitting(Training, Executing, total=False, extra_items=Any):
    """Of functions that train settings of the call."""


class Checking(Stored, total=False, extra_items=Any):
    """Of `check`.

    Attributes:
        settings: options in dotted form, `{"opt.lr": 0.1}`.
    """

    settings: Settings | None


class Choice(InStores, total=False):
    """Which stored runs are compared.

    Attributes:
        task: only these tasks: A,B.
        opt: only these optimizers: A,B.
        only: only runs with this setting (trainer.max_steps=1000), version (versions.torch=2.15.0) or engine; may be
            given several times.
        settings: those to show of each optimizer: best takes the tuned ones, else the defaults, else the one set by
            hand if there is exactly one.
        reference: optimizer to compare the others with (default: adamw, or gd for full batches).
        no_reference: leave out the shipped reference results.
    """

    task: Names | None
    opt: Names | None
    only: Mapping[str, Any] | Sequence[str] | None
    settings: Which
    reference: str | None
    no_reference: bool
