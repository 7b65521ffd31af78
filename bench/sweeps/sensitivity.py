"""How results depend on a setting: from the runs of a sweep to a table, a figure and files.

A seed that diverged counts as worse than all others, in medians, quartiles and intervals: excluding it would favour
settings that are stable only for some seeds.
"""

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from bench.config.run_config import settings_of
from bench.errors import UserError
from bench.output import writing
from bench.plots.sweep import sweep_spec
from bench.plots.theme import write_pictures
from bench.process import as_options
from bench.results.group import Group, Measure
from bench.results.render import csv_text, markdown_table, shown
from bench.results.selection import (
    CONVERGED,
    GAP,
    USABLE_FACTOR,
    USABLE_SHARE,
    End,
    Mode,
    above_infimum,
    best_index,
    equal_below,
    final_value,
    good_range,
    is_capped,
    seed_median,
    selected,
)
from bench.results.stats import median_rank
from bench.results.table import Board, Column, Table
from bench.store.record import CAP_BINDS, FINISHED, RunResult
from bench.text import clean, counted, is_number, plain
from optimizers.plugins import bare

SELECTION = "median selection score"
"""The median over seeds of what chooses the best point, where that is not the shown metric."""
SATURATED = "the best comes from one step that saturated the model, not from the method: use smaller values"
"""If the model of half of the best setting's runs or more is so (`RunResult.saturated_at`)."""


