"""Check the optimizers of the package index: write `results/conformance`.

    python -m tools.conformance [--environment FOLDER] [--tests]

Creates a separate environment with this suite and the packages (`uv`, network), and runs `bench check --matrix` there;
with `--tests`, it runs the tests that need these packages instead.
"""

import argparse
import os
import platform
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

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
TESTED_BY = ("hypothesis",)


def main() -> None:
    """Install, check, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv-conformance", metavar="FOLDER")
    parser.add_argument("--tests", action="store_true")
    args = parser.parse_args()
    python = args.environment.resolve() / "bin" / "python"
    if not python.exists():
        install(args.environment, python)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if args.tests:
        words = [str(python), "-m", "pytest", "-m", "zoo", "tests/test_zoo.py"]
        sys.exit(subprocess.run(words, cwd=ROOT, env=environment).returncode)
    OUT.mkdir(parents=True, exist_ok=True)
    from optimizers import OPTIMIZERS

    asked = ",".join([*OPTIMIZERS.own, "torch.optim", *(f"{module}:" for module in PACKAGES.values())])
    table, page = OUT / "matrix.md", OUT / "matrix.html"
    words = [str(python), "-m", "bench", "check", "--matrix", asked, "--limit", "60", "-o", str(page), "-o", str(table)]
    if code := subprocess.run(words, cwd=ROOT, env=environment).returncode:
        sys.exit(code)
    (OUT / "README.md").write_text(introduction() + table.read_text("utf-8"), "utf-8")
    table.unlink()


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
[The same as a page](matrix.html) has the message of each
failure behind its cell. `bench check module:Class` repeats one and gives advice; \
`bench list checks` lists the checks and what they tolerate.

Included are all public optimizer classes of torch.optim, of {", ".join(list(PACKAGES)[:-1])} and {list(PACKAGES)[-1]},
in the versions given in the table, and this suite's own. \
Not included: packages that are not on the package index (the original
SPS and ALI-G are installed from their repositories), and behaviour beyond the defaults. \
Those that need further arguments, such as wrappers of other optimizers, are listed as not built.
\
All but `resume`, `bf16`, `grad_scaler` and `temporaries` step in float64: optimizers that take only float32,
such as some of heavyball, fail them with that error.

"""


if __name__ == "__main__":
    main()
