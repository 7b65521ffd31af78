"""Results of an experiment, as a page for people and as JSON for programs."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from bench.config.trainer import SAME_RESULT
from bench.papers.arms import Arm
from bench.papers.experiments import Claim, Experiment, Settings
from bench.papers.verdicts import Finding, page_word
from bench.process import as_options
from bench.results.render import markdown_table, shown
from bench.results.stats import Interval
from bench.results.table import Column, Table
from bench.store.record import RunResult, machines_and_versions
from bench.text import cell, duration, plain

CORRECTION = (
    "Verdicts of an experiment are corrected for their number (Holm over its claims, Bonferroni over the arms of one):"
    " the probability of any false “holds” or “fails” is 5 % at most. This does not cover verdicts over"
    " readings or over points of a search, which are corrected within their claim (Holm). Intervals are 95 % each."
)
CONSEQUENCE = "So a verdict may be undecided although its interval excludes the bound of the claim."


@dataclass(frozen=True)
class Version:
    """The version of an experiment: small, with a search, with other seeds (how many, or which), or settings."""

    quick: bool = False
    search: bool = False
    seeds: int | Sequence[int] | None = None
    changes: Settings = field(default_factory=dict)

    @property
    def count(self) -> int | None:
        """The number of seeds, if it was given."""
        return self.seeds if isinstance(self.seeds, int | None) else len(self.seeds)

    def alters(self, experiment: Experiment) -> bool:
        """Whether it has settings that may change results, or fewer seeds than the experiment as defined."""
        changed = any(name.removeprefix("trainer.") not in SAME_RESULT for name in self.changes)
        return changed or (self.count is not None and self.count < len(experiment.seeds))

    @property
    def words(self) -> str:
        """The words of the command line."""
        seeds = self.seeds if isinstance(self.seeds, int | None) else f"{','.join(map(str, self.seeds))},"
        flags = {"--quick": self.quick, "--search": self.search, f"--seeds {seeds}": self.seeds}
        return " ".join([*(flag for flag, on in flags.items() if on), *as_options(self.changes)])


@dataclass(frozen=True)
class Reproduction:
    """Results of an experiment."""

    name: str
    experiment: Experiment
    version: Version
    findings: Mapping[str, Finding]  # by claim
    arms: Mapping[str, Arm]
    without: Mapping[int, str]  # the reason of each seed that is left out
    region: Sequence[tuple[Settings, Mapping[str, Finding]]]  # findings by point of the search
    altered: bool = False  # `Version.alters`

    @property
    def runs(self) -> list[RunResult]:
        """The runs of all arms."""
        return [run for arm in self.arms.values() for run in arm.runs.values()]

    @property
    def remarks(self) -> list[str]:
        """Why the runs are less than the paper's."""
        parts = sorted({run.part for run in self.runs if run.part})
        size = [f"smaller than the paper's: {self.experiment.undersized}"] if self.experiment.undersized else []
        return [*(f"not the whole task: {part}." for part in parts), *size]

    @property
    def small(self) -> bool:
        """Whether data, steps, model or seeds were reduced, so that no claim is settled."""
        return bool(self.version.quick or self.altered or self.remarks)

    @property
    def claims(self) -> Iterator[tuple[str, Claim, Finding]]:
        """The claims: verdict in words, claim, finding."""
        for claim in self.experiment.claims:
            finding = self.findings[claim.name]
            readings = [reading.verdict for reading in finding.readings.values()]
            region = [findings[claim.name].verdict for _, findings in self.region if claim.name in findings]
            yield page_word(finding.verdict, readings, region, small=self.small), claim, finding


def _distinct(values: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(text) for text in dict.fromkeys(json.dumps(value, sort_keys=True) for value in values)]


def as_json(result: Reproduction) -> dict[str, Any]:
    """Everything except the curves, as strict JSON."""
    experiment = result.experiment
    about = {"experiment": result.name, "quick": result.version.quick, "changes": dict(result.version.changes)}
    about |= {name: getattr(experiment, name) for name in ("title", "paper", "undersized", "seeds", "notes")}
    about |= {"small_run": result.small, "seeds_left_out": dict(result.without), "correction": CORRECTION}
    about["claims"] = [
        {"said": verdict} | claim.model_dump() | experiment.arguments(claim) | asdict(finding)
        for verdict, claim, finding in result.claims
    ]
    about["search"] = [{"at": at, **{name: asdict(f) for name, f in of.items()}} for at, of in result.region]
    about["environments"] = _distinct(
        {name: x for name, x in run.environment.items() if name != "width"} for run in result.runs
    )
    about["versions"] = _distinct(run.versions for run in result.runs)
    return plain(about | {"runs": {label: [r.run_id for r in arm.runs.values()] for label, arm in result.arms.items()}})


