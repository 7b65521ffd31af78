"""Many optimizers against all checks: `bench check --matrix`. Importing this file imports no torch."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from bench.check.catalogue import GROUPS, catalogue
from bench.check.report import Report, Verdict, write_verdict
from bench.check.run import LIMIT, Show, checks_of, python_with_path, reports, request_of
from bench.errors import UserError
from bench.near import nearest
from bench.output import ENDINGS, Answer, write
from bench.progress import StatusLine, say
from bench.results.render import FORMATS, template
from bench.results.table import Board, Column, Table
from bench.text import cell
from optimizers import OPTIMIZERS
from optimizers.plugins import PluginError, load, load_module, provenance

CHECKS = catalogue()
MATRIX_CHECKS = tuple(name for name in CHECKS if name != "reference")
"""A reference belongs to one optimizer."""

WORDS = {"pass": "pass", "fail": "FAIL", "error": "ERROR", "not applicable": "n.a."}
"""Verdicts as shown in a cell."""

_KINDS = {**ENDINGS, ".txt": "table"}
_OPTIMIZER = Column("opt", "optimizer", "argument of `bench check`")
_PACKAGE = Column("package", "package", "distribution and version")


@dataclass(frozen=True)
class Row:
    """An optimizer of the matrix.

    Attributes:
        package: its distribution and version, or a digest of its file.
        report: verdicts on it.
    """

    package: str
    report: Report


def kind_of(path: Path) -> str:
    """The format of a file, by its suffix.

    Raises:
        UserError: the suffix is unknown, or the folder does not exist.
    """
    if path.suffix not in _KINDS:
        raise UserError(f"-o {path}: the suffix sets the format and must be one of {', '.join(_KINDS)}")
    if not path.parent.is_dir() or path.is_dir():
        raise UserError(f"cannot write {path}: {'it is a folder' if path.is_dir() else 'its folder does not exist'}")
    return _KINDS[path.suffix]


def members(words: Sequence[str]) -> list[dict[str, str]]:
    """The optimizers that the words name, found in a separate process.

    Args:
        words: modules or files (all their public optimizer classes), `module:Class`, names of the registry; `NAME:` is
            the module if an optimizer has its name.

    Returns:
        For each word, the packages of its optimizers by name; an optimizer is listed under its first word.

    Raises:
        UserError: a word names no optimizer, or its import raises an exception, hangs or ends the process.
    """
    done = subprocess.run(
        python_with_path(_MEMBERS, words), capture_output=True, text=True, timeout=_START, stdin=subprocess.DEVNULL
    )
    lines = [json.loads(line[len(_MARK) :]) for line in done.stdout.splitlines() if line.startswith(_MARK)]
    for word, line in zip(words, lines, strict=False):
        if why := line.get("refused"):
            raise UserError(why + _near(word))
    if len(lines) < len(words):
        raise UserError(f"importing {words[len(lines)]}: the process ended with code {done.returncode}")
    found: list[dict[str, str]] = []
    known: set[str] = set()
    for word, packages in zip(words, (line["packages"] for line in lines), strict=True):
        if not packages:
            raise UserError(f"there is no public torch.optim.Optimizer class in {word}; name a class: {word}:Class")
        found.append({name: package for name, package in packages.items() if name not in known})
        known |= found[-1].keys()
    return found


_START = 600.0
"""Seconds for importing all modules."""
_MARK = "bench members: "
_MEMBERS = f"""
import json
from bench.check.matrix import look_into
for word in words:
    print({_MARK!r} + json.dumps(look_into(word)), flush=True)
"""


def look_into(word: str) -> dict[str, Any]:
    """The packages of a word's optimizers by name, or why it is refused; this imports the module."""
    module = word.removesuffix(":")
    try:
        names = [word] if word == module and word in OPTIMIZERS else _members(module)
        if ":" in module:
            load(word)
    except PluginError as error:
        return {"refused": str(error)}
    return {"packages": {name: _package(name) for name in names}}


def _members(name: str) -> list[str]:
    """Public optimizer classes of a module, each under its first name; torch's own only if requested."""
    from torch.optim import Optimizer

    found: dict[Any, str] = {}
    for member, value in sorted(vars(load_module(name)).items(), key=lambda item: item[0].lower()):
        if member.startswith("_") or not isinstance(value, type) or not issubclass(value, Optimizer):
            continue
        if value is not Optimizer and value.__module__.startswith("torch.") <= name.startswith("torch."):
            found.setdefault(value, f"{name}:{member}")
    return list(found.values())


