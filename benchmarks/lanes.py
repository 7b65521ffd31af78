"""Lanes: vectorised runs, against the same runs one after the other."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any
from unittest.mock import patch

import bench
from bench.config.run_config import resolve
from bench.config.values import log_grid
from bench.execute.choice import single_step
from bench.lanes.runs import make_lanes
from bench.store.writer import BlockWriter
from bench.train.memory import keep_freed_memory, ran_out
from benchmarks.timing import Case, Cases, Timed, data, folder, ratios, timed
from optimizers import OPTIMIZERS

SMALL: dict[str, Any] = {"task.n": 100, "task.T": 10, "task.d": 50, "precision": "32-true"}
RATES = 16
MOST = {"cpu": {"synthetic": 1024}, "cuda": {"synthetic": 16_384, "mnist": 256, "cifar10": 256, "lm": 64}}
"""Most lanes by device and task; the widths are powers of 4 up to it."""
SPEED_UPS = {("synthetic", 16_384): 1000, ("mnist", 64): 30, ("cifar10", 64): 30, ("lm", 64): 15}
"""Required speed-up of a step of one lane on a GPU, by task and number of lanes."""


@contextmanager
def place() -> Iterator[Path]:
    """A store. Max-margin problems are not solved: that takes longer than training here."""
    keep_freed_memory()
    with folder() as root, patch("tasks.theory.max_margin.MOST_CONSTRAINTS", 0):
        yield root / "runs"


def lanes(quick: bool, device: str) -> Cases:
    """256 lanes as in `bench sweep`: training against a bare loop, whole runs against `bench fit`; storing."""
    steps, rounds, seeds = (20, 2, 1) if quick else (1000, 3, 16)
    count = RATES * seeds
    settings = SMALL | {"trainer.max_steps": steps, "trainer.val_every": steps, "trainer.measure_every": steps}
    with place() as store:
        for opt, is_pure in (("ngd", True), ("gd", True), ("adam", True), ("gd", False), ("adam", False)):
            with patch.dict(OPTIMIZERS.built_in, {} if is_pure else {opt: replace(OPTIMIZERS[opt], update=None)}):
                train = swept(opt, seeds, settings, store, lambda runs: sum(run.result.train_s for run in runs))
                bare = timed(
                    single_step(resolve({"task": "synthetic", "opt": opt, "device": "cpu", **settings})), steps
                )
                gains = [count / ratio for ratio in ratios(train, bare, rounds)]
            what = f"{opt}{', without its pure update' * (not is_pure)}, a step of one of {count} lanes"
            yield Case(what, "a bare loop", gains, 8 if is_pure else 3, at_least=True)
            if is_pure:
                more: dict[str, Any] = {"store": store.with_name("fit"), "settings": settings, "progress": False}
                fit = timed(lambda opt=opt, more=more: bench.fit("synthetic", opt, lr=0.01, rerun=True, **more))
                gains = [count / ratio for ratio in ratios(swept(opt, seeds, settings, store), fit, rounds)]
                yield Case(f"{opt}, a run as one of {count} lanes", "bench fit", gains, 10, at_least=True)
        shares = [storing(1 if quick else 8, steps, store) for _ in range(rounds)]
        yield Case(
            f"storing {RATES} rates and {1 if quick else 8} seeds, {steps} steps",
            "the whole time",
            shares,
            2,
            unit=" %",
        )


def swept(
    opt: str, seeds: int, settings: dict[str, Any], store: Path, seconds: Callable[[Any], float] | None = None
) -> Timed:
    """A new sweep as one block; its seconds, or others from its runs."""

    def train() -> float:
        rmtree(store, ignore_errors=True)
        rates = log_grid(1e-3, 1e-1, RATES)
        more: dict[str, Any] = {"settings": settings, "store": store, "progress": False}
        begun = time.perf_counter()
        result = bench.sweep(
            "synthetic", opt, lr=rates, seeds=seeds, engine="lanes", width=RATES * seeds, device="cpu", **more
        )
        return seconds(result.runs) if seconds else time.perf_counter() - begun

    return train


def storing(seeds: int, steps: int, store: Path) -> float:
    """Share of storing in the time of a sweep of 16 rates at the default settings, in percent."""
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

    with ExitStack() as stack:
        for name in ("__init__", "append_curve", "append_measurements", "end"):
            stack.enter_context(patch.object(BlockWriter, name, counted(getattr(BlockWriter, name))))
        whole = swept("gd", seeds, {"trainer.max_steps": steps}, store)()
    return 100 * spent / whole


def widths(quick: bool, device: str) -> Cases:
    """Speed-up of a step of one lane over a bare loop, by task and number of lanes."""
    for task, most in MOST[device].items():
        shared: dict[str, Any] = {"task": task, "opt": "ngd" if task == "synthetic" else "adamw", "device": device}
        shared |= {"trainer.max_steps": 1000, "precision": "32-true", "trainer.checkpoint_seconds": 1e9}
        shared |= {"data": data("tiny_shakespeare" if task == "lm" else "")} | (SMALL if task == "synthetic" else {})
        with place():
            alone = timed(single_step(resolve(shared)), 20)
            for width in (4**k for k in range(2 if quick else 8) if 4**k <= most):
                rates = min(width, RATES)
                values = log_grid(1e-4, 1e-3, rates) if rates > 1 else [3e-4]
                block = [[resolve(shared | {"opt.lr": lr, "seed": s}) for lr in values] for s in range(width // rates)]
                try:
                    step = make_lanes(block).step
                    timed(step, 4)()  # may record the step, which later steps replay
                    gains = [width / ratio for ratio in ratios(timed(step, 20), alone, 1 if quick else 3)]
                except RuntimeError as error:
                    if not ran_out(error):
                        raise
                    break  # wider blocks do not fit either
                bound = SPEED_UPS.get((task, width)) if device == "cuda" else None
                yield Case(f"{task}, a step of one of {width} lanes", "a bare loop", gains, bound, at_least=True)


def sweep(quick: bool, device: str) -> Cases:
    """A whole sweep of the size of a paper's figure: 4 optimizers, 16 learning rates, 32 seeds."""
    steps, seeds = (5, 1) if quick else (1000, 32)
    with place() as store:
        more: dict[str, Any] = {"settings": {"trainer.max_steps": steps}, "store": store, "progress": False}
        opts = ["ngd", "ps", "gd", "adam"]
        train = timed(lambda: bench.sweep("synthetic", opts, lr="1e-3:1e1:16", seeds=seeds, device="cpu", **more))
        yield Case(f"a sweep of {64 * seeds} runs of {steps} steps", "", [train()], 300, unit=" s")
