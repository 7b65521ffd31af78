"""From runs to entries: an optimizer with its settings on a problem, with a run for each seed.

A problem is a task with everything that must be equal for a comparison: its options, budget, batch, precision, part of
the data, metric and target. All of it is in the records: nothing here uses the code of tasks or optimizers, which is
untrusted. An entry does not depend on the other entries.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
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
    """A problem: the basis of a comparison.

    `key` identifies it; `name` has the task's name and its options beyond the defaults; `target` is a value of the
    metric on the selection split, and `reference` the name of the default reference.
    """

    key: str
    name: str
    task: str
    part: str | None
    metric: str
    mode: Mode
    target: float | None
    measures: bool
    reference: str = REFERENCES[0]


@dataclass(kw_only=True, eq=False)
class Entry(Group):
    """An optimizer with its settings on a problem: a row of boards.

    `kind` is `tuned` (the winner of a study, on fresh seeds), `default` or `by hand`; `default` says whether these are
    the default settings, which may have won a study too. `source` is a digest of a source that may change under one
    name and version. It was chosen from `best_of` settings on the shown seeds. `studies` are those that it won, the
    largest first, `others_tuned` further ones of the optimizer; `tuned_elsewhere` says that none is in these stores.
    `shipped` counts reference results, `excluded` settings that a cap excluded. `conformance` is the verdict of `bench
    check`: `pass`, or the names of failed checks.
    """

    problem: Problem
    opt: str
    options: dict[str, Any]
    kind: str = "by hand"
    default: bool = False
    source: str = ""
    studies: list[StudyRecord] = field(default_factory=list)
    best_of: int = 0
    others_tuned: list[str] = field(default_factory=list)
    shipped: int = 0
    excluded: int = 0
    tuned_elsewhere: bool = False
    name: str = ""
    conformance: str | None = None

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
        return (
            "its cap sets the step, as in SGD with a fixed step" if self.kind == "tuned" and is_capped(runs) else None
        )

    @property
    def study(self) -> StudyRecord | None:
        """The study that it won, or None."""
        return self.studies[0] if self.studies else None

    @cached_property
    def versions(self) -> dict[str, list[str]]:
        """Versions that affect the result, by component."""
        names = [n for n in (*VERSIONS, *OWN_VERSIONS) if any(n in run.versions for run in self.runs.values())]
        return {n: sorted({str(run.versions.get(n, "unknown")) for run in self.runs.values()}) for n in names}


def entries_of(
    runs: Sequence[RunResult], by_id: Mapping[str, RunResult], studies: Sequence[StudyRecord]
) -> list[Entry]:
    """All entries, without runs of trials and of unfinished studies, and others on the winner's tuning seeds."""
    trials = {run_id for study in studies for run_id in study.run_ids}
    tuning_seeds: dict[str, set[int]] = {}
    for study in studies:
        tuning_seeds.setdefault(study.name, set()).update(study.seeds)
    problems: dict[str, Problem] = {}
    known: dict[str, Place] = {}
    winners: dict[Place, list[StudyRecord]] = {}
    for study in studies:
        if (winner := by_id.get(study.winner or "")) is not None:
            winners.setdefault(_place(winner, known, problems), []).append(study)
    entries: dict[Place, Entry] = {}
    for run in runs:
        if run.run_id in trials:
            continue
        place, seed, planned = _place(run, known, problems), run.config["seed"], planned_study(run)
        won = winners.get(place, [])
        # A study without a record has not ended, so its runs count only at settings that another study chose.
        cut = planned is not None and (seed in tuning_seeds[planned] if planned in tuning_seeds else not won)
        if cut or any(seed in study.seeds for study in won):
            continue
        if place not in entries:
            default = not any(name.startswith("opt.") for name in run.chosen)
            entries[place] = Entry(
                problem=problems[place[0]],
                opt=place[1],
                options=run.config["opt_options"],
                kind="tuned" if won else "default" if default else "by hand",
                default=default,
                source=place[2],
                studies=sorted(won, key=lambda study: (-len(study.trials), study.name)),
            )
        entry, stored = entries[place], entries[place].runs.get(seed_of(run))
        if not run.finished:
            entry.others[run.status] += 1
        else:  # prefer a full budget, then newer versions, then the first by name, whatever the order of files
            if stored is None or (_standing(run), stored.run_id) > (_standing(stored), run.run_id):
                entry.runs[seed_of(run)] = run
        if run.tuned_by and entry.kind == "by hand":
            entry.kind, entry.tuned_elsewhere = "tuned", True
    _distinguish(entries.values())
    return [entry for _, entry in sorted(entries.items(), key=lambda item: (item[1].problem.name, *item[0]))]


