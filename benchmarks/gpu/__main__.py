"""`make gpu`: the speed of all or the named parts on this machine's GPU, against plain PyTorch on the same card."""

import argparse
import time

import torch

from benchmarks.gpu.speed import SPEED
from benchmarks.timing import table


def main() -> None:
    """Print a table for each part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Speed on a GPU.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all by default: {', '.join(SPEED)}")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="small models and few steps, as a smoke test")
    words = parser.parse_args()
    for part in words.parts:
        if part not in SPEED:
            parser.error(f"there is no part {part!r}; there are {', '.join(SPEED)}")
    print(f"{torch.cuda.get_device_name() if words.device == 'cuda' else 'CPU'}, torch {torch.__version__}")
    for part in words.parts or SPEED:
        begun = time.monotonic()
        rows = SPEED[part](words.device, words.tiny)
        print(f"\n{part} ({time.monotonic() - begun:.0f} s)\n{table(rows)}", flush=True)


if __name__ == "__main__":
    main()
