"""Many optimizers against all checks: `bench check --matrix`. Importing this file imports no torch."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.metadata import version
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from bench.check.catalogue import GROUPS, catalogue
from bench.check.report import Report, Verdict, write_verdict
from bench.check.run import Worker, checks_of, reports, request_of
from bench.errors import UserError
from bench.near import nearest
from bench.output import Answer, format_of, write
from bench.progress import on_terminal, say, show_line
from bench.results.render import as_json, html_tables, markdown, text
from bench.results.table import Board, Table
from bench.text import strict_json
from optimizers import OPTIMIZERS
from optimizers.plugins import PluginError, load, load_module, provenance

_WORDS = {"pass": "pass", "fail": "FAIL", "error": "ERROR", "not applicable": "n.a."}
_LEGEND = (
    "FAIL: the property does not hold; ERROR: the optimizer raised an exception, ended its process, or did not finish;"
    " n.a.: not applicable, or not run since the optimizer does not build. Faults are failures that change results or"
    " block a set-up; columns are ordered by severity."
)


def members(words: Sequence[str]) -> dict[str, str]:
    """The optimizers that the words name, with their packages, found in a separate process.

    A word is a module or file (all its public optimizer classes), `module:Class`, or a name of the registry; `NAME:` is
    the module if an optimizer has its name.

    Raises:
        UserError: a word names no optimizer, or its import raises an exception, hangs or ends the process.
    """
    packages = dict[str, str]()
    with closing(Worker(600)) as worker:
        for word in words:
            answer = worker.call(look_into, word)
            if "ended" in answer:
                raise UserError(f"importing {word}: {answer['note']}")
            if reason := answer.get("refused"):
                near = None if word in OPTIMIZERS or ":" in word else nearest(word, OPTIMIZERS)
                raise UserError(f"{reason} Did you mean {near!r}?" if near else reason)
            if not answer["packages"]:
                raise UserError(f"there is no public torch.optim.Optimizer class in {word}; name a class: {word}:Class")
            packages |= answer["packages"]
    return packages


def look_into(word: str) -> dict[str, Any]:
    """The packages of a word's optimizers by name, or why it is refused; this imports the module."""
    module = word.removesuffix(":")
    try:
        names = [word] if word == module and word in OPTIMIZERS else _public(module)
        if ":" in module:
            load(word)
        suite = f"attention-optimizer-bench {version('attention-optimizer-bench')}"
        return {
            "packages": {n: suite if n in OPTIMIZERS.own else OPTIMIZERS.describe(n) or provenance(n) for n in names}
        }
    except PluginError as error:
        return {"refused": str(error)}


def _public(module: str) -> list[str]:
    """Public optimizer classes of a module, each under its first name; torch's own only if requested."""
    from torch.optim import Optimizer

    names: dict[type, str] = {}
    for name, value in sorted(vars(load_module(module)).items(), key=lambda item: item[0].lower()):
        if name.startswith("_") or not isinstance(value, type) or not issubclass(value, Optimizer):
            continue
        if value is not Optimizer and value.__module__.startswith("torch.") <= module.startswith("torch."):
            names.setdefault(value, f"{module}:{name}")
    return list(names.values())


def board(results: Sequence[Report], packages: Mapping[str, str]) -> Board:
    """The matrix: packages, optimizers with a column for each check, checks with totals, and all failures."""
    run = {verdict.check for report in results for verdict in report.verdicts}
    checks = [c for group in GROUPS for c in catalogue().values() if c.group == group and c.name in run]
    count = Counter((v.check, v.verdict) for report in results for v in report.verdicts)
    sums, matrix, failures = dict[str, Counter[str]](), [], []
    for report in sorted(results, key=lambda report: (not report.built, len(report.serious), len(report.failed))):
        package, words = packages[report.name], {v.check: _WORDS[v.verdict] for v in report.verdicts}
        faults, less = len(report.serious), len(report.failed) - len(report.serious)
        counts = (faults, less) if report.built else ("not built", None)
        matrix.append([report.name, package, *counts, *(words.get(c.name) for c in checks)])
        properties = {"built": report.built, "sound": report.built and report.ok, "all": not report.failed}
        sums.setdefault(package, Counter()).update(["n", *(name for name, holds in properties.items() if holds)])
        failures += [(report.name, check, without_folders(report[check].note)) for check in report.failed]
    by_package = [(package, *(s[key] for key in ("n", "built", "sound", "all"))) for package, s in sums.items()]
    by_check = [(c.name, c.meaning, c.group, *(count[c.name, word] for word in _WORDS)) for c in checks]
    heads = ["optimizer", "package", "faults", "less", *(c.name for c in checks)]
    tables = [
        Table.of(["package", "optimizers", "built", "without a fault", "pass all"], by_package, "By package"),
        Table.of(heads, matrix, "Optimizers and checks"),
        Table.of(["check", "object of the check", "a failure", *_WORDS.values()], by_check, "By check"),
        *[Table.of(["optimizer", "check", "failure"], failures, "Failures")] * bool(failures),
    ]
    return Board("conformance", f"Conformance of {len(results)} optimizers", tables, [_LEGEND])


def without_folders(note: str) -> str:
    """A note whose paths have only their last folder."""
    return re.sub(r"(?:/[\w.+@-]+)+/([\w.+@-]+/[\w.+@-]+)", r"\1", note)


def table(words: Sequence[str], only: Sequence[str] | None, out: Sequence[Path], store: Path, limit: float) -> Answer:
    """Check what the words name (see `members`), and write the matrix into files and each report into the store.

    Raises:
        UserError: a word names no optimizer, or a file cannot be written.
    """
    # A reference belongs to one optimizer.
    checks = [name for name in checks_of("optimizer", only) if name != "reference" or only is not None]
    writers = {
        "md": markdown, "html": html_tables, "json": lambda boards: strict_json(as_json(boards)), "table": text,
    }  # fmt: skip
    formats = [format_of(path, writers) for path in out]
    for path in out:
        if not path.parent.is_dir():
            raise UserError(f"cannot write {path}: its folder does not exist")
    packages, results = members(words), list[Report]()

    def show(report: Report, verdict: Verdict) -> None:
        show_line("check", f"{len(results) + 1}/{len(packages)} {report.name}: {verdict.check}")

    by_module = groupby((request_of(name, only=checks) for name in packages), lambda r: r.name.rpartition(":")[0])
    # A process for each module, since an import may change torch's settings.
    for report in chain.from_iterable(reports([*g], limit=limit, show=show, refuse=False) for _, g in by_module):
        results.append(report)
        if only is None:
            write_verdict(store, report)
        if not on_terminal():
            say(f"{len(results)}/{len(packages)} {report.name}: {report.headline() if report.built else 'not built'}")
    show_line("check")
    boards = [board(results, packages)]
    for path, kind in zip(out, formats, strict=True):
        write(path, writers[kind](boards))
    return Answer(lambda: as_json(boards), [] if out else markdown(boards).split("\n"))
