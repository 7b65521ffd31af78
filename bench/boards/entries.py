"""From runs to entries: an optimizer with its settings on a problem, with a run for each seed.

A problem is a task with everything that must be equal for a comparison: its options, budget, batch, precision, part of
the data, metric and target. All of it is in the records: nothing here uses the code of tasks or optimizers, which is
untrusted. An entry does not depend on the other entries.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from bench.results.group import Group, seed_of
from bench.results.selection import Mode, is_capped
from bench.run_summary import planned_study
from bench.store.record import RunResult
from bench.store.reports import StudyRecord
from bench.text import cell, comparable, word_of
from optimizers.groups import REST
from optimizers.plugins import bare

KINDS = ("tuned", "default", "by hand")
LIBRARIES = ("torch", "lightning")
VERSIONS = ("task", "task_package", "contents", *LIBRARIES)
"""Versions that must be equal within a problem; those of libraries may differ from reference results."""
OWN_VERSIONS = ("opt", "opt_package", "rest")
"""Versions that must be equal within an entry."""
REFERENCES = ("adamw", "gd")
"""Default references: for mini-batches and for full batches. Ours."""


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
    options: dict[str, Any]
    kind: str  # one of `KINDS`: the winner of a study, on fresh seeds; the defaults; or other settings
    default: bool  # whether these are the default settings, which may have won a study too
    source: str  # digest of a source that may change under one name and version
    studies: list[StudyRecord]  # those that it won, the largest first
    best_of: int = 0  # number of settings from which it was chosen on the shown seeds
    others_tuned: list[str] = field(default_factory=list)  # further studies of the optimizer
    shipped: int = 0  # number of reference results
    excluded: int = 0  # number of tried settings that a cap excluded
    tuned_elsewhere: bool = False  # by a study that is not in these stores
    name: str = ""
    conformance: str | None = None  # verdict of `bench check`: `pass`, or the names of failed checks

    @property
    def settings(self) -> str:
        """The source of its settings, in words."""
        return f"best of {self.best_of}" if self.best_of else self.kind

    @property
    def refused(self) -> str | None:
        """The reason why its settings are not comparable, or None: for example, they were chosen by another metric."""
        study, runs = self.study, self.runs.values()
        if study is not None and study.metric and study.metric != self.problem.metric:
            return f"tuned for {study.metric}"
        chosen_on = {study.select_split} if study else {run.tuned_on for run in runs}
        if "train" in chosen_on and any(run.split not in ("", "train") for run in runs):
            return "tuned on training data and compared on held-out data"
        if study is not None and self.excluded and len(study.trials) - self.excluded < 2:
            return "its cap excluded all tried settings but one"
        is_sgd = self.kind == "tuned" and is_capped(runs)
        return "its cap sets the step, as in SGD with a fixed step" if is_sgd else None

    @property
    def study(self) -> StudyRecord | None:
        """The study that it won, or None."""
        return self.studies[0] if self.studies else None

    @cached_property
    def versions(self) -> dict[str, list[str]]:
        """Versions that affect the result, by component."""
        names = [n for n in (*VERSIONS, *OWN_VERSIONS) if any(n in run.versions for run in self.runs.values())]
        return {n: sorted({str(run.versions.get(n, "unknown")) for run in self.runs.values()}) for n in names}


Place = tuple[str, str, str, str]
"""Problem, optimizer, source and settings, as keys."""


def entries_of(
    runs: Sequence[RunResult], by_id: Mapping[str, RunResult], studies: Sequence[StudyRecord]
) -> list[Entry]:
    """All entries, without runs of trials and of unfinished studies, and others on the winner's tuning seeds."""
    trials = {run_id for study in studies for run_id in study.run_ids}
    tuning_seeds, winners = defaultdict[str, set[int]](set), defaultdict[Place, list[StudyRecord]](list)
    for study in sorted(studies, key=lambda study: (-len(study.trials), study.name)):
        tuning_seeds[study.name] |= {*study.seeds}
        if (winner := by_id.get(study.winner or "")) is not None:
            winners[_place(winner)].append(study)
    entries: dict[Place, Entry] = {}
    for run in (run for run in runs if run.run_id not in trials):
        place, planned = _place(run), planned_study(run)
        won, seed = winners.get(place, []), run.config["seed"]
        # A study without a record has not ended, so its runs count only at settings that another study chose.
        cut = planned is not None and (seed in tuning_seeds[planned] if planned in tuning_seeds else not won)
        if cut or any(seed in study.seeds for study in won):
            continue
        if (entry := entries.get(place)) is None:
            default = not any(name.startswith("opt.") for name in run.chosen)
            kind = "tuned" if won else "default" if default else "by hand"
            settings: dict[str, Any] = {"options": run.config["opt_options"], "kind": kind, "default": default}
            entry = Entry(problem=_problem(run, place[0]), opt=place[1], source=place[2], studies=won, **settings)
            entries[place] = entry
        stored = entry.runs.get(seed_of(run))
        if not run.finished:
            entry.others[run.status] += 1
        elif stored is None or (_standing(run), stored.run_id) > (_standing(stored), run.run_id):
            entry.runs[seed_of(run)] = run
        if run.tuned_by and entry.kind == "by hand":
            entry.kind, entry.tuned_elsewhere = "tuned", True
    _distinguish([*entries.values()])
    return [entry for _, entry in sorted(entries.items(), key=lambda item: (item[1].problem.name, *item[0]))]


