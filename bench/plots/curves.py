"""Curves: columns of the runs' tables and of their evaluations against steps, epochs or seconds; step sizes."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
from scipy.special import stdtrit

from bench.boards.collect import Collected
from bench.boards.entries import Entry, Problem
from bench.boards.observations import NONE, SHOWN, over_heads
from bench.boards.shared import FEW_SEEDS
from bench.errors import UserError
from bench.near import several
from bench.plots.panels import MOST, WORDS, Figure, Line, Panel, thinned
from bench.results import stats
from bench.results.selection import GAP, cap_share
from bench.results.stats import Array
from bench.store.record import RunResult
from bench.store.tables import Columns
from bench.text import CONVERGED, spanned

MOST_POINTS = 200  # of a line; more are not visible
SPAN = 10
"""Ratio of largest to smallest value above which an axis is logarithmic. Ours."""
EXPLODED = 10
"""Multiple of the highest initial loss above which a line is cut off. Ours."""
LONGEST_NAME = 60  # of a problem in the title of a panel
LABELS = WORDS | {"alignment": "alignment (cosine)", "distance": "distance of directions"}
"""Axis labels of columns; others have their own name."""
X_AXES = {"steps": "optimizer steps", "epochs": "epochs", "seconds": "seconds of training"}
EVALUATED = "val_"  # before an evaluated quantity that a table has too: `val_loss`
CURVED = {
    "sharpness": "sharpness x step size (edge of gradient descent: 2)",
    "edge": "edge of the last update (with full batches: 2)",
    "noise_scale": "gradient noise scale (samples)",
    "update_cosine": "cosine of successive updates",
    "update_ratio_matrix": "update / weights of matrices",
}
"""Quantities of `bench plot stability`."""

Points = tuple[Array, Array]
"""Steps and values of a run, shape (P,) each, P > 0; only finite values."""


def figure(collected: Collected, panels: Sequence[Panel], of: Iterable[str] = ("",)) -> Figure:
    """Panels with the looks of all entries, shown or not, so that an entry looks the same in all figures.

    Args:
        collected: the entries.
        panels: of the figure.
        of: endings of an entry's names.
    """
    ends = [f" {word}".rstrip() for word in of]
    pairs = sorted({(entry.opt, entry.name) for entry in collected.chosen})
    return Figure(panels, {name + end: opt for opt, name in pairs for end in ends}, collected.ours)


def curves(collected: Collected, column: str = "loss", x: str = "steps") -> Figure:
    """A column of the runs' tables, or an evaluated quantity: means over seeds with pointwise t-intervals.

    The training loss is shown as suboptimality gap if the infimum is known, and not below `CONVERGED`.

    Args:
        collected: the entries.
        column: of the curve, or else of the measurements, or else of the evaluations on the selection split; these
            also have names with `val_`.
        x: a key of `X_AXES`.

    Raises:
        UserError: no run has this column.
    """
    panels, known, loss = [], set[str](), column in ("loss", f"{EVALUATED}loss")
    for problem, entries in collected.problems.items():
        lines, words, facts = {}, label(column), list[str]()
        above = column == "loss" and all(run.infimum is not None for e in entries for run in e.runs.values())
        for entry in entries:
            read, runs = collected.every(entry), [*entry.runs.values()]
            known |= names_of(runs, read)
            lines[entry.name] = _held(columns(read, column, runs), [run.status for run in runs])
            if loss:
                for k, (line, run) in enumerate(zip(lines[entry.name], runs, strict=True)):
                    if line is not None and (above or not (line[1] < 0).any()):  # else losses below 0 stay
                        gap = line[1] - (run.infimum or 0.0) * above
                        lines[entry.name][k] = line[0], np.maximum(gap, CONVERGED)
        every = [line for of_runs in lines.values() for line in of_runs if line is not None]
        if loss and any((values == CONVERGED).any() for _, values in every):
            facts.append(f"losses below {CONVERGED:g} are drawn at that value")
        words += GAP * above
        cut = EXPLODED if loss else math.inf
        panel = over_steps(problem, words, words, lines, facts, cut=cut)
        panels.append(panel if x == "steps" else _against(panel, x, entries))
    if column not in known and (known or column != "loss"):
        raise no_column(column, known)
    return figure(collected, panels)


def label(column: str) -> str:
    """The words of a column."""
    evaluated = column.removeprefix(EVALUATED)
    return f"{evaluated} on the selection split" if evaluated != column else LABELS.get(column, column)


def no_column(column: str, known: Iterable[str]) -> UserError:
    """The error for a column that no run has, with those that it may mean."""
    usual = [name for name in ("loss", "grad_norm", "val_loss", "accuracy") if name in {*known}]
    near = several(column, known) or usual
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "these runs have no tables"
    return UserError(f"unknown column {column!r}; {hint}")


def names_of(runs: Iterable[RunResult], read: Iterable[Mapping[str, Columns]]) -> set[str]:
    """The columns of the tables, and the evaluated quantities."""
    evaluated = {name for run in runs for row in run.validations for name in row} - {"step", "train_s"}
    columns = {name for tables in read for table in tables.values() for name in table} - {"step"}
    return columns | evaluated | {EVALUATED + name for name in evaluated}


def _against(panel: Panel, x: str, entries: Sequence[Entry]) -> Panel:
    """The panel with epochs or seconds in place of steps; seconds are means over seeds."""
    runs = {entry.name: [*entry.runs.values()] for entry in entries}
    lines, note = [], "seconds: means over seeds, proportional to steps between evaluations"
    budgets, whole = {run.config["trainer"].get("max_epochs") for of in runs.values() for run in of}, 1
    if x == "epochs":
        note, whole = "epochs: proportional to steps", max(run.steps for of in runs.values() for run in of)
        if len(budgets) > 1 or None in budgets:
            why = "the budget is in steps, so the length of an epoch is unknown"
            return replace(panel, lines=(), notes=[why])
    for line in panel.lines:
        if x == "epochs":
            at = line.x * float(*budgets) / max(1, whole)
        else:
            at = np.mean([_seconds(run, line.x) for run in runs[line.name]], axis=0)
        lines.append(line._replace(x=at))
    return replace(panel, x=X_AXES[x], lines=lines, notes=[*panel.notes, note])


def _seconds(run: RunResult, steps: Array) -> Array:
    """Seconds of training until these steps."""
    known = {0: 0.0} | {int(row["step"]): row["train_s"] for row in run.validations} | {run.steps: run.train_s}
    at = sorted(known)
    return np.interp(steps, at, [known[step] for step in at])


def steps(collected: Collected) -> Figure:
    """Step sizes of the methods that choose them, before and after their cap, against optimizer steps."""
    panels = []
    for problem, entries in collected.problems.items():
        shown = [entry for entry in entries if _chooses(entry)]
        if not shown:
            why = "no optimizer in these runs computes or caps its step size"
            panels.append(of_problem(problem, Panel("step sizes", X_AXES["steps"], "step size", notes=[why])))
            continue
        lines, facts = {}, []
        for entry in shown:
            read = collected.every(entry)
            lines[f"{entry.name} applied"] = columns(read, "applied_step")
            lines[f"{entry.name} raw"] = columns(read, "raw_step")
            if share := cap_share(entry.runs.values()):
                facts.append(f"{entry.name}: {100 * share:.3g} % of the steps are at the cap")
        panels.append(over_steps(problem, "step sizes", "step size", lines, facts))
    return figure(collected, panels, ("applied", "raw"))


def _chooses(entry: Entry) -> bool:
    """Whether the method computes its step from the loss, or its cap was ever active."""
    return any("needs_loss" in run.traits or run.cap_share for run in entry.runs.values())


def columns(read: Iterable[Mapping[str, Columns]], column: str, runs: Sequence[RunResult] = ()) -> list[Points | None]:
    """The column of each run, or else of its evaluations; None for a run without values."""
    lines: list[Points | None] = []
    evaluated = column.removeprefix(EVALUATED)
    for k, tables in enumerate(read):
        table = next((tables[name] for name in ("curve", "measurements") if column in tables.get(name, {})), None)
        rows = [row for row in runs[k].validations if evaluated in row] if table is None and runs else []
        if table is not None:
            lines.append(finite(table["step"], table[column]))
        elif rows:
            lines.append(finite(*(np.array([row[name] for row in rows], dtype=float) for name in ("step", evaluated))))
        else:
            lines.append(None)
    return lines


def finite(at: Array, values: Array) -> Points | None:
    """The points with finite values; None if there are none."""
    mask = np.isfinite(values)
    return (at[mask], values[mask]) if mask.any() else None


def _held(lines: Sequence[Points | None], statuses: Sequence[str]) -> list[Points | None]:
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
    problem: Problem,
    title: str,
    y: str,
    lines: Mapping[str, Sequence[Points | None]],
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
    drawn, notes, seeds, early = list[Line](), list[str](), dict[str, int](), dict[str, list[str]]()
    for name, (at, values) in common.items():
        last = max(float(of_runs[0][-1]) for of_runs in whole[name])
        shown = ((values > 0).all(0) | ("y" not in log)) & ((at > 0) | ("x" not in log))
        if not shown.any():
            notes.append(f"{name} is not drawn: no step has values of all its runs")
            continue
        at, values, seeds[name] = at[shown], values[:, shown], len(values)
        if at[-1] < last:
            early.setdefault(f"{at[-1]:.0f}", []).append(name)
        drawn += _means(name, at, values, log)
    notes += [
        f"drawn up to step {at}: later steps lack values of some runs: {', '.join(of)}" for at, of in early.items()
    ]
    missing = {name: sum(line is None for line in of_runs) for name, of_runs in lines.items()}
    notes += [f"{name}: {n} of {len(lines[name])} runs have no such values" for name, n in missing.items() if n]
    most = cut * max((abs(float(line.y[0])) for line in drawn), default=0.0) or math.inf
    if exploded := dict.fromkeys(line.name for line in drawn if line.y.max() > most):
        notes.append(f"cut off above {most:.3g}, {cut:g} times the highest initial value: {', '.join(exploded)}")
    counts, few = ([k for k, n in seeds.items() if (n < FEW_SEEDS) == less] for less in (False, True))
    mean = f"lines: {'geometric ' * ('y' in log)}mean over {spanned([seeds[k] for k in counts] or [0])} seeds"
    bands = [f"{mean}; bands: 95 % t-interval at each point"] * bool(counts)
    bands += [f"a line for each seed, without band, for fewer than {FEW_SEEDS}: {', '.join(few)}"] * bool(few)
    notes = [*bands, *facts, *notes]
    return of_problem(problem, Panel(title, X_AXES["steps"], y, log, drawn, notes, _room(drawn, log, most)))


def of_problem(problem: Problem, panel: Panel) -> Panel:
    """The panel with the problem in its title; there a long name is cut, and a note has it whole."""
    name, notes = problem.name, panel.notes
    if len(name) > LONGEST_NAME:
        name = ", ".join([name.partition(",")[0], *["not the whole task"] * bool(problem.part)])
        notes = [*notes, f"problem: {problem.name}"]
    return replace(panel, title=f"{panel.title}: {name}", notes=notes, problem=problem.name)


def at_common_steps(lines: Sequence[Points]) -> Points:
    """Steps at which all runs have values, shape (P,), and the values, shape (S, P)."""
    at = reduce(np.intersect1d, [steps for steps, _ in lines])
    return at, np.array([values[np.searchsorted(steps, at)] for steps, values in lines])


def log_axis(values: Sequence[Array]) -> str:
    """Whether values get a logarithmic axis: `y`, or nothing."""
    every = np.concatenate([np.ravel(array) for array in values]) if values else np.empty(0)
    positive = every[every > 0]
    return "y" if positive.size and every.min() >= 0 and positive.max() > SPAN * positive.min() else ""


def _means(name: str, at: Array, values: Array, log: str) -> list[Line]:
    """The mean with its t-interval at each point, or a line for each seed if there are too few."""
    some = thinned(at, "x" in log, MOST_POINTS)
    at, values, n = at[some], values[:, some], len(values)
    if n < FEW_SEEDS:
        return [Line(name, at, row) for row in values]
    scaled = np.log(values) if "y" in log else np.clip(values, -MOST, MOST)  # squares of larger numbers overflow
    mean, half = scaled.mean(0), float(stdtrit(n - 1, 0.975)) * scaled.std(0, ddof=1) / math.sqrt(n)
    low, middle, high = (np.exp(np.clip(x, -690, 690)) if "y" in log else x for x in (mean - half, mean, mean + half))
    return [Line(name, at, middle, low, high)]


def _room(lines: Sequence[Line], log: str, most: float) -> tuple[float, float] | None:
    """Limits of y if a line exceeds `most`, or if a band is so wide that lines become indistinguishable."""
    if not lines:
        return None
    to, back = (np.log, np.exp) if "y" in log else (np.asarray, float)
    low, top = min(to(line.y).min() for line in lines), max(to(line.y).max() for line in lines)
    high = min(top, to(most))
    lows, highs = ([to(getattr(line, end)) for line in lines if line.low is not None] for end in ("low", "high"))
    least, largest = min([low, *(e.min() for e in lows)]), max([top, *(e.max() for e in highs)])
    room = (high - low) / 2 or (1.0 if "y" in log else abs(high) / 2 or 1.0)
    if high == top and least >= low - room and largest <= high + room:
        return None
    upper = high if high < top else max(min(high + room, largest), high)
    return float(back(min(max(low - room, least), low))), float(back(upper))


# -- observations -----------------------------------------------------------------------------------------------------


def attention(collected: Collected) -> Figure:
    """Means over heads against optimizer steps, a panel for each problem and quantity."""
    return _observed(collected, "attention", SHOWN, over_heads)


def stability(collected: Collected) -> Figure:
    """Sharpness times step size, gradient noise and updates against optimizer steps."""

    def of_model(tables: Mapping[str, Columns], name: str) -> Points | None:
        table, curve = tables.get("measurements", {}), tables.get("curve", {})
        if name != "sharpness":
            return (table["step"], table[name]) if name in table else None
        if name not in table or "applied_step" not in curve:
            return None
        before = np.maximum(np.searchsorted(curve["step"], table["step"], side="right") - 1, 0)
        return table["step"], table["sharpness"] * curve["applied_step"][before]

    return _observed(collected, "stability", CURVED, of_model)


def _observed(
    collected: Collected,
    kind: str,
    quantities: Mapping[str, str],
    read: Callable[[Mapping[str, Columns], str], Points | None],
) -> Figure:
    panels = []
    for problem, entries in collected.problems.items():
        tables = {entry.name: collected.every(entry) for entry in entries}
        for name, words in quantities.items():
            if name == "noise_scale":
                panels += _noise(problem, words, tables)
                continue
            measured = {row: [read(run, name) for run in runs] for row, runs in tables.items()}
            lines = {row: [line and finite(*line) for line in runs] for row, runs in measured.items() if any(runs)}
            if lines:
                panels.append(over_steps(problem, words, words, lines, log_x=True))
    return figure(collected, panels or [Panel(kind, X_AXES["steps"], kind, notes=[NONE])])


def _noise(problem: Problem, words: str, tables: Mapping[str, Sequence[Mapping[str, Columns]]]) -> list[Panel]:
    """The panel of the gradient noise scale, as the ratio of the means of its two estimates; none without them.

    The estimate of ||G||^2 of one run is often negative, so the mean of the runs' ratios does not exist.
    """
    drawn, notes = list[Line](), list[str]()
    for name, runs in tables.items():
        parts = [columns(runs, f"gradient_{part}") for part in ("noise", "square")]
        pairs = [pair for pair in zip(*parts, strict=True) if all(pair)]
        if not pairs:
            continue
        if lacking := len(runs) - len(pairs):
            notes.append(f"{name}: {lacking} of {len(runs)} runs have no such values")
        at, values = at_common_steps([line for part in zip(*pairs, strict=True) for line in part if line])
        ratio, low, high = stats.ratio_of_means(*np.split(values, 2))
        late = at > 0  # on a logarithmic axis
        if np.isfinite(ratio[late]).any():
            low, high = (low[late], high[late]) if len(pairs) >= FEW_SEEDS else (None, None)
            drawn.append(Line(name, at[late], ratio[late], low, high))
    if not drawn:
        return []
    bands = "; bands: 95 % jackknife interval" * any(line.low is not None for line in drawn)
    notes.insert(0, f"ratios of means over seeds{bands}; gaps: a mean of the estimates of ||G||^2 is not positive")
    shown = np.concatenate([line.y[np.isfinite(line.y)] for line in drawn])
    limits = float(shown.min()) / 3, float(shown.max()) * 3  # bands may be far wider
    return [of_problem(problem, Panel(words, X_AXES["steps"], words, "xy", drawn, notes, limits))]
