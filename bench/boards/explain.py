"""Explanation of a row of a board: search space, trials, split, cost, reductions, commands."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.boards.collect import Collected, Entry
from bench.errors import unknown
from bench.results.render import shown
from bench.results.table import Table
from bench.run_summary import commands, fit_words
from bench.store.record import RunResult
from bench.store.reports import StudyRecord
from bench.text import cell, counted, duration, is_number, listed, options_text, seeds_in_words, word_of


def explain(collected: Collected, name: str) -> list[dict[str, Any]]:
    """Explanation of the rows with this name, or of this optimizer; UserError if there is no such row."""
    rows = [explained(entry, collected) for entry in collected.entries if name in (entry.name, entry.opt)]
    if not rows:
        raise unknown("row", name, sorted({entry.name for entry in collected.entries}))
    return rows


def explained(entry: Entry, collected: Collected) -> dict[str, Any]:
    """Explanation of one row; see `explain`."""
    runs, study = list(entry.runs.values()), entry.study
    seeds, elsewhere = [run.config["seed"] for run in runs], sorted({run.tuned_by for run in runs if run.tuned_by})
    trials = f"in {listed(elsewhere)}, without its trials" if elsewhere else f"nothing: {entry.kind}"
    facts = {
        "settings": f"{entry.kind}: {options_text(entry.options)}",
        **(_searched(study, collected) if study else {"searched": trials}),
        "shown": f"{'/'.join(sorted({run.split for run in runs}))} {entry.problem.metric} of"
        f" {counted(len(runs), 'run')}, seeds {seeds_in_words(sorted({*seeds}))}: {cell(entry.statuses)}",
        "their cost": _cost(runs),
        "flags": ", ".join(entry.flags) or "none",
        "versions": ", ".join(f"{what} {' and '.join(known)}" for what, known in entry.versions.items()),
    }
    every = [*([_tune_words(study, runs[0], seeds)] if study else []), *commands(runs)]
    return {"row": entry.name, "problem": entry.problem.name, "facts": facts, "commands": every}


def lines(row: Mapping[str, Any]) -> Iterator[str]:
    """A row's explanation for a terminal."""
    yield cell(f"{row['row']} on {row['problem']}")
    yield from shown(Table.facts(row["facts"].items()), "  ")
    yield from ("  commands", *(cell(f"    {command}") for command in row["commands"]))
    yield ""


def _searched(study: StudyRecord, collected: Collected) -> dict[str, str]:
    ranges = listed([f"{axis} (tried: {ends})" for axis, ends in tried(study).items()])
    kinds = cell(Counter(trial["kind"] for trial in study.trials))
    return {
        "searched": f"{ranges} by {study.sampler}: {len(study.trials)} trials ({kinds}), each on seed"
        f"{'s' * (len(study.seeds) > 1)} {seeds_in_words(sorted(study.seeds))}",
        "chosen by": f"{study.metric or 'the metric'} on the split `{study.select_split or 'unknown'}`, median over"
        " the tuning seeds" + f"; best at the edge of {listed(study.edges)}" * bool(study.edges),
        "tuning cost": _cost(collected.trial_runs(study)) + f" (study {study.name})",
    }


def tried(study: StudyRecord) -> dict[str, str]:
    """The tried values of each searched setting: from the smallest to the largest number, or all words."""
    words = dict[str, str]()
    for axis in study.axes:
        values = [trial["point"].get(axis) for trial in study.trials]
        numbers = [value for value in values if is_number(value)]
        span = f"{min(numbers):g} to {max(numbers):g}" if numbers else ""
        words[axis] = span or ", ".join(sorted({word_of(value) for value in values}))
    return words


def _cost(runs: Sequence[RunResult]) -> str:
    gradients, seconds = sum(run.cost for run in runs), sum(run.wall_s for run in runs)
    where = " and ".join(sorted({run.machine for run in runs})) or "unknown machines"
    work = f"{counted(len(runs), 'run')}, {gradients:,} gradients of a batch"
    return f"{work}, {duration(seconds)} of wall time on {where}"


def _tune_words(study: StudyRecord, run: RunResult, fresh: Sequence[int]) -> str:
    """The command of such a study with these fresh seeds, from one of its runs; it searches today's space."""
    fixed = {name: value for name, value in run.chosen.items() if name not in study.axes}
    kinds = Counter(trial["kind"] for trial in study.trials)
    tuning, report = (",".join(map(str, [*sorted({*seeds}), ""])) for seeds in (study.seeds, fresh))  # as lists
    words = f"bench tune{fit_words(run, fixed).removeprefix('bench fit')} --trials {kinds['design']} --seeds {tuning}"
    more = f"  # `bench suite` adds {counted(kinds['top-up'], 'trial')}: equal budgets for all optimizers"
    return f"{words} --report_seeds {report} --sampler {study.sampler}" + more * bool(kinds["top-up"])
