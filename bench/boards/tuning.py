"""Tuning: the expected score by number of trials."""

from bench.boards.collect import Collected
from bench.boards.entries import Entry
from bench.boards.shared import board_table, budget_notes
from bench.results import stats
from bench.results.group import HUGE
from bench.results.selection import equal_below
from bench.results.table import Board, Column

SHOWN_BUDGETS = (1, 2, 4, 8, 16, 32)
_NOTE = (
    "scores are those of the tuning seeds on the selection split, which are optimistic for the best; this board is no"
    " ranking; `bench plot sensitivity` shows the range of good settings"
)


def tuning(collected: Collected) -> Board:
    """Expected score of the best of k trials, by k."""
    tables = []
    for problem, entries in collected.problems.items():
        tuned = sorted((entry for entry in entries if entry.study is not None), key=lambda entry: entry.name)
        expected = {entry: expected_scores(entry) for entry in tuned}
        most = max(map(len, expected.values()), default=0)
        budgets = [k for k in SHOWN_BUDGETS if k < most] + [most]
        rows = {
            entry: {
                **{f"k{k}": scores[k - 1] if k <= len(scores) else None for k in budgets},
                "trials": len(scores),
                "expected": scores,
                "unscored": sum(trial["score"] is None for trial in entry.study.trials) - entry.excluded,
                "excluded": entry.excluded,
            }
            for entry, scores in expected.items()
            if entry.study is not None
        }
        score = f"selection {problem.metric}{' (suboptimality gap where it is known)' * (problem.metric == 'loss')}"
        about = f"expected {score} of the best of k of the trials, drawn at random; none while all may lack one"
        failed = "failed trials, and trials in which half of the seeds or more diverged"
        columns = [
            Column("trials", "trials", "tried settings"),
            *(Column(f"k{k}", f"k = {k}", about) for k in budgets),
            Column("unscored", "no score", failed),
            Column("excluded", "excluded (cap)", "settings whose step cap set nearly all steps"),
        ]
        if rows:
            tables.append(board_table(problem.name, columns, rows, budget_notes(entries)))
    none = ["no entry was tuned; run `bench tune` or `bench suite`"] * (not tables)
    return Board("tuning", "Cost of tuning", tables, [_NOTE, *none])


def expected_scores(entry: Entry) -> list[float | None]:
    """Expected selection score of the best of k trials of the entry's study, by k."""
    assert entry.study is not None
    scores = [trial["score"] for trial in entry.study.trials]
    least = equal_below(scores, entry.problem.metric)
    return stats.expected_best(
        [None if score is None or abs(score) > HUGE else max(score, least) for score in scores], entry.study.mode
    )
