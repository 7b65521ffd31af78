"""Experiments of papers: from YAML to runs, a figure and tested claims."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from bench.config.checks import check_places
from bench.config.run_config import RunConfig, decided, on_device, resolve
from bench.config.settings import SAME_RESULT
from bench.errors import UserError
from bench.execute import Effort
from bench.execute.blocks import check_all, missing
from bench.execute.command import results_of
from bench.output import check_output, writing
from bench.papers.arms import Arm
from bench.papers.experiments import DERIVED, Experiment, Settings, load
from bench.papers.figure_chart import constants_map, describe
from bench.papers.reproduction import Reproduction, Version, as_json, page
from bench.papers.verdicts import Finding, corrected
from bench.plots.theme import write_pictures
from bench.progress import SweepProgress, doing
from bench.store.files import replacing
from bench.store.record import RunResult
from bench.store.store import Store
from bench.store.tables import TABLES, Columns, as_arrow
from tasks.core.extras import not_installed

ArmRun = tuple[str, RunConfig]
"""A run of an experiment: the label of its arm, and its configuration."""


def jobs(experiment: Experiment, places: Settings) -> list[ArmRun]:
    """All runs, seed by seed, so that the runs before an interruption compare all arms.

    Args:
        experiment: what to run.
        places: data, store and device.

    Raises:
        UserError: a setting is unknown or illegal.
    """
    todo = [
        (label, decided(resolve(experiment.common | settings | {"seed": seed} | places)))
        for seed in experiment.seeds
        for label, settings in experiment.arms.items()
    ]
    check_all([config for _, config in todo], early=True)
    return todo


# -- from the store to claims, figure and page ------------------------------------------------------------------------


def collect(todo: Sequence[ArmRun]) -> tuple[dict[str, Arm], dict[int, str]]:
    """The runs that the store has: arms by label, and the reason of each seed that is left out.

    A seed is left out of all arms if the instance of the problem has no reference solution.
    """
    store = Store(todo[0][1].store)
    stored = store.finished_all(config.run_id for _, config in todo)
    present = [(label, config.seed, stored[config.run_id]) for label, config in todo if config.run_id in stored]
    without = {seed: f"{n} is {why}" for _, seed, run in present for n, why in run.unsolved.items()}
    runs: dict[str, list[RunResult]] = {label: [] for label, _ in todo}
    for label, seed, run in present:
        if seed not in without:
            runs[label].append(run)
    tables = {label: [(run, _tables(store, run)) for run in arm_runs] for label, arm_runs in runs.items() if arm_runs}
    return {label: Arm.of_each(label, arm_runs) for label, arm_runs in tables.items()}, without


def _judge(experiment: Experiment, arms: Mapping[str, Arm]) -> dict[str, Finding]:
    """The findings by claim; none without results."""
    return {claim.name: experiment.judge(claim, arms) for claim in experiment.claims} if arms else {}


def _map(points: Sequence[tuple[Settings, Mapping[str, Finding]]]) -> list[tuple[Settings, dict[str, Finding]]]:
    """The findings at the points of a search, with Holm's correction over the points."""
    by_claim = {
        name: corrected({i: findings[name] for i, (_, findings) in enumerate(points) if name in findings})
        for name in dict.fromkeys(name for _, findings in points for name in findings)
    }
    return [(at, {name: by_claim[name][i] for name in findings}) for i, (at, findings) in enumerate(points)]


@dataclass(frozen=True)
class WantedRuns:
    """The runs of an experiment that a command wants.

    Attributes:
        experiment: small or whole, with all changes.
        jobs: its runs.
        points: of the search: the constants, the experiment there, and its runs.
        altered: whether its runs are not those of the YAML: other settings that change results, or fewer seeds.
    """

    experiment: Experiment
    jobs: list[ArmRun]
    points: list[tuple[Settings, Experiment, list[ArmRun]]]
    altered: bool = False

    @property
    def configs(self) -> list[RunConfig]:
        """Of all runs; the search comes last."""
        return [config for group in (self.jobs, *(group for _, _, group in self.points)) for _, config in group]


