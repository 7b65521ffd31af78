"""The entries of stores that boards and charts show: by default, one of each optimizer on each problem."""

import json
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, product
from typing import Any

from bench.boards import rows
from bench.boards.rows import Entry, Problem, by_problem
from bench.config.run_config import settings_of
from bench.errors import UserError, check_known
from bench.results.group import Group, Seed
from bench.store.block import Columns
from bench.store.record import RunResult
from bench.store.reports import CheckRecord, StudyRecord
from bench.store.stores import HOW_TO_FILL, Stores
from bench.text import cell, counted
from optimizers import OPTIMIZERS
from optimizers.groups import REST
from optimizers.plugins import bare

NO_ROWS = "no optimizer has finished runs at one setting here; `bench list runs` shows all runs"
_MORE = "--settings all shows all"

Tables = Callable[[str, str], Mapping[str, Columns]]
"""A run's tables by its id, with the columns that match a regular expression (`Contents.tables`)."""


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

    @property
    def problems(self) -> dict[Problem, list[Entry]]:
        """The entries by problem."""
        return by_problem(self.entries)

    @property
    def ours(self) -> frozenset[str]:
        """The optimizers that the suite lacks, else those with runs beside the shipped ones; none if that is all."""
        opts = {entry.opt for entry in self.chosen if not entry.community}
        ours = opts - {*OPTIMIZERS.built_in} or {entry.opt for entry in self.chosen if entry.shipped < len(entry.runs)}
        return frozenset(ours if ours != opts else ())

    def excluded(self, problem: Problem) -> dict[str, str]:
        """Optimizers without a row on a problem, since their study has no winner, and why."""
        ranked = {entry.opt for entry in self.chosen if entry.problem.key == problem.key}
        none = [(bare(study.opt), why, self.trial_runs(study)) for study, why in self.unranked if study.winner is None]
        none = [(opt, why) for opt, why, runs in none if runs and rows.problem_key(runs[0]) == problem.key]
        return {opt: why for opt, why in none if opt not in ranked}

    def reference_of(self, problem: Problem) -> Entry | None:
        """The entry with which others are compared: the only one of the first kind that it has, else None."""
        best = self._references(problem)
        return best[0] if len(best) == 1 else None

    def _references(self, problem: Problem) -> list[Entry]:
        name = self.reference or problem.reference
        named = [e for e in self.chosen if e.problem == problem and name in (e.opt, e.name)]
        return [entry for entry in named if entry.kind == min((e.kind for e in named), key=rows.KINDS.index)]

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
    """The entries of some stores; UserError if no run remains, a name is unknown, or versions are mixed.

    Only those of `tasks` and `opts` are shown; the reference is read even if it is not shown. `only` has settings in
    dotted form that runs must have, as words; `versions.torch` and `engine` too. Of the `settings` of each optimizer on
    each problem, `best` selects the tuned ones, else the defaults, else those by hand if there is only one; `all`
    selects all. `mixed_versions` allows runs of several versions; `reference` and `target` are as in `Collected`.
    """
    if not stores.runs:
        broken = "; ".join(map(str, stores.damaged[:3]))
        what = f"no readable runs in {stores.shown} ({broken})" if broken else f"no runs in {stores.shown}"
        raise UserError(f"there are {what}; {HOW_TO_FILL}")
    by_id = {run.run_id: run for run in stores.runs}
    tasks, opts = (None if names is None else list(map(bare, names)) for names in (tasks, opts))
    stores.selected(tasks, opts)  # raises if a name is unknown
    tasks = tasks and sorted({bare(run.config["task"]) for run in stores.selected(tasks, None)})
    read = opts and {*opts, *({reference, reference.partition(" (")[0]} if reference else rows.REFERENCES)}

    def is_of(subject: StudyRecord | RunResult, opts: Collection[str] | None) -> bool:
        names = subject.config if isinstance(subject, RunResult) else vars(subject)
        return (tasks is None or bare(names["task"]) in tasks) and (opts is None or bare(names["opt"]) in opts)

    runs = [run for run in stores.runs if is_of(run, read)]
    runs = _filtered(runs, only, stores) if only else runs
    if not any(is_of(run, opts) for run in runs):
        raise UserError(f"no run in {stores.shown} matches --task, --opt and --only")
    entries = rows.entries_of(runs, by_id, stores.studies)
    for entry in entries:
        entry.shipped = sum(run.run_id in stores.shipped for run in entry.runs.values())
        submissions = {stores.community.get(run.run_id, "") for run in entry.runs.values()}
        entry.community = ", ".join(sorted(submissions - {""}))
    used = {run.run_id for entry in entries for run in entry.runs.values()}
    tuned = {(bare(study.task), bare(study.opt)) for study in stores.studies}
    left = [run for run in runs if (bare(run.config["task"]), bare(run.config["opt"])) not in tuned]
    cut = Counter(study for run in left if run.run_id not in used and (study := run.planned_study) is not None)
    notes = [f"the study {name} has not ended: {counted(n, 'run')} left out" for name, n in cut.items()]
    chosen = [entry for entry in entries if entry.runs] if settings == "all" else _chosen(entries, notes)
    if not mixed_versions:
        _refuse_mixed(chosen, stores.shipped)
    studies = [] if only else [study for study in stores.studies if is_of(study, opts)]  # whose runs it may exclude
    unranked = [(study, why) for study in studies if (why := _why_no_row(study, entries, by_id))]
    notes += [f"{s.task}: {s.opt} has no row from its study {s.name}: {why}" for s, why in unranked]
    for group in by_problem(chosen).values():
        count = Counter(entry.opt for entry in group)
        for entry in group:
            if count[entry.opt] > 1:
                entry.name = f"{entry.opt} ({rows.differing(entry, group)})"
            entry.name += f" (community: {entry.community})" * bool(entry.community)
            entry.conformance = _conformance(entry, stores.checks)
    shown = [entry for entry in chosen if opts is None or entry.opt in opts]
    return Collected(shown, chosen, by_id, stores.tables, reference, target, unranked, notes)


