"""The record of a run: settings, outcome, and everything needed to compare it without imports."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, with_config
from typing_extensions import TypedDict

from bench.config.run_config import id_of
from bench.text import counted, is_number
from optimizers.plugins import bare

Mode = Literal["min", "max"]
"""Whether a metric is better when smaller or larger."""
Status = Literal["running", "completed", "diverged", "timeout", "failed", "killed"]
FINISHED = ("completed", "diverged", "timeout")
RESUMABLE = ("killed", "failed")
CAP_BINDS = 0.9
"""Share of capped steps above which the cap, not the method, sets the step size. Ours."""

FILE_NAME = r"[\w+-][\w.+-]{0,199}"
"""A file name that is valid on every system and cannot leave its folder."""
RunId = Annotated[str, StringConstraints(pattern=f"^{FILE_NAME}$")]
Name = Annotated[str, StringConstraints(min_length=1)]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Json = dict[str, Any]
Moment = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
"""A moment in UTC, to the second."""


def now() -> str:
    """The current time in the format of records (`Moment`)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@with_config(ConfigDict(extra="allow"))
class StoredTrainer(TypedDict, total=False):
    """The options of the trainer that readers use."""

    devices: Count
    num_nodes: Count
    max_steps: Count | None
    max_epochs: float | None


@with_config(ConfigDict(extra="forbid"))
class StoredConfig(TypedDict):
    """A resolved configuration without machine-specific paths (`bench.config.run_config.RunConfig`)."""

    task: Name
    task_options: Json
    opt: Name
    opt_options: Json
    trainer: StoredTrainer
    seed: Count
    data_seed: Count
    precision: Name
    device: Name


Number = int | float
if TYPE_CHECKING:  # validation uses narrower types than readers need
    Config = Facts = Row = dict[str, Any]
    Metrics = dict[str, dict[str, Any]]
else:
    Config = StoredConfig
    Facts = dict[str, str | Number | None]
    Row = dict[str, Number]
    Metrics = dict[str, dict[str, float | dict[str, float]]]


