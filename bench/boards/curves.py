"""Charts over optimizer steps: columns of the runs' tables, and step sizes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from scipy.special import stdtrit

from bench.boards.collect import Collected
from bench.boards.entries import Entry, Problem
from bench.boards.shared import FEW_SEEDS
from bench.errors import unknown
from bench.results.chart import MOST, WORDS, Array, Chart, Panel, Trace, thinned
from bench.results.selection import GAP, cap_share
from bench.store.tables import Columns
from bench.text import CONVERGED, spanned

MOST_POINTS = 200
"""Maximum number of points of a line: more are not visible."""
SPAN = 10
"""Ratio of largest to smallest value above which an axis is logarithmic. Ours."""
EXPLODED = 10
"""Multiple of the highest initial loss above which a line is cut off. Ours."""
LONGEST_NAME = 60
"""Maximum length of a problem's name in the title of a panel. Ours."""
LABELS = WORDS | {"alignment": "alignment (cosine)", "distance": "distance of directions"}
"""Axis labels of columns; others have their own name."""


def series(collected: Collected, of: Iterable[str] = ("",)) -> dict[str, str]:
    """Names of all entries, shown or not, with each ending, by optimizer: an entry has the same style in all charts."""
    ends = [f" {word}".rstrip() for word in of]
    pairs = sorted({(entry.opt, entry.name) for entry in collected.chosen})
    return {name + end: opt for opt, name in pairs for end in ends}


def curves(collected: Collected, column: str = "loss") -> Chart:
    """A column of the runs' tables against optimizer steps: means over seeds with pointwise t-intervals.

    The training loss is shown as suboptimality gap if the infimum is known, and not below `CONVERGED`.

    Args:
        collected: the entries.
        column: of the curve, or else of the measurements.

    Raises:
        UserError: no run has this column.
    """
    panels, known = [], set()
    for i, (problem, entries) in enumerate(collected.problems.items()):
        lines, words, facts = {}, LABELS.get(column, column), []
        above = column == "loss" and all(run.infimum is not None for e in entries for run in e.runs.values())
        for entry in entries:
            read, runs = collected.every(entry), entry.runs.values()
            known |= {name for tables in read for table in tables.values() for name in table}
            lines[entry.name] = _held(columns(read, column), [run.status for run in runs])
            if column == "loss":
                pairs = zip(lines[entry.name], runs, strict=True)
                lines[entry.name] = [line and _clipped(line, run.infimum if above else None) for line, run in pairs]
        every = [line for of_runs in lines.values() for line in of_runs if line is not None]
        if column == "loss" and any((values == CONVERGED).any() for _, values in every):
            facts.append(f"losses below {CONVERGED:g} are drawn at that value")
        words += GAP * above
        cut = EXPLODED if column == "loss" else math.inf
        panels.append(over_steps(f"curves-{i}", problem, words, words, lines, facts, cut=cut))
    if column not in known and (known or column != "loss"):
        raise unknown("column", column, sorted(known - {"step"}))
    return Chart(panels, series(collected))


def _clipped(line: "Line", infimum: Any) -> "Line":
    """The suboptimality gap, at least `CONVERGED`; if the infimum is unknown, losses below 0 stay."""
    at, values = line
    if infimum is None and (values < 0).any():
        return line
    return at, np.maximum(values - (infimum or 0.0), CONVERGED)


def steps(collected: Collected) -> Chart:
    """Step sizes of the methods that choose them, before and after their cap, against optimizer steps."""
    panels = []
    for i, (problem, entries) in enumerate(collected.problems.items()):
        shown = [entry for entry in entries if _chooses(entry)]
        title = "step sizes"
        if not shown:
            why = "no optimizer in these runs computes or caps its step size"
            panels.append(of_problem(problem, Panel(f"steps-{i}", title, "optimizer steps", "step size", note=why)))
            continue
        lines, facts = {}, []
        for entry in shown:
            read = collected.every(entry)
            lines[f"{entry.name} applied"] = columns(read, "applied_step")
            lines[f"{entry.name} raw"] = columns(read, "raw_step")
            if share := cap_share(entry.runs.values()):
                facts.append(f"{entry.name}: {100 * share:.3g} % of the steps are at the cap")
        panels.append(over_steps(f"steps-{i}", problem, title, "step size", lines, facts))
    return Chart(panels, series(collected, ("applied", "raw")))


def _chooses(entry: Entry) -> bool:
    """Whether the method computes its step from the loss, or its cap was ever active."""
    return any("needs_loss" in run.traits or run.cap_share for run in entry.runs.values())


Line = tuple[Array, Array]
"""Steps and values of a run, shape (P,) each, P > 0; only finite values."""


def columns(read: Iterable[Mapping[str, Columns]], column: str) -> list[Line | None]:
    """The column of each run; None for a run without values."""
    lines: list[Line | None] = []
    for tables in read:
        table = next((tables[name] for name in ("curve", "measurements") if column in tables.get(name, {})), None)
        lines.append(None if table is None else finite(table["step"], table[column]))
    return lines


def finite(at: Array, values: Array) -> Line | None:
    """The points with finite values; None if there are none."""
    mask = np.isfinite(values)
    return (at[mask], values[mask]) if mask.any() else None


def _held(lines: Sequence[Line | None], statuses: Sequence[str]) -> list[Line | None]:
    """The lines; runs that converged early continue with their last value."""
    longest = max((line[0] for line in lines if line is not None), key=lambda at: at[-1], default=np.empty(0))
    held = []
    for line, status in zip(lines, statuses, strict=True):
        if line is not None and status == "completed":
            later = longest[longest > line[0][-1]]
            line = np.append(line[0], later), np.append(line[1], np.full(len(later), line[1][-1]))
        held.append(line)
    return held


