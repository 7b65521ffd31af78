"""Results of an experiment, as a page for people and as JSON for programs."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from bench.papers.arms import Arm
from bench.papers.experiments import Claim, Experiment, Settings
from bench.papers.verdicts import Finding, said
from bench.process import as_options
from bench.results.render import markdown_table, shown
from bench.results.stats import Interval
from bench.results.table import Column, Table
from bench.store.record import RunResult
from bench.text import cell, counted, duration, listed, plain

CORRECTION = (
    "Verdicts of an experiment are corrected for their number (Holm over its claims, Bonferroni over the arms of one):"
    " the probability of any false “holds” or “fails” is 5 % at most. This does not cover verdicts over"
    " readings or over points of a search, which are corrected within their claim (Holm). Intervals are 95 % each."
)

CONSEQUENCE = "So a verdict may be undecided although its interval excludes the bound of the claim."
"""Below `CORRECTION`, which shipped pages repeat in their JSON."""


@dataclass(frozen=True)
class Version:
    """The version of an experiment.

    Attributes:
        quick: the small version.
        search: with the search over open constants.
        seeds: number of seeds, the experiment's own first, or which; None: all of its own.
        changes: settings changed in all arms.
    """

    quick: bool = False
    search: bool = False
    seeds: int | Sequence[int] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int | None:
        """The number of seeds, if it was given."""
        return self.seeds if isinstance(self.seeds, int | None) else len(self.seeds)

    @property
    def changed(self) -> bool:
        """Whether this is not the experiment as its YAML defines it, small or whole."""
        return bool(self.changes) or self.seeds is not None

    @property
    def words(self) -> str:
        """The words of the command line."""
        seeds = self.seeds if isinstance(self.seeds, int | None) else f"{','.join(map(str, self.seeds))},"
        flags = {"--quick": self.quick, "--search": self.search, f"--seeds {seeds}": self.seeds}
        return " ".join([*(flag for flag, on in flags.items() if on), *as_options(self.changes)])


@dataclass(frozen=True)
class Reproduction:
    """Results of an experiment.

    Attributes:
        name, experiment, version: what was run.
        findings: by claim, with Holm's correction over the claims.
        arms: the runs, by label.
        without: seeds that are left out, with the reason.
        region: by point of the search, the findings by claim, with Holm's correction over the points; empty if nothing
            was searched.
        altered: whether the command line changed settings that change results, or took fewer seeds than the YAML.
    """

    name: str
    experiment: Experiment
    version: Version
    findings: Mapping[str, Finding]
    arms: Mapping[str, Arm]
    without: Mapping[int, str]
    region: Sequence[tuple[Settings, Mapping[str, Finding]]]
    altered: bool = False

    @property
    def claims(self) -> Iterator[tuple[Claim, Finding]]:
        """The claims with their findings."""
        return ((claim, self.findings[claim.name]) for claim in self.experiment.claims)

    @property
    def small(self) -> bool:
        """Whether the runs are smaller than the experiment's, or otherwise altered, so that no claim is settled."""
        return bool(self.version.quick or self.altered or self.parts or self.experiment.undersized)

    def said(self, claim: Claim) -> str:
        """A verdict in words; small or altered runs give no verdict on the paper."""
        finding = self.findings[claim.name]
        readings = [reading.verdict for reading in finding.readings.values()]
        region = [findings[claim.name].verdict for _, findings in self.region if claim.name in findings]
        return said(finding.verdict, readings, region, small=self.small)

    @property
    def runs(self) -> list[RunResult]:
        """The runs of all arms."""
        return [run for arm in self.arms.values() for run in arm.runs.values()]

    @property
    def parts(self) -> list[str]:
        """The trained parts of the task, for runs that are not on all of it (`RunResult.part`)."""
        return sorted({run.part for run in self.runs if run.part})


def as_json(result: Reproduction) -> dict[str, Any]:
    """Everything except the curves, as strict JSON."""
    return plain(
        {
            "experiment": result.name,
            "title": result.experiment.title,
            "paper": result.experiment.paper,
            "quick": result.version.quick,
            "changes": dict(result.version.changes),
            "small_run": result.small,
            "undersized": result.experiment.undersized,
            "seeds": result.experiment.seeds,
            "seeds_left_out": dict(result.without),
            "parts": result.parts,
            "correction": CORRECTION,
            "notes": result.experiment.notes,
            "claims": [
                {"said": result.said(claim)} | claim.model_dump() | result.experiment.arguments(claim) | asdict(finding)
                for claim, finding in result.claims
            ],
            "search": [
                {"at": point, **{name: asdict(f) for name, f in findings.items()}} for point, findings in result.region
            ],
            "environments": _machines(result.runs),
            "versions": _distinct(run.versions for run in result.runs),
            "runs": {label: [run.run_id for run in arm.runs.values()] for label, arm in result.arms.items()},
        }
    )


def _machines(runs: Iterable[RunResult]) -> list[dict[str, Any]]:
    """The environments of runs, without the width of their blocks."""
    return _distinct({name: v for name, v in run.environment.items() if name != "width"} for run in runs)


def _distinct(values: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(text) for text in dict.fromkeys(json.dumps(value, sort_keys=True) for value in values)]


