"""The noise of tuning of an entry, from stored studies and runs of trials."""

from typing import Any

from bench.boards.collect import Collected
from bench.boards.entries import Entry
from bench.boards.shared import lost
from bench.results.group import Measure, Seed
from bench.results.retuning import REPEATS, Ends, repeated_interval, retuned_interval
from bench.results.selection import above_infimum, equal_below, is_capped, seed_median, selected
from bench.results.stats import Interval
from bench.store.record import RunResult
from bench.store.reports import StudyRecord

UNBOUNDED = "unbounded: a possible choice has a run without a value"
"""Note if a draw of the tuning seeds chooses such a setting, or none."""


def with_tuning_noise(collected: Collected, entry: Entry, measure: Measure) -> tuple[Interval | str | None, str | None]:
    """The mean of an entry with the noise of its tuning in the interval.

    Returns:
        The interval, or the reason in words why it is unbounded; None if it was not tuned or no interval exists, with
        the reason.
    """
    study = entry.study
    if entry.kind != "tuned" or study is None:
        return None, "its study is not in these stores" if entry.kind == "tuned" else None
    if study.metric and study.metric != entry.problem.metric:
        return None, f"tuned for {study.metric}"
    repeats = _repetitions(collected, entry, study)
    if len(repeats) >= REPEATS:
        values = [by_seed for e in repeats if (by_seed := _by_seed(measure, e)) is not None]
        if len(values) < len(repeats):
            return next(lost(e) for e in repeats if _by_seed(measure, e) is None), None
        every = [value for by_seed in values for value in by_seed.values()]
        return measure.within(repeated_interval(values, log=measure.log), every), None
    fresh = _by_seed(measure, entry)
    if fresh is None:
        return lost(entry), None
    if len(study.seeds) < 2:
        return None, "one tuning seed"
    read = _trials(collected, study, measure)
    if read is None:
        return None, "the runs of its trials are not in these stores"
    scores, finals, chosen = read
    mode, metric = study.mode, entry.problem.metric
    medians = [seed_median(row, mode) for row in scores]
    least = equal_below(medians, metric)
    clipped = [max(median, least) for median in medians if median is not None]
    best, median = (min if mode == "min" else max)(clipped, default=None), medians[chosen]
    if median is None or max(median, least) != best:
        return None, "the runs of its trials do not choose its winner"
    ends = list(fresh.values())
    retuned = retuned_interval(scores, finals, chosen, ends, mode, metric, log=measure.log)
    return UNBOUNDED if retuned is None else measure.within(retuned, ends), None


def _repetitions(collected: Collected, entry: Entry, study: StudyRecord) -> list[Entry]:
    """The entry that each repetition of a study has chosen, the study itself first."""

    def place(e: Entry) -> Any:
        return e.problem, e.opt, e.source, e.versions

    def design(e: Entry, of: StudyRecord) -> Any:
        fixed = {name: value for name, value in e.options.items() if f"opt.{name}" not in of.axes}
        points = sorted(str(sorted(trial["point"].items())) for trial in of.trials if trial["kind"] == "design")
        refined = sum(trial["kind"] == "refinement" for trial in of.trials)
        rule = of.mode, of.metric, of.select_split, of.sampler, of.missing
        return fixed, points, refined, len(of.seeds), of.axes, rule

    seeds, chosen = {*study.seeds}, [entry]
    for candidate in (e for e in collected.all if e.runs and place(e) == place(entry)):
        for other in sorted(candidate.studies, key=lambda s: s.name):
            if other.seeds and not seeds & {*other.seeds} and design(candidate, other) == design(entry, study):
                seeds |= {*other.seeds}
                chosen.append(candidate)
    return chosen


def _by_seed(measure: Measure, entry: Entry) -> dict[Seed, float] | None:
    """The values of an entry's runs by seed; None if one is missing."""
    values = zip(sorted(entry.runs), measure.values(entry), strict=True)
    present = {seed: value for seed, value in values if value is not None}
    return present if len(present) == len(entry.runs) else None


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
