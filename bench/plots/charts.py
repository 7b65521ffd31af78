"""All kinds of charts, and those of studies and of targets."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bench.boards.collect import NO_ROWS, Collected
from bench.boards.entries import Entry, Problem
from bench.boards.speed import reached
from bench.boards.tuning import expected_scores
from bench.errors import UserError
from bench.plots.curves import SPAN, attention, curves, figure, log_axis, of_problem, stability, steps
from bench.plots.forest import forest
from bench.plots.panels import MOST, Figure, Line, Panel
from bench.results import stats
from bench.results.group import HUGE
from bench.results.selection import equal_below
from bench.store.reports import StudyRecord
from bench.text import cell, is_number, listed, spanned

# -- of studies -------------------------------------------------------------------------------------------------------


def sensitivity(collected: Collected) -> Figure:
    """Selection scores of studies' trials against the first setting that each study searched."""

    def about(tuned: Tuned) -> tuple[str, list[str]]:
        seeds = spanned([len(study.seeds) for _, study in tuned])
        words = f"tuning seed{'s' * (seeds != '1')} on the selection split, of each trial"
        others = [entry.name for entry, study in tuned if len(study.axes) > 1]
        more = [f"points without a line: {listed(others)} searched several settings"] * bool(others)
        x = " or ".join(dict.fromkeys(axis for _, study in tuned for axis in study.axes[:1])) or "setting"
        return x, [f"points: median over {seeds} {words}", *more]

    return _of_studies(collected, "sensitivity", "selection", about, _trials)


def budget(collected: Collected) -> Figure:
    """Expected selection score of the best of k trials against k."""
    note = "expected best of k of the trials, drawn at random without replacement"
    return _of_studies(collected, "tuning budget", "expected selection", lambda tuned: ("trials k", [note]), _expected)


Tuned = list[tuple[Entry, StudyRecord]]
Drawn = tuple[list[Line], list[str]]
"""Lines, and notes on them."""


def _of_studies(
    collected: Collected,
    title: str,
    y: str,
    about: Callable[[Tuned], tuple[str, list[str]]],
    draw: Callable[[Entry, StudyRecord], Drawn],
) -> Figure:
    """Panels of scores; without lines that have no place on a logarithmic axis."""
    panels = []
    for problem, entries in collected.problems.items():
        tuned: Tuned = [(entry, entry.study) for entry in entries if entry.study is not None]
        x, notes = about(tuned) if tuned else ("", ["no optimizer is tuned; run `bench tune` or `bench suite`"])
        drawn = [draw(*pair) for pair in tuned]
        lines, marks = [line for of, _ in drawn for line in of], "all" * (draw is _trials)
        log = "x" * bool(draw is _trials or max((line.x[-1] for line in lines), default=1) > SPAN)
        log += log_axis([line.y for line in lines])
        kept = [line for line in lines if "y" not in log or (line.y > 0).all()]
        notes += [note for _, of in drawn for note in of]
        panel = Panel(title, x, f"{y} {problem.metric}", log, kept, notes, marks=marks)
        panels.append(of_problem(problem, panel))
    return figure(collected, panels)


def _expected(entry: Entry, study: StudyRecord) -> Drawn:
    """The expected best of k trials."""
    scores = expected_scores(entry)
    points = [(k, score) for k, score in enumerate(scores, 1) if score is not None]
    late = f"{entry.name} begins at k = {len(scores) - len(points) + 1}: with fewer, all k may have no score"
    late += " or be excluded" * bool(entry.excluded)
    lines = [Line(entry.name, *np.array(points, dtype=np.float64).T)] if points else []
    return lines, [late] * (len(points) < len(scores))


