"""Records other than runs: `studies/NAME.json`, `checks/NAME.json` (of `bench check`)."""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NotRequired, TypeVar

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from bench.store.block import CHECKS, STUDIES
from bench.store.files import disk_errors, write_json
from bench.store.load import Damaged, read
from bench.store.record import Count, Json, Mode, Name, Number, RunId, Seconds
from bench.text import is_number
from optimizers.groups import REST
from optimizers.plugins import bare, slug

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

Scalar = bool | Number | str | None


@with_config(_STRICT)
class StudyTrial(TypedDict):
    """A tried point: its settings in dotted form, its score (None if it diverged or has none), and its runs."""

    point: dict[Name, Scalar | list[Scalar]]
    kind: Name
    state: Name
    score: float | None
    runs: list[RunId]


class Record(ABC):
    """A record in a store: `FOLDER/NAME.json`."""

    __pydantic_config__ = _STRICT
    folder: ClassVar[str]
    subject: ClassVar[tuple[str, ...]]
    """The fields that tell what it is the record of."""
    name: Any

    @property
    def what(self) -> str:
        """Identifies its subject: two machines may use one name for different ones."""
        return json.dumps([getattr(self, name) for name in self.subject], sort_keys=True)

    @property
    @abstractmethod
    def weight(self) -> tuple[int, str]:
        """Of two records of one subject, the one with the larger weight is used."""

    def places(self, store: Path) -> list[Path]:
        """The record's path in a store, and the alternatives if another subject has this name there already."""
        return [store / self.folder / f"{self.name}.json"]

    def write(self, store: Path) -> None:
        """Write it into a store.

        Raises:
            RunFailed: the disk is full or unavailable.
        """
        path = self.places(store)[0]
        with disk_errors(store):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, vars(self), indent=1)


@dataclass(frozen=True)
class StudyRecord(Record):
    """The record of a study in a store, for boards.

    Attributes:
        name: of the study.
        task, opt: as tuned.
        seeds: tuning seeds.
        axes: dotted names of the searched settings.
        mode: of the metric.
        sampler: how it searches.
        trials: in the order of the design.
        winner: id of a run with the winning settings; None if no trial has a score.
        lr_at_boundary: whether a winning value is at an edge (`edges`); records of earlier versions had another rule.
        missing: points not tried yet.
        metric: name of the compared metric; empty if unknown.
        select_split: the split on which its trials were compared; empty if unknown.
        prune: shipped records have it.
    """

    folder, subject = STUDIES, ("name", "task", "opt", "seeds", "axes")

    name: RunId
    task: Name
    opt: Name
    seeds: list[Count]
    axes: list[Name]
    mode: Mode
    sampler: Literal["grid", "qmc", "tpe"]
    trials: list[StudyTrial]
    winner: RunId | None
    lr_at_boundary: bool
    missing: Count = 0
    metric: str = ""
    select_split: str = ""
    prune: Literal[False] = False

    @property
    def run_ids(self) -> set[str]:
        """The runs of all trials."""
        return {run for trial in self.trials for run in trial["runs"]}

    @property
    def edges(self) -> list[str]:
        """Searched settings whose winning value is at an edge (`edges_of`)."""
        return edges_of(self.axes, [trial["point"] for trial in self.trials], self.winning_point or {})

    @property
    def winning_point(self) -> dict[str, Any] | None:
        """The winning values of the searched settings; None without a winner."""
        return next((trial["point"] for trial in self.trials if self.winner in trial["runs"]), None)

    @property
    def score(self) -> float | None:
        """The winner's score on the tuning seeds, which is optimistic."""
        return next((trial["score"] for trial in self.trials if self.winner in trial["runs"]), None)

    @property
    def weight(self) -> tuple[int, str]:
        """More trials outweigh fewer."""
        return len(self.trials), json.dumps(vars(self), sort_keys=True)

    def places(self, store: Path) -> list[Path]:  # noqa: D102
        path = study_path(store, self.name)
        return [path, path.with_stem(f"{self.name}-{hashlib.sha256(self.what.encode()).hexdigest()[:8]}")]


