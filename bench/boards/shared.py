"""What all boards share: who a row is, its flags, the order of rows, and which of them are told apart.

A row's score, its interval and its place before or behind another depend on these two and on the fixed reference alone,
not on who else is on the board. Only how many pairs are told apart at once (Holm) depends on the number of rows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.boards.collect import Collected
from bench.boards.entries import KINDS, Entry, Problem, Seed
from bench.results import ranking, stats
from bench.results.ranking import Pair
from bench.results.selection import End
from bench.results.stats import Interval
from bench.results.table import Column
from bench.run_summary import CAP_SHARE_TO_REPORT

LEAST_SEEDS = 3
"""Seeds below which a row has no rank."""
LOST = "diverged"
"""Said in place of a number that an entry has not, since a run diverged."""
LEVEL = 0.05
"""Probability that a table of equal rows tells any of them apart."""

WHO = [
    Column("opt", "optimizer", "name, with the hyperparameters that tell it from others of the same name"),
    Column(
        "settings", "settings", "tuned: won a study, and is shown on seeds that the study had not; default; by hand"
    ),
]
EVERY = [
    Column("n", "n", "runs that ended, one a seed"),
    Column("runs", "runs", "how they ended"),
    Column("conformance", "conformance", "verdict of `bench check` on this version of the optimizer, if it is known"),
    Column("flags", "flags", "what makes the row less than it looks"),
]


def who(entry: Entry) -> dict[str, Any]:
    """The values of a row that every board has."""
    return {
        "opt": entry.name, "settings": entry.kind, "task": entry.problem.task, "problem": entry.problem.name,
        "options": entry.options, "n": len(entry.runs), "runs": entry.statuses, "conformance": entry.conformance,
        "flags": flags(entry), "versions": entry.versions, "machines": entry.machines,
        "run_ids": sorted(run.run_id for run in entry.runs.values()),
    }  # fmt: skip


def flags(entry: Entry) -> list[str]:
    """What makes an entry less than it looks."""
    caps = [run.cap_share for run in entry.runs.values() if run.cap_share is not None]
    several = [what for what, versions in entry.versions.items() if len(versions) > 1]
    return [
        *["provisional"] * (len(entry.runs) < LEAST_SEEDS),
        *["lr at boundary"] * bool(entry.study and entry.study.lr_at_boundary),
        *["tuning not finished"] * bool(entry.study and entry.study.missing),
        *["tuned elsewhere"] * entry.tuned_elsewhere,
        *["pruned"] * bool(entry.study and entry.study.prune),
        *["the defaults won"] * (entry.kind == "tuned" and entry.default),
        *[f"mixed versions of {' and '.join(several)}"] * bool(several),
        *["not the whole task"] * any(run.part for run in entry.runs.values()),
        *["no schedule"] * any(run.unscheduled for run in entry.runs.values()),
        *["stopped by time"] * any(run.status == "timeout" for run in entry.runs.values()),
        *["cap sets the step"] * (bool(caps) and sum(caps) / len(caps) > CAP_SHARE_TO_REPORT),
        *["seeds run twice"] * bool(entry.twice),
    ]


def common_seeds(first: Entry, second: Entry) -> list[Seed]:
    """The seeds that both have."""
    return sorted(first.runs.keys() & second.runs.keys())


def metric_of(problem: Problem, entries: Sequence[Entry], reference: Entry | None) -> tuple[str, bool]:
    """What is compared, in words, and whether it is a loss above its infimum, as far as the reference knows that.

    Without a reference all entries' runs are asked; whether the infimum is known is a property of the instance.
    """
    own = [run for entry in (entries if reference is None else [reference]) for run in entry.runs.values()]
    excess = [run.excess() is not None for run in own if run.final is not None]
    above = bool(excess) and problem.metric == "loss" and all(excess)
    split = sorted({run.split for entry in entries for run in entry.runs.values() if run.final is not None})
    return f"{'/'.join(split)} {problem.metric}{' above its infimum' * above}".strip(), above


def find_reference(found: Collected, problem: Problem, name: str) -> Entry | None:
    """The entry that the others are compared with: of this name, tuned before default before by hand."""
    own = [entry for entry in found.chosen if entry.problem == problem and name in (entry.opt, entry.name)]
    return min(own, key=lambda entry: (KINDS.index(entry.kind), entry.name), default=None)


def _order(scores: Mapping[int, Sequence[End]], mode: str) -> list[int]:
    """Entries by their own values: fewer lost runs first, then the better mean; then by place."""

    def key(i: int) -> tuple[float, float, int]:
        there = [value for value in scores[i] if value is not None]
        mean = math.fsum(there) / len(there) if there else math.inf
        return 1 - len(there) / max(1, len(scores[i])), -mean if mode == "max" and there else mean, i

    return sorted(scores, key=key)


def compare(
    entries: Sequence[Entry],
    value: Callable[[Entry, Seed], End],
    mode: str,
    comparable: Callable[[Entry], bool] = lambda _: True,
) -> tuple[list[int], list[ranking.Rank | None], dict[tuple[int, int], Pair]]:
    """The order of the entries, ranks in that order, and all pairs that were compared, by index of the entries.

    Args:
        entries: of a problem.
        value: by entry and seed.
        mode: of the value.
        comparable: whether an entry may have a rank.
    """
    scores = {i: [value(entry, seed) for seed in sorted(entry.runs)] for i, entry in enumerate(entries)}
    order = _order(scores, mode)
    ranked = [i for i in order if len(scores[i]) >= LEAST_SEEDS and comparable(entries[i])]
    order = [*ranked, *(i for i in order if i not in ranked)]
    found: dict[tuple[int, int], Pair] = {}
    places: dict[tuple[int, int], Pair] = {}
    for (a, i), (b, j) in combinations(enumerate(ranked), 2):
        seeds = common_seeds(entries[i], entries[j])
        own = [[value(entries[k], seed) for seed in seeds] for k in (i, j)]
        compared = ranking.pair(own[0], own[1], mode)
        if len(seeds) < LEAST_SEEDS:
            compared = replace(compared, p=1.0)
        found[i, j] = places[a, b] = compared
    ranks: list[ranking.Rank | None] = [*ranking.ranks(places, len(ranked), LEVEL)]
    return order, ranks + [None] * (len(order) - len(ranked)), found


def listed(entries: Sequence[Entry], pairs: Mapping[tuple[int, int], Pair]) -> list[dict[str, Any]]:
    """All pairs as a program reads them, with how many more seeds would resolve those that are not resolved."""
    adjusted = ranking.holm([compared.p for compared in pairs.values()])
    found = []
    for ((i, j), compared), p in zip(pairs.items(), adjusted, strict=True):
        resolved = p <= LEVEL and compared.sign != 0
        seeds = None
        if not resolved and compared.difference is not None:
            seeds = ranking.seeds_to_resolve(compared.difference, LEVEL / len(pairs))
        found.append(
            {
                "first": entries[i].name, "second": entries[j].name, "n": compared.n, "difference": compared.difference,
                "p": compared.p, "p_holm": p, "resolved": resolved, "without_value": list(compared.lost),
                "more_seeds": None if seeds is None else max(1, seeds - compared.n),
            }
        )  # fmt: skip
    return found


def unresolved(pairs: Sequence[Mapping[str, Any]], order: Sequence[str], without: str) -> list[str]:
    """In words, what more seeds would do for neighbours that are not told apart.

    Args:
        pairs: as `listed` gives them.
        order: names of the rows.
        without: what it means that runs have no value.
    """
    by_names = {(pair["first"], pair["second"]): pair for pair in pairs}
    lines = []
    for first, second in pairwise(order):
        pair = by_names.get((first, second))
        if pair is None or pair["resolved"]:
            continue
        if pair["n"] < LEAST_SEEDS:
            what = f"run both on {LEAST_SEEDS} or more seeds that they share"
        elif pair["difference"] is None:
            what = (
                f"{pair['without_value'][0]} runs of the first and {pair['without_value'][1]} of the second {without}"
            )
        elif pair["difference"].mean == 0:
            what = "their values are the same"
        elif pair["more_seeds"] is None:
            what = "a difference this small would take thousands of seeds"
        else:
            seeds = float(f"{pair['more_seeds']:.2g}" if pair["more_seeds"] >= 100 else pair["more_seeds"])
            what = (
                f"some {seeds:,.0f} more seeds would tell with 80 % probability,"
                " if difference and deviation are as these say"
            )
        lines.append(f"{first} and {second} are not told apart by {pair['n']} common seeds: {what}")
    return lines


def rank_values(rank: ranking.Rank | None) -> dict[str, Any]:
    """The values of the columns `RANK`."""
    if rank is None:
        return {"rank": None, "places": None}
    return {"rank": rank.rank, "places": f"{rank.low}" if rank.low == rank.high else f"{rank.low} to {rank.high}"}


RANK = [
    Column("rank", "rank", "entries whose difference is not resolved share one; none below 3 seeds"),
    Column("places", "could be", "places that the resolved pairs leave open"),
]


def budget_notes(entries: Sequence[Entry]) -> list[str]:
    """What makes the rows' budgets of tuning unequal."""
    counts = {entry.name: len(entry.study.trials) for entry in entries if entry.study}
    notes = []
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {n}" for name, n in counts.items())
        notes.append(f"budgets of tuning differ (trials: {listed}): `bench suite` makes them equal")
    untuned = [entry.name for entry in entries if entry.study is None]
    if counts and untuned:
        notes.append(f"not tuned, so at a disadvantage: {', '.join(untuned)}")
    notes += [f"{e.name}: further studies, not shown: {', '.join(e.others_tuned)}" for e in entries if e.others_tuned]
    return notes


