"""Records other than runs: `studies/NAME.json`, `checks/NAME.json` (of `bench check`)."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from bench.store.files import Damaged, parse, read_bytes, replacing
from bench.store.record import Count, Json, Mode, Name, Number, RunId
from bench.text import is_number, plain
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


@dataclass(frozen=True)
class StudyRecord:
    """The record of a study in a store, for boards."""

    __pydantic_config__ = _STRICT
    folder: ClassVar[str] = "studies"

    name: RunId
    task: Name
    opt: Name
    seeds: list[Count]  # of tuning
    axes: list[Name]  # dotted names of the searched settings
    mode: Mode  # of the metric
    sampler: Literal["grid", "refine", "qmc", "tpe"]
    trials: list[StudyTrial]  # in the order of the design
    winner: RunId | None  # a run with the winning settings; None if no trial has a score
    lr_at_boundary: bool  # see `edges`; records of earlier versions had another rule
    missing: Count = 0  # points not tried yet
    metric: str = ""  # name of the compared metric; empty if unknown
    select_split: str = ""  # the split on which its trials were compared; empty if unknown
    prune: Literal[False] = False  # shipped records have it

    @property
    def run_ids(self) -> set[str]:
        """The runs of all trials."""
        return {run for trial in self.trials for run in trial["runs"]}

    @property
    def edges(self) -> list[str]:
        """The searched settings whose winning value is the lowest or highest of three or more tried numbers."""
        edges, best = list[str](), self.best["point"] if self.best else {}
        for axis in self.axes:
            numbers = {x for trial in self.trials if is_number(x := trial["point"].get(axis))}
            if len(numbers) > 2 and best.get(axis) in (min(numbers), max(numbers)):
                edges.append(axis.removeprefix("opt."))
        return edges

    @property
    def best(self) -> StudyTrial | None:
        """The winning trial; its score on the tuning seeds is optimistic."""
        return next((trial for trial in self.trials if self.winner in trial["runs"]), None)

    def path(self, store: Path) -> Path:
        """Its place in a store."""
        return store / self.folder / f"{self.name}.json"


@dataclass(frozen=True)
class CheckRecord:
    """The record of `bench check` in a store: `bench.check.run.report_on`."""

    __pydantic_config__ = _STRICT
    folder: ClassVar[str] = "checks"

    name: Name  # of the optimizer, as requested
    ok: bool  # whether no failure changes results or blocks a set-up
    options: Json  # the given hyperparameters
    verdicts: Annotated[list[Json], Field(min_length=1)]  # `bench.check.run.verdict_of`, in the order of the catalogue
    target: Name | None = None  # these three are None if the optimizer could not be loaded
    version: Count | None = None
    package: Name | None = None
    versions: dict[Name, Name] | None = None  # of Python, torch and the suite
    arguments: Json | None = None  # of its constructor

    @property
    def rest(self) -> str | None:
        """The optimizer for the rest, if it was checked with one: then the report is not on the method alone."""
        return None if self.options.get(REST) is None else str(self.options[REST])

    @property
    def serious(self) -> list[str]:
        """The failed checks whose failure changes results or blocks a set-up; in older records, all failed ones."""
        failed = [verdict for verdict in self.verdicts if verdict.get("verdict") in ("fail", "error")]
        return [str(v.get("check")) for v in failed if v.get("severity", "results") in ("results", "set-up")]

    def path(self, store: Path) -> Path:
        """Its place in a store, that of the version of the optimizer, alone or with one for the rest."""
        about = [bare(self.name), self.version, self.package, *([] if self.rest is None else [self.rest])]
        digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:8]
        return store / self.folder / f"{slug(self.name)}-{digest}.json"


Record = StudyRecord | CheckRecord
Report = TypeVar("Report", bound=Record)
KINDS = (StudyRecord, CheckRecord)


def read_report(path: Path, kind: type[Report]) -> Report:
    """A record; FileNotFoundError if there is none, `Damaged` if it is invalid."""
    return parse(read_bytes(path), kind, path)


def write_report(store: Path, report: Record) -> Path:
    """Write a record into a store atomically; its path."""
    path = report.path(store)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(plain(vars(report)), allow_nan=False, indent=1), "utf-8")
    return path


def reports_in(store: Path) -> Iterator[Record | Damaged]:
    """All records in a store; for unreadable ones what is wrong."""
    for kind in KINDS:
        for path in sorted((store / kind.folder).glob("*.json")):
            with suppress(FileNotFoundError):  # it has just been removed, or is a link
                try:
                    yield read_report(path, kind)
                except Damaged as error:
                    yield error
