"""Parts of a study: its settings, its request, and its trials."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator, with_config
from typing_extensions import TypedDict

from bench.config.run_config import RunConfig, TrainerOptions, on_device, resolve
from bench.errors import UserError
from bench.execute import Engine
from bench.results.selection import Mode
from bench.store.load import Damaged, parse
from bench.store.record import Count, Json, Name, Number, RunResult, contradiction, is_file_name
from bench.text import is_number
from bench.tuning.design import Design, Kind, Sampler
from bench.tuning.rows import TrialRow
from bench.tuning.space import Axis, Point, Space, point_key, space_from_json
from optimizers import LogUniform
from optimizers.plugins import bare, slug

State = Literal["waiting", "running", "completed", "failed"]
MOST_AXES = 20
"""Maximum number of settings that a study searches. Ours."""
Value = Number | str | bool | None
"""A value of a hyperparameter."""
End = Annotated[float, Field(ge=1e-100, le=1e100)]


_GROUPS = {"task", "opt", "trainer", "device", "precision", "data_seed"}
_STATES: dict[str, State] = {
    "WAITING": "waiting",
    "RUNNING": "running",
    "COMPLETE": "completed",
    "FAIL": "failed",
}


@with_config(ConfigDict(extra="forbid"))
class _Infinite(TypedDict):
    number: Literal["inf", "-inf"]


@with_config(ConfigDict(extra="forbid"))
class _Values(TypedDict):
    name: Name
    values: Annotated[list[Value | _Infinite], Field(min_length=1)]


@with_config(ConfigDict(extra="forbid"))
class _Ends(TypedDict):
    name: Name
    low: End
    high: End


@with_config(ConfigDict(extra="allow"))
class _Process(TypedDict):
    """`bench.machine.this_process`, with the fields that `bench.machine.lives` reads."""

    pid: Annotated[int, Field(gt=0, lt=2**31)]
    started: str | None


if TYPE_CHECKING:
    Axes = list[dict[str, Any]]
    Process = dict[str, Any]
    Coordinates = dict[str, Any]
else:
    Axes = Annotated[list[_Ends | _Values], Field(min_length=1, max_length=MOST_AXES)]
    Process, Coordinates = _Process, dict[Name, Value]


class StudySpec(BaseModel):
    """The specification of a study, with everything needed to show it without imports.

    Attributes:
        task, opt, versions: what is tuned, with the versions of the task, the optimizer, and the optimizer for the
            `rest`; for plug-ins also `task_package` and `opt_package`.
        metric: the compared metric.
        mode: whether it is better when smaller or larger.
        settings: all settings of its runs that are not searched, in dotted form.
        chosen: names of the non-default ones among them.
        space: the search space, in the form of `bench.tuning.space.space_as_json`.
        sampler: `grid` or `qmc`.
        seeds: of the trials.
        report_seeds: of the winner's runs afterwards; disjoint from `seeds`.
        prune: kept, so that names of existing studies, which hash all fields, do not change.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    task: Name
    opt: Name
    versions: dict[str, int | str]
    metric: Name
    mode: Mode
    settings: Json
    chosen: list[Name]
    space: Axes
    sampler: Sampler
    seeds: Annotated[list[Count], Field(min_length=1)]
    report_seeds: list[Count]
    prune: Literal[False] = False

    @model_validator(mode="after")
    def _whole(self) -> Self:
        TrainerOptions.model_validate(_part(self.settings, "trainer"), strict=True)
        names = [axis["name"] for axis in self.space]
        if any(not name.startswith("opt.") for name in names) or len(set(names)) < len(names):
            raise ValueError("its space is not a list of distinct hyperparameters")
        groups = {name.partition(".")[0] for name in self.settings}
        if not {"device", *self.chosen} <= self.settings.keys() or not groups <= _GROUPS:
            raise ValueError("its settings are not those of a run")
        seeds = [*self.seeds, *self.report_seeds]
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed occurs twice")
        try:
            _ = self.design
        except UserError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def name(self) -> str:
        """`task-opt-hash`: the default name of the study."""
        digest = hashlib.sha256(self.model_dump_json().encode()).hexdigest()
        return f"{slug(self.task)}-{slug(self.opt)}-{digest[:8]}"

    @property
    def names(self) -> dict[str, str]:
        """Names of the code to import for training, by kind."""
        return {"task": self.task, "opt": self.opt}

    @property
    def trainer(self) -> TrainerOptions:
        """How its runs are trained."""
        return TrainerOptions.model_validate(_part(self.settings, "trainer"))

    @cached_property
    def design(self) -> Design:
        """The order in which points are tried."""
        return Design(self.axes, self.sampler)

    @cached_property
    def axes(self) -> Space:
        """The search space."""
        return space_from_json(self.space)

    def config(self, point: Point, seed: int, places: Mapping[str, Any]) -> RunConfig:
        """The configuration of a point with a seed.

        Args:
            point: the searched settings.
            seed: of instance, initialisation and, unless the study fixes `data_seed`, data order.
            places: paths of data and store.

        Raises:
            UserError: a value is illegal.
        """
        return resolve({**self.settings, **point, **self.names, "seed": seed, **places}, recorded=True)

    def typical(self, places: Mapping[str, Any]) -> RunConfig:
        """A run from the middle of the space, with its device decided.

        Raises:
            UserError: the device does not exist.
        """
        middle = {name: axis.middle if isinstance(axis, LogUniform) else axis[0] for name, axis in self.axes.items()}
        return on_device(self.config(middle, self.seeds[0], places))

    def differences(self, other: "StudySpec") -> list[str]:
        """The differences, one line each: `name: VALUE there, VALUE now`."""
        mine, others = _flat(self), _flat(other)
        return [
            f"{name}: {others.get(name, 'nothing')} there, {mine.get(name, 'nothing')} now"
            for name in dict.fromkeys([*mine, *others])
            if mine.get(name) != others.get(name)
        ]


