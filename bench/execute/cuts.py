"""The division of a plan's runs into blocks, decided once and recorded, so that all processes agree.

STORE/cuts/NAME.json    the blocks of a plan; the first writer decides; removed when all runs are stored
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from uuid import uuid4

from bench.config.checks import check_engine
from bench.config.run_config import RunConfig
from bench.execute.blocks import block_key, check_all, rectangles
from bench.execute.choice import Choice, Choices
from bench.execute.plan import Decision, Decisions, Plan
from bench.lanes.runs import Grid
from bench.progress import SweepProgress
from bench.store.files import link, making, remove, write_json
from bench.store.load import Damaged, read
from bench.train.stop import StopRequest

MAX_IMBALANCE = 1.2
"""Maximum load of a process relative to its even share. Ours."""


@dataclass(frozen=True)
class Cut:
    """How similar runs (`block_key`) are executed.

    Attributes:
        lanes: as lanes, block by block, or one run at a time.
        blocks: the runs.
    """

    lanes: bool
    blocks: Sequence[Grid]

    @property
    def runs(self) -> list[RunConfig]:
        """All runs."""
        return [config for grid in self.blocks for row in grid for config in row]


def decisions(cuts: Sequence[Cut]) -> list[Decision]:
    """Cuts with ids instead of configurations."""
    return [
        {
            "lanes": each.lanes,
            "blocks": [[config.run_id for row in grid for config in row] for grid in each.blocks],
        }
        for each in cuts
    ]


def cuts_of(decided: Sequence[Decision], runs: Mapping[str, RunConfig]) -> list[Cut]:
    """The decided cuts of these runs, without other ones."""
    cuts = []
    for each in decided:
        left = [[runs[run_id] for run_id in block if run_id in runs] for block in each["blocks"]]
        if any(left):
            blocks = [grid for block in left if block for grid in rectangles(block, len(block))]
            cuts.append(Cut(each["lanes"], blocks))
    return cuts


def cut(
    plan: Plan,
    progress: SweepProgress,
    stop: StopRequest,
    *,
    processes: int = 1,
    measured: dict[object, Choice] | None = None,
) -> list[Cut]:
    """Decide how missing runs are executed, longest first, and record it.

    The record holds until all runs are finished: the last digits of a lane depend on the width of its block, so the
    same command must use the same blocks after an interruption and in a second process. If a signal asks to stop
    meanwhile, nothing is recorded.

    Raises:
        UserError: a run cannot be trained, or not with this engine, or the store cannot be written.
        RunFailed: the disk is full.
    """
    check_all(plan.configs)
    todo = plan.missing()
    if len(todo) < len(plan.by_id):
        progress.say(f"{len(plan.by_id) - len(todo)} of {len(plan.by_id)} runs are stored")
    alike: dict[tuple[object, ...], list[RunConfig]] = {}
    for config in todo.values():
        alike.setdefault(block_key(config), []).append(config)
    check_engine(plan.engine, (group[0] for group in alike.values()))
    if not todo:
        return []
    if recorded := _recorded(plan, todo):
        return recorded
    choices = Choices(plan.engine, plan.width, progress.say, processes, stop, measured)
    groups = sorted(alike.values(), key=len, reverse=True)  # the largest is measured, the others reuse its result
    chosen = [(group, choices.of(group)) for group in groups]
    unit = next((sum(choice.seconds) / _steps(group[0]) for group, choice in chosen if choice.seconds is not None), 1.0)
    wanted = [Group(own, choice.width, choice.seconds or (0.0, unit * _steps(own[0]))) for own, choice in chosen]
    blocks = balanced(wanted, plan.shares if plan.width is None else 1)
    longest = [max(map(group.seconds, own)) for group, own in zip(wanted, blocks, strict=True)]
    cuts, alone = list[Cut](), set[str]()
    for i in sorted(range(len(blocks)), key=lambda i: -longest[i]):
        group, choice = chosen[i]
        if choice.lanes:
            cuts.append(Cut(True, blocks[i]))
        else:
            alone |= {config.run_id for config in group}
    if alone:  # in the order of the plan, in which optimizers may alternate
        cuts.append(Cut(False, [[[config]] for run_id, config in todo.items() if run_id in alone]))
    if len(plan.configs) == 1 or stop.signal is not None:
        return cuts
    with making(plan.store.folder):
        _write_once(plan.cuts, {"cuts": decisions(cuts)})
    return _recorded(plan, plan.missing()) or cuts  # other processes may have finished runs meanwhile


def _write_once(path: Path, content: Decisions) -> None:
    """Write strict JSON into a file of the store, unless it exists: of several writers, the first one decides.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f".{uuid4().hex}")
    for last in [False] * 20 + [True]:
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_json(temporary, content)
            with suppress(FileExistsError):
                link(temporary, path)
            return
        except FileNotFoundError:  # another process has removed the folder, or this file
            if last:
                raise
        finally:
            temporary.unlink(missing_ok=True)


@dataclass(frozen=True)
class Group:
    """Similar runs (`block_key`).

    Attributes:
        runs: the runs.
        width: maximum lanes of a block.
        line: seconds of a block: the fixed part, and the seconds that each lane adds.
    """

    runs: Sequence[RunConfig]
    width: int
    line: tuple[float, float]

    def seconds(self, block: Grid) -> float:
        """Estimated seconds of a block of these runs."""
        fixed, each = self.line
        return fixed + each * sum(map(len, block))


def _steps(config: RunConfig) -> float:
    """Steps of a run, or epochs if the budget is in epochs."""
    return float(config.trainer.max_steps or config.trainer.max_epochs or 1)


def balanced(groups: Sequence[Group], shares: int) -> Sequence[Sequence[Grid]]:
    """Divide groups of runs into blocks that `shares` processes finish early.

    Wide blocks cost less per lane, so blocks are divided only as far as balance requires: while a process has more than
    `MAX_IMBALANCE` times its even share, the group with the longest block gets one more block. Among the divisions
    tried, the one whose last process ends first is returned.

    Returns:
        The blocks of each group.
    """
    parts, best, even = [1] * len(groups), (inf, list[list[Grid]]()), 0.0
    while True:
        widths = [min(group.width, -(-len(group.runs) // count)) for group, count in zip(groups, parts, strict=True)]
        found = [list(rectangles(group.runs, width)) for group, width in zip(groups, widths, strict=True)]
        sizes = [(group.seconds(block), i) for i, group in enumerate(groups) for block in found[i]]
        even = even or sum(size for size, _ in sizes) / shares
        loads = [0.0] * shares
        for size, _ in sorted(sizes, reverse=True):
            loads[loads.index(min(loads))] += size
        if max(loads) < best[0]:
            best = max(loads), found
        longest = max(sizes)[1]
        if max(loads) <= MAX_IMBALANCE * even or widths[longest] == 1:
            return best[1]
        while -(-len(groups[longest].runs) // parts[longest]) >= widths[longest]:
            parts[longest] += 1


def _recorded(plan: Plan, todo: Mapping[str, RunConfig]) -> list[Cut]:
    """The recorded cuts of these runs; none if they do not match them."""
    try:
        cuts = cuts_of(read(plan.cuts, Decisions)["cuts"], todo)
    except FileNotFoundError:
        return []
    except Damaged:
        remove(plan.cuts)
        return []
    cut_ids = [config.run_id for each in cuts for config in each.runs]
    if sorted(cut_ids) != sorted(todo) or any(each.lanes and len({*map(block_key, each.runs)}) > 1 for each in cuts):
        remove(plan.cuts)
        return []
    return cuts
