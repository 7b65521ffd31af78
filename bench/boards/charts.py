"""What the plots of results show, as numbers: `chart_figure.py` draws them for papers, `page.py` for the browser."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from bench.boards import Asked
from bench.boards.entries import HUGE, Entry, Problem
from bench.boards.shared import FEW_SEEDS
from bench.boards.speed import reached
from bench.boards.tuning import expected_scores
from bench.errors import UserError, unknown
from bench.papers.arms import Array, Table
from bench.results import stats
from bench.results.selection import CONVERGED, equal_below
from bench.store.reports import StudyRecord

MOST_POINTS = 200
"""Points of a line at most: no screen and no print shows more."""
SPAN = 10
"""Values whose greatest is more than so many times their least get a logarithmic axis. Ours."""
WORDS = {
    "loss": "training loss", "grad_norm": "norm of the gradient", "alignment": "alignment (cosine)",
    "raw_step": "step size before its cap", "applied_step": "step size", "distance": "distance of directions",
    "test_loss": "test loss", "train_error": "training error (fraction)", "test_error": "test error (fraction)",
}  # fmt: skip
"""What axes call columns; another is called by its name."""


@dataclass(frozen=True)
class Trace:
    """A curve.

    Attributes:
        name: what the legend calls it; traces of one name share colour and dash.
        x, y: shape (P,), finite, and positive on logarithmic axes.
        band: lower and upper end, shape (P,) each; None for no band.
        marks: draw a marker at each point.
    """

    name: str
    x: Array
    y: Array
    band: tuple[Array, Array] | None = None
    marks: bool = False


@dataclass(frozen=True)
class Chart:
    """A plot.

    Attributes:
        key: a word for files and anchors, unique among the charts of a page.
        title: what it shows, of which problem.
        x, y: what the axes say, with unit.
        log: which axes are logarithmic: "", "x", "y" or "xy".
        traces: in the order of the legend; none where there is nothing to show, and the note says why.
        note: what bands are, how many seeds, what was left out: a line for each.
        limits: of y; None for what the data need.
    """

    key: str
    title: str
    x: str
    y: str
    log: str
    traces: list[Trace]
    note: str
    limits: tuple[float, float] | None = None


# -- over optimizer steps ---------------------------------------------------------------------------------------------


def curves(asked: Asked, column: str = "loss") -> list[Chart]:
    """A column of the runs' tables against optimizer steps: means over seeds with pointwise t-intervals.

    The training loss is taken above its infimum where the runs know that, and not below `CONVERGED`.

    Args:
        asked: the entries, and how to read tables.
        column: of the curve, or else of the measurements.

    Raises:
        UserError: no run has this column.
    """
    charts, known = [], set()
    for i, (problem, entries) in enumerate(asked.found.problems.items()):
        lines, words, facts = {}, WORDS.get(column, column), []
        infima = {run.run_id: run.infimum for entry in entries for run in entry.runs.values()}
        above = column == "loss" and None not in infima.values()
        for entry in entries:
            read = _tables(asked, entry)
            known |= {name for tables in read.values() for table in tables.values() for name in table}
            lines[entry.name] = _held(_columns(read, column), [run.status for run in entry.runs.values()])
            if column == "loss":
                own = zip(lines[entry.name], read, strict=True)
                lines[entry.name] = [line and _clipped(line, infima[run_id] if above else None) for line, run_id in own]
        every = [line for own in lines.values() for line in own if line is not None]
        if column == "loss" and any((values == CONVERGED).any() for _, values in every):
            facts.append(f"losses below {CONVERGED:g} are drawn there")
        words += " above its infimum" * above
        charts.append(_over_steps(f"curves-{i}", problem, f"{words}: {problem.name}", words, lines, facts))
    if column not in known and (known or column != "loss"):
        raise unknown("column", column, sorted(known - {"step"}))
    return charts


def _clipped(line: "Line", infimum: Any) -> "Line":
    """A loss above its infimum and not below `CONVERGED`; if the infimum is not known, losses below 0 stay."""
    at, values = line
    if infimum is None and (values < 0).any():
        return line
    return at, np.maximum(values - (infimum or 0.0), CONVERGED)


def steps(asked: Asked) -> list[Chart]:
    """Step sizes of the methods that choose them, before and after their cap, against optimizer steps.

    Args:
        asked: the entries, and how to read tables.
    """
    charts = []
    for i, (problem, entries) in enumerate(asked.found.problems.items()):
        shown = [entry for entry in entries if _chooses(entry)]
        title = f"step sizes: {problem.name}"
        if not shown:
            why = "no optimizer here computes its step size or caps it"
            charts.append(_empty(f"steps-{i}", title, "optimizer steps", "step size", why))
            continue
        lines, facts = {}, []
        for entry in shown:
            read = _tables(asked, entry)
            lines[f"{entry.name} applied"] = _columns(read, "applied_step")
            lines[f"{entry.name} raw"] = _columns(read, "raw_step")
            caps = [run.cap_share for run in entry.runs.values() if run.cap_share is not None]
            if any(caps):
                facts.append(f"{entry.name}: {100 * sum(caps) / len(caps):.3g} % of the steps are at the cap")
        charts.append(_over_steps(f"steps-{i}", problem, title, "step size", lines, facts))
    return charts


def _chooses(entry: Entry) -> bool:
    """Whether the method computes its step from the loss, or its cap has ever bound."""
    return any("needs_loss" in run.traits or run.cap_share for run in entry.runs.values())


Line = tuple[Array, Array]
"""Steps and values of a run, shape (P,) each, P > 0; only finite values."""


def _tables(asked: Asked, entry: Entry) -> dict[str, Mapping[str, Table]]:
    """The tables of an entry's runs by id; none of a run whose tables are damaged, which is noted."""
    read: dict[str, Mapping[str, Table]] = {}
    for run in entry.runs.values():
        try:
            read[run.run_id] = asked.tables(run.run_id)
        except UserError as error:
            read[run.run_id] = {}
            asked.found.damaged.append(str(error))
    return read


