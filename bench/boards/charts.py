"""All charts of results as data: against optimizer steps (`curves.py`), of studies, of targets, of observations."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from bench.boards.attention import NONE, SHOWN, over_heads
from bench.boards.collect import NO_ROWS, Collected
from bench.boards.curves import (
    SPAN,
    Line,
    at_common_steps,
    columns,
    curves,
    finite,
    log_axis,
    of_problem,
    over_steps,
    series,
    steps,
)
from bench.boards.entries import Entry, Problem
from bench.boards.forest import forest
from bench.boards.shared import FEW_SEEDS
from bench.boards.speed import reached
from bench.boards.tuning import expected_scores
from bench.errors import UserError
from bench.results import stats
from bench.results.chart import MOST, Chart, Panel, Trace
from bench.results.group import HUGE
from bench.results.selection import equal_below
from bench.store.reports import StudyRecord
from bench.store.tables import Columns
from bench.text import cell, is_number, listed, spanned

# -- of studies -------------------------------------------------------------------------------------------------------


def sensitivity(collected: Collected) -> Chart:
    """Selection scores of studies' trials against the first setting that each study searched."""
    panels = []
    for key, problem, tuned in _tuned(collected, "sensitivity"):
        traces, notes = _joined([_trials(entry, study, problem.metric) for entry, study in tuned])
        if several := [entry.name for entry, study in tuned if len(study.axes) > 1]:
            notes.append(f"points without a line: {listed(several)} searched several settings")
        x = " or ".join(dict.fromkeys(axis for _, study in tuned for axis in study.axes[:1])) or "setting"
        if tuned:
            seeds = spanned([len(study.seeds) for _, study in tuned])
            words = f"tuning seed{'s' * (seeds != '1')} on the selection split, of each trial"
            notes.insert(0, f"points: median over {seeds} {words}")
        panel = _scores(key, "sensitivity", x, f"selection {problem.metric}", "x", traces, notes)
        panels.append(of_problem(problem, panel))
    return Chart(panels, series(collected))


def budget(collected: Collected) -> Chart:
    """Expected selection score of the best of k trials against k."""
    panels = []
    for key, problem, tuned in _tuned(collected, "budget"):
        traces, notes = _joined([_expected(entry) for entry, _ in tuned])
        if tuned:
            notes.insert(0, "expected best of k of the trials, drawn at random without replacement")
        log = "x" * bool(max((trace.x[-1] for trace in traces), default=1) > SPAN)
        y = f"expected selection {problem.metric}"
        panel = _scores(key, "tuning budget", "trials k", y, log, traces, notes)
        panels.append(of_problem(problem, panel))
    return Chart(panels, series(collected))


def _tuned(collected: Collected, kind: str) -> Iterator[tuple[str, Problem, list[tuple[Entry, StudyRecord]]]]:
    """Key, problem and tuned entries of each panel."""
    for i, (problem, entries) in enumerate(collected.problems.items()):
        yield f"{kind}-{i}", problem, [(entry, entry.study) for entry in entries if entry.study is not None]


_Drawn = tuple[list[Trace], list[str]]
"""Traces, and notes on them."""


def _joined(drawn: Sequence[_Drawn]) -> _Drawn:
    return [trace for traces, _ in drawn for trace in traces], [note for _, notes in drawn for note in notes]


def _scores(key: str, title: str, x: str, y: str, log: str, traces: list[Trace], notes: Sequence[str]) -> Panel:
    """A panel of scores; without traces that have no place on a logarithmic axis."""
    log += log_axis([trace.y for trace in traces])
    kept = [trace for trace in traces if "y" not in log or (trace.y > 0).all()]
    why = "no optimizer is tuned; run `bench tune` or `bench suite`"
    return Panel(key, title, x, y, log, kept, "\n".join(notes or [why]))


def _expected(entry: Entry) -> _Drawn:
    """Trace of the expected best of k trials."""
    scores = expected_scores(entry)
    points = [(k, score) for k, score in enumerate(scores, 1) if score is not None]
    late = f"{entry.name} begins at k = {len(scores) - len(points) + 1}: with fewer, all k may have no score"
    late += " or be excluded" * bool(entry.excluded)
    traces = [Trace(entry.name, *np.array(points, dtype=np.float64).T)] if points else []
    return traces, [late] * (len(points) < len(scores))