@dataclass(frozen=True)
class Point:
    """A curve at one value of the varied setting.

    Attributes:
        x: the value; text if the setting is not a number.
        seeds, diverged: number of finished runs, and of those that diverged or have no final metric.
        median: of the final metric; the worst of the other seeds if exactly half diverged.
        quartiles: lower and upper; the middle half of the seeds is between them.
        interval: of the median, from order statistics: coverage at least 95 % for any distribution; None below 6 seeds.
        choice: median of the last evaluation during training, on the selection split. The best point is chosen by it,
            so that the test set does not influence the choice. None if it equals the final metric, or if half of the
            seeds or more diverged; such a point is never the best.
        capped: whether a step cap set the step size (`is_capped`); such a point is never the best either.
        saturated: runs in which one step saturated the model (`RunResult.saturated_at`).
        others: further varied settings, if they differ from point to point.
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
    """An optimizer at one value of each further varied setting.

    Combinations of these that were tried at one x, as in a quasi-random design, are one series (`Point.others`).

    Attributes:
        name: in legend and table.
        x: the setting on its x axis.
        points: in the order of x.
        best: index of the best median, the middle one of equals; None if all are equal, or if at every point half of
            the seeds or more diverged, or a cap set the step size.
        usable: indices of the ends of the range around the best with medians nearly as good; None if x does not take
            several numbers, or other settings differ from point to point.
        unscored: tried values of x without a finished run, with the status of a run; in a series, with the other
            settings as text.
        opt: the optimizer's name.
    """

    name: str
    x: str
    points: list[Point]
    best: int | None
    usable: tuple[int, int] | None
    unscored: Mapping[Any, str] = field(default_factory=dict)
    opt: str = ""

    @property
    def joined(self) -> bool:
        """Whether the points differ in x alone."""
        return not any(point.others for point in self.points)

    @property
    def chosen_apart(self) -> bool:
        """Whether another score than the shown metric chose the best."""
        return any(point.choice is not None for point in self.points)

    @property
    def at_edge(self) -> bool:
        """Whether the best is at an edge of the grid, which includes tried values without a score."""
        if self.best is None or self.usable is None:
            return False
        tried = [point.x for point in self.points] + [x for x in self.unscored if _is_number(x)]
        return self.points[self.best].x in (min(tried), max(tried))

    @property
    def may_be_wider(self) -> bool:
        """Whether the usable range reaches an edge of the grid."""
        return self.usable is not None and (self.usable[0] == 0 or self.usable[1] == len(self.points) - 1)


@dataclass(frozen=True)
class Sensitivity:
    """The results of a sweep.

    Attributes:
        results: all runs; unfinished ones are in no curve.
        varied: dotted names of the varied settings.
        mode: whether the metric is better when smaller ("min") or larger ("max").
        x: the setting, or the settings, on the x axis.
        numeric, log: whether its values are numbers, and whether the axis is logarithmic.
        curves: in the order of the runs.
        above_infimum: whether values are suboptimality gaps: the loss minus its known infimum.
    """

    results: Sequence[RunResult]
    varied: Sequence[str]
    mode: Mode
    x: str
    numeric: bool
    log: bool
    curves: list[Curve]
    above_infimum: bool = False

    @property
    def metric(self) -> str:
        """The metric and its split, for display."""
        run = next(run for run in self.results if run.finished)
        return f"{run.split} {run.metric}" + GAP * self.above_infimum


def analyse(results: Sequence[RunResult], varied: Sequence[str], mode: Mode) -> Sensitivity:
    """Curves of the final metric, for each optimizer against the first varied setting with several numbers.

    If an optimizer has none, all use the first setting with several values, else the first setting, else the optimizer.

    Args:
        results: runs of one task.
        varied: dotted names of the varied settings.
        mode: of the task's metric.

    Raises:
        UserError: no run has finished.
    """
    all_runs = [(settings_of(result.config), result) for result in results]
    ended = [(own, result) for own, result in all_runs if result.finished]
    if not ended:
        raise UserError(f"none of the {len(results)} runs of the sweep has finished, so there is nothing to compare")
    axes = {
        opt: _axis([own for own, _ in ended if own["opt"] == opt], varied) for opt in {o["opt"]: 0 for o, _ in ended}
    }
    if not all(axis.numeric for axis in axes.values()):  # one axis of text for all
        axes = dict.fromkeys(axes, _axis([own for own, _ in ended], varied))
    numeric = all(axis.numeric for axis in axes.values())
    above = above_infimum([run for _, run in ended])
    metric = ended[0][1].metric
    final = Measure(metric, mode, False, lambda run: final_value(run, above))
    chosen_by = Measure(metric, mode, False, lambda run: selected(run, above))
    groups: dict[tuple[Any, ...], dict[Any, list[RunResult]]] = {}
    unscored: dict[tuple[Any, ...], dict[Any, str]] = {}
    for own, result in all_runs:
        axis = axes.get(own["opt"])
        if axis is None:
            continue
        key = own["opt"], *((name, _hashable(own.get(name))) for name in axis.others)
        at = own[axis.x] if numeric else _text(own.get(axis.x))
        if result.finished:
            groups.setdefault(key, {}).setdefault(at, []).append(result)
        else:
            unscored.setdefault(key, {})[at] = result.status
    curves = []
    least = equal_below((chosen_by.of(run) for of in groups.values() for own in of.values() for run in own), metric)
    short = {key[0]: bare(key[0]) for key in groups}
    apart = len({*short.values()}) == len(short)  # files with the same name may be in two folders
    tried = {key: {*groups.get(key, {}), *unscored.get(key, {})} for key in (*groups, *unscored)}
    for keys in _of_curves(tried) if numeric else ([key] for key in groups):
        opt, *others = keys[0]
        found = [
            _point(at, Group.of(own), final, chosen_by, dict(key[1:]) if len(keys) > 1 else {})
            for key in keys
            for at, own in groups.get(key, {}).items()
        ]
        if not found:
            continue
        if numeric:
            found.sort(key=lambda each: each[0].x)
        words = [short[opt] if apart else opt, *(_setting(name, value) for name, value in others if len(keys) == 1)]
        curve = _curve(", ".join(words), axes[opt].x, found, mode, numeric, least, gap=above)
        left = {
            at if len(keys) == 1 else ", ".join([_text(at), *(_setting(*other) for other in key[1:])]): status
            for key in keys
            for at, status in unscored.get(key, {}).items()
            if at not in groups.get(key, {})
        }
        curves.append(replace(curve, unscored=left, opt=opt))
    xs = [point.x for curve in curves for point in curve.points] if numeric else [0]
    log = min(xs) > 0 and max(xs) > 9.99 * min(xs)  # a decade or more
    x = " or ".join(dict.fromkeys(axis.x for axis in axes.values()))
    return Sensitivity(results, varied, mode, x, numeric, log, curves, above)


def _of_curves(tried: Mapping[tuple[Any, ...], Collection[Any]]) -> Iterable[list[tuple[Any, ...]]]:
    """The keys of each curve: one with several x, or all of an optimizer with one each (a quasi-random design)."""
    found: dict[Any, list[tuple[Any, ...]]] = {}
    for key, xs in tried.items():
        found.setdefault(key if len(xs) > 1 else key[0], []).append(key)
    return found.values()


def _setting(name: str, value: Any) -> str:
    return f"{name.partition('.')[2] or name} {_text(value)}"


class _Axis(NamedTuple):
    """The x axis of some runs' curves, whether it is numeric, and the other settings with several values."""

    x: str
    numeric: bool
    others: list[str]


