"""`bench list runs`: selected runs, folded into lines.

Runs that differ only in their seeds share a line, as do the runs of a study, and the sweeps of an optimizer on a
problem. Only records are read, and no plug-in is imported.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from bench.errors import UserError
from bench.results.selection import GAP, above_infimum, best_index, equal_below, final_value, score_text, seed_median
from bench.results.table import Column, Table
from bench.run_summary import result_json
from bench.store.record import RunResult, Status
from bench.store.reports import StudyRecord
from bench.store.stores import Stores
from bench.text import comparable, duration, number, spanned, word_of
from optimizers.plugins import bare, slug

COLUMNS = (
    Column("run", "run"),
    Column("status", "status"),
    Column("begun", "begun"),
    Column("time", "time", side="right"),
    Column("steps", "steps", side="right"),
    Column("seed", "seed"),
    Column("result", "result"),
    Column("settings", "settings", wraps=True),
)
_FORM = "%Y-%m-%dT%H:%M:%SZ"
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_STUDY = "study "


@dataclass(frozen=True)
class Filters:
    """Selection and format of the list.

    Attributes:
        tasks, opts, statuses: names to keep; empty for all.
        since: the earliest moment (`bench.store.record.Moment`); empty for all.
        each: whether every run has its own line.
    """

    tasks: Sequence[str] = ()
    opts: Sequence[str] = ()
    statuses: Sequence[str] = ()
    since: str = ""
    each: bool = False


@dataclass
class Line:
    """Runs that share a line.

    Attributes:
        name: the id of a single run, or what the runs have in common.
        groups: the runs, grouped if they differ only in their seeds.
        begun: when the newest of them began.
        chosen: the group with the best settings; None for one group, or without a best one.
        value: the compared value; None without one.
        above: whether it is a suboptimality gap.
    """

    name: str
    groups: list[list[RunResult]]
    begun: str
    chosen: list[RunResult] | None = None
    value: float | None = None
    above: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """The settings beyond the defaults of the best group, else those that all groups share."""
        first, *others = [group[0].chosen for group in ([self.chosen] if self.chosen else self.groups)]
        return {
            name: value
            for name, value in first.items()
            if value is not None and all(name in own and own[name] == value for own in others)
        }

    @property
    def runs(self) -> list[RunResult]:
        """All runs of the line."""
        return [run for group in self.groups for run in group]

    @property
    def seconds(self) -> float:
        """Total seconds of its runs."""
        return sum(run.wall_s for run in self.runs)


STATUSES: tuple[str, ...] = get_args(Status)


def since(text: str, now: datetime | None = None) -> str:
    """The moment of `--since`: a local date or time, or a duration ago.

    Raises:
        UserError: it is not a moment.
    """
    now = now or datetime.now(UTC)
    try:
        if ago := re.fullmatch(r"(\d{1,6})([mhdw])", text, re.ASCII):
            moment = now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            moment = datetime.fromisoformat(text).astimezone(UTC)
        return moment.strftime(_FORM).zfill(20)  # `strftime` does not pad years to four digits
    except (ValueError, OverflowError):
        raise UserError(
            f"--since {text!r}: it takes a date ({now:%Y-%m-%d}), a time ({now:%Y-%m-%dT%H:%M}), or how long ago"
            " (30m, 2h, 3d, 1w)"
        ) from None


def lines(stores: Stores, asked: Filters) -> list[Line]:
    """All lines in order; the caller applies the limit.

    Raises:
        UserError: there is no such task or optimizer.
    """
    studies = studies_of(stores)
    stores.refuse_unknown(asked.tasks, asked.opts, stores.runs)
    runs = [
        run
        for run in stores.runs
        if run.is_of(asked.tasks, asked.opts)
        and (not asked.statuses or run.status in asked.statuses)
        and run.begun >= asked.since
    ]
    runs.sort(key=lambda run: (run.begun, run.run_id), reverse=True)
    winners = {record.winner: record for record in stores.studies if record.winner is not None}
    return _folded(runs, studies, asked, winners)


def studies_of(stores: Stores) -> dict[str, str]:
    """The study of each run, from the study's record, else from the run's."""
    found = {run.run_id: study for run in stores.runs if (study := planned_by(run)) is not None}
    return found | {run_id: record.name for record in reversed(stores.studies) for run_id in record.run_ids}


def planned_by(run: RunResult) -> str | None:
    """The study in a run's record."""
    return run.plan.removeprefix(_STUDY) if run.plan and run.plan.startswith(_STUDY) else None


# -- folding ----------------------------------------------------------------------------------------------------------


