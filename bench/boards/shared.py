"""Common parts of boards: their columns, verdicts against the reference, and what tuning adds to intervals.

A row depends only on itself and on the fixed reference, not on other rows.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.boards.collect import Collected, Entry
from bench.results import stats
from bench.results.group import Measure
from bench.results.resolution import missed
from bench.results.retuning import Ends, tuning_variance
from bench.results.selection import above_infimum, best_index, equal_below, seed_median, selection_value
from bench.results.sequential import LEAST_SEEDS, ROUNDING, WITHIN_TUNING, Comparison, advice
from bench.results.stats import Interval
from bench.results.table import Column, Table
from bench.store.record import RunResult
from bench.store.reports import StudyRecord
from bench.text import CONVERGED, counted, spanned

COLORS = {"better": "green", "worse": "red"}  # of verdicts on a terminal
VERDICTS = (
    "verdicts: sign tests over common seeds, error rate 5 % per row, also with optional stopping if further seeds have"
    " larger numbers; a run without a value is worse than any number; values equal up to rounding"
    f" ({ROUNDING:.0e} of their size) tie, which counts for neither; fewer than {LEAST_SEEDS} seeds decide no verdict"
)
_VERDICT_HELP = (
    "better or worse: it wins, or loses, on more than half of all seeds, where a diverged run loses to any number;"
    " diverges more or less often is a claim of its own. Error rate of both together 5 % per row"
)
NAME = Column("opt", "optimizer", "with the hyperparameters that distinguish rows of one optimizer", names=True)
SEEDS = Column("n", "n", "finished runs, one per seed")
_KINDS = "tuned: winner of a study, on fresh seeds; default; by hand"
_ENDS = [
    SEEDS,
    Column("runs", "runs", "how they ended"),
    Column("conformance", "conformance", "verdict of `bench check` on this version of the optimizer"),
    Column("flags", "flags", "limitations of the row"),
]


def board_table(
    title: str, columns: Sequence[Column], rows: Mapping[Entry, dict[str, Any]], notes: Sequence[str] = ()
) -> Table:
    """The table of a board: its own columns and values, which override those that every board has."""

    def cells(entry: Entry) -> dict[str, Any]:
        shared = {"opt": entry.name, "settings": entry.kind, "task": entry.problem.task}
        shared |= {"problem": entry.problem.name, "options": entry.options, "n": len(entry.runs)}
        shared |= {"runs": entry.statuses, "conformance": entry.conformance, "flags": entry.flags}
        shared |= {"versions": entry.versions, "machines": entry.machines}
        return shared | {"run_ids": sorted(run.run_id for run in entry.runs.values())} | rows[entry]

    shown = [NAME, Column("settings", "settings", _KINDS), *columns, *_ENDS]
    problem = next((entry.problem.name for entry in rows), "")
    return Table(title, shown, [*map(cells, rows)], [*notes], problem)


@dataclass(frozen=True)
class Verdicts:
    """The comparison of each entry of a problem with the reference (None if it has no runs) by a measure.

    With `within_tuning`, better or worse is only what still is if the loser's search missed as much as it may have.
    """

    ref: Entry | None
    measure: Measure
    obstacle: Callable[[Entry], str | None] = lambda entry: None  # why an entry cannot be compared by this measure
    within_tuning: bool = False

    def ordered(self, entries: Sequence[Entry]) -> list[Entry]:
        """Entries by their own values: fewer lost runs first, then the better mean."""
        return sorted(entries, key=self.measure.order)

    def of(self, entry: Entry) -> Comparison | str | None:
        """An entry against the reference on common seeds, or the reason why not."""
        if self.ref is None or entry is self.ref:
            return None
        reason, other = (e.refused or self.obstacle(e) for e in (entry, self.ref))
        if reason or other:
            return f"not compared: {reason or f'the reference: {other}'}"
        if (result := self.measure.compare(entry, self.ref)) is None:
            return "no common seeds"
        if result.sign and self.within_tuning:
            ahead = may_have_missed(self.ref if result.sign > 0 else entry, self.measure) or 0.0
            shifted = None if ahead == math.inf else self.measure.compare(entry, self.ref, ahead=result.sign * ahead)
            if shifted is None or shifted.sign != result.sign:
                after = result.decided_after if result.diverges else None
                return replace(result, verdict=WITHIN_TUNING, decided_after=after)
        return result

    def values(self, entry: Entry) -> dict[str, Any]:
        """The values of `columns`."""
        if not isinstance(result := self.of(entry), Comparison):
            return {"verdict": "reference" if entry is self.ref else result, "is_reference": entry is self.ref}
        n, ties = result.n, result.n - result.wins - result.losses
        is_open = result.decided_after is None and result.verdict != WITHIN_TUNING
        more = advice(n, result.wins, result.losses) if is_open else None
        return {
            "verdict": result.words + f" ({n} of {LEAST_SEEDS})" * (result.words == "too few seeds"),
            "won": f"{result.wins} of {n}" + f" ({counted(ties, 'tie')})" * bool(ties),
            "effect": result.effect,
            "more": result.decided_after or (more and f"after {spanned(more)}"),
            "compared": {"n": n, "wins": result.wins, "losses": result.losses, "without_value": list(result.lost)},
            "is_reference": False,
        }

    @property
    def reference_name(self) -> str:
        """The reference."""
        return "the reference" if self.ref is None else f"{self.ref.name} ({self.ref.kind})"

    @property
    def scale(self) -> str:
        """Description of effects."""
        return f"{'ratio to' if self.measure.log else 'gain over'} {self.reference_name}"

    @property
    def better(self) -> str:
        """The better direction of effects."""
        ratio = "below 1" if self.measure.mode == "min" else "above 1"
        return f"{ratio if self.measure.log else 'positive'} is better"

    @property
    def columns(self) -> list[Column]:
        """The columns of each row's verdict and effect."""
        effect = f"{self.measure.words}, paired by seed: median with an interval (96 % or more); {self.better}"
        return [
            Column("verdict", f"against {self.reference_name}", _VERDICT_HELP, colors=COLORS),
            Column("won", "won", "number of common seeds on which it is better"),
            Column("effect", self.scale, effect),
            Column("more", "decided at", "seeds that decided the verdict; for an open one, an estimated range (80 %)"),
        ]