def _columns(read: Mapping[str, Mapping[str, Table]], column: str) -> list[Line | None]:
    """The column of each run; None for one that has no value of it."""
    lines: list[Line | None] = []
    for tables in read.values():
        table = next((tables[name] for name in ("curve", "measurements") if column in tables.get(name, {})), None)
        there = np.isfinite(table[column]) if table is not None else np.zeros(0, bool)
        lines.append((table["step"][there], table[column][there]) if table is not None and there.any() else None)
    return lines


def _held(lines: Sequence[Line | None], statuses: Sequence[str]) -> list[Line | None]:
    """The lines, where those of runs that converged before others ended go on with their last value."""
    longest = max((line[0] for line in lines if line is not None), key=lambda at: at[-1], default=np.empty(0))
    found = []
    for line, status in zip(lines, statuses, strict=True):
        if line is not None and status == "completed":
            later = longest[longest > line[0][-1]]
            line = np.append(line[0], later), np.append(line[1], np.full(len(later), line[1][-1]))
        found.append(line)
    return found


def _over_steps(
    key: str,
    problem: Problem,
    title: str,
    y: str,
    lines: Mapping[str, Sequence[Line | None]],
    facts: Sequence[str] = (),
) -> Chart:
    """A chart of means over seeds, for each name over the steps at which all of its runs have values."""
    whole = {name: there for name, own in lines.items() if (there := [line for line in own if line is not None])}
    common = {name: _common(own) for name, own in whole.items()}
    # The theory's rates are powers of the steps.
    log = ("x" if problem.measures else "") + _log([values for _, values in common.values()])
    traces, notes, seeds, early = [], [], {}, {}
    for name, (at, values) in common.items():
        last = max(float(own[0][-1]) for own in whole[name])
        shown = ((values > 0).all(0) | ("y" not in log)) & ((at > 0) | ("x" not in log))
        if not shown.any():
            notes.append(f"{name} is not drawn, since there is no step at which all of its runs have values")
            continue
        at, values, seeds[name] = at[shown], values[:, shown], len(values)
        if at[-1] < last:
            early.setdefault(f"{at[-1]:.0f}", []).append(name)
        traces += _means(name, at, values, log)
    notes += [
        f"drawn to step {at}, after which not all of the runs have values: {', '.join(of)}" for at, of in early.items()
    ]
    missing = {name: sum(line is None for line in own) for name, own in lines.items()}
    notes += [f"{name}: {n} of {len(lines[name])} runs have no such values" for name, n in missing.items() if n]
    notes = [*_bands(seeds, log), *facts, *notes]
    return Chart(key, title, "optimizer steps", y, log, traces, "\n".join(notes), _room(traces, log))


