"""Rows of boards: from the runs of stores to optimizers with their settings on problems, with a run for each seed.

A problem is a task with all that must be equal for a comparison: options, budget, batch, precision, part of the data,
metric and target. All of it is in the records: the code of tasks and optimizers is untrusted.
"""

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any

from bench.config.run_config import settings_of
from bench.errors import UserError, check_known
from bench.results.group import Group, Seed, seed_of
from bench.results.selection import Mode, is_capped
from bench.run_summary import planned_study
from bench.store.record import RunResult
from bench.store.reports import CheckRecord, StudyRecord
from bench.store.stores import HOW_TO_FILL, Stores
from bench.store.tables import Columns
from bench.text import cell, comparable, counted, word_of
from optimizers import OPTIMIZERS
from optimizers.groups import REST
from optimizers.plugins import bare

FEW_SEEDS = 3
"""Runs below which a row is provisional. Ours."""
KINDS = ("tuned", "default", "by hand")
LIBRARIES = ("torch", "lightning")
VERSIONS = ("task", "task_package", "contents", *LIBRARIES)
"""Versions that must be equal within a problem; those of libraries may differ from reference results."""
OWN_VERSIONS = ("opt", "opt_package", "rest")
"""Versions that must be equal within an entry."""
REFERENCES = ("adamw", "gd")
"""Default references: for mini-batches and for full batches. Ours."""
NO_ROWS = "no optimizer has finished runs at one setting here; `bench list runs` shows all runs"
_MORE = "--settings all shows all"

Tables = Callable[[str, str], Mapping[str, Columns]]
"""A run's tables by its id, with the columns that match a regular expression (`Store.tables`)."""
Place = tuple[str, str, str, str]
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
    default: bool  # whether these are the default settings, which may have won a study too
    source: str  # digest of a source that may change under one name and version
    studies: list[StudyRecord]  # those that it won, the largest first
    tuned_elsewhere: bool  # by a study that is not in these stores
    shipped: int = 0  # number of reference results
    excluded: int = 0  # number of tried settings that a cap excluded
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
        if study is not None and self.excluded and len(study.trials) - self.excluded < 2:
            return "its cap excluded all tried settings but one"
        is_sgd = self.kind == "tuned" and is_capped(runs)
        return "its cap sets the step, as in SGD with a fixed step" if is_sgd else None

    @property
    def flags(self) -> list[str]:
        """Its limitations."""
        study, runs = self.study, self.runs.values()
        free = LIBRARIES if self.shipped else ()
        several = [what for what, versions in self.versions.items() if len(versions) > 1 and what not in free]
        torch = " and ".join(sorted({str(run.versions.get("torch", "unknown")) for run in runs}))
        share = f"{self.shipped} of {len(runs)} " * (self.shipped < len(runs))
        every = {
            f"{share}shipped (torch {torch}, {' and '.join(self.machines)})": self.shipped,
            "provisional": len(runs) < FEW_SEEDS,
            f"best at the edge: {', '.join(study.edges) if study else ''}": study and study.edges,
            f"cap excluded {self.excluded} settings": self.excluded,
            "tuning not finished": study and study.missing,
            "tuned elsewhere": self.tuned_elsewhere,
            "these are the defaults": self.kind == "tuned" and self.default,
            f"mixed versions of {' and '.join(several)}": several,
            "not the whole task": any(run.part for run in runs),
            "no schedule": any(run.unscheduled for run in runs),
            "own average": any("averages" in run.traits for run in runs),
            "stopped by time": any(run.status == "timeout" for run in runs),
            "cap sets the step": is_capped(runs),
            "saturated by one step": any(run.saturated_at is not None for run in runs),
        }
        return [flag for flag, holds in every.items() if holds]

    @cached_property
    def versions(self) -> dict[str, list[str]]:
        """Versions that affect the result, by component."""
        every = [run.versions for run in self.runs.values()]
        names = [name for name in (*VERSIONS, *OWN_VERSIONS) if any(name in of for of in every)]
        return {name: sorted({str(of.get(name, "unknown")) for of in every}) for name in names}


