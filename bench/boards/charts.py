"""All charts of results as data: against optimizer steps (`curves.py`), of studies, of targets."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bench.boards import BoardInput
from bench.boards.attention_charts import attention, stability
from bench.boards.curves import SPAN, curves, log_axis, nothing, series, steps
from bench.boards.entries import Entry, Problem
from bench.boards.forest import forest
from bench.boards.shared import find_reference
from bench.boards.speed import cut_short, reached, steps_to
from bench.boards.tuning import expected_scores
from bench.results import stats
from bench.results.chart import MOST, Chart, Panel, Trace
from bench.results.group import HUGE
from bench.results.selection import End, equal_below, seed_median
from bench.store.reports import StudyRecord

# -- of studies -------------------------------------------------------------------------------------------------------

_UNTUNED = "no optimizer is tuned; run `bench tune` or `bench suite`"


def sensitivity(asked: BoardInput) -> Chart:
    """Selection scores of studies' trials against the first setting that each study searched.

    Args:
        asked: the entries; only tuned ones are shown.
    """
    panels = []
    for i, (problem, entries) in enumerate(asked.found.problems.items()):
        y, title = f"selection {problem.metric}", f"sensitivity: {problem.name}"
        studies = {entry.name: entry.study for entry in entries if entry.study is not None}
        if not studies:
            panels.append(nothing(f"sensitivity-{i}", title, "setting", y, _UNTUNED))
            continue
        traces, notes, axes = [], [], {}
        for name, study in studies.items():
            found, own = _trials(name, study, problem.metric)
            traces += found
            notes += own
            axes |= dict.fromkeys(study.axes[:1])
        log = "x" + log_axis([trace.y for trace in traces])
        kept = [trace for trace in traces if "y" not in log or (trace.y > 0).all()]
        counts = {len(study.seeds) for study in studies.values()}
        seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
        notes.insert(0, f"points: median over {seeds} tuning seeds on the selection split, of each trial")
        panels.append(Panel(f"sensitivity-{i}", title, " or ".join(axes) or "setting", y, log, kept, "\n".join(notes)))
    return Chart(panels, series(asked))


def _trials(name: str, study: StudyRecord, metric: str) -> tuple[list[Trace], list[str]]:
    """Traces of a study's trials over its first axis, joined if it searched no other; and notes on them."""
    axis = next(iter(study.axes), None)
    scored, lost = [], []
    for trial in study.trials:
        x, score = trial["point"].get(axis or ""), trial["score"]
        if isinstance(x, bool) or not isinstance(x, int | float) or not 0 < x < math.inf:
            return [], [f"{name} is not drawn, since {axis or 'nothing'} has no positive values in its search space"]
        at = min(max(float(x), 1 / MOST), MOST)
        if score is None or abs(score) > HUGE:
            lost.append(at)
        else:
            scored.append((at, score))
    notes = []
    if lost:
        at = ", ".join(f"{x:.3g}" for x in sorted(lost)[:10]) + ", ..." * (len(lost) > 10)
        notes.append(f"{name}: {len(lost)} of {len(study.trials)} trials have no score, at {axis} {at}")
    # A trial with further seeds repeats the point and the score of the first.
    x, y = np.array(sorted({*scored}), dtype=np.float64).reshape(-1, 2).T
    y = np.maximum(y, equal_below(y, metric))
    if len(study.axes) == 1:
        return ([Trace(name, x, y, marks="all")] if len(x) else []), notes
    notes.append(f"{name} searched {', '.join(study.axes)}, so its trials are drawn without a line")
    return [Trace(name, x[k : k + 1], y[k : k + 1], marks="all") for k in range(len(x))], notes


def budget(asked: BoardInput) -> Chart:
    """Expected selection score of the best of k trials against k.

    Args:
        asked: the entries; only tuned ones are shown.
    """
    panels = []
    for i, (problem, entries) in enumerate(asked.found.problems.items()):
        y, title = f"expected selection {problem.metric}", f"tuning budget: {problem.name}"
        tuned = [entry for entry in entries if entry.study is not None]
        if not tuned:
            panels.append(nothing(f"budget-{i}", title, "trials k", y, _UNTUNED))
            continue
        notes, traces = ["expected best of k of the trials, drawn at random without replacement"], []
        for entry in tuned:
            scores = expected_scores(entry)
            there = [(k, score) for k, score in enumerate(scores, 1) if score is not None]
            if there:
                x, values = np.array(there, dtype=np.float64).T
                traces.append(Trace(entry.name, x, values))
            if len(there) < len(scores):
                notes.append(
                    f"{entry.name} begins at k = {len(scores) - len(there) + 1}: with fewer, all k may have no score"
                )
        log = ("x" if max((t.x[-1] for t in traces), default=1) > SPAN else "") + log_axis([t.y for t in traces])
        kept = [trace for trace in traces if "y" not in log or (trace.y > 0).all()]
        panels.append(Panel(f"budget-{i}", title, "trials k", y, log, kept, "\n".join(notes)))
    return Chart(panels, series(asked))


