"""The board of observed attention (`--trainer.observe`): at equal training loss, and at the end; means over heads."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.boards.collect import Collected, Entry, Problem
from bench.boards.shared import board_table
from bench.results import sequential, stats
from bench.results.group import Seed, mean_interval
from bench.results.stats import Array, Interval
from bench.results.table import Board, Column, Table
from bench.store.block import Columns

SHOWN = {
    "entropy": "entropy of attention (nats)",
    "top_token": "attention on the most attended token",
    "rank": "attention rank",
    "saturated": "fraction of saturated queries",
    "norm_QK": "norm of W_QK",
    "stable_rank_QK": "stable rank of W_QK",
}
"""Quantities of the board and of `bench plot attention`, averaged over heads; `bench sql` has the others."""
WINDOW = 0.1  # a run's training loss after t steps is the mean over this share of the t steps; ours
WANTED = rf"loss|(?:{'|'.join(SHOWN)})_l\d+_h\d+"  # columns that the board and the chart read
NONE = "no run has observations; train with `--trainer.observe 4`"
_RANGES = {"top_token": (0.0, 1.0), "saturated": (0.0, 1.0)}  # ends of quantities; others are not negative
ENDS = ("entropy", "top_token", "stable_rank_QK")  # shown at the end of training too
_LOWER = (
    "sparser: of lower entropy than the reference's at equal loss, by the sign test over common seeds at 5 % a row,"
    " also when larger seeds are added"
)
_MEAN = "mean over heads, then over seeds with 95 % t-interval"
_COLUMNS = [
    *(Column(name, title, f"{title}: {_MEAN}, at equal loss", 3) for name, title in SHOWN.items()),
    Column("difference", "entropy minus reference's", "mean over common seeds with 95 % t-interval", 3),
    Column("verdict", "attention is", _LOWER),
    Column("start_entropy", "entropy at the start", "before the first step", 3),
    *(Column(f"end_{name}", f"{SHOWN[name]} at the end", "after the last step", 3) for name in ENDS),
]


def attention_board(collected: Collected) -> Board:
    """Attention at equal training loss and at the end of training."""
    tables = [table for problem in collected.problems if (table := _table(collected, problem)) is not None]
    about = "neither direction is better; verdicts and intervals are not corrected for multiple comparisons"
    return Board("attention", "Attention", tables, [about if tables else NONE])


def _table(collected: Collected, problem: Problem) -> Table | None:
    tables = tables_of(collected, problem).items()
    observed = {entry: runs for entry, read in tables if (runs := observations(entry, read))}
    if not observed:
        return None
    sound = [entry for entry in observed if not entry.refused] or observed
    level = max(float(np.nanmin(run["loss"])) for entry in sound for run in observed[entry].values())
    ref, rows = collected.reference_of(problem), dict[Entry, dict[str, Any]]()

    def at(entry: Entry | None, name: str) -> dict[Seed, float | None]:
        """A quantity at equal loss, of each run that measured it."""
        runs = observed.get(entry, {}).items() if entry else ()
        return {seed: at_loss(run["loss"], run[name], level) for seed, run in runs if name in run}

    for entry, runs in observed.items():
        why = entry.refused or (ref and ref.refused and f"the reference: {ref.refused}")
        verdict = {"difference": None, "verdict": f"not compared: {why}"}
        if not why:
            common = entry.common_seeds(ref) if ref else []
            verdict = against(*({s: x for s, x in at(e, "entropy").items() if s in common} for e in (entry, ref)))
        verdict = {"verdict": "reference"} if entry is ref else verdict
        rows[entry] = {
            "n": len(runs),
            **verdict,
            **{name: _mean(name, [*at(entry, name).values()], "do not reach it") for name in SHOWN},
            "start_entropy": _mean("entropy", [run["entropy"][0] for run in runs.values()]),
            **{f"end_{name}": _mean(name, [run[name][-1] for run in runs.values() if name in run]) for name in ENDS},
        }
    name = f" ({ref.name} is the reference)" if ref is not None else ""
    note = f"equal loss: training loss {level:.4g}, the lowest that all compared runs reach{name}"
    return board_table(problem.name, _COLUMNS, rows, [note])


def _mean(name: str, values: Sequence[float | None], lacking: str = "have none") -> Interval | str | None:
    """The mean of a quantity over seeds, or the reason why there is none: the stable rank of 0 is NaN."""
    missing = sum(value is None or not math.isfinite(value) for value in values)
    mean = mean_interval(values, ends=_RANGES.get(name, (0.0, math.inf)))
    return f"{missing} of {len(values)} runs {lacking}" if missing else mean


def against(values: Mapping[Seed, float | None], base: Mapping[Seed, float | None]) -> dict[str, Any]:
    """Entropy against the reference's on common seeds: mean difference with t-interval, and a verdict in words."""
    pairs = [(a, b) for seed, a in values.items() if a is not None and (b := base.get(seed)) is not None]
    if not pairs:
        return {"difference": None, "verdict": None}
    comparison = sequential.compare([a for a, _ in pairs], [b for _, b in pairs], "min")
    words = {1: "sparser", -1: "less sparse", 0: comparison.verdict}
    return {"difference": stats.t_interval([a - b for a, b in pairs]), "verdict": words[comparison.sign]}


def tables_of(collected: Collected, problem: Problem) -> dict[Entry, dict[Seed, Mapping[str, Columns]]]:
    """The tables of each entry's runs, if some were observed, by seed."""
    entries = collected.problems[problem]
    observed = {e for e in entries if any(run.config["trainer"].get("observe") for run in e.runs.values())}
    return {entry: collected.read(entry, WANTED) if entry in observed else {} for entry in entries}


def over_heads(tables: Mapping[str, Columns], name: str) -> tuple[Array, Array] | None:
    """Steps, and the mean of a measurement over all heads, shape (P,) each; None without observations."""
    table = tables.get("measurements", {})
    heads = [values for column, values in table.items() if column.startswith(f"{name}_l")]
    return (table["step"], np.mean(heads, axis=0)) if heads else None


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
    ends = [below[0], max(0, below[0] - 1)]
    return float(np.interp(level, losses[ends], values[ends]))


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