# -- from runs to entries ---------------------------------------------------------------------------------------------


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
    groups = defaultdict[Place, list[RunResult]](list)
    for run in (run for run in runs if run.run_id not in trials):
        place, planned, seed = _place(run), planned_study(run), run.config["seed"]
        won = winners.get(place, [])
        # A study without a record has not ended, so its runs count only at settings that another study chose.
        cut = planned is not None and (seed in tuning_seeds[planned] if planned in tuning_seeds else not won)
        if not cut and not any(seed in study.seeds for study in won):
            groups[place].append(run)
    problems = _problems({place[0]: group[0] for place, group in reversed(groups.items())})
    entries = {p: _entry(p, group, problems[p[0]], winners.get(p, [])) for p, group in groups.items()}
    return [entry for _, entry in sorted(entries.items(), key=lambda item: (item[1].problem.name, *item[0]))]


def _entry(place: Place, group: Sequence[RunResult], problem: Problem, won: list[StudyRecord]) -> Entry:
    """The entry of these runs; of several with the same seeds, that of the highest `_standing`."""
    runs, default = dict[Seed, RunResult](), not any(name.startswith("opt.") for name in group[0].chosen)
    for run in (run for run in group if run.finished):
        stored = runs.setdefault(seed_of(run), run)
        if (_standing(run), stored.run_id) > (_standing(stored), run.run_id):
            runs[seed_of(run)] = run
    elsewhere = not won and not default and any(run.tuned_by for run in group)
    return Entry(
        runs=runs,
        others=Counter(run.status for run in group if not run.finished),
        problem=problem,
        opt=place[1],
        name=place[1],
        options=group[0].config["opt_options"],
        kind="tuned" if won or elsewhere else "default" if default else "by hand",
        default=default,
        source=place[2],
        studies=won,
        tuned_elsewhere=elsewhere,
    )


def _standing(run: RunResult) -> list[Any]:
    """Sort key of runs with the same seeds: a full budget, then observations, then newer versions."""
    versions = [run.versions.get(name) for name in ("task", "opt", "rest")]
    observed = run.config["trainer"].get("observe") is not None  # the same run with more information
    return [run.status != "timeout", observed, *(version if isinstance(version, int) else 0 for version in versions)]


def _place(run: RunResult) -> Place:
    package = str(run.versions.get("opt_package"))
    opt, source = bare(run.config["opt"]), package if "file" in package else ""
    return problem_key(run), opt, source, _key(run.config["opt_options"])


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


def _problems(runs: Mapping[str, RunResult]) -> dict[str, Problem]:
    """The problem of each run by its key; those with the same name have further words."""
    problems = {}
    for key, run in runs.items():
        words = [f"{name.rpartition('.')[2]} {word_of(value)}" for name, value in run.problem.items()]
        name = ", ".join([run.task, *words, *[f"not the whole task: {run.part}"] * bool(run.part)])
        reference = default_reference(run.config["trainer"].get("batch_size"))
        about = run.metric, run.mode, run.target, run.measures, reference
        problems[key] = Problem(key, name, bare(run.config["task"]), *about)
    named = {}
    for key, problem in problems.items():
        namesakes = [other for other in problems.values() if other.name == problem.name]
        differ = [
            f"{what} {cell(getattr(problem, what))}"
            for what in ("task", "metric", "mode", "target", "measures")
            if len({getattr(other, what) for other in namesakes}) > 1
        ]
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


# -- from stores to the shown entries ----------------------------------------------------------------------------------


