"""How results depend on a setting: from the runs of a sweep to a table, a figure and files.

A seed that diverged counts as worse than all others, in medians, quartiles and intervals: excluding it would favour
settings that are stable only for some seeds.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.config.run_config import settings_of
from bench.errors import UserError
from bench.output import writing
from bench.plots.sweep import sweep_figure
from bench.plots.theme import write_pictures
from bench.results import selection
from bench.results.render import markdown, shown
from bench.results.selection import CONVERGED, USABLE_FACTOR, USABLE_SHARE, End, Mode
from bench.results.stats import median_rank
from bench.results.table import Board, Column, Table
from bench.store.record import CAP_BINDS, FINISHED, RunResult
from bench.text import clean, counted, is_number, plain
from optimizers.plugins import bare

SELECTION = "median selection score"
SATURATED = "the best comes from one step that saturated the model, not from the method: use smaller values"


@dataclass(frozen=True)
class Point:
    """A curve at one value `x` of the varied setting, and at the values `others` of those that vary with it.

    `median`, `quartiles` (lower, upper) and `interval` are of the final metric over the finished runs. The interval
    comes from order statistics: its coverage is at least 95 % for any distribution; None below 6 seeds. `choice` is the
    median of the last evaluation on the selection split, which chooses the best point; None if it equals the final
    metric. `capped` points, whose step a cap set, and those where half of the seeds diverged are never the best.
    """

    x: Any
    seeds: int
    diverged: int
    median: End
    quartiles: tuple[End, End]
    interval: tuple[End, End] | None
    choice: End = None
    capped: bool = False
    saturated: int = 0
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Curve:
    """An optimizer at one value of each further varied setting, or at all of them in a quasi-random design.

    `best` is the index of the best point, the middle one of equals; None if all are equal or none may be the best.
    `usable` are the indices of the ends of the range around it that is nearly as good, if x takes several numbers.
    `at_edge` says whether it is at an edge of the tried values, `joined` whether the points differ in x alone.
    """

    name: str
    opt: str
    x: str
    points: list[Point]
    best: int | None
    usable: tuple[int, int] | None
    at_edge: bool
    joined: bool

    @property
    def chosen_apart(self) -> bool:
        """Whether another score than the shown metric chose the best."""
        return any(point.choice is not None for point in self.points)


@dataclass(frozen=True)
class Sensitivity:
    """The results of a sweep; `metric` names the split too; `x` may be several settings, one for each optimizer."""

    results: Sequence[RunResult]
    varied: Sequence[str]
    mode: Mode
    metric: str
    x: str
    numeric: bool
    log: bool
    curves: list[Curve]
    above_infimum: bool = False


def analyse(results: Sequence[RunResult], varied: Sequence[str], mode: Mode) -> Sensitivity:
    """Curves of the final metric, for each optimizer against the first varied setting with several numbers.

    If an optimizer has no numbers, the x axis of all is text: the varied settings, or the optimizer. `results` are runs
    of one task, `varied` dotted names; `UserError` if no run has finished.
    """
    ended = [run for run in results if run.finished]
    if not ended:
        raise UserError(f"none of the {len(results)} runs of the sweep has finished, so there is nothing to compare")
    by_opt: dict[str, list[Mapping[str, Any]]] = {}
    for run in ended:
        by_opt.setdefault(run.config["opt"], []).append(settings_of(run.config))
    axes = {opt: _axis(settings, varied) for opt, settings in by_opt.items()}
    numeric = all(x for x, _ in axes.values())
    words = [name for name in varied if name != "opt"] or ["opt"]
    groups: dict[tuple[Any, ...], dict[Any, list[RunResult]]] = {}
    for run in results:
        if (opt := run.config["opt"]) in axes:
            settings, (axis, others) = settings_of(run.config), axes[opt]
            x = settings.get(axis) if numeric else ", ".join(_text(settings.get(name)) for name in words)
            key = (opt, *((name, _hashable(settings.get(name))) for name in others if numeric))
            groups.setdefault(key, {}).setdefault(x, []).extend([run] * run.finished)
    series: dict[Any, list[tuple[Any, ...]]] = {}  # combinations with one x each, as in a random design, are one curve
    for key, by_x in groups.items():
        series.setdefault(key if len(by_x) > 1 else key[0], []).append(key)

    above = selection.above_infimum(ended)
    least = selection.equal_below((selection.selected(run, above) for run in ended), ended[0].metric)
    apart = len({bare(opt) for opt in axes}) == len(axes)  # files with the same name may be in two folders
    curves = []
    title = {opt: x if numeric else " and ".join(words) for opt, (x, _) in axes.items()}
    for keys in series.values():
        opt, *fixed = keys[0] if len(keys) == 1 else keys[0][:1]
        tried = [(x, key, group) for key in keys for x, group in groups[key].items()]
        scored = [_point(x, of, above, mode, dict(key[1:]) if len(keys) > 1 else {}) for x, key, of in tried if of]
        if numeric:
            scored.sort(key=lambda pair: pair[0].x)
        points, scores = [point for point, _ in scored], [None if s is None else max(s, least) for _, s in scored]
        tied = len(scores) > 1 and None not in scores and len({*scores}) == 1
        best = None if tied else selection.best_index(scores, mode, least)
        usable = None
        if best is not None and numeric and len(points) > 1 and len(keys) == 1:
            usable = selection.good_range(scores, mode, best, gap=above)
        xs = [x for x, *_ in tried if is_number(x)]
        at_edge = best is not None and usable is not None and points[best].x in (min(xs), max(xs))
        name = [bare(opt) if apart else opt, *(f"{n.partition('.')[2] or n} {_text(value)}" for n, value in fixed)]
        if points:
            curves.append(Curve(", ".join(name), opt, title[opt], points, best, usable, at_edge, len(keys) == 1))
    xs = [point.x for curve in curves for point in curve.points] if numeric else [0]
    log = min(xs) > 0 and max(xs) > 9.99 * min(xs)  # a decade or more
    metric = f"{ended[0].split} {ended[0].metric}{selection.GAP * above}"
    x = " or ".join(dict.fromkeys(title.values()))
    return Sensitivity(results, varied, mode, metric, x, numeric, log, curves, above)


def _axis(settings: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> tuple[str, list[str]]:
    """The number on the x axis, lr first, then hyperparameters, empty if there is none; other settings that vary."""
    numbers = [n for n in varied if all(is_number(v := of_run.get(n)) and math.isfinite(v) for of_run in settings)]
    several = [n for n in varied if n != "opt" and len({_hashable(of_run.get(n)) for of_run in settings}) > 1]
    order = {name: (name not in several, name != "opt.lr", not name.startswith("opt.")) for name in numbers}
    x = min(order, key=order.__getitem__, default="")
    return x, [name for name in several if name != x]


def _hashable(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | tuple | dict) else value


def _text(value: Any, digits: int = 6) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else str(_hashable(value))


def _point(x: Any, runs: Sequence[RunResult], above: bool, mode: Mode, others: Mapping[str, Any]) -> tuple[Point, End]:
    """A point, and the score by which the best is chosen."""
    finals = [selection.final_value(run, above) for run in runs]
    chosen = [selection.selected(run, above) for run in runs]
    n, k = len(runs), median_rank(len(runs))
    sign = 1 if mode == "min" else -1
    ranked = sorted(finals, key=lambda value: math.inf if value is None else sign * value)  # best first

    def quantile(q: float) -> End:
        better, worse = ranked[math.ceil(q * n) - 1], ranked[math.floor(q * n)]
        return better if better is None or worse is None else (better + worse) / 2

    def ends(better: End, worse: End) -> tuple[End, End]:
        return (better, worse) if mode == "min" else (worse, better)

    capped, score = selection.is_capped(runs), selection.seed_median(chosen, mode)
    point = Point(
        x,
        n,
        finals.count(None),
        quantile(0.5),
        ends(quantile(0.25), quantile(0.75)),
        ends(ranked[k - 1], ranked[n - k]) if k else None,
        None if chosen == finals else score,
        capped,
        sum(run.saturated_at is not None for run in runs),
        others,
    )
    return point, None if capped else score


# -- words and files --------------------------------------------------------------------------------------------------


def lines(sweep: Sensitivity) -> list[str]:
    """The table for a terminal: a block for each curve, with `*` at the best."""
    whole = board(sweep)
    blocks = [[clean(table.title), *shown(table), *table.notes, ""] for table in whole.tables]
    return [line for block in blocks for line in block] + [f"note: {note}" for note in whole.notes]


def board(sweep: Sensitivity) -> Board:
    """The tables of all curves, with notes on each."""
    return Board("sweep", f"{sweep.metric} against {sweep.x}", [_table(sweep, c) for c in sweep.curves], _notes(sweep))


def _table(sweep: Sensitivity, curve: Curve) -> Table:
    heads = {name: name for name in (curve.x, *curve.points[0].others)} | {"median": f"median {sweep.metric}"}
    if any(point.seeds > 1 for point in curve.points):
        heads |= {"quartiles": "middle half of the seeds", "interval": "95 % interval"}
    rows = []
    for i, point in enumerate(curve.points):
        row = {name: _text(value, 4) for name, value in {curve.x: point.x, **point.others}.items()}
        row |= {"best": "*" if i == curve.best else "cap" if point.capped else "", "interval": _range(point.interval)}
        row |= {"median": "diverged" if point.median is None else point.median, "quartiles": _range(point.quartiles)}
        rows.append(row | {"diverged": f"{point.diverged}/{point.seeds}"})
    heads |= {"diverged": "diverged"}
    columns = [Column("best"), *(Column(key, head, side="right", names=key == curve.x) for key, head in heads.items())]
    return Table(curve.name, columns, rows, _summary(sweep, curve))


def _number(value: End) -> str:
    return "diverged" if value is None else f"{value:.4g}"


def _range(ends: tuple[End, End] | None) -> str:
    return "-" if ends is None else f"[{_number(ends[0])}, {_number(ends[1])}]"


def _summary(sweep: Sensitivity, curve: Curve) -> list[str]:
    count, what = sum(point.capped for point in curve.points), SELECTION if curve.chosen_apart else "median"
    rule = f"the cap set more than {CAP_BINDS:.0%} of the steps, as in SGD with a fixed step"
    capped = [f"{counted(count, 'setting')} excluded from the choice (cap): {rule}"] * bool(count)
    if curve.best is None:
        if all(2 * point.diverged < point.seeds and not point.capped for point in curve.points):
            return [f"no best: the {what} counts as equal at every {curve.x}, so the results do not depend on it here"]
        excluded = ", or a setting is excluded," * bool(count)
        return [f"no best: half of the seeds or more diverged{excluded} at every {curve.x}", *capped]
    best = curve.points[curve.best]
    chosen = "" if best.choice is None else f" ({SELECTION} {_number(best.choice)})"
    where = ", ".join([f"{curve.x} {_text(best.x, 4)}", *(f"{k} {_text(v, 4)}" for k, v in best.others.items())])
    text = f"best {where}{chosen}: median {sweep.metric} {_number(best.median)}"
    if best.interval:
        also = ", which also chose it" * (len(curve.points) > 1)
        text += f", 95 % interval {_range(best.interval)} ({best.seeds} seeds{also})"
    notes = [text]
    if curve.usable is not None:
        low, high = (curve.points[i].x for i in curve.usable)
        side = "above" if sweep.mode == "min" else "below"
        within = f"at most {USABLE_FACTOR} times" if sweep.above_infimum else f"at most {USABLE_SHARE:.0%} {side}"
        wider = curve.usable[0] == 0 or curve.usable[1] == len(curve.points) - 1
        factor = f", {'at least ' * wider}a factor of {high / low:.3g}" if low > 0 else ""
        stretch = f"{_text(low, 4)} to {_text(high, 4)}{factor}" if low < high else "that value alone, on this grid"
        notes.append(f"usable {curve.x} ({what} {within} the best; our rule): {stretch}")
    notes += [SATURATED] * (2 * best.saturated >= best.seeds) + capped
    return notes + ["the best value is at the edge of the grid: widen it"] * curve.at_edge


def _notes(sweep: Sensitivity) -> list[str]:
    """Notes on unfinished runs, and on how the best was chosen."""
    count = Counter(run.status for run in sweep.results)
    unfinished = ", ".join(f"{n} {status}" for status, n in count.items() if status not in FINISHED)
    apart = f"the best value was chosen by the {SELECTION}: the last evaluation during training, on the selection split"
    return (
        [f"unfinished runs excluded: {unfinished}"] * bool(unfinished)
        + [f"runs with values at the time limit: {count['timeout']}"] * bool(count["timeout"])
        + [f"gaps below {CONVERGED:g} count as equal: the middle is best (our rule)"] * sweep.above_infimum
        + [apart] * any(curve.chosen_apart for curve in sweep.curves)
    )


def as_json(sweep: Sensitivity) -> dict[str, Any]:
    """The curves in a form for strict JSON, with null for `diverged`; `best` and `usable` are indices of points."""
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
        path.write_text(f"{markdown([board(sweep)], 1)}\n{about}\n\n![figure](sensitivity.png)\n", "utf-8")
        return [path, *write_pictures(sweep_figure(sweep, CONVERGED).spec(live=False), folder / "sensitivity")]
