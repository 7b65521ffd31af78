"""Blocks: runs that train together."""

from collections.abc import Iterator, Sequence
from typing import Any

from bench.config.checks import check, check_early
from bench.config.run_config import RunConfig


def check_all(configs: Sequence[RunConfig], *, early: bool = False) -> None:
    """Refuse runs that cannot run; `early` checks only what needs no torch.

    Raises:
        UserError: a value is invalid; the message says which and what to do.
    """
    for config in {(block_key(config), repr(config.opt_options)): config for config in configs}.values():
        (check_early if early else check)(config)


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
