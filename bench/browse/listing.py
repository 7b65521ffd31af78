"""`bench list runs`: selected runs, folded into lines.

Runs that differ only in their seeds share a line, as do the runs of a study, and the sweeps of an optimizer on a
problem. Only records are read, and no plug-in is imported.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, get_args

from bench.results.selection import GAP, above_infimum, best_index, equal_below, final_value, score_text, seed_median
from bench.results.table import Column, Table
from bench.run_summary import result_json
from bench.store.record import RunResult, Status
from bench.store.stores import Stores
from bench.text import duration, number, seeds_in_words, spanned, word_of
from optimizers.plugins import bare, slug

_NAMES = ("run", "status", "begun", "time", "steps", "seed", "result", "settings")
COLUMNS = [Column(n, n, side="right" if n in ("time", "steps") else None, wraps=n == "settings") for n in _NAMES]
STATUSES: tuple[str, ...] = get_args(Status)


def selected(stores: Stores, tasks: Sequence[str], opts: Sequence[str], statuses: Sequence[str]) -> list[RunResult]:
    """The runs with these names and statuses (none: all), the newest first."""
    runs = [run for run in stores.selected(tasks, opts) if not statuses or run.status in statuses]
    return sorted(runs, key=lambda run: (run.begun, run.run_id), reverse=True)


def table(stores: Stores, runs: Sequence[RunResult], *, fold: bool) -> Table:
    """These runs in their order: folded, or a line for each."""
    trials = {run_id for record in stores.studies for run_id in record.run_ids}
    winners = {record.winner for record in stores.studies}
    studies, folded = studies_of(stores), defaultdict[tuple[str, str], dict[str, list[RunResult]]](dict)
    for run in runs:
        config, study = run.config, studies.get(run.run_id)
        names = f"{bare(config['task'])} {bare(config['opt'])} {run.part}"
        versions = [run.versions.get(of) for of in ("task", "task_package", "opt", "opt_package", "rest")]
        settings = f"{names} {config['device']} {run.chosen} {versions}" if fold else run.run_id  # all but the seeds
        key = "", settings
        if fold and study is not None:
            key = f"study {study}", names
        elif fold and run.plan == "sweep":
            key = "sweep", f"{names} {run.problem}"
        folded[key].setdefault(settings, []).append(run)
    return Table.of(COLUMNS, (_cells(key[0], [*groups.values()], trials, winners) for key, groups in folded.items()))


def studies_of(stores: Stores) -> dict[str, str]:
    """The study of each run, from the study's record, else from the run's."""
    planned = {run.run_id: study for run in stores.runs if (study := run.planned_study) is not None}
    return planned | {run_id: record.name for record in reversed(stores.studies) for run_id in record.run_ids}


def _cells(
    kind: str, groups: list[list[RunResult]], trials: Collection[str], winners: Collection[str | None]
) -> tuple[str, ...]:
    """A line of groups of runs, with the result of the best group; of a study, with the winner's on fresh seeds."""
    first, runs = groups[0][0], [run for group in groups for run in group]
    ended = [[run for run in group if run.finished and run.metric == first.metric] for group in groups]
    above = above_infimum([run for group in ended for run in group])

    def score(runs: Sequence[RunResult]) -> float | None:
        return seed_median([final_value(run, above) for run in runs], first.mode) if runs else None

    scores = [*map(score, ended)]
    best = best_index(scores, first.mode, equal_below(scores, first.metric))
    value = None if best is None else scores[best]
    won = [i for i, group in enumerate(groups) if any(run.run_id in winners for run in group)]
    if won and kind.startswith("study "):
        best = won[0]
        value = score([run for run in ended[best] if run.run_id not in trials] or ended[best])
    result, which = "-", " best" if len(groups) > 1 else " median" if len(runs) > 1 else ""
    if value is not None:
        text = score_text(value, first.metric) if above else number(float(value))
        result = f"{first.split} {first.metric}{GAP * above} {text}{which}"
    settings, *others = [group[0].chosen for group in (groups if best is None else [groups[best]])]
    shared = {k: v for k, v in settings.items() if v is not None and all(k in o and o[k] == v for o in others)}
    counts, seeds = Counter(run.status for run in runs), sorted({run.config["seed"] for run in runs})
    names = f"{slug(first.config['task'])}-{slug(first.config['opt'])}"
    label = f"sweep of {names}" if kind == "sweep" else kind or f"{names}-*"
    return (
        label if len(runs) > 1 else first.run_id,
        ", ".join(f"{counts[name]} {name}" for name in STATUSES if counts[name]) if len(runs) > 1 else first.status,
        local(max(run.begun for run in runs)),
        seconds_text(sum(run.wall_s for run in runs)),
        spanned([run.steps for run in runs]),
        seeds_in_words(seeds) if len(seeds) <= 4 or seeds[-1] - seeds[0] < len(seeds) else f"{len(seeds)} seeds",
        result,
        "  ".join(f"{name} {word_of(value)}" for name, value in shared.items()),
    )


def seconds_text(seconds: float) -> str:
    """A duration in words; in a record it may be any number."""
    return f"{seconds:.1f} s" if seconds < 10 else duration(min(seconds, 1e12))


def local(moment: str) -> str:
    """A moment of a record in local time; a dash if unknown."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):
        return "-"


def as_json(runs: Iterable[RunResult], stores: Stores) -> list[dict[str, Any]]:
    """Runs, each with its result and the settings that differ from the defaults."""
    studies = studies_of(stores)
    return [
        {
            **result_json(run, stores.blocks[run.run_id].folder.parent),
            **{"reason": run.reason, "begun": run.begun or None, "engine": run.engine, "plan": run.plan},
            **{"seed": run.config["seed"], "data_seed": run.config["data_seed"]},
            **{"study": studies.get(run.run_id), "settings": run.chosen},
        }
        for run in runs
    ]