def _axis(settings: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> _Axis:
    there = [name for name in varied if name != "opt" and any(name in own for own in settings)]
    there.sort(key=lambda name: (name != "opt.lr", not name.startswith("opt.")))  # lr, hyperparameters, others
    values = {name: dict.fromkeys(_hashable(own.get(name)) for own in settings) for name in there}
    several = [name for name in values if len(values[name]) > 1]
    numbers = [name for name in values if all(map(_is_number, values[name]))]
    x = next(iter([*(name for name in several if name in numbers), *several, *numbers, *values]), "opt")
    return _Axis(x, x in numbers, [name for name in several if name != x])


def _hashable(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | tuple | dict) else value


def _is_number(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def _text(value: Any, digits: int = 6) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else str(_hashable(value))


def _point(x: Any, group: Group, final: Measure, chosen_by: Measure, others: Mapping[str, Any]) -> tuple[Point, End]:
    """A point, and the score by which the best is chosen."""
    mode, finals, chosen = final.mode, final.values(group), chosen_by.values(group)
    sign = 1 if mode == "min" else -1
    badness = sorted(math.inf if final is None else sign * final for final in finals)
    n = len(badness)

    def end(bad: float) -> End:
        return sign * bad + 0.0 if bad < math.inf else None  # no -0

    def ends(better: End, worse: End) -> tuple[End, End]:
        return (better, worse) if mode == "min" else (worse, better)

    def quantile(q: float) -> End:
        pair = badness[math.ceil(q * n) - 1], badness[math.floor(q * n)]
        return end(sum(pair) / 2 if pair[1] < math.inf else pair[0])

    k = median_rank(n)
    interval = ends(end(badness[k - 1]), end(badness[n - k])) if k else None
    quartiles, median = ends(quantile(0.25), quantile(0.75)), quantile(0.5)
    capped, score = is_capped(group.runs.values()), seed_median(chosen, mode)
    choice = None if chosen == finals else score
    saturated = sum(run.saturated_at is not None for run in group.runs.values())
    point = Point(x, n, finals.count(None), median, quartiles, interval, choice, capped, saturated, others)
    return point, None if capped else score


def _curve(
    name: str, x: str, found: list[tuple[Point, End]], mode: Mode, numeric: bool, least: float, *, gap: bool
) -> Curve:
    points, scores = [point for point, _ in found], [None if s is None else max(s, least) for _, s in found]
    best = None if _are_tied(scores) else best_index(scores, mode, least)
    curve = Curve(name, x, points, best, None)
    if best is None or not numeric or len(points) == 1 or not curve.joined:
        return curve
    return replace(curve, usable=good_range(scores, mode, best, gap=gap))


def _are_tied(scores: Sequence[End]) -> bool:
    """Whether several settings have one score."""
    return len(scores) > 1 and None not in scores and len({*scores}) == 1


# -- words ------------------------------------------------------------------------------------------------------------


def lines(sweep: Sensitivity) -> list[str]:
    """The table for a terminal: a block for each curve, with `*` at the best."""
    text = []
    for curve in sweep.curves:
        text += [clean(curve.name), *shown(_table(sweep, curve)), *_summary(sweep, curve), ""]
    return [*text, *_notes(sweep)]


def board(sweep: Sensitivity) -> Board:
    """The tables of all curves, with notes on each."""
    tables = [replace(_table(sweep, curve), title=curve.name, notes=_summary(sweep, curve)) for curve in sweep.curves]
    notes = [note.removeprefix("note: ") for note in _notes(sweep)]
    return Board("sweep", f"{sweep.metric} against {sweep.x}", tables, notes)


def _table(sweep: Sensitivity, curve: Curve) -> Table:
    others = [*curve.points[0].others]
    several = any(point.seeds > 1 for point in curve.points)
    heads = {name: name for name in (curve.x, *others)} | {"median": f"median {sweep.metric}"}
    heads |= {"quartiles": "middle half of the seeds", "interval": "95 % interval"} if several else {}
    heads |= {"diverged": "diverged"} | ({"selection": SELECTION} if curve.chosen_apart else {})
    rows = [
        (
            point.x,
            [
                "*" if i == curve.best else "cap" if point.capped else "",
                _text(point.x, 4),
                *(_text(point.others[name], 4) for name in others),
                "diverged" if point.median is None else point.median,
                *(_range(point.quartiles), _range(point.interval)) * several,
                f"{point.diverged}/{point.seeds}",
                *[_choice_of(point)] * curve.chosen_apart,
            ],
        )
        for i, point in enumerate(curve.points)
    ]
    left = len(heads) - 2 - len(others)
    rows += [(x, ["", _text(x, 4), *"-" * len(others), status, *"-" * left]) for x, status in curve.unscored.items()]
    if all(_is_number(x) for x, _ in rows):
        rows.sort(key=lambda row: row[0])
    own = [Column("best"), *(Column(key, head, side="right", names=key == curve.x) for key, head in heads.items())]
    return Table.of(own, [row for _, row in rows])


def _choice_of(point: Point) -> str:
    if 2 * point.diverged >= point.seeds:
        return "-"
    return _number(point.median if point.choice is None else point.choice)


def _number(value: End) -> str:
    return "diverged" if value is None else f"{value:.4g}"


def _range(ends: tuple[End, End] | None) -> str:
    return "-" if ends is None else f"[{_number(ends[0])}, {_number(ends[1])}]"


def _summary(sweep: Sensitivity, curve: Curve) -> list[str]:
    count = sum(point.capped for point in curve.points)
    rule = f"the cap set more than {CAP_BINDS:.0%} of the steps, as in SGD with a fixed step"
    capped = [f"{counted(count, 'setting')} excluded from the choice (cap): {rule}"] * bool(count)
    if curve.best is None and all(2 * point.diverged < point.seeds and not point.capped for point in curve.points):
        what = SELECTION if curve.chosen_apart else "median"
        return [f"no best: the {what} counts as equal at every {curve.x}, so the results do not depend on it here"]
    if curve.best is None:
        return [
            f"no best: half of the seeds or more diverged{', or a setting is excluded,' * bool(count)} at every"
            f" {curve.x}",
            *capped,
        ]
    best = curve.points[curve.best]
    chosen = "" if best.choice is None else f" ({SELECTION} {_number(best.choice)})"
    where = ", ".join([f"{curve.x} {_text(best.x, 4)}", *(f"{k} {_text(v, 4)}" for k, v in best.others.items())])
    at = f"best {where}{chosen}: median {sweep.metric} {_number(best.median)}"
    seeds = f"{best.seeds} seeds" + ", which also chose it" * (len(curve.points) > 1)
    text = [f"{at}, 95 % interval {_range(best.interval)} ({seeds})" if best.interval else at]
    if curve.usable is not None:
        low, high = (curve.points[i].x for i in curve.usable)
        side = "above" if sweep.mode == "min" else "below"
        within = f"at most {USABLE_FACTOR} times" if sweep.above_infimum else f"at most {USABLE_SHARE:.0%} {side}"
        factor = f", {'at least ' if curve.may_be_wider else ''}a factor of {high / low:.3g}" if low > 0 else ""
        stretch = f"{_text(low, 4)} to {_text(high, 4)}{factor}" if low < high else "that value alone, on this grid"
        what = SELECTION if curve.chosen_apart else "median"
        text.append(f"usable {curve.x} ({what} {within} the best; our rule): {stretch}")
    if 2 * best.saturated >= best.seeds:
        text.append(SATURATED)
    return text + capped + ["the best value is at the edge of the grid: widen it"] * curve.at_edge


def _notes(sweep: Sensitivity) -> list[str]:
    count = Counter(run.status for run in sweep.results)
    out = ", ".join(f"{n} {status}" for status, n in count.items() if status not in FINISHED)
    late = f"note: runs with values at the time limit: {count['timeout']}"
    return (
        [f"note: unfinished runs excluded: {out}"] * bool(out)
        + [late] * bool(count["timeout"])
        + [f"note: {rule}" for rule in _choice(sweep)]
    )


def _choice(sweep: Sensitivity) -> list[str]:
    """How the best value was chosen, beyond the smallest or largest median."""
    fine = (
        f"suboptimality gaps below {CONVERGED:g} count as equal, and the middle of equal values counts as best"
        f" (our rule)"
    )
    shown = [
        x for curve in sweep.curves for point in curve.points for x in (point.median, point.choice) if x is not None
    ]
    metric = next(run.metric for run in sweep.results if run.finished)
    small = min(shown, default=math.inf) < equal_below(shown, metric)
    apart = f"the best value was chosen by the {SELECTION}: the last evaluation during training, on the selection split"
    other = any(curve.chosen_apart for curve in sweep.curves)
    return [fine] * (sweep.above_infimum or small) + [apart] * other


def as_json(sweep: Sensitivity) -> dict[str, Any]:
    """The curves in a form for strict JSON, with null for `diverged`; `best` and `usable` are indices of points."""
    curves = [asdict(c) | {"at_edge": c.at_edge, "may_be_wider": c.may_be_wider} for c in sweep.curves]
    runs = Counter(run.status for run in sweep.results)
    names = {"x": sweep.x, "varied": sweep.varied, "metric": sweep.metric.replace(" ", "/", 1), "mode": sweep.mode}
    return plain(names | {"runs": runs, "curves": curves})


# -- files ------------------------------------------------------------------------------------------------------------


def write(folder: Path, sweep: Sensitivity, command: str = "bench sweep") -> list[Path]:
    """Write `sensitivity.md`, `.csv` (one row per run), `.png` and `.pdf`.

    Args:
        folder: created if needed.
        sweep: the results to write.
        command: the command that computed them.

    Raises:
        UserError: the folder cannot be written.
    """
    md, table = (folder / f"sensitivity.{kind}" for kind in ("md", "csv"))
    names = ["opt", *(name for name in sweep.varied if name != "opt"), "seed"]
    facts = ["status", "final", "best", "steps_to_target", "run_id"]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        md.write_text(_page(sweep, command), "utf-8")
        own = [Column(name, form=_hashable) for name in (*names, *facts, "final_excess")]
        rows = (
            settings_of(run.config) | {fact: getattr(run, fact) for fact in facts} | {"final_excess": run.excess()}
            for run in sweep.results
        )
        with table.open("w", encoding="utf-8", newline="") as file:
            file.write(csv_text(own, rows))
        pictures = write_pictures(sweep_spec(sweep, CONVERGED), folder / "sensitivity")
    return [md, table, *pictures]


def _page(sweep: Sensitivity, command: str) -> str:
    runs = sweep.results
    settings = [settings_of(run.config) for run in runs]
    shared = {k: v for k, v in settings[0].items() if v is not None and all(own.get(k) == v for own in settings)}
    seeds = sorted({own["seed"] for own in settings})
    row = len(seeds) > 1 and seeds == list(range(seeds[0], seeds[-1] + 1))
    lines = [f"# {sweep.metric} against {sweep.x}", "", f"Made by `{command}`.", "", "![figure](sensitivity.png)", ""]
    best = "largest" if sweep.mode == "max" else "smallest"
    lines.append("; ".join([f"`*` marks the best {sweep.x}, with the {best} median", *_choice(sweep)]) + ".")
    for curve in sweep.curves:
        lines += ["", f"## {curve.name}", "", *markdown_table(_table(sweep, curve)), ""]
        lines += [f"* {line}" for line in _summary(sweep, curve)]
    lines += [
        "",
        "## Runs",
        "",
        "A diverged seed counts as worst. The best value was chosen on these seeds, which is optimistic: report"
        " results on other seeds.",
        "",
        f"* {len(runs)} runs, seeds {f'{seeds[0]} to {seeds[-1]}' if row else ', '.join(map(str, seeds))}.",
        f"* All runs: `{' '.join(as_options(shared))}`.",
        *(f"* {line}" for line in _notes(sweep)),
    ]
    for what, found in (
        (
            "Machine",
            [
                ", ".join(str(e) for name in ("cpu", "gpu") if (e := run.environment.get(name))) or "unknown"
                for run in runs
            ],
        ),
        ("torch", [run.versions.get("torch", "unknown") for run in runs]),
        ("Engine", [run.engine for run in runs]),
    ):
        lines.append(
            f"* {what}: " + ", ".join(f"{name} ({counted(n, 'run')})" for name, n in Counter(found).items()) + "."
        )
    return "\n".join([*lines, ""])
