"""Common parts of all boards: name and flags of rows, their order, and verdicts against the reference.

A row depends only on itself and on the fixed reference, not on other rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.boards.collect import Entry
from bench.results.group import Measure
from bench.results.sequential import LEAST_SEEDS, ROUNDING, Comparison, advice
from bench.results.table import Column, Table
from bench.text import counted, spanned

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
    return Table(title, shown, [*map(cells, rows)], [*notes])


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
        return "no common seeds" if result is None else result

    def values(self, entry: Entry, result: Comparison | str | None) -> dict[str, Any]:
        """The values of `columns`."""
        if not isinstance(result, Comparison):
            return {"verdict": "reference" if entry is self.ref else result, "is_reference": entry is self.ref}
        n, ties = result.n, result.n - result.wins - result.losses
        more = None if result.decided else advice(n, result.wins, result.losses)
        return {
            "verdict": result.words + f" ({n} of {LEAST_SEEDS})" * (result.words == "too few seeds"),
            "won": f"{result.wins} of {n}" + f" ({counted(ties, 'tie')})" * bool(ties),
            "effect": result.effect,
            "more": result.decided_after or (more and f"after {spanned(more)}"),
            "compared": {"n": n, "wins": result.wins, "losses": result.losses, "without_value": list(result.lost)},
            "is_reference": False,
        }

    @property
    def scale(self) -> str:
        """Description of effects."""
        return f"{'ratio to' if self.measure.log else 'gain over'} {self._named}"

    @property
    def _named(self) -> str:
        return "the reference" if self.ref is None else f"{self.ref.name} ({self.ref.kind})"

    @property
    def better(self) -> str:
        """The better direction of effects."""
        return (
            f"{('below 1' if self.measure.mode == 'min' else 'above 1') if self.measure.log else 'positive'} is better"
        )

    @property
    def columns(self) -> list[Column]:
        """The columns of each row's verdict and effect."""
        effect = f"{self.measure.words}, paired by seed: median with an interval (96 % or more); {self.better}"
        return [
            Column("verdict", f"against {self._named}", _VERDICT_HELP, colors=COLORS),
            Column("won", "won", "number of common seeds on which it is better"),
            Column("effect", self.scale, effect),
            Column("more", "decided at", "seeds that decided the verdict; for an open one, an estimated range (80 %)"),
        ]
