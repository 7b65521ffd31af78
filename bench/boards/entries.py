"""From runs to what boards compare: entries, an optimizer with its settings on a problem, with a run for each seed.

A problem is a task with everything that must be equal for a comparison: its options, budget, batch, precision, part of the
data. Nothing here depends on who else entered, but which entries there are.
"""

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from bench.config import TrainerOptions, settings_of
from bench.errors import UserError, unknown
from bench.options import optimizer_options, task_options
from bench.storage.store import FINISHED, RunResult, plain
from bench.storage.stores import HOW_TO_FILL, Stores, StudyRecord
from bench.tuning.selection import CONVERGED, End, Mode
from optimizers import OPTIMIZERS
from optimizers.plugins import PluginError, bare
from tasks import TASKS, TaskSpec

KINDS = ("tuned", "default", "by hand")
_SAME_RESULT = ("micro_batch_size", "checkpoint_seconds", "max_seconds", "devices", "num_nodes", "strategy")
"""Trainer options that do not change what is compared."""
_VERSIONS = ("task", "task_package", "torch", "lightning")
"""Versions that must be equal within a problem."""
_OWN_VERSIONS = ("opt", "opt_package")
"""Versions that must be equal within an entry."""

_CONFIG = {
    "task": str, "opt": str, "precision": str, "seed": int, "data_seed": int,
    "task_options": dict, "opt_options": dict, "trainer": dict,
}  # fmt: skip
"""What a configuration must have to be compared."""
_NUMBERS = ("final", "best", "best_step", "steps_to_target", "seconds_to_target", "cap_share")
_COUNTS = ("devices", "num_nodes")
HUGE = 1e100
"""Greater values have no squares that are numbers, so they count as none. Ours."""

Seed = tuple[int, int]
"""Of initialisation and of the order of the samples: runs that share both are paired."""


@dataclass(frozen=True)
class Problem:
    """What entries are compared on.

    Attributes:
        key: tells problems apart.
        name: the task's name, and what differs from its defaults.
        task: the task's name.
        part: what part of the data was used, or None for all.
    """

    key: str
    name: str
    task: str
    part: str | None

    @property
    def spec(self) -> TaskSpec:
        """The task's entry in the registry."""
        return TASKS[self.task]

    @property
    def mode(self) -> Mode:
        """Whether the metric is better when smaller or greater."""
        return self.spec.mode


@dataclass
class Entry:
    """An optimizer with its settings on a problem.

    Attributes:
        problem: what was trained.
        opt: the optimizer's name.
        options: its hyperparameters.
        kind: `tuned` (the winner of a study, on seeds that the study had not), `default` or `by hand`.
        default: whether these are the default settings, which may have won a study too.
        source: digest of its source, where that may change under one name and version; else empty.
        runs: those that ended, by seed.
        others: how many did not end, by status.
        studies: those that it won; the one with most trials first.
        others_tuned: further studies of this optimizer on this problem, with fewer trials.
        tuned_elsewhere: whether the study that found the settings is not in these stores; it may have had another budget.
        twice: seeds of which there are several runs; one of them is taken.
        conformance: what `bench check` said of this version of the optimizer: `pass`, or the names of checks that failed;
            None if it was not asked.
    """

    problem: Problem
    opt: str
    options: dict[str, Any]
    kind: str = "by hand"
    default: bool = False
    source: str = ""
    runs: dict[Seed, RunResult] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)
    studies: list[StudyRecord] = field(default_factory=list)
    others_tuned: list[str] = field(default_factory=list)
    twice: int = 0
    tuned_elsewhere: bool = False
    name: str = ""
    conformance: str | None = None

    @property
    def study(self) -> StudyRecord | None:
        """The study that it won, or None."""
        return self.studies[0] if self.studies else None

    def value(self, seed: Seed, above: bool, best: bool = False) -> End:
        """What a run is compared by; None for one that diverged, or has no such value.

        Losses below `CONVERGED` count as equal to it, and values beyond `HUGE` as none.

        Args:
            seed: one that the entry has.
            above: take a loss above its infimum.
            best: at the best step on the selection split instead of the last.
        """
        run = self.runs[seed]
        if run.status == "diverged":
            return None
        value = (
            run.metrics.get("best" if best else "final", {}).get("excess") if above else run.best if best else run.final
        )
        if value is None or not abs(value) <= HUGE:
            return None
        return max(value, CONVERGED) if run.metric == "loss" and value >= 0 else value

    def values(self, seeds: Iterable[Seed], above: bool, best: bool = False) -> list[End]:
        """See `value`; by seed."""
        return [self.value(seed, above, best) for seed in seeds]

    @cached_property
    def statuses(self) -> dict[str, int]:
        """How many runs there are, by status."""
        return dict(sorted((Counter(run.status for run in self.runs.values()) + self.others).items()))

    @cached_property
    def diverged(self) -> int:
        """Runs that diverged."""
        return sum(run.status == "diverged" for run in self.runs.values())

    @cached_property
    def versions(self) -> dict[str, list[str]]:
        """Versions that matter for the result, by what they are of."""
        names = [n for n in (*_VERSIONS, *_OWN_VERSIONS) if any(n in run.versions for run in self.runs.values())]
        return {n: sorted({str(run.versions.get(n, "unknown")) for run in self.runs.values()}) for n in names}

    @cached_property
    def machines(self) -> list[str]:
        """Types of machine: only within one can seconds be compared."""
        return sorted({run.machine for run in self.runs.values()})