def _conformance(entry: Entry, checks: Iterable[CheckRecord]) -> str | None:
    """Failures of conformance that change results or block a set-up, or `pass`; None if a method is unchecked."""
    failed, rest = set[str](), entry.options.get(REST)
    for kind, name, rests in (("opt", entry.opt, {None, rest}), ("rest", rest, {None})):
        about = {(run.versions.get(kind), run.versions.get(f"{kind}_package")) for run in entry.runs.values()}
        reports = [c for c in checks if bare(c.name) == name and {(c.version, c.package)} == about and c.rest in rests]
        if name is not None and not reports:
            return None
        failed |= {check for report in reports for check in report.serious}
    return f"fails {', '.join(sorted(failed))}" if failed else "pass"


def _filtered(runs: Iterable[RunResult], only: Mapping[str, str], stores: Stores) -> list[RunResult]:
    """The runs with these settings; versions of libraries do not filter reference results."""
    free = {f"versions.{name}" for name in rows.LIBRARIES}
    facts = {run.run_id: settings_of(run.config) | {"engine": run.engine} for run in stores.runs}
    for run in stores.runs:
        facts[run.run_id] |= {"machine": run.machine} | {f"versions.{name}": v for name, v in run.versions.items()}
    check_known("setting of --only", only, sorted({name for values in facts.values() for name in values}))

    def has(run: RunResult, name: str, word: str) -> bool:
        values, is_free = facts[run.run_id], name in free and run.run_id in stores.shipped
        return is_free or (name in values and _comparable(values[name]) == _comparable(word))

    return [run for run in runs if all(has(run, name, word) for name, word in only.items())]


def _comparable(value: Any) -> Any:
    """A setting, or the word for it, in one form: 1e3 is 1000, and 0.9,0.99 a list of two numbers."""
    text = str(value).lower().strip("[]() ")
    try:
        return json.loads(f"[{text}]")
    except ValueError:
        return text


def _why_no_row(study: StudyRecord, entries: Sequence[Entry], by_id: Mapping[str, RunResult]) -> str | None:
    """The reason why a study has no row; None if it has one."""
    if study.winner is None:
        return f"no trial of {len(study.trials)} has a score"
    if study.winner not in by_id:
        return "the runs of its trials are not in these stores, so its winner is unknown"
    has_row = any(study in entry.studies and entry.runs for entry in entries)
    return None if has_row else "no run of its winner on fresh seeds has finished"


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
        kind = min((entry.kind for entry in finished), key=rows.KINDS.index)
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
    for problem, ranked in by_problem(entries).items():
        groups = [(what, what, ranked) for what in rows.VERSIONS]
        for entry, what in product(ranked, rows.ENTRY_VERSIONS):
            groups.append((what, f"optimizer {entry.options.get(REST) if what == REST else entry.opt}", [entry]))
        for what, subject, group in groups:
            free, runs = shipped if what in rows.LIBRARIES else (), [run for e in group for run in e.runs.values()]
            count = Counter(str(run.versions.get(what, "unknown")) for run in runs if run.run_id not in free)
            if len(count) > 1:
                several = ", ".join(f"{version} ({counted(n, 'run')})" for version, n in sorted(count.items()))
                only = f"--only versions.{what}={shlex.quote(count.most_common(1)[0][0])}"
                raise UserError(
                    f"{problem.name} has runs of several versions of {subject}: {several}; choose one with {only}"
                    f" (and --task {problem.task})"
                )
