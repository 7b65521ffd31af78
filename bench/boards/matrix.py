"""The answer at a glance: the verdict of each optimizer on each problem, as marks and in sentences."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.boards.collect import Collected, Problem
from bench.boards.quality import measure_and_verdicts
from bench.boards.shared import NAME
from bench.results.render import text
from bench.results.sequential import WITHIN_TUNING, Comparison
from bench.results.stats import Interval
from bench.results.table import Board, Column, Table
from bench.terminal import width
from bench.text import cell, counted, listed

MARKS = {"better": "▲", "worse": "▼", "no difference found": "≈", WITHIN_TUNING: "≈", "reference": "ref."}
_TIE = "≈ no difference found (at all, or within tuning)"
LEGEND = (
    f"▲ better and ▼ worse than the reference (ref.), {_TIE}, ? no verdict.",
    "A dash: not run, or tuning found no usable setting.",
)
MOST_LINES, MOST_COLUMNS = 40, 100  # of the summary; ours


@dataclass(frozen=True)
class Verdict:
    """An optimizer on a problem, in words."""

    mark: str  # a value of `MARKS`, `?` without a verdict, a dash without runs
    value: str = ""  # the final metric with its interval; `short` without it, to three digits
    words: str = ""  # the verdict, or why none
    effect: str = ""
    short: str = ""


def mark_of(verdict: Any) -> str:
    """The mark of a verdict, whichever optimizer diverges more often."""
    return MARKS.get(str(verdict).partition(", ")[0], "?")


def matrix(collected: Collected) -> tuple[dict[str, dict[Problem, Verdict]], set[str], list[Problem]]:
    """The verdicts by the board `quality`, of each optimizer on each problem.

    Also the names of the reader's own, which are first, before those of the community, and the problems without any of
    them, if there are some.
    """
    rows = defaultdict[str, dict[Problem, Verdict]](dict)
    for problem, entries in collected.problems.items():
        metric, verdicts, _ = measure_and_verdicts(collected, problem)
        for entry in entries:
            row, mean = verdicts.values(entry), metric.summary(entry)
            words = row["verdict"] or collected.no_reference(problem)
            scale = f"{verdicts.scale}: {cell(row['effect'])}" if row.get("effect") is not None else ""
            short = mean.bound + cell(mean.mean, 3) if isinstance(mean, Interval) else mean
            rows[entry.name][problem] = Verdict(mark_of(words), cell(mean), cell(words), scale, short)
        for opt, why in collected.excluded(problem).items():
            rows[opt][problem] = Verdict("-", words=why)
    names = collected.ours
    ours = {entry.name for entry in collected.chosen if entry.opt in names} & rows.keys()
    theirs = [problem for problem in collected.problems if ours and not any(problem in rows[name] for name in ours)]
    sent = {entry.name for entry in collected.chosen if entry.community}
    return {n: rows[n] for n in sorted(rows, key=lambda n: (n not in ours, n not in sent, n))}, ours, theirs


def summary(collected: Collected) -> str:
    """The matrix and its notes for a terminal: at most 40 lines of 100 columns, the reader's own problems only."""
    (rows, ours, theirs), problems = matrix(collected), [*collected.problems]
    names = short_names([problem for problem in problems if problem not in theirs])
    columns = [NAME, *(Column(problem.key, name, wraps=True) for problem, name in names.items())]
    table = Table("verdicts, and means (or medians) over seeds", columns, [])
    for name, verdicts in rows.items():
        cells = {p.key: f"{verdict.mark} {verdict.short}".strip() for p, verdict in verdicts.items() if p in names}
        table.rows.extend([{"opt": f"{'● ' * (name in ours)}{name}", **cells}] * bool(cells))
    notes = [
        " ".join(LEGEND),
        "● with runs in your stores" * bool(ours),
        "; ".join(dict.fromkeys(collected.no_reference(p) for p in problems if collected.reference_of(p) is None)),
        f"{counted(len(theirs), 'problem')} without one marked ●: bench leaderboard --all" * bool(theirs),
        "boards with intervals: bench leaderboard --all; one row: --explain OPTIMIZER; one page: bench report",
    ]
    board = Board("matrix", "Optimizers on tasks", [table], [note for note in notes if note])
    wide, cut = min(MOST_COLUMNS, width()), 0
    shown = text([board], wide)
    while shown.count("\n") > MOST_LINES and cut < len(table.rows) - 1:
        cut += 1
        more = f"{counted(cut, 'further optimizer')}: bench leaderboard --all, or choose tasks with --task"
        shown = text([replace(board, tables=[replace(table, rows=table.rows[:-cut], notes=[more])])], wide)
    return shown


def short_names(problems: Sequence[Problem]) -> dict[Problem, str]:
    """The name of each problem without what all problems of its task share."""
    names = {}
    for problem in problems:
        several = [{*other.name.split(", ")} for other in problems if other.task == problem.task]
        first, *parts = problem.name.split(", ")
        names[problem] = ", ".join([first, *(part for part in parts if any(part not in other for other in several))])
    return names


def headline(collected: Collected, problem: Problem) -> str:
    """The result of a problem on the board `quality` in one or two sentences."""
    metric, verdicts, reason = measure_and_verdicts(collected, problem)
    ordered, ref = verdicts.ordered(collected.problems[problem]), verdicts.ref
    if ref is None:
        best = "no entry has a comparable mean"
        if first := next((entry for entry in ordered if entry.refused is None and metric.mean(entry)), None):
            best = f"{first.name} ({first.kind}) has the best mean ({metric.words} {cell(metric.mean(first))})"
        return f"{best}; no verdicts, since {collected.no_reference(problem)}."
    names = defaultdict[str, list[str]](list)
    for entry in (entry for entry in ordered if entry is not ref):
        compared, value, scale = verdicts.of(entry), "", "ratio" if verdicts.measure.log else "gain"
        if isinstance(compared, Comparison) and compared.effect is not None and compared.effect.bounded:
            value = f" ({scale} {cell(compared.effect)})"
        names[compared.words if isinstance(compared, Comparison) else "not compared"].append(entry.name + value)
    if excluded := collected.excluded(problem):
        names["not compared"] += excluded
    named = f"{ref.name} ({ref.kind}, {metric.words} {cell(metric.summary(ref))})"
    better = names.pop("better", [])
    first = f"{listed(better)} {'is' if len(better) == 1 else 'are'} better than {named}."
    sentences = [first if better else f"No optimizer was found to be better than {named}."]
    sentences += [f"{words[0].upper()}{words[1:]}: {listed(of_words)}." for words, of_words in names.items()]
    return " ".join([*sentences, *([f"{reason[0].upper()}{reason[1:]}."] if reason else [])])
