"""Lanes: vectorised runs, against the same runs one after the other."""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from bench.config.run_config import RunConfig, resolve
from bench.config.values import log_grid
from bench.execute.choice import Choices, single_step
from bench.execute.execute import execute
from bench.lanes.runs import Grid, make_lanes, train_block
from bench.progress import SweepProgress
from bench.store.store import Store
from bench.store.writer import BlockWriter
from bench.sweeps.grid import configurations
from bench.train.memory import keep_freed_memory
from bench.train.runner import run
from bench.train.stop import StopRequest
from benchmarks.timing import Row, Timed, alternate, timed
from optimizers import OPTIMIZERS

PROBLEM: dict[str, Any] = {
    "task": "synthetic",
    "task.n": 100,
    "task.T": 10,
    "task.d": 50,
    "precision": "32-true",
    "device": "cpu",
}
RATES = 16
WIDTHS = (1, 4, 16, 64, 256, 1024)


def measure(quick: bool) -> list[Row]:
    """Time of a run's step in lanes, in a bare loop and in `bench fit`; cost of storing; time by number of lanes."""
    keep_freed_memory()
    # The max-margin problems of an instance are solved before training, and would take longer than training here.
    with TemporaryDirectory() as folder, patch("tasks.theory.max_margin.MOST_CONSTRAINTS", 0):
        store = Path(folder)
        return [
            *against_loops(quick, store),
            *storing(quick, store),
            *by_width(quick),
            *deciding(quick, store),
            *whole_sweep(quick, store),
        ]


def against_loops(quick: bool, store: Path) -> list[Row]:
    """256 lanes as in `bench sweep`, with curves: training against a bare loop, whole runs against `bench fit`."""
    steps, long, rounds, seeds = (5, 5, 2, 1) if quick else (100, 1000, 5, 16)
    count = RATES * seeds
    rows = []
    for opt in ("ngd", "gd", "adam"):
        configs, what = grid(opt, RATES, seeds, steps, store), f"{count} lanes, {opt}, speed-up of a"
        loop = alternate(bare(configs[0][0], steps), {"lanes": as_lanes(configs)}, rounds)["lanes"]
        rows.append(Row(f"{what} step", "bare loop", [count * x for x in loop.speedups], 8, at_least=True))
        configs = grid(opt, RATES, seeds, long, store)
        fit = partial(run, configs[0][0].model_copy(update={"store": store / "fit"}), rerun=True, progress=False)
        whole = alternate(timed(fit), {"lanes": timed(as_lanes(configs))}, min(rounds, 3))["lanes"]
        ratios = [count * x for x in whole.speedups]
        rows.append(Row(f"{what} run of {long} steps", "bench fit", ratios, 10, at_least=True))
    # As for an optimizer without a pure update: each lane has its own instance.
    for opt in ("gd", "adam"):
        with patch.dict(OPTIMIZERS, {opt: replace(OPTIMIZERS[opt], update=None)}):
            configs = grid(opt, RATES, seeds, steps, store)
            loop = alternate(bare(configs[0][0], steps), {"lanes": as_lanes(configs)}, rounds)["lanes"]
        what = f"{count} lanes, {opt} without its pure update, speed-up of a step"
        rows.append(Row(what, "bare loop", [count * x for x in loop.speedups], 3, at_least=True))
    return rows


