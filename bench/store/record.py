"""The record of a run: settings, outcome, and everything needed to compare it without imports."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, GetPydanticSchema, StringConstraints

from bench.config.run_config import RunConfig, id_of
from bench.store.files import Damaged, parse
from bench.text import is_number
from optimizers.plugins import bare

Mode = Literal["min", "max"]
"""Whether a metric is better when smaller or larger."""
Status = Literal["running", "completed", "diverged", "timeout", "failed", "killed"]
FINISHED = ("completed", "diverged", "timeout")
RESUMABLE = ("killed", "failed")
CAP_BINDS = 0.9
"""Share of capped steps above which the cap, not the method, sets the step size. Ours."""

RunId = Annotated[str, StringConstraints(pattern=r"^[\w+-][\w.+-]{0,199}$")]
"""A file name that is valid on every system and cannot leave its folder."""
Name = Annotated[str, StringConstraints(min_length=1)]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Number = int | float
Json = dict[str, Any]
Moment = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]  # in UTC


def now() -> str:
    """The current time in the format of records (`Moment`)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _checked(kind: Any) -> GetPydanticSchema:
    """Validation by a narrower type than readers need."""
    return GetPydanticSchema(lambda _, handler: handler(kind))


Config = Annotated[Json, _checked(dict[str, Json | Name | Count])]
_SETTINGS = RunConfig.model_fields.keys() - {"data", "store", "logger"}
Facts = Annotated[Json, _checked(dict[str, str | Number | None])]
Row = Annotated[Json, _checked(dict[str, Number])]
Metrics = Annotated[dict[str, Json], _checked(dict[str, dict[str, float | dict[str, float]]])]


