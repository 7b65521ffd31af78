"""Results of studies, as text and as JSON."""

from collections.abc import Sequence
from typing import Any

from bench.results.group import Group
from bench.results.render import shown
from bench.results.selection import GAP, above_infimum, score_text
from bench.results.table import Table
from bench.store.record import RunResult
from bench.store.reports import StudyRecord
from bench.text import cell, counted, listed, options_text, plain, seeds_in_words
from bench.tuning.study import StudyResult


def trial_lines(study: StudyRecord, runs: Sequence[RunResult]) -> list[str]:
    """The trials of a study with these runs as a table; * marks the winner."""
    metric = f"{study.select_split or 'selection'} {study.metric}{GAP * above_infimum(runs)}"
    rows = [
        ("*" * (study.winner in t["runs"]), options_text(t["point"]), t["kind"], t["state"], t["score"])
        for t in study.trials
    ]
    first = f"{study.name}: {study.opt} on {study.task}, sampler {study.sampler}, seeds {seeds_in_words(study.seeds)}"
    table = Table.of(("", "settings", "kind", "state", metric.rstrip()), rows)
    return [first, *shown(table), *[f"{study.missing} more to try"] * bool(study.missing)]


def result_lines(result: StudyResult) -> list[str]:
    """The winner of a study in a line, and what failed."""
    record, fresh = result.record, result.measure.mean(Group.of(result.fresh))
    line = f"{record.task} {record.opt}: no setting has a score"
    if result.best is not None and result.score is not None:
        score, trials = score_text(result.score, record.metric), counted(len(record.trials), "trial")
        line = f"{record.task} {record.opt}: best of {trials} {options_text(result.best.point)}, score {score}"
        line += f"; on {counted(len(result.fresh), 'fresh seed')} {result.measure.words} {cell(fresh)}" * bool(fresh)
        line += f"; at the edge: {listed(record.edges)}" * bool(record.edges)
    failed = [f"failed: {options_text(trial.point)}: {trial.reason}" for trial in result.trials if not trial.runs]
    return [line, *failed, *(f"failed: fresh seed {seed}: {why}" for seed, why in result.fresh_failed.items())]


def as_json(result: StudyResult) -> dict[str, Any]:
    """The results in a form for strict JSON."""
    record, fresh = result.record, Group.of(result.fresh)
    mean = result.measure.mean(fresh)
    low, high = (None, None) if mean is None else mean.ends
    seeds = {"seeds": [run.config["seed"] for run in result.fresh], "values": result.measure.values(fresh)}
    return plain(
        {"study": record.name, "task": record.task, "opt": record.opt, "sampler": record.sampler}
        | {"trials": len(record.trials), "missing": record.missing, "best": record.winning_point, "score": record.score}
        | {"fresh": seeds | {"mean": mean and mean.mean, "low": low, "high": high}}
        | {"lr_at_boundary": record.lr_at_boundary, "tried": record.trials}
    )
