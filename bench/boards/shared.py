"""Common parts of all boards: name and flags of rows, their order, and verdicts against the reference.

A row depends only on itself and on the fixed reference, not on other rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.boards.entries import LIBRARIES, Entry
from bench.results.group import Group, Measure
from bench.results.selection import is_capped
from bench.results.sequential import LEAST_SEEDS, ROUNDING, Comparison, advice
from bench.results.table import Column, Table
from bench.text import counted, spanned

FEW_SEEDS = 3
"""Runs below which a row is provisional, and lines have no bands. Ours."""
COLORS = {"better": "green", "worse": "red"}
"""Of verdicts on a terminal."""
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
_KINDS = "tuned: winner of a study, on fresh seeds; best of N: of a sweep, on the seeds that chose it; default; by hand"
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
        shared = {"opt": entry.name, "settings": entry.settings, "task": entry.problem.task}
        shared |= {"problem": entry.problem.name, "options": entry.options, "n": len(entry.runs)}
        shared |= {"runs": entry.statuses, "conformance": entry.conformance, "flags": flags(entry)}
        shared |= {"versions": entry.versions, "machines": entry.machines}
        return shared | {"run_ids": sorted(run.run_id for run in entry.runs.values())} | rows[entry]

    shown = [NAME, Column("settings", "settings", _KINDS), *columns, *_ENDS]
    return Table(title, shown, [*map(cells, rows)], [*notes])


def flags(entry: Entry) -> list[str]:
    """Limitations of an entry."""
    study, runs = entry.study, entry.runs.values()
    free = LIBRARIES if entry.shipped else ()
    several = [what for what, versions in entry.versions.items() if len(versions) > 1 and what not in free]
    torch = " and ".join(sorted({str(run.versions.get("torch", "unknown")) for run in runs}))
    share = f"{entry.shipped} of {len(runs)} " * (entry.shipped < len(runs))
    every = {
        f"{share}shipped (torch {torch}, {' and '.join(entry.machines)})": entry.shipped,
        "provisional": len(runs) < FEW_SEEDS,
        f"best at the edge: {', '.join(study.edges) if study else ''}": study and study.edges,
        f"cap excluded {entry.excluded} settings": entry.excluded,
        "tuning not finished": study and study.missing,
        "selected on these seeds": entry.best_of,
        "tuned elsewhere": entry.tuned_elsewhere,
        "these are the defaults": entry.kind == "tuned" and entry.default,
        f"mixed versions of {' and '.join(several)}": several,
        "not the whole task": any(run.part for run in runs),
        "no schedule": any(run.unscheduled for run in runs),
        "own average": any("averages" in run.traits for run in runs),
        "stopped by time": any(run.status == "timeout" for run in runs),
        "cap sets the step": is_capped(runs),
        "saturated by one step": any(run.saturated_at is not None for run in runs),
    }
    return [flag for flag, holds in every.items() if holds]


@dataclass(frozen=True)
class Verdicts:
    """The comparison of each entry of a problem with the reference (None if it has no runs) by a measure.

    `obstacle` says why an entry cannot be compared by this measure, if it cannot.
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
        return "no common seeds" if result is None else result.selected if entry.best_of or self.ref.best_of else result

    def values(self, entry: Entry, result: Comparison | str | None) -> dict[str, Any]:
        """The values of `columns`."""
        if not isinstance(result, Comparison):
            return {"verdict": "reference" if entry is self.ref else result, "is_reference": entry is self.ref}
        words, n = result.words, result.n
        ties, selected = n - result.wins - result.losses, words == "selected on these seeds"
        words += f" ({n} of {LEAST_SEEDS})" * (words == "too few seeds")
        more = None if result.decided or selected else advice(n, result.wins, result.losses)
        return {
            "verdict": f"reference {words}" if selected and not entry.best_of else words,
            "won": f"{result.wins} of {n}" + f" ({counted(ties, 'tie')})" * bool(ties),
            "effect": result.effect,
            "more": result.decided_after or (more and f"after {spanned(more)}"),
            "compared": {"n": n, "wins": result.wins, "losses": result.losses, "without_value": list(result.lost)},
            "is_reference": False,
        }

    @property
    def scale(self) -> tuple[str, str]:
        """Description of effects and of their better direction."""
        named = "the reference" if self.ref is None else f"{self.ref.name} ({self.ref.settings})"
        better = f"{'below' if self.measure.mode == 'min' else 'above'} 1 is better"
        return (f"ratio to {named}", better) if self.measure.log else (f"gain over {named}", "positive is better")

    @property
    def columns(self) -> list[Column]:
        """The columns of each row's verdict and effect."""
        effect, better = self.scale
        effect_help = f"{self.measure.words}, paired by seed: median with an interval (96 % or more); {better}"
        against = f"against {effect.removeprefix('ratio to ').removeprefix('gain over ')}"
        return [
            Column("verdict", against, _VERDICT_HELP, colors=COLORS),
            Column("won", "won", "number of common seeds on which it is better"),
            Column("effect", effect, effect_help),
            Column("more", "decided at", "seeds that decided the verdict; for an open one, an estimated range (80 %)"),
        ]


def lost(group: Group) -> str:
    """The reason why a group has no number, in words."""
    return f"{group.diverged} of {len(group.runs)} diverged" if group.diverged else "a run without a value"
