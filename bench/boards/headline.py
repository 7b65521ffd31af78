"""The headline of a report: one or two sentences for each problem."""

from bench.boards.collect import Collected
from bench.boards.entries import Problem
from bench.boards.quality import judged
from bench.boards.shared import lost
from bench.results.sequential import Comparison
from bench.text import cell, listed


def headlines(collected: Collected) -> list[tuple[str, str]]:
    """The name of each problem, and its result on the board `quality`, in words."""
    return [(problem.name, _headline(collected, problem)) for problem in collected.problems]


def _headline(collected: Collected, problem: Problem) -> str:
    metric, verdicts, reason = judged(collected, problem)
    ordered, ref = verdicts.ordered(collected.problems[problem]), verdicts.ref
    if ref is None:
        best = "no entry has a comparable mean"
        if first := next((entry for entry in ordered if entry.refused is None and metric.mean(entry)), None):
            best = f"{first.name} ({first.settings}) has the best mean ({metric.words} {cell(metric.mean(first))})"
            best += ", on the seeds that chose its settings" * bool(first.best_of)
        return f"{best}; no verdicts, since {collected.no_reference(problem)}."
    others = [entry for entry in ordered if entry is not ref]
    if others and all(entry.best_of for entry in others):
        means = [f"{entry.name} {cell(metric.mean(entry) or lost(entry))}" for entry in ordered]
        return f"Best of a sweep, on the seeds that chose the settings, so there are no verdicts: {', '.join(means)}."
    names: dict[str, list[str]] = {}
    for entry in others:
        comparison = verdicts.of(entry)
        if not isinstance(comparison, Comparison):
            names.setdefault("not compared", []).append(entry.name)
            continue
        effect, scale = comparison.effect, "ratio" if verdicts.measure.log else "gain"
        value = f" ({scale} {cell(effect)})" if effect is not None and effect.bounded else ""
        names.setdefault(comparison.words, []).append(entry.name + value)
    if excluded := collected.excluded(problem):
        names["not compared"] = [*names.get("not compared", []), *excluded]
    named = f"{ref.name} ({ref.settings}, {metric.words} {cell(metric.mean(ref) or 'without a mean')})"
    better = names.pop("better", [])
    first = f"{listed(better)} {'is' if len(better) == 1 else 'are'} better than {named}."
    sentences = [first if better else f"No optimizer was found to be better than {named}."]
    sentences += [f"{words[0].upper()}{words[1:]}: {listed(of_words)}." for words, of_words in names.items()]
    return " ".join([*sentences, *([f"{reason[0].upper()}{reason[1:]}."] if reason else [])])
