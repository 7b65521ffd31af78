"""Experiments of papers: from YAML to runs, a figure and tested claims."""

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.config.run_config import RunConfig, resolve, with_device
from bench.config.values import refuse_too_many
from bench.errors import UserError
from bench.execute import Effort
from bench.execute.blocks import check_all
from bench.execute.request import results_of
from bench.output import check_output, writing
from bench.papers.arms import Arm, Arms
from bench.papers.experiments import Experiment, Settings, load
from bench.papers.figures import describe
from bench.papers.reproduction import Reproduction, Version, as_json, page
from bench.papers.verdicts import Finding, corrected
from bench.progress import SweepProgress, doing
from bench.results.group import seed_of
from bench.store.block import Columns
from bench.store.record import RunResult
from bench.store.stores import Contents

ArmRun = tuple[str, RunConfig]  # the label of its arm, and its configuration


class Point(NamedTuple):
    """An experiment with the constants of a point of its search (none for the experiment itself), and its runs."""

    at: Settings
    experiment: Experiment
    jobs: list[ArmRun]


def jobs(experiment: Experiment, places: Settings) -> list[ArmRun]:
    """All runs of an experiment, with these data, store and device; a `UserError` if a setting is illegal."""
    runs = []
    for seed, (label, settings) in product(experiment.seeds, experiment.arms.items()):
        try:
            runs.append((label, with_device(resolve(experiment.common | settings | {"seed": seed} | places))))
        except UserError as error:
            raise UserError(f"arm {label}: {error}") from None
    check_all([config for _, config in runs], early=True)
    return runs


def ask(name: str, places: Settings, version: Version) -> list[Point]:
    """A version of an experiment, then the points of its search, if any; arguments as for `reproduce`."""
    full = load(name)
    if version.search and (full.search is None or version.quick):
        why = "--search has no small version" if version.quick else f"{name} has no open constants to search"
        raise UserError(f"{why}; remove --search")
    if version.count:
        refuse_too_many(f"--seeds {version.count}", version.count * len(full.arms))
    points = [({}, full.small() if version.quick else full), *(full.at_points() if version.search else [])]
    changed = [(at, experiment.changed(version.changes, version.seeds)) for at, experiment in points]
    return [Point(at, experiment, jobs(experiment, places)) for at, experiment in changed]


def reproduce(name: str, folder: Path, places: Settings, version: Version, effort: Effort) -> Reproduction:
    """Run an experiment with these data, store and device, and write its page to a folder (UserError)."""
    with doing("reading the experiment"):
        whole, *points = ask(name, places, version)
        configs = [config for point in (whole, *points) for _, config in point.jobs]
    check_output(folder)
    results_of(configs, SweepProgress("runs", configs[0].task_spec.mode), effort, plan=f"experiment {name}")
    arms, without = collect(whole.jobs)
    if not arms:
        seed, reason = next(iter(without.items()))
        raise UserError(f"{name}: no seed has a solution to compare with: with seed {seed}, {reason}")
    region = over_points([(point.at, _judged(point.experiment, collect(point.jobs)[0])) for point in points])
    findings = corrected(_judged(whole.experiment, arms))
    result = Reproduction(name, whole.experiment, version, findings, arms, without, region, version.alters(load(name)))
    with doing("drawing"), writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        describe(whole.experiment.figure, arms, "quick version, no evidence" * version.quick).write(folder / "figure")
        (folder / "claims.json").write_text(json.dumps(as_json(result), indent=1, allow_nan=False) + "\n", "utf-8")
        (folder / "report.md").write_text(page(result), "utf-8")
    return result


def collect(arm_runs: Sequence[ArmRun]) -> tuple[dict[str, Arm], dict[int, str]]:
    """The arms with stored runs by label, without seeds whose problem has no reference solution, and these with why."""
    contents = Contents([arm_runs[0][1].store], (config.run_id for _, config in arm_runs))
    stored = contents.finished
    runs = [(label, stored[config.run_id]) for label, config in arm_runs if config.run_id in stored]
    without = {run.config["seed"]: f"{n} is {why}" for _, run in runs for n, why in run.unsolved.items()}
    arms = dict[str, Arm]()
    for label, run in ((label, run) for label, run in runs if run.config["seed"] not in without):
        arm = arms.setdefault(label, Arm(label=label))
        arm.runs[seed_of(run)], arm.tables[seed_of(run)] = run, _tables(contents, run)
    return arms, without


def _judged(experiment: Experiment, arms: Arms) -> dict[str, Finding]:
    return {claim.name: experiment.judge(claim, arms) for claim in experiment.claims} if arms else {}


def over_points(points: Sequence[tuple[Settings, Mapping[str, Finding]]]) -> list[tuple[Settings, dict[str, Finding]]]:
    """The findings at the points of a search, with Holm's correction over the points."""
    by_claim = {
        name: corrected({i: findings[name] for i, (_, findings) in enumerate(points) if name in findings})
        for name in {name for _, findings in points for name in findings}
    }
    return [(at, {name: by_claim[name][i] for name in findings}) for i, (at, findings) in enumerate(points)]


def _tables(contents: Contents, run: RunResult) -> dict[str, Columns]:
    """A run's tables, with `relative_norm_W` (||W|| / ||W_mm||), and its evaluations as the table `validations`."""
    tables, rows = dict(contents.tables(run.run_id)), run.validations
    measured, norm = tables.get("measurements", {}), dict(run.facts.get("att_svm") or {}).get("norm")
    if norm and "norm_W" in measured:
        tables["measurements"] = measured | {"relative_norm_W": measured["norm_W"] / norm}
    columns = {
        name if name in ("step", "train_s") else f"val_{name}": np.array([row.get(name) for row in rows], float)
        for name in dict.fromkeys(name for row in rows for name in row)
    }
    return tables | ({"validations": columns} if columns else {})