def page(result: Reproduction) -> str:
    """The report as Markdown: figure, claims beside the paper's statements, and the runs behind them."""
    experiment = result.experiment
    again = f"bench reproduce {result.name} {result.version.words}".rstrip()
    parts = [f"# {experiment.title}", f"{experiment.paper}. Made by `{again}`."]
    if result.altered or result.version.seeds is not None:
        parts += ["**The command line changed settings or seeds: this is not the experiment as defined.**"]
    if result.version.quick:
        parts += ["**This is the quick version: few seeds and few steps. Its verdicts are no evidence.**"]
    parts += [f"**{remark[0].upper()}{remark[1:]}**" for remark in result.remarks]
    parts += ["![figure](figure.png)", "## Claims", f"{CORRECTION} {CONSEQUENCE}"]
    statements = [(word, c.name, c.statement, f.text, _effect(f)) for word, c, f in result.claims]
    parts += [_findings("the paper's statement, in short", statements)]
    readings = [
        (of.verdict, claim.name, words, of.text, _effect(of))
        for _, claim, finding in result.claims
        for words, of in finding.readings.items()
    ]
    if readings:
        several = "Where the text, or our threshold, allows several readings."
        parts += ["## Readings", several, _findings("reading", readings)]
    if result.region and experiment.search:
        names = list(dict.fromkeys(name for _, findings in result.region for name in findings))
        points = [
            (" ".join(as_options(at)), *(of[name].verdict if name in of else "no solution" for name in names))
            for at, of in result.region
        ]
        parts += ["## Where the claims hold", experiment.search.why, _table([_code("open constants"), *names], points)]
        for name, *verdicts in zip(names, *(row[1:] for row in points), strict=True):
            counts = ", ".join(f"{verdict} at {n}" for verdict, n in Counter(verdicts).most_common())
            here = result.findings[name].verdict
            parts += [f"`{name}`: {counts} of {len(points)} points; {here} in the experiment itself."]
    rows = [
        (
            label,
            " ".join(as_options(experiment.arms[label])),
            len(arm.runs),
            max(run.steps for run in arm.runs.values()),
            ", ".join(f"{status} {n}" for status, n in Counter(run.status for run in arm.runs.values()).items()),
            duration(sum(run.wall_s for run in arm.runs.values())),
        )
        for label, arm in result.arms.items()
    ]
    parts += ["## Runs", _table(["arm", _code("settings"), "seeds", "steps", "ended", "time in all"], rows)]
    of_arms = {name for arm in experiment.arms.values() for name in arm}
    shared = {name: value for name, value in experiment.common.items() if name not in of_arms}
    parts += [f"All arms: `{' '.join(as_options(shared))}`."]
    parts += [f"Left out: seed {seed}, where {reason}." for seed, reason in result.without.items()]
    parts += ["\n".join(f"* {note}" for note in experiment.notes)] * bool(experiment.notes)
    return "\n\n".join([*parts, f"Machines and versions: {machines_and_versions(result.runs)}."]) + "\n"


def _table(columns: Sequence[Column | str], rows: Iterable[Sequence[Any]]) -> str:
    return "\n".join(markdown_table(Table.of(columns, rows)))


def _code(title: str) -> Column:
    return Column(title, title, markup="code")


def _findings(what: str, rows: Iterable[Sequence[Any]]) -> str:
    head = Column("verdict", "verdict", markup="strong")
    return _table([head, "claim", what, "here", "effect, 95 % interval over seeds"], rows)


def _effect(finding: Finding) -> str:
    if finding.effect is None:
        return ""
    low, high = -inf if finding.low is None else finding.low, inf if finding.high is None else finding.high
    return f"{cell(Interval(finding.effect, low, high, 0))} {finding.unit}"


def claim_lines(result: Reproduction, folder: Path) -> list[str]:
    """The verdicts on an experiment's claims, and the folder of the output."""
    rows = list[tuple[str, str]]()
    for verdict, claim, finding in result.claims:
        rows += [(verdict, f"{claim.name}: {claim.statement}"), ("", finding.text)]
    notes = ["this is the quick version; its verdicts are no evidence"] * result.version.quick + result.remarks
    notes += [f"seed {seed} was left out: {reason}" for seed, reason in result.without.items()]
    lines = [*shown(Table.facts(rows), "  "), *(f"note: {note}" for note in notes)]
    files = f"written to {folder}: report.md, figure.png, figure.pdf and claims.json"
    return [f"{result.name}: {result.experiment.title}", *lines, files]