def storing(quick: bool, store: Path) -> list[Row]:
    """Share of storing in the total time of a block of lanes, which includes measurements and evaluations."""
    steps, rounds = (20, 1) if quick else (1000, 3)
    spent = 0.0

    def counted(method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal spent
            begun = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                spent += time.perf_counter() - begun

        return call

    names, shares = ("append_curve", "append_measurements", "end"), []
    with (
        patch.multiple(BlockWriter, **{name: counted(getattr(BlockWriter, name)) for name in names}),
        patch.object(Store, "begin", counted(Store.begin)),
    ):
        for _ in range(rounds):
            spent, begun = 0.0, time.perf_counter()
            as_lanes(grid("gd", RATES, 8, steps, store, defaults=True))()
            whole = time.perf_counter() - begun
            shares.append(100 * spent / whole)
    return [Row(f"128 lanes, {steps} steps: storing", "whole time", shares, 2, unit=" %")]


def by_width(quick: bool) -> list[Row]:
    """Time of a step of one lane by the number of lanes."""
    rounds, calls = (1, 1) if quick else (5, 20)
    rows = []
    for count in WIDTHS[: 3 if quick else None]:
        rates = min(count, RATES)
        lanes = make_lanes(grid("ngd", rates, count // rates, 10, Path()))
        step = timed(lanes.step, calls)
        step()
        times = [1e6 * step() / calls / count for _ in range(rounds)]
        rows.append(Row(f"{count} lanes: a step of one", "(time)", times, unit=" us"))
    return rows


def deciding(quick: bool, store: Path) -> list[Row]:
    """Time to choose the engine of a small sweep."""
    configs = [config for row in grid("ngd", 4, 1, 30, store, defaults=True) for config in row]
    decide = timed(lambda: Choices("auto", None, lambda line: None).of(configs))

    def at_length() -> float:
        with patch("bench.execute.choice._MEASURE_SHARE", math.inf):
            return decide()

    measured = alternate(at_length, {"deciding": decide}, 2 if quick else 5)["deciding"]
    return [Row("deciding on lanes for 4 runs of 30 steps", "measuring as for a large sweep", measured.ratios)]


def whole_sweep(quick: bool, store: Path) -> list[Row]:
    """A whole sweep of the size of a paper's figure: 4 optimizers, 16 learning rates, 32 seeds."""
    steps, seeds = (5, 1) if quick else (1000, 32)
    words = {"task": "synthetic", "opt": "ngd,ps,gd,adam", "opt.lr": "1e-3:1e1:16", "trainer.max_steps": steps}
    configs, _ = configurations(words, range(seeds), {"device": "cpu", "store": store / "sweep"})
    begun = time.perf_counter()
    execute(configs, quiet())
    return [
        Row(
            f"sweep of {len(configs)} runs, {steps} steps, default size",
            "(time)",
            [time.perf_counter() - begun],
            300,
            unit=" s",
        )
    ]


def grid(opt: str, rates: int, seeds: int, steps: int, store: Path, *, defaults: bool = False) -> Grid:
    """Configurations of a block, evaluated and measured only at the end, or as by default with `defaults`."""
    settings: Mapping[str, Any] = (
        {"task": "synthetic", "device": "cpu"}
        if defaults
        else {
            **PROBLEM,
            "trainer.val_every": steps,
            "trainer.measure_every": steps,
        }
    )
    lrs = log_grid(1e-3, 1e-1, rates) if rates > 1 else [1e-2]
    return [
        [
            resolve({**settings, "opt": opt, "opt.lr": lr, "seed": seed, "trainer.max_steps": steps, "store": store})
            for lr in lrs
        ]
        for seed in range(seeds)
    ]


def quiet() -> SweepProgress:
    """A progress bar that shows nothing."""
    return SweepProgress("", "min", enabled=False)


def as_lanes(configs: Grid) -> Timed:
    """Train and store a block; returns its seconds of training, summed over the lanes' shares."""

    def train() -> float:
        progress = quiet()
        with progress.showing(len(configs)):
            results = train_block(configs, StopRequest(), progress)
        assert results is not None
        assert max(result.steps for result in results) == configs[0][0].trainer.max_steps
        rmtree(configs[0][0].store)
        return sum(result.train_s for result in results)

    return train


def bare(config: RunConfig, steps: int) -> Timed:
    """Steps of one run in a plain PyTorch loop: module, loss, optimizer, and no record."""

    def train() -> float:
        step = single_step(config)
        begun = time.perf_counter()
        for _ in range(steps):
            step()
        return time.perf_counter() - begun

    return train
