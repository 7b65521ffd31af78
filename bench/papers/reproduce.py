"""Experiments of papers: from YAML to runs, a figure and tested claims."""

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.config.run_config import RunConfig, decided, resolve
from bench.config.settings import SAME_RESULT
from bench.config.values import refuse_too_many
from bench.errors import UserError
from bench.execute import Effort
from bench.execute.blocks import check_all
from bench.execute.command import results_of
from bench.output import check_output, writing
from bench.papers.arms import Arm, Arms
from bench.papers.experiments import Experiment, Settings, blaming, load
from bench.papers.figures import describe
from bench.papers.reproduction import Reproduction, Version, as_json, page
from bench.papers.verdicts import Finding, corrected
from bench.plots.theme import write_pictures
from bench.progress import SweepProgress, doing
from bench.store.record import RunResult
from bench.store.store import Store
from bench.store.tables import Columns

ArmRun = tuple[str, RunConfig]
"""A run of an experiment: the label of its arm, and its configuration."""


class Request(NamedTuple):
    """The experiment with all changes, its runs seed by seed, and constants, experiment and runs of each point.

    `altered`: the command line gave settings that may change results, or fewer seeds than the YAML.
    """

    experiment: Experiment
    jobs: list[ArmRun]
    points: list[tuple[Settings, Experiment, list[ArmRun]]]
    altered: bool

    @property
    def every(self) -> list[ArmRun]:
        """All runs, those of the search last."""
        return [*self.jobs, *(job for _, _, jobs in self.points for job in jobs)]


def jobs(experiment: Experiment, places: Settings) -> list[ArmRun]:
    """All runs of an experiment, with these data, store and device; a `UserError` if a setting is illegal."""
    runs = []
    for seed, (label, settings) in product(experiment.seeds, experiment.arms.items()):
        with blaming(f"arm {label}"):
            runs.append((label, decided(resolve(experiment.common | settings | {"seed": seed} | places))))
    check_all([config for _, config in runs], early=True)
    return runs


def ask(name: str, places: Settings, version: Version) -> Request:
    """The runs of a version of an experiment; arguments as for `reproduce`."""
    full = load(name)
    if version.search and (full.search is None or version.quick):
        why = "--search has no small version" if version.quick else f"{name} has no open constants to search"
        raise UserError(f"{why}; remove --search")
    if version.count:
        refuse_too_many(f"--seeds {version.count}", version.count * len(full.arms))

    def planned(of: Experiment) -> tuple[Experiment, list[ArmRun]]:
        changed = of.changed(version.changes, version.seeds)
        return changed, jobs(changed, places)

    altered = any(name.removeprefix("trainer.") not in SAME_RESULT for name in version.changes)
    altered = altered or (version.count is not None and version.count < len(full.seeds))
    points = [(at, *planned(variant)) for at, variant in full.at_points()] if version.search else []
    return Request(*planned(full.small() if version.quick else full), points, altered)


def reproduce(name: str, folder: Path, places: Settings, version: Version, effort: Effort) -> Reproduction:
    """Run an experiment, and write figure, claims and page into a folder.

    `places` are data, store and device. A `UserError` if the experiment or a setting is unknown or data are missing.
    """
    with doing("reading the experiment"):
        request = ask(name, places, version)
        configs = [config for _, config in request.every]
    check_output(folder)
    results_of(configs, SweepProgress("runs", configs[0].task_spec.mode), effort, plan=f"experiment {name}")
    arms, without = collect(request.jobs)
    if not arms:
        seed, reason = next(iter(without.items()))
        raise UserError(f"{name}: no seed has a solution to compare with: with seed {seed}, {reason}")
    region = over_points([(at, _judged(variant, collect(runs)[0])) for at, variant, runs in request.points])
    findings = corrected(_judged(request.experiment, arms))
    result = Reproduction(name, request.experiment, version, findings, arms, without, region, request.altered)
    with doing("drawing"), writing(folder):
        figure = describe(request.experiment.figure, arms, "quick version, no evidence" * version.quick)
        write_pictures(figure.spec(live=False), folder / "figure")
        (folder / "claims.json").write_text(json.dumps(as_json(result), indent=1, allow_nan=False) + "\n", "utf-8")
        (folder / "report.md").write_text(page(result), "utf-8")
    return result


def collect(arm_runs: Sequence[ArmRun]) -> tuple[dict[str, Arm], dict[int, str]]:
    """The arms with stored runs by label, and the reason of each seed whose problem has no reference solution.

    Such seeds are left out of all arms.
    """
    store = Store(arm_runs[0][1].store)
    stored = store.finished_all(config.run_id for _, config in arm_runs)
    runs = [(label, stored[config.run_id]) for label, config in arm_runs if config.run_id in stored]
    without = {run.config["seed"]: f"{n} is {why}" for _, run in runs for n, why in run.unsolved.items()}
    of_arms: dict[str, list[RunResult]] = {}
    for label, run in runs:
        if run.config["seed"] not in without:
            of_arms.setdefault(label, []).append(run)
    arms = {label: Arm.of_each(label, [(run, _tables(store, run)) for run in of]) for label, of in of_arms.items()}
    return arms, without


def _judged(experiment: Experiment, arms: Arms) -> dict[str, Finding]:
    """The findings by claim; none without results."""
    return {claim.name: experiment.judge(claim, arms) for claim in experiment.claims} if arms else {}


def over_points(points: Sequence[tuple[Settings, Mapping[str, Finding]]]) -> list[tuple[Settings, dict[str, Finding]]]:
    """The findings at the points of a search, with Holm's correction over the points."""
    by_claim = {
        name: corrected({i: findings[name] for i, (_, findings) in enumerate(points) if name in findings})
        for name in {name for _, findings in points for name in findings}
    }
    return [(at, {name: by_claim[name][i] for name in findings}) for i, (at, findings) in enumerate(points)]


def _tables(store: Store, run: RunResult) -> dict[str, Columns]:
    """A run's tables, with `relative_norm_W` (||W|| / ||W_mm||), and its evaluations as the table `validations`."""
    tables, rows = dict(store.tables(run.run_id)), run.validations
    if (norm := dict(run.facts.get("att_svm") or {}).get("norm")) and "norm_W" in (
        measured := tables.get("measurements", {})
    ):
        tables["measurements"] = measured | {"relative_norm_W": measured["norm_W"] / norm}
    columns = {
        name if name in ("step", "train_s") else f"val_{name}": np.array([row.get(name) for row in rows], float)
        for name in dict.fromkeys(name for row in rows for name in row)
    }
    return tables | ({"validations": columns} if columns else {})
