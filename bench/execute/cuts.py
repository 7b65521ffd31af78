"""How the runs of a plan are cut into blocks, decided once and recorded, so that all who work on it agree."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from bench.config import RunConfig
from bench.errors import UserError
from bench.execute.blocks import block_key, check_all, rectangles
from bench.execute.choice import Choices, why_no_lanes
from bench.execute.plan import CUTS, Plan, write_once
from bench.progress import SweepProgress
from bench.stop import StopRequest
from bench.store.files import making
from bench.store.load import Damaged, read
from bench.store.record import RunId

MAX_IMBALANCE = 1.2
"""Times its even share that a process may have to do. Ours."""
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
        tuned_by: the study that their hyperparameters come from.
        lanes_required: if not, the runs of a block that breaks are made one after the other.
    """

    lanes: bool
    compiled: bool
    blocks: Sequence[Grid]
    plan: str
    tuned_by: str | None = None
    lanes_required: bool = False

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
    plan: Plan, progress: SweepProgress, stop: StopRequest, *, memory: int | None = None, processes: int = 1
) -> list[Cut]:
    """Decide how the runs are made that the store does not have, and record that.

    What was recorded holds until all runs are there: the last digits of a lane depend on the width of its block, so the
    same command cuts the same blocks after an interruption and in a second process.

    Args:
        plan: the runs.
        progress: hears what was decided.
        stop: if a signal asked to stop while the decision was made, it is not recorded.
        memory: bytes that all blocks of this machine together may take; 80 % of what is free by default.
        processes: so many processes of this machine share its memory.

    Raises:
        UserError: a run cannot be made, or not with this engine, or the store cannot be written.
        RunFailed: the disk is full.
    """
    check_all(plan.configs)
    todo = plan.missing()
    if len(todo) < len(plan.by_id):
        progress.say(f"{len(plan.by_id) - len(todo)} of {len(plan.by_id)} runs are stored")
    alike: dict[tuple[object, ...], list[RunConfig]] = {}
    for config in todo.values():
        alike.setdefault(block_key(config), []).append(config)
    obstacles = [why_no_lanes(group[0]) for group in alike.values()]
    if plan.engine == "lanes" and any(obstacles):
        raise UserError(f"--engine lanes: {next(filter(None, obstacles))}; use --engine lightning")
    if not todo:
        return []
    recorded = _recorded(plan, todo)
    if recorded is not None:
        plan.keep()
        return recorded
    choices = Choices(plan.engine, plan.width, memory, progress.say, processes)
    groups = sorted(alike.values(), key=len, reverse=True)  # what is measured of the largest holds for all
    chosen = [(group, choices.of(group)) for group in groups]
    blocks = balanced(
        [(group, choice.width if choice.lanes else 1) for group, choice in chosen],
        plan.shares if plan.width is None else 1,
    )
    cuts = [
        Cut(choice.lanes, choice.compiled, own, plan.title, plan.tuned_by, plan.engine == "lanes")
        for (_, choice), own in zip(chosen, blocks, strict=True)
    ]
    cuts.sort(key=lambda each: -max(map(work_of, each.blocks)))  # what takes longest begins first
    if len(plan.configs) == 1 or stop.signal is not None:
        return cuts
    plan.keep()
    with making(plan.store.folder):
        write_once(plan.folder / CUTS, lambda: _as_stored(cuts))
    return _recorded(plan, plan.missing()) or cuts  # others may have ended runs meanwhile


def balanced(groups: Sequence[tuple[Sequence[RunConfig], int]], shares: int) -> list[list[Grid]]:
    """Cut groups of runs into blocks of which each process has about the same work.

    A step of a wide block costs less for each lane, so blocks are cut no smaller than that asks for: while the process
    with most to do has more than `MAX_IMBALANCE` times its share, the block that takes longest is cut into one more.

    Args:
        groups: runs that are alike, with the lanes that a block of them has at most.
        shares: processes.

    Returns:
        The blocks of each group.
    """
    works = [work_of([list(group)]) for group, _ in groups]
    even = sum(works) / shares
    parts = [max(1, int(work / even + 1e-9)) for work in works]
    while True:
        widths = [min(width, -(-len(group) // count)) for (group, width), count in zip(groups, parts, strict=True)]
        found = [list(rectangles(group, width)) for (group, _), width in zip(groups, widths, strict=True)]
        sizes = sorted(((work_of(block), i) for i, blocks in enumerate(found) for block in blocks), reverse=True)
        loads = [0.0] * shares
        for size, _ in sizes:
            loads[loads.index(min(loads))] += size
        longest = sizes[0][1]
        if max(loads) <= MAX_IMBALANCE * even or widths[longest] == 1:
            return found
        while -(-len(groups[longest][0]) // parts[longest]) >= widths[longest]:
            parts[longest] += 1


def work_of(block: Grid) -> float:
    """Steps of all lanes of a block, or passes over the data where those count."""
    options = block[0][0].trainer
    return sum(map(len, block)) * float(options.max_steps or options.max_epochs or 1)


def recorded_cuts(plan: Plan) -> list[Cut]:
    """The cuts that were recorded for the runs that are missing."""
    return _recorded(plan, plan.missing()) or []


def _as_stored(cuts: Sequence[Cut]) -> Decisions:
    return {
        "cuts": [
            {
                "lanes": each.lanes,
                "compiled": each.compiled,
                "blocks": [[config.run_id for row in grid for config in row] for grid in each.blocks],
            }
            for each in cuts
        ]
    }


def _recorded(plan: Plan, todo: Mapping[str, RunConfig]) -> list[Cut] | None:
    """The cuts that were recorded, without the runs that are there; None if they are not all that is to be made."""
    path = plan.folder / CUTS
    try:
        found = read(path, Decisions)
    except FileNotFoundError:
        return None
    except Damaged:
        _drop(path)
        return None
    cuts = []
    for each in found["cuts"]:
        left = [[todo[run_id] for run_id in block if run_id in todo] for block in each["blocks"]]
        if any(left):
            blocks = [grid for block in left if block for grid in rectangles(block, len(block))]
            cuts.append(Cut(each["lanes"], each["compiled"], blocks, plan.title, plan.tuned_by, plan.engine == "lanes"))
    cut_ids = [config.run_id for own in cuts for config in own.runs]
    if sorted(cut_ids) != sorted(todo) or any(len({*map(block_key, own.runs)}) > 1 for own in cuts):
        _drop(path)
        return None
    return cuts


def _drop(path: Path) -> None:
    """Remove a record that is of no use, so that there can be another."""
    with suppress(OSError):
        path.unlink()
