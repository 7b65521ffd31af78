"""The page `results/tuned/README.md`: what the reference suite searched and chose; `make publish` writes it."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

from bench.boards.collect import Collected, capped
from bench.boards.explain import tried
from bench.results.render import markdown_table
from bench.results.table import Table
from bench.store.reports import StudyRecord
from bench.text import counted, listed, options_text

PATH = Path("results/tuned/README.md")
ABOUT = """For each optimizer and task of the reference suite: the tried values of each searched setting, from the
smallest to the largest (each heading links to all points and their scores), the chosen values, and the other settings,
without those that are off. Hours are the wall time of all trials, with one thread; the machines differ. `bench
leaderboard --task TASK --explain OPT` prints costs, machines and commands of a row."""
HEADS = ("optimizer", "tried", "chosen", "not searched", "hours", "notes")


def page(tasks: Mapping[str, Collected]) -> str:
    """The page, from the published runs of each task."""
    lines = ["# What was searched", "", *wrap(ABOUT, 120)]
    for task, found in tasks.items():
        options = {entry.study.name: entry.options for entry in found.entries if entry.study is not None}
        tuned = [entry.study for entry in found.entries if entry.study is not None]
        studies = sorted([*tuned, *(study for study, _ in found.unranked)], key=lambda study: study.opt)
        trials = sorted({counted(len(study.trials), "trial") for study in studies})
        seeds = sorted({counted(len(study.seeds), "seed") for study in studies})
        splits = sorted({f"{study.metric} on the split `{study.select_split}`" for study in studies})
        said = f"{listed(trials)} on {listed(seeds)} for each optimizer, scored by {listed(splits)}."
        lines += ["", f"## [{task}]({task}/sensitivity.md)", "", *wrap(said, 120), ""]
        rows = [_row(study, options.get(study.name, {}), found) for study in studies]
        lines += markdown_table(Table.of(HEADS, rows))
    return "\n".join([*lines, ""])


def _row(study: StudyRecord, options: Mapping[str, Any], found: Collected) -> tuple[str, ...]:
    searched = {axis.removeprefix("opt."): ends for axis, ends in tried(study).items()}
    chosen = {name.removeprefix("opt."): value for name, value in (study.winning_point or {}).items()}
    fixed = {
        name: value
        for name, value in options.items()
        if name not in searched and value is not None and value is not False
    }
    seconds = sum(run.wall_s for run in found.trial_runs(study))
    excluded = capped(study, found.by_id)
    notes = [f"chosen at the edge: {listed(study.edges)}"] * bool(study.edges)
    notes += [f"{counted(excluded, 'setting')} excluded by the cap"] * bool(excluded)
    ends = "; ".join(f"{name} {ends}" for name, ends in searched.items())
    hours = f"{seconds / 3600:.2g}"
    return study.opt, ends, options_text(chosen) or "none", options_text(fixed), hours, "; ".join(notes)
