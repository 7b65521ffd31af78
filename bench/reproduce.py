"""A paper's experiment: one YAML to runs, a figure, and claims that are each tested.

`configs/papers/<paper>/<experiment>.yaml` names arms (settings in dotted form), seeds, figure and claims. The runs go
through the same store as any other, so what is stored is not trained again, an interruption costs nothing, and the same
command in a second terminal shares the work.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from math import nan
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bench.arms import Arm
from bench.claims import Finding, judge
from bench.config import RunConfig, configs_folder, on_device, read_yaml, resolve, settings_of
from bench.errors import RunBusy, UserError, unknown
from bench.figures import FigureSpec, draw
from bench.store import FINISHED, RunResult, Store, plain, read_tables, write_parquet

Settings = dict[str, Any]
_KINDS = ("measurements", "curve")  # a column that both have is read from the first


class Claim(BaseModel):
    """What a paper says, and how it is tested.

    Attributes:
        name: short name, unique in the experiment.
        paper: what the paper says, in short.
        test: a name in `bench.claims.CLAIMS`; its arguments are the other keys.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    paper: str
    test: str

    @property
    def arguments(self) -> Settings:
        """Arguments of the test."""
        return dict(self.model_extra or {})


class Quick(BaseModel):
    """What a small version does otherwise.

    Attributes:
        seeds: these instead.
        settings: settings that win over those of every arm.
        arms: settings that win over those of one arm.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    seeds: list[int] = Field(min_length=1)
    settings: Settings = {}
    arms: dict[str, Settings] = {}


class Search(BaseModel):
    """Where in the range of open constants claims hold: a full grid, decided on before looking.

    Attributes:
        why: which constants are open, and how the grid was chosen.
        grid: values by setting; every combination is tried.
        seeds: of each point.
        settings: settings that win over those of every arm (fewer steps, say).
        claims: names of the claims that are judged; all by default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    why: str
    grid: dict[str, list[Any]] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    settings: Settings = {}
    claims: list[str] | None = None

    @property
    def points(self) -> list[Settings]:
        """All combinations of the grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]


class Experiment(BaseModel):
    """An experiment of a paper as its YAML holds it.

    Attributes:
        title: one line for people.
        paper: the paper, and which of its figures or statements.
        notes: what is ours, and what a reader must know; plain sentences.
        common: settings of all arms.
        seeds: one run for each arm and seed.
        arms: settings by label.
        figure: what is drawn.
        claims: what is tested.
        quick: the small version of `--quick`.
        search: over constants that the paper leaves open, for `--search`; None if there is nothing to search.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    paper: str
    notes: list[str] = []
    common: Settings
    seeds: list[int] = Field(min_length=1)
    arms: dict[str, Settings] = Field(min_length=1)
    figure: FigureSpec
    claims: list[Claim] = Field(min_length=1)
    quick: Quick
    search: Search | None = None

    @field_validator("seeds", mode="before")
    @classmethod
    def _count(cls, seeds: Any) -> Any:
        """A number of seeds stands for 0, 1, ..."""
        return list(range(seeds)) if isinstance(seeds, int) else seeds

    def small(self) -> "Experiment":
        """The version of `--quick`."""
        small = self.changed(self.quick.settings, self.quick.seeds)
        arms = {label: own | self.quick.arms.get(label, {}) for label, own in small.arms.items()}
        return small.model_copy(update={"arms": arms})

    def at(self, point: Settings) -> "Experiment":
        """The version at a point of the search."""
        assert self.search is not None
        there = self.changed(self.search.settings | point, self.search.seeds)
        wanted = self.search.claims
        claims = [claim for claim in self.claims if wanted is None or claim.name in wanted]
        return there.model_copy(update={"claims": claims})

    def changed(self, settings: Settings, seeds: Sequence[int]) -> "Experiment":
        """The version with these settings in all arms, and these seeds."""
        arms = {label: own | settings for label, own in self.arms.items()}
        return self.model_copy(update={"arms": arms, "seeds": list(seeds)})


def experiments() -> dict[str, Path]:
    """The YAML files of the experiments by name, `<paper>/<experiment>`."""
    folder = configs_folder() / "papers"
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.glob("*/*.yaml"))}