def _folded(
    runs: Sequence[RunResult],
    studies: Mapping[str, str],
    asked: Filters,
    winners: Mapping[str, StudyRecord],
) -> list[Line]:
    """Lines of runs, given newest first."""
    if asked.each:
        return [_line(run.run_id, [[run]]) for run in runs]
    folded: dict[tuple[str, ...], dict[str, list[RunResult]]] = {}
    for run in runs:
        group, study = _but_for_seeds(run), studies.get(run.run_id)
        own = bare(run.config["task"]), bare(run.config["opt"])
        if study is not None:
            key = (f"study {study}", "study", *own)
        elif run.plan == "sweep":
            problem = json.dumps([comparable(run.problem), run.part], sort_keys=True)
            key = (f"sweep of {slug(own[0])}-{slug(own[1])}", "sweep", *own, problem)
        else:
            key = ("", group)
        folded.setdefault(key, {}).setdefault(group, []).append(run)
    found: list[Line] = []
    for (name, *_), groups in folded.items():
        first = next(iter(groups.values()))[0]
        alone = len(groups) == 1 and len(groups[next(iter(groups))]) == 1
        shared = f"{slug(first.config['task'])}-{slug(first.config['opt'])}-*"
        line = _line(first.run_id if alone else name or shared, list(groups.values()))
        if name.startswith(_STUDY):
            _show_winner(line, winners)
        found.append(line)
    return found


def _show_winner(line: Line, winners: Mapping[str, StudyRecord]) -> None:
    """Show a study's own winner, on its fresh seeds if it has run on them; the tuning seeds are optimistic."""
    for group in line.groups:
        record = next((winners[run.run_id] for run in group if run.run_id in winners), None)
        if record is not None:
            ended = [run for run in group if run.finished and _is_alike(run, line.groups)]
            fresh = [run for run in ended if run.run_id not in record.run_ids] or ended
            line.value = seed_median([final_value(run, line.above) for run in fresh], group[0].mode)
            line.chosen = group if len(line.groups) > 1 else None


def _but_for_seeds(run: RunResult) -> str:
    """Key of runs that differ only in their seeds."""
    own = {**(run.identity or run.config)}
    if own.get("seed") == own.get("data_seed"):
        del own["data_seed"]
    own.pop("seed", None)
    return json.dumps([own, run.part], sort_keys=True)


def _line(name: str, groups: list[list[RunResult]]) -> Line:
    line = Line(name, groups, max(run.begun for group in groups for run in group))
    ended = [[run for run in group if run.finished and _is_alike(run, groups)] for group in groups]
    above = above_infimum([run for group in ended for run in group])
    scores = [
        seed_median([final_value(run, above) for run in group], group[0].mode) if group else None for group in ended
    ]
    first = groups[0][0]
    order = sorted(range(len(groups)), key=lambda i: _place(groups[i][0]))  # ties: the middle of a grid
    best = best_index([scores[i] for i in order], first.mode, equal_below(scores, first.metric))
    if best is not None:
        best = order[best]
        line.value, line.above = scores[best], above
        line.chosen = groups[best] if len(groups) > 1 else None
    return line


def _place(run: RunResult) -> list[tuple[int, float, str]]:
    """Sort key of a run's hyperparameters in a grid: numbers before text."""
    values = (value for _, value in sorted(run.config["opt_options"].items()))
    return [(0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value)) for value in values]


def _is_alike(run: RunResult, groups: Sequence[Sequence[RunResult]]) -> bool:
    """Whether a run's metric is that of the line's first run."""
    first = groups[0][0]
    return (run.metric, run.split, run.mode) == (first.metric, first.split, first.mode)


# -- text -------------------------------------------------------------------------------------------------------------


def table(found: Iterable[Line]) -> Table:
    """Lines as a table."""
    return Table.of(COLUMNS, map(_cells, found))


def _cells(line: Line) -> list[str]:
    runs = line.runs
    counts = Counter(run.status for run in runs)
    status = (
        ", ".join(f"{counts[name]} {name}" for name in STATUSES if counts[name]) if len(runs) > 1 else runs[0].status
    )
    settings = "  ".join(f"{name} {word_of(value)}" for name, value in line.settings.items())
    steps = spanned([run.steps for run in runs])
    return [line.name, status, local(line.begun), _time(line.seconds), steps, seeds(runs), _result(line), settings]


def local(moment: str) -> str:
    """A moment of a record in local time; a dash if unknown."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):
        return "-"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else duration(min(seconds, 1e12))


def seeds(runs: Iterable[RunResult]) -> str:
    """The seeds of runs: a short list, a range, or their number."""
    own = sorted({run.config["seed"] for run in runs})
    if len(own) > 2 and own[-1] - own[0] == len(own) - 1:
        return f"{own[0]} to {own[-1]}"
    return ",".join(map(str, own)) if len(own) <= 4 else f"{len(own)} seeds"


def _result(line: Line) -> str:
    if line.value is None or not math.isfinite(line.value):
        return "-"
    run = line.groups[0][0]
    what = "" if len(line.runs) == 1 else " best" if line.chosen is not None else " median"
    value = score_text(line.value, run.metric) if line.above else number(float(line.value))
    return f"{run.split} {run.metric}{GAP * line.above} {value}{what}"


def as_json(found: Iterable[Line], stores: Stores) -> list[dict[str, Any]]:
    """The runs of lines, each with its result and differing settings."""
    studies = studies_of(stores)
    return [
        {
            **result_json(run, stores.place(run.run_id).parent),
            "reason": run.reason,
            "begun": run.begun or None,
            "seed": run.config["seed"],
            "data_seed": run.config["data_seed"],
            "engine": run.engine,
            "plan": run.plan,
            "study": studies.get(run.run_id),
            "settings": run.chosen,
        }
        for line in found
        for run in line.runs
    ]
