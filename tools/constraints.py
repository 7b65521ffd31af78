"""Rewrite the list `[tool.uv] constraint-dependencies` of pyproject.toml: every dependency at its newest version.

The list pins what `uv sync` installs, as a lock file would, without naming the host that packages came from.
"""

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

LIST = re.compile(r"^constraint-dependencies = \[(?:\]|.*?^\])$", re.DOTALL | re.MULTILINE)
COMPILE = (
    "uv pip compile --quiet --universal --all-extras --group dev --group docs --no-header --no-annotate pyproject.toml"
)


def main() -> None:
    """Resolve a copy with an empty list, since uv obeys an existing one, and replace the list with the result."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "pyproject.toml")
    before = path.read_text("utf-8")
    if len(LIST.findall(before)) != 1:
        sys.exit(f"{path}: expected one list `constraint-dependencies = [` ... `]` (or `[]`) under [tool.uv]")
    with TemporaryDirectory() as folder:
        (Path(folder) / path.name).write_text(LIST.sub("constraint-dependencies = []", before), "utf-8")
        done = subprocess.run(COMPILE.split(), cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    pins = [without_build(line) for line in done.stdout.splitlines() if re.match(r"[a-zA-Z0-9]", line)]
    if not pins or any("://" in pin for pin in pins):
        sys.exit(f"uv's answer is no list of versions:\n{done.stdout}")
    listed = "".join(f'    "{pin}",\n' for pin in dict.fromkeys(pins))
    path.write_text(LIST.sub(lambda _: f"constraint-dependencies = [\n{listed}]", before), "utf-8")


def without_build(pin: str) -> str:
    """The pin without its local version: `torch==2.10.0` admits `2.10.0+cu128`, which only some hosts have."""
    return re.sub(r"(==[^\s;+]+)\+[\w.]+", r"\1", pin).replace('"', "'")


if __name__ == "__main__":
    main()
