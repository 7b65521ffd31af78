"""Time to start and to end: `bench --help` must not import torch, `bench fit` little more than Lightning."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.timing import Row, Timed, alternate, timed

FIT = ("fit", "--task", "synthetic", "--opt", "adam", "--trainer.max_steps", "100", "--rerun", "--store")


def measure(quick: bool) -> list[Row]:
    """Seconds of wall time in fresh processes."""
    rounds = 3 if quick else 5
    script = Path(sys.executable).with_name("bench")
    pair = {"help": command(script, "--help")}
    helped = alternate(command(sys.executable, "-c", "pass"), pair, rounds)["help"]
    with TemporaryDirectory() as store:
        fit = {"fit": command(script, *FIT, store)}
        slow = command(sys.executable, "-c", "from bench.cli import main; main()", *FIT, store)
        after_imports = alternate(command(sys.executable, "-c", "import lightning.pytorch"), fit, rounds)["fit"]
        after_slow = alternate(slow, fit, rounds)["fit"]
    return [
        Row("bench --help", "-", helped.candidate, 0.5, unit=" s"),
        Row("bench --help", "python -c pass", helped.ratios),
        Row("python -c pass", "-", helped.baseline, unit=" s"),
        Row("bench fit, 100 steps of synthetic", "python -c 'import lightning.pytorch'", after_imports.ratios),
        Row("bench fit, 100 steps of synthetic", "without bench/process.py", after_slow.ratios),
    ]


def command(*words: str | Path) -> Timed:
    """A process that runs to its end on one thread, its output thrown away."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return timed(
        lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    )
