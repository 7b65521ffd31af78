"""Common parts of all boards: name and flags of rows, their order, and verdicts against the reference.

Verdicts and numbers of a row depend only on the row and on the fixed reference, not on other rows; only the flag
"same runs as" names others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.boards.entries import LIBRARIES, Entry
from bench.results.group import Group, Measure, final
from bench.results.selection import above_infimum, is_capped
from bench.results.sequential import LEAST_SEEDS, ROUNDING, Comparison, advice, differences
from bench.results.table import Column, Table
from bench.store.record import RunResult
from bench.text import CONVERGED, counted, spanned

FEW_SEEDS = 3
"""Runs below which a row is provisional, and lines have no bands. Ours."""

_WHO = [
    Column("opt", "optimizer", "name, with the hyperparameters that distinguish rows of the same name"),
    Column(
        "settings",
        "settings",
        "tuned: winner of a study, on fresh seeds; best of N: winner of a sweep, on the seeds that chose it;"
        " default; by hand",
    ),
]
_EVERY = [
    Column("n", "n", "finished runs, one per seed"),
    Column("runs", "runs", "how they ended"),
    Column("conformance", "conformance", "verdict of `bench check` on this version of the optimizer"),
    Column("flags", "flags", "limitations of the row"),
]


def board_table(
    title: str, columns: Sequence[Column], rows: Mapping[Entry, dict[str, Any]], notes: Sequence[str] = ()
) -> Table:
    """The table of a board: its own columns and values, which override those that every board has."""
    return Table(title, [*_WHO, *columns, *_EVERY], [_who(entry) | values for entry, values in rows.items()], [*notes])


def _who(entry: Entry) -> dict[str, Any]:
    """The values of a row that every board has."""
    return {
        "opt": entry.name,
        "settings": entry.settings,
        "task": entry.problem.task,
        "problem": entry.problem.name,
        "options": entry.options,
        "n": len(entry.runs),
        "runs": entry.statuses,
        "conformance": entry.conformance,
        "flags": flags(entry),
        "versions": entry.versions,
        "machines": entry.machines,
        "run_ids": sorted(run.run_id for run in entry.runs.values()),
    }


def flags(entry: Entry) -> list[str]:
    """Limitations of an entry."""
    edges = entry.study.edges if entry.study else []
    several = [
        what
        for what, versions in entry.versions.items()
        if len(versions) > 1 and not (entry.shipped and what in LIBRARIES)
    ]
    return [
        *[_shipped(entry)] * bool(entry.shipped),
        *["provisional"] * (len(entry.runs) < FEW_SEEDS),
        *[f"best at the edge: {', '.join(edges)}"] * bool(edges),
        *[f"cap excluded {entry.excluded} settings"] * bool(entry.excluded),
        *["tuning not finished"] * bool(entry.study and entry.study.missing),
        *["selected on these seeds"] * bool(entry.best_of),
        *[f"one of {entry.one_of} settings"] * bool(entry.one_of),
        *["tuned elsewhere"] * entry.tuned_elsewhere,
        *["these are the defaults"] * (entry.kind == "tuned" and entry.default),
        *[f"mixed versions of {' and '.join(several)}"] * bool(several),
        *["not the whole task"] * any(run.part for run in entry.runs.values()),
        *["no schedule"] * any(run.unscheduled for run in entry.runs.values()),
        *["own average"] * any("averages" in run.traits for run in entry.runs.values()),
        *["stopped by time"] * any(run.status == "timeout" for run in entry.runs.values()),
        *["cap sets the step"] * is_capped(entry.runs.values()),
        *["saturated by one step"] * any(run.saturated_at is not None for run in entry.runs.values()),
        *["seeds run twice"] * bool(entry.twice),
    ]


def _shipped(entry: Entry) -> str:
    """Note that runs are reference results, with versions and machine."""
    share = f"{entry.shipped} of {len(entry.runs)} " * (entry.shipped < len(entry.runs))
    torch = " and ".join(sorted({str(run.versions.get("torch", "unknown")) for run in entry.runs.values()}))
    return f"{share}shipped (torch {torch}, {' and '.join(entry.machines)})"


def metric_of(entries: Sequence[Entry], reference: Entry | None) -> Measure:
    """The final metric of a problem's entries; possibly a suboptimality gap, on a logarithmic scale.

    It is a gap if the infimum of the reference's runs is known, unless their task declares a linear scale. Without a
    reference, the runs of all entries count; whether the infimum is known is a property of the instance.
    """
    runs = [run for entry in (entries if reference is None else [reference]) for run in entry.runs.values()]
    splits = sorted({run.split for entry in entries for run in entry.runs.values() if run.final is not None})
    problem = entries[0].problem
    return final(problem.metric, problem.mode, above_infimum(runs), split="/".join(splits))


COLORS = {"better": "green", "worse": "red"}
"""Of verdicts on a terminal."""


@dataclass(frozen=True)
class Verdicts:
    """The comparison of each entry of a problem with the reference.

    Attributes:
        ref: the reference; None if it has no runs.
        measure: the compared measure.
        obstacle: why an entry cannot be compared by this measure, if it cannot.
    """

    ref: Entry | None
    measure: Measure
    obstacle: Callable[[Entry], str | None] = lambda entry: None

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
        result = self.measure.compare(entry, self.ref)
        if result is None:
            return "no common seeds"
        return result.selected if entry.best_of or self.ref.best_of else result

    def values(self, entry: Entry, result: Comparison | str | None) -> dict[str, Any]:
        """The values of `columns`."""
        if not isinstance(result, Comparison):
            return {"verdict": "reference" if entry is self.ref else result, "is_reference": entry is self.ref}
        words = result.words
        if words == "too few seeds":
            words = f"too few seeds ({result.n} of {LEAST_SEEDS})"
        ties = result.n - result.wins - result.losses
        selected = words == "selected on these seeds"
        if selected and not entry.best_of:
            words = f"reference {words}"
        settled = result.decided or selected
        more = None if settled else advice(result.n, result.wins, result.losses)
        return {
            "verdict": words,
            "won": f"{result.wins} of {result.n}" + f" ({counted(ties, 'tie')})" * bool(ties),
            "effect": result.effect,
            "more": result.decided_after or (more and f"after {spanned(more)}"),
            "compared": {
                "n": result.n,
                "wins": result.wins,
                "losses": result.losses,
                "without_value": list(result.lost),
            },
            "is_reference": False,
        }

    @property
    def named(self) -> str:
        """The reference in words."""
        return "the reference" if self.ref is None else f"{self.ref.name} ({self.ref.settings})"

    @property
    def scale(self) -> tuple[str, str]:
        """Description of effects and of their better direction."""
        if self.measure.log:
            return f"ratio to {self.named}", f"{'below' if self.measure.mode == 'min' else 'above'} 1 is better"
        return f"gain over {self.named}", "positive is better"

    @property
    def columns(self) -> list[Column]:
        """The columns of each row's verdict and effect."""
        effect, better = self.scale
        return [
            Column(
                "verdict",
                f"against {self.named}",
                "better or worse: it wins, or loses, on more than half of all seeds, where a diverged run loses to any"
                " number; diverges more or less often: a claim of its own. Error rate of both together 5 % per row,"
                " also when larger seeds are added, independent of the other rows",
                colors=COLORS,
            ),
            Column("won", "won", "number of common seeds on which it is better"),
            Column(
                "effect",
                effect,
                f"{self.measure.words}, paired by seed: median, with an interval of coverage 96 % or more for any"
                f" distribution, also when larger seeds are added; none below {LEAST_SEEDS} seeds;"
                f" {better}",
            ),
            Column(
                "more",
                "decided at",
                "number of seeds at which the verdict was decided; for an open one, a range estimated from these seeds,"
                " which contains that number in 80 % of cases over a mix of effects, less often where there is none",
            ),
        ]