def load(name: str) -> Experiment:
    """The experiment of this name.

    Raises:
        UserError: there is none, or its YAML is not right.
    """
    known = experiments()
    if name not in known:
        raise unknown("experiment", name, known)
    try:
        return Experiment.model_validate(read_yaml(known[name]))
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{known[name]}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


# -- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Version:
    """In which version an experiment is done.

    Attributes:
        quick: the small one.
        search: with the search over open constants.
        seeds: number of seeds, from 0, instead of the experiment's own.
        changes: settings that are changed in all arms.
    """

    quick: bool = False
    search: bool = False
    seeds: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """As the command line has it."""
        flags = {"--quick": self.quick, "--search": self.search, f"--seeds {self.seeds}": self.seeds}
        return " ".join(
            [*(flag for flag, on in flags.items() if on), *([_words(self.changes)] if self.changes else [])]
        )


@dataclass(frozen=True)
class Job:
    """One run of an experiment."""

    label: str
    seed: int
    config: RunConfig


def jobs(experiment: Experiment, places: Settings) -> list[Job]:
    """All runs, seed by seed, so that what is there after an interruption compares all arms.

    Args:
        experiment: what to run.
        places: where data and store are, and the device.

    Raises:
        UserError: a setting is unknown or illegal.
    """
    return [
        Job(label, seed, resolve(experiment.common | own | {"seed": seed} | places))
        for seed in experiment.seeds
        for label, own in experiment.arms.items()
    ]


def train(todo: Sequence[Job], say: Callable[[str], None]) -> bool:
    """Make the runs that the store does not have; True unless a signal asked to stop.

    Runs that another process trains now are left to it, and waited for at the end.

    Args:
        todo: the runs.
        say: shows a line of progress.

    Raises:
        UserError: data are missing, or the store cannot be written.
    """
    waiting = [job for job in todo if not _is_stored(job.config)]
    if len(waiting) < len(todo):
        say(f"{len(todo) - len(waiting)} of {len(todo)} runs are stored")
    if not waiting:
        return True
    from bench.runner import run

    begun, done, total = time.monotonic(), 0, len(waiting)
    while waiting:
        busy: list[Job] = []
        for job in waiting:
            try:
                result = run(job.config, progress=sys.stderr.isatty())
            except RunBusy:
                busy.append(job)
                continue
            if result.status == "killed":
                return False
            done += 1
            left = (time.monotonic() - begun) / done * (total - done)
            say(f"[{done}/{total}] {job.label}, seed {job.seed}: {_ended(result)}; about {_duration(left)} to go")
        if len(busy) == len(waiting):
            say(f"waiting for {len(busy)} runs that other processes train")
            time.sleep(5)
        waiting = busy
    return True


def _is_stored(config: RunConfig) -> bool:
    result = Store(config.store).get(on_device(config).run_id)
    return result is not None and result.status in FINISHED


def _ended(result: RunResult) -> str:
    value = "" if result.final is None else f", {result.split} {result.metric} {result.final:.4g}"
    return f"{result.status}{value}, {_duration(result.wall_s)}"


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )


def collect(todo: Sequence[Job]) -> tuple[dict[str, Arm], dict[str, list[RunResult]], list[int]]:
    """What the store has of the runs: arms by label, records by label, and seeds that were left out.

    Seeds are left out of all arms where the instance of the problem has no solution to be compared with (`feasible` false in
    the record's facts).
    """
    found = []
    for job in todo:
        config = on_device(job.config)
        result = Store(config.store).get(config.run_id)
        if result is not None and result.status in FINISHED:
            found.append((job, config, result))
    without = sorted({job.seed for job, _, result in found if _infeasible(result.facts)})
    arms: dict[str, Arm] = {}
    records: dict[str, list[RunResult]] = {}
    for label in dict.fromkeys(job.label for job in todo):
        mine = [(j, c, r) for j, c, r in found if j.label == label and j.seed not in without]
        if not mine:
            raise UserError(
                f"no run of {label} can be used: "
                + (f"seeds {without} are infeasible" if without else "none is stored")
            )
        arms[label] = Arm(
            label, [j.seed for j, _, _ in mine],
            [[tables.get(kind, {}) for kind in _KINDS] for tables in (read_tables(c.store / c.run_id) for _, c, _ in mine)],
            [r.status for _, _, r in mine], settings_of(mine[0][1].model_dump(mode="json")),
        )  # fmt: skip
        records[label] = [r for _, _, r in mine]
    return arms, records, without


