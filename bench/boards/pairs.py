"""All pairwise comparisons, corrected for their number. A second view; verdicts are in `quality`."""

from itertools import count

from bench.boards.collect import Collected, Entry, Problem
from bench.boards.quality import measure_and_verdicts
from bench.boards.shared import COLORS, NAME, SEEDS
from bench.results.sequential import grid, least_wins, places
from bench.results.table import Board, Column, Table
from bench.text import counted, spanned

_NOTE = (
    "sign tests over common seeds, Holm-corrected over all pairs of a table: family-wise error rate at most 5 %,"
    " also with optional stopping; a verdict therefore depends on the other rows"
)


def pairs(collected: Collected) -> Board:
    """A grid of pairwise verdicts by the measure of `quality`, with the rank interval of each row."""
    tables = [_table(collected, problem, rows) for problem, rows in collected.problems.items() if len(rows) > 1]
    return Board("pairs", "All pairs", tables, [_NOTE])


def _table(collected: Collected, problem: Problem, entries: list[Entry]) -> Table:
    _, verdicts, floor = measure_and_verdicts(collected, problem)
    ordered = verdicts.ordered(entries)
    refused = {entry.name: why for entry in ordered if (why := entry.refused or verdicts.obstacle(entry))}
    sound = [entry for entry in ordered if entry.name not in refused]
    values = [[verdicts.measure.values(entry, entry.common_seeds(other)) for other in sound] for entry in sound]
    decided, rows = grid(values, verdicts.measure.mode), []
    heads = [f"against {entry.name}" for entry in sound]
    for i, (entry, ends) in enumerate(zip(sound, places(decided, len(sound)), strict=True)):
        row = {"opt": entry.name, "settings": entry.kind, "n": len(entry.runs), "places": spanned(ends)}
        for j in (j for j in range(len(sound)) if j != i):
            sign = decided[min(i, j), max(i, j)].sign * (1 if i < j else -1)
            row[heads[j]] = {1: "better", -1: "worse", 0: "undecided"}[sign]
        rows.append(row)
    ranks = Column("places", "rank interval", "ranks compatible with the decided pairs")
    against = [Column(head, head, "of the row; undecided: no difference found", colors=COLORS) for head in heads]
    columns = [ranks, NAME, *against, SEEDS]
    number, seeds = len(sound) * (len(sound) - 1) // 2, max((len(entry.runs) for entry in sound), default=0)
    notes = [floor] if floor else []
    if number and least_wins(seeds, tests=number)[-1] > seeds:
        needed = next(n for n in count(seeds + 1) if least_wins(n, tests=number)[-1] <= n)
        which = "the pair" if number == 1 else f"any of {number} pairs"
        notes.append(f"{counted(seeds, 'seed')} cannot decide {which}; it takes {needed} seeds or more")
        columns, rows = [NAME, SEEDS], [{"opt": row["opt"], "settings": row["settings"], "n": row["n"]} for row in rows]
    notes += [f"{name} is not compared: {why}" for name, why in {**refused, **collected.excluded(problem)}.items()]
    return Table(f"{problem.name}: Holm over {counted(number, 'pair')}", columns, rows, notes, problem.name)
