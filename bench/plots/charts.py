"""All kinds of charts, and those of studies and of targets."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from bench.boards.collect import Collected, Entry
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


def sensitivity(collected: Collected) -> Figure:
    """Selection scores of studies' trials against the first setting that each study searched."""
    panels = []
    for problem, entries in collected.problems.items():
        studies = [(entry, entry.study) for entry in entries if entry.study is not None]
        drawn = [_trials(entry, study) for entry, study in studies]
        log_y = is_wide([line.y for lines, _ in drawn for line in lines])
        lines = [line for lines, _ in drawn for line in lines if not log_y or (line.y > 0).all()]
        notes = ["no optimizer is tuned; run `bench tune` or `bench suite`"]
        if studies:
            seeds = spanned([len(study.seeds) for _, study in studies])
            notes = [f"points: median of each trial over its tuning seeds ({seeds}) on the selection split"]
            notes += [note for _, note in drawn if note]
        x = " or ".join(dict.fromkeys(axis for _, study in studies for axis in study.axes[:1])) or "setting"
        panel = Panel("sensitivity", x, f"selection {problem.metric}", "x" + "y" * log_y, lines, notes, marks=True)
        panels.append(of_problem(problem, replace(panel, limits=axis_limits([line.y for line in lines], log_y))))
    return figure(collected, panels)


def _trials(entry: Entry, study: StudyRecord) -> tuple[list[Line], str]:
    """A study's trials over its first axis, as one line if it searched no other; and a note on those not drawn."""
    axis = next(iter(study.axes), "")
    places = [(trial["point"].get(axis), trial["score"]) for trial in study.trials]
    # A trial with further seeds repeats the point and the score of the first.
    trials = {(float(x), score) for x, score in places if is_number(x) and 0 < x < math.inf}
    scored = sorted((x, score) for x, score in trials if score is not None and abs(score) <= HUGE)
    x, y = np.clip(np.array(scored, dtype=np.float64).reshape(-1, 2).T, -MOST, MOST)
    y = np.maximum(y, equal_below(y, entry.problem.metric))
    lost = ", ".join(f"{at:.3g}" for at in sorted({at for at, _ in trials} - {at for at, _ in scored}))
    note = f"{entry.name}: no score at {axis} {lost}" if lost else ""
    if len(study.axes) == 1:
        return [Line(entry.name, x, y)] * bool(len(x)), note
    return [Line(entry.name, x[k : k + 1], y[k : k + 1]) for k in range(len(x))], note


_FRACTION, _SHARE = "fraction of the budget of steps", "share of runs at the target"
Times = dict[str, list[float | None]]  # by name, at which fraction each run reaches the target; None if it misses it


def profile(collected: Collected) -> Figure:
    """Share of runs at the target against the fraction of the budget, by problem and over all."""
    panels, together, count = list[Panel](), Times(), 0
    for problem, entries in collected.problems.items():
        goal = problem.target if collected.target is None else collected.target
        if goal is None:
            panels.append(of_problem(problem, Panel("runs at the target", _FRACTION, _SHARE, notes=["it has none"])))
            continue
        runs = [run for entry in entries for run in entry.runs.values()]  # those that end early take fewer steps
        limits = [run.config["trainer"] for run in runs if run.config["trainer"].get("max_epochs") is None]
        budget = max(1, *(run.cost for run in runs), *(trainer.get("max_steps") or 0 for trainer in limits))
        times, count = Times(), count + 1
        for entry in entries:
            steps = [reached(run, collected.target, problem.mode)[0] for run in entry.runs.values()]
            times[entry.name] = [None if step is None else step / budget for step in steps]
            together.setdefault(entry.name, []).extend(times[entry.name])
        fact = f"target: selection {problem.metric} {goal:g}; budget: {budget} steps; diverged runs never reach it"
        panels.append(of_problem(problem, _profile("runs at the target", times, fact)))
    if count > 1:
        note = f"runs of the {count} problems with a target, each counted once"
        panels.append(_profile("runs at the target: over all problems", together, note))
    return figure(collected, panels)


def _profile(title: str, times: Times, fact: str) -> Panel:
    counts = ", ".join(f"{name} {len(fractions)}" for name, fractions in times.items())
    notes = [f"bands: exact 95 % interval of the share at each point; runs: {counts}", fact]
    lines = []
    for name, fractions in times.items():  # a step function from 0 to 1 each
        at, counts = np.unique([x for x in fractions if x is not None], return_counts=True)
        shares = [stats.share_interval(int(count), len(fractions)) for count in np.cumsum([0, *counts])]
        ends = np.repeat([(share.mean, share.low, share.high) for share in shares], 2, axis=0).T
        lines.append(Line(name, np.repeat([0.0, *at, 1.0], 2)[1:-1], *ends))
    return Panel(title, _FRACTION, _SHARE, "", lines, notes, (-0.03, 1.03))


CHARTS: Mapping[str, Callable[[Collected], Figure]] = {
    "forest": forest,
    "curves": curves,
    "sensitivity": sensitivity,
    "profile": profile,
    "attention": attention,
}
"""All kinds of charts by name, in display order."""