@dataclass
class Collected:
    """The collected entries: the input of every board and chart."""

    entries: list[Entry]  # the shown ones, by problem, then optimizer, then settings
    chosen: list[Entry]  # likewise, and the reference even if it is not shown
    by_id: dict[str, RunResult]  # all runs
    tables: Tables
    reference: str | None = None  # the fixed optimizer of comparison; None for each problem's own
    target: float | None = None  # value of the metric on the selection split; None for the task's own
    unranked: list[tuple[StudyRecord, str]] = field(default_factory=list)  # studies without a row, and why
    notes: list[str] = field(default_factory=list)  # on these, and on excluded runs
    damaged: list[str] = field(default_factory=list)  # runs that cannot be read; boards that read tables may add some

    @classmethod
    def of(cls, runs: Sequence[RunResult], tables: Tables) -> "Collected":
        """The entries of these runs alone, named by their optimizers."""
        by_id = {run.run_id: run for run in runs}
        entries = entries_of(runs, by_id, [])
        return cls(entries, entries, by_id, tables)

    @property
    def problems(self) -> dict[Problem, list[Entry]]:
        """The entries by problem."""
        return _by_problem(self.entries)

    @property
    def ours(self) -> frozenset[str]:
        """The reader's own optimizers: those that the suite lacks, or else those with runs beside the shipped ones.

        Empty if that is all of them.
        """
        opts = {entry.opt for entry in self.chosen if not entry.community}
        ours = opts - {*OPTIMIZERS.own} or {entry.opt for entry in self.chosen if entry.shipped < len(entry.runs)}
        return frozenset(ours if ours != opts else ())

    def excluded(self, problem: Problem) -> dict[str, str]:
        """Optimizers without a row on a problem, since their study has no winner, and why."""
        rows = {entry.opt for entry in self.chosen if entry.problem.key == problem.key}
        none = [(bare(study.opt), why, self.trial_runs(study)) for study, why in self.unranked if study.winner is None]
        return {opt: why for opt, why, runs in none if opt not in rows and runs and problem_key(runs[0]) == problem.key}

    def reference_of(self, problem: Problem) -> Entry | None:
        """The entry that a problem's others are compared with, preferring tuned to default to by hand.

        None without one, or if there are several of the same kind: another setting must not change the reference.
        """
        best = self._references(problem)
        return best[0] if len(best) == 1 else None

    def _references(self, problem: Problem) -> list[Entry]:
        name = self.reference or problem.reference
        named = [e for e in self.chosen if e.problem == problem and name in (e.opt, e.name)]
        return [entry for entry in named if entry.kind == min((e.kind for e in named), key=KINDS.index)]

    def no_reference(self, problem: Problem) -> str:
        """The reason why a problem has no reference, and what to do."""
        name, best = self.reference or problem.reference, self._references(problem)
        if best:
            return f"the reference {name} has {len(best)} settings here: choose one with --reference '{best[0].name}'"
        return f"the reference {name} has no runs in these stores: train some, or choose another with --reference"

    def read(self, group: Group, wanted: str) -> dict[Seed, Mapping[str, Columns]]:
        """Columns that match in the tables of a group's runs, by seed; none if tables are damaged, which is noted."""
        tables: dict[Seed, Mapping[str, Columns]] = {}
        for seed, run in group.runs.items():
            try:
                tables[seed] = self.tables(run.run_id, wanted)
            except UserError as error:
                tables[seed] = {}
                self.damaged.append(str(error))
        return tables

    def trial_runs(self, study: StudyRecord) -> list[RunResult]:
        """The stored runs of a study's trials."""
        return [self.by_id[run_id] for run_id in sorted(study.run_ids) if run_id in self.by_id]


