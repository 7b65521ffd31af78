"""The answer at a glance: the verdict of each optimizer on each problem."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.boards.collect import Collected
from bench.boards.entries import Problem
from bench.boards.quality import judged
from bench.boards.shared import NAME, lost
from bench.results.render import text
from bench.results.sequential import Comparison
from bench.results.stats import Interval
from bench.results.table import Board, Column, Table
from bench.text import cell, counted

MARKS = {"better": "▲", "worse": "▼", "no difference found": "≈", "reference": "ref."}
NO_VERDICT = "?"
LEGEND = (
    "▲ better and ▼ worse than the reference (ref.), ≈ no difference found, ? no verdict.",
    "A dash: not run, or tuning found no usable setting.",
)
MOST_LINES, MOST_COLUMNS = 40, 100
"""Size of the summary. Ours."""


@dataclass(frozen=True)
class Verdict:
    """An optimizer on a problem: a value of `MARKS`, `?` without a verdict, a dash without runs; all else in words.

    `value` is the final metric with its interval, `short` to three digits; `words` the verdict or why none.
    """

    mark: str
    value: str = ""
    words: str = ""
    effect: str = ""
    short: str = ""


def mark_of(verdict: Any) -> str:
    """The mark of a verdict, whichever optimizer diverges more often."""
    return MARKS.get(str(verdict).partition(", ")[0], NO_VERDICT)


def matrix(collected: Collected) -> dict[str, dict[Problem, Verdict]]:
    """The verdicts by the board `quality`, of each optimizer (the reader's own first) on each problem."""
    rows: dict[str, dict[Problem, Verdict]] = {}
    ours = set[str]()
    for problem, entries in collected.problems.items():
        metric, verdicts, _ = judged(collected, problem)
        for entry in entries:
            compared, mean = verdicts.of(entry), metric.mean(entry) or lost(entry)
            words = verdicts.values(entry, compared)["verdict"] or collected.no_reference(problem)
            effect = compared.effect if isinstance(compared, Comparison) else None
            scale = f"{verdicts.scale[0]}: {cell(effect)}" if effect is not None else ""
            short = mean.bound + cell(mean.mean, 3) if isinstance(mean, Interval) else mean
            row = Verdict(mark_of(words), cell(mean), cell(words), scale, short)
            rows.setdefault(entry.name, {})[problem] = row
            ours |= {entry.name} if entry.opt in collected.ours else set()
        for opt, why in collected.excluded(problem).items():
            rows.setdefault(opt, {})[problem] = Verdict("-", "", why)
    return {name: rows[name] for name in sorted(rows, key=lambda name: (name not in ours, name))}


def summary(collected: Collected) -> str:
    """The matrix and its notes for a terminal: at most 40 lines of 100 columns, the reader's own problems only."""
    rows, problems = matrix(collected), [*collected.problems]
    ours = {entry.name for entry in collected.chosen if entry.opt in collected.ours}
    theirs = [problem for problem in problems if ours and not any(problem in rows.get(name, {}) for name in ours)]
    names = short_names([problem for problem in problems if problem not in theirs])
    columns = [NAME, *(Column(problem.key, name, wraps=True) for problem, name in names.items())]
    table = Table("verdicts, and means over seeds", columns, [])
    for name, verdicts in rows.items():
        cells = {problem.key: f"{verdict.mark} {verdict.short}".strip() for problem, verdict in verdicts.items()}
        table.rows.append({"opt": f"{'● ' * (name in ours)}{name}", **cells})
    notes = [
        " ".join(LEGEND),
        *["● with runs in your stores"] * bool(ours),
        "; ".join(dict.fromkeys(collected.no_reference(p) for p in problems if collected.reference_of(p) is None)),
        f"{counted(len(theirs), 'problem')} without runs of yours: bench leaderboard --board all" if theirs else "",
        "boards with intervals: bench leaderboard --board all; one row: --explain OPTIMIZER; one page: bench report",
    ]
    board = Board("matrix", "Optimizers on tasks", [table], [note for note in notes if note])
    shown, cut = text([board], MOST_COLUMNS), 0
    while shown.count("\n") > MOST_LINES and cut < len(table.rows) - 1:
        cut += 1
        more = f"{counted(cut, 'further optimizer')}: bench leaderboard --board all, or choose tasks with --task"
        shorter = replace(table, rows=table.rows[:-cut], notes=[more])
        shown = text([replace(board, tables=[shorter])], MOST_COLUMNS)
    return shown


def short_names(problems: Sequence[Problem]) -> dict[Problem, str]:
    """The name of each problem without what all problems of its task share."""
    names = {}
    for problem in problems:
        several = [{*other.name.split(", ")} for other in problems if other.task == problem.task]
        first, *parts = problem.name.split(", ")
        names[problem] = ", ".join([first, *(part for part in parts if any(part not in other for other in several))])
    return names
