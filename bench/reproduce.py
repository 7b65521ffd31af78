"""A paper's experiment: from its YAML to runs, a figure, and claims that are each tested.

The runs go through the same store as any other, so what is stored is not trained again, an interruption costs nothing,
and the same command in a second terminal shares the work.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.arms import Arm
from bench.claims import Finding, judge
from bench.config import RunConfig, on_device, resolve, settings_of
from bench.errors import RunBusy, UserError
from bench.experiments import Experiment, Settings, load
from bench.figures import draw
from bench.reproduction import Reproduction, Version, as_json, duration, page, words
from bench.store import FINISHED, TABLES, RunResult, Store, read_tables, write_parquet


@dataclass(frozen=True)
class Job:
    """One run of an experiment."""

    label: str
    seed: int
    config: RunConfig


def jobs(experiment: Experiment, places: Settings) -> list[Job]:
    """All runs, seed by seed, so that what is there after an interruption compares all arms.

    Args:
        experiment: what to run.
        places: where data and store are, and the device.

    Raises:
        UserError: a setting is unknown or illegal.
    """
    return [
        Job(label, seed, resolve(experiment.common | own | {"seed": seed} | places))
        for seed in experiment.seeds
        for label, own in experiment.arms.items()
    ]


def train(todo: Sequence[Job], say: Callable[[str], None]) -> bool:
    """Make the runs that the store does not have; True unless a signal asked to stop.

    Runs that another process trains now are left to it, and waited for at the end.

    Args:
        todo: the runs.
        say: shows a line of progress.

    Raises:
        UserError: data are missing, or the store cannot be written.
    """
    waiting = [job for job in todo if not _is_stored(job.config)]
    if len(waiting) < len(todo):
        say(f"{len(todo) - len(waiting)} of {len(todo)} runs are stored")
    if not waiting:
        return True
    from bench.runner import run

    begun, done, total = time.monotonic(), 0, len(waiting)
    while waiting:
        busy: list[Job] = []
        for job in waiting:
            try:
                result = run(job.config, progress=sys.stderr.isatty())
            except RunBusy:
                busy.append(job)
                continue
            if result.status == "killed":
                return False
            done += 1
            left = (time.monotonic() - begun) / done * (total - done)
            say(f"[{done}/{total}] {job.label}, seed {job.seed}: {_ended(result)}; about {duration(left)} to go")
        if len(busy) == len(waiting):
            say(f"waiting for {len(busy)} runs that other processes train")
            time.sleep(5)
        waiting = busy
    return True


def _is_stored(config: RunConfig) -> bool:
    result = Store(config.store).get(on_device(config).run_id)
    return result is not None and result.status in FINISHED


def _ended(result: RunResult) -> str:
    value = "" if result.final is None else f", {result.split} {result.metric} {result.final:.4g}"
    return f"{result.status}{value}, {duration(result.wall_s)}"


# -- from the store to claims, figure and page ------------------------------------------------------------------------


def collect(todo: Sequence[Job]) -> tuple[dict[str, Arm], dict[str, list[RunResult]], list[int]]:
    """What the store has of the runs: arms by label, records by label, and seeds that were left out.

    Seeds are left out of all arms where the instance of the problem has no solution to be compared with.
    """
    found = []
    for job in todo:
        config = on_device(job.config)
        result = Store(config.store).get(config.run_id)
        if result is not None and result.status in FINISHED:
            found.append((job, config, result))
    without = sorted({job.seed for job, _, result in found if result.unsolved})
    arms: dict[str, Arm] = {}
    records: dict[str, list[RunResult]] = {}
    for label in dict.fromkeys(job.label for job in todo):
        mine = [(j, c, r) for j, c, r in found if j.label == label and j.seed not in without]
        if not mine:
            continue
        arms[label] = Arm(
            label, [j.seed for j, _, _ in mine],
            [list(read_tables(c.store / c.run_id).values()) for _, c, _ in mine],
            [r.status for _, _, r in mine], settings_of(mine[0][1].model_dump(mode="json")),
        )  # fmt: skip
        records[label] = [r for _, _, r in mine]
    return arms, records, without


def _judge(experiment: Experiment, arms: Mapping[str, Arm]) -> dict[str, Finding]:
    """The findings by claim; none where there are no results."""
    return {claim.name: judge(claim.test, arms, **claim.arguments) for claim in experiment.claims} if arms else {}


def reproduce(
    name: str, folder: Path, places: Settings, version: Version, say: Callable[[str], None]
) -> Reproduction | None:
    """Run an experiment and write figure, data, claims and page; None if a signal stopped it.

    Args:
        name: of `experiments()`.
        folder: where the output goes; made if needed.
        places: where data and store are, and the device.
        version: small or whole, with or without search, and what is changed.
        say: shows a line of progress.

    Raises:
        UserError: unknown experiment or setting, missing data, or nowhere to write.
    """
    full = load(name)
    if version.search and full.search is None:
        raise UserError(f"{name} has no open constants to search; leave --search out")
    if version.seeds is not None and version.seeds < 1:
        raise UserError(f"--seeds {version.seeds}: it must be at least 1")
    experiment = full.small() if version.quick else full
    seeds = experiment.seeds if version.seeds is None else range(version.seeds)
    experiment = experiment.changed(dict(version.changes), seeds)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another with --out DIR") from None
    todo = jobs(experiment, places)
    if not train(todo, say):
        return None
    arms, records, without = collect(todo)
    if not arms:
        raise UserError(f"{name}: the max-margin problem of every seed ({', '.join(map(str, without))}) is infeasible")
    findings = _judge(experiment, arms)
    region = []
    if version.search:
        assert full.search is not None
        for point in full.search.points:
            there = full.at(point)
            todo = jobs(there, places)
            say(f"at {words(point)}")
            if not train(todo, say):
                return None
            region.append((point, _judge(there, collect(todo)[0])))
    result = Reproduction(name, experiment, version, findings, records, without, region)
    try:
        draw(experiment.figure, arms, folder, watermark="quick" if version.quick else "")
        _write_data(records, Path(places["store"]), folder)
        (folder / "claims.json").write_text(json.dumps(as_json(result), indent=1, allow_nan=False) + "\n", "utf-8")
        (folder / "report.md").write_text(page(result), "utf-8")
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another with --out DIR") from None
    return result


def _write_data(records: Mapping[str, Sequence[RunResult]], store: Path, folder: Path) -> None:
    """The runs' tables, one Parquet file for each kind, with the columns `arm` and `seed` in front."""
    for kind in TABLES:
        columns: dict[str, list[Any]] = {}
        for label, runs in records.items():
            for run in runs:
                table = read_tables(store / run.run_id).get(kind, {"step": []})
                rows = len(table["step"])
                for name, values in {"arm": [label] * rows, "seed": [run.config["seed"]] * rows, **table}.items():
                    columns.setdefault(name, []).extend(None if value != value else value for value in values)
        if columns.get("step"):
            write_parquet(folder / f"{kind}.parquet", columns)
