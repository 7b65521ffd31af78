"""The record of a run: settings, outcome, and everything needed to compare it without imports."""

import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, TypeAdapter, with_config
from typing_extensions import TypedDict

from bench.config.run_config import TrainerOptions, id_of
from bench.text import counted, is_number
from optimizers.plugins import bare, slug

Mode = Literal["min", "max"]
"""Whether a metric is better when smaller or larger."""
Status = Literal["running", "completed", "diverged", "timeout", "failed", "killed"]
FINISHED = ("completed", "diverged", "timeout")
RESUMABLE = ("killed", "failed")
CAP_BINDS = 0.9
"""Share of capped steps above which the cap, not the method, sets the step size. Ours."""

_LARGEST = 2**63


def _bounded(values: Any) -> Any:
    """The content of a JSON object or list, if all its numbers are finite and fit into 64 bits."""
    for value in values.values() if type(values) is dict else values:
        kind = type(value)  # JSON values have no subclasses
        if kind is str:
            continue
        if kind is float:
            if not math.isfinite(value):
                raise ValueError(f"{value} is not a finite number")
        elif kind is int:
            if not -_LARGEST < value < _LARGEST:
                raise ValueError("an integer exceeds 64 bits")
        elif kind is dict or kind is list:
            _bounded(value)
    return values


def _trainer(options: dict[str, Any]) -> dict[str, Any]:
    items = tuple(options.items())
    if any(isinstance(value, dict | list) for _, value in items):  # invalid and unhashable: raises here
        TrainerOptions.model_validate(options, strict=True)
    _check_trainer(items, tuple(type(value) for _, value in items))
    return options


@lru_cache(maxsize=256)
def _check_trainer(items: tuple[tuple[str, Any], ...], types: tuple[type, ...]) -> None:
    """Validate options once: most runs of a store share them, and validation takes as long as the rest of a record.

    Args:
        items: the options.
        types: types of their values, since 1 == True as a cache key.
    """
    TrainerOptions.model_validate(dict(items), strict=True)


FILE_NAME = r"[\w+-][\w.+-]{0,199}"
"""A file name that is valid on every system and cannot leave its folder."""
RunId = Annotated[str, StringConstraints(pattern=f"^{FILE_NAME}$")]
Name = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Count = Annotated[int, Field(ge=0, lt=_LARGEST)]
Seconds = Annotated[float, Field(ge=0)]
Json = Annotated[dict[str, Any], AfterValidator(_bounded)]


def _date(text: str) -> str:
    datetime.fromisoformat(text)  # the pattern allows a 13th month
    return text


_MOMENT = r"^(19[7-9]|2\d\d)\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$"
Moment = Annotated[str, StringConstraints(pattern=_MOMENT), AfterValidator(_date)]
"""A moment in UTC, to the second."""


def now() -> str:
    """The current time in the format of records (`Moment`)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@with_config(ConfigDict(extra="forbid"))
class StoredConfig(TypedDict):
    """A resolved configuration without machine-specific paths (`bench.config.run_config.RunConfig`)."""

    task: Name
    task_options: Json
    opt: Name
    opt_options: Json
    trainer: Annotated[dict[str, Any], AfterValidator(_bounded), AfterValidator(_trainer)]
    seed: Count
    data_seed: Count
    precision: Name
    device: Name


Number = Annotated[int, Field(gt=-_LARGEST, lt=_LARGEST)] | float
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
    """The contradiction in a record, or None.

    Its id is the hash of its identity, its configuration agrees with the identity, and its results with its metrics.
    """
    config, identity = run.config, run.identity
    if not all("step" in row and "train_s" in row for row in run.validations):
        return "an evaluation lacks its step or seconds"
    if any(isinstance(values.get(name), dict) for values in run.metrics.values() for name in (run.metric, "excess")):
        return "a metric contains the values of a split"
    for which, said in (("final", run.final), ("best", run.best)):
        values = run.metrics.get(which)
        if values is None or (said is None and run.status not in ("completed", "timeout")):
            continue
        if run.metric not in values:
            return f"metric {run.metric!r} is none of metrics.{which}"
        if values[run.metric] != said:
            return f"{which} is {said} and metrics.{which}.{run.metric} is {values[run.metric]}"
    if not (_agrees(run.problem, config) and _agrees(run.chosen, config)):
        return "settings and configuration differ"
    if not identity:
        named = f"{slug(config['task'])}-{slug(config['opt'])}-"
        hashed = run.run_id.startswith(named) and re.fullmatch(r"[0-9a-f]{10}", run.run_id.removeprefix(named))
        return "identity is missing" if hashed else None
    if id_of(config["task"], config["opt"], identity) != run.run_id:
        return "run_id is not the hash of its identity"
    same = [identity.get("task") == bare(config["task"]), identity.get("opt") == bare(config["opt"])]
    same += [identity.get(name) == config[name] for name in ("opt_options", "seed", "data_seed", "precision", "device")]
    for part in ("task_options", "trainer"):
        own = identity.get(part)
        same.append(isinstance(own, dict) and own.items() <= config[part].items())
    return None if all(same) else "identity and configuration differ"


def _agrees(said: dict[str, Any], config: dict[str, Any]) -> bool:
    """Whether settings in dotted form match the configuration."""
    for name, value in said.items():
        group, _, own = name.partition(".")
        place = config.get(f"{group}_options" if group in ("task", "opt") else group) if own else config
        if not isinstance(place, dict) or (own or name) not in place or place[own or name] != value:
            return False
    return True


def is_file_name(name: str) -> bool:
    """Whether a name is a valid file name on every system and cannot leave its folder."""
    return re.fullmatch(FILE_NAME, name) is not None


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
