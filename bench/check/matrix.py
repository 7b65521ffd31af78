"""Many optimizers against all checks: `bench check --matrix`. Importing this file imports no torch."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from bench.check.catalogue import GROUPS, catalogue
from bench.check.report import Report, Verdict, write_verdict
from bench.check.run import LIMIT, Show, checks_of, python_with_path, reports, request_of
from bench.errors import UserError
from bench.near import nearest
from bench.output import Answer, write
from bench.progress import StatusLine, say
from bench.text import strict_json
from optimizers import OPTIMIZERS
from optimizers.plugins import PluginError, load, load_module, provenance

CHECKS = sorted(catalogue().values(), key=lambda check: [*GROUPS].index(check.group))
MATRIX_CHECKS = tuple(name for name in catalogue() if name != "reference")
"""A reference belongs to one optimizer."""
_WORDS = {"pass": "pass", "fail": "FAIL", "error": "ERROR", "not applicable": "n.a."}
_KINDS = {".md", ".html", ".json"}
_LEGEND = (
    "FAIL: the property does not hold; ERROR: the optimizer raised an exception, ended its process, or did not finish;"
    " n.a.: not applicable, or not run since the optimizer does not build. Faults are failures that change results or"
    " block a set-up; columns are ordered by severity."
)


class Row(NamedTuple):
    """An optimizer: its distribution and version, or a digest of its file, and the verdicts on it."""

    package: str
    report: Report


def members(words: Sequence[str]) -> list[dict[str, str]]:
    """The packages, by name, of the optimizers that each word names, found in a separate process.

    A word is a module or file (all its public optimizer classes), `module:Class`, or a name of the registry; `NAME:` is
    the module if an optimizer has its name.

    Raises:
        UserError: a word names no optimizer, or its import raises an exception, hangs or ends the process.
    """
    code = "from bench.check.matrix import look_into\nfor word in words:\n    look_into(word)"
    done = subprocess.run(
        python_with_path(code, words), capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL
    )
    lines = [json.loads(line[len(_MARK) :]) for line in done.stdout.splitlines() if line.startswith(_MARK)]
    groups, known = list[dict[str, str]](), set[str]()
    for word, line in zip(words, lines, strict=False):
        if why := line.get("refused"):
            names = {*OPTIMIZERS, *packages_distributions()}
            near = None if word in names or ":" in word else nearest(word, names)
            raise UserError(f"{why} Did you mean {near!r}?" if near else why)
        if not line["packages"]:
            raise UserError(f"there is no public torch.optim.Optimizer class in {word}; name a class: {word}:Class")
        groups.append({name: package for name, package in line["packages"].items() if name not in known})
        known |= groups[-1].keys()
    if len(lines) < len(words):
        raise UserError(f"importing {words[len(lines)]}: the process ended with code {done.returncode}")
    return groups


_MARK = "bench members: "


def look_into(word: str) -> None:
    """Print the packages of a word's optimizers by name, or why it is refused; this imports the module."""
    module = word.removesuffix(":")
    try:
        names = [word] if word == module and word in OPTIMIZERS else _public(module)
        if ":" in module:
            load(word)
        suite = f"attention-optimizer-bench {version('attention-optimizer-bench')}"
        packages = {n: suite if n in OPTIMIZERS.own else OPTIMIZERS.describe(n) or provenance(n) for n in names}
        line = {"packages": packages}
    except PluginError as error:
        line = {"refused": str(error)}
    print(_MARK + json.dumps(line), flush=True)


def _public(module: str) -> list[str]:
    """Public optimizer classes of a module, each under its first name; torch's own only if requested."""
    from torch.optim import Optimizer

    names: dict[Any, str] = {}
    for name, value in sorted(vars(load_module(module)).items(), key=lambda item: item[0].lower()):
        if name.startswith("_") or not isinstance(value, type) or not issubclass(value, Optimizer):
            continue
        if value is not Optimizer and value.__module__.startswith("torch.") <= module.startswith("torch."):
            names.setdefault(value, f"{module}:{name}")
    return list(names.values())


def rows(
    groups: Sequence[Mapping[str, str]],
    *,
    only: Sequence[str] | None = None,
    limit: float = LIMIT,
    show: Show | None = None,
) -> Iterator[Row]:
    """Check optimizers, each group of `members` in a separate process; arguments are those of `request_of`.

    Those that cannot be loaded or built get such verdicts; `show` is called with each verdict as it comes.
    """
    for packages in groups:
        requests = [request_of(name, only=MATRIX_CHECKS if only is None else only) for name in packages]
        with closing(reports(requests, limit=limit, show=show, refuse=False)) as each:
            yield from (Row(packages[report.name], report) for report in each)