def _package(name: str) -> str:
    """Distribution and version, or a digest of the file."""
    if name in OPTIMIZERS.own:
        return f"attention-optimizer-bench {version('attention-optimizer-bench')}"
    return OPTIMIZERS.describe(name) or provenance(name)


def _near(word: str) -> str:
    names = {*OPTIMIZERS, *packages_distributions()}
    near = None if word in names or ":" in word else nearest(word, names)
    return f" Did you mean {near!r}?" if near else ""


def rows(
    groups: Sequence[Mapping[str, str]],
    *,
    only: Sequence[str] | None = None,
    limit: float = LIMIT,
    show: Show | None = None,
) -> Iterator[Row]:
    """Check optimizers, each group in a separate process; those that cannot be loaded or built get such verdicts.

    Args:
        groups: packages by name, as in `members`.
        only: names of checks; all but `reference` if None.
        limit: seconds that one check may take.
        show: called with each verdict as it comes.

    Raises:
        UserError: there is no such check.
    """
    for packages in groups:
        requests = [request_of(name, only=MATRIX_CHECKS if only is None else only) for name in packages]
        with closing(reports(requests, limit=limit, show=show, refuse=False)) as found:
            yield from (Row(packages[report.name], report) for report in found)


# ---- As a board ------------------------------------------------------------------------------------------------------


def board(found: Sequence[Row], notes: Sequence[str] = ()) -> Board:
    """The matrix as a board: packages, optimizers with a column for each check, checks with totals, and all failures.

    Args:
        found: rows.
        notes: on the machine and method.
    """
    made_of = {v.check for row in found for v in row.report.verdicts}
    order = [*GROUPS]
    checks = sorted((name for name in CHECKS if name in made_of), key=lambda name: order.index(CHECKS[name].group))
    found = sorted(found, key=_rank)
    made_with = next((row.report.about["versions"] for row in found if row.report.about), {})
    legend = (
        "FAIL: the property does not hold; ERROR: the optimizer raised an exception, ended its process, or did not"
        " finish;"
        " n.a.: not applicable, or not run since the optimizer does not build; a number is only reported. Faults are"
        " failures that change results or block a set-up; columns are ordered by severity"
    )
    made = [f"made with {', '.join(f'{name} {number}' for name, number in made_with.items())}"] if made_with else []
    return Board(
        "conformance",
        f"Conformance of {len(found)} optimizers",
        [_packages(found), _matrix(found, checks), *_not_built(found), _totals(found, checks)],
        [legend, *made, *notes],
    )


def _packages(found: Sequence[Row]) -> Table:
    columns = [
        _PACKAGE,
        Column("optimizers", "optimizers", "checked classes"),
        Column("built", "built", "of these, those that pass the check `builds` with default arguments"),
        Column("clean", "without a fault", "of these, those without a failure that changes results or blocks a set-up"),
        Column("spotless", "pass all", "of these, those that pass all applicable checks"),
    ]
    packages: dict[str, list[Report]] = {}
    for row in found:
        packages.setdefault(row.package, []).append(row.report)
    rows = [
        (package, len(own), sum(r.built for r in own), sum(r.ok for r in own), sum(not r.failed for r in own))
        for package, own in packages.items()
    ]
    return Table.of(columns, rows, "By package")


def _rank(row: Row) -> tuple[bool, int, int]:
    """Order: optimizers without faults first, optimizers that cannot be built last."""
    return not row.report.built, len(row.report.serious), len(row.report.failed)


def _not_built(found: Sequence[Row]) -> list[Table]:
    rows = [
        (row.report.name, row.package, _without_folders(row.report[row.report.failed[0]].note))
        for row in found
        if not row.report.built and row.report.failed
    ]
    columns = [_OPTIMIZER, _PACKAGE, Column("why", "why", "the exception")]
    return [Table.of(columns, rows, "Not built with default arguments")] if rows else []


