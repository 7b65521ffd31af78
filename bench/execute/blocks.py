"""Blocks: runs that train together."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bench.config.checks import check, check_early
from bench.config.files import TunedBy
from bench.config.run_config import RunConfig
from bench.store.record import RunResult
from bench.store.stores import Contents

SINGLE_SHARE = 0.1
"""Runs one by one in the store decide for a group if they are at least this share of it, and two: a few of a large
group may be from a small one, where lanes did not pay. Ours."""


@dataclass(frozen=True)
class Choice:
    """How a group of runs is executed: as lanes, at most `width` in a block, or one run at a time."""

    lanes: bool
    width: int


ONE_BY_ONE = Choice(lanes=False, width=1)


@dataclass(frozen=True)
class Block:
    """Runs that train together as lanes, or one run by the Trainer."""

    grid: Sequence[Sequence[RunConfig]]  # a row shares task, seed and data seed
    lanes: bool
    width: int | None = None  # the measured maximum of lanes, for the record, if it divides the group
    plan: str = "runs"  # the purpose (`RunResult.plan`)
    tuned_by: TunedBy | None = None  # the study that found the hyperparameters

    @cached_property
    def runs(self) -> dict[str, RunConfig]:
        """The configurations by id, in the order of the block's records."""
        return {config.run_id: config for row in self.grid for config in row}

    @property
    def first(self) -> RunConfig:
        """The first configuration."""
        return self.grid[0][0]


def check_all(configs: Sequence[RunConfig], *, early: bool = False) -> None:
    """Refuse runs that cannot run (UserError); `early` checks only what needs no torch."""
    for config in {(block_key(config), repr(config.opt_options)): config for config in configs}.values():
        (check_early if early else check)(config)


def missing(configs: Sequence[RunConfig]) -> dict[str, RunConfig]:
    """The runs that are not finished in their common store, by id."""
    by_id = {config.run_id: config for config in configs}
    finished = Contents([configs[0].store], by_id).finished
    return {run_id: config for run_id, config in by_id.items() if run_id not in finished}


def block_key(config: RunConfig) -> tuple[Any, ...]:
    """The settings that all lanes of a block share: everything except seeds and float hyperparameters."""
    # Tuples, such as Adam's betas, are shared: in float32, 1 - beta would differ from that of a single run.
    static = {k: None if isinstance(value, float) else repr(value) for k, value in config.opt_options.items()}
    rest = config.model_dump(mode="json", exclude={"opt_options", "seed", "data_seed"})
    return repr(rest), repr(static)


def rectangles(configs: Sequence[RunConfig], width: int) -> Iterator[list[list[RunConfig]]]:
    """Cut configurations with one `block_key` into rectangles of at most `width` lanes (one row at least).

    Each row has one problem, given by its seeds; a problem with more than `width` lanes is divided into several rows.
    """
    problems: dict[tuple[int, int], list[RunConfig]] = {}
    for config in configs:
        problems.setdefault((config.seed, config.data_seed), []).append(config)
    by_length: dict[int, list[list[RunConfig]]] = {}
    for row in problems.values():
        parts = -(-len(row) // width)
        for i in range(parts):
            part = row[len(row) * i // parts : len(row) * (i + 1) // parts]
            by_length.setdefault(len(part), []).append(part)
    for length, alike in by_length.items():
        count = -(-len(alike) // max(1, width // length))  # blocks of about the same size
        for i in range(count):
            yield alike[len(alike) * i // count : len(alike) * (i + 1) // count]


def stored_choice(group: Sequence[RunConfig], stored: Mapping[str, RunResult], *, lanes: bool) -> Choice | None:
    """The choice with which stored runs of a group were executed, so that a repeated command makes the same blocks.

    None if unknown, as for a run that was requested alone. With `lanes`, missing runs must be lanes.
    """
    runs = [run for config in group if (run := stored.get(config.run_id)) is not None and run.plan is not None]
    engines = {run.engine for run in runs}
    if len(runs) == len(group) and all(run.finished for run in runs):
        return Choice(lanes="lanes" in engines, width=len(group))
    widths = [width for run in runs if isinstance(width := run.environment.get("width"), int)]
    if widths:
        return Choice(lanes=True, width=min(widths))
    few = len(runs) < max(2, SINGLE_SHARE * len(group))
    return None if few or lanes or "lanes" in engines else ONE_BY_ONE


def cut(
    runs: Mapping[str, RunConfig], groups: Sequence[tuple[Sequence[RunConfig], Choice]], shares: int, *, record: bool
) -> list[Block]:
    """Divide runs into blocks for `shares` processes: lanes first, then single runs in their order.

    The last digits of a lane depend on the width of its block, so blocks depend on the requested runs and the choices
    of their groups only. With `record`, widths were measured, and go into the records.
    """
    lanes = [group for group in groups if group[1].lanes]
    most = -(-sum(len(group) for group, _ in lanes) // shares)
    blocks = [
        Block(grid, lanes=True, width=choice.width if record and choice.width < len(group) else None)
        for group, choice in lanes
        for grid in rectangles(group, max(1, min(choice.width, most)))
    ]
    together = {id(config) for block in blocks for row in block.grid for config in row}
    return blocks + [Block([[config]], lanes=False) for config in runs.values() if id(config) not in together]
