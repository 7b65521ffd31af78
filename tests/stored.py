"""Runs, packs and studies of a few steps, written into a store as a training would."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.config import resolve
from bench.settings import described
from bench.store.record import RunResult
from bench.store.reports import study_path
from bench.store.store import RunFolder, Store

LOSSES = (0.5, None, 0.25)
WILD = "<script>alert(1)</script> [/bold] \"q\" 'a' | ü 漢 \x1b[31m"
"""A name that means harm to a terminal, a page, a table and a query."""


@cache
def _described(lr: float) -> str:
    words = {"task": "synthetic", "opt": "ngd", "opt.lr": lr, "trainer.max_steps": 3}
    return json.dumps(described(resolve({**words, "seed": 1, "data_seed": 2, "precision": "64-true", "device": "cpu"})))


def record(run_id: str, *, lr: float = 0.1, task: str = "synthetic", **changes: Any) -> RunResult:
    """A run of any name; what its hash would be made of is not known."""
    own = json.loads(_described(lr)) | {"run_id": run_id, "identity": {}}
    own["config"]["task"], own["config"]["opt_options"]["max_step"] = task, float("inf")
    values: dict[str, Any] = {
        "status": "completed", "versions": {"torch": "2.15.0", "suite": "0.1.0"}, "split": "train",
        "final": 0.25, "best": 0.25, "best_step": 3, "steps": 3, "metrics": {"final": {"loss": 0.25}},
        "environment": {"cpu": "abacus", "threads": 1, "gpu": None},
    }  # fmt: skip
    return RunResult(**(own | values | changes))


def begin(store: Path, result: RunResult, losses: Any = LOSSES) -> RunFolder:
    """A run that is being trained: a row of its curve for each loss, and a measurement."""
    folder = Store(store).begin(result)
    folder.append_curve([(step, loss, 1.0, 0.1, 0.1) for step, loss in enumerate(losses, 1)])
    folder.append_measurements(["error"], [(0, 0.75), (2, float("nan"))])
    return folder


def kill(folder: RunFolder) -> None:
    """What is left of a run when its process ends without a word."""
    for table in (folder._curve, folder._measurements):
        table._file.close()
    os.close(folder._lock)


def add_run(store: Path, run_id: str, losses: Any = LOSSES, **changes: Any) -> Path:
    result = record(run_id, **changes)
    begin(store, result, losses).end(keep_checkpoint=False)
    return store / run_id


def begin_pack(store: Path, run_ids: str, loss: float = 0.5, **changes: Any) -> Any:
    """A pack that is being trained, with as many runs as there are letters, and their records."""
    results = [record(run_id, engine="lanes", **changes) for run_id in run_ids]
    pack = Store(store).begin_pack({result.run_id: result.config for result in results})
    pack.append_curve(np.full((3, len(run_ids), 4), loss))
    pack.append_measurements(["angle"], [0], np.full((1, len(run_ids), 1), loss))
    return pack, results


def add_pack(store: Path, run_ids: str, loss: float = 0.5, **changes: Any) -> Path:
    pack, results = begin_pack(store, run_ids, loss, **changes)
    pack.end(results)
    return pack.folder


def add_study(store: Path, name: str, trials: int = 2, **changes: Any) -> Path:
    """A study whose trials have the runs a, b, ...; the second has won."""
    own = [
        {
            "point": {"lr": 0.1 * (i + 1)},
            "kind": "design",
            "state": "done",
            "score": 0.5 / (i + 1),
            "runs": ["abcdef"[i]],
        }
        for i in range(trials)
    ]
    content = {
        "name": name, "task": "synthetic", "opt": "ngd", "seeds": [1], "axes": ["opt.lr"], "mode": "min",
        "sampler": "grid", "prune": False, "trials": own, "winner": "b", "lr_at_boundary": False,
    }  # fmt: skip
    path = study_path(store, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | changes))
    return path
