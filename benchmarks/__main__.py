"""`make bench` and `make gpu`: run all or the named subjects, and print how they compare with their baselines."""

import argparse
import os
import time
from importlib import import_module

SUBJECTS = {
    "cifar10": "loops:cifar10",
    "lm": "loops:lm",
    "bert": "loops:bert",
    "synthetic": "loops:synthetic",
    "optimizers": "steps:optimizers",
    "lanes": "lanes:lanes",
    "widths": "lanes:widths",
    "sweep": "lanes:sweep",
    "study": "programs:study",
    "startup": "programs:startup",
    "store": "programs:store",
}
"""Where the cases of each subject are: functions of `quick` and the device."""
GPU = ("cifar10", "lm", "bert", "optimizers", "widths")
"""The subjects that a GPU changes."""


def main() -> None:
    """Print the cases as they end; the exit code is 0, since timings on a busy machine decide nothing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed against baselines, side by side.")
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"all by default: {', '.join(SUBJECTS)}")
    parser.add_argument("--quick", action="store_true", help="few and short rounds, as a smoke test")
    parser.add_argument("--threads", type=int, help="torch threads; torch's own choice by default")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help=f"cuda: of {', '.join(GPU)}")
    words = parser.parse_args()
    for name in words.subjects:
        if name not in SUBJECTS:
            parser.error(f"there is no subject {name!r}; there are {', '.join(SUBJECTS)}")

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler; torch reads this on import
    import torch

    from bench.train.runner import cpu_name

    if words.threads:
        torch.set_num_threads(words.threads)
    machine = torch.cuda.get_device_name() if words.device == "cuda" else cpu_name()
    print(f"{machine}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")
    print("median over rounds [spread]: the time over the baseline's, except speed-ups (>=)")
    for name in words.subjects or (GPU if words.device == "cuda" else SUBJECTS):
        module, _, function = SUBJECTS[name].partition(":")
        begun = time.monotonic()
        print(f"\n{name}")
        try:
            for case in getattr(import_module(f"benchmarks.{module}"), function)(words.quick, words.device):
                print(f"  {case}", flush=True)
        except FileNotFoundError as error:
            print(f"  left out: {error}")
        print(f"  ({time.monotonic() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
