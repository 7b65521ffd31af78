"""Quality: the final metric at the tuned settings and a fixed budget, with a verdict against a fixed reference."""

from collections.abc import Callable
from typing import Any

from bench.boards.collect import Collected
from bench.boards.entries import Entry, Problem, Seed
from bench.boards.shared import (
    EVERY,
    VERDICTS,
    WHO,
    against,
    budget_notes,
    coinciding,
    find_reference,
    lost,
    mean_interval,
    metric_of,
    ordered,
    verdict_columns,
    verdict_values,
    who,
)
from bench.results.selection import CONVERGED, End
from bench.results.sequential import Comparison
from bench.results.table import Board, Column, Table


def quality(found: Collected, reference: str | None = None) -> Board:
    """Final metric on the reporting split at the tuned settings and a fixed budget.

    Args:
        found: entries.
        reference: optimizer that the others are compared with; None for each problem's own.
    """
    tables, effects = [], {}
    for problem, entries in found.problems.items():
        ref = find_reference(found, problem, reference)
        metric, above = metric_of(problem, entries, ref)
        value, mode, log, said = compared_by(problem, ref, above)
        rows = []
        for entry in ordered(entries, value, mode, log):
            seeds = sorted(entry.runs)
            compared = against(entry, ref, value, mode, log)
            effects.setdefault(entry.name, {})[problem] = compared
            row = who(entry) | verdict_values(entry, ref, compared)
            if same := coinciding(entry, entries):
                row["flags"] = [*row["flags"], f"same runs as {' and '.join(same)}"]
            rows.append(
                row | {
                    "final": mean_interval(entry.values(seeds, above), above) or lost(entry),
                    "best": mean_interval(entry.values(seeds, above, best=True), above),
                    "trials": len(entry.study.trials) if entry.study else None,
                }
            )  # fmt: skip
        mean = "geometric mean" if above else "mean"
        columns = [
            *WHO,
            Column("final", metric, (f"at the last step, {mean} over seeds with 95 % t-interval;"
                                     f" {'greater' if problem.mode == 'max' else 'smaller'} is better")),
            *verdict_columns(ref, mode, log, "steps to the target" if said and problem.target is not None else metric),
            Column("best", "at the best step",
                   "the same at the step that was best on the selection split: secondary, and flattered by the choice"),
            Column("trials", "trials", "settings that were tried to find these"),
            *EVERY,
        ]  # fmt: skip
        notes = [said] if said else []
        notes += budget_notes(entries)
        if ref is None:
            notes.append(f"the reference {reference or problem.reference} has no runs here, so there are no verdicts:"
                         f" bench suite makes some, or choose another with --reference")  # fmt: skip
        elif ref.kind != "tuned":
            notes.append(f"the reference {ref.name} is not tuned ({ref.kind}), so verdicts flatter what is tuned")
        if any(v == CONVERGED for e in entries for v in e.values(e.runs, above)):
            notes.append(f"losses below {CONVERGED:g} count as equal to it")
        tables.append(Table(problem.name, columns, rows, notes))
    if sum(find_reference(found, problem, reference) is not None for problem in found.problems) > 1:
        tables.insert(0, over_tasks(found, effects, reference))
    notes = [
        VERDICTS,
        "tuned settings were chosen by the metric on the selection split,"
        " which for tasks without one is the training split",
    ]
    return Board("quality", "Quality at a fixed budget", tables, notes)


def compared_by(
    problem: Problem, ref: Entry | None, above: bool
) -> tuple[Callable[[Entry, Seed], End], str, bool, str | None]:
    """What entries are compared by: value, mode, whether its effects are ratios, and why it is not the final metric.

    Where the reference has reached the floor of the metric on half of its seeds or more, final values say nothing. Then
    it is the steps to the target, of which a run that misses it has none.

    Args:
        problem: what was trained.
        ref: the reference.
        above: whether losses are taken above their infimum.
    """
    floor = [] if ref is None else [v == CONVERGED for v in ref.values(ref.runs, above)]
    said = None
    if ref is not None and 2 * sum(floor) >= len(floor) > 0:
        said = f"{ref.name} is on the floor of the metric ({CONVERGED:g}) on {sum(floor)} of {len(floor)} seeds"
        if problem.target is not None:
            return _steps, "min", True, f"{said}, so rows are compared by the steps to the target"
        said += ", where nothing is better, and the task has no target: take a smaller budget"
    return (lambda entry, seed: entry.value(seed, above)), problem.mode, above, said


def _steps(entry: Entry, seed: Seed) -> End:
    steps = entry.runs[seed].steps_to_target
    return None if steps is None or entry.runs[seed].status == "diverged" else float(max(1, steps))


def over_tasks(
    found: Collected, effects: dict[str, dict[Problem, Comparison | str | None]], reference: str | None
) -> Table:
    """The verdicts of each optimizer, task by task; effects of different tasks have no mean.

    Args:
        found: entries.
        effects: by optimizer and problem.
        reference: as for `quality`.
    """
    problems = [problem for problem in found.problems if find_reference(found, problem, reference) is not None]
    rows: list[dict[str, Any]] = []
    for name, own in sorted(effects.items()):
        row: dict[str, Any] = {"opt": name}
        for i, problem in enumerate(problems):
            there = own.get(problem, "no runs")
            row[f"task{i}"] = "reference" if there is None else there if isinstance(there, str) else there.verdict
            if isinstance(there, Comparison):
                row[f"effect{i}"] = there.effect
        rows.append(row)
    columns = [
        Column("opt", "optimizer", "name"),
        *(
            Column(f"task{i}", problem.name, "verdict against the reference of the task; see its own table")
            for i, problem in enumerate(problems)
        ),
    ]
    return Table("over all tasks", columns, rows)
