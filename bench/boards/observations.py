"""Observations of attention (`--trainer.observe`) in the tables of runs: means over heads, equal loss."""

import re
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from bench.boards.collect import Collected
from bench.boards.entries import Entry, Problem
from bench.results.group import Seed
from bench.results.stats import Array
from bench.store.tables import Columns

SHOWN = {
    "entropy": "entropy of attention (nats)",
    "top_token": "attention on the most attended token",
    "rank": "attention rank",
    "saturated": "fraction of saturated queries",
    "norm_QK": "norm of W_QK",
    "stable_rank_QK": "stable rank of W_QK",
}
"""Quantities of the board and of `bench plot attention`, averaged over heads; `bench sql` has the others."""
WINDOW = 0.1
"""A run's training loss after t steps is the mean of its batches' losses over this share of the t steps. Ours."""
WANTED = rf"loss|(?:{'|'.join(SHOWN)})_l\d+_h\d+"
"""Names of the columns that the board and the chart read."""
NONE = "no run has observations; train with `--trainer.observe 4`"


def tables_of(collected: Collected, problem: Problem) -> dict[Entry, dict[Seed, Mapping[str, Columns]]]:
    """The tables of each entry's runs, if some were observed, by seed."""
    entries = {
        entry: [run.config["trainer"].get("observe") for run in entry.runs.values()]
        for entry in collected.problems[problem]
    }
    return {entry: collected.read(entry, WANTED) if any(every) else {} for entry, every in entries.items()}


def over_heads(tables: Mapping[str, Columns], name: str) -> tuple[Array, Array] | None:
    """Steps, and the mean of a measurement over all heads, shape (P,) each; None without observations."""
    table = tables.get("measurements", {})
    heads = [table[column] for column in _heads(tuple(table), name)]
    return (table["step"], np.mean(heads, axis=0)) if heads else None


@lru_cache(maxsize=1000)  # thousands of runs have the same hundreds of columns
def _heads(columns: tuple[str, ...], name: str) -> list[str]:
    return [column for column in columns if re.fullmatch(rf"{name}_l\d+_h\d+", column)]


def loss_at(curve: Columns, steps: Array) -> Array:
    """Training loss after these numbers of steps, shape (P,): the mean over their last `WINDOW`; NaN for 0 steps."""
    sums = np.concatenate([[0.0], np.cumsum(curve["loss"])])
    last = np.searchsorted(curve["step"], steps, side="right")
    first = np.searchsorted(curve["step"], np.asarray(steps) * (1 - WINDOW), side="right")
    first = np.maximum(np.minimum(first, last - 1), 0)  # a thinned curve may have only an earlier step
    return np.where(last > 0, (sums[last] - sums[first]) / np.maximum(last - first, 1), np.nan)


def at_loss(losses: Array, values: Array, level: float) -> float | None:
    """The value where the loss first reaches a level, linear between measurements; None if it never does."""
    finite = np.isfinite(losses) & np.isfinite(values)
    losses, values = losses[finite], values[finite]
    below = np.flatnonzero(losses <= level)
    if not below.size:
        return None
    i, before = int(below[0]), max(0, int(below[0]) - 1)
    share = (losses[before] - level) / (losses[before] - losses[i]) if before < i else 1.0
    return float(values[before] + share * (values[i] - values[before]))


def observations(entry: Entry, read: Mapping[Seed, Mapping[str, Columns]]) -> dict[Seed, dict[str, Array]]:
    """The training `loss` and the shown quantities at the observed steps, by seed; without runs that lack them."""
    runs = {}
    for seed, tables in read.items():
        lines = {name: line for name in SHOWN if (line := over_heads(tables, name)) is not None}
        curve = tables.get("curve", {})
        if entry.runs[seed].status == "completed" and "entropy" in lines and "loss" in curve:
            loss = loss_at(curve, lines["entropy"][0])
            if np.isfinite(loss).any():
                runs[seed] = {"loss": loss} | {name: values for name, (_, values) in lines.items()}
    return runs
