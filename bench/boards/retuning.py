"""The noise of tuning of an entry, from its stored study and the runs of its trials."""

from bench.boards.collect import Collected
from bench.boards.entries import Entry
from bench.boards.shared import lost
from bench.results.group import Measure
from bench.results.retuning import Ends, retuned_interval
from bench.results.selection import above_infimum, best_index, equal_below, is_capped, seed_median, selected
from bench.results.stats import Interval
from bench.store.record import RunResult
from bench.store.reports import StudyRecord


def with_tuning_noise(collected: Collected, entry: Entry, measure: Measure) -> tuple[Interval | str | None, str | None]:
    """The mean of an entry with the noise of its tuning in the interval.

    Returns:
        The interval, or the reason in words why it is unbounded; None if it was not tuned or no interval exists, with
        the reason.
    """
    study, metric = entry.study, entry.problem.metric
    if entry.kind != "tuned" or study is None:
        return None, "its study is not in these stores" if entry.kind == "tuned" else None
    if study.metric and study.metric != metric:
        return None, f"tuned for {study.metric}"
    fresh = [value for value in measure.values(entry) if value is not None]
    if len(fresh) < len(entry.runs):
        return lost(entry), None
    if len(study.seeds) < 2:
        return None, "one tuning seed"
    trials = _trials(collected, study, measure)
    if trials is None:
        return None, "the runs of its trials are not in these stores"
    scores, finals, chosen = trials
    medians = [seed_median(row, study.mode) for row in scores]
    least, score = equal_below(medians, metric), medians[chosen]
    best = best_index(medians, study.mode, least)
    if best is None or score is None or max(score, least) != max(medians[best] or 0.0, least):
        return None, "the runs of its trials do not choose its winner"
    retuned = retuned_interval(scores, finals, chosen, fresh, study.mode, metric, log=measure.log)
    # Unbounded if a draw of the tuning seeds chooses such a setting, or none.
    unbounded = "unbounded: a possible choice has a run without a value"
    return unbounded if retuned is None else measure.within(retuned, fresh), None


def _trials(collected: Collected, study: StudyRecord, measure: Measure) -> tuple[Ends, Ends, int] | None:
    """Scores and reported values of the trials by tuning seed, and the winner's index; None if a run is missing."""
    seeds, runs = sorted(study.seeds), list[dict[int, RunResult]]()
    ordered = sorted(study.trials, key=lambda trial: [v for v in trial["point"].values() if isinstance(v, int | float)])
    for trial in ordered:
        ended = trial["state"] == "completed"
        stored = [collected.by_id[run_id] for run_id in trial["runs"] if run_id in collected.by_id and ended]
        runs.append({run.config["seed"]: run for run in stored if run.finished})
        if ended and sorted(runs[-1]) != seeds:
            return None
    winner = next((i for i, trial in enumerate(ordered) if study.winner in trial["runs"]), None)
    if winner is None:
        return None
    above = above_infimum([run for row in runs for run in row.values()])
    free = [bool(row) and not is_capped(row.values()) for row in runs]  # None for a setting that cannot be chosen
    scores = [[selected(row[s], above) if ok else None for s in seeds] for row, ok in zip(runs, free, strict=True)]
    finals = [[measure.of(row[seed]) if row else None for seed in seeds] for row in runs]
    return scores, finals, winner
