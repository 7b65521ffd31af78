"""All kinds of charts, and those of studies and of targets."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bench.boards.collect import Collected
from bench.boards.entries import Entry, Problem
from bench.boards.speed import reached
from bench.plots.curves import attention, curves, figure, of_problem
from bench.plots.forest import forest
from bench.plots.means import is_wide
from bench.plots.panels import MOST, Figure, Line, Panel, axis_limits
from bench.results import stats
from bench.results.group import HUGE
from bench.results.selection import equal_below
from bench.store.reports import StudyRecord
from bench.text import is_number, spanned

Drawn = tuple[list[Line], list[str]]
"""Lines, and notes on them."""


def sensitivity(collected: Collected) -> Figure:
    """Selection scores of studies' trials against the first setting that each study searched."""
    panels = []
    for problem, entries in collected.problems.items():
        studies = [(entry, entry.study) for entry in entries if entry.study is not None]
        if not studies:
            why = "no optimizer is tuned; run `bench tune` or `bench suite`"
            panels.append(of_problem(problem, Panel("sensitivity", "setting", "score", notes=[why])))
            continue
        drawn = [_trials(entry, study) for entry, study in studies]
        seeds = spanned([len(study.seeds) for _, study in studies])
        notes = [
            f"points: median over {seeds} tuning seeds on the selection split, of each trial; joined if one setting"
            " was searched",
            *(note for _, notes in drawn for note in notes),
        ]
        log_y = is_wide([line.y for lines, _ in drawn for line in lines])
        lines = [line for lines, _ in drawn for line in lines if not log_y or (line.y > 0).all()]
        x = " or ".join(dict.fromkeys(axis for _, study in studies for axis in study.axes[:1])) or "setting"
        limits = axis_limits([line.y for line in lines], log_y)
        panel = Panel("sensitivity", x, f"selection {problem.metric}", "x" + "y" * log_y, lines, notes, limits, True)
        panels.append(of_problem(problem, panel))
    return figure(collected, panels)


def _trials(entry: Entry, study: StudyRecord) -> Drawn:
    """A study's trials over its first axis, as one line if it searched no other; and notes on them."""
    name, axis = entry.name, next(iter(study.axes), "")
    values = [trial["point"].get(axis) for trial in study.trials]
    if not all(is_number(x) and 0 < x < math.inf for x in values):
        return [], [f"{name} is not drawn, since {axis or 'nothing'} has no positive values in its search space"]
    places = np.clip(np.array(values, dtype=float), 1 / MOST, MOST)
    scores = [trial["score"] for trial in study.trials]
    has_score = np.array([score is not None and abs(score) <= HUGE for score in scores], dtype=bool)
    notes = []
    if not has_score.all():
        lost = ", ".join(f"{x:.3g}" for x in sorted(places[~has_score]))
        capped = f" ({entry.excluded} excluded, since a cap set nearly all steps)" * bool(entry.excluded)
        notes = [f"{name}: {(~has_score).sum()} of {len(scores)} trials have no score{capped}, at {axis} {lost}"]
    # A trial with further seeds repeats the point and the score of the first.
    pairs = {(x, scores[k]) for k, x in enumerate(places) if has_score[k]}
    x, y = np.array(sorted(pairs), dtype=np.float64).reshape(-1, 2).T
    y = np.maximum(y, equal_below(y, entry.problem.metric))
    if len(study.axes) == 1:
        return [Line(name, x, y)] * bool(len(x)), notes
    return [Line(name, x[k : k + 1], y[k : k + 1]) for k in range(len(x))], notes


_FRACTION, _SHARE = "fraction of the budget of steps", "share of runs at the target"
Times = dict[str, list[float | None]]
"""Fractions of the budget at which the runs of each name reach the target; None for a run that misses it."""


def profile(collected: Collected) -> Figure:
    """Share of runs at the target against the fraction of the budget, by problem and over all."""
    panels: list[Panel] = []
    together: Times = {}
    count = 0
    for problem, entries in collected.problems.items():
        goal = problem.target if collected.target is None else collected.target
        if goal is None:
            note = "the task has no target: give one with --target"
            panels.append(of_problem(problem, Panel("runs at the target", _FRACTION, _SHARE, notes=[note])))
            continue
        whole = _budget(entries)
        times = {entry.name: _fractions(entry, problem, collected.target, whole) for entry in entries}
        for name, fractions in times.items():
            together.setdefault(name, []).extend(fractions)
        fact = f"target: selection {problem.metric} {goal:g}; budget: {whole} steps; diverged runs never reach it"
        panels.append(of_problem(problem, _profile("runs at the target", times, fact)))
        count += 1
    if count > 1:
        note = f"runs of the {count} problems with a target, each counted once"
        panels.append(_profile("runs at the target: over all problems", together, note))
    return figure(collected, panels)


def _budget(entries: Sequence[Entry]) -> int:
    """The budget in steps, common to all runs of a problem; runs that end early take fewer."""
    runs = [run for entry in entries for run in entry.runs.values()]
    limits = [run.config["trainer"] for run in runs if run.config["trainer"].get("max_epochs") is None]
    return max(1, *(run.steps for run in runs), *(trainer.get("max_steps") or 0 for trainer in limits))


def _fractions(entry: Entry, problem: Problem, target: float | None, whole: int) -> list[float | None]:
    steps = [reached(run, target, problem.mode)[0] for run in entry.runs.values()]
    return [None if step is None else step / whole for step in steps]


def _profile(title: str, times: Times, fact: str) -> Panel:
    counts = ", ".join(f"{name} {len(fractions)}" for name, fractions in times.items())
    notes = [f"bands: exact 95 % interval of the share at each point; runs: {counts}", fact]
    lines = [_stairs(name, fractions) for name, fractions in times.items()]
    return Panel(title, _FRACTION, _SHARE, "", lines, notes, (-0.03, 1.03))


def _stairs(name: str, values: Sequence[float | None]) -> Line:
    """The share of runs that are at the target, as a step function from 0 to 1."""
    at, counts = np.unique([value for value in values if value is not None], return_counts=True)
    shares = [stats.share_interval(int(count), len(values)) for count in np.cumsum([0, *counts])]
    mean, low, high = (np.repeat(column, 2) for column in zip(*((s.mean, s.low, s.high) for s in shares), strict=True))
    return Line(name, np.repeat([0.0, *at, 1.0], 2)[1:-1], mean, low, high)


CHARTS: Mapping[str, Callable[[Collected], Figure]] = {
    "forest": forest,
    "curves": curves,
    "sensitivity": sensitivity,
    "profile": profile,
    "attention": attention,
}
"""All kinds of charts by name, in display order."""