def _standing(run: RunResult) -> list[Any]:
    """Sort key of runs with the same seeds: a full budget, then observations, then newer versions."""
    versions = [run.versions.get(name) for name in ("task", "opt", "rest")]
    observed = run.config["trainer"].get("observe") is not None  # the same run with more information
    return [run.status != "timeout", observed, *(version if isinstance(version, int) else 0 for version in versions)]


def _place(run: RunResult) -> Place:
    package = str(run.versions.get("opt_package"))
    source = package if "file" in package else ""  # a changed file is another optimizer
    return problem_key(run), bare(run.config["opt"]), source, _key(run.config["opt_options"])


def problem_key(run: RunResult) -> str:
    """`Problem.key` of a run's problem."""
    of_problem = run.task_name, run.problem, run.part, run.metric, run.mode, run.target, run.measures
    return _key([bare(run.config["task"]), *of_problem])


def _key(value: Any) -> str:
    return _normal(json.dumps(value))


@lru_cache(maxsize=10_000)  # thousands of runs have few different settings
def _normal(text: str) -> str:
    """JSON in which 0 and 0.0 are one value."""
    return json.dumps(comparable(json.loads(text)), sort_keys=True)


def _problem(run: RunResult, key: str) -> Problem:
    words = [f"{name.rpartition('.')[2]} {word_of(value)}" for name, value in run.problem.items()]
    name = ", ".join([run.task, *words, *[f"not the whole task: {run.part}"] * bool(run.part)])
    reference = default_reference(run.config["trainer"].get("batch_size"))
    return Problem(key, name, bare(run.config["task"]), run.metric, run.mode, run.target, run.measures, reference)


def _distinguish(entries: Sequence[Entry]) -> None:
    """Add distinguishing words to problems with the same name, and give entries of a problem the same one."""
    problems = {entry.problem.key: entry.problem for entry in reversed(entries)}
    renamed = {}
    for key, problem in problems.items():
        namesakes, words = [other for other in problems.values() if other.name == problem.name], [problem.name]
        for what in ("task", "metric", "mode", "target", "measures"):
            if len({getattr(other, what) for other in namesakes}) > 1:
                words.append(f"{what} {cell(getattr(problem, what))}")
        renamed[key] = replace(problem, name=", ".join(words))
    for entry in entries:
        entry.problem = renamed[entry.problem.key]


def differing(entry: Entry, entries: Sequence[Entry]) -> str:
    """The hyperparameters and the source that distinguish an entry from others of its optimizer, in words."""
    others = [other.options for other in entries if other.opt == entry.opt]
    alike = [other for other in others if other.get(REST) == entry.options.get(REST)]  # with the same rest
    names = [
        name
        for name in dict.fromkeys(name for other in others for name in other)
        if len({_key(o.get(name)) for o in (alike if name.startswith(f"{REST}.") else others)}) > 1
    ]
    words = [f"{name} {word_of(entry.options.get(name))}" for name in names]
    words += [entry.source] * (len({other.source for other in entries if other.opt == entry.opt}) > 1)
    return ", ".join(words)
