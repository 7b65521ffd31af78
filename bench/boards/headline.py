"""The headline of a report: one or two sentences for each problem."""

from collections.abc import Sequence

from bench.boards.collect import Collected
from bench.boards.entries import Entry, Problem
from bench.boards.quality import judged
from bench.boards.shared import lost
from bench.results.sequential import NO_VALUE, Comparison
from bench.text import cell, listed


def headlines(found: Collected) -> list[tuple[str, str]]:
    """The name of each problem, and its result on the board `quality`, in words."""
    return [(problem.name, _headline(found, problem, entries)) for problem, entries in found.problems.items()]


def _headline(found: Collected, problem: Problem, entries: Sequence[Entry]) -> str:
    metric, verdicts, reason = judged(found, problem)
    ordered, ref = verdicts.ordered(entries), verdicts.ref
    if ref is None:
        first = next((entry for entry in ordered if entry.refused is None and metric.mean(entry)), None)
        best = "no entry has a comparable mean"
        if first is not None:
            best = f"{first.name} ({first.settings}) has the best mean ({metric.words} {cell(metric.mean(first))})"
            best += ", on the seeds that chose its settings" * bool(first.best_of)
        return f"{best}; no verdicts, since {found.no_reference(problem)}."
    others = [entry for entry in ordered if entry is not ref]
    if others and all(entry.best_of for entry in others):
        means = [f"{entry.name} {cell(metric.mean(entry) or lost(entry))}" for entry in ordered]
        return f"Best of a sweep, on the seeds that chose the settings, so there are no verdicts: {', '.join(means)}."
    less, more = verdicts.measure.often
    names: dict[str, list[str]] = {}
    for entry in others:
        comparison = verdicts.of(entry)
        if not isinstance(comparison, Comparison):
            names.setdefault("not compared", []).append(entry.name)
            continue
        if comparison.diverges:
            names.setdefault(less if comparison.diverges > 0 else more, []).append(entry.name)
        if comparison.sign or not comparison.diverges:
            name = entry.name
            if comparison.effect is not None and comparison.effect.bounded:
                name += f" ({'ratio' if verdicts.measure.log else 'gain'} {cell(comparison.effect)})"
            names.setdefault(comparison.verdict if comparison.sign else comparison.words, []).append(name)
    value = metric.mean(ref)
    named = f"{ref.name} ({ref.settings}, {metric.words} {cell(value) if value else 'without a mean'})"
    sentences = []
    if not names:
        sentences.append(f"There is nothing to compare with {named}.")
    elif not names.keys() & {"better", "worse", "no difference found", less, more}:
        sentences.append(f"No verdict against {named} is decided.")
    elif "better" not in names:
        sentences.append(f"No optimizer was found to be better than {named}.")
    names["not compared"] = [*names.get("not compared", ()), *found.excluded(problem)]
    for word, sentence in {
        "better": f"{{}} better than {named}.",
        "no difference found": f"No significant difference between {ref.name} and {{}}.",
        "worse": "{} worse.",
        less: f"{less.capitalize()} than {ref.name}: {{}}.",
        more: f"{more.capitalize()} than {ref.name}: {{}}.",
        NO_VALUE: f"No run of {{}} or {ref.name} has a value.",
        "too few seeds": "Too few seeds to judge {}.",
        "selected on these seeds": "Settings were selected on these seeds, so there is no verdict on {}.",
        "not compared": "Not compared: {}.",
    }.items():
        if names.get(word):
            verb = (" is" if len(names[word]) == 1 else " are") * (word in ("better", "worse"))
            sentences.append(sentence.replace("{}", listed(names[word]) + verb))
    if reason:
        sentences.append(f"{reason[0].upper()}{reason[1:]}.")
    return " ".join(sentences)
