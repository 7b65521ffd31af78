"""Observations of attention (`--trainer.observe`), at equal training loss and at the end."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.boards.collect import Collected
from bench.boards.entries import Entry
from bench.boards.shared import board_table
from bench.results import sequential, stats
from bench.results.group import Seed, mean_interval
from bench.results.stats import Array, Interval
from bench.results.table import Board, Column, Table
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
_RANGES = {"top_token": (0.0, 1.0), "saturated": (0.0, 1.0), "cosine": (-1.0, 1.0)}
"""Ends of quantities; others are not negative."""
ENDS = ("entropy", "top_token", "stable_rank_QK")
"""Quantities shown at the end of training too."""
WINDOW = 0.1
"""A run's training loss after t steps is the mean of its batches' losses over this share of the t steps. Ours."""
DIRECTION = re.compile(r"direction_at_(\d+)_l\d+_h\d+")
SHARES = (0, 0.1, 0.5)
"""Shares of the steps at which the direction of W_QK is shown."""
NONE = "no run has observations; train with `--trainer.observe 4`"


def over_heads(tables: Mapping[str, Columns], name: str) -> tuple[Array, Array] | None:
    """Steps, and the mean of a measurement over all heads, shape (P,) each; None without observations."""
    table = tables.get("measurements", {})
    heads = [values for column, values in table.items() if re.fullmatch(rf"{name}_l\d+_h\d+", column)]
    return (table["step"], np.mean(heads, axis=0)) if heads else None


def directions(tables: Mapping[str, Columns]) -> dict[int, float]:
    """For each snapshot after N steps, the cosine of W_QK with its value at the end of the run: mean over heads."""
    cosines: dict[int, list[float]] = {}
    for name, values in tables.get("measurements", {}).items():
        if (at := DIRECTION.fullmatch(name)) is not None:
            cosines.setdefault(int(at[1]), []).append(float(values[-1]))
    return {step: float(np.mean(cosines[step])) for step in sorted(cosines)}


def rate(cosines: Mapping[int, float]) -> float | None:
    """The exponent a of distance ~ t^-a between a hundredth and a tenth of the steps; None from fewer than 3 snapshots.

    The distance of the directions is sqrt(2 - 2 cosine), as in Vasudeva et al. 2025, to the final direction in place of
    the max-margin one; least squares in logarithms. The window is ours: later snapshots are near the end by definition.
    """
    last = max(cosines, default=0)
    gaps = {t: d for t, c in cosines.items() if last / 100 <= t <= last / 10 and (d := np.sqrt(max(2 - 2 * c, 0))) > 0}
    return -stats.slope(np.log(list(gaps)), np.log(list(gaps.values())))[0] if len(gaps) >= stats.LEAST_POINTS else None


def loss_at(curve: Columns, steps: Array) -> Array:
    """Training loss after these numbers of steps, shape (P,): the mean over their last `WINDOW`; NaN for 0 steps.

    A thinned curve has only some of these steps, or only an earlier one.
    """
    sums = np.concatenate([[0.0], np.cumsum(curve["loss"])])
    last = np.searchsorted(curve["step"], steps, side="right")
    first = np.searchsorted(curve["step"], np.asarray(steps) * (1 - WINDOW), side="right")
    first = np.maximum(np.minimum(first, last - 1), 0)
    return np.where(last > 0, (sums[last] - sums[first]) / np.maximum(last - first, 1), np.nan)


def at_loss(losses: Array, values: Array, level: float) -> float | None:
    """The value where the loss first reaches a level, linear between measurements; None if it never does."""
    finite = np.isfinite(losses) & np.isfinite(values)
    losses, values = losses[finite], values[finite]
    below = np.flatnonzero(losses <= level)
    if not below.size:
        return None
    i = int(below[0])
    if i == 0 or losses[i] == losses[i - 1]:
        return float(values[i])
    share = (losses[i - 1] - level) / (losses[i - 1] - losses[i])
    return float(values[i - 1] + share * (values[i] - values[i - 1]))


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


def attention_board(collected: Collected) -> Board:
    """Attention at equal training loss and at the end of training."""
    shown = []
    for problem, entries in collected.problems.items():
        read = {entry: collected.read(entry) for entry in entries}
        observed = {entry: runs for entry, tables in read.items() if (runs := observations(entry, tables))}
        if not observed:
            continue
        sound = [entry for entry in observed if not entry.refused] or observed
        level = max(float(np.nanmin(run["loss"])) for entry in sound for run in observed[entry].values())
        entropy = {entry: _at("entropy", level, runs) for entry, runs in observed.items()}
        of, rows = collected.reference_of(problem), {}
        for entry, runs in observed.items():
            if entry is of:
                verdict = {"verdict": "reference"}
            elif why := entry.refused or (of and of.refused and f"the reference: {of.refused}"):
                verdict = {"difference": None, "verdict": f"not compared: {why}"}
            else:
                verdict = against(entropy[entry], {} if of is None else entropy.get(of, {}))
            last = {name: [run[name] for run in runs.values() if name in run] for name in ENDS}
            rows[entry] = {
                "n": len(runs),
                **verdict,
                **{name: _mean(name, list(_at(name, level, runs).values()), "do not reach it") for name in SHOWN},
                "start_entropy": _mean("entropy", [run["entropy"][0] for run in runs.values()]),
                **{f"end_{name}": _mean(name, [values[-1] for values in tables]) for name, tables in last.items()},
            }
        columns = [
            *(
                Column(name, title, f"{title}: mean over heads, then over seeds with 95 % t-interval, at equal loss", 3)
                for name, title in SHOWN.items()
            ),
            Column("difference", "entropy minus reference's", "mean over common seeds with 95 % t-interval", 3),
            Column(
                "verdict",
                "attention is",
                "sparser: of lower entropy than the reference's at equal loss, by the "
                "sign test over common seeds at 5 % a row, also when larger seeds are added",
            ),
            Column("start_entropy", "entropy at the start", "before the first step", 3),
            Column("end_entropy", "entropy at the end", "after the last step", 3),
            Column("end_top_token", "most attended token at the end", "after the last step", 3),
            Column("end_stable_rank_QK", "stable rank of W_QK at the end", "after the last step", 3),
        ]
        name = f" ({of.name} is the reference)" if of is not None else ""
        notes = [f"equal loss: training loss {level:.4g}, the lowest that all compared runs reach{name}"]
        shown.append(board_table(problem.name, columns, rows, notes))
        cosines = {entry: [directions(read[entry][seed]) for seed in runs] for entry, runs in observed.items()}
        shown.extend(_direction(problem.name, cosines))
    about = "neither direction is better; verdicts and intervals are not corrected for multiple comparisons"
    return Board("attention", "Attention", shown, [about] if shown else [NONE])


def _at(name: str, level: float, runs: Mapping[Seed, Mapping[str, Array]]) -> dict[Seed, float | None]:
    """A quantity at a level of the loss, of each run that measured it."""
    return {seed: at_loss(run["loss"], run[name], level) for seed, run in runs.items() if name in run}


def _direction(problem: str, cosines: Mapping[Entry, Sequence[Mapping[int, float]]]) -> list[Table]:
    """When the direction of W_QK is the final one; no table without snapshots."""
    rows = {}
    for entry, runs in cosines.items():
        if not all(0 in snapshots for snapshots in runs):
            continue
        rows[entry] = {"n": len(runs), "rate": mean_interval([rate(snapshots) for snapshots in runs])}
        for share in SHARES:
            values = [snapshots[max(t for t in snapshots if t <= share * max(snapshots))] for snapshots in runs]
            rows[entry][f"cosine_{share:g}"] = _mean("cosine", values)
    columns = [
        *(
            Column(
                f"cosine_{share:g}",
                f"cosine after {share:.0%} of the steps" if share else "cosine at the start",
                "cosine of W_QK at the last snapshot until then with W_QK at the end: mean over heads, then over seeds"
                " with 95 % t-interval",
                3,
            )
            for share in SHARES
        ),
        Column(
            "rate",
            "exponent of the distance",
            "a of t^-a, the distance to the final direction between 1 % and 10 % of the steps; for one trained head,"
            " theory says at least 0.5 under normalized GD (Vasudeva et al. 2025)",
            3,
        ),
    ]
    about = "snapshots are log-spaced; a direction that hardly moves has a cosine near 1 at the start"
    return [board_table(f"{problem}: direction of W_QK", columns, rows, [about])] if rows else []


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
