"""Fabricated runs and studies with any results, stored as training would, each in its own block or several in one."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from bench.boards import BOARDS, Board
from bench.boards.collect import Collected, collect
from bench.config.run_config import id_of, resolve
from bench.results.selection import End
from bench.store.block import CURVE_FIELDS
from bench.store.record import RunResult
from bench.store.reports import StudyRecord
from bench.store.stores import Stores
from bench.text import plain
from optimizers.plugins import bare
from tests.stored import add_study, put

VERSIONS = {"torch": "2.15.0", "lightning": "2.6.6", "task": 1, "opt": 1}
CPU = {"cpu": "abacus", "threads": 1, "gpu": None}


@cache
def _described(task: str, opt: str, words: str) -> str:
    return json.dumps(resolve({"task": task, "opt": opt, "device": "cpu", **json.loads(words)}).record_fields)


def make_run(
    opt: str = "adam",
    seed: int = 0,
    final: End = 0.5,
    *,
    task: str = "mnist",
    name: str | None = None,
    on: str | None = None,
    words: Mapping[str, Any] | None = None,
    **changes: Any,
) -> RunResult:
    """A run with this value at its last and its best step; `changes` are fields of its record.

    `name` is an unknown optimizer with the settings of `opt`, `on` an unknown task with those of `task`.
    """
    settings = json.loads(_described(task, opt, json.dumps({"trainer.max_steps": 100, "seed": seed, **(words or {})})))
    for key, unknown in (("opt", name), ("task", on)):
        if unknown is not None:
            settings["config"][key], settings["identity"][key] = plain(unknown), bare(plain(unknown))
    settings["run_id"] = id_of(settings["config"]["task"], settings["config"]["opt"], settings["identity"])
    values: dict[str, Any] = {"status": "completed", "split": "test", "final": final, "best": final, "best_step": 100}
    values |= {"versions": VERSIONS, "environment": CPU, "steps": 100, "train_s": 10.0, "thinned": True}
    return RunResult(**(settings | values | changes))


def seeds(opt: str, finals: Sequence[End], first: int = 0, **changes: Any) -> list[RunResult]:
    """A run for each value, with consecutive seeds; None for a diverged run."""
    ways = [{"status": "diverged"} | changes if final is None else changes for final in finals]
    return [make_run(opt, first + i, final, **way) for i, (final, way) in enumerate(zip(finals, ways, strict=True))]


def keep(store: Path, *runs: RunResult, measured: Mapping[str, Any] | None = None) -> None:
    """Write each run into its own block; with these measurements, if any."""
    for run in runs:
        put(store, run, tables={"measurements": {run.run_id: measured}} if measured else None)


def keep_block(store: Path, *runs: RunResult) -> None:
    """Write runs into one block."""
    curve = {"step": [1, 2], **{name: [1.0, 1.0] for name in CURVE_FIELDS[1:]}}
    put(store, *runs, tables={"curve": {run.run_id: curve for run in runs}})


def study(
    store: Path,
    scores: Mapping[float, End],
    runs: Mapping[float, Sequence[RunResult]],
    winner: RunResult | str | None,
    **changes: Any,
) -> StudyRecord:
    """Write the record of a study of lr, with scores and runs by lr, and a run with the winning settings."""
    trials = [
        {"point": {"opt.lr": lr}, "score": score, "runs": [run.run_id for run in runs.get(lr, ())]}
        for lr, score in scores.items()
    ]
    winner = winner.run_id if isinstance(winner, RunResult) else winner
    values = {"name": "study", "task": "mnist", "opt": "adam", "winner": winner, "mode": "max"}
    return add_study(store, trials=trials, **values | changes)


def add_tuned(store: Path, opt: str, finals: Sequence[End], lr: float = 0.1, **changes: Any) -> None:
    """A study with three trials of two seeds, and the winner on as many fresh seeds as there are values."""
    trials = {rate: seeds(opt, [0.4] * 2, 1000, words={"opt.lr": rate}) for rate in (lr / 10, lr, lr * 10)}
    for runs in trials.values():
        keep(store, *runs)
    scores = {lr / 10: 0.3, lr: 0.4, lr * 10: None}
    study(store, scores, trials, trials[lr][0], **{"name": f"of-{opt}", "opt": opt} | changes)
    keep(store, *seeds(opt, finals, words={"opt.lr": lr}))


def add_tried(
    store: Path,
    scores: Mapping[float, Sequence[End]],
    finals: Mapping[float, Sequence[End]],
    fresh: Sequence[End],
    *,
    won: float,
    first: int = 1000,
    kept: bool = True,
    **changes: Any,
) -> StudyRecord:
    """A study with the runs of its trials, and its winner, of the lr `won`, on as many fresh seeds as there are values.

    Scores are on the selection split by lr and tuning seed, finals on the reporting split, None if a run diverged.
    Unless `kept`, the runs of trials are not stored, but one of the winner's.
    """
    opt, task = changes.get("opt", "adam"), changes.get("task", "mnist")
    metric = "accuracy" if task == "mnist" else "excess"
    runs: dict[float, list[RunResult]] = {}
    for lr, row in finals.items():
        for i, (score, final) in enumerate(zip(scores[lr], row, strict=True)):
            evaluations = [{"step": 100, "train_s": 1.0, metric: score}] * bool(final)
            settings = excess_of(task, final) | {"validations": evaluations}
            runs.setdefault(lr, []).extend(seeds(opt, [final], first + i, task=task, words={"opt.lr": lr}, **settings))
    keep(store, *(run for lr, group in runs.items() for run in group if kept or run is runs[won][0]))
    for seed, final in enumerate(fresh):
        keep(store, *seeds(opt, [final], seed, task=task, words={"opt.lr": won}, **excess_of(task, final)))
    values = {"opt": opt, "task": task, "seeds": [first + i for i in range(len(finals[won]))]}
    return study(store, dict.fromkeys(runs, 0.5), runs, runs[won][0], **values | changes)


def excess_of(task: str, final: End) -> dict[str, Any]:
    """The change that sets the final suboptimality gap of a task whose infimum is 0."""
    return {"metrics": {"final": {"loss": final, "excess": final}}} if task == "synthetic" and final else {}


def collect_from(*folders: Path, **words: Any) -> Collected:
    """The entries of some stores."""
    return collect(Stores(folders), **words)


def board(
    name: str, *folders: Path, reference: str | None = "adam", target: float | None = None, **words: Any
) -> Board:
    """A board of some stores."""
    return BOARDS[name](collect(Stores(folders), reference=reference, target=target, **words))


def rows(name: str, *folders: Path, table: int = -1, **words: Any) -> dict[str, dict[str, Any]]:
    """The rows of one table of a board, by optimizer, in order."""
    return {row["opt"]: row for row in board(name, *folders, **words).tables[table].rows}
