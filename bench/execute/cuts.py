"""How wanted runs are cut into blocks, decided once and recorded, so that all who work on them agree."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from bench.config import RunConfig
from bench.errors import UserError
from bench.execute import Effort
from bench.execute.blocks import block_key, check_all, rectangles
from bench.execute.choice import Choices, why_no_lanes
from bench.progress import SweepProgress
from bench.store.block import PLANS
from bench.store.files import write_json
from bench.store.load import Damaged, read
from bench.store.record import FINISHED, RunId
from bench.store.store import Store

Grid = list[list[RunConfig]]
"""Runs that train together, a row for each problem."""


@dataclass(frozen=True)
class Cut:
    """How runs that are alike (`block_key`) are made.

    Attributes:
        lanes: as lanes, block by block, or one after the other.
        compiled: whether the optimizer's update goes through `torch.compile`.
        blocks: the runs.
        plan: what they are made for (`RunResult.plan`).
    """

    lanes: bool
    compiled: bool
    blocks: Sequence[Grid]
    plan: str | None = None

    @property
    def runs(self) -> list[RunConfig]:
        """All runs."""
        return [config for grid in self.blocks for row in grid for config in row]


@with_config(ConfigDict(extra="forbid", strict=True))
class Decision(TypedDict):
    """A cut as the store keeps it while its runs are made: ids instead of configurations."""

    lanes: bool
    compiled: bool
    blocks: list[list[RunId]]


@with_config(ConfigDict(extra="forbid", strict=True))
class Decisions(TypedDict):
    """All cuts of a plan."""

    cuts: list[Decision]


def cut(
    configs: Sequence[RunConfig],
    progress: SweepProgress,
    effort: Effort,
    *,
    workers: int,
    plan: str | None,
) -> tuple[Path, list[Cut]]:
    """Decide how the runs are made that the store does not have.

    A decision that was recorded (`agree`) holds until all runs are there: the last digits of a lane depend on the
    width of its block, so the same command cuts the same blocks after an interruption and in a second process.

    Args:
        configs: the runs; all have one store.
        progress: hears what was decided.
        effort: how they are made.
        workers: so many processes share the runs and the memory.
        plan: what the runs are made for (`RunResult.plan`).

    Returns:
        where the decision is recorded (`agree`), and the cuts.

    Raises:
        UserError: a run cannot be made, or not with this engine.
    """
    store = Store(configs[0].store)
    check_all(configs)
    by_id = {config.run_id: config for config in configs}
    path = store.folder / PLANS / f"{_key(by_id, effort, workers)}.json"
    there = store.find_all(by_id)
    todo = {
        run_id: config
        for run_id, config in by_id.items()
        if run_id not in there or there[run_id].runs[run_id].status not in FINISHED
    }
    if len(todo) < len(by_id):
        progress.say(f"{len(by_id) - len(todo)} of {len(by_id)} runs are stored")
    alike: dict[tuple[object, ...], list[RunConfig]] = {}
    for config in todo.values():
        alike.setdefault(block_key(config), []).append(config)
    obstacles = [why_no_lanes(group[0]) for group in alike.values()]
    if effort.engine == "lanes" and any(obstacles):
        raise UserError(f"--engine lanes: {next(filter(None, obstacles))}; use --engine lightning")
    if not todo:
        forget(path)
        return path, []
    recorded = _recorded(path, todo, plan)
    if recorded is not None:
        return path, recorded
    choices = Choices(effort.engine, effort.width, effort.memory, progress.say, workers)
    cuts = []
    for group in sorted(alike.values(), key=len, reverse=True):  # what is measured of the largest holds for all
        choice = choices.of(group)
        blocks = list(rectangles(group, choice.width)) if choice.lanes else [[[config]] for config in group]
        cuts.append(Cut(choice.lanes, choice.compiled, blocks, plan))
    return path, cuts


def agree(path: Path, cuts: Sequence[Cut]) -> list[Cut]:
    """Record cuts, or return those of another process that was first.

    A store that cannot be written says so when the first block begins.
    """
    if any(each.lanes for each in cuts):
        with suppress(OSError):
            _record(path, cuts)
    plan = next((each.plan for each in cuts), None)
    return _recorded(path, {run.run_id: run for each in cuts for run in each.runs}, plan) or list(cuts)


def forget(path: Path) -> None:
    """Remove a record of cuts whose runs are there, and the folder after the last."""
    with suppress(OSError):
        path.unlink()
        path.parent.rmdir()


def _key(run_ids: Mapping[str, object], effort: Effort, workers: int) -> str:
    asked = json.dumps([sorted(run_ids), effort.engine, effort.width, workers])
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def _record(path: Path, cuts: Sequence[Cut]) -> None:
    """Write the cuts, unless others are there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_name(f".{uuid4().hex}")
    decisions: Decisions = {
        "cuts": [
            {
                "lanes": each.lanes,
                "compiled": each.compiled,
                "blocks": [[config.run_id for row in grid for config in row] for grid in each.blocks],
            }
            for each in cuts
        ]
    }
    try:
        write_json(own, decisions)
        with suppress(FileExistsError):
            os.link(own, path)
    finally:
        own.unlink(missing_ok=True)


def _recorded(path: Path, todo: Mapping[str, RunConfig], plan: str | None) -> list[Cut] | None:
    """The cuts that were recorded, without the runs that are there; None if they are not all that is to be made."""
    try:
        found = read(path, Decisions)
    except FileNotFoundError:
        return None
    except Damaged:
        forget(path)
        return None
    cuts = []
    for each in found["cuts"]:
        left = [[todo[run_id] for run_id in block if run_id in todo] for block in each["blocks"]]
        if any(left):
            blocks = [grid for block in left if block for grid in rectangles(block, len(block))]
            cuts.append(Cut(each["lanes"], each["compiled"], blocks, plan))
    cut_ids = [config.run_id for own in cuts for config in own.runs]
    if sorted(cut_ids) != sorted(todo) or any(len({*map(block_key, own.runs)}) > 1 for own in cuts):
        forget(path)
        return None
    return cuts
