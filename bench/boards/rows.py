"""Rows of boards: optimizers with their settings on problems, with a run for each seed.

A problem is a task with all that must be equal for a comparison: options, budget, batch, precision, part of the data,
metric and target. All of it is in the records: the code of tasks and optimizers is untrusted.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any

from bench.results.group import Group, Seed, seed_of
from bench.store.record import CAP_BINDS, Mode, RunResult
from bench.store.reports import StudyRecord
from bench.text import cell, comparable, word_of
from optimizers.groups import REST
from optimizers.plugins import bare

FEW_SEEDS = 3  # below so many runs a row is provisional; ours
KINDS = ("tuned", "default", "by hand")
LIBRARIES = ("torch", "lightning")
VERSIONS = ("task", "task_package", "contents", *LIBRARIES)
"""Versions that must be equal within a problem; those of libraries may differ from reference results."""
ENTRY_VERSIONS = ("opt", "opt_package", "rest")  # that must be equal within an entry
REFERENCES = ("adamw", "gd")  # by default, for mini-batches and for full batches; ours
EntryKey = tuple[str, str, str, str]
"""Keys of an entry: problem, optimizer, source (a changed file is another optimizer) and settings."""


def default_reference(batch_size: int | str | None) -> str:
    """The default reference of runs with batches of this size, or `full`."""
    return REFERENCES[batch_size == "full"]


@dataclass(frozen=True)
class Problem:
    """The basis of a comparison."""

    key: str
    name: str  # of the task, with its options beyond the defaults
    task: str
    metric: str
    mode: Mode
    target: float | None  # value of the metric on the selection split
    measures: bool
    reference: str  # name of the default reference


@dataclass(kw_only=True, eq=False)
class Entry(Group):
    """An optimizer with its settings on a problem: a row of boards."""

    problem: Problem
    opt: str
    name: str  # the optimizer, with what distinguishes its settings if several are shown
    options: dict[str, Any]
    kind: str  # one of `KINDS`: the winner of a study, on fresh seeds; the defaults; or other settings
    source: str  # digest of a source that may change under one name and version
    studies: list[StudyRecord]  # those that it won, the largest first
    shipped: int = 0  # number of reference results
    community: str = ""  # names of submissions (`docs/submit.md`) that have its runs
    conformance: str | None = None  # verdict of `bench check`: `pass`, or the names of failed checks

    @property
    def study(self) -> StudyRecord | None:
        """The study that it won, or None."""
        return self.studies[0] if self.studies else None

    @property
    def refused(self) -> str | None:
        """The reason why its settings are not comparable, or None: for example, they were chosen by another metric."""
        study, runs = self.study, self.runs.values()
        if study is not None and study.metric and study.metric != self.problem.metric:
            return f"tuned for {study.metric}"
        chosen_on = {study.select_split} if study else {run.tuned_on for run in runs}
        if "train" in chosen_on and any(run.split not in ("", "train") for run in runs):
            return "tuned on training data and compared on held-out data"
        return None

    @property
    def flags(self) -> list[str]:
        """Its limitations."""
        study, runs = self.study, self.runs.values()
        free = LIBRARIES if self.shipped else ()
        several = [what for what, versions in self.versions.items() if len(versions) > 1 and what not in free]
        torch = " and ".join(sorted({str(run.versions.get("torch", "unknown")) for run in runs}))
        shares = [run.cap_share for run in runs if run.cap_share is not None]
        capped = sum(shares) / len(shares) if shares else 0.0
        part, origin = f"{self.shipped} of {len(runs)} ", "submitted" if self.community else "shipped"
        every = {
            f"{part * (self.shipped < len(runs))}{origin} (torch {torch}, {' and '.join(self.machines)})": self.shipped,
            "provisional": len(runs) < FEW_SEEDS,
            f"best at the edge: {', '.join(study.edges) if study else ''}": study and study.edges,
            "tuning not finished": study and study.missing,
            f"mixed versions of {' and '.join(several)}": several,
            "not the whole task": any(run.part for run in runs),
            "no schedule": any(run.unscheduled for run in runs),
            "own average": any("averages" in run.traits for run in runs),
            "stopped by time": any(run.status == "timeout" for run in runs),
            f"mostly SGD at the cap ({capped:.0%} of steps)": capped > CAP_BINDS,
            "saturated by one step": any(run.saturated_at is not None for run in runs),
        }
        return [flag for flag, holds in every.items() if holds]

    @cached_property
    def versions(self) -> dict[str, list[str]]:
        """Versions that affect the result, by component."""
        every = [run.versions for run in self.runs.values()]
        names = [name for name in (*VERSIONS, *ENTRY_VERSIONS) if any(name in versions for versions in every)]
        return {name: sorted({str(versions.get(name, "unknown")) for versions in every}) for name in names}


def entries_of(
    runs: Sequence[RunResult], by_id: Mapping[str, RunResult], studies: Sequence[StudyRecord]
) -> list[Entry]:
    """All entries, without runs of trials and of unfinished studies, and others on the winner's tuning seeds."""
    trials = {run_id for study in studies for run_id in study.run_ids}
    tuning_seeds = {study.name: study.seeds for study in studies}
    winners, groups = defaultdict[EntryKey, list[StudyRecord]](list), defaultdict[EntryKey, list[RunResult]](list)
    for study in sorted(studies, key=lambda study: (-len(study.trials), study.name)):
        if (winner := by_id.get(study.winner or "")) is not None:
            winners[_entry_key(winner)].append(study)
    for run in (run for run in runs if run.run_id not in trials):
        entry_key, planned, seed = _entry_key(run), run.planned_study, run.config["seed"]
        won = winners.get(entry_key, [])
        # A study without a record has not ended, so its runs count only at settings that another study chose.
        excluded = planned is not None and (seed in tuning_seeds[planned] if planned in tuning_seeds else not won)
        if not excluded and not any(seed in study.seeds for study in won):
            groups[entry_key].append(run)
    problems = _problems({entry_key[0]: group[0] for entry_key, group in reversed(groups.items())})
    entries = {k: _entry(k, group, problems[k[0]], winners.get(k, [])) for k, group in groups.items()}
    return [entry for _, entry in sorted(entries.items(), key=lambda item: (item[1].problem.name, *item[0]))]