def _trials(entry: Entry, study: StudyRecord) -> Drawn:
    """A study's trials over its first axis, as one line if it searched no other; and notes on them."""
    name, axis = entry.name, next(iter(study.axes), None)
    scored, lost = [], []
    for trial in study.trials:
        x, score = trial["point"].get(axis or ""), trial["score"]
        if not is_number(x) or not 0 < x < math.inf:
            return [], [f"{name} is not drawn, since {axis or 'nothing'} has no positive values in its search space"]
        at = min(max(float(x), 1 / MOST), MOST)
        if score is None or abs(score) > HUGE:
            lost.append(at)
        else:
            scored.append((at, score))
    notes = []
    if lost:
        at = ", ".join(f"{x:.3g}" for x in sorted(lost)[:10]) + ", ..." * (len(lost) > 10)
        capped = f" ({entry.excluded} excluded, since a cap set nearly all steps)" * bool(entry.excluded)
        notes.append(f"{name}: {len(lost)} of {len(study.trials)} trials have no score{capped}, at {axis} {at}")
    # A trial with further seeds repeats the point and the score of the first.
    x, y = np.array(sorted({*scored}), dtype=np.float64).reshape(-1, 2).T
    y = np.maximum(y, equal_below(y, entry.problem.metric))
    if len(study.axes) == 1:
        return ([Line(name, x, y)] if len(x) else []), notes
    return [Line(name, x[k : k + 1], y[k : k + 1]) for k in range(len(x))], notes


# -- of targets -------------------------------------------------------------------------------------------------------

_FRACTION, _SHARE = "fraction of the budget of steps", "share of runs at the target"
Times = dict[str, list[float | None]]
"""Fractions of the budget at which the runs of each name reach the target; None for a run that misses it."""


def profile(collected: Collected) -> Figure:
    """Share of runs at the target against the fraction of the budget, by problem and over all."""
    panels: list[Panel] = []
    times: dict[Problem, Times] = {}
    for problem, entries in collected.problems.items():
        title = "runs at the target"
        goal = problem.target if collected.target is None else collected.target
        if goal is None:
            why = "the task has no target: give one with --target"
            panels.append(of_problem(problem, Panel(title, _FRACTION, _SHARE, notes=[why])))
            continue
        whole = _whole(entries)
        times[problem] = {
            e.name: [
                None if (step := reached(run, collected.target, problem.mode)[0]) is None else step / max(1, whole)
                for run in e.runs.values()
            ]
            for e in entries
        }
        fact = f"target: selection {problem.metric} {goal:g}; budget: {whole} steps; diverged runs never reach it"
        panels.append(of_problem(problem, _profile(title, times[problem], [fact])))
    if len(times) > 1:
        names = dict.fromkeys(name for fractions in times.values() for name in fractions)
        together = {name: [time for fractions in times.values() for time in fractions.get(name, [])] for name in names}
        lacking = {
            name: [problem.name for problem, fractions in times.items() if name not in fractions] for name in names
        }
        notes = [f"{name} has no runs on {', '.join(where)}" for name, where in lacking.items() if where]
        note = f"runs of the {len(times)} problems with a target, each counted once"
        panels.append(_profile("runs at the target: over all problems", together, [note, *notes]))
    return figure(collected, panels)


def _whole(entries: Sequence[Entry]) -> int:
    """The budget in steps, common to all runs of a problem; runs that end early take fewer."""
    runs = [run for entry in entries for run in entry.runs.values()]
    limits = [run.config["trainer"] for run in runs]
    steps = {trainer.get("max_steps") for trainer in limits if trainer.get("max_epochs") is None}
    return max([run.steps for run in runs] + [limit for limit in steps if limit])


def _profile(title: str, times: Times, facts: Sequence[str]) -> Panel:
    lines = [_stairs(name, fractions) for name, fractions in times.items()]
    counts = ", ".join(f"{name} {len(fractions)}" for name, fractions in times.items())
    if len({len(fractions) for fractions in times.values()}) == 1:
        counts = f"{len(next(iter(times.values())))} each"
    note = f"bands: exact 95 % interval of the share at each point; runs: {counts}"
    return Panel(title, _FRACTION, _SHARE, "", lines, [note, *facts], (-0.03, 1.03))


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
    "steps": steps,
    "budget": budget,
    "attention": attention,
    "stability": stability,
}
"""All kinds of charts by name, in display order."""


def nothing_to_draw(chart: Figure) -> UserError:
    """The error for a figure without lines: the reason of each panel."""
    why = "; ".join(f"{cell(panel.title)}: {cell('; '.join(panel.notes))}" for panel in chart.panels)
    return UserError(f"nothing to draw: {why or NO_ROWS}")