def _infeasible(facts: Mapping[str, Any]) -> bool:
    return any(isinstance(fact, dict) and not fact.get("feasible", True) for fact in facts.values())


# -- what comes out ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reproduction:
    """What an experiment gave.

    Attributes:
        name, experiment, version: what was done.
        findings: by claim.
        records: the runs' records by arm.
        without: seeds that were left out as infeasible.
        region: by point of the search, the verdicts by claim; empty if nothing was searched.
    """

    name: str
    experiment: Experiment
    version: Version
    findings: Mapping[str, Finding]
    records: Mapping[str, Sequence[RunResult]]
    without: Sequence[int]
    region: Sequence[tuple[Settings, Mapping[str, Finding]]]

    @property
    def claims(self) -> Iterator[tuple[Claim, Finding]]:
        """The claims with what was found."""
        return ((claim, self.findings[claim.name]) for claim in self.experiment.claims)


def reproduce(
    name: str, folder: Path, places: Settings, version: Version, say: Callable[[str], None]
) -> Reproduction | None:
    """Run an experiment and write figure, data, claims and page; None if a signal stopped it.

    Args:
        name: of `experiments()`.
        folder: where the output goes; made if needed.
        places: where data and store are, and the device.
        version: small or whole, with or without search, and what is changed.
        say: shows a line of progress.

    Raises:
        UserError: unknown experiment or setting, missing data, or nowhere to write.
    """
    full = load(name)
    if version.search and full.search is None:
        raise UserError(f"{name} has no open constants to search; leave --search out")
    if version.seeds is not None and version.seeds < 1:
        raise UserError(f"--seeds {version.seeds}: it must be at least 1")
    experiment = full.small() if version.quick else full
    seeds = experiment.seeds if version.seeds is None else range(version.seeds)
    experiment = experiment.changed(dict(version.changes), seeds)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another with --out DIR") from None
    todo = jobs(experiment, places)
    if not train(todo, say):
        return None
    arms, records, without = collect(todo)
    findings = {claim.name: judge(claim.test, arms, **claim.arguments) for claim in experiment.claims}
    region = []
    if version.search:
        assert full.search is not None
        for point in full.search.points:
            there = full.at(point)
            todo = jobs(there, places)
            say(f"at {_point(point)}")
            if not train(todo, say):
                return None
            arms_there, _, _ = collect(todo)
            region.append((point, {c.name: judge(c.test, arms_there, **c.arguments) for c in there.claims}))
    result = Reproduction(name, experiment, version, findings, records, without, region)
    try:
        draw(experiment.figure, arms, folder, watermark="quick" if version.quick else "")
        _write_data(arms, folder)
        (folder / "claims.json").write_text(json.dumps(as_json(result), indent=1, allow_nan=False) + "\n", "utf-8")
        (folder / "report.md").write_text(page(result), "utf-8")
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another with --out DIR") from None
    return result


def _write_data(arms: Mapping[str, Arm], folder: Path) -> None:
    """The runs' tables, one Parquet file for each kind, with the columns `arm` and `seed` in front."""
    for position, kind in enumerate(_KINDS):
        parts = [
            (arm.label, seed, tables[position])
            for arm in arms.values()
            for seed, tables in zip(arm.seeds, arm.tables, strict=True)
            if tables[position]
        ]
        names = dict.fromkeys(name for _, _, table in parts for name in table)
        columns: dict[str, list[Any]] = {name: [] for name in ("arm", "seed", *names)}
        for label, seed, table in parts:
            rows = len(table["step"])
            columns["arm"] += [label] * rows
            columns["seed"] += [seed] * rows
            for name in names:
                values = table[name].tolist() if name in table else [nan] * rows
                columns[name] += [None if value != value else value for value in values]
        if parts:
            write_parquet(folder / f"{kind}.parquet", columns)


