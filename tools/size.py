"""Print the lines of Python by folder, with the ceilings of the design: make size.

    python -m tools.size [--check]

`[tool.size]` in `pyproject.toml` records the lines of the product and of the tests. `make size` lowers these figures
when the code has become shorter and never raises them. `--check` fails when the code is longer than recorded.
"""

import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
CEILINGS = {
    "bench/api, bench/cli, bench/config, bench/commands": 2800, "bench/execute": 1150, "bench/train": 1300,
    "bench/lanes": 1300, "bench/store": 1100, "bench/tuning": 900, "bench/results, bench/sweeps": 1300,
    "bench/boards": 1500, "bench/browse": 500, "bench/plots": 1100, "bench/papers": 1400, "bench/check": 2000,
    "tasks": 6900, "optimizers": 2500, "benchmarks": 1500, "tools": 1200, "tests": 22000,
}  # fmt: skip
"""The most lines that each folder, or the file of this name, should have."""
PRODUCT = ("bench", "tasks", "optimizers")


def lines_by_folder(root: Path) -> Counter[str]:
    """The lines of the Python files that git tracks, by folder; `bench` by the folders and files in it."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=True).stdout
    lines: Counter[str] = Counter()
    for name in listed.splitlines():
        if (root / name).is_file():  # not one that is deleted and not yet staged
            parts = name.removesuffix(".py").split("/")
            folder = "/".join(parts[:2]) if parts[0] == "bench" else parts[0]
            lines[folder] += (root / name).read_bytes().count(b"\n")
    return lines


def table(lines: Mapping[str, int]) -> str:
    """Folders with their lines and ceilings, those without a ceiling last."""
    rest = Counter(lines)
    rows = [(label, sum(rest.pop(name, 0) for name in label.split(", ")), str(n)) for label, n in CEILINGS.items()]
    rows += [(folder, n, "-") for folder, n in sorted(rest.items()) if n]
    return "\n".join(
        f"{label:<52} {n:>7} {ceiling:>8}" for label, n, ceiling in [("folder", "lines", "ceiling"), *rows]
    )


def main(words: list[str], root: Path = ROOT) -> str | None:
    """Print the table and lower the recorded figures; with `--check`, return what is wrong instead."""
    path = root / "pyproject.toml"
    text = path.read_text("utf-8")
    recorded = tomllib.loads(text)["tool"]["size"]
    lines = lines_by_folder(root)
    product = sum(n for folder, n in lines.items() if folder.partition("/")[0] in PRODUCT)
    totals = {"product": product, "tests": lines["tests"]}
    if words:
        grown = [
            f"{n:,} lines of {name}, {n - recorded[name]:,} more" for name, n in totals.items() if n > recorded[name]
        ]
        why = "than recorded ([tool.size] in pyproject.toml): shorten the code"
        return f"size: {'; '.join(grown)} {why}" if grown else None
    print(table(lines))
    for name, n in totals.items():
        print(f"{name}: {n:,} lines, {recorded[name]:,} recorded")
        text = re.sub(rf"(?m)^{name} = {recorded[name]}$", f"{name} = {min(n, recorded[name])}", text)
    path.write_text(text, "utf-8")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