def may_have_missed(entry: Entry, measure: Measure) -> float | None:
    """By how much the best setting of a tuned entry may be better than the chosen one, on the scale of the measure.

    None if it was not tuned by this metric or its study is unknown; infinite if that is too small.
    """
    study, metric = entry.study, entry.problem.metric
    if entry.kind != "tuned" or study is None or (study.metric or metric) != metric or not study.seeds:
        return None

    def cost(value: float) -> float:
        return (math.log(max(value, CONVERGED)) if measure.log else value) * (1 if measure.mode == "min" else -1)

    fresh = [selection_value(run, measure.log) for run in entry.runs.values()]
    searched = [trial for trial in study.trials if trial["kind"] != "top-up"]  # those are far from the best
    trials = [(trial["point"], cost(trial["score"])) for trial in searched if trial["score"] is not None]
    known = [cost(value) for value in fresh if value is not None]
    if len(known) < 2:
        return None
    noise = statistics.stdev(known) / math.sqrt(len(study.seeds))
    return missed([point for point, _ in trials], [score for _, score in trials], noise)


def with_tuning_noise(collected: Collected, entry: Entry, measure: Measure) -> tuple[Interval | str | None, str | None]:
    """The mean of an entry with the noise of its tuning in the interval; if there is none, None and the reason."""
    study, metric = entry.study, entry.problem.metric
    if entry.kind != "tuned" or study is None:
        return None, "its study is not in these stores" if entry.kind == "tuned" else None
    if study.metric and study.metric != metric:
        return None, f"tuned for {study.metric}"
    fresh = [value for value in measure.values(entry) if value is not None]
    if len(fresh) < len(entry.runs):
        return entry.lost, None
    if len(study.seeds) < 2:
        return None, "one tuning seed"
    if (trials := _trials(collected, study, measure)) is None:
        return None, "the runs of its trials are not in these stores"
    scores, finals, chosen = trials
    medians = [seed_median(row, study.mode) for row in scores]
    least, score = equal_below(medians, metric), medians[chosen]
    best = best_index(medians, study.mode, least)
    if best is None or score is None or max(score, least) != max(medians[best] or 0.0, least):
        return None, "the runs of its trials do not choose its winner"
    variance = tuning_variance(scores, finals, chosen, study.mode, metric)
    if variance is None:  # a draw of the tuning seeds chooses such a setting, or none
        return "unbounded: a possible choice has a run without a value", None
    retuned = stats.noisier_interval(fresh, variance, len(study.seeds) - 1, log=measure.log)
    return measure.within(retuned, fresh), None


def _trials(collected: Collected, study: StudyRecord, measure: Measure) -> tuple[Ends, Ends, int] | None:
    """Scores and reported values (logarithms for ratios) by trial and seed, the winner; None if a run is missing."""
    seeds, runs, by_id = sorted(study.seeds), list[dict[int, RunResult]](), collected.by_id
    ordered = sorted(study.trials, key=lambda trial: [v for v in trial["point"].values() if isinstance(v, int | float)])
    for trial in ordered:
        stored = [by_id[run_id] for run_id in trial["runs"] if run_id in by_id and trial["state"] == "completed"]
        runs.append({run.config["seed"]: run for run in stored if run.finished})
        if trial["state"] == "completed" and sorted(runs[-1]) != seeds:
            return None
    winner = next((i for i, trial in enumerate(ordered) if study.winner in trial["runs"]), None)
    if winner is None:
        return None
    above = above_infimum([run for row in runs for run in row.values()])
    scores = [[selection_value(row[seed], above) if row else None for seed in seeds] for row in runs]
    finals = [[measure.scaled(measure.of(row[seed])) if row else None for seed in seeds] for row in runs]
    return scores, finals, winner
