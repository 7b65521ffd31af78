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
from bench.store.reports import StudyRecord, StudyTrial

UNBOUNDED = "unbounded: a possible choice has a run without a value"
"""Note if a draw of the tuning seeds chooses such a setting, or none."""


def with_tuning_noise(collected: Collected, entry: Entry, measure: Measure) -> tuple[Interval | str | None, str | None]:
    """The mean of an entry with the noise of its tuning in the interval.

    Returns:
        The interval, or the reason in words why it is unbounded; None if it was not tuned or no interval exists, with
        the reason.
    """
    if entry.kind != "tuned":
        return None, None
    study = entry.study
    if study is None:
        return None, "its study is not in these stores"
    if study.metric and study.metric != entry.problem.metric:
        return None, f"tuned for {study.metric}"
    repeats = repetitions(collected, entry, study)
    if len(repeats) >= REPEATS:
        values = [by_seed for e in repeats if (by_seed := _whole(measure, e)) is not None]
        if len(values) < len(repeats):
            return next(lost(e) for e in repeats if _whole(measure, e) is None), None
        every = [value for by_seed in values for value in by_seed.values()]
        return measure.within(repeated_interval(values, log=measure.log), every), None
    fresh = _whole(measure, entry)
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


def repetitions(collected: Collected, entry: Entry, study: StudyRecord) -> list[Entry]:
    """The entry that each repetition of a study has chosen, the study itself first.

    A repetition has the same design and other seeds; extensions are not part of the design, since they depend on
    scores.
    """
    alike = [e for e in collected.all if e.runs and _place(e) == _place(entry)]
    design, seeds, chosen = _design(entry, study), {*study.seeds}, [entry]
    for candidate, other in ((e, other) for e in alike for other in sorted(e.studies, key=lambda s: s.name)):
        if other.seeds and not seeds & {*other.seeds} and _design(candidate, other) == design:
            seeds |= {*other.seeds}
            chosen.append(candidate)
    return chosen


def _place(entry: Entry) -> Any:
    return entry.problem, entry.opt, entry.source, entry.versions


def _design(entry: Entry, study: StudyRecord) -> Any:
    """Common part of repetitions of a study: budget, space and rule."""
    fixed = {name: value for name, value in entry.options.items() if f"opt.{name}" not in study.axes}
    points = sorted(str(sorted(trial["point"].items())) for trial in study.trials if trial["kind"] == "design")
    refined = sum(trial["kind"] == "refinement" for trial in study.trials)
    rule = study.mode, study.metric, study.select_split, study.sampler, study.missing
    return fixed, points, refined, len(study.seeds), study.axes, rule


def _whole(measure: Measure, entry: Entry) -> dict[Seed, float] | None:
    """The values of an entry's runs by seed; None if one is missing."""
    values = zip(sorted(entry.runs), measure.values(entry), strict=True)
    present = {seed: value for seed, value in values if value is not None}
    return present if len(present) == len(entry.runs) else None


def _trials(collected: Collected, study: StudyRecord, measure: Measure) -> tuple[Ends, Ends, int] | None:
    """Scores and reported values of the trials by tuning seed, and the winner's index; None if a run is missing."""
    runs: list[dict[int, RunResult]] = []

    def numbers(trial: StudyTrial) -> list[float]:
        return [value for value in trial["point"].values() if isinstance(value, int | float)]

    ordered = sorted(study.trials, key=numbers)
    for trial in ordered:
        row = [collected.by_id[run_id] for run_id in trial["runs"] if run_id in collected.by_id]
        runs.append({run.config["seed"]: run for run in row if run.finished} if trial["state"] == "completed" else {})
    seeds, index = sorted(study.seeds), [study.winner in trial["runs"] for trial in ordered]
    whole = all(sorted(row) == seeds for row, trial in zip(runs, ordered, strict=True) if trial["state"] == "completed")
    if not whole or not any(index):
        return None
    above = above_infimum([run for row in runs for run in row.values()])
    scores = [  # all None for a setting that cannot be chosen
        [selected(row[seed], above) if row and not is_capped(row.values()) else None for seed in seeds] for row in runs
    ]
    finals = [[measure.of(row[seed]) if row else None for seed in seeds] for row in runs]
    return scores, finals, index.index(True)