def as_json(result: Reproduction) -> dict[str, Any]:
    """Everything but the curves, as strict JSON can hold it."""
    runs = [record for records in result.records.values() for record in records]
    return plain({
        "experiment": result.name, "title": result.experiment.title, "paper": result.experiment.paper, "quick": result.version.quick, "changes": dict(result.version.changes),
        "seeds": result.experiment.seeds, "seeds_left_out": list(result.without), "notes": result.experiment.notes,
        "claims": [claim.model_dump() | asdict(finding) for claim, finding in result.claims],
        "search": [{"at": point, **{name: asdict(f) for name, f in there.items()}} for point, there in result.region],
        "environments": _distinct(run.environment for run in runs),
        "versions": _distinct(run.versions for run in runs),
        "runs": {label: [run.run_id for run in records] for label, records in result.records.items()},
    })  # fmt: skip


def _distinct(values: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(text) for text in dict.fromkeys(json.dumps(value, sort_keys=True) for value in values)]


def page(result: Reproduction) -> str:
    """The report as Markdown: figure, claims beside the paper's words, and what they rest on."""
    experiment = result.experiment
    again = f"bench reproduce {result.name} {result.version.words}".rstrip()
    lines = [f"# {experiment.title}", "", f"{experiment.paper}. Made by `{again}`.", ""]
    if result.version.changes:
        lines += ["**Settings were changed on the command line: this is not the experiment as it is defined.**", ""]
    if result.version.quick:
        lines += ["**This is the quick version: few seeds and few steps. Its verdicts are no evidence.**", ""]
    lines += ["![figure](figure.png)", "", "## Claims", ""]
    rows = [
        (f"**{finding.verdict}**", claim.name, claim.paper, finding.text, _effect(finding))
        for claim, finding in result.claims
    ]
    lines += _table(("verdict", "claim", "the paper, in short", "here", "effect, 95 % interval over seeds"), rows)
    if result.region:
        assert experiment.search is not None
        names = list(result.region[0][1])
        lines += ["", "## Where the claims hold", "", experiment.search.why, ""]
        rows = [(_point(point), *(there[name].verdict for name in names)) for point, there in result.region]
        lines += _table(("open constants", *names), rows)
        for name in names:
            count = Counter(there[name].verdict for _, there in result.region)
            lines += ["", f"`{name}`: " + ", ".join(f"{verdict} at {n}" for verdict, n in count.items()) + " points."]
    lines += ["", "## Runs", ""]
    rows = [
        (
            label, f"`{_own(experiment, label)}`", len(records), max(run.steps for run in records),
            ", ".join(f"{status} {n}" for status, n in Counter(run.status for run in records).items()),
            _duration(sum(run.wall_s for run in records)),
        )
        for label, records in result.records.items()
    ]  # fmt: skip
    lines += _table(("arm", "settings", "seeds", "steps", "ended", "time in all"), rows)
    lines += ["", f"All arms: `{_words(experiment.common)}`."]
    if result.without:
        lines += ["", f"Left out: seeds {', '.join(map(str, result.without))}, whose max-margin problem is infeasible."]
    lines += ["", *(f"* {note}" for note in experiment.notes)]
    runs = [run for records in result.records.values() for run in records]
    lines += [""]
    for environment in _distinct(run.environment for run in runs):
        where = ", ".join(
            f"{value} {name}" if name in ("cores", "threads") else str(value)
            for name, value in environment.items()
            if value
        )
        lines += [f"Machine: {where}."]
    for versions in _distinct(run.versions for run in runs):
        lines += ["Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."]
    return "\n".join([*lines, ""])


def _table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in cells]


def _effect(finding: Finding) -> str:
    if finding.effect is None:
        return ""
    low, high = ("?" if x is None else f"{x:.4g}" for x in (finding.low, finding.high))
    return f"{finding.effect:.4g} [{low}, {high}] {finding.unit}"


def _own(experiment: Experiment, label: str) -> str:
    return _words(experiment.arms[label])


def _words(settings: Mapping[str, Any]) -> str:
    return " ".join(f"--{name} {value}" for name, value in settings.items())


def _point(point: Settings) -> str:
    return ", ".join(f"{name} {value}" for name, value in point.items())