@dataclass
class RunResult:
    """The record of a run. All numbers are finite; missing values are None."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    run_id: RunId  # `task-opt-hash`
    config: Config  # the resolved configuration
    status: Status = "running"  # how it ended; `running` during training
    reason: str | None = None  # one sentence on the status
    identity: Json = field(default_factory=dict)  # what is hashed into `run_id` (`RunConfig.identity`), if known
    problem: Json = field(default_factory=dict)  # dotted settings that define its problem: budget, other options
    chosen: Json = field(default_factory=dict)  # dotted settings that differ from those of `bench fit --task T --opt O`
    versions: Facts = field(default_factory=dict)  # of the suite, its libraries, and the specs
    metric: str = ""  # the name of the compared metric (`accuracy`)
    split: str = ""  # the split of that metric (`test`)
    select_split: str = ""  # the split of its evaluations and its best step (`TaskData.select`); empty if unknown
    mode: Mode = "min"  # whether the metric is better when smaller (`min`) or larger (`max`)
    scale: Literal["", "linear", "log"] = ""  # scale of comparisons (`TaskSpec.scale`); empty if unknown
    target: float | None = None  # target value of the metric on the selection split
    measures: bool = False  # whether the task has measurements
    formula: str = ""  # the optimizer's update rule in one line
    traits: list[str] = field(default_factory=list)  # the optimizer's (`optimizers.registry.Traits`)
    final: float | None = None  # the metric at the last step
    best: float | None = None  # the metric at the best step on the selection split
    best_step: Count | None = None  # that step
    # All values, by "final" and "best", then name; those on other splits (`TaskData.also`) by split, then name.
    metrics: Metrics = field(default_factory=dict)
    validations: list[Row] = field(default_factory=list)  # by evaluation: step, `train_s`, values on `select_split`
    steps: Count = 0  # number of optimizer steps
    evaluations: Count | None = None  # gradients of the batch that they computed, if not one each
    skipped: Count = 0  # steps that changed nothing: the gradient overflowed under a GradScaler
    steps_to_target: Count | None = None  # gradients (`cost`) until the target was first reached
    seconds_to_target: Seconds | None = None  # the same in seconds
    wall_s: Seconds = 0.0  # seconds from first step to end, evaluation included
    train_s: Seconds = 0.0  # seconds without evaluation
    cap_share: Annotated[float, Field(ge=0, le=1)] | None = None  # share of steps that were applied smaller
    saturated_at: Count | None = None  # the step that alone made the gradient 0 (`bench.train.watch.SATURATING`)
    step_of: str = ""  # method and parameter roles of the curve's step sizes, if groups differ
    part: str | None = None  # used part of the data, and model if not the task's namesake; None for the whole task
    memory: dict[str, Count] = field(default_factory=dict)  # peak bytes on host and device, of all lanes together
    environment: Facts = field(default_factory=dict)  # machine, devices, threads
    facts: Json = field(default_factory=dict)  # about the problem instance (`TaskData.facts`) and model (`Task.facts`)
    engine: str = "lightning"  # a single run; `compiled`, with `--trainer.compile`; or `lanes`, vectorised runs
    unscheduled: bool = False  # whether a requested schedule was ignored, since the optimizer needs none
    tuned_by: str | None = None  # the study of its hyperparameters (`--tuned`)
    tuned_on: str | None = None  # the selection split of that study, if known
    thinned: bool = False  # whether the curve has fewer rows than the run has steps
    specimen: str | None = None  # a text that the model wrote, in runs of earlier versions
    task_name: Name | Literal[""] = ""  # the name in the spec of a task given as `file.py:SPEC`
    begun: Moment | Literal[""] = ""  # start of training, in UTC, also of one that was resumed; empty if unknown
    plan: str | None = None  # first purpose: `sweep`, `fit` of several seeds, `study NAME`, `experiment NAME`, or none

    @property
    def task(self) -> str:
        """The display name of its task; `config` has the argument of `--task`."""
        return self.task_name or bare(self.config["task"])

    @property
    def names(self) -> dict[str, set[str]]:
        """The names by which filters select its task and its optimizer (`opt`)."""
        return {"task": {self.task, bare(self.config["task"])}, "opt": {bare(self.config["opt"])}}

    @property
    def planned_study(self) -> str | None:
        """The study that it was trained for, by its own record."""
        return self.plan.removeprefix("study ") if self.plan and self.plan.startswith("study ") else None

    @property
    def processor(self) -> str:
        """The name of the GPU, else of the CPU."""
        return str(self.environment.get("gpu") or self.environment.get("cpu") or "unknown machine")

    @property
    def threads(self) -> str:
        """The number of its threads in words."""
        count = self.environment.get("threads") or "unknown"
        return f"{count} thread{'s' * (count != 1)}"

    @property
    def machine(self) -> str:
        """The type of machine and the engine, as far as they affect timings."""
        on_cpu = "" if self.environment.get("gpu") else f", {self.threads}"
        trainer = self.config.get("trainer", {})
        devices = trainer.get("devices", 1) * trainer.get("num_nodes", 1)
        return f"{self.processor}{on_cpu}, {self.engine}" + f", {devices} devices" * (devices > 1)

    @property
    def finished(self) -> bool:
        """Whether it has finished: completed, diverged, or reached its time limit."""
        return self.status in FINISHED

    @property
    def cost(self) -> int:
        """Gradients of the batch that were computed: one per optimizer step, more for SAM, L-BFGS or a line search."""
        return self.steps if self.evaluations is None else self.evaluations

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


def parse_record(text: bytes, path: Path) -> RunResult:
    """A line as the record of a run; `Damaged` if it is invalid, or its id is not the hash of its identity."""
    run = parse(text, RunResult, path)
    if run.config.keys() != _SETTINGS:
        raise Damaged(path, f"{run.run_id}: the settings of its configuration are {', '.join(run.config)[:200]}")
    if not all({"step", "train_s"} <= row.keys() for row in run.validations):
        raise Damaged(path, f"{run.run_id}: an evaluation lacks its step or seconds")
    if run.identity and id_of(run.config["task"], run.config["opt"], run.identity) != run.run_id:
        raise Damaged(path, f"{run.run_id}: run_id is not the hash of its identity")
    return run


def machines_and_versions(runs: Sequence[RunResult]) -> str:
    """Processors, threads, versions and days of runs, in words."""
    machines: dict[str, set[str]] = {}
    for run in runs:
        machines.setdefault(run.threads, set()).add(re.sub(r"\((R|TM)\)| Processor", "", run.processor))
    places = [f"{' and '.join(sorted(names))} with {threads}" for threads, names in sorted(machines.items())]
    versions = {name: {str(run.versions.get(name, "unknown")) for run in runs} for name in ("torch", "lightning")}
    packages = [f"{name} {' or '.join(sorted(of_name))}" for name, of_name in versions.items()]
    days = [run.begun[:10] for run in runs]
    return ", ".join(["; ".join(places), *packages, " to ".join(sorted({min(days), max(days)}))])
