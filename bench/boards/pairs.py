"""All pairs: who beats whom, corrected for how many pairs there are. A second view; verdicts are in `quality`."""

from typing import Any

from bench.boards.collect import Collected
from bench.boards.entries import Entry, Problem
from bench.boards.quality import compared_by
from bench.boards.shared import common_seeds, find_reference, metric_of, ordered
from bench.results.sequential import grid, places
from bench.results.table import Board, Column, Table

_SIGNS = {1: "better", -1: "worse", 0: "tied"}


def pairs(found: Collected, reference: str | None = None) -> Board:
    """A grid of who beats whom, with the rank interval of each row.

    Args:
        found: entries.
        reference: optimizer that says what is compared (`quality`); None for each problem's own.
    """
    tables = [
        _table(problem, entries, find_reference(found, problem, reference))
        for problem, entries in found.problems.items()
        if len(entries) > 1
    ]
    notes = [
        "sign tests over common seeds with Holm's correction over all pairs of a table: the probability of any false"
        " word in it is at most 5 %, however often one looks; so it depends on who else is in it"
    ]
    return Board("pairs", "All pairs", tables, notes)


def _table(problem: Problem, entries: list[Entry], ref: Entry | None) -> Table:
    above = metric_of(problem, entries, ref)[1]
    value, mode, log, floor = compared_by(problem, ref, above)
    sound = [entry for entry in ordered(entries, value, mode, log) if entry.refused is None]
    values = [[[value(entry, seed) for seed in common_seeds(entry, other)] for other in sound] for entry in sound]
    decided = grid(values, mode)
    rows: list[dict[str, Any]] = []
    for i, (entry, place) in enumerate(zip(sound, places(decided, len(sound)), strict=True)):
        row: dict[str, Any] = {"opt": entry.name, "settings": entry.kind, "n": len(entry.runs)}
        row["places"] = f"{place.low}" if place.low == place.high else f"{place.low} to {place.high}"
        for j in range(len(sound)):
            if i != j:
                found = decided[min(i, j), max(i, j)]
                row[f"over{j}"] = _SIGNS[found.sign if i < j else -found.sign]
        rows.append(row)
    columns = [
        Column("places", "rank interval", "places that the decided pairs leave open"),
        Column("opt", "optimizer", "name, with the hyperparameters that tell it from others of the same name"),
        *(Column(f"over{j}", f"against {entry.name}", "of the row; tied: no difference found")
          for j, entry in enumerate(sound)),
        Column("n", "n", "runs that ended, one a seed"),
    ]  # fmt: skip
    left = [f"{entry.name} is not compared: {entry.refused}" for entry in entries if entry.refused]
    number = len(sound) * (len(sound) - 1) // 2
    return Table(f"{problem.name}: Holm over {number} pairs", columns, rows, [*([floor] if floor else []), *left])
