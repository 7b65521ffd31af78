"""Overhead of a study, start-up time of a worker, and speed-up by several workers."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.config.run_config import on_device
from bench.execute import Effort
from bench.execute.slots import Slot, slots
from bench.tuning.progress import TuningProgress
from bench.tuning.studies import Studies
from bench.tuning.trials import Request
from bench.tuning.tune import make_spec
from bench.tuning.workers import Workers
from benchmarks.startup import command
from benchmarks.timing import Row

TRIALS = 4


class Clock(TuningProgress):
    """Records the start of the first trial, the end of the last, and the seconds of the runs themselves."""

    def __init__(self) -> None:
        super().__init__("", "", enabled=False)
        self.asked = time.perf_counter()
        self.began = self.ended = self.trained = 0.0

    def event(self, worker: int, event: Mapping[str, Any]) -> None:
        """Record the time of an event."""
        if "trial" in event and not self.began:
            self.began = time.perf_counter()
        if "ended" in event:
            self.ended = time.perf_counter()
            self.trained += sum(run["wall_s"] for run in event["runs"])


def measure(quick: bool) -> list[Row]:
    """Studies of four trials of MNIST's ViT, run by worker processes."""
    data = Path(os.environ.get("BENCH_DATA", "data"))
    if not (data / "MNIST").is_dir():
        print(f"tuning: there is no MNIST in {data}; name its folder with BENCH_DATA")
        return []
    steps, rounds = (5, 1) if quick else (120, 3)
    clocks: dict[str, list[Clock]] = {"one": [], "two": [], "wide": []}
    imports = command(sys.executable, "-c", "import lightning.pytorch")
    seconds = []
    with TemporaryDirectory() as folder:
        for turn in range(rounds):
            for name, of in (("one", "1 of 2"), ("two", "2"), ("wide", "1")):
                seconds.append(imports())
                clocks[name].append(study(Path(folder) / f"{turn}{name}", data, steps, of))
    starts = [c.began - c.asked for c in (clock for three in zip(*clocks.values(), strict=True) for clock in three)]
    spans = {name: [clock.ended - clock.began for clock in of] for name, of in clocks.items()}
    share = [100 * (1 - clock.trained / span) for clock, span in zip(clocks["one"], spans["one"], strict=True)]
    each = sum(clock.trained for clock in clocks["one"]) / len(clocks["one"]) / TRIALS

    def gains(name: str) -> list[float]:
        return [slow / fast for slow, fast in zip(spans[name], spans["two"], strict=True)]

    return [
        Row(f"a study beside its training, trials of {each:.0f} s", "the whole time", share, 3, unit=" %"),
        Row("a worker until its first trial", "import lightning", ratios(starts, seconds), 2),
        Row("2 workers of one thread", "1 such worker", gains("one"), 1.7, at_least=True),
        Row("2 workers of one thread", "1 worker of two threads", gains("wide"), 1.3, at_least=True),
    ]


def ratios(candidate: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Ratios of adjacent timings."""
    return [c / b for c, b in zip(candidate, baseline, strict=True)]


def study(folder: Path, data: Path, steps: int, workers: str) -> Clock:
    """Run a new study with this number of workers; `1 of 2` is one worker with the processors of one of two."""
    places = {"data": data, "store": folder}
    words = {"task": "mnist", "opt": "sgd", "opt.lr": ",".join(f"0.0{i + 1}" for i in range(TRIALS)), "device": "cpu"}
    words |= {"trainer.max_steps": steps, "trainer.val_every": steps, "task.n_train": 20_000}
    spec = make_spec(words, sampler=None, seeds=[1000], report_seeds=[], places=places)
    made = Studies(folder).create(spec)
    made.ask(Request(trials=TRIALS, report=False))
    config = on_device(spec.config({"opt.lr": 0.01}, 1000, places))
    cut: list[Slot] = slots(workers.partition(" of ")[2] or workers, config)[: int(workers[0])]
    with Workers(cut, places, Effort("lightning")) as pool:
        clock = Clock()
        if not pool.work([made], clock):
            raise KeyboardInterrupt
    return clock