def ask(name: str, places: Settings, version: Version) -> WantedRuns:
    """The runs of an experiment.

    Args:
        name: of `experiments()`.
        places: data, store and device.
        version: small or whole, with or without search, and the changes.

    Raises:
        UserError: unknown experiment or setting.
    """
    full = load(name)
    if version.search and full.search is None:
        raise UserError(f"{name} has no open constants to search; remove --search")
    if version.search and version.quick:
        raise UserError("--search has no small version; remove --quick or --search")
    full.refuse_too_many(version.count, search=version.search)
    altered = version.count is not None and version.count < len(full.seeds)

    def planned(version_of: Experiment) -> tuple[Experiment, list[ArmRun]]:
        nonlocal altered
        changed = version_of.changed(version.changes, version.seeds)
        changed.rehearse()
        wanted = jobs(changed, places)
        if version.changes:
            usual = jobs(version_of.changed({}, version.seeds), places)
            altered = altered or not all(_is_same(one, other) for one, other in zip(wanted, usual, strict=True))
        return changed, wanted

    experiment, todo = planned(full.small() if version.quick else full)
    points = full.search.points if version.search and full.search else []
    planned_points = [(point, *planned(full.at(point))) for point in points]
    return WantedRuns(experiment, todo, planned_points, altered)


def _is_same(one: ArmRun, other: ArmRun) -> bool:
    """Whether two runs have the same result: they differ only in how it is computed, or observed."""
    (_, config), (_, usual) = one, other
    trainer = config.trainer.model_copy(update={name: getattr(usual.trainer, name) for name in SAME_RESULT})
    return config.model_copy(update={"trainer": trainer}).run_id == usual.run_id


def reproduce(name: str, folder: Path, places: Settings, version: Version, effort: Effort) -> Reproduction | None:
    """Run an experiment and write figure, data, claims and page; None if a signal stopped it.

    Args:
        name: of `experiments()`.
        folder: of the output; created if needed.
        places: data, store and device.
        version: small or whole, with or without search, and the changes.
        effort: how the runs are trained.

    Raises:
        UserError: an experiment or a setting is unknown, data are missing, or the folder cannot be written.
    """
    with doing("reading the experiment"):
        request = ask(name, places, version)
        experiment, wanted = request.experiment, request.configs
        if any(config.task_spec.family == "theory" for config in wanted) and not find_spec("clarabel"):
            raise UserError(f"{name}: {not_installed('clarabel', 'papers')}")  # before anything is trained
        if left := missing(wanted):
            waiting = list(left.values())
            on_device(waiting[0])
            check_places(waiting)
            check_all(waiting)
    check_output(folder)
    progress = SweepProgress("runs", wanted[0].task_spec.mode)
    if results_of(wanted, progress, effort, plan=f"experiment {name}") is None:
        return None
    arms, without = collect(request.jobs)
    if not arms:
        seed, reason = next(iter(without.items()))
        raise UserError(f"{name}: no seed has a solution to compare with: with seed {seed}, {reason}")
    findings = corrected(_judge(experiment, arms))
    region = _map([(point, _judge(at_point, collect(point_jobs)[0])) for point, at_point, point_jobs in request.points])
    result = Reproduction(name, experiment, version, findings, arms, without, region, request.altered)
    with doing("drawing"), writing(folder):
        drawn = describe(experiment.figure, arms, watermark="quick" if version.quick else "")
        write_pictures(drawn.spec(live=False), folder / "figure")
        if region:
            write_pictures(constants_map(region), folder / "map")
        _write_data(arms.values(), folder)
        (folder / "claims.json").write_text(json.dumps(as_json(result), indent=1, allow_nan=False) + "\n", "utf-8")
        (folder / "report.md").write_text(page(result), "utf-8")
    return result


def _tables(store: Store, run: RunResult) -> dict[str, Columns]:
    """A run's tables with the columns of `DERIVED`, and `validations` from its evaluations on the selection split.

    The latter has `val_loss` and the like by step, and `train_s`, the seconds of training until then.
    """
    names = dict.fromkeys(name for row in run.validations for name in row)
    validations = {
        name if name in ("step", "train_s") else f"val_{name}": np.array(
            [row.get(name) for row in run.validations], dtype=np.float64
        )
        for name in names
    }
    tables = {
        kind: {**table, **{name: table[of] / norm for name, of in DERIVED.items() if norm and of in table}}
        for norm in [dict(run.facts.get("att_svm") or {}).get("norm")]
        for kind, table in store.tables(run.run_id).items()
    }
    return tables | ({"validations": validations} if validations else {})


def _write_data(arms: Iterable[Arm], folder: Path) -> None:
    """Write the runs' tables, a Parquet file for each kind, with the columns `arm` and `seed` in front."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for kind in (*TABLES, "validations"):
        tagged = [(arm.label, seed, tables.get(kind)) for arm in arms for (seed, _), tables in arm.tables.items()]
        parts = [as_arrow(table, arm=label, seed=seed) for label, seed, table in tagged if table is not None]
        if any(map(len, parts)):
            with replacing(folder / f"{kind}.parquet") as temporary:
                pq.write_table(pa.concat_tables(parts, promote_options="default"), temporary, compression="zstd")