def _common(lines: Sequence[Line]) -> Line:
    """Steps at which all runs have values, shape (P,), and the values, shape (S, P)."""
    at = reduce(np.intersect1d, [own for own, _ in lines])
    return at, np.array([values[np.searchsorted(own, at)] for own, values in lines])


def _log(values: Sequence[Array]) -> str:
    """Whether values get a logarithmic axis: `y`, or nothing."""
    every = np.concatenate([np.ravel(each) for each in values]) if values else np.empty(0)
    positive = every[every > 0]
    return "y" if positive.size and every.min() >= 0 and positive.max() > SPAN * positive.min() else ""


def _means(name: str, at: Array, values: Array, log: str) -> list[Trace]:
    """The mean with its t-interval at each point, or a line for each of too few seeds."""
    some = _thin(at, "x" in log)
    at, values, n = at[some], values[:, some], len(values)
    if n < FEW_SEEDS:
        return [Trace(name, at, row) for row in values]
    own = np.log(values) if "y" in log else values
    mean, half = own.mean(0), float(stdtrit(n - 1, 0.975)) * own.std(0, ddof=1) / math.sqrt(n)
    low, middle, high = (np.exp(np.clip(x, -690, 690)) if "y" in log else x for x in (mean - half, mean, mean + half))
    return [Trace(name, at, middle, (low, high))]


def _thin(at: Array, log: bool) -> NDArray[np.intp]:
    """Indices of at most `MOST_POINTS` points, evenly over the axis."""
    if len(at) <= MOST_POINTS:
        return np.arange(len(at))
    place = np.log(at) if log else at
    wanted = np.linspace(place[0], place[-1], MOST_POINTS)
    return np.unique(np.append(np.searchsorted(place, wanted[:-1]), len(at) - 1))


def _bands(seeds: Mapping[str, int], log: str) -> list[str]:
    """What lines and bands are, in words."""
    few = [name for name, n in seeds.items() if n < FEW_SEEDS]
    counts = sorted({n for n in seeds.values() if n >= FEW_SEEDS})
    said = []
    if counts:
        over = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        kind = "geometric mean" if "y" in log else "mean"
        said.append(f"lines: {kind} over {over} seeds; bands: 95 % t-interval at each point")
    if few:
        said.append(f"a line for each seed, without band, for fewer than {FEW_SEEDS}: {', '.join(few)}")
    return said


def _room(traces: Sequence[Trace], log: str) -> tuple[float, float] | None:
    """Limits of y where a band is so wide that the lines could not be told apart; it is then cut off."""
    if not traces:
        return None
    to, back = (np.log, np.exp) if "y" in log else (np.asarray, float)
    low, high = min(to(t.y).min() for t in traces), max(to(t.y).max() for t in traces)
    ends = [to(end) for t in traces for end in t.band or ()]
    room = (high - low) / 2 or (1.0 if "y" in log else abs(high) / 2 or 1.0)
    if not ends or (min(e.min() for e in ends) >= low - room and max(e.max() for e in ends) <= high + room):
        return None
    limits = max(low - room, min(e.min() for e in ends)), min(high + room, max(e.max() for e in ends))
    return float(back(min(limits[0], low))), float(back(max(limits[1], high)))