def _standing(run: RunResult) -> list[Any]:
    versions = [run.versions.get(name) for name in ("task", "opt", "rest")]
    observed = run.config["trainer"].get("observe") is not None  # the same run with more information
    return [run.status != "timeout", observed, *(version if isinstance(version, int) else 0 for version in versions)]


Place = tuple[str, str, str, str]
"""Problem, optimizer, source and settings, as keys."""


def _place(run: RunResult, known: dict[str, Place], problems: dict[str, Problem]) -> Place:
    """The place of a run; places are kept in `known`, since thousands of runs have few, and problems by key."""
    opt, options, package = run.config["opt"], run.config["opt_options"], str(run.versions.get("opt_package"))
    text = json.dumps([run.config["task"], opt, options, package, *_of_problem(run)])
    if text not in known:
        key = problem_key(run)
        words = [f"{name.rpartition('.')[2]} {word_of(value)}" for name, value in run.problem.items()]
        name = ", ".join([run.task, *words, *[f"not the whole task: {run.part}"] * bool(run.part)])
        reference = default_reference(run.config["trainer"].get("batch_size"))
        task, part, metric = bare(run.config["task"]), run.part, run.metric
        problem = Problem(key, name, task, part, metric, run.mode, run.target, run.measures, reference)
        problems.setdefault(key, problem)
        # A changed file is another optimizer.
        known[text] = key, bare(opt), package if "file" in package else "", _text(options)
    return known[text]


def problem_key(run: RunResult) -> str:
    """`Problem.key` of a run's problem."""
    return _text([bare(run.config["task"]), *_of_problem(run)])


def _of_problem(run: RunResult) -> list[Any]:
    return [run.task_name, run.problem, run.part, run.metric, run.mode, run.target, run.measures]


def _text(value: Any) -> str:
    """As a key; 0 and 0.0 are one value."""
    return json.dumps(comparable(value), sort_keys=True)


def _distinguish(entries: Iterable[Entry]) -> None:
    """Add distinguishing words to problems with the same name but different tasks."""
    problems = {entry.problem.key: entry.problem for entry in entries}
    for entry in entries:
        namesakes = [problem for problem in problems.values() if problem.name == problems[entry.problem.key].name]
        for what in ("task", "metric", "mode", "target", "measures"):
            if len({getattr(problem, what) for problem in namesakes}) > 1:
                name = f"{entry.problem.name}, {what} {cell(getattr(entry.problem, what))}"
                entry.problem = replace(entry.problem, name=name)


def differing(entry: Entry, entries: Sequence[Entry]) -> str:
    """The hyperparameters and the source that distinguish an entry from others of its optimizer, in words."""
    others = [other.options for other in entries if other.opt == entry.opt]
    alike = [other for other in others if other.get(REST) == entry.options.get(REST)]  # with the same rest
    names = [
        name
        for name in dict.fromkeys(name for other in others for name in other)
        if len({_text(o.get(name)) for o in (alike if name.startswith(f"{REST}.") else others)}) > 1
    ]
    words = [f"{name} {word_of(entry.options.get(name))}" for name in names]
    words += [entry.source] * (len({other.source for other in entries if other.opt == entry.opt}) > 1)
    return ", ".join(words)
