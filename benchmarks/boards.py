"""`bench list runs`, boards and the report on ten thousand runs: seconds, peak memory, size of the page."""

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from bench.config.run_config import id_of, resolve
from bench.config.settings import described
from bench.store.block import DONE, RUNS
from bench.store.record import RunResult
from bench.store.reports import StudyRecord, study_path
from bench.store.tables import write_columns
from bench.text import plain
from benchmarks.timing import Row
from optimizers import OPTIMIZERS
from tasks import TASKS

PROBLEMS = ("mnist", "cifar10", "synthetic", "mha_dm1")
POINTS, DIFFERENT = 500, 16
"""Rows of a curve; number of different curves, which the runs share."""
FRESH = 12
"""Runs of a winner on fresh seeds."""


class Cost(NamedTuple):
    """Time and peak memory of a process."""

    seconds: float
    gigabytes: float


def measure(quick: bool) -> list[Row]:
    """The list, two boards and the report, of a store of mostly trials and of one whose runs are all shown."""
    seeds = 15 if quick else 208
    rounds, rows = 1 if quick else 3, []
    for name, trials in (("studies", (seeds - FRESH) // 5), ("no studies", 0)):
        with TemporaryDirectory() as folder:
            store, page = Path(folder) / "runs", Path(folder) / "report.html"
            what = f"of {fill(store, trials, FRESH if trials else seeds)} runs, {name}"
            commands = {
                "list runs": (2, ["list", "runs"]),
                "leaderboard": (3, ["leaderboard", "-o", f"{folder}/board.md"]),
                "leaderboard --board theory": (3, ["leaderboard", "--board", "theory", "-o", f"{folder}/board.md"]),
                "report": (10, ["report", "-o", str(page)]),
            }
            for title, (seconds, words) in commands.items():
                costs = [command(*words, "--store", str(store)) for _ in range(rounds)]
                rows.append(Row(f"{title} {what}", "-", [cost.seconds for cost in costs], seconds, unit=" s"))
                rows.append(Row("its memory", "-", [cost.gigabytes for cost in costs], 1, unit=" GB"))
            rows.append(Row("its page", "-", [page.stat().st_size / 1e6], 5, unit=" MB"))
    return rows


def command(*words: str) -> Cost:
    """Run a command in a process that prints its own peak memory: the kernel's figure for a child includes ours."""
    code = "import sys; from bench.cli import dispatch; dispatch(sys.argv[1:]); print(open('/proc/self/status').read())"
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True, text=True)
    peak = next(line for line in done.stdout.splitlines() if line.startswith("VmHWM"))
    return Cost(time.perf_counter() - begun, int(peak.split()[1]) * 1024 / 1e9)


def fill(store: Path, trials: int, fresh: int) -> int:
    """Write a store of runs with random results; returns their number.

    Each optimizer has `trials` trials with five seeds on each problem (0: no study), and `fresh` further runs.
    """
    draw, count = np.random.default_rng(0), 0
    curves = [[columns(draw, name) for _ in range(DIFFERENT)] for name in ("curve", "measurements")]
    for task in PROBLEMS:
        for opt in OPTIMIZERS:
            axis = "lr" if "lr" in OPTIMIZERS[opt].search else next(iter(OPTIMIZERS[opt].search))
            # Computed once: the runs differ only in one setting and the seed.
            base = described(resolve({"task": task, "opt": opt, "trainer.max_steps": POINTS, "device": "cpu"}))
            usual = base["config"]["opt_options"][axis]
            points = [{f"opt.{axis}": float(10 ** (-4 + 4 * k / max(1, trials - 1)))} for k in range(trials)]
            made: list[Any] = []
            for k, point in enumerate(points):
                score = float(0.1 + abs(k - trials / 2) / trials + 0.01 * draw.random())
                ids = []
                for seed in range(1000, 1005):
                    ids.append(write_run(store, base, axis, point[f"opt.{axis}"], seed, draw, curves, count))
                    count += 1
                made.append({"point": point, "kind": "design", "state": "completed", "score": score, "runs": ids})
            best = min(made, key=lambda trial: trial["score"], default=None)
            value = best["point"][f"opt.{axis}"] if best else usual
            for seed in range(fresh):
                write_run(store, base, axis, value, seed, draw, curves, count)
                count += 1
            if best is not None:
                about = (f"{task}-{opt}", task, opt, list(range(1000, 1005)), [f"opt.{axis}"], TASKS[task].mode, "grid")
                record = StudyRecord(*about, made, best["runs"][0], False, metric=TASKS[task].metric)
                path = study_path(store, record.name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(asdict(record)), "utf-8")
    return count


def columns(draw: np.random.Generator, name: str) -> dict[str, Any]:
    """A table of random values, which many runs share."""
    steps = np.arange(1, POINTS + 1) if name == "curve" else np.arange(0, POINTS + 1, 20)
    names = ("loss", "grad_norm", "raw_step", "applied_step") if name == "curve" else ("alignment", "distance")
    return {"step": steps, **{n: draw.random(len(steps)) / np.sqrt(steps + 1) for n in names}}


def write_run(
    store: Path,
    base: dict[str, Any],
    axis: str,
    value: float,
    seed: int,
    draw: np.random.Generator,
    curves: Any,
    i: int,
) -> str:
    """Write a run with random results; returns its id."""
    own, final = base["config"], float(draw.random())
    spec, opt = TASKS[own["task"]], OPTIMIZERS[own["opt"]]
    options = own["opt_options"] | {axis: value}
    changed = {"opt_options": options, "seed": seed, "data_seed": seed}
    identity = base["identity"] | changed
    chosen = base["chosen"] | ({f"opt.{axis}": value} if value != own["opt_options"][axis] else {})
    run_id = id_of(own["task"], own["opt"], identity)
    result = RunResult(
        **(base | {"run_id": run_id, "config": own | changed, "identity": identity, "chosen": chosen}),
        status="completed",
        versions={"task": spec.version, "opt": opt.version, "torch": "2", "lightning": "2"},
        split="test",
        final=final,
        best=final,
        best_step=POINTS,
        metrics={"final": {spec.metric: final}},
        validations=[
            {"step": step, "train_s": step / 50, spec.metric: float(draw.random())}
            for step in range(25, POINTS + 1, 25)
        ],
        steps=POINTS,
        steps_to_target=int(draw.integers(1, POINTS)),
        seconds_to_target=5.0,
        wall_s=12.0,
        train_s=10.0,
        cap_share=0.25 if opt.traits.needs_loss else 0.0,
        environment={"cpu": "made up", "threads": 1, "gpu": None},
    )
    done = store / run_id / DONE
    done.mkdir(parents=True)
    (done / RUNS).write_text(json.dumps(plain(vars(result))) + "\n", "utf-8")
    for name, own in zip(("curve", "measurements"), curves, strict=True):
        if name == "curve" or spec.measure_every is not None:
            write_columns(done / f"{name}.parquet", {run_id: own[i % DIFFERENT]})
    return run_id


if __name__ == "__main__":
    print(fill(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
