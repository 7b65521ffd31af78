"""Blocks: runs that train together."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bench.checks import check, check_early
from bench.config import RunConfig
from bench.errors import UserError


def check_all(configs: Sequence[RunConfig], *, early: bool = False) -> None:
    """Refuse runs that cannot run, or not with others, before training.

    Args:
        configs: the runs.
        early: check only what needs no torch.

    Raises:
        UserError: with the value at fault and what to do.
    """
    for config in {(block_key(config), repr(config.opt_options)): config for config in configs}.values():
        (check_early if early else check)(config)
        ranks = config.trainer.ranks
        if ranks > 1:  # each of them would carry out all runs
            raise UserError(
                f"a run of {config.task} with {config.opt} needs {ranks} devices;"
                " remove --trainer.devices and distribute the runs over the devices with --workers"
            )


def block_key(config: RunConfig) -> tuple[Any, ...]:
    """Common part of the lanes of a block: all except seeds and hyperparameters that are numbers with a fraction."""
    # Tuples, such as Adam's betas, are shared: rounded to float32, 1 - beta would differ from a run alone.
    static = {k: None if isinstance(value, float) else repr(value) for k, value in config.opt_options.items()}
    rest = config.model_dump(mode="json", exclude={"opt_options", "seed", "data_seed"})
    return repr(rest), repr(static)


def problem_key(config: RunConfig) -> tuple[int, int]:
    """Additional common part of the lanes of one row."""
    return config.seed, config.data_seed


def rows(configs: Iterable[RunConfig]) -> list[list[RunConfig]]:
    """Configurations by the problem that they share (`problem_key`)."""
    found: dict[tuple[int, int], list[RunConfig]] = {}
    for config in configs:
        found.setdefault(problem_key(config), []).append(config)
    return list(found.values())


def rectangles(configs: Sequence[RunConfig], width: int) -> Iterator[list[list[RunConfig]]]:
    """Cut configurations with one `block_key` into rectangles of at most `width` lanes (one row at least).

    Rows have one problem each; where a problem has more than `width` lanes it is cut.
    """
    by_length: dict[int, list[list[RunConfig]]] = {}
    for row in rows(configs):
        parts = -(-len(row) // width)
        for i in range(parts):
            part = row[len(row) * i // parts : len(row) * (i + 1) // parts]
            by_length.setdefault(len(part), []).append(part)
    for length, alike in by_length.items():
        count = -(-len(alike) // max(1, width // length))  # blocks of about the same size
        for i in range(count):
            yield alike[len(alike) * i // count : len(alike) * (i + 1) // count]
