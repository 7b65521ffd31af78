"""The specification of a task. Importing this file imports no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from optimizers.plugins import load


def place_of(cls: str | type) -> tuple[str, str]:
    """Module and name of a class, given directly or as `module:Class`."""
    module, _, name = cls.partition(":") if isinstance(cls, str) else (cls.__module__, "", cls.__qualname__)
    return module, name


@dataclass(frozen=True)
class TaskSpec:
    """A model, its data, a metric, a target and a budget.

    The options of a task are the keyword arguments of its data and its module.

    Attributes:
        name: what the user types after `--task`.
        title: a one-line description.
        module: the `tasks.Task`, as `module:Class`, which is imported when it is needed, or the class itself.
        data: the `tasks.TaskData`, likewise.
        metric: the compared metric, one of the task's metrics.
        mode: whether the metric is better when larger ("max") or smaller ("min").
        scale: how values are compared: by differences ("linear"), or by ratios of a loss's suboptimality gaps
            ("log"), for which `TaskData.loss_offset` has the infimum on each evaluated split.
        ranks_training: the ranking intentionally uses training samples: its source's claim is about optimization.
            Its data then select and report on "train". All other tasks rank held-out samples.
        target: value of the metric on the selection split for time-to-target, or None.
        budget: default `max_epochs` or `max_steps`.
        source: source of model and constants.
        version: incremented when a change alters results; part of every run's identity.
        batch_size: samples of one optimizer step; "full" for all of them.
        micro_batch_size: default of `--trainer.micro_batch_size`; also the most samples of one in evaluation.
        precision: default of `--precision`.
        steps_per_call: optimizer steps per `training_step`: more speed up small models, fewer make Ctrl-C faster.
        measure_every: optimizer steps between measurements (`Task.measure_at`); None if the task has none.
        datasets: for tasks with several data sets: their folders in the data folder, the task's namesake first. Its
            option `dataset` selects one, by default the first that exists.
        family: tasks with similar models, for which optimizers share defaults (`OptimizerSpec.by_family`).
        presets: named values of its options; the first preset's are the defaults. Its option `preset` names one.
        derived: functions of all options that give the default of an option whose value is None. Each configuration
            has the result explicitly, as part of its identity; it lacks the option if that is None too.
        lanes: the loss is a function of weights and batch alone, so runs can be vectorised: no buffers change in
            training, and random numbers come only from the batch's randomness.
        files: `module:function` that makes sure that its data files exist; it takes the data folder and, by name,
            the options that determine the files. It imports no torch. Empty for tasks without files.
        package: of a plug-in: its distribution and version, or a digest of its file; part of every run's identity.
        display_name: of a plug-in given as `file.py:SPEC`: the name in its spec, shown by boards.
    """

    name: str
    title: str
    module: str | type
    data: str | type
    metric: str
    mode: Literal["max", "min"]
    target: float | None
    budget: Mapping[str, int]
    source: str
    version: int = 1
    batch_size: int | Literal["full"] = 100
    micro_batch_size: int = 1000
    precision: str = "32-true"
    steps_per_call: int = 10
    measure_every: int | None = None
    lanes: bool = False
    family: str = ""
    datasets: tuple[str, ...] = ()
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    derived: Mapping[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    files: str = ""
    ranks_training: bool = False
    scale: Literal["linear", "log"] = "linear"
    package: str | None = None
    display_name: str = ""

    def __post_init__(self) -> None:
        if self.scale == "log" and self.metric != "loss":
            raise ValueError(f"scale=log compares gaps of a loss, and metric={self.metric} is no loss: remove scale")

    def dataset_in(self, root: Path) -> str | None:
        """The first of its data sets that is in this data folder, or else the first; None if there is no choice."""
        return next((name for name in self.datasets if (root / name).is_dir()), next(iter(self.datasets), None))

    @cached_property
    def module_cls(self) -> Any:
        """The Lightning module, a `tasks.Task`."""
        return load(self.module) if isinstance(self.module, str) else self.module

    @cached_property
    def data_cls(self) -> Any:
        """The data, a `tasks.TaskData`."""
        return load(self.data) if isinstance(self.data, str) else self.data
