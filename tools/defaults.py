"""Choose defaults of the stochastic optimizers by family of tasks, from the reference studies: `make defaults`.

A family has the tasks with similar models (`bench show TASK`). The reference studies try the same points on each of its
tasks. For each point, the gap on a task is the distance from the best score there. The default is the point whose
largest gap over the tasks is the smallest. Points whose cap sets nearly all steps count only if no other point is
clearly better than chance. Points with which a text model from scratch does not leave chance do not count (of `sps`:
c 2.154 with max_step 0.3162). An optimizer without a study in a family has the default that it has on all tasks, or one
that we chose. `bench show OPTIMIZER` has the same values.
"""

import argparse
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bench.config.options import all_optimizer_options
from bench.config.run_config import decided, resolve
from bench.config.settings import problem_of
from bench.config.values import place, reference_folder
from bench.process import as_options
from bench.results.render import markdown_table
from bench.results.selection import best_index, final_value, is_capped, seed_median, selected
from bench.results.table import Column, Table
from bench.store.record import RunResult
from bench.store.reports import StudyRecord
from bench.store.store import Store
from bench.store.stores import Stores
from bench.text import comparable, counted, word_of
from bench.tuning import suite
from optimizers import OPTIMIZERS
from tasks import TASKS

FOLDER = Path("results/defaults")
PARTS = ("vision", "lm", "sst2")
"""Parts of the reference suite; each has the tasks of one family."""
STOCHASTIC = [name for name, spec in OPTIMIZERS.items() if not spec.traits.full_batch]
Point = Mapping[str, Any]


class Cell(NamedTuple):
    """A task on which each optimizer must beat chance at its defaults, in the task's default budget.

    Attributes:
        settings: of the task.
        chance: value of the metric for a model that ignores its inputs.
    """

    settings: Mapping[str, Any]
    chance: float


CELLS = {
    "mnist": Cell({"task": "mnist"}, 0.1),
    "cifar10": Cell({"task": "cifar10"}, 0.1),
    "sst2 from scratch": Cell({"task": "sst2", "task.scratch": "true"}, 0.5),
    "lm": Cell({"task": "lm"}, math.log(65)),
}


STUCK: Mapping[tuple[str, str], Sequence[Point]] = {("text", "sps"): [{"c": 2.154, "max_step": 0.3162}]}
"""By family and optimizer, points with which `sst2` from scratch stayed at 0.56 for 2,500 steps (seed 0)."""


def choice(studies: Mapping[str, StudyRecord], stuck: Sequence[Point] = ()) -> Point | None:
    """The point with the smallest gap to the best score, on the task with the largest gap; the middle one of equals.

    `studies` are of one optimizer, by task; only points that all of them have tried count, without those `stuck`. None
    if no point has a score on every task.
    """
    gaps: dict[str, list[float]] = {}
    points: dict[str, Point] = {}
    for study in studies.values():
        scores = {json.dumps(named(trial)): trial for trial in study.trials}
        known = [trial["score"] for trial in study.trials if trial["score"] is not None]
        best = (max if study.mode == "max" else min)(known, default=math.nan)
        for key, trial in scores.items():
            score = trial["score"]
            gaps.setdefault(key, []).append(math.inf if score is None else abs(best - score))
            points[key] = named(trial)
    complete = {key: of_tasks for key, of_tasks in gaps.items() if len(of_tasks) == len(studies)}
    worst = {key: max(of_tasks) for key, of_tasks in complete.items() if points[key] not in stuck}
    worst = {key: gap for key, gap in worst.items() if gap < math.inf}
    ordered = sorted(worst, key=lambda key: [value for value in points[key].values() if isinstance(value, int | float)])
    best = best_index([worst[key] for key in ordered], "min", -math.inf)  # as a study chooses its winner
    return None if best is None else points[ordered[best]]


def with_capped(study: StudyRecord, runs: Mapping[str, RunResult]) -> StudyRecord:
    """The study with scores of the points that it excludes because a cap sets nearly all of their steps."""
    trials = []
    for trial in study.trials:
        of_trial = [runs[run_id] for run_id in trial["runs"] if run_id in runs]
        capped = trial["score"] is None and is_capped(of_trial)
        score = seed_median([selected(run, False) for run in of_trial], study.mode) if capped else trial["score"]
        trials.append({**trial, "score": score})
    return replace(study, trials=trials)