def collect(
    stores: Stores,
    *,
    tasks: Sequence[str] | None = None,
    opts: Sequence[str] | None = None,
    only: Mapping[str, str] | None = None,
    settings: str = "best",
    mixed_versions: bool = False,
    reference: str | None = None,
    target: float | None = None,
) -> Collected:
    """The entries of some stores.

    Only those of `tasks` and `opts` are shown; the reference is read even if it is not shown. `only` has settings in
    dotted form that runs must have, as words; `versions.torch` and `engine` too. Of the `settings` of each optimizer on
    each problem, `best` selects the tuned ones, else the defaults, else those by hand if there is only one; `all`
    selects all. `mixed_versions` allows runs of several versions; `reference` and `target` are as in `Collected`.

    Raises:
        UserError: no entry remains, a name is unknown, or versions are mixed.
    """
    if not stores.runs:
        broken = "; ".join(map(str, stores.damaged[:3]))
        what = f"no readable runs in {stores.shown} ({broken})" if broken else f"no runs in {stores.shown}"
        raise UserError(f"there are {what}; {HOW_TO_FILL}")
    by_id = {run.run_id: run for run in stores.runs}
    tasks, opts = (None if names is None else list(map(bare, names)) for names in (tasks, opts))
    stores.refuse_unknown(tasks, opts)
    tasks = tasks and sorted({bare(run.config["task"]) for run in stores.runs if run.names["task"] & {*tasks}})
    read = opts and {*opts, *({reference, reference.partition(" (")[0]} if reference else REFERENCES)}

    def is_of(subject: StudyRecord | RunResult, opts: Collection[str] | None) -> bool:
        names = subject.config if isinstance(subject, RunResult) else vars(subject)
        return (tasks is None or bare(names["task"]) in tasks) and (opts is None or bare(names["opt"]) in opts)

    runs = [run for run in stores.runs if is_of(run, read)]
    runs = _filtered(runs, only, stores) if only else runs
    if not any(is_of(run, opts) for run in runs):
        raise UserError(f"no run in {stores.shown} matches --task, --opt and --only")
    entries = entries_of(runs, by_id, stores.studies)
    for entry in entries:
        entry.shipped = sum(run.run_id in stores.shipped for run in entry.runs.values())
        submissions = {stores.community.get(run.run_id, "") for run in entry.runs.values()}
        entry.community = ", ".join(sorted(submissions - {""}))
        entry.excluded = capped(entry.study, by_id) if entry.study else 0
    used = {run.run_id for entry in entries for run in entry.runs.values()}
    tuned = {(bare(study.task), bare(study.opt)) for study in stores.studies}
    left = [run for run in runs if (bare(run.config["task"]), bare(run.config["opt"])) not in tuned]
    cut = Counter(study for run in left if run.run_id not in used and (study := planned_study(run)) is not None)
    notes = [f"the study {name} has not ended: {counted(n, 'run')} left out" for name, n in sorted(cut.items())]
    chosen = [entry for entry in entries if entry.runs] if settings == "all" else _chosen(entries, notes)
    if not mixed_versions:
        _refuse_mixed(chosen, stores.shipped)
    studies = [study for study in stores.studies if is_of(study, opts)]
    if only:  # it may exclude the runs of a study
        studies = [study for study in studies if study.winner is None and study.run_ids & by_id.keys()]
    unranked = [(study, why) for study in studies if (why := _why_no_row(study, entries, by_id))]
    notes += [f"{s.task}: {s.opt} has no row from its study {s.name}: {why}" for s, why in unranked]
    for group in _by_problem(chosen).values():
        count = Counter(entry.opt for entry in group)
        for entry in group:
            if count[entry.opt] > 1:
                entry.name = f"{entry.opt} ({differing(entry, group)})"
            entry.name += f" (community: {entry.community})" * bool(entry.community)
            entry.conformance = _conformance(entry, stores.checks)
    shown = [entry for entry in chosen if opts is None or entry.opt in opts]
    return Collected(shown, chosen, by_id, stores.tables, reference, target, unranked, notes)


def capped(study: StudyRecord, by_id: Mapping[str, RunResult]) -> int:
    """The number of trials that are excluded because a cap set nearly all of their steps."""
    return sum(is_capped(by_id[run_id] for run_id in trial["runs"] if run_id in by_id) for trial in study.trials)


def _conformance(entry: Entry, checks: Iterable[CheckRecord]) -> str | None:
    """Failures of conformance that change results or block a set-up, or `pass`; None if a method is unchecked."""
    failed = set[str]()
    rest = entry.options.get(REST)
    for kind, name, rests in (("opt", entry.opt, {None, rest}), ("rest", rest, {None})):
        about = {(run.versions.get(kind), run.versions.get(f"{kind}_package")) for run in entry.runs.values()}
        reports = [c for c in checks if bare(c.name) == name and {(c.version, c.package)} == about and c.rest in rests]
        if name is not None and not reports:
            return None
        failed |= {check for report in reports for check in report.serious}
    return f"fails {', '.join(sorted(failed))}" if failed else "pass"


def _filtered(runs: Iterable[RunResult], only: Mapping[str, str], stores: Stores) -> list[RunResult]:
    """The runs with these settings; versions of libraries do not filter reference results."""
    facts = {
        run.run_id: settings_of(run.config)
        | {f"versions.{name}": value for name, value in run.versions.items()}
        | {"engine": run.engine, "machine": run.machine}
        for run in stores.runs
    }
    check_known("setting of --only", only, sorted({name for values in facts.values() for name in values}))
    free, wanted = {f"versions.{name}" for name in LIBRARIES}, {name: _comparable(word) for name, word in only.items()}

    def has(run: RunResult) -> bool:
        values, names = facts[run.run_id], wanted.keys() - (free if run.run_id in stores.shipped else ())
        return all(name in values and _comparable(values[name]) == wanted[name] for name in names)

    return [run for run in runs if has(run)]


