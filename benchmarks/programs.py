"""Whole programs: studies and their workers, start-up, and stores of ten thousand runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from typing import Any

import bench
from bench.config.run_config import id_of
from bench.store.files import DONE, RUNS
from bench.store.stores import Contents, Stores
from benchmarks.timing import Case, Cases, Timed, data, folder, ratios, timed


def study(quick: bool, device: str) -> Cases:
    """Overhead of a study on MNIST, a worker's first trial, and speed-up by a second worker of one thread."""
    rates = [0.01 * k for k in range(1, 3 if quick else 7)]
    steps, rounds = (5, 1) if quick else (120, 3)
    settings = {"task.n_train": 20_000, "trainer.max_steps": steps, "trainer.val_every": steps}
    more: dict[str, Any] = {"data": data("MNIST"), "device": "cpu", "engine": "lightning", "progress": False}
    with folder() as root:
        shares = []
        for k in range(rounds):
            tune = timed(
                lambda k=k: bench.tune(
                    "mnist", "sgd", lr=rates, trials=len(rates), seeds=1, report_seeds=1, out=root / "tuned",
                    store=root / f"study-{k}", workers=1, settings=settings, **more,
                )
            )  # fmt: skip
            whole = tune()
            shares.append(100 * (1 - sum(run.wall_s for run in Contents([root / f"study-{k}"]).runs) / whole))
        yield Case(f"a study of {len(rates)} trials, beside its training", "the whole time", shares, 3, unit=" %")

        def swept(workers: int, task: str = "mnist", changes: Any = settings) -> Timed:
            def train() -> float:
                rmtree(root / "runs", ignore_errors=True)
                kinds: dict[str, Any] = {"store": root / "runs", "workers": workers, "settings": changes, **more}
                return timed(
                    lambda: bench.sweep(task, "sgd" if task == "mnist" else "gd", lr=rates, seeds=1, **kinds)
                )()

            return train

        gains = [1 / ratio for ratio in ratios(swept(2), swept(1), rounds)]
        yield Case("2 workers, with their start", "1 worker", gains, 1.9, at_least=True)
        first = ratios(swept(2, "synthetic", {"trainer.max_steps": 2}), command(sys.executable, "-c", IMPORT), rounds)
        yield Case("2 workers, to the end of tiny trials", "import lightning", first, 2)


IMPORT = "import lightning.pytorch"


def command(*words: str | Path, code: int = 0) -> Timed:
    """A process on one thread, its output discarded; it must end with this exit code."""

    def once() -> None:
        ended = subprocess.run(words, check=False, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert ended.returncode == code, ended.stderr.decode()

    return timed(once)


def startup(quick: bool, device: str) -> Cases:
    """Help and usage errors import no torch, `bench fit` little beyond Lightning."""
    rounds, script = 3 if quick else 5, Path(sys.executable).with_name("bench")
    for what, bound, words, code in (("--help", 0.3, ["--help"], 0), ("usage error", 0.5, ["fit", "--optt", "a"], 2)):
        once = command(script, *words, code=code)
        yield Case(f"bench, {what}", "", [once() for _ in range(rounds)], bound, unit=" s")
    with folder() as store:
        words = ["fit", "--task", "synthetic", "--opt", "adam", "--trainer.max_steps", "100", "--rerun"]
        fit = ratios(command(script, *words, "--store", store), command(sys.executable, "-c", IMPORT), rounds)
        yield Case("bench fit, 100 steps of synthetic", "import lightning", fit)


def store(quick: bool, device: str) -> Cases:
    """A store of ten thousand runs, each in its own folder: to open and to list."""
    rounds, count = (1, 100) if quick else (3, 10_000)
    with folder() as root:
        files = Path("results/reference/runs").glob(f"*/{DONE}/{RUNS}")
        lines = [line for path in files for line in path.read_text("utf-8").splitlines()]
        for k in range(count):
            run = json.loads(lines[k % len(lines)])
            run["config"]["seed"] = run["identity"]["seed"] = 10_000 + k
            run["run_id"] = id_of(run["config"]["task"], run["config"]["opt"], run["identity"])
            (root / run["run_id"] / DONE).mkdir(parents=True)
            (root / run["run_id"] / DONE / RUNS).write_text(json.dumps(run) + "\n", "utf-8")
        opened = timed(lambda: len(Stores([root]).runs) == count or sys.exit("runs are missing"))
        yield Case(f"opening {count:,} runs", "", [opened() for _ in range(rounds)], 1, unit=" s")
        script = Path(sys.executable).with_name("bench")
        once = command(script, "list", "runs", "--store", root)
        yield Case(f"bench list runs, {count:,} runs", "", [once() for _ in range(rounds)], 2, unit=" s")
