"""Ladders: a suite at growing sizes, and the steps that optimizers need at each size, relative to a reference."""

import math
from collections.abc import Mapping

import numpy as np

from bench.plots.panels import Figure, Line, Panel, axis_limits
from bench.results.group import Group
from bench.results.selection import above_infimum
from bench.results.stats import Interval
from bench.results.step_ratio import step_ratio
from bench.results.table import Board, Column, Table
from bench.store.record import RunResult
from bench.text import CONVERGED, listed
from optimizers import OPTIMIZERS
from optimizers.plugins import bare

FLOOR = math.log10(CONVERGED) + 1e-9  # logarithm of the smallest suboptimality gap, to rounding
FEWEST_EVALUATIONS = 3  # of a curve; ours
_NOTES = [
    "each fresh seed has a ratio, at the worse of the two final losses on the selection split; the value is the"
    " Hodges-Lehmann estimate over seeds, and the interval that of the median, for any distribution: 95 %, with five"
    " seeds 93.75 %. An end is infinite or 0 if it is beyond the evaluations, or a seed diverged",
    "intervals do not include the noise of tuning",
]

Rungs = Mapping[float, Mapping[str, Group]]
"""The fresh runs by size of the rung and optimizer."""


def ladder(task: str, axis: str, reference: str, rungs: Rungs) -> tuple[Board, Figure]:
    """The steps of each optimizer per step of the reference at equal loss, at each size, as a table and a figure.

    `axis` names the quantity that grows. Notes say why a rung has no ratio.
    """
    opts = [opt for opt in dict.fromkeys(opt for groups in rungs.values() for opt in groups) if opt != reference]
    ratios: dict[str, dict[float, Interval]] = {opt: {} for opt in opts}
    without: dict[str, list[str]] = {}
    for size, groups in rungs.items():
        for opt in opts:
            try:
                ratios[opt][size] = _ratio(opt, reference, groups)
            except ValueError as error:
                without.setdefault(str(error), []).append(f"{size:,.15g}")
    notes = [f"{listed(sizes)} {axis}: {reason}" for reason, sizes in without.items()]
    help_ = f"steps per step of {reference} at equal loss; below 1 is better"
    columns = [Column("opt", "optimizer", "name", names=True)]
    columns += [Column(f"{size:.15g}", f"{size:,.15g} {axis}", help_, 3) for size in rungs]
    rows = [{"opt": opt} | {f"{size:.15g}": of.get(size) for size in rungs} for opt, of in ratios.items()]
    table = Table(f"{task}: steps per step of tuned {reference}, at equal loss", columns, rows, [*notes, *_NOTES])
    missing = [opt for opt in opts if not ratios[opt]]
    facts = ["bands: interval over fresh seeds, not of tuning", f"below 1: fewer steps than {reference}"]
    facts += [f"no ratio of {listed(missing)}"] * bool(missing)
    ends = np.array([min(rungs), max(rungs)])
    lines = [Line(reference, ends, np.ones(2))]
    for opt, of in ratios.items():
        y, low, high = np.array([(one.mean, one.low, one.high) for one in of.values()]).reshape(-1, 3).T
        lines += [Line(opt, np.array([*of]), y, low, high)] * bool(of)
    bands = [end for line in lines for end in (line.low, line.high) if end is not None]
    limits = axis_limits([line.y for line in lines], True, bands)
    y = f"steps / steps of {reference}"
    panel = Panel(f"{task}: steps at equal loss", axis, y, "xy", lines, facts, limits, marks=True)
    series = {opt: bare(opt) for opt in [reference, *opts]}
    ours = frozenset(series.values()) - {*OPTIMIZERS.built_in}
    return Board("ladder", "Ladder", [table]), Figure([panel], series, ours)


def _ratio(opt: str, reference: str, groups: Mapping[str, Group]) -> Interval:
    """The ratio of steps; ValueError with the reason if there is none."""
    pair = {name: groups.get(name) or Group() for name in (opt, reference)}
    for name, group in pair.items():
        diverged = group.statuses.get("diverged", 0)
        if not group.runs:
            raise ValueError(f"{name} has no fresh runs: it is not tuned, or no tried setting could win")
        if 2 * diverged >= len(group.runs):
            raise ValueError(f"{name}: {diverged} of {len(group.runs)} fresh seeds diverged, so it has no median")
    seeds = pair[opt].common_seeds(pair[reference])
    runs = [group.runs[seed] for group in pair.values() for seed in seeds]
    above = above_infimum(runs)
    curves = [_curve(run, above) for run in runs]
    steps = sorted({step for curve in curves for step in curve or ()})
    if min((len(curve) for curve in curves if curve is not None), default=0) < FEWEST_EVALUATIONS:
        raise ValueError(f"the evaluations of {opt} or {reference} are too few for a curve: lower trainer.val_every")
    losses = np.full((len(runs), len(steps)), math.inf)  # of diverged runs
    for row, curve in enumerate(curves):
        if curve is not None:  # after an early end the last value
            losses[row] = np.interp(np.log(steps), np.log([*curve]), [*curve.values()])
    losses = losses.reshape(2, len(seeds), len(steps))
    smooth = all(run.config["trainer"]["schedule"] == "constant" for run in runs)
    try:
        log = step_ratio(steps, *losses, smooth=smooth, floor=FLOOR if above else -math.inf)
    except ValueError as error:
        raise ValueError(f"{opt}: {error}") from None
    return Interval(math.exp(log.mean), math.exp(log.low), math.exp(log.high), log.n, log.bound)


def _curve(run: RunResult, above: bool) -> dict[float, float] | None:
    """The finite losses on the selection split by ascending step, their log10 for gaps; None if it diverged."""
    if run.status == "diverged":
        return None
    rows = {float(row["step"]): float(row.get("excess" if above else "loss", math.nan)) for row in run.validations}
    finite = {step: loss for step, loss in sorted(rows.items()) if step > 0 and math.isfinite(loss)}
    return {step: math.log10(max(loss, CONVERGED)) if above else loss for step, loss in finite.items()}