def default(studies: Mapping[str, StudyRecord], runs: Mapping[str, RunResult]) -> Point | None:
    """The default of an optimizer: the `choice` from its scores, else, if it does not beat chance, from all points."""
    chance = {cell.settings["task"]: cell for cell in CELLS.values()}
    every = {task: with_capped(study, runs) for task, study in studies.items()}
    task, study = next(iter(studies.items()))
    stuck = STUCK.get((TASKS[task].family, study.opt), ())
    point = choice(studies, stuck)
    for task, study in every.items():
        scores = {json.dumps(named(trial)): trial["score"] for trial in study.trials if trial["score"] is not None}
        best = (max if study.mode == "max" else min)(scores.values(), default=math.nan)
        if point is None or not beats_chance(chance[task], scores.get(json.dumps(point)), best):
            return choice(every, stuck)
    return point


def named(trial: Mapping[str, Any]) -> Point:
    """The point of a trial, by name without `opt.`."""
    return {name.removeprefix("opt."): value for name, value in sorted(trial["point"].items())}


def reference_studies(stores: Stores, part: str) -> dict[str, dict[str, StudyRecord]]:
    """The complete studies of a part, by optimizer and task; only optimizers with all of the part's tasks."""
    complete = {study.name: study for study in stores.studies if not study.missing}
    studies: dict[str, dict[str, StudyRecord]] = {}
    specs = [spec for declared in suite.load(part) for spec in declared.specs({})]
    for spec in specs:
        if spec.name in complete:
            studies.setdefault(spec.opt, {})[spec.task] = complete[spec.name]
    tasks = {spec.task for spec in specs}
    return {opt: by_task for opt, by_task in studies.items() if by_task.keys() == tasks}


def beats_chance(cell: Cell, value: float | None, best: float) -> bool:
    """Whether a run closes at least half of the distance between chance and the best run of its task."""
    return value is not None and (value - cell.chance) / (best - cell.chance) >= 0.5


def full_run(settings: Mapping[str, Any], stored: Iterable[RunResult]) -> RunResult | None:
    """A plain `bench fit`, with any seed if it is stored, else trained with seed 0; None if it has no result."""
    config = decided(resolve({**settings, "data": place("data"), "store": place("store")}))
    wanted = comparable([config.task, config.opt, config.opt_options, problem_of(config)])
    versions = {"task": config.task_spec.version, "opt": OPTIMIZERS[config.opt].version}
    for run in sorted((run for run in stored if run.finished), key=lambda run: (run.config["seed"], run.run_id)):
        same = comparable([run.config["task"], run.config["opt"], run.config["opt_options"], run.problem]) == wanted
        if same and versions.items() <= run.versions.items():
            return run
    words = as_options(settings)
    done = subprocess.run([sys.executable, "-m", "bench", "fit", *words], stdout=subprocess.DEVNULL, check=False)
    if done.returncode == 130:
        sys.exit(130)  # a diverged run ends with 1, which is a result
    return Store(config.store).finished_all([config.run_id]).get(config.run_id)


# -- the page ---------------------------------------------------------------------------------------------------------


def page(measured: Mapping[str, Any]) -> str:
    """The page of what was found."""
    chosen = [
        (family, opt, _setting(opt, family, points), _source(opt, family, points))
        for family, points in measured["families"].items()
        for opt in STOCHASTIC
    ]
    lines = [
        "# Defaults of the stochastic optimizers, by family of tasks",
        "",
        *(__doc__ or "").strip().splitlines()[2:],
        "",
        *markdown_table(
            Table.of(("family", "optimizer", Column("setting", "setting", markup="code"), "chosen by"), chosen)
        ),
        "",
        "## A plain `bench fit`",
        "",
        "Test metric of one run per cell after the default budget, at the defaults. `make defaults` trains what is"
        f" missing here. Seeds: {_seeds(measured)}; those from 1000 on are trials of the reference studies. Machine of"
        f" the runs with seed 0: {measured['machine']}.",
        "",
    ]
    rows = [
        {"opt": opt} | {cell: runs[opt]["value"] for cell, runs in measured["full"].items() if opt in runs}
        for opt in STOCHASTIC
    ]
    columns = [Column("opt", "optimizer"), *(Column(cell, cell) for cell in measured["full"])]
    return "\n".join([*lines, *markdown_table(Table("", columns, rows))]) + "\n"


