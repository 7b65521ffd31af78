"""Run the numeric tests with the rounding of other processors; part of make test-deep.

    python -m tools.rounding [--variant NAME ...] [words for pytest]

Rounding depends on the instructions that PyTorch, MKL and oneDNN choose by the processor, and on how many threads share
a sum. A variant changes these choices; failures are listed with their variant. The marker `numeric` selects the tests
whose results depend on rounding.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent


def threads(n: int) -> dict[str, str]:
    """Variables that give a process n threads: by default, MKL uses no more than there are processors.

    Threads that wait actively would take processor time from the other tests.
    """
    return {"OMP_NUM_THREADS": str(n), "MKL_DYNAMIC": "FALSE", "OMP_WAIT_POLICY": "passive"}


VARIANTS = {
    "default": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OMP_NUM_THREADS": "1",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        **threads(2),
    },
    "threads": threads(3),
    "native": {"OMP_NUM_THREADS": "1"},
}
"""Environment variables of each variant. The first is farthest from a new processor: no fused multiply-add."""
SELECTED = "numeric and not zoo and not minilm"


def failures(variant: str, words: list[str]) -> list[str]:
    """Run the tests with a variant, show pytest's output, and return its lines about failures."""
    names = {name for each in VARIANTS.values() for name in each}
    environment = {k: v for k, v in os.environ.items() if k not in names} | VARIANTS[variant]
    command = [sys.executable, "-m", "pytest", "-m", SELECTED, "-rfE", *words]
    found = []
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        for line in tests.stdout:
            print(line, end="", flush=True)
            if line.startswith(("FAILED ", "ERROR ")):
                found.append(line.rstrip())
    return found or ([f"pytest ended with {tests.returncode}"] if tests.returncode else [])


def main() -> None:
    """Run each variant; exit code 1 if any test has failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="one of them; may be given again")
    args, words = parser.parse_known_args()
    bad = []
    for variant in args.variant or VARIANTS:
        settings = " ".join(f"{name}={value}" for name, value in VARIANTS[variant].items())
        print(f"\n== {variant}: {settings}", flush=True)
        began = time.monotonic()
        found = failures(variant, words)
        print(f"== {variant}: {len(found)} failed, {time.monotonic() - began:.0f} s", flush=True)
        bad += [f"{variant}: {line}" for line in found]
    print("", *bad, sep="\n")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