# -- of targets -------------------------------------------------------------------------------------------------------

_FRACTION, _SHARE = "fraction of the budget of steps", "share of runs at the target"


def profile(asked: BoardInput) -> Chart:
    """Share of runs at the target against the fraction of the budget, by problem and over all.

    Args:
        asked: the entries, and a target if it is not the task's.
    """
    panels: list[Panel] = []
    found: dict[Problem, dict[str, list[float | None]]] = {}
    for i, (problem, entries) in enumerate(asked.found.problems.items()):
        title, key = f"runs at the target: {problem.name}", f"profile-{i}"
        goal = problem.target if asked.target is None else asked.target
        if goal is None:
            panels.append(nothing(key, title, _FRACTION, _SHARE, "the task has no target: give one with --target"))
            continue
        whole = _whole(entries)
        own = found[problem] = {
            e.name: [_at(reached(run, asked.target, problem.mode)[0], whole) for run in e.runs.values()]
            for e in entries
        }
        fact = f"target: selection {problem.metric} {goal:g}; budget: {whole} steps; diverged runs never reach it"
        panels.append(_profile(key, title, own, [fact]))
    if len(found) > 1:
        together: dict[str, list[float | None]] = {}
        for own in found.values():
            for name, times in own.items():
                together.setdefault(name, []).extend(times)
        lacking = {name: [p.name for p, own in found.items() if name not in own] for name in together}
        notes = [f"{name} has no runs on {', '.join(where)}" for name, where in lacking.items() if where]
        note = f"runs of the {len(found)} problems with a target, each counted once"
        panels.append(_profile("profile-all", "runs at the target: over all problems", together, [note, *notes]))
    return Chart(panels, series(asked))


def _whole(entries: Sequence[Entry]) -> int:
    """The budget in steps, common to all runs of a problem; runs that end early take fewer."""
    runs = [run for entry in entries for run in entry.runs.values()]
    limits = [run.config["trainer"] for run in runs]
    told = {trainer.get("max_steps") for trainer in limits if trainer.get("max_epochs") is None}
    return max([run.steps for run in runs] + [limit for limit in told if limit])


def _at(step: int | None, whole: int) -> float | None:
    return None if step is None else step / max(1, whole)


def _profile(key: str, title: str, times: Mapping[str, Sequence[float | None]], facts: Sequence[str]) -> Panel:
    traces = [_stairs(name, own) for name, own in times.items()]
    counts = ", ".join(f"{name} {len(own)}" for name, own in times.items())
    if len({len(own) for own in times.values()}) == 1:
        counts = f"{len(next(iter(times.values())))} each"
    note = f"bands: exact 95 % interval of the share at each point; runs: {counts}"
    return Panel(key, title, _FRACTION, _SHARE, "", traces, "\n".join([note, *facts]), (-0.03, 1.03))


def _stairs(name: str, times: Sequence[float | None]) -> Trace:
    """The cumulative share, as a step function from 0 to 1."""
    at, counts = np.unique([time for time in times if time is not None], return_counts=True)
    shares = [stats.share_interval(int(count), len(times)) for count in np.cumsum([0, *counts])]
    mean, low, high = (np.repeat(each, 2) for each in zip(*((s.mean, s.low, s.high) for s in shares), strict=True))
    return Trace(name, np.repeat([0.0, *at, 1.0], 2)[1:-1], mean, (low, high))


# -- over problems ----------------------------------------------------------------------------------------------------

LEAST_PROBLEMS = 8
"""Minimum number of problems for a performance profile: as many as AlgoPerf has. Ours."""
FARTHEST = 4.0
"""Largest ratio of a performance profile, as in AlgoPerf, and inverse of the smallest."""


