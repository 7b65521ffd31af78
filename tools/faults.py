"""Count the seeded faults of `tests/faults.json` that the tests find: python -m tools.faults [--all].

Each fault is put into this checkout, which must be clean, the tests that may find it (with `--all`, all quick ones) run
until one fails, and the fault is taken out again. One whose text the code no longer has is left out.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path


def main() -> None:
    """Print each fault with the test that finds it, and how many of each area are found."""
    if subprocess.run(["git", "diff", "--quiet"]).returncode:
        sys.exit("commit your changes first")
    counts = Counter[str]()
    for fault in json.loads(Path("tests/faults.json").read_text("utf-8")):
        path, tests = Path(fault["file"]), [] if "--all" in sys.argv else [f"tests/{t}" for t in fault["tests"]]
        if not path.exists() or (text := path.read_text("utf-8")).count(fault["old"]) != 1:
            continue
        path.write_text(text.replace(fault["old"], fault["new"]), "utf-8")
        try:
            ran = subprocess.run([sys.executable, "-m", "pytest", "-qx", *tests], capture_output=True, text=True)
        finally:
            path.write_text(text, "utf-8")
        counts[f"{fault['area']}: {'found' if ran.returncode else 'missed'}"] += 1
        by = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR tests"))]
        print(f"{fault['area']}: {fault['what']}: {by[0] if by else 'missed'}", flush=True)
    print(*(f"{what} {count}" for what, count in sorted(counts.items())), sep="\n")


if __name__ == "__main__":
    main()
