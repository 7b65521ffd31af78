"""What a study is made of: its settings, what is asked of it, and its trials."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from bench.config import RunConfig, on_device, resolve
from bench.errors import UserError
from bench.store.record import RunResult
from bench.store.reports import STUDY_NAME
from bench.tuning.design import Design
from bench.tuning.selection import Mode
from bench.tuning.space import Point, Range, Space, point_key, space_from_json
from optimizers.plugins import slug
from tasks import TASKS

State = Literal["waiting", "running", "completed", "pruned", "failed"]


class StudySpec(BaseModel):
    """What makes a study the study it is.

    Attributes:
        task, opt, versions: what is tuned, with the versions of the two.
        settings: all settings of its runs that are not searched, in dotted form.
        space: what is searched, as `bench.tuning.space.space_as_json` gives it.
        sampler: `grid` or `qmc`.
        seeds: of the trials.
        report_seeds: of the winner's runs afterwards; none of `seeds`.
        prune: whether trials worse than the median of the others are stopped early.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str
    opt: str
    versions: dict[str, int]
    settings: dict[str, Any]
    space: list[dict[str, Any]]
    sampler: Literal["grid", "qmc"]
    seeds: list[int]
    report_seeds: list[int]
    prune: bool = False

    @property
    def name(self) -> str:
        """`task-opt-hash`: the name of the study if nobody gives another."""
        digest = hashlib.sha256(self.model_dump_json().encode()).hexdigest()
        return f"{slug(self.task)}-{slug(self.opt)}-{digest[:8]}"

    @cached_property
    def design(self) -> Design:
        """The order in which points are tried."""
        return Design(self.axes, self.sampler)

    @cached_property
    def axes(self) -> Space:
        """What is searched."""
        return space_from_json(self.space)

    @property
    def metric(self) -> str:
        """What is compared."""
        return TASKS[self.task].metric

    @property
    def mode(self) -> Mode:
        """Whether the metric is better when smaller or greater."""
        return TASKS[self.task].mode

    def config(self, point: Point, seed: int, places: Mapping[str, Any]) -> RunConfig:
        """The run of a point with a seed.

        Args:
            point: settings that are searched.
            seed: of instance, initialisation and, unless the study sets it apart, the order of the samples.
            places: where data and store are.

        Raises:
            UserError: a value is illegal.
        """
        names = {"task": self.task, "opt": self.opt, "seed": seed}
        return resolve({**self.settings, **point, **names, **places})

    def typical(self, places: Mapping[str, Any]) -> RunConfig:
        """A run from the middle of the space, with its device decided.

        Raises:
            UserError: the device is not there.
        """
        values = {name: axis[0] for name, axis in self.axes.items() if not isinstance(axis, Range)}
        middle = {name: math.sqrt(axis.low * axis.high) for name, axis in self.axes.items() if isinstance(axis, Range)}
        return on_device(self.config(values | middle, self.seeds[0], places))

    def differences(self, other: "StudySpec") -> list[str]:
        """What differs, a line each: `name: here / there`."""
        mine, others = _flat(self.model_dump(mode="json")), _flat(other.model_dump(mode="json"))
        return [
            f"{name}: {others.get(name, 'nothing')} there, {mine.get(name, 'nothing')} now"
            for name in dict.fromkeys([*mine, *others])
            if mine.get(name) != others.get(name)
        ]


class Request(BaseModel):
    """What is asked of a study; it only grows.

    Attributes:
        trials: points of its design.
        total: points including extensions; a suite tops studies up to the same number.
        refine: trials that TPE adds at the end.
        retries: how often a trial is tried again that came to nothing.
        report: whether the winner is run on the fresh seeds.
        out: the folder for its settings and plot, if one was named.
    """

    trials: int = 0
    total: int = 0
    refine: int = 0
    retries: int = 2
    report: bool = True
    out: str | None = None


@dataclass
class Trial:
    """A point of a study, or the winner with a fresh seed.

    Attributes:
        number: in the Optuna study.
        state: `failed` if the attempt came to nothing; a later trial may have the same point.
        point: settings in dotted form.
        kind: `design`, `extension`, `top-up`, `refinement` or `fresh`.
        seeds: of its runs.
        runs: what came of them; without evaluations but the last.
        reason: why it failed, was pruned or given back.
        worker: who has it, or had it last.
        beat: the last sign of life of that worker, if it has given one.
        seconds: from its claim to its end, if it has ended.
        fresh: whether it belongs to the fresh seeds.
    """

    number: int
    state: State
    point: dict[str, Any]
    kind: str
    seeds: list[int]
    runs: list[RunResult] = field(default_factory=list)
    reason: str | None = None
    worker: dict[str, Any] = field(default_factory=dict)
    beat: int | None = None
    seconds: float | None = None
    fresh: bool = False

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """What only this trial and its other attempts have."""
        return point_key(self.point), tuple(self.seeds)


def check_name(name: str) -> str:
    """The name, if a study can have it.

    Raises:
        UserError: it cannot.
    """
    if not STUDY_NAME.fullmatch(name):
        raise UserError(
            f"--name {name}: a name has letters, digits, dots, - and _ and nothing else, 200 of them at most"
        )
    return name


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value) if isinstance(value, dict) and name == "settings" else {name: json.dumps(value)}
    return flat
