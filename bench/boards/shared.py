"""What all boards share: who a row is, its flags, the order of rows, and the verdict of each against the reference.

All that a row says depends on the row and on the fixed reference alone, not on who else is on the board.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from bench.boards.collect import Collected
from bench.boards.entries import KINDS, Entry, Problem, Seed
from bench.results import stats
from bench.results.selection import CONVERGED, End
from bench.results.sequential import LEAST_SEEDS, Comparison, advice, compare, differences
from bench.results.stats import Interval
from bench.results.table import Column
from bench.run_summary import CAP_SHARE_TO_REPORT
from bench.store.record import RunResult

FEW_SEEDS = 3
"""Runs below which a row is provisional, and lines have no bands. Ours."""
LOST = "diverged"
"""Said in place of a number that an entry has not, since a run diverged."""

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
        *["provisional"] * (len(entry.runs) < FEW_SEEDS),
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


def find_reference(found: Collected, problem: Problem, name: str | None) -> Entry | None:
    """The entry that the others are compared with: of this name, tuned before default before by hand.

    Args:
        found: entries.
        problem: of theirs.
        name: of an optimizer or entry; None for the one of the problem (`Problem.reference`).
    """
    name = problem.reference if name is None else name
    own = [entry for entry in found.chosen if entry.problem == problem and name in (entry.opt, entry.name)]
    return min(own, key=lambda entry: (KINDS.index(entry.kind), entry.name), default=None)


def ordered(entries: Sequence[Entry], value: Callable[[Entry, Seed], End], mode: str, log: bool) -> list[Entry]:
    """Entries by their own values: fewer lost runs first, then the better mean (geometric, if log)."""

    def key(entry: Entry) -> tuple[float, float]:
        values = [value(entry, seed) for seed in sorted(entry.runs)]
        there = [math.log(v) if log else v for v in values if v is not None]
        mean = math.fsum(there) / len(there) if there else math.inf
        return 1 - len(there) / max(1, len(values)), -mean if mode == "max" and there else mean

    return sorted(entries, key=key)


def against(
    entry: Entry, ref: Entry | None, value: Callable[[Entry, Seed], End], mode: str, log: bool
) -> Comparison | str | None:
    """An entry against the reference on the seeds that both have, or why they are not compared.

    Args:
        entry: of the reference's problem.
        ref: the reference; None if it has no runs here.
        value: by entry and seed.
        mode: of the value.
        log: whether the effect is a ratio.
    """
    if ref is None or entry is ref:
        return None
    if why := entry.refused or ref.refused:
        return f"not compared: {'the reference' * (not entry.refused)} {why}".replace("  ", " ")
    seeds = common_seeds(entry, ref)
    if not seeds:
        return "no common seeds"
    return compare([value(entry, seed) for seed in seeds], [value(ref, seed) for seed in seeds], mode, log=log)


def verdict_values(entry: Entry, ref: Entry | None, found: Comparison | str | None) -> dict[str, Any]:
    """The values of the columns `verdict_columns`."""
    if not isinstance(found, Comparison):
        return {"verdict": "reference" if entry is ref else found, "is_reference": entry is ref}
    words: str = found.verdict
    if words == "too few seeds":
        words = f"too few seeds ({found.n} of {LEAST_SEEDS})"
    more = advice(found.n, found.wins, found.losses) if not found.sign else None
    return {
        "verdict": words, "won": f"{found.wins} of {found.n}", "effect": found.effect,
        "more": found.told or (more and f"after {' to '.join(map(str, sorted({*more})))}"),
        "compared": {"n": found.n, "wins": found.wins, "losses": found.losses, "without_value": list(found.lost)},
        "is_reference": False,
    }  # fmt: skip


def verdict_columns(ref: Entry | None, mode: str, log: bool, what: str) -> list[Column]:
    """What each row says of itself against the reference.

    Args:
        ref: the reference.
        mode: of the value.
        log: whether the effect is a ratio.
        what: is compared.
    """
    named = "the reference" if ref is None else f"{ref.name} ({ref.kind})"
    if log:
        kind, better = "ratio to", f"{'below' if mode == 'min' else 'above'} 1 is better"
    else:
        kind, better = "gain over", "positive is better"
    return [
        Column("verdict", f"against {named}", "better or worse on more than half of all seeds; 5 % a row, however many"
               " seeds are added; nobody else on the board has a part in it"),
        Column("won", "won", "seeds on which it is better, of those that both have"),
        Column("effect", f"{kind} {named}",
               f"{what}, paired by seed: median, with an interval that holds it with at least 96 %, however many seeds"
               f" are added and whatever their distribution; none below {LEAST_SEEDS} seeds; {better}"),
        Column("more", "told", "after how many seeds the verdict was told; or after how many in all it will be, with"
               " 80 % probability as far as these seeds can say"),
    ]  # fmt: skip


VERDICTS = (
    f"verdicts: sign tests over common seeds, 5 % a row however often one looks; a run without a value is worse than"
    f" any number; fewer than {LEAST_SEEDS} seeds decide nothing"
)


def coinciding(entry: Entry, others: Sequence[Entry]) -> list[str]:
    """Names of others whose runs are the same to rounding on half of the common seeds or more.

    Args:
        entry: whose runs.
        others: of its problem.
    """
    return [other.name for other in others if other is not entry and other.opt != entry.opt and _same(entry, other)]


def _same(first: Entry, second: Entry) -> bool:
    seeds = common_seeds(first, second)
    equal = sum(_equal_runs(first.runs[seed], second.runs[seed]) for seed in seeds)
    return len(seeds) >= FEW_SEEDS and 2 * equal >= len(seeds)


def _equal_runs(first: RunResult, second: RunResult) -> bool:
    """Whether all that was evaluated is equal to rounding, and not since both runs have converged."""
    if first.status != "completed" or second.status != "completed" or first.final is None or second.final is None:
        return False
    ends = [(first.excess(), first.final), (second.excess(), second.final)]
    if min(abs(final if excess is None else excess) for excess, final in ends) <= CONVERGED:
        return False
    pairs = [(first.final, second.final)]
    for one, other in zip(first.validations, second.validations, strict=False):
        pairs += [(one[name], other[name]) for name in one.keys() & other.keys() - _OF_THE_RUN]
    return not differences([a for a, _ in pairs], [b for _, b in pairs], "min").any()


_OF_THE_RUN = {"step", "train_s"}
"""What an evaluation says of time."""


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


def mean_interval(values: Sequence[End], log: bool = False) -> Interval | None:
    """Mean with its t-interval, geometric on a logarithmic scale; None if a value is missing, or there is none."""
    there = [value for value in values if value is not None]
    if not there or len(there) < len(values):
        return None
    return stats.geometric_interval(there) if log else stats.t_interval(there)