def page(result: Reproduction) -> str:
    """The report as Markdown: figure, claims beside the paper's statements, and the runs behind them."""
    experiment = result.experiment
    again = f"bench reproduce {result.name} {result.version.words}".rstrip()
    lines = [f"# {experiment.title}", "", f"{experiment.paper}. Made by `{again}`.", ""]
    warnings = {
        "The command line changed settings or seeds: this is not the experiment as defined.": result.altered
        or result.version.seeds is not None,
        "This is the quick version: few seeds and few steps. Its verdicts are no evidence.": result.version.quick,
        **{f"Not the whole task: {part}.": True for part in result.parts},
        f"Smaller than the paper's: {experiment.undersized}": experiment.undersized,
    }
    lines += [line for warning, given in warnings.items() if given for line in (f"**{warning}**", "")]
    lines += ["![figure](figure.png)", "", "## Claims", "", f"{CORRECTION} {CONSEQUENCE}", ""]
    claims = [(result.said(claim), claim.name, claim.statement, finding) for claim, finding in result.claims]
    lines += _findings("the paper's statement, in short", claims)
    readings = [
        (verdicts_at.verdict, claim.name, reading, verdicts_at)
        for claim, finding in result.claims
        for reading, verdicts_at in finding.readings.items()
    ]
    if readings:
        lines += ["", "## Readings", "", "Where the text, or our threshold, allows several readings.", ""]
        lines += _findings("reading", readings)
    if result.region:
        assert experiment.search is not None
        names = list(dict.fromkeys(name for _, findings in result.region for name in findings))
        lines += ["", "## Where the claims hold", "", experiment.search.why, "", "![map](map.png)", ""]
        verdicts_at = [
            [findings[name].verdict if name in findings else "no solution" for name in names]
            for _, findings in result.region
        ]
        rows = [
            (" ".join(as_options(point)), *verdicts)
            for (point, _), verdicts in zip(result.region, verdicts_at, strict=True)
        ]
        lines += markdown_table(Table.of([Column("at", "open constants", markup="code"), *names], rows))
        for name, *verdicts in zip(names, *verdicts_at, strict=True):
            count = Counter(verdicts)
            where = ", ".join(f"{verdict} at {n}" for verdict, n in count.most_common())
            itself = result.findings[name].verdict
            lines += ["", f"`{name}`: {where} of {len(result.region)} points; {itself} in the experiment itself."]
    lines += ["", "## Runs", ""]
    rows = [
        (
            label,
            " ".join(as_options(experiment.arms[label])),
            len(runs),
            max(run.steps for run in runs),
            ", ".join(f"{status} {n}" for status, n in Counter(run.status for run in runs).items()),
            duration(sum(run.wall_s for run in runs)),
        )
        for label, arm in result.arms.items()
        for runs in [arm.runs.values()]
    ]
    settings = Column("settings", "settings", markup="code")
    lines += markdown_table(Table.of(["arm", settings, "seeds", "steps", "ended", "time in all"], rows))
    shared = {
        name: x
        for name, x in experiment.common.items()
        if not any(name in settings for settings in experiment.arms.values())
    }
    lines += ["", f"All arms: `{' '.join(as_options(shared))}`."]
    thin = [label for label, arm in result.arms.items() if any(run.thinned for run in arm.runs.values())]
    why = "their runs keep only some rows of the curve (the reference results keep 200), and means of losses use these"
    for section in (
        [f"{listed(thin)}: {why}."] * bool(thin),
        [f"Left out: seed {seed}, where {reason}." for seed, reason in result.without.items()],
        [f"* {note}" for note in experiment.notes],
    ):
        lines += ["", *section] if section else []
    lines += [""]
    for environment in _machines(result.runs):
        where = ", ".join(
            counted(value, name[:-1]) if name in ("cores", "threads") else str(value)
            for name, value in environment.items()
            if value
        )
        lines += [f"Machine: {where}."]
    for versions in _distinct(run.versions for run in result.runs):
        lines += ["Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."]
    return "\n".join([*lines, ""])


def _findings(what: str, rows: Iterable[tuple[str, str, str, Finding]]) -> list[str]:
    """A table of findings: the verdict, the name of the claim and `what` come first."""
    columns = [Column("verdict", "verdict", markup="strong"), "claim", what, "here", "effect, 95 % interval over seeds"]
    return markdown_table(Table.of(columns, [(*row, finding.text, _effect(finding)) for *row, finding in rows]))


def _effect(finding: Finding) -> str:
    if finding.effect is None:
        return ""
    low, high = -inf if finding.low is None else finding.low, inf if finding.high is None else finding.high
    return f"{cell(Interval(finding.effect, low, high, 0))} {finding.unit}"


def claim_lines(result: Reproduction, folder: Path) -> list[str]:
    """The verdicts on an experiment's claims, and the folder of the output."""
    lines = [f"{result.name}: {result.experiment.title}"]
    pairs = [(result.said(claim), claim, finding.text) for claim, finding in result.claims]
    rows = [
        row for verdict, claim, text in pairs for row in ((verdict, f"{claim.name}: {claim.statement}"), ("", text))
    ]
    lines += shown(Table.facts(rows, least=9), "  ")
    if result.version.quick:
        lines.append("note: this is the quick version; its verdicts are no evidence")
    lines += [f"note: not the whole task: {part}" for part in result.parts]
    if result.experiment.undersized:
        lines.append(f"note: smaller than the paper's: {result.experiment.undersized}")
    lines += [f"note: seed {seed} was left out: {reason}" for seed, reason in result.without.items()]
    return [*lines, f"written to {folder}: report.md, figure.png, figure.pdf, claims.json and the data as Parquet"]