def over_steps(
    key: str,
    problem: Problem,
    title: str,
    y: str,
    lines: Mapping[str, Sequence[Line | None]],
    facts: Sequence[str] = (),
    *,
    log_x: bool = False,
    cut: float = math.inf,
) -> Panel:
    """A panel of a problem: means over seeds, for each name at the steps at which all its runs have values.

    Lines above `cut` times the highest initial value leave the panel, so that an exploding run does not hide others.
    """
    whole = {
        name: drawn for name, of_runs in lines.items() if (drawn := [line for line in of_runs if line is not None])
    }
    common = {name: at_common_steps(of_runs) for name, of_runs in whole.items()}
    # The theory's rates are powers of the steps.
    log = ("x" if problem.measures or log_x else "") + log_axis([values for _, values in common.values()])
    traces, notes, seeds, early = [], [], {}, {}
    for name, (at, values) in common.items():
        last = max(float(of_runs[0][-1]) for of_runs in whole[name])
        shown = ((values > 0).all(0) | ("y" not in log)) & ((at > 0) | ("x" not in log))
        if not shown.any():
            notes.append(f"{name} is not drawn: no step has values of all its runs")
            continue
        at, values, seeds[name] = at[shown], values[:, shown], len(values)
        if at[-1] < last:
            early.setdefault(f"{at[-1]:.0f}", []).append(name)
        traces += _means(name, at, values, log)
    notes += [
        f"drawn up to step {at}: later steps lack values of some runs: {', '.join(of)}" for at, of in early.items()
    ]
    missing = {name: sum(line is None for line in of_runs) for name, of_runs in lines.items()}
    notes += [f"{name}: {n} of {len(lines[name])} runs have no such values" for name, n in missing.items() if n]
    most = cut * max((abs(float(trace.y[0])) for trace in traces), default=0.0) or math.inf
    if exploded := dict.fromkeys(trace.name for trace in traces if trace.y.max() > most):
        notes.append(f"cut off above {most:.3g}, {cut:g} times the highest initial value: {', '.join(exploded)}")
    notes = [*_bands(seeds, log), *facts, *notes]
    panel = Panel(key, title, "optimizer steps", y, log, traces, "\n".join(notes), _room(traces, log, most))
    return of_problem(problem, panel)


def of_problem(problem: Problem, panel: Panel) -> Panel:
    """The panel with the problem in its title; there a long name is cut, and the note has it whole."""
    name, note = problem.name, panel.note
    if len(name) > LONGEST_NAME:
        name = ", ".join([name.partition(",")[0], *["not the whole task"] * bool(problem.part)])
        note = f"{note}\nproblem: {problem.name}"
    return replace(panel, title=f"{panel.title}: {name}", note=note)


def at_common_steps(lines: Sequence[Line]) -> Line:
    """Steps at which all runs have values, shape (P,), and the values, shape (S, P)."""
    at = reduce(np.intersect1d, [steps for steps, _ in lines])
    return at, np.array([values[np.searchsorted(steps, at)] for steps, values in lines])


def log_axis(values: Sequence[Array]) -> str:
    """Whether values get a logarithmic axis: `y`, or nothing."""
    every = np.concatenate([np.ravel(array) for array in values]) if values else np.empty(0)
    positive = every[every > 0]
    return "y" if positive.size and every.min() >= 0 and positive.max() > SPAN * positive.min() else ""


def _means(name: str, at: Array, values: Array, log: str) -> list[Trace]:
    """The mean with its t-interval at each point, or a line for each seed if there are too few."""
    some = thinned(at, "x" in log, MOST_POINTS)
    at, values, n = at[some], values[:, some], len(values)
    if n < FEW_SEEDS:
        return [Trace(name, at, row) for row in values]
    scaled = np.log(values) if "y" in log else np.clip(values, -MOST, MOST)  # squares of larger numbers overflow
    mean, half = scaled.mean(0), float(stdtrit(n - 1, 0.975)) * scaled.std(0, ddof=1) / math.sqrt(n)
    low, middle, high = (np.exp(np.clip(x, -690, 690)) if "y" in log else x for x in (mean - half, mean, mean + half))
    return [Trace(name, at, middle, (low, high))]


def _bands(seeds: Mapping[str, int], log: str) -> list[str]:
    """Description of lines and bands."""
    few = [name for name, n in seeds.items() if n < FEW_SEEDS]
    said = []
    if counts := [n for n in seeds.values() if n >= FEW_SEEDS]:
        kind = "geometric mean" if "y" in log else "mean"
        said.append(f"lines: {kind} over {spanned(counts)} seeds; bands: 95 % t-interval at each point")
    if few:
        said.append(f"a line for each seed, without band, for fewer than {FEW_SEEDS}: {', '.join(few)}")
    return said


def _room(traces: Sequence[Trace], log: str, most: float) -> tuple[float, float] | None:
    """Limits of y if a line exceeds `most`, or if a band is so wide that lines become indistinguishable."""
    if not traces:
        return None
    to, back = (np.log, np.exp) if "y" in log else (np.asarray, float)
    low, top = min(to(t.y).min() for t in traces), max(to(t.y).max() for t in traces)
    high = min(top, to(most))
    ends = [to(end) for t in traces for end in t.band or (t.y,)]
    room = (high - low) / 2 or (1.0 if "y" in log else abs(high) / 2 or 1.0)
    wide = min(e.min() for e in ends) < low - room or max(e.max() for e in ends) > high + room
    if high == top and not wide:
        return None
    limits = max(low - room, min(e.min() for e in ends)), min(high + room, max(e.max() for e in ends))
    upper = high if high < top else max(limits[1], high)
    return float(back(min(limits[0], low))), float(back(upper))