def _entry(entry_key: EntryKey, group: Sequence[RunResult], problem: Problem, won: list[StudyRecord]) -> Entry:
    """The entry of these runs; of several with the same seeds, the first one of the highest `_precedence`."""
    runs = dict[Seed, RunResult]()
    for run in (run for run in group if run.finished):
        runs[seed_of(run)] = max(runs.get(seed_of(run), run), run, key=_precedence)
    default = not any(name.startswith("opt.") for name in group[0].chosen)
    tuned = won or (not default and any(run.tuned_by for run in group))
    return Entry(
        runs=runs,
        others=Counter(run.status for run in group if not run.finished),
        pending=min((seed_of(r) for r in group if r.status == "running" and seed_of(r) not in runs), default=None),
        problem=problem,
        opt=entry_key[1],
        name=entry_key[1],
        options=group[0].config["opt_options"],
        kind="tuned" if tuned else "default" if default else "by hand",
        source=entry_key[2],
        studies=won,
    )


def _precedence(run: RunResult) -> list[Any]:
    """Sort key of runs with the same seeds: a full budget, then observations, then newer versions."""
    versions = [run.versions.get(name) for name in ("task", "opt", "rest")]
    observed = run.config["trainer"].get("observe") is not None  # the same run with more information
    return [run.status != "timeout", observed, *(version if isinstance(version, int) else 0 for version in versions)]


def _entry_key(run: RunResult) -> EntryKey:
    package = str(run.versions.get("opt_package"))
    opt, source = bare(run.config["opt"]), package if "file" in package else ""
    return problem_key(run), opt, source, _key(run.config["opt_options"])


def problem_key(run: RunResult) -> str:
    """`Problem.key` of a run's problem."""
    about = run.task_name, run.problem, run.part, run.metric, run.mode, run.target, run.measures
    return _key([bare(run.config["task"]), *about])


def _key(value: Any) -> str:
    return _normal(json.dumps(value))


@lru_cache(maxsize=10_000)  # thousands of runs have few different settings
def _normal(text: str) -> str:
    """JSON in which 0 and 0.0 are one value."""
    return json.dumps(comparable(json.loads(text)), sort_keys=True)


def _problems(runs: Mapping[str, RunResult]) -> dict[str, Problem]:
    """The problem of each run by its key; those with the same name have further words."""
    problems, named = {}, {}
    for key, run in runs.items():
        words = [f"{name.rpartition('.')[2]} {word_of(value)}" for name, value in run.problem.items()]
        name = ", ".join([run.task, *words, *[f"not the whole task: {run.part}"] * bool(run.part)])
        reference = default_reference(run.config["trainer"].get("batch_size"))
        about = run.metric, run.mode, run.target, run.measures, reference
        problems[key] = Problem(key, name, bare(run.config["task"]), *about)
    for key, problem in problems.items():
        namesakes = [vars(other) for other in problems.values() if other.name == problem.name]
        several = [what for what in vars(problem) if what != "key" and len({other[what] for other in namesakes}) > 1]
        differ = [f"{what} {cell(vars(problem)[what])}" for what in several]
        named[key] = replace(problem, name=", ".join([problem.name, *differ]))
    return named


def differing(entry: Entry, entries: Sequence[Entry]) -> str:
    """The hyperparameters and the source that distinguish an entry from others of its optimizer, in words."""
    others = [other for other in entries if other.opt == entry.opt]
    words, alike = [], [other for other in others if other.options.get(REST) == entry.options.get(REST)]
    for name in dict.fromkeys(name for other in others for name in other.options):
        compared = alike if name.startswith(f"{REST}.") else others  # options of the same rest only
        if len({_key(other.options.get(name)) for other in compared}) > 1:
            words.append(f"{name} {word_of(entry.options.get(name))}")
    return ", ".join(words + [entry.source] * (len({other.source for other in others}) > 1))


def by_problem(entries: Sequence[Entry]) -> dict[Problem, list[Entry]]:
    """Entries, which are in the order of their problems, by problem."""
    return {problem: [*group] for problem, group in groupby(entries, key=attrgetter("problem"))}
