"""Overhead of a study, and speed-up by a second worker."""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.execute import Effort
from bench.execute.cluster import Crew
from bench.tuning.spec import make_spec
from bench.tuning.study import Study
from bench.tuning.training import carry_out
from benchmarks.timing import Row

TRIALS = 6


def measure(quick: bool) -> list[Row]:
    """Studies of MNIST's ViT, trained one run at a time by one and by two workers of one thread each."""
    data = Path(os.environ.get("BENCH_DATA", "data"))
    if not (data / "MNIST").is_dir():
        print(f"tuning: there is no MNIST in {data}; name its folder with BENCH_DATA")
        return []
    steps, rounds = (5, 1) if quick else (120, 3)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    share, trial = [], 0.0
    with TemporaryDirectory() as folder:
        for turn in range(rounds):
            for workers, times in seconds.items():
                spent, trained = study(Path(folder, f"{turn}-{workers}"), data, steps, workers)
                times.append(spent)
                if workers == 1:
                    share.append(100 * (1 - trained / spent))
                    trial = trained / TRIALS
    gains = [one / two for one, two in zip(seconds[1], seconds[2], strict=True)]
    return [
        Row(f"a study beside its training, trials of {trial:.0f} s", "the whole time", share, 3, unit=" %"),
        Row("2 workers, with their start", "1 worker", gains, 1.7, at_least=True),
    ]


def study(folder: Path, data: Path, steps: int, workers: int) -> tuple[float, float]:
    """Carry out a new study; its seconds, and those of its runs themselves."""
    places = {"data": data, "store": folder}
    rates = ",".join(f"0.0{i + 1}" for i in range(TRIALS))
    words = {"task": "mnist", "opt": "sgd", "opt.lr": rates, "device": "cpu", "task.n_train": 20_000}
    words |= {"trainer.max_steps": steps, "trainer.val_every": steps}
    spec = make_spec(words, sampler=None, seeds=[1000], report_seeds=[], places=places)
    tuned = Study(spec, TRIALS, places, report=False)
    crew = Crew(Effort(workers=str(workers)), spec.typical(places))
    begun = time.perf_counter()
    with crew:
        carry_out([tuned], crew, Effort("lightning"), progress=False)
    return time.perf_counter() - begun, sum(run.wall_s for run in tuned.result().runs)