def _empty(key: str, title: str, x: str, y: str, why: str) -> Chart:
    return Chart(key, title, x, y, "", [], why)


# -- of studies -------------------------------------------------------------------------------------------------------

_UNTUNED = "no optimizer was tuned here: `bench tune` or `bench suite` does it"


def sensitivity(asked: Asked) -> list[Chart]:
    """Selection scores of studies' trials against the first setting that each study searched.

    Args:
        asked: the entries; those that were tuned are shown.
    """
    charts = []
    for i, (problem, entries) in enumerate(asked.found.problems.items()):
        y, title = f"selection {problem.metric}", f"sensitivity: {problem.name}"
        studies = {entry.name: entry.study for entry in entries if entry.study is not None}
        if not studies:
            charts.append(_empty(f"sensitivity-{i}", title, "setting", y, _UNTUNED))
            continue
        traces, notes, axes = [], [], {}
        for name, study in studies.items():
            found, own = _trials(name, study, problem.metric)
            traces += found
            notes += own
            axes |= dict.fromkeys(study.axes[:1])
        log = "x" + _log([trace.y for trace in traces])
        kept = [trace for trace in traces if "y" not in log or (trace.y > 0).all()]
        counts = {len(study.seeds) for study in studies.values()}
        seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
        notes.insert(0, f"points: median over {seeds} tuning seeds on the selection split, of each trial")
        charts.append(Chart(f"sensitivity-{i}", title, " or ".join(axes) or "setting", y, log, kept, "\n".join(notes)))
    return charts


def _trials(name: str, study: StudyRecord, metric: str) -> tuple[list[Trace], list[str]]:
    """Traces of a study's trials over its first axis, joined if it searched no other; and notes on them."""
    axis = next(iter(study.axes), None)
    scored, lost = [], []
    for trial in study.trials:
        x, score = trial["point"].get(axis or ""), trial["score"]
        if isinstance(x, bool) or not isinstance(x, int | float) or not 0 < x < math.inf:
            return [], [f"{name} is not drawn, since {axis or 'nothing'} is no positive number that it searched"]
        (lost if score is None or abs(score) > HUGE else scored).append((float(x), score))
    notes = []
    if lost:
        at = ", ".join(f"{x:.3g}" for x, _ in sorted(lost)[:10]) + ", ..." * (len(lost) > 10)
        notes.append(f"{name}: {len(lost)} of {len(study.trials)} trials have no score, at {axis} {at}")
    # A trial of further seeds has the point and the score of the first.
    x, y = np.array(sorted({*scored}), dtype=np.float64).reshape(-1, 2).T
    y = np.maximum(y, equal_below(y, metric))
    if len(study.axes) == 1:
        return ([Trace(name, x, y, marks=True)] if len(x) else []), notes
    notes.append(f"{name} searched {', '.join(study.axes)}, so its trials are points that no line joins")
    return [Trace(name, x[k : k + 1], y[k : k + 1], marks=True) for k in range(len(x))], notes


def budget(asked: Asked) -> list[Chart]:
    """Expected selection score of the best of k trials against k.

    Args:
        asked: the entries; those that were tuned are shown.
    """
    charts = []
    for i, (problem, entries) in enumerate(asked.found.problems.items()):
        y, title = f"expected selection {problem.metric}", f"tuning budget: {problem.name}"
        tuned = [entry for entry in entries if entry.study is not None]
        if not tuned:
            charts.append(_empty(f"budget-{i}", title, "trials k", y, _UNTUNED))
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
                    f"{entry.name} begins at k = {len(scores) - len(there) + 1}: below, all k may have no score"
                )
        log = ("x" if max((t.x[-1] for t in traces), default=1) > SPAN else "") + _log([t.y for t in traces])
        kept = [trace for trace in traces if "y" not in log or (trace.y > 0).all()]
        charts.append(Chart(f"budget-{i}", title, "trials k", y, log, kept, "\n".join(notes)))
    return charts