def _comparable(value: Any) -> Any:
    """A setting, or the word for it, in a form that compares them: 1e3 is 1000, and 0.9,0.99 a list of two numbers."""
    text = str(value).lower().strip("[]() ")
    try:
        return json.loads(f"[{text}]")
    except ValueError:
        return text


def _why_no_row(study: StudyRecord, entries: Sequence[Entry], by_id: Mapping[str, RunResult]) -> str | None:
    """The reason why a study has no row; None if it has one."""
    if study.winner is None:
        n = len(study.trials)
        why = f"no trial of {n} has a score" if n else "no trial has ended"
        return f"its cap excluded all {n} tried settings" if n and capped(study, by_id) == n else why
    if study.winner not in by_id:
        return "the runs of its trials are not in these stores, so its winner is unknown"
    if not any(study in entry.studies and entry.runs for entry in entries):
        return f"no run of its winner on fresh seeds has finished (study {study.name})"
    return None


def _chosen(entries: Sequence[Entry], notes: list[str]) -> list[Entry]:
    """The best entry of each optimizer on each problem (see `collect`), with notes on those left out."""
    chosen: list[Entry] = []
    for _, of_place in groupby(entries, lambda entry: (entry.problem.key, entry.opt, entry.source)):
        group = list(of_place)
        problem, opt, finished = group[0].problem, group[0].opt, [entry for entry in group if entry.runs]
        if not finished:
            counts = sum((entry.others for entry in group), Counter[str]())
            notes.append(f"{problem.name}: no run of {opt} has finished ({cell(dict(sorted(counts.items())))})")
            continue
        kind = min((entry.kind for entry in finished), key=KINDS.index)
        best = [entry for entry in finished if entry.kind == kind]
        best.sort(key=lambda entry: len(entry.study.trials) if entry.study else 0, reverse=True)
        if kind != "tuned" and len(best) > 1:
            notes.append(
                f"{problem.name}: {opt} is not shown, since it has {len(best)} settings by hand and no rule to choose"
                f" one: tune it (bench tune --task {problem.task} --opt {opt}); {_MORE}"
            )
            continue
        chosen.append(best[0])
        left = sum(e.kind == "by hand" and e.shipped < len(e.runs) for e in finished if e not in best) + len(best) - 1
        shown = f"{problem.name}: {opt} is shown at its {kind} settings, without {counted(left, 'other setting')}"
        notes += [f"{shown}; {_MORE}"] * bool(left)
    return chosen


def _refuse_mixed(entries: Sequence[Entry], shipped: Collection[str]) -> None:
    """Refuse runs of several versions on a problem, or of an optimizer."""
    for problem, rows in _by_problem(entries).items():
        groups = [(what, what, rows) for what in VERSIONS]
        for entry in rows:
            rest = entry.options.get(REST)
            groups += [(what, f"optimizer {rest if what == REST else entry.opt}", [entry]) for what in OWN_VERSIONS]
        for what, subject, group in groups:
            free, runs = shipped if what in LIBRARIES else (), [run for e in group for run in e.runs.values()]
            count = Counter(str(run.versions.get(what, "unknown")) for run in runs if run.run_id not in free)
            if len(count) > 1:
                several = ", ".join(f"{version} ({counted(n, 'run')})" for version, n in sorted(count.items()))
                only = f"--only versions.{what}={shlex.quote(count.most_common(1)[0][0])}"
                raise UserError(
                    f"{problem.name} has runs of several versions of {subject}: {several}; choose one with {only}"
                    f" (and --task {problem.task})"
                )


def _by_problem(entries: Sequence[Entry]) -> dict[Problem, list[Entry]]:
    grouped = defaultdict[Problem, list[Entry]](list)
    for entry in entries:
        grouped[entry.problem].append(entry)
    return dict(grouped)
