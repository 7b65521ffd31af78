"""The forest plot: the effects of the board `quality` as a picture, a panel for each problem."""

import math
import textwrap
from dataclasses import replace

import numpy as np

from bench.boards.collect import Collected
from bench.boards.curves import of_problem, series
from bench.boards.entries import Entry, Problem
from bench.boards.quality import judged
from bench.results.chart import Chart, Panel, Trace, axis_limits
from bench.results.sequential import LEAST_SEEDS, Comparison
from bench.results.stats import Interval
from bench.text import clean, spanned

_LETTERS = 24
"""Letters in a line next to a row: about a third of a panel."""
_LINE, _AROUND = 0.125, 0.95
"""Height of a line of text, and of the margins above and below the rows, in inches."""
_GAP = 0.7
"""Lines between rows."""


def forest(collected: Collected) -> Chart:
    """Effect of each optimizer against the reference with its interval, the best on top; a panel for each problem."""
    numbered = enumerate(collected.problems)
    panels = [of_problem(problem, _panel(f"forest-{i}", collected, problem)) for i, problem in numbered]
    return Chart(panels, series(collected), labelled=True)


def _panel(key: str, collected: Collected, problem: Problem) -> Panel:
    _, verdicts, said = judged(collected, problem)
    ref, measure = verdicts.ref, verdicts.measure
    panel = Panel(key, "effects", f"{measure.words}: {'; '.join(verdicts.scale)}", "")
    if ref is None:
        return replace(panel, note=collected.no_reference(problem))
    rows: list[tuple[Entry, Comparison, Interval]] = []
    left_out = []
    for entry in verdicts.ordered(collected.problems[problem]):
        of = verdicts.of(entry)
        if isinstance(of, str):
            left_out.append(f"{entry.name}: {of}")
        elif of is not None and of.effect is None:
            counts = f"{of.lost[0]} of its and {of.lost[1]} of the reference's {of.n} runs have no value"
            left_out.append(f"{entry.name}: {of.words}; there is no median, since {counts}")
        elif of is not None and of.effect is not None:
            rows.append((entry, of, of.effect))
    if not rows:
        return replace(panel, note="; ".join(left_out) or f"there is no entry besides the reference {ref.name}")
    log, none = measure.log, 1.0 if measure.log else 0.0
    ends = np.array([(effect.low, effect.high) for _, _, effect in rows])
    ends[(ends <= 0) & log] = -math.inf
    limits = axis_limits([np.array([effect.mean for _, _, effect in rows]), ends, np.array([none])], log, 0.06)
    traces, words, down = [], {}, 0.0
    for (entry, of, middle), interval in zip(rows, ends, strict=True):
        lines = _lines(entry.name, verdicts.values(entry, of)["verdict"])
        y = down - (len(lines) + _GAP) / 2
        words[y], down = "\n".join(lines), down - len(lines) - _GAP
        bar = tuple(np.clip(interval[k : k + 1], *limits) for k in (0, 1)) if np.isfinite(interval).any() else None
        at = np.array([middle.mean]), np.array([y])
        traces.append(Trace(entry.name, *at, marks="all", joined=False, x_band=bar, hollow=not of.sign))
    notes = [
        "points: median over common seeds; filled if the verdict is decided, hollow if not",
        "bars: intervals of the median, coverage 96 % or more, also when larger seeds are added; unbounded ones reach"
        f" the edge; none below {LEAST_SEEDS} seeds or for settings chosen on these seeds",
        f"common seeds: {spanned([of.n for _, of, _ in rows])}",
        *([said] if said else []),
        *left_out,
    ]
    return replace(
        panel,
        log="x" * log,
        traces=traces,
        note="\n".join(notes),
        limits=(down, 0.0),
        x_limits=limits,
        y_ticks=words,
        guides=[Trace("equal to the reference", np.full(2, none), np.array([down, 0.0]))],
        least=_AROUND - _LINE * down,
    )


def _lines(name: str, verdict: str) -> list[str]:
    """Text beside a row: the verdict in the name's line, or in its own."""
    wrapped = textwrap.wrap(f"{clean(name)}:", _LETTERS, break_on_hyphens=False)
    if len(wrapped[-1]) + len(verdict) < _LETTERS:
        return [*wrapped[:-1], f"{wrapped[-1]} {verdict}"]
    return [*wrapped, *textwrap.wrap(verdict, _LETTERS)]