def _trials(entry: Entry, study: StudyRecord, metric: str) -> _Drawn:
    """Traces of a study's trials over its first axis, joined if it searched no other; and notes on them."""
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
    y = np.maximum(y, equal_below(y, metric))
    if len(study.axes) == 1:
        return ([Trace(name, x, y, marks="all")] if len(x) else []), notes
    return [Trace(name, x[k : k + 1], y[k : k + 1], marks="all") for k in range(len(x))], notes


# -- of targets -------------------------------------------------------------------------------------------------------

_FRACTION, _SHARE = "fraction of the budget of steps", "share of runs at the target"
Times = dict[str, list[float | None]]
"""Fractions of the budget at which the runs of each name reach the target; None for a run that misses it."""


def profile(collected: Collected) -> Chart:
    """Share of runs at the target against the fraction of the budget, by problem and over all."""
    panels: list[Panel] = []
    times: dict[Problem, Times] = {}
    for i, (problem, entries) in enumerate(collected.problems.items()):
        title, key = "runs at the target", f"profile-{i}"
        goal = problem.target if collected.target is None else collected.target
        if goal is None:
            why = "the task has no target: give one with --target"
            panels.append(of_problem(problem, Panel(key, title, _FRACTION, _SHARE, note=why)))
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
        panels.append(of_problem(problem, _profile(key, title, times[problem], [fact])))
    if len(times) > 1:
        names = dict.fromkeys(name for fractions in times.values() for name in fractions)
        together = {name: [time for fractions in times.values() for time in fractions.get(name, [])] for name in names}
        lacking = {
            name: [problem.name for problem, fractions in times.items() if name not in fractions] for name in names
        }
        notes = [f"{name} has no runs on {', '.join(where)}" for name, where in lacking.items() if where]
        note = f"runs of the {len(times)} problems with a target, each counted once"
        panels.append(_profile("profile-all", "runs at the target: over all problems", together, [note, *notes]))
    return Chart(panels, series(collected))


def _whole(entries: Sequence[Entry]) -> int:
    """The budget in steps, common to all runs of a problem; runs that end early take fewer."""
    runs = [run for entry in entries for run in entry.runs.values()]
    limits = [run.config["trainer"] for run in runs]
    steps = {trainer.get("max_steps") for trainer in limits if trainer.get("max_epochs") is None}
    return max([run.steps for run in runs] + [limit for limit in steps if limit])


def _profile(key: str, title: str, times: Times, facts: Sequence[str]) -> Panel:
    traces = [_stairs(name, fractions, len(fractions), (0.0, 1.0), banded=True) for name, fractions in times.items()]
    counts = ", ".join(f"{name} {len(fractions)}" for name, fractions in times.items())
    if len({len(fractions) for fractions in times.values()}) == 1:
        counts = f"{len(next(iter(times.values())))} each"
    note = f"bands: exact 95 % interval of the share at each point; runs: {counts}"
    return Panel(key, title, _FRACTION, _SHARE, "", traces, "\n".join([note, *facts]), (-0.03, 1.03))


def _stairs(
    name: str, values: Sequence[float | None], n: int, ends: tuple[float, float], *, banded: bool = False
) -> Trace:
    """The cumulative share of n that these values are, as a step function between the ends."""
    at, counts = np.unique([value for value in values if value is not None], return_counts=True)
    shares = [stats.share_interval(int(count), n) for count in np.cumsum([0, *counts])]
    mean, low, high = (np.repeat(column, 2) for column in zip(*((s.mean, s.low, s.high) for s in shares), strict=True))
    return Trace(name, np.repeat([ends[0], *at, ends[1]], 2)[1:-1], mean, (low, high) if banded else None)


# -- of observations --------------------------------------------------------------------------------------------------