def lost(entry: Entry) -> str:
    """Why an entry has no number, in words."""
    return f"{entry.diverged} of {len(entry.runs)} diverged" if entry.diverged else "a run without a value"


def mean_interval(values: Sequence[End]) -> Interval | None:
    """Mean with its t-interval; None if a value is missing, or there is none."""
    there = [value for value in values if value is not None]
    return stats.t_interval(there) if there and len(there) == len(values) else None


def gap(entry: Entry, ref: Entry, above: bool) -> NDArray[np.float64] | str:
    """Standardised paired differences of an entry, shape (S,); in words why there are none.

    A run that has no value on any seed, common or not, leaves the entry without a number.
    """
    seeds = common_seeds(entry, ref)
    own, other = entry.values(seeds, above), ref.values(seeds, above)
    if None in other:
        return "the reference has no value"
    if None in entry.values(entry.runs, above):
        return LOST if entry.diverged else "a run has no value"
    if len(seeds) < LEAST_SEEDS:
        return f"{len(seeds)} common seeds"
    found = ranking.standardised_gap(
        [v for v in own if v is not None], [v for v in other if v is not None], entry.problem.mode
    )
    return "seeds do not differ" if found is None else found


def gaps_by_problem(
    found: Collected, reference: str
) -> tuple[list[Problem], dict[str, dict[Problem, NDArray[np.float64] | str]]]:
    """The problems of the reference, and by optimizer and problem the standardised gaps, or why there are none."""
    problems: list[Problem] = []
    gaps: dict[str, dict[Problem, NDArray[np.float64] | str]] = {}
    for problem, entries in found.problems.items():
        ref = find_reference(found, problem, reference)
        if ref is None:
            continue
        problems.append(problem)
        above = metric_of(problem, entries, ref)[1]
        for entry in entries:
            if entry is not ref:
                gaps.setdefault(entry.name, {})[problem] = gap(entry, ref, above)
    return problems, gaps
