"""Robustness: how often runs diverge, and how much seeds differ."""

from bench.boards.collect import Collected
from bench.boards.shared import FEW_SEEDS, board_table, lost, metric_of
from bench.results import stats
from bench.results.table import Board, Column


def robustness(collected: Collected) -> Board:
    """How often runs diverge, and how much seeds differ."""
    tables = []
    for problem, entries in collected.problems.items():
        metric = metric_of(entries, collected.reference_of(problem))
        worst = min if problem.mode == "max" else max
        rows = {}
        for entry in sorted(entries, key=lambda entry: (entry.diverged / len(entry.runs), entry.name)):
            values = [value for value in metric.values(entry) if value is not None]
            whole = len(values) == len(entry.runs)
            ended = [run for run in collected.trial_runs(entry.study) if run.finished]
            diverged = sum(run.status == "diverged" for run in ended)
            rows[entry] = {
                "diverged": stats.share_interval(entry.diverged, len(entry.runs)),
                "diverged_trials": f"{diverged} of {len(ended)}" if ended else None,
                "deviation": stats.deviation_interval(values) if whole and len(values) >= FEW_SEEDS else None,
                "worst": worst(values) if whole else lost(entry),
            }
        columns = [
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
        ]
        tables.append(board_table(problem.name, columns, rows))
    return Board(
        "robustness", "Robustness", tables, ["rows are ordered by the share of diverged runs; this board is no ranking"]
    )