CURVED = {
    "sharpness": "sharpness x step size (edge of gradient descent: 2)",
    "edge": "edge of the last update (with full batches: 2)",
    "noise_scale": "gradient noise scale (samples)",
    "update_cosine": "cosine of successive updates",
    "update_ratio_matrix": "update / weights of matrices",
}
"""Quantities of `bench plot stability`."""


def attention(collected: Collected) -> Chart:
    """Means over heads against optimizer steps, a panel for each problem and quantity."""
    return _chart(collected, "attention", SHOWN, over_heads)


def stability(collected: Collected) -> Chart:
    """Sharpness times step size, gradient noise and updates against optimizer steps."""

    def of_model(tables: Mapping[str, Columns], name: str) -> Line | None:
        table, curve = tables.get("measurements", {}), tables.get("curve", {})
        if name != "sharpness":
            return (table["step"], table[name]) if name in table else None
        if name not in table or "applied_step" not in curve:
            return None
        before = np.maximum(np.searchsorted(curve["step"], table["step"], side="right") - 1, 0)
        return table["step"], table["sharpness"] * curve["applied_step"][before]

    return _chart(collected, "stability", CURVED, of_model)


def _chart(
    collected: Collected,
    kind: str,
    quantities: Mapping[str, str],
    read: Callable[[Mapping[str, Columns], str], Line | None],
) -> Chart:
    panels = []
    for i, (problem, entries) in enumerate(collected.problems.items()):
        tables = {entry.name: collected.every(entry) for entry in entries}
        for name, words in quantities.items():
            if name == "noise_scale":
                panels += _noise(f"{kind}-{i}-{name}", problem, words, tables)
                continue
            measured = {label: [read(run, name) for run in runs] for label, runs in tables.items()}
            lines = {label: [line and finite(*line) for line in runs] for label, runs in measured.items() if any(runs)}
            if lines:
                panels.append(over_steps(f"{kind}-{i}-{name}", problem, words, words, lines, log_x=True))
    if not panels:
        panels.append(Panel(kind, kind, "optimizer steps", kind, note=NONE))
    return Chart(panels, series(collected))


def _noise(
    key: str, problem: Problem, words: str, tables: Mapping[str, Sequence[Mapping[str, Columns]]]
) -> list[Panel]:
    """The panel of the gradient noise scale, as the ratio of the means of its two estimates; none without them.

    The estimate of ||G||^2 of one run is often negative, so the mean of the runs' ratios does not exist.
    """
    traces, notes = [], []
    for name, runs in tables.items():
        lines = [columns(runs, f"gradient_{part}") for part in ("noise", "square")]
        pairs = [pair for pair in zip(*lines, strict=True) if all(pair)]
        if not pairs:
            continue
        if lacking := len(runs) - len(pairs):
            notes.append(f"{name}: {lacking} of {len(runs)} runs have no such values")
        at, values = at_common_steps([line for part in zip(*pairs, strict=True) for line in part if line])
        ratio, low, high = stats.ratio_of_means(*np.split(values, 2))
        late = at > 0  # on a logarithmic axis
        if np.isfinite(ratio[late]).any():
            band = (low[late], high[late]) if len(pairs) >= FEW_SEEDS else None
            traces.append(Trace(name, at[late], ratio[late], band))
    if not traces:
        return []
    bands = "; bands: 95 % jackknife interval" * any(trace.band is not None for trace in traces)
    notes.insert(0, f"ratios of means over seeds{bands}; gaps: a mean of the estimates of ||G||^2 is not positive")
    shown = np.concatenate([trace.y[np.isfinite(trace.y)] for trace in traces])
    limits = float(shown.min()) / 3, float(shown.max()) * 3  # bands may be far wider
    panel = Panel(key, words, "optimizer steps", words, "xy", traces, "\n".join(notes), limits)
    return [of_problem(problem, panel)]


CHARTS: dict[str, Callable[[Collected], Chart]] = {
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


def nothing_to_draw(chart: Chart) -> UserError:
    """The error for a chart without traces: the reason of each panel."""
    why = "; ".join(f"{cell(panel.title)}: {cell(panel.note)}" for panel in chart.panels)
    return UserError(f"nothing to draw: {why or NO_ROWS}")
