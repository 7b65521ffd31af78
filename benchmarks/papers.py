"""Papers' experiments with their own seeds and steps: one run after the other, as lanes, and with two workers."""

import gc
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench.execute import Effort, Engine
from bench.execute.blocks import missing
from bench.execute.execute import execute
from bench.papers.experiments import load
from bench.papers.reproduce import jobs
from bench.train.threads import set_threads
from benchmarks.lanes import quiet
from benchmarks.timing import Row

NAMES = ("deora2024/fig5", "vasudeva2025/fixed-decoder", "vasudeva2025/joint")


def measure(quick: bool) -> list[Row]:
    """Seconds of all runs of an experiment, each time in a new store, with one thread per process."""
    rows = []
    before = torch.get_num_threads()
    set_threads(1)
    for name in NAMES:
        # The first run of a process imports much; a small experiment first excludes that from the time.
        _seconds(name, "auto", "1", quick=True)
        gc.freeze()  # as `bench` does
        lanes, alone = _seconds(name, "auto", "1", quick=quick), _seconds(name, "lightning", "1", quick=quick)
        two = _seconds(name, "auto", "2", quick=quick)
        rows += [
            Row(f"{name}, speed-up of one worker", "one after the other", [alone / lanes], 4, at_least=True),
            Row(f"{name}, speed-up of two workers", "one worker", [lanes / two], 1.7, at_least=True),
            Row(f"{name}, one worker", "(time)", [lanes], unit=" s"),
        ]
    set_threads(before)
    return rows


def _seconds(name: str, engine: Engine, workers: str, *, quick: bool) -> float:
    """Seconds until all runs of an experiment are stored, including start-up and measurements of the workers."""
    experiment = load(name).small() if quick else load(name)
    with TemporaryDirectory() as folder:
        configs = [config for _, config in jobs(experiment, {"device": "cpu", "store": Path(folder)})]
        begun = time.perf_counter()
        assert execute(configs, quiet(), Effort(engine, workers=workers), plan="benchmark")
        seconds = time.perf_counter() - begun
        assert missing(configs) == {}
    print(f"{name}, {engine}, {workers} workers: {seconds:.1f} s", flush=True)
    return seconds