# -- grouping ---------------------------------------------------------------------------------------------------------


@dataclass
class Collected:
    """What was found.

    Attributes:
        entries: those that are shown, by problem, then optimizer, then settings.
        chosen: likewise, with the reference, which need not be shown.
        all: all entries.
        by_id: all runs by id, those of trials too.
        notes: what a reader must know of what was left out.
        damaged: runs that cannot be read, and why; boards that read tables may find more.
    """

    entries: list[Entry]
    chosen: list[Entry]
    all: list[Entry]
    by_id: dict[str, RunResult]
    notes: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @property
    def problems(self) -> dict[Problem, list[Entry]]:
        """The entries by problem."""
        return _by_problem(self.entries)

    def trial_runs(self, entry: Entry) -> list[RunResult]:
        """The runs of the trials of the entry's study that are stored; none if it was not tuned."""
        ids = sorted(entry.study.run_ids) if entry.study else []
        return [self.by_id[run_id] for run_id in ids if run_id in self.by_id]

    def default_of(self, entry: Entry) -> Entry | None:
        """The entry with the default settings of the same optimizer on the same problem, if it has runs."""
        own = [e for e in self.all if (e.problem, e.opt, e.source) == (entry.problem, entry.opt, entry.source)]
        return next((e for e in own if e.default and e.runs), None)


def collect(
    stores: Stores,
    *,
    tasks: Sequence[str] | None = None,
    opts: Sequence[str] | None = None,
    only: Mapping[str, str] | None = None,
    settings: str = "best",
    mixed_versions: bool = False,
    reference: str = "adam",
) -> Collected:
    """The entries of some stores.

    Args:
        stores: where runs and studies lie.
        tasks: names to keep; None for all.
        opts: likewise; the reference is read too, but not shown.
        only: settings, in dotted form, that runs must have, as words; `versions.torch` and `engine` too.
        settings: of each optimizer on each problem: `best` takes the tuned settings, else the defaults, else those set by hand
            if there is one such; `tuned`, `default` or `all` takes what the name says.
        mixed_versions: let runs of several versions stand beside each other.
        reference: optimizer that the others are compared with.

    Raises:
        UserError: nothing is left, a name is unknown, or versions are mixed.
    """
    specs = _tasks(stores.runs, tasks or ())
    faults = {run.run_id: fault for run in stores.runs if (fault := _fault(run, specs))}
    runs = [run for run in stores.runs if run.run_id not in faults]
    damaged = [
        f"run {run_id} in {stores.place(run_id)} is no run as it is written today: {fault}"
        for run_id, fault in faults.items()
    ]
    if not runs:
        broken = [*map(str, stores.unreadable), *damaged]
        what = (
            f"no runs that can be read in {stores.shown} ({'; '.join(broken[:3])})"
            if broken
            else f"no runs in {stores.shown}"
        )
        raise UserError(f"there are {what}; {HOW_TO_FILL}")
    by_id = {run.run_id: run for run in runs}
    opts = None if opts is None else list(map(bare, opts))
    for kind, wanted, name in (("task", tasks, "task"), ("optimizer", opts, "opt")):
        there = sorted({bare(run.config[name]) for run in runs})
        for each in wanted or ():
            if bare(each) not in there:
                raise unknown(f"{kind} in {stores.shown}", each, there)
    runs = _filtered(runs, tasks, None if opts is None else {*opts, reference}, only or {})
    if not any(opts is None or bare(run.config["opt"]) in opts for run in runs):
        raise UserError(f"no run in {stores.shown} has all of what --task, --opt and --only ask for")
    notes: list[str] = []
    missing = sorted({run.config["task"] for run in runs} - specs.keys())
    if missing:
        notes.append(
            f"left out, since these tasks are not known here (is their plug-in installed?): {', '.join(missing)}"
        )
        if all(run.config["task"] in missing for run in runs):
            raise UserError(f"no run in {stores.shown} can be shown; {notes[0]}")
    entries = _entries([run for run in runs if run.config["task"] in specs], by_id, stores.studies)
    chosen = _chosen(entries, settings, notes)
    shown = [entry for entry in chosen if opts is None or entry.opt in opts]
    if not mixed_versions:
        _refuse_mixed(chosen)
    if not only:  # which may leave out the runs of a study
        mine = [s for s in stores.studies if (not tasks or s.task in tasks) and (not opts or s.opt in opts)]
        notes += [note for study in mine if (note := _study_note(study, entries, by_id))]
    found = Collected(shown, chosen, entries, by_id, notes, damaged)
    for own in _by_problem(chosen).values():
        for entry in own:
            several = sum(other.opt == entry.opt for other in own) > 1
            entry.name = f"{entry.opt} ({_differing(entry, own)})" if several else entry.opt
            entry.conformance = _conformance(entry, stores.checks)
    return found


