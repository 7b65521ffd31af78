"""Start-up time: help and usage errors import no torch, `bench fit` little beyond Lightning."""

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
    quickly = {
        "--help": command(script, "--help"),
        "usage error": command(script, "fit", "--optt", "adam", code=2),
    }
    light = alternate(command(sys.executable, "-c", "pass"), quickly, rounds)
    helped = light["--help"]
    with TemporaryDirectory() as store:
        fit = {"fit": command(script, *FIT, store)}
        slow = command(sys.executable, "-c", "from bench.cli import main; main()", *FIT, store)
        after_imports = alternate(command(sys.executable, "-c", "import lightning.pytorch"), fit, rounds)["fit"]
        after_slow = alternate(slow, fit, rounds)["fit"]
    return [
        Row("bench --help", "-", helped.candidate, 0.3, unit=" s"),
        Row("bench, usage error", "-", light["usage error"].candidate, 0.5, unit=" s"),
        Row("bench --help", "python -c pass", helped.ratios),
        Row("python -c pass", "-", helped.baseline, unit=" s"),
        Row("bench fit, 100 steps of synthetic", "python -c 'import lightning.pytorch'", after_imports.ratios),
        Row("bench fit, 100 steps of synthetic", "without bench/process.py", after_slow.ratios),
    ]


def command(*words: str | Path, code: int = 0) -> Timed:
    """A process on one thread, its output discarded; it must end with this exit code."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def once() -> None:
        ended = subprocess.run(
            words, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
        )
        assert ended.returncode == code, words

    return timed(once)
