"""Verdicts: as a table, as JSON, in a store. Importing this file imports no torch."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from bench.check.catalogue import CATALOGUES, SERIOUS, Check, Kind
from bench.text import counted, plain
from optimizers.groups import REST

Word = Literal["pass", "fail", "not applicable", "error"]


@dataclass(frozen=True)
class Verdict:
    """Result of a check.

    Attributes:
        check: its name.
        verdict: `error` if the optimizer raised an exception, ended its process, or did not finish.
        measured: the number compared with the tolerance, or None.
        note: further observations.
        seconds: duration.
    """

    check: str
    verdict: Word
    measured: float | None = None
    note: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it is not a fault."""
        return self.verdict in ("pass", "not applicable")


@dataclass(frozen=True)
class Report:
    """All verdicts on an optimizer or a task.

    Attributes:
        name: as requested.
        options: given hyperparameters.
        about: target, package, versions, and constructor arguments; empty if it could not be loaded.
        verdicts: in the order of the catalogue.
        kind: optimizer or task.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    kind: Kind = "optimizer"

    @property
    def catalogue(self) -> dict[str, Check]:
        """All checks of its kind."""
        return CATALOGUES[self.kind]

    @property
    def built(self) -> bool:
        """Whether the optimizer could be loaded and built."""
        return bool(self.about) and "builds" not in self.failed

    @property
    def ok(self) -> bool:
        """Whether no failure changes results or blocks a set-up."""
        return not self.serious

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed, or in which the optimizer raised, the worst first."""
        return sorted(
            (verdict.check for verdict in self.verdicts if not verdict.ok),
            key=lambda check: self.catalogue[check].weight,
        )

    @property
    def serious(self) -> list[str]:
        """Those that change results or block a set-up."""
        return [check for check in self.failed if self.catalogue[check].severity in SERIOUS]

    def headline(self) -> str:
        """Faults and lesser failures: `1 fault (changes results: groups); less: costs speed: syncs, temporaries`."""
        by = groupby(self.failed, lambda check: (self.catalogue[check].severity, self.catalogue[check].consequence))
        said = [(severity, f"{word}: {', '.join(checks)}") for (severity, word), checks in by if word]
        serious, less = ("; ".join(words for s, words in said if (s in SERIOUS) is it) for it in (True, False))
        n = len(self.serious)
        return (f"{counted(n, 'fault')} ({serious})" if n else "no fault") + (f"; less: {less}" if less else "")

    def __getitem__(self, check: str) -> Verdict:
        return {verdict.check: verdict for verdict in self.verdicts}[check]

    def text(self) -> str:
        """The table with the worst failures first, the advice, and the headline."""
        from bench.results.render import shown
        from bench.results.table import Column, Table

        numbers = (Column(title, title, digits=3, side="right") for title in ("measured", "at most"))
        failed = [self[check] for check in self.failed]
        verdicts = [*failed, *(v for v in self.verdicts if v.ok)]
        rows = ((v.check, v.verdict, v.measured, self.catalogue[v.check].tolerance, v.note) for v in verdicts)
        lines = shown(Table.of(["check", "verdict", *numbers, Column("note", wraps=True)], rows))
        for v in failed:
            check = self.catalogue[v.check]
            lines += [
                "",
                f"{v.check} ({check.consequence}): {check.meaning}" if check.severity else v.check,
                f"  tolerance: {check.because}",
                f"  to do: {check.advice}",
            ]
        count = Counter(v.verdict for v in self.verdicts)
        words = [word for word in ("pass", "fail", "error", "not applicable") if count[word]]
        total = ", ".join(f"{count[word]} {word}" for word in words)
        return "\n".join([*lines, "", f"{self.name}: {self.headline()}; {total}"])

    def as_json(self) -> dict[str, Any]:
        """The report as strict JSON."""
        rows = []
        for v in self.verdicts:
            check = self.catalogue[v.check]
            about = {name: getattr(check, name) for name in ("tolerance", "severity", "meaning", "advice")}
            rows.append(asdict(v) | about)
        options = told(self.options)
        return plain({"name": self.name, "ok": self.ok, "options": options, **self.about, "verdicts": rows})


def told(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for a record: numbers and None as they are, all else as text."""
    return {name: value if isinstance(value, int | float | None) else str(value) for name, value in arguments.items()}


def write_verdict(store: Path, report: Report) -> Path:
    """Store a report; it replaces one on the same version of the optimizer, with the same optimizer for the rest.

    Returns:
        The file.

    Raises:
        UserError: it cannot be written.
        RunFailed: the disk is full.
    """
    from bench.store.files import making, write_json
    from bench.store.reports import check_path

    about, rest = report.about, report.options.get(REST)
    path = check_path(store, report.name, about.get("version"), about.get("package"), rest)
    with making(store):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, report.as_json(), indent=1)
    return path


def read_verdict(store: Path, name: str, options: Mapping[str, Any], versions: Mapping[str, str]) -> Report | None:
    """The stored report on an optimizer that is still valid, without its errors; None if there is none.

    Args:
        store: the store.
        name: of the optimizer; its version and the digest of its source must be those of the report.
        options: its hyperparameters, likewise.
        versions: of Python, torch and the suite, likewise.
    """
    from bench.store.load import Damaged
    from bench.store.reports import CheckRecord, check_path, read_report
    from optimizers import OPTIMIZERS

    spec = OPTIMIZERS[name]
    try:
        record = read_report(check_path(store, name, spec.version, spec.package, options.get(REST)), CheckRecord)
    except (FileNotFoundError, Damaged):
        return None
    if record.options != told(options) or record.versions != versions:
        return None
    about = {key: getattr(record, key) for key in ("target", "version", "package", "versions", "arguments")}
    fields = [{key: each[key] for key in Verdict.__dataclass_fields__} for each in record.verdicts]
    for own in fields:
        own["measured"] = None if own["measured"] is None else float(own["measured"])  # it may be the word inf
    verdicts = [Verdict(**own) for own in fields if own["verdict"] != "error"]
    return Report(name, options, about, tuple(verdicts))
