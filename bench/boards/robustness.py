"""Robustness: how often runs diverge, how much seeds differ, and where an optimizer is worst."""

import math
from typing import Any

from bench.boards.collect import Collected
from bench.boards.shared import EVERY, LEAST_SEEDS, LOST, WHO, find_reference, gaps_by_problem, lost, metric_of, who
from bench.results import stats
from bench.results.selection import End
from bench.results.table import Board, Column, Table


def robustness(found: Collected, reference: str = "adam") -> Board:
    """How often runs diverge, how much seeds differ, and where an optimizer is worst.

    Args:
        found: entries.
        reference: optimizer that the worst task is told against.
    """
    tables = []
    for problem, entries in found.problems.items():
        metric, above = metric_of(problem, entries, find_reference(found, problem, reference))
        rows = []
        for entry in entries:
            values = entry.values(sorted(entry.runs), above)
            trials = found.trial_runs(entry)
            ended = [run for run in trials if run.finished]
            diverged = sum(run.status == "diverged" for run in ended)
            rows.append(
                who(entry) | {
                    "diverged": stats.share_interval(entry.diverged, len(entry.runs)),
                    "diverged_trials": f"{diverged} of {len(ended)}" if ended else None,
                    "deviation": _deviation(values),
                    "worst": lost(entry) if None in values else _worst(values, problem.mode),
                }
            )  # fmt: skip
        rows.sort(key=lambda row: (row["diverged"].mean, row["opt"]))
        columns = [
            *WHO,
            Column("diverged", "diverged", "share of the runs of this row, exact 95 % interval", 2),
            Column("diverged_trials", "diverged in tuning",
                   "runs of all trials of its study, of those that ended; it depends on the settings that were tried"),
            Column("deviation", "seed deviation",
                   f"of the {metric}, 95 % interval for normal values; none if a run has no value"),
            Column("worst", "worst seed", f"{metric}; a run that diverged is the worst there is"),
            *EVERY,
        ]  # fmt: skip
        tables.append(Table(problem.name, columns, rows))
    if len(tables) > 1 and any(find_reference(found, problem, reference) for problem in found.problems):
        tables.insert(0, _over_tasks(found, reference))
    return Board(
        "robustness", "Robustness", tables, ["rows are ordered by the share that diverged; no ranks are given here"]
    )


def _deviation(values: list[End]) -> stats.Interval | None:
    there = [value for value in values if value is not None]
    return stats.deviation_interval(there) if len(there) == len(values) >= LEAST_SEEDS else None


def _worst(values: list[End], mode: str) -> float:
    there = [value for value in values if value is not None]
    return min(there) if mode == "max" else max(there)


def _over_tasks(found: Collected, reference: str) -> Table:
    problems, gaps = gaps_by_problem(found, reference)
    rows: list[dict[str, Any]] = []
    for name, own in gaps.items():
        means = {problem.name: float(each.mean()) for problem, each in own.items() if not isinstance(each, str)}
        means |= {problem.name: -math.inf for problem, each in own.items() if each is LOST}
        worst = min(means, key=lambda problem: (means[problem], problem), default=None)
        each = next((each for problem, each in own.items() if problem.name == worst), None)
        interval = each if each is None or isinstance(each, str) else stats.t_interval(each)
        lacking = [
            f"{problem.name}: {each}" for problem, each in own.items() if isinstance(each, str) and each is not LOST
        ]
        rows.append({"opt": name, "worst": worst, "gap": interval, "tasks": len(own), "lacking": lacking})
    rows.sort(key=lambda row: row["opt"])
    columns = [
        Column("opt", "optimizer", "name"),
        Column("worst", "worst task", f"where it is furthest behind {reference}"),
        Column("gap", f"gap to {reference} there (in seed deviations)",
               ("paired difference in units of the deviation over seeds, 95 % t-interval,"
                " which flatters the reference since the task was chosen; positive is better"), 3),
        Column("tasks", "tasks", f"problems with runs of it, of the {len(problems)} that the reference has"),
        Column("lacking", "not compared", "problems without a gap"),
    ]  # fmt: skip
    return Table("over all tasks", columns, rows)
