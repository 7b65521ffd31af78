"""The board of observed attention (`--trainer.observe`): at equal training loss, and at the end."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.boards.collect import Collected
from bench.boards.entries import Entry, Problem
from bench.boards.observations import NONE, SHOWN, at_loss, observations, tables_of
from bench.boards.shared import board_table
from bench.results import sequential, stats
from bench.results.group import Seed, mean_interval
from bench.results.stats import Interval
from bench.results.table import Board, Column, Table

_RANGES = {"top_token": (0.0, 1.0), "saturated": (0.0, 1.0)}
"""Ends of quantities; others are not negative."""
ENDS = {"entropy": "entropy", "top_token": "most attended token", "stable_rank_QK": "stable rank of W_QK"}
"""Quantities shown at the end of training too."""
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
    *(Column(f"end_{name}", f"{title} at the end", "after the last step", 3) for name, title in ENDS.items()),
]


def attention_board(collected: Collected) -> Board:
    """Attention at equal training loss and at the end of training."""
    tables = [table for problem in collected.problems if (table := _table(collected, problem)) is not None]
    about = "neither direction is better; verdicts and intervals are not corrected for multiple comparisons"
    return Board("attention", "Attention", tables, [about if tables else NONE])


def _table(collected: Collected, problem: Problem) -> Table | None:
    """The observed entries of a problem; None without any."""
    read = tables_of(collected, problem)
    observed = {entry: runs for entry, tables in read.items() if (runs := observations(entry, tables))}
    if not observed:
        return None
    sound = [entry for entry in observed if not entry.refused] or observed
    level = max(float(np.nanmin(run["loss"])) for entry in sound for run in observed[entry].values())
    ref, rows = collected.reference_of(problem), dict[Entry, dict[str, Any]]()

    def at(entry: Entry, name: str) -> dict[Seed, float | None]:
        """A quantity at equal loss, of each run that measured it."""
        runs = observed.get(entry, {}).items()
        return {seed: at_loss(run["loss"], run[name], level) for seed, run in runs if name in run}

    for entry, runs in observed.items():
        if entry is ref:
            verdict = {"verdict": "reference"}
        elif why := entry.refused or (ref and ref.refused and f"the reference: {ref.refused}"):
            verdict = {"difference": None, "verdict": f"not compared: {why}"}
        else:
            verdict = against(at(entry, "entropy"), at(ref, "entropy") if ref else {})
        rows[entry] = {
            "n": len(runs),
            **verdict,
            **{name: _mean(name, [*at(entry, name).values()], "do not reach it") for name in SHOWN},
            "start_entropy": _mean("entropy", [run["entropy"][0] for run in runs.values()]),
            **{f"end_{name}": _mean(name, [run[name][-1] for run in runs.values() if name in run]) for name in ENDS},
        }
    name = f" ({ref.name} is the reference)" if ref is not None else ""
    notes = [f"equal loss: training loss {level:.4g}, the lowest that all compared runs reach{name}"]
    return board_table(problem.name, _COLUMNS, rows, notes)


def _mean(name: str, values: Sequence[float | None], lacking: str = "have none") -> Interval | str | None:
    """The mean of a quantity over seeds, or the reason why there is none: the stable rank of 0 is NaN."""
    finite = [float(value) for value in values if value is not None and math.isfinite(value)]
    if missing := len(values) - len(finite):
        return f"{missing} of {len(values)} runs {lacking}"
    return mean_interval(finite, ends=_RANGES.get(name, (0.0, math.inf)))


def against(values: Mapping[Seed, float | None], base: Mapping[Seed, float | None]) -> dict[str, Any]:
    """Entropy against the reference's on common seeds: mean difference with t-interval, and a verdict in words."""
    pairs = [(a, b) for seed, a in values.items() if a is not None and (b := base.get(seed)) is not None]
    if not pairs:
        return {"difference": None, "verdict": None}
    comparison = sequential.compare([a for a, _ in pairs], [b for _, b in pairs], "min")
    words = {1: "sparser", -1: "less sparse", 0: comparison.verdict}
    return {"difference": stats.t_interval([a - b for a, b in pairs]), "verdict": words[comparison.sign]}
