"""A store's records that are no runs: of studies (`studies/NAME.json`) and of `bench check` (`checks/NAME.json`)."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints
from typing_extensions import TypedDict

from bench.store.block import CHECKS, STUDIES
from bench.store.load import Damaged, read
from bench.store.record import Count, Json, Name, RunId, Seconds
from bench.tuning.selection import Mode
from optimizers.plugins import bare, slug

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

Word = Annotated[str, StringConstraints(min_length=1, max_length=50)]
Text = Annotated[str, StringConstraints(max_length=10_000)]
Scalar = (
    bool
    | Annotated[int, Field(gt=-(2**63), lt=2**63)]
    | float
    | Annotated[str, StringConstraints(max_length=500)]
    | None
)


class StudyTrial(TypedDict):
    """A point that was tried: its settings in dotted form, its score (None if it diverged or has none), and its runs' ids."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]

    point: dict[Name, Scalar | list[Scalar]]
    kind: Word
    state: Word
    score: float | None
    runs: list[RunId]


@dataclass(frozen=True)
class StudyRecord:
    """What a store keeps of a study, so that its boards need no database.

    Attributes:
        name: of the study.
        task, opt: what was tuned.
        seeds: tuning seeds.
        axes: dotted names of what was searched.
        mode: of the metric.
        sampler, prune: how.
        trials: in the order in which they were wanted.
        winner: id of a run with the settings that won; None if no trial has a score.
        lr_at_boundary: whether the winner lies at the edge of what was tried.
        missing: points that are still to be tried.
        metric: name of what is compared; empty where that is not known.
    """

    __pydantic_config__ = _STRICT

    name: RunId
    task: Name
    opt: Name
    seeds: list[Count]
    axes: list[Name]
    mode: Mode
    sampler: Word
    prune: bool
    trials: list[StudyTrial]
    winner: RunId | None
    lr_at_boundary: bool
    missing: Count = 0
    metric: Annotated[str, StringConstraints(max_length=500)] = ""

    @property
    def run_ids(self) -> set[str]:
        """The runs of all trials."""
        return {run for trial in self.trials for run in trial["runs"]}

    @property
    def what(self) -> str:
        """What tells it from others, which may have the same name on another machine."""
        return json.dumps([self.name, self.task, self.opt, self.seeds, self.axes])

    def order(self) -> tuple[int, str]:
        """By which of two records the later is told."""
        return len(self.trials), json.dumps(vars(self), sort_keys=True)


def read_study(path: Path) -> StudyRecord | None:
    """A study's record; None if there is none, or it is damaged."""
    return _read(path, StudyRecord)


def study_path(store: Path, name: str) -> Path:
    """Where a study's record lies."""
    return store / STUDIES / f"{name}.json"


class CheckVerdict(TypedDict):
    """What came of one check (`bench.check.report.Verdict`), and what the catalogue says of it."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]

    check: Word
    verdict: Literal["pass", "fail", "not applicable", "error"]
    measured: float | Literal["inf", "-inf"] | None
    note: Text
    seconds: Seconds
    tolerance: float | None
    meaning: Text
    advice: Text


@dataclass(frozen=True)
class CheckRecord:
    """What a store keeps of `bench check`: `bench.check.report.Report.as_json`.

    Attributes:
        name: of the optimizer, as it was asked for.
        ok: whether nothing has failed.
        options: hyperparameters that were given.
        verdicts: in the order of the catalogue.
        target, version, package: the optimizer's; None if it could not be loaded.
        versions: of Python, torch and the suite.
        arguments: that its constructor was called with.
    """

    __pydantic_config__ = _STRICT

    name: Name
    ok: bool
    options: Json
    verdicts: Annotated[list[CheckVerdict], Field(min_length=1)]
    target: Name | None = None
    version: Count | None = None
    package: Name | None = None
    versions: dict[Name, Name] | None = None
    arguments: Json | None = None

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed, or in which the optimizer raised."""
        return [each["check"] for each in self.verdicts if each["verdict"] in ("fail", "error")]


def read_check(path: Path) -> CheckRecord | None:
    """A report of `bench check`; None if there is none, or it is damaged."""
    return _read(path, CheckRecord)


def check_path(store: Path, opt: str, version: int | None, package: str | None) -> Path:
    """Where the report on a version of an optimizer lies."""
    digest = hashlib.sha256(json.dumps([bare(opt), version, package]).encode()).hexdigest()[:8]
    return store / CHECKS / f"{slug(opt)}-{digest}.json"


def _read(path: Path, kind: Any) -> Any:
    try:
        return read(path, kind)
    except (FileNotFoundError, Damaged):
        return None