def _matrix(found: Sequence[Row], checks: Sequence[str]) -> Table:
    columns = [
        _OPTIMIZER,
        _PACKAGE,
        Column("faults", "faults", "number of failures that change results or block a set-up"),
        Column("less", "less", "number of failures that cost speed"),
        *(Column(check, check, CHECKS[check].meaning) for check in checks),
    ]
    rows, failures = [], []
    for row in found:
        report = row.report
        values: dict[str, Any] = {"opt": report.name, "package": row.package, "faults": "not built", "less": None}
        if report.built:
            values |= {"faults": len(report.serious), "less": len(report.failed) - len(report.serious)}
            if report.failed:
                failures.append(f"{report.name}: " + "; ".join(said(report[check]) for check in report.failed))
        rows.append(values | {v.check: in_cell(v) for v in report.verdicts})
    return Table("Optimizers and checks", columns, rows, failures)


def _totals(found: Sequence[Row], checks: Sequence[str]) -> Table:
    columns = [
        Column("check", "check", "name, as --only takes it"),
        Column("meaning", "object of the check", "the property"),
        Column("group", "a failure", "consequence of a failure"),
        *(Column(word, WORDS[word], f"optimizers with this verdict: {word}") for word in WORDS),
    ]
    count = Counter((v.check, v.verdict) for row in found for v in row.report.verdicts)
    rows = [(c, CHECKS[c].meaning, CHECKS[c].group, *(count[c, word] for word in WORDS)) for c in checks]
    return Table.of(columns, rows, "By check")


def in_cell(verdict: Verdict) -> str:
    """A verdict in a cell: a word, or what is reported."""
    if CHECKS[verdict.check].group != "reported" or verdict.verdict != "pass":
        return WORDS[verdict.verdict]
    return verdict.note if verdict.measured is None else f"{verdict.measured:.2g}"


def said(verdict: Verdict) -> str:
    """A verdict in words; paths without their machine-specific part."""
    note = _without_folders(verdict.note)
    return f"{verdict.check} {WORDS[verdict.verdict]}" + (f": {note}" if note else "")


def _without_folders(note: str) -> str:
    """Words with only the last folder of each path."""
    return re.sub(r"(?:/[\w.+@-]+)+/([\w.+@-]+/[\w.+@-]+)", r"\1", note)


def as_text(found: Sequence[Row], kind: str, notes: Sequence[str] = ()) -> str:
    """The matrix in a format.

    Args:
        found: rows.
        kind: one of `bench.results.render.FORMATS`.
        notes: on the machine and method.
    """
    whole = board(found, notes)
    if kind != "html":
        return FORMATS[kind]([whole])
    # A page, whose cells have their measurements as tooltips.
    verdicts = {row.report.name: {v.check: v for v in row.report.verdicts} for row in found}
    return template("bench.check", "matrix.html.j2").render(board=whole, verdicts=verdicts, said=said, cell=cell)


# ---- The command -----------------------------------------------------------------------------------------------------


def table(words: Sequence[str], only: Sequence[str] | None, out: Sequence[Path], store: Path, limit: float) -> Answer:
    """Compute the matrix, and write it into files if given.

    The report on an optimizer is added to the store once all of its checks are done.

    Args:
        words: optimizers, modules or files.
        only: names of checks; None for all.
        out: files.
        store: folder of the reports.
        limit: seconds that one check may take.

    Raises:
        UserError: a word names no optimizer, or a file cannot be written.
    """
    checks_of("optimizer", only)  # refuses an unknown check before anything is imported
    kinds = [kind_of(path) for path in out]
    groups = members(words)
    found: list[Row] = []
    progress = _Progress(sum(map(len, groups)))

    for row in rows(groups, only=only, limit=limit, show=progress.show):
        found.append(row)
        if only is None:
            write_verdict(store, row.report)
        progress.row(row)
    progress.line.clear()
    for path, kind in zip(out, kinds, strict=True):
        write(path, as_text(found, kind))
    return Answer(json.loads(as_text(found, "json")), [] if out else as_text(found, "md").split("\n"))


class _Progress:
    """A line on a terminal, a line for each optimizer elsewhere."""

    def __init__(self, total: int) -> None:
        self.done, self.total, self.line = 0, total, StatusLine()

    def show(self, report: Report, verdict: Verdict) -> None:
        """Show a verdict."""
        self.line.show(f"{self.done + 1}/{self.total} {report.name}: {verdict.check}")

    def row(self, row: Row) -> None:
        """Show the result of an optimizer."""
        self.done += 1
        if not self.line.live:
            said = row.report.headline() if row.report.built else "not built"
            say(f"{self.done}/{self.total} {row.report.name}: {said}")
