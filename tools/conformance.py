"""Check the optimizers of the package index: write `results/conformance`.

    python -m tools.conformance [--environment FOLDER] [--tests]

Creates a separate environment with this suite and the packages (`uv`, network), and checks their optimizers there; with
`--tests`, it runs the tests that need these packages instead.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from bench.check import catalogue
from bench.check.run import failed, headline, report_of, report_on, verdict_of
from bench.errors import UserError
from bench.results.render import markdown
from bench.results.table import Board, Table
from bench.store.reports import CheckRecord
from optimizers import OPTIMIZERS
from optimizers.plugins import load_module, provenance

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "conformance"

PACKAGES = {
    "schedulefree": "schedulefree",
    "lion-pytorch": "lion_pytorch",
    "prodigyopt": "prodigyopt",
    "dadaptation": "dadaptation",
    "momo-opt": "momo",
    "momsps": "momsps",
    "sps-safe": "sps_safe",
    "parameterfree": "parameterfree",
    "adabelief-pytorch": "adabelief_pytorch",
    "adam-mini": "adam_mini",
    "muon-optimizer": "muon",
    "torch-optimi": "optimi",
    "torch-optimizer": "torch_optimizer",
    "pytorch-optimizer": "pytorch_optimizer",
    "heavyball": "heavyball",
}
"""Installed packages, and their modules whose optimizers are checked."""
WORDS = {"pass": "pass", "fail": "FAIL", "error": "ERROR", "not applicable": "n.a."}
LEGEND = (
    "FAIL: the property does not hold; ERROR: the optimizer raised an exception, ended its process, or did not finish;"
    " n.a.: not applicable, or not run since the optimizer does not build. Faults are failures that change results or"
    " block a set-up; `bench list checks` says which checks these are."
)
TESTED_BY = ("hypothesis", "pytest-timeout", "pytest-xdist")


def main() -> None:
    """Install, check, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv-conformance", metavar="FOLDER")
    parser.add_argument("--tests", action="store_true")
    args = parser.parse_args()
    python = args.environment.resolve() / "bin" / "python"
    if not python.exists():
        install(args.environment, python)
    if python.parent == Path(sys.executable).parent:  # this process has the packages
        names = [*OPTIMIZERS.built_in, *(n for module in ("torch.optim", *PACKAGES.values()) for n in public(module))]
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / "README.md").write_text(introduction() + markdown([board(names)]), "utf-8")
        return
    tests = ["pytest", "-m", "zoo", "tests/test_zoo.py"]
    here = ["tools.conformance", "--environment", str(args.environment)]
    words = [str(python), "-m", *(tests if args.tests else here)]
    sys.exit(subprocess.run(words, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode)


def public(module: str) -> list[str]:
    """Public optimizer classes of a module, each under its first name; those of torch only for torch's module."""
    names: dict[type, str] = {}
    for name, value in sorted(vars(load_module(module)).items(), key=lambda item: item[0].lower()):
        if name.startswith("_") or not isinstance(value, type) or not issubclass(value, Optimizer):
            continue
        if value is not Optimizer and value.__module__.startswith("torch.") <= module.startswith("torch."):
            names.setdefault(value, f"{module}:{name}")
    return list(names.values())


def board(names: Sequence[str], only: Sequence[str] | None = None) -> Board:
    """The matrix: optimizers with a column for each check, and all failures."""
    # A reference belongs to one optimizer.
    checks = [check for check in catalogue() if check != "reference" and (only is None or check in only)]

    def checked(name: str) -> CheckRecord:
        try:
            report = report_on(name, only=checks, limit=60)
        except UserError as error:  # it cannot be loaded, or lacks an argument
            answers = [{"verdict": "not applicable"} for _ in checks]
            answers[0] = {"verdict": "error", "note": str(error)}
            pairs = zip(checks, answers, strict=True)
            report = report_of(name, {}, [verdict_of(catalogue()[check], answer) for check, answer in pairs])
        print(f"{name}: {headline(report)}", file=sys.stderr, flush=True)
        return report

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        reports = list(pool.map(checked, names))
    matrix, failures = list[Any](), list[Any]()
    for report in sorted(reports, key=lambda report: (not is_built(report), len(report.serious), len(failed(report)))):
        is_built_in = report.name in OPTIMIZERS.built_in
        package = f"bench {version('attention-optimizer-bench')}" if is_built_in else report.package
        faults, less = len(report.serious), len(failed(report)) - len(report.serious)
        counts = (faults, less) if is_built(report) else ("not built", None)
        words = [WORDS[verdict["verdict"]] for verdict in report.verdicts]
        matrix.append([report.name, package or provenance(report.name), *counts, *words])
        failures += [(report.name, v["check"], without_folders(v["note"])) for v in failed(report)]
    tables = [
        Table.of(["optimizer", "package", "faults", "less", *checks], matrix, "Optimizers and checks"),
        Table.of(["optimizer", "check", "failure"], failures, "Failures"),
    ]
    title = f"Conformance of {len(reports)} optimizers, of which {sum(map(is_built, reports))} could be built"
    return Board("conformance", title, tables, [LEGEND])


def is_built(report: CheckRecord) -> bool:
    """Whether the optimizer could be loaded and built."""
    return report.target is not None and "builds" not in [verdict["check"] for verdict in failed(report)]


def without_folders(note: str) -> str:
    """A note whose paths have only their last folder."""
    return re.sub(r"(?:/[\w.+@-]+)+/([\w.+@-]+/[\w.+@-]+)", r"\1", note)


def install(folder: Path, python: Path) -> None:
    """Create the environment; the suite's own dependencies have the versions that `pyproject.toml` pins."""
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["uv"]["constraint-dependencies"]
    subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    words = ["uv", "pip", "install", "--quiet", "--python", str(python)]
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pins), "utf-8")
    subprocess.run([*words, "-c", str(constraints), "-e", str(ROOT), *TESTED_BY, *PACKAGES], cwd=ROOT, check=True)


def introduction() -> str:
    """The text above the matrix."""
    return f"""# Conformance of optimizers on the package index

Made by `make matrix` (`tools/conformance.py`) on {datetime.now(UTC):%-d %B %Y}: {os.cpu_count()} CPU cores, no GPU,
{platform.python_implementation()} {platform.python_version()}. Every optimizer was made with its default arguments \
and checked as it
is installed, on small problems, with one thread; steps that call `torch.compile` ran uncompiled. \
`bench check module:Class` repeats one and gives advice; \
`bench list checks` lists the checks and what they tolerate.

Included are all public optimizer classes of torch.optim, of {", ".join(list(PACKAGES)[:-1])} and {list(PACKAGES)[-1]},
in the versions given in the table, and this suite's own. \
Not included: packages that are not on the package index (the original
SPS and ALI-G are installed from their repositories), and behaviour beyond the defaults. \
Those that need further arguments, such as wrappers of other optimizers, are listed as not built.
\
All but `resume`, `bf16` and `grad_scaler` step in float64: optimizers that take only float32,
such as some of heavyball, fail them with that error.

"""


if __name__ == "__main__":
    main()
