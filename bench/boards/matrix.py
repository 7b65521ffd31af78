"""The answer at a glance: the verdict of each optimizer on each problem."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.boards.collect import Collected
from bench.boards.entries import Problem
from bench.boards.quality import judged
from bench.boards.shared import lost
from bench.results.sequential import Comparison
from bench.text import cell

MARKS = {"better": "▲", "worse": "▼", "no difference found": "≈", "reference": "ref."}
NO_VERDICT = "?"
LEGEND = (
    "▲ better and ▼ worse than the reference (ref.), ≈ no difference found, ? no verdict.",
    "A dash: not run, or tuning found no usable setting.",
)


@dataclass(frozen=True)
class Verdict:
    """An optimizer on a problem.

    Attributes:
        mark: a value of `MARKS`, or `?` without a verdict; a dash without runs.
        value: the final metric with its interval, in words.
        words: the verdict in words, or why there is none.
        effect: against the reference with its interval, in words; empty if there is none.
    """

    mark: str
    value: str = ""
    words: str = ""
    effect: str = ""


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
            compared = verdicts.of(entry)
            words = verdicts.values(entry, compared)["verdict"] or collected.no_reference(problem)
            effect = compared.effect if isinstance(compared, Comparison) else None
            scale = f"{verdicts.scale[0]}: {cell(effect)}" if effect is not None else ""
            value = cell(metric.mean(entry) or lost(entry))
            rows.setdefault(entry.name, {})[problem] = Verdict(mark_of(words), value, cell(words), scale)
            ours |= {entry.name} if entry.opt in collected.ours else set()
        for opt, why in collected.excluded(problem).items():
            rows.setdefault(opt, {})[problem] = Verdict("-", "", why)
    return {name: rows[name] for name in sorted(rows, key=lambda name: (name not in ours, name))}


def short_names(problems: Sequence[Problem]) -> dict[Problem, str]:
    """The name of each problem without what all problems of its task share."""
    names = {}
    for problem in problems:
        several = [{*other.name.split(", ")} for other in problems if other.task == problem.task]
        own = [part for part in problem.name.split(", ")[1:] if any(part not in parts for parts in several)]
        names[problem] = ", ".join([problem.name.partition(", ")[0], *own])
    return names