# -- of targets -------------------------------------------------------------------------------------------------------

_FRACTION, _SHARE = "fraction of the budget of steps", "share of runs at the target"


def profile(asked: Asked) -> list[Chart]:
    """Share of runs that have reached the target against the fraction of the budget: by problem, and over all.

    Args:
        asked: the entries, and a target if it is not the task's.
    """
    charts: list[Chart] = []
    found: dict[Problem, dict[str, list[float | None]]] = {}
    for i, (problem, entries) in enumerate(asked.found.problems.items()):
        title, key = f"runs at the target: {problem.name}", f"profile-{i}"
        goal = problem.target if asked.target is None else asked.target
        if goal is None:
            charts.append(_empty(key, title, _FRACTION, _SHARE, "the task has no target: give one with --target"))
            continue
        whole = _whole(entries)
        own = found[problem] = {
            e.name: [_at(reached(run, asked.target, problem.mode)[0], whole) for run in e.runs.values()]
            for e in entries
        }
        fact = f"target: selection {problem.metric} {goal:g}; budget: {whole} steps; runs that diverge never get there"
        charts.append(_profile(key, title, own, [fact]))
    if len(found) > 1:
        together: dict[str, list[float | None]] = {}
        for own in found.values():
            for name, times in own.items():
                together.setdefault(name, []).extend(times)
        lacking = {name: [p.name for p, own in found.items() if name not in own] for name in together}
        notes = [f"{name} has no runs on {', '.join(where)}" for name, where in lacking.items() if where]
        note = f"runs of the {len(found)} problems with a target, each counted once"
        charts.append(_profile("profile-all", "runs at the target: over all problems", together, [note, *notes]))
    return charts


def _whole(entries: Sequence[Entry]) -> int:
    """The budget in steps, which all runs of a problem share: one that ends early has made fewer."""
    runs = [run for entry in entries for run in entry.runs.values()]
    limits = [run.config["trainer"] for run in runs]
    told = {trainer.get("max_steps") for trainer in limits if trainer.get("max_epochs") is None}
    return max([run.steps for run in runs] + [limit for limit in told if limit])


def _at(step: int | None, whole: int) -> float | None:
    return None if step is None else step / max(1, whole)


def _profile(key: str, title: str, times: Mapping[str, Sequence[float | None]], facts: Sequence[str]) -> Chart:
    traces = [_stairs(name, own) for name, own in times.items()]
    counts = ", ".join(f"{name} {len(own)}" for name, own in times.items())
    if len({len(own) for own in times.values()}) == 1:
        counts = f"{len(next(iter(times.values())))} each"
    note = f"bands: exact 95 % interval of the share at each point; runs: {counts}"
    return Chart(key, title, _FRACTION, _SHARE, "", traces, "\n".join([note, *facts]), (0.0, 1.0))


def _stairs(name: str, times: Sequence[float | None]) -> Trace:
    """The share that has come by then, as a step function from 0 to 1."""
    at, counts = np.unique([time for time in times if time is not None], return_counts=True)
    shares = [stats.share_interval(int(count), len(times)) for count in np.cumsum([0, *counts])]
    mean, low, high = (np.repeat(each, 2) for each in zip(*((s.mean, s.low, s.high) for s in shares), strict=True))
    return Trace(name, np.repeat([0.0, *at, 1.0], 2)[1:-1], mean, (low, high))


CHARTS: dict[str, Callable[[Asked], list[Chart]]] = {
    "curves": curves,
    "sensitivity": sensitivity,
    "profile": profile,
    "steps": steps,
    "budget": budget,
}
"""All kinds of charts by name, in the order in which they are shown."""