def _conformance(entry: Entry, checks: Iterable[Mapping[str, Any]]) -> str | None:
    """What reports say of the version of the optimizer that all runs of an entry were trained with."""
    about = {(run.versions.get("opt"), run.versions.get("opt_package")) for run in entry.runs.values()}
    mine = [c for c in checks if bare(c["name"]) == entry.opt and {(c.get("version"), c.get("package"))} == about]
    failed = sorted({name for report in mine for name in report["failed"]})
    return f"fails {', '.join(failed)}" if failed else "pass" if mine else None


def _tasks(runs: Iterable[RunResult], asked: Sequence[str]) -> dict[str, TaskSpec]:
    """The tasks of these runs that are known here.

    A task that is named by its module or file is imported only if it is asked for: what a store names is not to be carried out.
    """
    found: dict[str, TaskSpec] = {}
    there = [run.config.get("task") for run in runs if isinstance(run.config, dict)]
    for name in {*TASKS, *asked}:
        if name in there:
            with suppress(KeyError, PluginError):
                found[name] = TASKS[name]
    return found


def _fault(run: RunResult, specs: Mapping[str, TaskSpec]) -> str | None:
    """What keeps a record from being compared: older or foreign ones may lack something."""
    config = run.config if isinstance(run.config, dict) else {}
    wrong = [f"config.{name}" for name, kind in _CONFIG.items() if not isinstance(config.get(name), kind)]
    for name, default in vars(RunResult("", {})).items():
        kinds: Any = type(default)
        if name in _NUMBERS or isinstance(default, int | float):
            kinds = int | float
        elif default is None:
            kinds = str
        if not (isinstance(value := getattr(run, name), kinds) or (default is None and value is None)):
            wrong.append(name)
    if not wrong and not all(isinstance(each, dict) for each in (*run.metrics.values(), *run.validations)):
        wrong.append("metrics or validations")
    wrong += (
        [f"versions.{k}" for k, v in run.versions.items() if not isinstance(v, str | int | float | None)]
        if not wrong
        else []
    )
    if not wrong:
        trainer = config["trainer"]
        wrong += [f"config.trainer.{k}" for k in _COUNTS if not isinstance(trainer.get(k, 1), int)]
        numbers = {**vars(run), **{f"config.trainer.{k}": v for k, v in trainer.items()}}
        wrong += [k for k, v in numbers.items() if isinstance(v, int) and abs(v) >= 2**63]
    if wrong:
        return f"{', '.join(wrong)} missing or of another kind"
    spec = specs.get(config["task"])
    if spec is not None and run.final is not None and run.metric != spec.metric:
        return f"it has {run.metric or 'no metric'}, and the task is compared by {spec.metric}"
    return None


def _filtered(
    runs: Sequence[RunResult], tasks: Sequence[str] | None, opts: Iterable[str] | None, only: Mapping[str, str]
) -> list[RunResult]:
    if "status" in only:
        raise UserError("--only status: runs that diverged or were stopped are never left out of a comparison")
    known = {name for run in runs for name in facts(run)} if only else set()
    for name in only:
        if name not in known:
            raise unknown("setting of --only", name, sorted(known - {"status"}))
    return [
        run
        for run in runs
        if (tasks is None or run.config["task"] in tasks)
        and (opts is None or bare(run.config["opt"]) in opts)
        and _has(run, only)
    ]


