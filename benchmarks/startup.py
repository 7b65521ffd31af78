"""How long `bench --help` takes: it must not import torch."""

import subprocess
import sys
from pathlib import Path

from benchmarks.timing import Row, Timed, alternate, timed


def measure(quick: bool) -> list[Row]:
    """Seconds of wall time in fresh processes."""
    script = Path(sys.executable).with_name("bench")
    pair = {"help": command(script, "--help")}
    measured = alternate(command(sys.executable, "-c", "pass"), pair, 3 if quick else 5)["help"]
    return [
        Row("bench --help", "-", measured.candidate, 0.5, unit=" s"),
        Row("bench --help", "python -c pass", measured.ratios),
        Row("python -c pass", "-", measured.baseline, unit=" s"),
    ]


def command(*words: str | Path) -> Timed:
    """A process that runs to its end, its output thrown away."""
    return timed(lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL))