def edges_of(axes: Iterable[str], points: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> list[str]:
    """The searched settings whose best value is the lowest or highest of three or more tried numbers."""
    found = list[str]()
    for axis in axes:
        numbers = {point[axis] for point in points if is_number(point.get(axis))}
        if len(numbers) > 2 and best.get(axis) in (min(numbers), max(numbers)):
            found.append(axis.removeprefix("opt."))
    return found


def study_path(store: Path, name: str) -> Path:
    """The place of a study's record."""
    return store / STUDIES / f"{name}.json"


@with_config(_STRICT)
class CheckVerdict(TypedDict):
    """Result of one check (`bench.check.report.Verdict`), with what its check means."""

    check: Name
    verdict: Literal["pass", "fail", "not applicable", "error"]
    measured: float | Literal["inf", "-inf"] | None
    note: str
    seconds: Seconds
    meaning: str
    advice: str
    severity: NotRequired[Literal["results", "set-up", "speed", "hygiene"] | None]
    tolerance: NotRequired[float | None]
    """Older records have it; now messages do."""


@dataclass(frozen=True)
class CheckRecord(Record):
    """The record of `bench check` in a store: `bench.check.report.Report.as_json`.

    Attributes:
        name: of the optimizer, as requested.
        ok: whether no failure changes results or blocks a set-up.
        options: the given hyperparameters.
        verdicts: in the order of the catalogue.
        target, version, package: of the optimizer; None if it could not be loaded.
        versions: of Python, torch and the suite.
        arguments: of its constructor.
    """

    folder, subject = CHECKS, ("name", "version", "package", "rest")

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
    def rest(self) -> str | None:
        """The optimizer for the rest, if it was checked with one: then the report is not on the method alone."""
        named = self.options.get(REST)
        return None if named is None else str(named)

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed, or in which the optimizer raised."""
        return [each["check"] for each in self.verdicts if each["verdict"] in ("fail", "error")]

    @property
    def serious(self) -> list[str]:
        """The failed checks whose failure changes results or blocks a set-up; in older records, all failed ones."""
        severities = {each["check"]: each.get("severity", "results") for each in self.verdicts}
        return [check for check in self.failed if severities[check] in ("results", "set-up")]

    @property
    def weight(self) -> tuple[int, str]:
        """More serious failures outweigh fewer, then more failures."""
        return len(self.serious), f"{len(self.failed):09}"

    def places(self, store: Path) -> list[Path]:  # noqa: D102
        rests = dict.fromkeys([self.rest, None])  # None: where earlier versions wrote reports with a rest
        return [check_path(store, self.name, self.version, self.package, rest) for rest in rests]


def check_path(store: Path, opt: str, version: int | None, package: str | None, rest: str | None = None) -> Path:
    """The path of the report on a version of an optimizer, alone or with one for the rest."""
    about = [bare(opt), version, package, *([] if rest is None else [rest])]
    digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:8]
    return store / CHECKS / f"{slug(opt)}-{digest}.json"


Report = TypeVar("Report", bound=Record)
KINDS: tuple[type[Record], ...] = (StudyRecord, CheckRecord)


def read_report(path: Path, kind: type[Report]) -> Report:
    """The record of a study or of `bench check`.

    Raises:
        FileNotFoundError: it does not exist.
        Damaged: it cannot be read, is invalid, or belongs to another study or optimizer.
    """
    record = read(path, kind)
    places = record.places(path.parent.parent)
    if path not in places:
        raise Damaged(path, f"it is the record of {record.name}, which belongs at {places[0].name}")
    return record


def reports_in(store: Path, kind: type[Report]) -> dict[Path, Report | Damaged]:
    """All records of one kind in a store; for unreadable ones, or their folder, what is wrong."""
    found: dict[Path, Report | Damaged] = {}
    folder = store / kind.folder
    if folder.is_symlink():
        return {}
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))  # noqa: PTH208 - names are enough
    except FileNotFoundError:
        return {}
    except OSError as error:
        return {folder: Damaged(folder, f"it cannot be read ({error.strerror})")}
    for path in (folder / name for name in names):
        try:
            found[path] = read_report(path, kind)
        except Damaged as error:
            found[error.path] = error
        except FileNotFoundError:
            continue  # it has just been removed
    return found
