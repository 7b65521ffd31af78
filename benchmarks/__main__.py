"""`make bench`: run all or the named subjects, and print how they compare with their baselines."""

import argparse
import os
import time
from importlib import import_module

SUBJECTS = (
    "training",
    "observing",
    "language",
    "lm",
    "compiled",
    "synthetic",
    "lanes",
    "heads",
    "attention",
    "max_margin",
    "optimizers",
    "input",
    "text",
    "startup",
    "tuning",
    "papers",
    "boards",
)


def main() -> None:
    """Print a table; the exit status is always 0, since timings on a busy machine decide nothing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed against baselines, side by side.")
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"all by default: {', '.join(SUBJECTS)}")
    parser.add_argument("--quick", action="store_true", help="few and short rounds, as a smoke test")
    parser.add_argument("--threads", type=int, help="torch threads; torch's own choice by default")
    words = parser.parse_args()
    for name in words.subjects:
        if name not in SUBJECTS:
            parser.error(f"there is no subject {name!r}; there are {', '.join(SUBJECTS)}")

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler; torch reads this on import
    import torch

    from bench.train.runner import cpu_name
    from benchmarks.timing import table

    if words.threads:
        torch.set_num_threads(words.threads)
    print(f"machine: {cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print("result: median over rounds; ratios are time over the baseline's time, except speed-ups (>=)")
    for name in words.subjects or SUBJECTS:
        begun = time.monotonic()
        rows = import_module(f"benchmarks.{name}").measure(words.quick)
        print(f"\n{name} ({time.monotonic() - begun:.0f} s)\n{table(rows)}", flush=True)


if __name__ == "__main__":
    main()
