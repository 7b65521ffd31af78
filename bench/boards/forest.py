"""The forest plot: the effects of the board `quality` as a picture, a panel for each problem."""

import math
import textwrap
from collections.abc import Sequence

import numpy as np

from bench.boards import BoardInput
from bench.boards.curves import nothing, series
from bench.boards.entries import Entry, Problem
from bench.boards.quality import judged
from bench.results.chart import Chart, Guide, Panel, Trace, axis_limits
from bench.results.sequential import LEAST_SEEDS, Comparison
from bench.results.stats import Interval
from bench.text import clean

_LETTERS = 24
"""Letters in a line next to a row: about a third of a panel."""
_LINE, _AROUND = 0.125, 0.95
"""Height of a line of text, and of the margins above and below the rows, in inches."""
_GAP = 0.7
"""Lines between rows."""


def forest(asked: BoardInput) -> Chart:
    """Effect of each optimizer against the reference with its interval, the best on top; a panel for each problem.

    Args:
        asked: the entries, and the reference if it is not each problem's own.
    """
    problems = asked.found.problems.items()
    panels = [_panel(f"forest-{i}", asked, problem, entries) for i, (problem, entries) in enumerate(problems)]
    return Chart(panels, series(asked), labelled=True)


def _panel(key: str, asked: BoardInput, problem: Problem, entries: Sequence[Entry]) -> Panel:
    _, verdicts, said = judged(asked.found, problem, entries, asked.reference)
    ref, measure, title = verdicts.ref, verdicts.measure, f"effects: {problem.name}"
    effect, better = verdicts.scale
    x = f"{measure.words}: {effect}; {better}"
    if ref is None:
        why = f"the reference {asked.reference or problem.reference} has no runs in these stores"
        return nothing(key, title, x, "", f"{why}; --reference names another")
    rows: list[tuple[Entry, Comparison, Interval]] = []
    left_out = []
    for entry in verdicts.ordered(entries):
        found = verdicts.of(entry)
        if isinstance(found, str):
            left_out.append(f"{entry.name}: {found}")
        elif found is not None and found.effect is None:
            counts = f"{found.lost[0]} of its and {found.lost[1]} of the reference's {found.n} runs have no value"
            left_out.append(f"{entry.name}: {found.verdict}; there is no median, since {counts}")
        elif found is not None and found.effect is not None:
            rows.append((entry, found, found.effect))
    if not rows:
        why = "; ".join(left_out) or f"there is no entry besides the reference {ref.name}"
        return nothing(key, title, x, "", why)
    log, none = measure.log, 1.0 if measure.log else 0.0
    ends = np.array([(each.low, each.high) for _, _, each in rows])
    ends[(ends <= 0) & log] = -math.inf
    limits = axis_limits([np.array([each.mean for _, _, each in rows]), ends, np.array([none])], log, 0.06)
    traces, words, down = [], {}, 0.0
    for (entry, found, middle), own in zip(rows, ends, strict=True):
        lines = _lines(entry.name, verdicts.values(entry, found)["verdict"])
        y = down - (len(lines) + _GAP) / 2
        words[y], down = "\n".join(lines), down - len(lines) - _GAP
        bar = tuple(np.clip(own[k : k + 1], *limits) for k in (0, 1)) if np.isfinite(own).any() else None
        traces.append(
            Trace(
                entry.name,
                np.array([middle.mean]),
                np.array([y]),
                marks="all",
                joined=False,
                x_band=bar,
                hollow=not found.sign,
            )
        )
    counts = [found.n for _, found, _ in rows]
    notes = [
        "points: median over common seeds; filled if the verdict is decided, hollow if not",
        "bars: intervals of the median, coverage 96 % or more, also when seeds are added; unbounded ones reach the"
        f" edge; none below {LEAST_SEEDS} seeds or for settings chosen on these seeds",
        f"common seeds: {' to '.join(map(str, sorted({min(counts), max(counts)})))}",
        *([said] if said else []),
        *left_out,
    ]
    guide = Guide("equal to the reference", np.full(2, none), np.array([down, 0.0]))
    return Panel(
        key,
        title,
        x,
        "",
        "x" * log,
        traces,
        "\n".join(notes),
        (down, 0.0),
        limits,
        y_ticks=words,
        guides=[guide],
        least=_AROUND - _LINE * down,
    )


def _lines(name: str, verdict: str) -> list[str]:
    """Text beside a row: the verdict in the name's line, or in its own."""
    own = textwrap.wrap(f"{clean(name)}:", _LETTERS, break_on_hyphens=False)
    if len(own[-1]) + len(verdict) < _LETTERS:
        return [*own[:-1], f"{own[-1]} {verdict}"]
    return [*own, *textwrap.wrap(verdict, _LETTERS)]
