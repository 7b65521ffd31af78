"""The expected score by number of trials."""

from bench.boards.entries import Entry
from bench.results import stats
from bench.results.group import HUGE
from bench.results.selection import equal_below


def expected_scores(entry: Entry) -> list[float | None]:
    """Expected selection score of the best of k trials of the entry's study, by k."""
    assert entry.study is not None
    scores = [trial["score"] for trial in entry.study.trials]
    least = equal_below(scores, entry.problem.metric)
    return stats.expected_best(
        [None if score is None or abs(score) > HUGE else max(score, least) for score in scores], entry.study.mode
    )