def _has(run: RunResult, only: Mapping[str, str]) -> bool:
    own = facts(run) if only else {}
    return all(name in own and _is(own[name], word) for name, word in only.items())


def _is(value: Any, word: str) -> bool:
    """Whether a word names a value: 1e3 is 1000."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(word) == value or word == _word(value)
        except ValueError:
            return False
    return str(value).lower() == word.lower()


def _study_note(study: StudyRecord, entries: Sequence[Entry], by_id: Mapping[str, RunResult]) -> str | None:
    """Why a study gives no row, if it gives none."""
    if study.winner is None:
        why = f"none of its {len(study.trials)} trials has a score"
    elif study.winner not in by_id:
        why = "the runs of its trials are not in these stores, so which settings it found is not known here"
    elif not any(study in entry.studies and entry.runs for entry in entries):
        why = (
            f"no run of its winner on other seeds than those of the tuning has ended (bench tune --resume {study.name})"
        )
    else:
        return None
    return f"{study.task}: {study.opt} has no row from its study {study.name}: {why}"


def facts(run: RunResult) -> dict[str, Any]:
    """Everything that a run can be chosen by, in dotted form."""
    versions = {f"versions.{name}": value for name, value in run.versions.items()}
    return {**settings_of(run.config), **versions, "engine": run.engine, "status": run.status, "machine": run.machine}


def _word(value: Any) -> str:
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def _entries(runs: Sequence[RunResult], by_id: Mapping[str, RunResult], studies: Sequence[StudyRecord]) -> list[Entry]:
    """All entries; runs of a study's trials, and others on its tuning seeds with the winner's settings, are in none."""
    trials = {run_id for study in studies for run_id in study.run_ids}
    winners: dict[Place, list[StudyRecord]] = {}
    for study in studies:
        winner = by_id.get(study.winner or "")
        if winner is not None:
            winners.setdefault(_place(winner), []).append(study)
    problems: dict[str, Problem] = {}
    entries: dict[Place, Entry] = {}
    for run in runs:
        place = key, opt, source, options = _place(run)
        won = winners.get(place, [])
        tuning_seed = any(run.config["seed"] in study.seeds for study in won)
        if run.run_id in trials or tuning_seed:
            continue
        if place not in entries:
            problem = problems.setdefault(key, _problem(key, run))
            default = _is_default(opt, options)
            kind = "tuned" if won else "default" if default else "by hand"
            entries[place] = Entry(problem, opt, run.config["opt_options"], kind, default, source)
            entries[place].studies = sorted(won, key=lambda study: (-len(study.trials), study.name))
        _add(entries[place], run)
        if run.tuned_by and entries[place].kind == "by hand":
            entries[place].kind, entries[place].tuned_elsewhere = "tuned", True
    return [entry for _, entry in sorted(entries.items(), key=lambda item: (item[1].problem.name, *item[0]))]


def _add(entry: Entry, run: RunResult) -> None:
    if run.status not in FINISHED:
        entry.others[run.status] += 1
        return
    seed = run.config["seed"], run.config["data_seed"]
    there = entry.runs.get(seed)
    entry.twice += there is not None
    # Of two, one with its whole budget, then the newest versions; else the first by name: the order of files decides nothing.
    if there is None or (_standing(run), there.run_id) > (_standing(there), run.run_id):
        entry.runs[seed] = run


def _standing(run: RunResult) -> list[Any]:
    versions = [run.versions.get(name) for name in ("task", "opt")]
    return [run.status != "timeout", *(version if isinstance(version, int) else 0 for version in versions)]


def _text(value: Any) -> str:
    """As a key; 0 and 0.0 are one value."""
    return json.dumps(_numbers(plain(value)), sort_keys=True, default=str)


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


Place = tuple[str, str, str, str]
"""Problem, optimizer, its source and its settings, as keys."""


def _place(run: RunResult) -> Place:
    config = run.config
    trainer = {k: v for k, v in config["trainer"].items() if k not in _SAME_RESULT}
    key = _text([config["task"], config["task_options"], trainer, config["precision"], run.part])
    package = str(run.versions.get("opt_package", ""))
    source = package if "file" in package else ""  # a file may change, and then it is another optimizer
    return key, bare(config["opt"]), source, _text(config["opt_options"])


def _is_default(opt: str, options: str) -> bool:
    spec = OPTIMIZERS.known(opt)
    try:
        defaults = {option.name: option.default for option in optimizer_options(spec).values()} if spec else None
    except (PluginError, UserError):
        return False
    return _text(defaults) == options


def _problem(key: str, run: RunResult) -> Problem:
    config, spec = run.config, TASKS[run.config["task"]]
    defaults = {f"task.{name}": option.default for name, option in task_options(spec).items()}
    defaults |= {f"trainer.{name}": option.default for name, option in TrainerOptions.model_fields.items()}
    defaults |= {"trainer.batch_size": spec.batch_size, "trainer.measure_every": spec.measure_every}
    defaults |= {f"trainer.{name}": None for name in ("max_epochs", "max_steps")}
    defaults["precision"] = spec.precision
    own = {k: v for k, v in settings_of(config).items() if k.startswith(("task.", "trainer.")) or k == "precision"}
    shown = {
        k: v
        for k, v in own.items()
        if _text(v) != _text(defaults.get(k)) and k.removeprefix("trainer.") not in _SAME_RESULT and v is not None
    }
    words = [f"{name.rpartition('.')[2]} {_word(value)}" for name, value in shown.items()]
    words += [f"part of the data: {run.part}"] * bool(run.part)
    return Problem(key, ", ".join([config["task"], *words]), config["task"], run.part)


def _chosen(entries: Sequence[Entry], settings: str, notes: list[str]) -> list[Entry]:
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.problem.key, entry.opt, entry.source), []).append(entry)
    chosen: list[Entry] = []
    for group in groups.values():
        own = [entry for entry in group if entry.runs]
        if not own:
            counts = sum((entry.others for entry in group), Counter[str]())
            ends = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
            notes.append(f"{group[0].problem.name}: no run of {group[0].opt} has ended ({ends})")
        if settings == "all":
            chosen += own
            continue
        kind = next((kind for kind in KINDS if any(entry.kind == kind for entry in own)), None)
        if settings == "best":
            best = [entry for entry in own if entry.kind == kind]
        else:
            kind = settings
            best = [entry for entry in own if (entry.default if kind == "default" else entry.kind == kind)]
        if len(best) > 1 and kind == "tuned":
            best.sort(key=lambda entry: entry.study.order() if entry.study else (0, ""), reverse=True)
            best[0].others_tuned = [e.study.name if e.study else f"elsewhere, {_differing(e, best)}" for e in best[1:]]
            best = best[:1]
        if own and not best:
            notes.append(f"{own[0].problem.name}: {own[0].opt} is not shown, since it has no {kind} settings here")
        if len(best) == 1:
            chosen += best
        elif best:
            notes.append(
                f"{best[0].problem.name}: {best[0].opt} is not shown, since it has {len(best)} settings by hand and none of them is"
                f" chosen: tune it (bench tune --task {best[0].problem.task} --opt {best[0].opt}), or show all with --settings all"
            )
    return chosen


def _refuse_mixed(entries: Sequence[Entry]) -> None:
    for problem, own in _by_problem(entries).items():
        groups = [(what, what, own) for what in _VERSIONS]
        groups += [(what, f"optimizer {e.opt}", [e]) for e in own for what in _OWN_VERSIONS]
        for what, of, group in groups:
            count = Counter(str(run.versions.get(what, "unknown")) for e in group for run in e.runs.values())
            if len(count) > 1:
                found = ", ".join(f"{version} ({n} runs)" for version, n in sorted(count.items()))
                most = min(count, key=lambda version: (-count[version], version))
                raise UserError(
                    f"{problem.name} has runs of several versions of {of}: {found}; choose one with --only"
                    f" versions.{what}={shlex.quote(most)} (and --task {problem.task}), or compare them all the same with --mixed-versions"
                )


def _by_problem(entries: Sequence[Entry]) -> dict[Problem, list[Entry]]:
    found: dict[Problem, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.problem, []).append(entry)
    return found


def _differing(entry: Entry, own: Sequence[Entry]) -> str:
    """The hyperparameters, and the source, that tell an entry from others of its optimizer, in words."""
    others = [other.options for other in own if other.opt == entry.opt]
    names = dict.fromkeys(name for other in others for name in other)
    names = [name for name in names if len({_text(other.get(name)) for other in others}) > 1]
    words = [f"{name} {_word(entry.options.get(name))}" for name in names]
    words += [entry.source] * (len({other.source for other in own if other.opt == entry.opt}) > 1)
    return ", ".join(words)
