"""The headline of a report: one or two sentences for each problem."""

from collections.abc import Sequence

from bench.boards.collect import Collected
from bench.boards.entries import Entry, Problem
from bench.boards.quality import judged
from bench.boards.shared import Verdicts, lost
from bench.results.sequential import NO_VALUE, Comparison
from bench.text import cell, listed


def headlines(collected: Collected) -> list[tuple[str, str]]:
    """The name of each problem, and its result on the board `quality`, in words."""
    return [(problem.name, _said(collected, problem, entries)) for problem, entries in collected.problems.items()]


def _said(collected: Collected, problem: Problem, entries: Sequence[Entry]) -> str:
    metric, verdicts, said = judged(collected, problem)
    ordered = verdicts.ordered(entries)
    if verdicts.ref is None:
        first = next((entry for entry in ordered if entry.refused is None and metric.mean(entry)), None)
        best = "no entry has a comparable mean"
        if first is not None:
            best = f"{first.name} ({first.settings}) has the best mean ({metric.words} {cell(metric.mean(first))})"
            best += ", on the seeds that chose its settings" * bool(first.best_of)
        return f"{best}; no verdicts, since {collected.no_reference(problem)}."
    compared = {entry: verdicts.of(entry) for entry in ordered if entry is not verdicts.ref}
    groups: dict[str, list[Entry]] = {}
    for entry, of in compared.items():
        said_of = "not compared" if not isinstance(of, Comparison) else of.verdict if of.sign else of.words
        groups.setdefault(said_of, []).append(entry)
    if compared and all(entry.best_of for entry in compared):
        means = [f"{entry.name} {cell(metric.mean(entry) or lost(entry))}" for entry in ordered]
        return f"Best of a sweep, on the seeds that chose the settings, so there are no verdicts: {', '.join(means)}."
    ref, value = verdicts.ref, metric.mean(verdicts.ref)
    named = f"{ref.name} ({ref.settings}, {metric.words} {cell(value) if value else 'without a mean'})"

    def those(word: str) -> str:
        return listed([f"{entry.name}{_effect(compared[entry], verdicts)}" for entry in groups[word]])

    def verb(word: str) -> str:
        return "is" if len(groups[word]) == 1 else "are"

    sentences = []
    often = verdicts.measure.often
    if "better" in groups:
        sentences.append(f"{those('better')} {verb('better')} better than {named}.")
    elif {"worse", "no difference found", *often} & groups.keys():
        sentences.append(f"No optimizer was found to be better than {named}.")
    elif groups:
        sentences.append(f"No verdict against {named} is decided.")
    else:
        sentences.append(f"There is nothing to compare with {named}.")
    if "no difference found" in groups:
        sentences.append(f"No significant difference between {ref.name} and {those('no difference found')}.")
    if "worse" in groups:
        sentences.append(f"{those('worse')} {verb('worse')} worse.")
    for sign, words in zip((1, -1), often, strict=True):
        some = [entry.name for entry, of in compared.items() if isinstance(of, Comparison) and of.diverges == sign]
        if some:
            sentences.append(f"{words[0].upper()}{words[1:]} than {ref.name}: {listed(some)}.")
    if NO_VALUE in groups:
        sentences.append(f"No run of {listed([entry.name for entry in groups[NO_VALUE]])} or {ref.name} has a value.")
    if "too few seeds" in groups:
        sentences.append(f"Too few seeds to judge {those('too few seeds')}.")
    if "selected on these seeds" in groups:
        sentences.append(
            f"Settings were selected on these seeds, so there is no verdict on {those('selected on these seeds')}."
        )
    if absent := [*(entry.name for entry in groups.get("not compared", ())), *collected.excluded(problem)]:
        sentences.append(f"Not compared: {listed(absent)}.")
    if said:
        sentences.append(f"{said[0].upper()}{said[1:]}.")
    return " ".join(sentences)


def _effect(of: Comparison | str | None, verdicts: Verdicts) -> str:
    """Effect size, if the seeds bound it."""
    if not isinstance(of, Comparison) or of.effect is None or not of.effect.bounded:
        return ""
    return f" ({'ratio' if verdicts.measure.log else 'gain'} {cell(of.effect)})"
