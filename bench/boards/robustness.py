"""Robustness: how often runs diverge, and how much seeds differ."""

from bench.boards.collect import Collected
from bench.boards.shared import EVERY, FEW_SEEDS, WHO, lost, metric_of, who
from bench.results import stats
from bench.results.selection import End
from bench.results.table import Board, Column, Table


def robustness(found: Collected) -> Board:
    """How often runs diverge, and how much seeds differ."""
    tables = []
    for problem, entries in found.problems.items():
        metric = metric_of(entries, found.reference_of(problem))
        rows = []
        for entry in entries:
            values = metric.values(entry)
            trials = found.trial_runs(entry)
            ended = [run for run in trials if run.finished]
            diverged = sum(run.status == "diverged" for run in ended)
            rows.append(
                who(entry)
                | {
                    "diverged": stats.share_interval(entry.diverged, len(entry.runs)),
                    "diverged_trials": f"{diverged} of {len(ended)}" if ended else None,
                    "deviation": _deviation(values),
                    "worst": lost(entry) if None in values else _worst(values, problem.mode),
                }
            )
        rows.sort(key=lambda row: (row["diverged"].mean, row["opt"]))
        columns = [
            *WHO,
            Column("diverged", "diverged", "share of this row's runs, exact 95 % interval", 2),
            Column(
                "diverged_trials",
                "diverged in tuning",
                "share of finished runs over all trials of its study; it depends on the tried settings",
            ),
            Column(
                "deviation",
                "seed deviation",
                f"of the {metric.words}, 95 % interval for normal values; missing if a run has no value",
            ),
            Column("worst", "worst seed", f"{metric.words}; a diverged run counts as the worst value"),
            *EVERY,
        ]
        tables.append(Table(problem.name, columns, rows))
    return Board(
        "robustness", "Robustness", tables, ["rows are ordered by the share of diverged runs; this board is no ranking"]
    )


def _deviation(values: list[End]) -> stats.Interval | None:
    there = [value for value in values if value is not None]
    return stats.deviation_interval(there) if len(there) == len(values) >= FEW_SEEDS else None


def _worst(values: list[End], mode: str) -> float:
    there = [value for value in values if value is not None]
    return min(there) if mode == "max" else max(there)
