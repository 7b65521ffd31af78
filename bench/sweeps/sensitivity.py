"""How results depend on a setting: from runs to curves, a table, a figure and files.

A seed that diverged counts as worse than all others: else settings that are stable for some seeds only would win.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.config.run_config import settings_of
from bench.errors import UserError
from bench.output import writing
from bench.plots.means import is_wide
from bench.plots.panels import MOST, Figure, Line, Panel, axis_limits
from bench.results import selection
from bench.results.render import markdown, printed
from bench.results.selection import CONVERGED, End, Mode
from bench.results.table import Board, Column, Table
from bench.store.record import RunResult
from bench.text import cell, counted, is_number, plain, spanned
from optimizers.plugins import bare


@dataclass(frozen=True)
class Point:
    """The runs at one value `x` of the varied setting, and at the values `others` of those that vary with it."""

    x: Any
    seeds: int
    diverged: int
    median: End  # of the final metric, as are the quartiles
    quartiles: tuple[End, End]
    score: End  # chooses the best; None if half diverged
    others: Mapping[str, Any]


@dataclass(frozen=True)
class Curve:
    """An optimizer at one value of each further varied setting, or at all of them in a random design (not `joined`)."""

    name: str
    opt: str
    x: str
    points: list[Point]
    best: int | None  # index of the best point, the first of equals; None if all are equal or none may be the best
    joined: bool


@dataclass(frozen=True)
class Sensitivity:
    """The results of a sweep; `metric` names the split too; `x` may be several settings, one for each optimizer."""

    results: Sequence[RunResult]
    varied: Sequence[str]
    mode: Mode
    metric: str
    x: str
    numeric: bool
    curves: list[Curve]
    above_infimum: bool


def analyse(results: Sequence[RunResult], varied: Sequence[str], mode: Mode) -> Sensitivity:
    """Curves of the final metric, for each optimizer against the first varied setting with several numbers.

    If an optimizer has no numbers, the x axis of all is text: the varied settings, or the optimizer. `results` are runs
    of one task, `varied` dotted names; `UserError` if no run has finished.
    """
    runs = [run for run in results if run.finished]
    if not runs:
        raise UserError(f"none of the {len(results)} runs of the sweep has finished, so there is nothing to compare")
    above = selection.above_infimum(runs)
    least = selection.equal_below((selection.selection_value(run, above) for run in runs), runs[0].metric)
    settings = {run.run_id: settings_of(run.config) for run in runs}
    opts = list(dict.fromkeys(run.config["opt"] for run in runs))
    axes = {opt: _axis([settings[r.run_id] for r in runs if r.config["opt"] == opt], varied) for opt in opts}
    numeric = all(x for x, _ in axes.values())
    words = [name for name in varied if name != "opt"] or ["opt"]
    groups: dict[tuple[str, str], dict[Any, list[RunResult]]] = {}
    for run in runs:
        values, (x, others) = settings[run.run_id], axes[run.config["opt"]]
        fixed = json.dumps({name: values.get(name) for name in others if numeric})
        place = values[x] if numeric else ", ".join(cell(values.get(name)) for name in words)
        groups.setdefault((run.config["opt"], fixed), {}).setdefault(place, []).append(run)
    lines: dict[tuple[str, str], list[Point]] = {}  # combinations with one x each, as in a random design, are one
    for (opt, fixed), by_x in groups.items():
        joined = len(by_x) > 1 or fixed == "{}"
        points = [_point(x, {} if joined else json.loads(fixed), of_x, above, mode) for x, of_x in by_x.items()]
        lines.setdefault((opt, fixed if joined else ""), []).extend(points)
    names = Counter(map(bare, opts))  # files with the same name may be in two folders
    curves = []
    for (opt, fixed), points in lines.items():
        if numeric:
            points.sort(key=lambda point: point.x)
        scores = [None if point.score is None else max(point.score, least) for point in points]
        tied = len(scores) > 1 and None not in scores and len({*scores}) == 1
        best = None if tied else selection.best_index(scores, mode, least)
        others = [f"{n.partition('.')[2] or n} {cell(value)}" for n, value in json.loads(fixed or "{}").items()]
        name = ", ".join([bare(opt) if names[bare(opt)] == 1 else opt, *others])
        curves.append(Curve(name, opt, axes[opt][0] if numeric else " and ".join(words), points, best, bool(fixed)))
    metric, x = f"{runs[0].split} {runs[0].metric}{selection.GAP * above}", " or ".join({c.x: 0 for c in curves})
    return Sensitivity(results, varied, mode, metric, x, numeric, curves, above)


def _axis(settings: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> tuple[str, list[str]]:
    """The number on the x axis, lr first, then hyperparameters, empty if there is none; other settings that vary."""
    numbers = [n for n in varied if all(is_number(v := values.get(n)) and math.isfinite(v) for values in settings)]
    several = [n for n in varied if n != "opt" and len({json.dumps(values.get(n)) for values in settings}) > 1]
    x = min(numbers, key=lambda n: (n not in several, n != "opt.lr", not n.startswith("opt.")), default="")
    return x, [name for name in several if name != x]


def _point(x: Any, others: Mapping[str, Any], runs: Sequence[RunResult], above: bool, mode: Mode) -> Point:
    finals, sign, n = [selection.final_value(run, above) for run in runs], 1 if mode == "min" else -1, len(runs)
    ranked = sorted(finals, key=lambda value: math.inf if value is None else sign * value)  # best first

    def quantile(q: float) -> End:
        better, worse = ranked[math.ceil(q * n) - 1], ranked[math.floor(q * n)]
        return better if better is None or worse is None else (better + worse) / 2

    ends = (quantile(0.25), quantile(0.75)) if mode == "min" else (quantile(0.75), quantile(0.25))
    score = selection.score_of(runs, above, mode)
    return Point(x, n, finals.count(None), quantile(0.5), ends, score, others)


def lines(sweep: Sensitivity) -> list[str]:
    """The tables for a terminal."""
    return printed([board(sweep)]).rstrip().splitlines()


def board(sweep: Sensitivity) -> Board:
    """A table for each curve, with `*` at the best, and notes."""
    unfinished = Counter(run.status for run in sweep.results if not run.finished)
    notes = [f"unfinished runs excluded: {cell(dict(unfinished))}"] * bool(unfinished)
    notes += [f"gaps below {CONVERGED:g} tie, and the smallest value wins (our rule)"] * sweep.above_infimum
    return Board("sweep", f"{sweep.metric} against {sweep.x}", [_table(sweep, c) for c in sweep.curves], notes)


def _table(sweep: Sensitivity, curve: Curve) -> Table:
    heads = {name: name for name in (curve.x, *curve.points[0].others)}
    heads |= {"median": f"median {sweep.metric}", "low": "lower quartile", "high": "upper quartile"}
    heads |= {"score": "selection score", "diverged": "diverged"}
    rows, several = [], any(point.seeds > 1 for point in curve.points)
    for i, point in enumerate(curve.points):
        ends = {"low": point.quartiles[0], "high": point.quartiles[1]} if several else {}
        scores = {} if point.score == point.median else {"score": point.score}  # an empty column is not shown
        values = {k: "diverged" if v is None else v for k, v in {"median": point.median, **ends}.items()}
        marks = {"best": "*" * (i == curve.best), "diverged": f"{point.diverged}/{point.seeds}"}
        rows.append({curve.x: point.x, **point.others, **scores, **values, **marks})
    columns = [Column("best"), *(Column(key, head, side="right", names=key == curve.x) for key, head in heads.items())]
    if curve.best is None:
        return Table(curve.name, columns, rows, ["no best: all are equally good or diverged"])
    best, is_at_edge = curve.points[curve.best], curve.best in (0, len(curve.points) - 1) and len(curve.points) > 1
    notes = ["the best value is at the edge of the grid: widen it"] * (is_at_edge and sweep.numeric and curve.joined)
    where = ", ".join(f"{name} {cell(value)}" for name, value in {curve.x: best.x, **best.others}.items())
    return Table(curve.name, columns, rows, [f"best {where}: median {sweep.metric} {cell(best.median)}", *notes])


def sweep_figure(sweep: Sensitivity) -> Figure:
    """Medians with the middle half of the seeds; values above an infimum are shown down to `CONVERGED`."""
    points = [point for curve in sweep.curves for point in curve.points]
    ends = [end for p in points if p.median is not None for end in (p.median, *p.quartiles) if end is not None]
    least = CONVERGED if sweep.above_infimum else -math.inf
    values = np.maximum([0.0 if abs(end) < 1e-300 else end for end in ends], least)
    log = sweep.mode == "min" and is_wide([values])
    low, high = axis_limits([values], log)
    lowest = max(least, low)
    xs = [point.x for point in points] if sweep.numeric else [0]
    log_x = min(xs) > 0 and max(xs) > 9.99 * min(xs)  # a decade or more
    ticks = [] if sweep.numeric else list(dict.fromkeys(str(point.x) for point in points))
    lines = list[Line]()
    for curve in sweep.curves:
        x = np.array([float(p.x) if sweep.numeric else ticks.index(str(p.x)) for p in curve.points])
        median, *quartiles = np.array([(p.median, *p.quartiles) for p in curve.points], dtype=float).T
        # A diverged seed is worse than any number: the interval reaches the edge.
        band = [np.nan_to_num(end, nan=edge) for end, edge in zip(quartiles, (low, high), strict=True)]
        x, columns = np.clip(x, 1 / MOST if log_x else -MOST, MOST), np.clip([median, *band], lowest, high)
        joined = sweep.numeric and curve.joined
        for k in [slice(None)] if joined else [slice(k, k + 1) for k in range(len(x))]:
            lines.append(Line(curve.name, x[k], *(column[k] for column in columns)))
    seeds = spanned([p.seeds for p in points])
    notes = [f"lines: median over {seeds} seed{'s' * (seeds != '1')} (diverged: worst); bands: middle half"]
    notes += ["points without a line differ in further settings"] * any(not curve.joined for curve in sweep.curves)
    notes += [f"values below {lowest:.3g} are drawn at that value"] * (min(ends, default=low) < lowest)
    logs = "x" * log_x + "y" * log
    panel = Panel("", sweep.x, f"{sweep.metric} at the last step", logs, lines, notes, (low, high), True, ticks)
    return Figure([panel], {curve.name: curve.opt for curve in sweep.curves})


def as_json(sweep: Sensitivity) -> dict[str, Any]:
    """The curves in a form for strict JSON, with null for `diverged`; `best` is the index of a point."""
    runs = Counter(run.status for run in sweep.results)
    names = {"x": sweep.x, "varied": sweep.varied, "metric": sweep.metric.replace(" ", "/", 1), "mode": sweep.mode}
    return plain(names | {"runs": runs, "curves": [asdict(curve) for curve in sweep.curves]})


def write(folder: Path, sweep: Sensitivity, command: str = "bench sweep") -> list[Path]:
    """Write `sensitivity.md`, `.png` and `.pdf` of the results of this command; `UserError` if that fails."""
    seeds = counted(len({run.config["seed"] for run in sweep.results}), "seed")
    about = f"Made by `{command}`: {counted(len(sweep.results), 'run')}, {seeds}. `*` marks the best, chosen on these"
    about += " seeds, which is optimistic: report results on other seeds."
    path = folder / "sensitivity.md"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{markdown([board(sweep)])}\n{about}\n\n![figure](sensitivity.png)\n", "utf-8")
        return [path, *sweep_figure(sweep).write(folder / "sensitivity")]