class Request(BaseModel):
    """The request to a study; its numbers of trials only grow.

    Attributes:
        trials: number of points of its design.
        total: number of points including extensions; a suite tops studies up to the same number.
        refine: number of trials that TPE adds at the end.
        retries: how often a failed trial is repeated.
        report: whether the winner is run on the fresh seeds.
        engine: the requested engine of its trials, if any (`bench.execute.Engine`).
    """

    model_config = ConfigDict(extra="ignore", strict=True)

    trials: Count = 0
    total: Count = 0
    refine: Count = 0
    retries: Count = 2
    report: bool = True
    engine: Engine | None = None


@dataclass
class StoredTrial:
    """The attributes of a trial that this suite writes.

    Attributes:
        point: settings in dotted form.
        kind: `design`, `extension`, `top-up`, `refinement` or `fresh`.
        seeds: of its runs.
        runs: their records, with only the last evaluation.
        reason: why it failed or was given back.
        worker: the process that has it, or had it last.
    """

    __pydantic_config__ = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)

    point: Coordinates
    kind: Kind
    seeds: Annotated[list[Count], Field(min_length=1)]
    runs: list[RunResult] = field(default_factory=list)
    reason: str | None = None
    worker: Process = field(default_factory=dict)


@dataclass(kw_only=True)
class Trial(StoredTrial):
    """A point of a study, or the winner with a fresh seed.

    Attributes:
        number: in the Optuna study.
        state: `failed` if the attempt failed; a later trial may have the same point.
        fresh: whether it belongs to the fresh seeds.
    """

    number: int
    state: State
    fresh: bool = False

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """Identifies the trial; equal for all its attempts."""
        return point_key(self.point), tuple(self.seeds)


def read_trial(row: TrialRow, fresh: bool, spec: StudySpec) -> Trial:
    """A trial of a study from its stored row.

    Raises:
        Damaged: it is invalid, or contradicts the study.
    """
    where = Path(f"trial {row.number}{' of the fresh seeds' * fresh}")
    text = b"{%s}" % b",".join(b"%s:%s" % (json.dumps(key).encode(), value) for key, value in row.attributes.items())
    own = parse(text, StoredTrial, where)
    if not row.number.isdecimal() or row.state not in _STATES:
        raise Damaged(where, "its number or its state is invalid")
    number, state = int(row.number[:18]), _STATES[row.state]
    trial = Trial(**vars(own), number=number, state=state, fresh=fresh)
    if why := _wrong(trial, spec):
        raise Damaged(where, why)
    return trial


def _wrong(trial: Trial, spec: StudySpec) -> str | None:
    """Why a trial does not belong to its study, or None."""
    axes = spec.axes
    if trial.point.keys() != axes.keys() or not all(_lies_on(axes[name], value) for name, value in trial.point.items()):
        return "its point is outside the study's space"
    if trial.fresh != (trial.kind == "fresh"):
        return f"its kind is {trial.kind}"
    if (
        trial.seeds != spec.seeds
        if not trial.fresh
        else len(trial.seeds) > 1 or trial.seeds[0] not in spec.report_seeds
    ):
        return "its seeds are not the study's"
    if trial.state == "completed" and [run.config["seed"] for run in trial.runs] != trial.seeds:
        return "its runs are not those of its seeds"
    names = {name.removeprefix("opt.") for name in (*spec.settings, *axes) if name.startswith("opt.")}
    for run in trial.runs:
        if why := contradiction(run):
            return f"run {run.run_id}: {why}"
        theirs = {kind: bare(run.config[kind]) for kind in spec.names}
        if (
            theirs != {kind: bare(name) for kind, name in spec.names.items()}
            or not names <= run.config["opt_options"].keys()
        ):
            return f"run {run.run_id} does not have the study's task and optimizer"
        if run.metric != spec.metric or (trial.state == "completed" and not run.finished):
            return f"run {run.run_id} has another metric, or has not ended"
    return None


def _lies_on(axis: Axis, value: Any) -> bool:
    """Whether it is a value of an axis; a grid may grow beyond a range."""
    return is_number(value) and value > 0 if isinstance(axis, LogUniform) else value in axis


def versions_of(task: Any, opt: Any, rest: Any) -> dict[str, int | str]:
    """Versions of entries of the registries (task, optimizer, optimizer for the rest), and packages of plug-ins."""
    there = {"task": task, "opt": opt, "rest": rest}
    versions = {kind: getattr(spec, "version", None) for kind, spec in there.items()}
    versions |= {f"{kind}_package": getattr(spec, "package", None) for kind, spec in there.items()}
    return {name: what for name, what in versions.items() if what is not None}


def check_name(name: str) -> str:
    """The name, if it is valid for a study.

    Raises:
        UserError: it is invalid.
    """
    if not is_file_name(name):
        raise UserError(
            f"--name {name}: a name may contain only letters, digits, dots, - and _, and must not begin with a dot"
        )
    return name


def _part(settings: Mapping[str, Any], group: str) -> dict[str, Any]:
    return {k.removeprefix(f"{group}."): v for k, v in settings.items() if k.startswith(f"{group}.")}


def _flat(spec: StudySpec) -> dict[str, str]:
    flat: dict[str, Any] = {}
    for name, value in spec.model_dump(mode="json").items():
        flat |= value if name == "settings" else {name: value}
    return {name: json.dumps(value) for name, value in flat.items()}