VERDICTS = (
    "verdicts: sign tests over common seeds, error rate 5 % per row, also with optional stopping if further seeds have"
    " larger numbers; a run without a value is worse than any number; values equal up to rounding"
    f" ({ROUNDING:.0e} of their size) tie, which counts for neither; fewer than {LEAST_SEEDS} seeds decide no verdict"
)


def coinciding(entry: Entry, others: Sequence[Entry]) -> list[str]:
    """Names of others with the same runs, up to rounding, on half of the common seeds or more."""
    return [other.name for other in others if other is not entry and other.opt != entry.opt and _same(entry, other)]


def _same(first: Entry, second: Entry) -> bool:
    seeds = first.common_seeds(second)
    equal = sum(_equal_runs(first.runs[seed], second.runs[seed]) for seed in seeds)
    return len(seeds) >= FEW_SEEDS and 2 * equal >= len(seeds)


def _equal_runs(first: RunResult, second: RunResult) -> bool:
    """Whether all evaluations are equal up to rounding, other than because both runs converged."""
    if first.status == second.status == "diverged":
        return first.steps == second.steps and bool(first.validations) and _equal_evaluations(first, second)
    if first.status != "completed" or second.status != "completed" or first.final is None or second.final is None:
        return False
    if differences(first.final, second.final, "min").any():  # most runs differ here, so little is read
        return False
    ends = [(first.excess(), first.final), (second.excess(), second.final)]
    if min(abs(final if excess is None else excess) for excess, final in ends) <= CONVERGED:
        return False
    return _equal_evaluations(first, second)


def _equal_evaluations(first: RunResult, second: RunResult) -> bool:
    """Whether all evaluations during training are equal up to rounding."""
    pairs = []
    for one, other in zip(first.validations, second.validations, strict=False):
        pairs += [(one[name], other[name]) for name in one.keys() & other.keys() - _OF_THE_RUN]
    return not differences([a for a, _ in pairs], [b for _, b in pairs], "min").any()


_OF_THE_RUN = {"step", "train_s"}
"""The part of an evaluation that depends on time."""


def budget_notes(entries: Sequence[Entry]) -> list[str]:
    """Notes on unequal tuning budgets of rows."""
    counts = {entry.name: len(entry.study.trials) for entry in entries if entry.study}
    notes = []
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {n}" for name, n in counts.items())
        notes.append(f"tuning budgets differ (trials: {listed}): `bench suite` makes them equal")
    untuned = [entry.name for entry in entries if entry.kind != "tuned"]
    if counts and untuned:
        notes.append(f"not tuned, so at a disadvantage: {', '.join(untuned)}")
    notes += [f"{e.name}: further studies, not shown: {', '.join(e.others_tuned)}" for e in entries if e.others_tuned]
    return notes


def lost(group: Group) -> str:
    """The reason why a group has no number, in words."""
    return f"{group.diverged} of {len(group.runs)} diverged" if group.diverged else "a run without a value"
