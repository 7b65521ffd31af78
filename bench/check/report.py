"""Verdicts: as text, as JSON, in a store. Importing this file imports no torch."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args

from bench.check.catalogue import GROUPS, SERIOUS, Check, Kind, catalogue
from bench.store.files import Damaged, making, write_json
from bench.store.reports import CheckRecord, check_path, read_report
from bench.text import counted, plain
from optimizers import OPTIMIZERS
from optimizers.groups import REST

Word = Literal["pass", "fail", "not applicable", "error"]


@dataclass(frozen=True)
class Verdict:
    """Result of a check: `error` if the optimizer raised an exception, ended its process, or did not finish.

    `measured` is the number that is too large, if any; `note` says what was seen, or why the check does not apply.
    """

    check: str
    verdict: Word
    measured: float | None = None
    note: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it is not a failure."""
        return self.verdict in ("pass", "not applicable")


@dataclass(frozen=True)
class Report:
    """All verdicts on an optimizer or a task, in the order of the catalogue.

    `about` has target, version, package, versions, and constructor arguments; it is empty if it could not be loaded.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    kind: Kind = "optimizer"

    @property
    def catalogue(self) -> dict[str, Check]:
        """All checks of its kind."""
        return catalogue(self.kind)

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
        names = [verdict.check for verdict in self.verdicts if not verdict.ok]
        return sorted(names, key=lambda name: [*GROUPS].index(self.catalogue[name].group))

    @property
    def serious(self) -> list[str]:
        """Those that change results or block a set-up."""
        return [name for name in self.failed if self.catalogue[name].group in SERIOUS]

    def headline(self) -> str:
        """Faults, and failures that cost speed: `1 fault (changes results: groups); costs speed: syncs`."""
        by = {g: ", ".join(names) for g, names in groupby(self.failed, lambda name: self.catalogue[name].group)}
        faults = "; ".join(f"{group}: {names}" for group, names in by.items() if group in SERIOUS)
        slow = f"; costs speed: {by['costs speed']}" if "costs speed" in by else ""
        return (f"{counted(len(self.serious), 'fault')} ({faults})" if faults else "no fault") + slow

    def __getitem__(self, check: str) -> Verdict:
        return {verdict.check: verdict for verdict in self.verdicts}[check]

    def text(self) -> str:
        """A line for each check, in groups, the failures first; then how to mend them, and the headline."""
        lines = []
        for group in GROUPS:
            members = [v for v in self.verdicts if self.catalogue[v.check].group == group]
            lines += [group] * bool(members)
            for v in sorted(members, key=lambda v: v.ok):
                lines.append(f"  {v.check:<18} {v.verdict:<14} {v.note}".rstrip())
        for check in map(self.catalogue.__getitem__, self.failed):
            lines += ["", f"{check.name} ({check.group}): {check.meaning}", f"  {check.advice}"]
        count = Counter(v.verdict for v in self.verdicts)
        total = ", ".join(f"{count[word]} {word}" for word in get_args(Word) if count[word])
        return "\n".join([*lines, "", f"{self.name}: {self.headline()}; {total}"])

    def as_json(self) -> dict[str, Any]:
        """The report as strict JSON, as `bench.store.reports.CheckRecord` reads it."""
        rows = []
        for v in self.verdicts:
            check = self.catalogue[v.check]
            rows.append(asdict(v) | {"severity": GROUPS[check.group], "meaning": check.meaning, "advice": check.advice})
        options = written(self.options)
        return plain({"name": self.name, "ok": self.ok, "options": options, **self.about, "verdicts": rows})


def written(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for a record: numbers and None as they are, all else as text."""
    return {name: value if isinstance(value, int | float | None) else str(value) for name, value in arguments.items()}


def write_verdict(store: Path, report: Report) -> Path:
    """Store a report in a file; it replaces one on the same version of the optimizer, with the same `opt.rest`.

    Raises:
        UserError: it cannot be written.
        RunFailed: the disk is full.
    """
    version, package = (report.about.get(key) for key in ("version", "package"))
    path = check_path(store, report.name, version, package, report.options.get(REST))
    with making(store):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, report.as_json(), indent=1)
    return path


def read_verdict(store: Path, name: str, options: Mapping[str, Any], versions: Mapping[str, str]) -> Report | None:
    """The stored report on an optimizer that is still valid; None if there is none, or one with errors.

    Valid means: the optimizer's version and digest, its `options`, the `versions` of Python, torch and the suite, and
    the list of checks are those of now.
    """
    spec = OPTIMIZERS[name]
    try:
        record = read_report(check_path(store, name, spec.version, spec.package, options.get(REST)), CheckRecord)
    except (FileNotFoundError, Damaged):
        return None
    rows: list[dict[str, Any]] = [
        {k: v for k, v in row.items() if k in Verdict.__dataclass_fields__} for row in record.verdicts
    ]
    for row in rows:
        row["measured"] = row["measured"] and float(row["measured"])
    verdicts = tuple(Verdict(**row) for row in rows)
    if record.options != written(options) or record.versions != versions or "error" in [v.verdict for v in verdicts]:
        return None
    about = {key: getattr(record, key) for key in ("target", "version", "package", "versions", "arguments")}
    return Report(name, options, about, verdicts) if [v.check for v in verdicts] == [*catalogue()] else None
