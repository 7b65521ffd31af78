"""Entries of stores for boards: requested, readable and comparable."""

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from bench.boards.entries import (
    KINDS,
    LIBRARIES,
    OWN_VERSIONS,
    REFERENCES,
    VERSIONS,
    Entry,
    Problem,
    differing,
    entries_of,
    problem_key,
)
from bench.config.run_config import settings_of
from bench.config.values import parts
from bench.errors import UserError, unknown
from bench.results.group import Group, Seed
from bench.results.selection import above_infimum, best_index, equal_below, is_capped, score_of
from bench.run_summary import planned_study
from bench.store.record import RunResult
from bench.store.reports import CheckRecord, StudyRecord
from bench.store.stores import HOW_TO_FILL, Stores
from bench.store.tables import Columns
from bench.text import cell, counted
from optimizers import OPTIMIZERS
from optimizers.groups import REST
from optimizers.plugins import bare

NO_ROWS = "no optimizer has finished runs here; `bench list runs` shows all runs"
_MORE = "--settings all shows all"

Tables = Callable[[str], Mapping[str, Columns]]
"""A run's tables by its id, as `Store.tables` gives them."""


@dataclass
class Collected:
    """The collected entries: the input of every board and chart.

    Attributes:
        entries: the shown entries, by problem, then optimizer, then settings.
        chosen: likewise, and the reference even if it is not shown; `all` has all entries, and `by_id` all runs.
        tables: reads a run's tables.
        reference: the fixed optimizer of comparison; None for each problem's own (`Problem.reference`).
        target: value of the metric on the selection split; None for the task's own.
        unranked: studies without a row, and why; `notes` has them too, and excluded runs.
        damaged: runs that cannot be read, and why; boards that read tables may find more.
    """

    entries: list[Entry]
    chosen: list[Entry]
    all: list[Entry]
    by_id: dict[str, RunResult]
    tables: Tables
    reference: str | None = None
    target: float | None = None
    unranked: list[tuple[StudyRecord, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, runs: Sequence[RunResult], tables: Tables) -> "Collected":
        """The entries of these runs alone, named by their optimizers."""
        by_id = {run.run_id: run for run in runs}
        entries = entries_of(runs, by_id, [])
        for entry in entries:
            entry.name = entry.opt
        return cls(entries, entries, entries, by_id, tables)

    @property
    def problems(self) -> dict[Problem, list[Entry]]:
        """The entries by problem."""
        return _by_problem(self.entries)

    @property
    def ours(self) -> frozenset[str]:
        """The reader's own optimizers: those that the suite lacks, or else those with runs beside the shipped ones.

        Empty if that is all of them.
        """
        opts = {entry.opt for entry in self.chosen}
        ours = opts - {*OPTIMIZERS.own} or {entry.opt for entry in self.chosen if entry.shipped < len(entry.runs)}
        return frozenset(ours if ours != opts else ())

    def excluded(self, problem: Problem) -> dict[str, str]:
        """Optimizers without a row on a problem, since their study has no winner, and why."""
        rows, reasons = {entry.opt for entry in self.chosen if entry.problem.key == problem.key}, {}
        for study, why in self.unranked:
            run = next(iter(self.trial_runs(study)), None)
            if study.winner is None and run and problem_key(run) == problem.key and bare(study.opt) not in rows:
                reasons[bare(study.opt)] = why
        return reasons

    def reference_of(self, problem: Problem) -> Entry | None:
        """The entry that a problem's others are compared with, preferring tuned to default to by hand.

        None without one, or if there are several of the same kind: another setting must not change the reference.
        """
        best = self._references(problem)
        return best[0] if len(best) == 1 else None

    def _references(self, problem: Problem) -> list[Entry]:
        name = self.reference or problem.reference
        named = [e for e in self.chosen if e.problem == problem and name in (e.opt, e.name)]
        kind = min((KINDS.index(entry.kind) for entry in named), default=None)
        return [entry for entry in named if KINDS.index(entry.kind) == kind]

    def no_reference(self, problem: Problem) -> str:
        """The reason why a problem has no reference, and what to do."""
        name, best = self.reference or problem.reference, self._references(problem)
        if best:
            return f"the reference {name} has {len(best)} settings here: choose one with --reference '{best[0].name}'"
        if count := sum(e.problem == problem and name in (e.opt, e.name) and bool(e.runs) for e in self.all):
            some = f"it has {counted(count, 'setting')}, of which none was chosen"
            return f"the reference {name} is not shown ({some}): choose another with --reference"
        return f"the reference {name} has no runs in these stores: train some, or choose another with --reference"

    def read(self, group: Group) -> dict[Seed, Mapping[str, Columns]]:
        """The tables of a group's runs by seed, without runs whose tables are damaged, which are noted."""
        tables: dict[Seed, Mapping[str, Columns]] = {}
        for seed, run in group.runs.items():
            try:
                tables[seed] = self.tables(run.run_id)
            except UserError as error:
                self.damaged.append(str(error))
        return tables

    def every(self, entry: Entry) -> list[Mapping[str, Columns]]:
        """The tables of each of an entry's runs; none of a run whose tables are damaged, which is noted."""
        tables = self.read(entry)
        return [tables.get(seed, {}) for seed in entry.runs]

    def trial_runs(self, study: StudyRecord | None) -> list[RunResult]:
        """The stored runs of a study's trials; none without a study."""
        ids = sorted(study.run_ids) if study else []
        return [self.by_id[run_id] for run_id in ids if run_id in self.by_id]


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

    Only those of `tasks` and `opts` are shown, None for all; the reference is read even if it is not shown. `only` has
    settings in dotted form that runs must have, as words; `versions.torch` and `engine` too. Of the `settings` of each
    optimizer on each problem, `best` selects the tuned ones; else the best of several with the same seeds, as from a
    sweep; else the defaults, else settings by hand if there is only one; `tuned`, `default` or `all` selects these.
    `mixed_versions` allows runs of several versions together; `reference` and `target` are as in `Collected`.

    Raises:
        UserError: no entry remains, a name is unknown, or versions are mixed.
    """
    if not stores.runs:
        broken = "; ".join(map(str, stores.damaged[:3]))
        what = f"no readable runs in {stores.shown} ({broken})" if broken else f"no runs in {stores.shown}"
        raise UserError(f"there are {what}; {HOW_TO_FILL}")
    runs, notes = stores.runs, list[str]()
    by_id = {run.run_id: run for run in runs}
    tasks, opts = (None if names is None else list(map(bare, names)) for names in (tasks, opts))
    stores.refuse_unknown(tasks, opts, runs)
    tasks = tasks and sorted({bare(run.config["task"]) for run in runs if run.names["task"] & {*tasks}})
    read = None if opts is None else {*opts, *({reference, reference.partition(" (")[0]} if reference else REFERENCES)}

    def is_of(subject: StudyRecord | RunResult, opts: Collection[str] | None) -> bool:
        names = subject.config if isinstance(subject, RunResult) else vars(subject)
        return (tasks is None or bare(names["task"]) in tasks) and (opts is None or bare(names["opt"]) in opts)

    runs = _filtered([run for run in runs if is_of(run, read)], only or {}, stores.shipped, by_id.values())
    if not any(is_of(run, opts) for run in runs):
        raise UserError(f"no run in {stores.shown} matches --task, --opt and --only")
    entries = entries_of(runs, by_id, stores.studies)
    for entry in entries:
        entry.shipped = sum(run.run_id in stores.shipped for run in entry.runs.values())
        entry.excluded = capped(entry.study, by_id)
    notes += _cut_studies(runs, entries, stores.studies)
    chosen = _chosen(entries, settings, notes)
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
            entry.name = f"{entry.opt} ({differing(entry, group)})" if count[entry.opt] > 1 else entry.opt
            entry.conformance = _conformance(entry, stores.checks)
    shown = [entry for entry in chosen if opts is None or entry.opt in opts]
    return Collected(shown, chosen, entries, by_id, stores.tables, reference, target, unranked, notes)


def capped(study: StudyRecord | None, by_id: Mapping[str, RunResult]) -> int:
    """The number of trials that are excluded because a cap set nearly all of their steps."""
    trials = study.trials if study else []
    return sum(is_capped(by_id[run_id] for run_id in trial["runs"] if run_id in by_id) for trial in trials)


def _cut_studies(runs: Iterable[RunResult], entries: Iterable[Entry], studies: Iterable[StudyRecord]) -> list[str]:
    """A note on each study that has not ended."""
    used = {run.run_id for entry in entries for run in entry.runs.values()}
    tuned = {(bare(study.task), bare(study.opt)) for study in studies}
    left = [run for run in runs if run.run_id not in used and planned_study(run) is not None]
    left = [run for run in left if (bare(run.config["task"]), bare(run.config["opt"])) not in tuned]
    cut = Counter(planned_study(run) for run in left)
    return [f"the study {name} has not ended: {counted(cut[name], 'run')} left out" for name in sorted(map(str, cut))]


def _conformance(entry: Entry, checks: Iterable[CheckRecord]) -> str | None:
    """Failures of conformance that change results or block a set-up, or `pass`; None if a method is unchecked."""
    failed = set[str]()
    rest = entry.options.get(REST)
    for kind, name, rests in (("opt", entry.opt, {None, rest}), ("rest", rest, {None})):
        about = {(run.versions.get(kind), run.versions.get(f"{kind}_package")) for run in entry.runs.values()}
        mine = [c for c in checks if bare(c.name) == name and {(c.version, c.package)} == about and c.rest in rests]
        if name is not None and not mine:
            return None
        failed |= {check for report in mine for check in report.serious}
    return f"fails {', '.join(sorted(failed))}" if failed else "pass"


def _filtered(
    runs: list[RunResult], only: Mapping[str, str], shipped: Collection[str], known: Iterable[RunResult]
) -> list[RunResult]:
    """The runs with these settings; versions of libraries do not filter reference results."""
    if not only:
        return runs
    if "status" in only:
        raise UserError("--only status: comparisons always include diverged and stopped runs")
    names = {name for run in known for name in facts(run)}
    for name in only:
        if name not in names:
            raise unknown("setting of --only", name, sorted(names - {"status"}))
    wanted = {name: _comparable(word) for name, word in only.items()}
    of_libraries = {f"versions.{name}" for name in LIBRARIES}

    def has(run: RunResult) -> bool:
        values, free = facts(run), of_libraries if run.run_id in shipped else ()
        return all(name in free or (name in values and _comparable(values[name]) == wanted[name]) for name in only)

    return [run for run in runs if has(run)]


def _comparable(value: Any) -> Any:
    """A setting, or the word for it, in a form that compares them: 1e3 is 1000, and 0.9,0.99 a list of two numbers."""
    if isinstance(value, list | tuple) or (isinstance(value, str) and "," in value):
        return [_comparable(v) for v in (parts(value.strip("[]() ")) if isinstance(value, str) else value)]
    try:
        return str(value).lower() if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return str(value).lower()


def facts(run: RunResult) -> dict[str, Any]:
    """Everything that can select a run, in dotted form."""
    versions = {f"versions.{name}": value for name, value in run.versions.items()}
    return {**settings_of(run.config), **versions, "engine": run.engine, "status": run.status, "machine": run.machine}


def _why_no_row(study: StudyRecord, entries: Sequence[Entry], by_id: Mapping[str, RunResult]) -> str | None:
    """The reason why a study has no row; None if it has one."""
    if study.winner is None:
        n, excluded = len(study.trials), capped(study, by_id)
        if not n:
            return "no trial has ended"
        return f"no trial of {n} has a score" if excluded < n else f"its cap excluded all {n} tried settings"
    if study.winner not in by_id:
        return "the runs of its trials are not in these stores, so its winner is unknown"
    if not any(study in entry.studies and entry.runs for entry in entries):
        return f"no run of its winner on fresh seeds has finished (study {study.name})"
    return None


def _chosen(entries: Sequence[Entry], settings: str, notes: list[str]) -> list[Entry]:
    """The entries at these settings (see `collect`), with notes on those left out."""
    chosen: list[Entry] = []
    swept: dict[str, list[str]] = {}

    def place(entry: Entry) -> tuple[str, str, str]:
        return entry.problem.key, entry.opt, entry.source

    for (_, opt, _), of_place in groupby(entries, place):
        group = list(of_place)
        problem, finished = group[0].problem.name, [entry for entry in group if entry.runs]
        start = f"{problem}: {opt}"
        if not finished:
            counts = sum((entry.others for entry in group), Counter[str]())
            notes.append(f"{problem}: no run of {opt} has finished ({cell(dict(sorted(counts.items())))})")
            continue
        if settings == "all":
            chosen += finished
            continue
        kind = min((entry.kind for entry in finished), key=KINDS.index) if settings == "best" else settings
        best = [entry for entry in finished if (entry.default if settings == "default" else entry.kind == kind)]
        searched, seeds = _search(finished) if settings == "best" and kind != "tuned" else ([], set[Seed]())
        if kind == "tuned" and best:
            best.sort(key=lambda entry: entry.study.weight if entry.study else (0, ""), reverse=True)
            by_hand = sum(e.kind == "by hand" and e.shipped < len(e.runs) for e in finished)
            if settings == "best" and by_hand:
                left_out = f"{counted(by_hand, 'setting')} set by hand or swept"
                notes.append(f"{start} is shown at its tuned settings, without {left_out}; {_MORE}")
            best[0].others_tuned = [e.study.name if e.study else f"elsewhere, {differing(e, best)}" for e in best[1:]]
            best = best[:1]
        elif searched:
            best = [_best_of(searched, seeds)]
            swept.setdefault(problem, []).append(opt)
            if rest := len(finished) - len(searched):
                others = counted(rest, "further setting")
                notes.append(f"{start}: {others} with other seeds were not considered; {_MORE}")
        elif settings == "best" and kind == "default" and (rest := len(finished) - len(best)):
            left_out = f"{counted(rest, 'other setting')} set by hand"
            notes.append(f"{start} is shown at its defaults, without {left_out}: tune it; {_MORE}")
        if len(best) == 1:
            chosen += best
        elif best:
            notes.append(
                f"{start} is not shown, since it has {len(best)} settings by hand and no rule to choose one: tune it"
                f" (bench tune --task {best[0].problem.task} --opt {opt}); {_MORE}"
            )
        else:
            notes.append(f"{start} is not shown: it has no {kind} settings")
    notes += [
        f"{problem}: {', '.join(sorted(opts))}: the best of several settings, chosen on the shown seeds. This is"
        f" optimistic, so there is no verdict: bench tune chooses on other seeds; {_MORE}"
        for problem, opts in swept.items()
    ]
    return chosen


def _search(entries: Sequence[Entry]) -> tuple[list[Entry], set[Seed]]:
    """The largest set of settings of an optimizer with the same seeds, and these seeds."""
    largest: tuple[list[Entry], set[Seed]] = [], set()
    for seeds in {frozenset(entry.runs): None for entry in entries}:
        shared = [entry for entry in entries if seeds <= entry.runs.keys()]
        if len(shared) > 1 and len(shared) * len(seeds) > len(largest[0]) * len(largest[1]):
            largest = shared, {*seeds}
    apart = [entry for entry in entries if entry.default and entry not in largest[0]]
    return ([], set()) if any(len(entry.runs) >= len(largest[1]) for entry in apart) else largest


def _best_of(searched: Sequence[Entry], seeds: Collection[Seed]) -> Entry:
    """The best by the median over the seeds on the selection split; without any median, the one that diverged least."""
    runs = [[entry.runs[seed] for seed in seeds] for entry in searched]
    above = above_infimum([run for of_setting in runs for run in of_setting])
    mode, metric = searched[0].problem.mode, searched[0].problem.metric
    scores = [score_of(of_setting, above, mode) for of_setting in runs]
    best = best_index(scores, mode, equal_below(scores, metric))
    entry = min(searched, key=lambda entry: entry.diverged) if best is None else searched[best]
    entry.best_of = len(searched)
    return entry


def _refuse_mixed(entries: Sequence[Entry], shipped: Collection[str]) -> None:
    for problem, here in _by_problem(entries).items():
        groups = [(what, what, here) for what in VERSIONS]
        for e in here:
            names = {what: e.options.get(REST) if what == REST else e.opt for what in OWN_VERSIONS}
            groups += [(what, f"optimizer {name}", [e]) for what, name in names.items()]
        for what, of, group in groups:
            runs = [run for e in group for run in e.runs.values() if not (what in LIBRARIES and run.run_id in shipped)]
            count = Counter(str(run.versions.get(what, "unknown")) for run in runs)
            if len(count) > 1:
                listed = ", ".join(f"{version} ({counted(n, 'run')})" for version, n in sorted(count.items()))
                most = min(count, key=lambda version: (-count[version], version))
                only = f"--only versions.{what}={shlex.quote(most)} (and --task {problem.task})"
                raise UserError(
                    f"{problem.name} has runs of several versions of {of}: {listed}; choose one with {only}"
                )


def _by_problem(entries: Sequence[Entry]) -> dict[Problem, list[Entry]]:
    grouped: dict[Problem, list[Entry]] = {}
    for entry in entries:
        grouped.setdefault(entry.problem, []).append(entry)
    return grouped