@dataclass
class RunResult:
    """The record of a run. All numbers are finite; missing values are None.

    Attributes:
        run_id: `task-opt-hash`.
        status: how it ended; `running` during training.
        reason: one sentence on the status, or None.
        config: the resolved configuration.
        task_name: the name in the spec of a task given as `file.py:SPEC`; else empty.
        identity: the text hashed into `run_id` (`RunConfig.identity`); empty if unknown.
        problem: settings, in dotted form, that define its problem: the budget, and options beyond the task's
            defaults.
        chosen: settings, in dotted form, that differ from those of `bench fit --task TASK --opt OPT`.
        versions: of the suite, its libraries, and the specs.
        metric: the compared metric, and its split (`accuracy`, `test`).
        select_split: the split of its evaluations, on which its best step is chosen (`TaskData.select`); empty if
            unknown. If it is `train` and `split` is not, the best step was chosen on training data.
        mode: whether the metric is better when smaller (`min`) or larger (`max`).
        scale: scale of comparisons (`TaskSpec.scale`); empty if unknown.
        target: target value of the metric on the selection split, or None.
        measures: whether the task has measurements.
        formula: the optimizer's update rule in one line; empty if it has none.
        traits: the optimizer's traits (`optimizers.registry.Traits`).
        final: that metric at the last step.
        best: that metric at the best step on the selection split.
        best_step: that step.
        metrics: all values, by "final" and "best", then name; those on other splits (`TaskData.also`) by split, then
            name.
        validations: by evaluation: step, seconds of training, values on the selection split.
        steps: number of optimizer steps; `skipped` of them changed nothing (gradient overflow under a GradScaler).
        steps_to_target: when the target was first reached, or None.
        seconds_to_target: the same in seconds.
        wall_s: seconds from first step to end, evaluation included; train_s: without evaluation.
        cap_share: share of steps whose applied step was below the raw one.
        saturated_at: the step that alone made the gradient 0 (`bench.train.watch.SATURATING`), or None.
        step_of: method and parameter roles of the curve's step sizes, if groups differ.
        part: the used part of the data, and the model if it is not the task's namesake; None for the whole task.
        memory: peak bytes on host and device, of the process; lanes share it.
        environment: machine, devices, threads.
        facts: facts about the problem instance (`TaskData.facts`) and the model (`Task.facts`).
        engine: `lightning`, a single run; `compiled`, the same with `--trainer.compile`; or `lanes`, vectorised runs.
        unscheduled: whether a requested schedule was ignored, since the optimizer needs none.
        tuned_by: the study of its hyperparameters (`--tuned`), or None.
        tuned_on: the selection split of that study; None if there is none or it is unknown.
        thinned: whether the curve has fewer rows than the run has steps.
        specimen: a sample of the trained model's output (`Task.specimen`), or None; lanes have none.
        begun: start of training, in UTC; empty if unknown. It survives resuming.
        plan: first purpose of the run: `sweep`, `fit` (of several seeds), `study NAME`, `experiment NAME`; None for
            a single run.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    run_id: RunId
    config: Config
    status: Status = "running"
    reason: str | None = None
    identity: Json = field(default_factory=dict)
    problem: Json = field(default_factory=dict)
    chosen: Json = field(default_factory=dict)
    versions: Facts = field(default_factory=dict)
    metric: str = ""
    split: str = ""
    select_split: str = ""
    mode: Mode = "min"
    scale: Literal["", "linear", "log"] = ""
    target: float | None = None
    measures: bool = False
    formula: str = ""
    traits: list[str] = field(default_factory=list)
    final: float | None = None
    best: float | None = None
    best_step: Count | None = None
    metrics: Metrics = field(default_factory=dict)
    validations: list[Row] = field(default_factory=list)
    steps: Count = 0
    skipped: Count = 0
    steps_to_target: Count | None = None
    seconds_to_target: Seconds | None = None
    wall_s: Seconds = 0.0
    train_s: Seconds = 0.0
    cap_share: Annotated[float, Field(ge=0, le=1)] | None = None
    saturated_at: Count | None = None
    step_of: str = ""
    part: str | None = None
    memory: dict[str, Count] = field(default_factory=dict)
    environment: Facts = field(default_factory=dict)
    facts: Json = field(default_factory=dict)
    engine: str = "lightning"
    unscheduled: bool = False
    tuned_by: str | None = None
    tuned_on: str | None = None
    thinned: bool = False
    specimen: str | None = None
    task_name: Name | Literal[""] = ""
    begun: Moment | Literal[""] = ""
    plan: str | None = None

    @property
    def task(self) -> str:
        """The display name of its task; `config` has the argument of `--task`."""
        return self.task_name or bare(self.config["task"])

    @property
    def names(self) -> dict[str, set[str]]:
        """The names by which filters select its task and its optimizer (`opt`)."""
        return {"task": {self.task, bare(self.config["task"])}, "opt": {bare(self.config["opt"])}}

    def is_of(self, tasks: Sequence[str] | None, opts: Sequence[str] | None) -> bool:
        """Whether it has one of these tasks and one of these optimizers; None and no names allow all."""
        return all(
            not wanted or self.names[kind] & {*map(bare, wanted)} for kind, wanted in (("task", tasks), ("opt", opts))
        )

    @property
    def machine(self) -> str:
        """The type of machine and the engine, as far as they affect timings."""
        env, trainer = self.environment, self.config.get("trainer", {})
        threads = env.get("threads")
        where = env.get("gpu") or (
            f"{env.get('cpu') or 'unknown machine'}, {threads or 'unknown'} thread{'s' * (threads != 1)}"
        )
        devices = trainer.get("devices", 1) * trainer.get("num_nodes", 1)
        return f"{where}, {self.engine}" + f", {devices} devices" * (devices > 1)

    @property
    def finished(self) -> bool:
        """Whether it has finished: completed, diverged, or reached its time limit."""
        return self.status in FINISHED

    @property
    def converged(self) -> bool:
        """Whether it ended before its budget because its gradient was 0: its last value holds at all later steps."""
        return self.status == "completed" and (self.reason or "").startswith("converged")

    @property
    def outcome(self) -> tuple[Any, ...]:
        """The fields in which two records of a run should agree."""
        return self.status, self.steps, self.final, self.best, self.best_step, self.metrics

    def excess(self, at: Literal["final", "best"] = "final") -> float | None:
        """The suboptimality gap at the last or the best step; None if unknown."""
        value = self.metrics.get(at, {}).get("excess")
        return None if isinstance(value, dict) else value

    @property
    def infimum(self) -> float | None:
        """The infimum of the training loss; None if unknown."""
        value = self.facts.get("f_star")
        return value if is_number(value) else None

    @property
    def unsolved(self) -> dict[str, str]:
        """Reference solutions that the problem instance lacks: the reason by name."""
        facts = {name: fact for name, fact in self.facts.items() if isinstance(fact, dict)}
        return {name: str(fact.get("reason")) for name, fact in facts.items() if fact.get("solved") is False}


def contradiction(run: RunResult) -> str | None:
    """The contradiction in a record, or None: its id is the hash of its identity, and evaluations have their step."""
    if not all("step" in row and "train_s" in row for row in run.validations):
        return "an evaluation lacks its step or seconds"
    if run.identity and id_of(run.config["task"], run.config["opt"], run.identity) != run.run_id:
        return "run_id is not the hash of its identity"
    return None


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """The JSON validator of a type; cached, since building it takes longer than reading a record."""
    return TypeAdapter(kind)


def made_on(runs: Iterable[RunResult]) -> str:
    """Processors, threads, versions and days of runs, in words."""
    machines: dict[str, set[str]] = {}
    versions: dict[str, set[str]] = {"torch": set(), "lightning": set()}
    days = set[str]()
    for run in runs:
        env = run.environment
        name = re.sub(r"\((R|TM)\)| Processor", "", str(env.get("gpu") or env.get("cpu") or "an unknown machine"))
        threads = env.get("threads")
        machines.setdefault(counted(threads, "thread") if threads else "unknown threads", set()).add(name)
        days.add(run.begun[:10])
        for package, own in versions.items():
            own.add(str(run.versions.get(package, "unknown")))
    places = [f"{' and '.join(sorted(names))} with {threads}" for threads, names in sorted(machines.items())]
    packages = [f"{package} {' or '.join(sorted(own))}" for package, own in versions.items()]
    return ", ".join(["; ".join(places), *packages, " to ".join(sorted({min(days), max(days)}))])
