"""The board of observed attention (`--trainer.observe`): at equal training loss, and at the end."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.boards.collect import Collected
from bench.boards.entries import Entry, Problem
from bench.boards.observations import NONE, SHOWN, at_loss, directions, observations, rate
from bench.boards.shared import board_table
from bench.results import sequential, stats
from bench.results.group import Seed, mean_interval
from bench.results.stats import Interval
from bench.results.table import Board, Column, Table

_RANGES = {"top_token": (0.0, 1.0), "saturated": (0.0, 1.0), "cosine": (-1.0, 1.0)}
"""Ends of quantities; others are not negative."""
ENDS = {"entropy": "entropy", "top_token": "most attended token", "stable_rank_QK": "stable rank of W_QK"}
"""Quantities shown at the end of training too."""
SHARES = (0, 0.1, 0.5)
"""Shares of the steps at which the direction of W_QK is shown."""
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
_COSINE = f"cosine of W_QK at the last snapshot until then with W_QK at the end: {_MEAN}"
_EXPONENT = (
    "a of t^-a, the distance to the final direction between 1 % and 10 % of the steps; for one trained head, theory"
    " says at least 0.5 under normalized GD (Vasudeva et al. 2025)"
)
_DIRECTIONS = [
    *(
        Column(
            f"cosine_{share:g}", f"cosine {f'after {share:.0%} of the steps' if share else 'at the start'}", _COSINE, 3
        )
        for share in SHARES
    ),
    Column("rate", "exponent of the distance", _EXPONENT, 3),
]


def attention_board(collected: Collected) -> Board:
    """Attention at equal training loss and at the end of training."""
    tables = [table for problem in collected.problems for table in _tables(collected, problem)]
    about = "neither direction is better; verdicts and intervals are not corrected for multiple comparisons"
    return Board("attention", "Attention", tables, [about if tables else NONE])


def _tables(collected: Collected, problem: Problem) -> list[Table]:
    """Attention, and when the direction of W_QK is the final one; the latter only with snapshots."""
    read = {entry: collected.read(entry) for entry in collected.problems[problem]}
    observed = {entry: runs for entry, tables in read.items() if (runs := observations(entry, tables))}
    if not observed:
        return []
    sound = [entry for entry in observed if not entry.refused] or observed
    level = max(float(np.nanmin(run["loss"])) for entry in sound for run in observed[entry].values())
    ref, rows, turns = collected.reference_of(problem), dict[Entry, dict[str, Any]](), dict[Entry, dict[str, Any]]()

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
        cosines = [directions(read[entry][seed]) for seed in runs]
        if all(0 in snapshots for snapshots in cosines):
            turns[entry] = {"n": len(runs), "rate": mean_interval([rate(snapshots) for snapshots in cosines])}
            for share in SHARES:
                values = [snapshots[max(t for t in snapshots if t <= share * max(snapshots))] for snapshots in cosines]
                turns[entry][f"cosine_{share:g}"] = _mean("cosine", values)
    name = f" ({ref.name} is the reference)" if ref is not None else ""
    notes = [f"equal loss: training loss {level:.4g}, the lowest that all compared runs reach{name}"]
    about = ["snapshots are log-spaced; a direction that hardly moves has a cosine near 1 at the start"]
    direction = board_table(f"{problem.name}: direction of W_QK", _DIRECTIONS, turns, about)
    return [board_table(problem.name, _COLUMNS, rows, notes), *[direction] * bool(turns)]


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