def _setting(opt: str, family: str, chosen: Mapping[str, Point]) -> str:
    """The chosen values, else the defaults, of searched hyperparameters and of others that the family changes."""
    spec = OPTIMIZERS[opt]
    options = all_optimizer_options(spec.on(family), {})
    names = dict.fromkeys([*spec.search, *spec.by_family.get(family, {})])
    values = {name: options[name].default for name in names} | dict(chosen.get(opt, {}))
    return " ".join(f"{name} {word_of(value)}" for name, value in values.items())


def _source(opt: str, family: str, chosen: Mapping[str, Point]) -> str:
    if opt in chosen:
        return "studies"
    return "us" if family in OPTIMIZERS[opt].by_family else "default on all tasks"


def _seeds(measured: Mapping[str, Any]) -> str:
    """The seeds of the full runs, in words."""
    count = Counter(run["seed"] for runs in measured["full"].values() for run in runs.values())
    return " and ".join(f"{seed} ({counted(n, 'run')})" for seed, n in sorted(count.items())) or "none yet"


def main(words: Iterable[str] | None = None) -> int:
    """Choose, train what is missing, and write the page; exit code 1 if an optimizer does not beat chance."""
    parser = argparse.ArgumentParser(prog="tools.defaults", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--choose", action="store_true", help="train nothing")
    args = parser.parse_args(None if words is None else [*words])
    path = FOLDER / "measured.json"
    measured: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {"full": {}}
    store = place("store")
    stores = Stores([store] if store.is_dir() else [], reference_folder())
    measured["families"] = {}
    runs = {run.run_id: run for run in stores.runs}
    for part in PARTS:
        for opt, studies in reference_studies(stores, part).items():
            if (point := default(studies, runs)) is not None:
                family = TASKS[next(iter(studies))].family
                measured["families"].setdefault(family, {})[opt] = point
                now = OPTIMIZERS[opt].by_family.get(family, {})
                other = "" if point.items() <= now.items() else f" (now {dict(now) or 'as on all tasks'})"
                print(f"{family} {opt}: {point}{other}", flush=True)
    _write(path, measured)
    failed = 0
    for name, cell in {} if args.choose else CELLS.items():
        done = measured["full"].setdefault(name, {})
        for opt in STOCHASTIC:
            task, spec = TASKS[cell.settings["task"]], OPTIMIZERS[opt]
            request = {"versions": [task.version, spec.version], "defaults": dict(spec.by_family.get(task.family, {}))}
            if options := resolve({**cell.settings, "opt": opt}).identity["task_options"]:
                request["task_options"] = options
            if done.get(opt, {}).get("asked") != request:
                run = full_run({**cell.settings, "opt": opt}, stores.runs)
                value, seed = (None, 0) if run is None else (final_value(run, False), run.config["seed"])
                done[opt] = {"asked": request, "value": value, "seed": seed}
                _write(path, measured)
        values = [run["value"] for run in done.values() if run["value"] is not None]
        best = (min if TASKS[cell.settings["task"]].mode == "min" else max)(values, default=math.nan)
        for opt, run in done.items():
            good = beats_chance(cell, run["value"], best)
            failed += not good
            print(f"{name} {opt}: {run['value']}{'' if good else ', which does not beat chance clearly'}", flush=True)
    return int(failed > 0)


def _write(path: Path, measured: dict[str, Any]) -> None:
    import lightning
    import torch

    from bench.machine import cpu_name

    measured["machine"] = f"{cpu_name()}, torch {torch.__version__}, lightning {lightning.__version__}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(measured, indent=1) + "\n", "utf-8")
    path.with_name("README.md").write_text(page(measured), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