def performance_profile(asked: BoardInput) -> Chart:
    """Performance profiles (Dolan and Moré 2002) of the steps to the target, as ratios to each problem's reference.

    AlgoPerf (Dahl et al. 2023) divides by the fastest entrant. With a fixed reference no curve depends on the other
    entrants: the problems are those with a reference that reaches the target.

    Args:
        asked: the entries, and a target if it is not the task's.
    """
    chosen: dict[Problem, list[Entry]] = {}
    for entry in asked.found.chosen:  # the reference, even if not shown
        chosen.setdefault(entry.problem, []).append(entry)
    shown = dict.fromkeys(entry.name for entry in asked.found.entries)
    ratios: dict[str, list[float]] = {name: [] for name in shown}
    missing: dict[str, list[str]] = {name: [] for name in shown}
    whole = 0
    for problem, entries in chosen.items():
        ref = find_reference(asked.found, problem, asked.reference)
        base = None if ref is None or ref.refused or cut_short(ref, asked.target) else _median_steps(ref, asked.target)
        if base is None:
            continue
        whole += 1
        own = {entry.name: entry for entry in entries}
        for name in shown:
            if name not in own or own[name].refused or cut_short(own[name], asked.target):
                missing[name].append(problem.name)
            elif (steps := _median_steps(own[name], asked.target)) is not None:
                ratios[name].append(steps / base)
    key, title = "performance-profile", "performance profiles against the reference"
    x, y = "steps to the target / those of the reference", "share of problems"
    if whole < LEAST_PROBLEMS:
        why = f"{whole} of {len(chosen)} problems have a target that their reference reaches on more than half of its"
        return Chart([nothing(key, title, x, y, f"{why} seeds, and {LEAST_PROBLEMS} are needed")], series(asked))
    chosen_here = sorted({e.name for own in chosen.values() for e in own if e.best_of})
    areas = ", ".join(f"{name} {_area(own, whole):.2f}" for name, own in ratios.items())
    notes = [
        f"{whole} problems; steps: median over seeds; none if half of the seeds or more miss the target",
        "the reference is fixed, so further entrants change no curve (AlgoPerf's profiles are against the fastest"
        " entrant)",
        f"area below each curve on this logarithmic axis, at most 1 (AlgoPerf's is linear, from 1 to 4): {areas}",
        *(
            f"{name} counts as missing the target where it has no runs to compare: {', '.join(where)}"
            for name, where in missing.items()
            if where
        ),
        *([f"settings chosen on these seeds: {', '.join(chosen_here)}"] if chosen_here else []),
    ]
    ticks = {1 / FARTHEST: "1/4", 0.5: "1/2", 1.0: "1", 2.0: "2", FARTHEST: "4"}
    traces = [_shares(name, own, whole) for name, own in ratios.items()]
    panel = Panel(key, title, x, y, "x", traces, "\n".join(notes), (-0.03, 1.03), (1 / FARTHEST, FARTHEST), ticks)
    return Chart([panel], series(asked))


def _median_steps(entry: Entry, target: float | None) -> End:
    """Median steps to the target; None if half of the runs or more miss it."""
    return seed_median(steps_to(target, entry.problem.mode).values(entry), "min")


def _shares(name: str, ratios: Sequence[float], whole: int) -> Trace:
    """The cumulative share of problems by ratio, as a step function over the drawn range."""
    at, counts = np.unique([max(ratio, 1 / FARTHEST) for ratio in ratios if ratio <= FARTHEST], return_counts=True)
    x = np.repeat([1 / FARTHEST, *at, FARTHEST], 2)[1:-1]
    return Trace(name, x, np.repeat(np.cumsum([0, *counts]) / whole, 2))


def _area(ratios: Sequence[float], whole: int) -> float:
    """The area below a curve on its logarithmic axis, relative to the maximum; 0.5 for the reference itself.

    AlgoPerf's area, linear from 1 on, would be the same for all that are faster than a fixed reference.
    """
    return math.fsum(min(max(0.5 - math.log(ratio, FARTHEST) / 2, 0), 1) for ratio in ratios) / whole


CHARTS: dict[str, Callable[[BoardInput], Chart]] = {
    "forest": forest,
    "curves": curves,
    "sensitivity": sensitivity,
    "profile": profile,
    "performance_profile": performance_profile,
    "steps": steps,
    "budget": budget,
    "attention": attention,
    "stability": stability,
}
"""All kinds of charts by name, in display order."""
