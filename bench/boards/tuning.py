"""Tuning: score by number of trials, width of the range of good settings, and gain over the defaults."""

from bench.boards.collect import Collected
from bench.boards.entries import Entry
from bench.boards.shared import board_table, budget_notes, metric_of
from bench.results import stats
from bench.results.group import HUGE
from bench.results.selection import above_infimum, equal_below, good_width
from bench.results.stats import Interval
from bench.results.table import Board, Column
from bench.run_summary import fit_words
from optimizers import OPTIMIZERS
from tasks import TASKS

SHOWN_BUDGETS = (1, 2, 4, 8, 16, 32)


def tuning(collected: Collected) -> Board:
    """Results of tuning: expected score after k trials, width of the good range, gain over the defaults."""
    tables = []
    for problem, entries in collected.problems.items():
        tuned = sorted((entry for entry in entries if entry.study is not None), key=lambda entry: entry.name)
        if not tuned:
            continue
        most = max(len(entry.study.trials) for entry in tuned if entry.study)
        budgets = [k for k in SHOWN_BUDGETS if k < most] + [most]
        rows = {}
        for entry in tuned:
            assert entry.study is not None
            expected = expected_scores(entry)
            basin = _basin(entry)
            rows[entry] = {
                **{f"k{k}": expected[k - 1] if k <= len(expected) else None for k in budgets},
                "trials": len(expected),
                "expected": expected,
                "basin": basin and basin[0],
                "open": basin and basin[1],
                "basin_text": _basin_text(basin),
                "gain": _gain(entry, collected),
                "unscored": sum(trial["score"] is None for trial in entry.study.trials) - entry.excluded,
                "excluded": entry.excluded,
            }
        score = f"selection {problem.metric}{' (suboptimality gap where it is known)' * (problem.metric == 'loss')}"
        columns = [
            Column("trials", "trials", "tried settings"),
            *(
                Column(
                    f"k{k}",
                    f"k = {k}",
                    (f"expected {score} of the best of k of the trials, drawn at random; none while all may lack one"),
                )
                for k in budgets
            ),
            Column(
                "basin_text",
                "good range (decades)",
                "range of the first searched setting around the best with similar scores (by the rule of `bench"
                " sweep`); a lower bound if it reaches the grid's edge",
            ),
            Column("unscored", "no score", "failed trials, and trials in which half of the seeds or more diverged"),
            Column("excluded", "excluded (cap)", "settings whose step cap set nearly all steps"),
            Column(
                "gain",
                "tuned against default",
                "paired by seed on the reporting split: median gain, or ratio of suboptimality gaps, with its"
                " interval from 7 seeds on",
            ),
        ]
        lacking = {entry.opt: entry for entry in tuned if entry.runs and collected.default_of(entry) is None}
        notes = budget_notes(entries)
        if same := [opt for opt, entry in lacking.items() if _has_defaults(entry)]:
            notes.append(f"the defaults are these settings: {', '.join(same)}")
        if others := [opt for opt in lacking if opt not in same]:
            run = next(iter(lacking[others[0]].runs.values()))
            usual = {name: value for name, value in run.chosen.items() if not name.startswith("opt.")}
            words = f"{fit_words(run, usual)} --seed 0, and so on"
            notes.append(f"no runs with the default settings: {', '.join(others)} ({words})")
        tables.append(board_table(problem.name, columns, rows, notes))
    note = (
        "scores are those of the tuning seeds on the selection split, which are optimistic for the best; this board"
        " is no ranking"
    )
    none = ["no entry was tuned; run `bench tune` or `bench suite`"] * (not tables)
    return Board("tuning", "Cost and gain of tuning", tables, [note, *none])


def _has_defaults(entry: Entry) -> bool:
    """Whether the settings are today's defaults of the optimizer on this family of tasks, which its study gave."""
    spec, task = OPTIMIZERS.own.get(entry.opt), TASKS.own.get(entry.problem.task)
    values = spec.by_family.get(task.family, {}) if spec is not None and task is not None else {}
    return bool(values) and values.items() <= entry.options.items()


def expected_scores(entry: Entry) -> list[float | None]:
    """Expected selection score of the best of k trials of the entry's study, by k."""
    assert entry.study is not None
    scores = [trial["score"] for trial in entry.study.trials]
    least = equal_below(scores, entry.problem.metric)
    return stats.expected_best(
        [None if score is None or abs(score) > HUGE else max(score, least) for score in scores], entry.study.mode
    )


def _basin(entry: Entry) -> tuple[float, bool] | None:
    """Width of the first searched setting's good range in decades, and whether it may be wider; None if unknown."""
    study = entry.study
    assert study is not None
    axis = next(iter(study.axes), "")
    return good_width(study, axis, entry.problem.metric, gap=above_infimum(list(entry.runs.values())))


def _basin_text(basin: tuple[float, bool] | None) -> str | None:
    if basin is None:
        return None
    return f"{'at least ' * basin[1]}{basin[0]:.2g}" if basin[0] or basin[1] else "the best alone"


def _gain(entry: Entry, collected: Collected) -> Interval | str | None:
    """The gain over the default settings, or the reason for its absence; None without runs at the defaults."""
    default = collected.default_of(entry)
    if default is None:
        return None
    if entry.default:
        return "these are the defaults"
    gain = metric_of([entry, default], entry).compare(entry, default)
    if gain is None:
        return "no common seeds"
    return gain.effect or f"{gain.lost[0]} tuned and {gain.lost[1]} default of {gain.n} runs have no value"
