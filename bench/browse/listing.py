"""`bench list runs`: selected runs, folded into lines.

Runs that differ only in their seeds share a line, as do the runs of a study, and the sweeps of an optimizer on a
problem. Only records are read, and no plug-in is imported.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, get_args

from bench.errors import UserError
from bench.results.selection import GAP, above_infimum, best_index, equal_below, final_value, score_text, seed_median
from bench.results.table import Column, Table
from bench.run_summary import planned_study, result_json
from bench.store.record import RunResult, Status
from bench.store.stores import Stores
from bench.text import comparable, duration, number, spanned, word_of
from optimizers.plugins import bare, slug

_RIGHT = ("time", "steps")
_NAMES = ("run", "status", "begun", "time", "steps", "seed", "result", "settings")
COLUMNS = [Column(n, n, side="right" if n in _RIGHT else None, wraps=n == "settings") for n in _NAMES]
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
STATUSES: tuple[str, ...] = get_args(Status)


class Line(NamedTuple):
    """Runs that share a line, the compared value in words, and the settings of the best group, else those of all."""

    name: str
    runs: list[RunResult]
    result: str
    settings: dict[str, Any]


def since(text: str) -> str:
    """The moment of `--since`: a local date or time, or a duration ago; UserError if it is not a moment."""
    now = datetime.now(UTC)
    try:
        if ago := re.fullmatch(r"(\d{1,6})([mhdw])", text, re.ASCII):
            moment = now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            moment = datetime.fromisoformat(text).astimezone(UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError):
        how = f"a date ({now:%Y-%m-%d}), a time ({now:%Y-%m-%dT%H:%M}), or how long ago (30m, 2h, 3d, 1w)"
        raise UserError(f"--since {text!r}: it takes {how}") from None


def selected(
    stores: Stores, tasks: Sequence[str], opts: Sequence[str], statuses: Sequence[str], begun: str
) -> list[RunResult]:
    """The runs with these names and statuses (none: all) that began at this moment or later, the newest first."""
    stores.refuse_unknown(tasks, opts)
    runs = [run for run in stores.runs if run.begun >= begun and (not statuses or run.status in statuses)]
    runs = [run for run in runs if run.is_of(tasks, opts)] if tasks or opts else runs
    return sorted(runs, key=lambda run: (run.begun, run.run_id), reverse=True)


def lines(stores: Stores, runs: Sequence[RunResult], *, fold: bool) -> list[Line]:
    """The lines of these runs in their order: folded, or one for each run."""
    trials = {run_id for record in stores.studies for run_id in record.run_ids}
    winners = {record.winner for record in stores.studies}
    if not fold:
        return [_line(run.run_id, [[run]], trials, winners) for run in runs]
    studies, folded = studies_of(stores), dict[tuple[str, ...], dict[str, list[RunResult]]]()
    for run in runs:
        group, study = _but_for_seeds(run), studies.get(run.run_id)
        names = bare(run.config["task"]), bare(run.config["opt"])
        key: tuple[str, ...] = ("", group)
        if study is not None:
            key = (f"study {study}", *names)
        elif run.plan == "sweep":
            problem = json.dumps([comparable(run.problem), run.part], sort_keys=True)
            key = (f"sweep of {slug(names[0])}-{slug(names[1])}", *names, problem)
        folded.setdefault(key, {}).setdefault(group, []).append(run)
    return [_line(key[0], list(groups.values()), trials, winners) for key, groups in folded.items()]


def studies_of(stores: Stores) -> dict[str, str]:
    """The study of each run, from the study's record, else from the run's."""
    planned = {run.run_id: study for run in stores.runs if (study := planned_study(run)) is not None}
    return planned | {run_id: record.name for record in reversed(stores.studies) for run_id in record.run_ids}


def _but_for_seeds(run: RunResult) -> str:
    """Key of runs that differ only in their seeds."""
    identity = {**(run.identity or run.config)}
    if identity.get("seed") == identity.get("data_seed"):
        del identity["data_seed"]
    identity.pop("seed", None)
    return json.dumps([identity, run.part], sort_keys=True)


def _line(name: str, groups: list[list[RunResult]], trials: Collection[str], winners: Collection[str | None]) -> Line:
    """A line; a study's winner counts by its fresh seeds if it has run on them: tuning seeds are optimistic."""
    first, runs = groups[0][0], [run for group in groups for run in group]
    ended = [[run for run in group if run.finished and run.metric == first.metric] for group in groups]
    above = above_infimum([run for group in ended for run in group])

    def score(runs: Sequence[RunResult]) -> float | None:
        return seed_median([final_value(run, above) for run in runs], first.mode) if runs else None

    scores = [*map(score, ended)]
    best = best_index(scores, first.mode, equal_below(scores, first.metric))
    value = None if best is None else scores[best]
    won = [i for i, group in enumerate(groups) if any(run.run_id in winners for run in group)]
    if won and name.startswith("study "):
        best = won[0]
        value = score([run for run in ended[best] if run.run_id not in trials] or ended[best])
    result = "-"
    if value is not None:
        text = score_text(value, first.metric) if above else number(float(value))
        kind = " best" if len(groups) > 1 else " median" if len(runs) > 1 else ""
        result = f"{first.split} {first.metric}{GAP * above} {text}{kind}"
    settings, *others = [group[0].chosen for group in (groups if best is None else [groups[best]])]
    shared = {k: v for k, v in settings.items() if v is not None and all(k in o and o[k] == v for o in others)}
    label = name or f"{slug(first.config['task'])}-{slug(first.config['opt'])}-*"
    return Line(label if len(runs) > 1 else first.run_id, runs, result, shared)


def table(shown: Iterable[Line]) -> Table:
    """Lines as a table."""
    return Table.of(COLUMNS, map(_cells, shown))


def _cells(line: Line) -> list[str]:
    runs = line.runs
    counts, seeds = Counter(run.status for run in runs), sorted({run.config["seed"] for run in runs})
    statuses = [f"{counts[name]} {name}" for name in STATUSES if counts[name]]
    seconds = sum(run.wall_s for run in runs)
    span = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1 else ""
    return [
        line.name,
        ", ".join(statuses) if len(runs) > 1 else runs[0].status,
        local(max(run.begun for run in runs)),
        f"{seconds:.1f} s" if seconds < 10 else duration(min(seconds, 1e12)),
        spanned([run.steps for run in runs]),
        span or (",".join(map(str, seeds)) if len(seeds) <= 4 else f"{len(seeds)} seeds"),
        line.result,
        "  ".join(f"{name} {word_of(value)}" for name, value in line.settings.items()),
    ]


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
            **result_json(run, stores.place(run.run_id).parent),
            **{"reason": run.reason, "begun": run.begun or None, "engine": run.engine, "plan": run.plan},
            **{"seed": run.config["seed"], "data_seed": run.config["data_seed"]},
            **{"study": studies.get(run.run_id), "settings": run.chosen},
        }
        for run in runs
    ]
