"""Run the numeric tests with the rounding of other processors; part of make test-deep.

    python -m tools.rounding [words for pytest]

Rounding depends on the instructions that PyTorch, MKL and oneDNN choose by the processor, and on how many threads share
a sum. A variant changes these choices. The marker `numeric` selects the tests whose results depend on rounding.
"""

import os
import subprocess
import sys

# By default, MKL uses no more threads than there are processors; threads that wait actively slow down the other tests.
SEVERAL = {"MKL_DYNAMIC": "FALSE", "OMP_WAIT_POLICY": "passive"}
VARIANTS = {
    "default": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    | SEVERAL
    | {"OMP_NUM_THREADS": "2"},
    "threads": SEVERAL | {"OMP_NUM_THREADS": "3"},
    "native": {},
}
"""Environment variables of each variant. The first is farthest from a new processor: no fused multiply-add."""


def main() -> None:
    """Run each variant; exit code 1 if any test has failed."""
    failed = []
    for name, variables in VARIANTS.items():
        print(f"\n== {name}: {variables}", flush=True)
        words = [sys.executable, "-m", "pytest", "-m", "numeric and not zoo and not minilm", "-rfE", *sys.argv[1:]]
        if subprocess.run(words, env=os.environ | {"OMP_NUM_THREADS": "1"} | variables).returncode:
            failed.append(name)
    sys.exit(f"tests failed with the rounding of {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