def tables(found: Sequence[Row]) -> dict[str, pd.DataFrame]:
    """The matrix as tables by title: packages, optimizers with a column for each check, checks with totals."""
    by_severity = sorted(found, key=lambda r: (not r.report.built, len(r.report.serious), len(r.report.failed)))
    lines, packages = [], []
    for package, report in by_severity:
        counts = len(report.serious), len(report.failed) - len(report.serious)
        faults, less = counts if report.built else ("not built", "")
        words = {v.check: _WORDS[v.verdict] for v in report.verdicts}
        columns = {check.name: words[check.name] for check in CHECKS if check.name in words}
        lines.append({"optimizer": report.name, "package": package, "faults": faults, "less": less, **columns})
        packages.append((package, 1, report.built, report.built and report.ok, report.built and not report.failed))
    matrix = pd.DataFrame(lines).fillna("")
    by_package = pd.DataFrame(packages, columns=["package", "optimizers", "built", "without a fault", "pass all"])
    count = Counter((v.check, _WORDS[v.verdict]) for row in found for v in row.report.verdicts)
    used = [check for check in CHECKS if check.name in matrix]
    totals = [
        {"check": c.name, "object of the check": c.meaning, "a failure": c.group}
        | {word: count[c.name, word] for word in _WORDS.values()}
        for c in used
    ]
    return {
        "By package": pd.DataFrame(by_package.groupby("package", sort=False, as_index=False).sum()),
        "Optimizers and checks": matrix,
        "By check": pd.DataFrame(totals),
    }


def said(verdict: Verdict) -> str:
    """A verdict in words; paths with only their last folder."""
    note = re.sub(r"(?:/[\w.+@-]+)+/([\w.+@-]+/[\w.+@-]+)", r"\1", verdict.note)
    return f"{verdict.check} {_WORDS[verdict.verdict]}" + (f": {note}" if note else "")


def as_text(found: Sequence[Row], kind: str) -> str:
    """The matrix with all failures, as `md`, `html` or `json`."""
    title, parts = f"Conformance of {len(found)} optimizers", tables(found)
    failures = {row.report.name: [said(row.report[check]) for check in row.report.failed] for row in found}
    failures = {name: notes for name, notes in failures.items() if notes}
    if kind == "json":
        data = {name: table.to_dict("records") for name, table in parts.items()}
        return strict_json({"title": title, "legend": _LEGEND, "tables": data, "failures": failures}) + "\n"
    if kind == "html":
        parts["Failures"] = pd.DataFrame([(n, note) for n, notes in failures.items() for note in notes])
        with pd.option_context("display.max_colwidth", None):
            body = "".join(f"<h2>{name}</h2>\n{table.to_html(index=False)}\n" for name, table in parts.items())
        style = "body { font-family: sans-serif; color-scheme: light dark } table { border-collapse: collapse }"
        head = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title><style>{style}</style>'
        return f"{head}\n<h1>{title}</h1>\n<p>{_LEGEND}</p>\n{body}</html>\n"
    lines = [f"## {title}", "", _LEGEND]
    for name, table in parts.items():
        records = [table.columns, ["---"] * len(table.columns), *table.itertuples(index=False)]
        lines += ["", f"**{name}**", "", *("| " + " | ".join(map(_escaped, record)) + " |" for record in records)]
    lines += [
        "",
        "**Failures**",
        "",
        *(f"- {_escaped(name)}: {_escaped('; '.join(failures[name]))}" for name in failures),
    ]
    return "\n".join(lines) + "\n"


def _escaped(value: Any) -> str:
    """Text for Markdown: no pipes, tags or line ends of its own."""
    return re.sub(r"([|<>`\\*_\[\]])", r"\\\1", " ".join(str(value).split())) if isinstance(value, str) else str(value)


def table(words: Sequence[str], only: Sequence[str] | None, out: Sequence[Path], store: Path, limit: float) -> Answer:
    """Compute the matrix and write it; the report on an optimizer is stored once all of its checks are done.

    Args:
        words: optimizers, modules or files.
        only: names of checks; None for all.
        out: files, with the ending of a format.
        store: folder of the reports.
        limit: seconds that one check may take.

    Raises:
        UserError: a word names no optimizer, or a file cannot be written.
    """
    checks_of("optimizer", only)  # refuses an unknown check before anything is imported
    for path in out:
        if path.suffix not in _KINDS:
            raise UserError(f"-o {path}: the suffix sets the format and must be one of {', '.join(sorted(_KINDS))}")
        if not path.parent.is_dir() or path.is_dir():
            why = "it is a folder" if path.is_dir() else "its folder does not exist"
            raise UserError(f"cannot write {path}: {why}")
    groups = members(words)
    total, found, line = sum(map(len, groups)), list[Row](), StatusLine()

    def show(report: Report, verdict: Verdict) -> None:
        line.show(f"{len(found) + 1}/{total} {report.name}: {verdict.check}")

    for row in rows(groups, only=only, limit=limit, show=show):
        found.append(row)
        if only is None:
            write_verdict(store, row.report)
        if not line.live:
            say(f"{len(found)}/{total} {row.report.name}: {row.report.headline() if row.report.built else 'not built'}")
    line.clear()
    for path in out:
        write(path, as_text(found, path.suffix[1:]))
    return Answer(lambda: json.loads(as_text(found, "json")), [] if out else as_text(found, "md").split("\n"))
