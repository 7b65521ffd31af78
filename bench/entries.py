"""From runs to what boards compare: entries, an optimizer with its settings on a problem, with a run for each seed.

A problem is a task with everything that must be equal for a comparison: its options, budget, batch, precision, part of the
data. Nothing here depends on who else entered, but which entries there are.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from bench.config import TrainerOptions, settings_of
from bench.errors import UserError, unknown
from bench.options import optimizer_options, task_options
from bench.selection import CONVERGED, End, Mode
from bench.store import FINISHED, RunResult, plain
from bench.stores import HOW_TO_FILL, Stores, StudyRecord
from optimizers import OPTIMIZERS
from tasks import TASKS, TaskSpec

KINDS = ("tuned", "default", "by hand")
_SAME_RESULT = ("micro_batch_size", "checkpoint_seconds", "max_seconds", "devices", "num_nodes", "strategy")
"""Trainer options that do not change what is compared."""
_VERSIONS = ("task", "torch", "lightning")
"""Versions that must be equal within a problem; within an entry also that of the optimizer."""

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
        runs: those that ended, by seed.
        others: how many did not end, by status.
        study: the study that it won, or None.
        others_tuned: further studies of this optimizer on this problem, with fewer trials.
        tuned_elsewhere: whether the study that found the settings is not in these stores; it may have had another budget.
        twice: seeds of which there are several runs; one of them is taken.
    """

    problem: Problem
    opt: str
    options: dict[str, Any]
    kind: str = "by hand"
    runs: dict[Seed, RunResult] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)
    study: StudyRecord | None = None
    others_tuned: list[str] = field(default_factory=list)
    twice: int = 0
    tuned_elsewhere: bool = False
    name: str = ""

    @cached_property
    def any_run(self) -> RunResult:
        """One of its runs."""
        return next(iter(self.runs.values()))

    def value(self, seed: Seed, above: bool, best: bool = False) -> End:
        """What a run is compared by; None for one that diverged.

        Losses below `CONVERGED` count as equal to it.

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
        return max(value, CONVERGED) if run.metric == "loss" and value is not None and value >= 0 else value

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
        names = (*_VERSIONS, "opt")
        return {n: sorted({str(run.versions.get(n, "unknown")) for run in self.runs.values()}) for n in names}

    @cached_property
    def machines(self) -> list[str]:
        """Types of machine: only within one can seconds be compared."""
        return sorted({machine(run) for run in self.runs.values()})


def machine(run: RunResult) -> str:
    """The type of machine and engine that a run was trained with, as far as seconds depend on it."""
    env, trainer = run.environment, run.config.get("trainer", {})
    where = env.get("gpu") or f"{env.get('cpu')}, {env.get('threads')} threads"
    devices = trainer.get("devices", 1) * trainer.get("num_nodes", 1)
    return f"{where}, {run.engine}" + f", {devices} devices" * (devices > 1)


# -- grouping ---------------------------------------------------------------------------------------------------------


@dataclass
class Collected:
    """What was found.

    Attributes:
        entries: those that are shown, by problem, then optimizer, then settings.
        all: all entries.
        by_id: all runs by id, those of trials too.
        notes: what a reader must know of what was left out.
    """

    entries: list[Entry]
    all: list[Entry]
    by_id: dict[str, RunResult]
    notes: list[str] = field(default_factory=list)

    @property
    def problems(self) -> dict[Problem, list[Entry]]:
        """The entries by problem."""
        found: dict[Problem, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.problem, []).append(entry)
        return found

    def trial_runs(self, entry: Entry) -> list[RunResult]:
        """The runs of the trials of the entry's study that are stored; none if it was not tuned."""
        ids = sorted(entry.study.run_ids) if entry.study else []
        return [self.by_id[run_id] for run_id in ids if run_id in self.by_id]

    def default_of(self, entry: Entry) -> Entry | None:
        """The entry with the default settings of the same optimizer on the same problem, if it has runs."""
        return next(
            (
                e
                for e in self.all
                if e.kind == "default" and (e.problem, e.opt) == (entry.problem, entry.opt) and e.runs
            ),
            None,
        )


def collect(
    stores: Stores,
    *,
    tasks: Sequence[str] | None = None,
    opts: Sequence[str] | None = None,
    only: Mapping[str, str] | None = None,
    settings: str = "best",
    mixed_versions: bool = False,
) -> Collected:
    """The entries of some stores.

    Args:
        stores: where runs and studies lie.
        tasks: names to keep; None for all.
        opts: likewise.
        only: settings, in dotted form, that runs must have, as words; `versions.torch` and `engine` too.
        settings: of each optimizer on each problem: `best` takes the tuned settings, else the defaults, else those set by hand
            if there is one such; `tuned`, `default` or `all` takes what the name says.
        mixed_versions: let runs of several versions stand beside each other.

    Raises:
        UserError: nothing is left, a name is unknown, or versions are mixed.
    """
    runs = stores.runs
    if not runs:
        raise UserError(f"there are no runs in {stores.shown}; {HOW_TO_FILL}")
    for kind, wanted, name in (("task", tasks, "task"), ("optimizer", opts, "opt")):
        there = sorted({str(run.config.get(name)) for run in runs})
        for each in wanted or ():
            if each not in there:
                raise unknown(f"{kind} in {stores.shown}", each, there)
    runs = [
        run
        for run in runs
        if (tasks is None or run.config.get("task") in tasks)
        and (opts is None or run.config.get("opt") in opts)
        and _has(run, only or {})
    ]
    if not runs:
        raise UserError(f"no run in {stores.shown} has {', '.join(f'{k}={v}' for k, v in (only or {}).items())}")
    notes: list[str] = []
    missing = sorted({str(run.config["task"]) for run in runs} - TASKS.keys())
    if missing:
        notes.append(
            f"left out, since these tasks are not known here (is their plug-in installed?): {', '.join(missing)}"
        )
    entries = _entries([run for run in runs if run.config["task"] in TASKS], stores.studies)
    chosen = _chosen(entries, settings, notes)
    if not mixed_versions:
        _refuse_mixed(chosen)
    found = Collected(chosen, entries, {run.run_id: run for run in runs}, notes)
    for own in found.problems.values():
        for entry in own:
            several = settings == "all" and sum(other.opt == entry.opt for other in own) > 1
            entry.name = f"{entry.opt} ({_differing(entry, own)})" if several else entry.opt
    return found


def _has(run: RunResult, only: Mapping[str, str]) -> bool:
    if not only:
        return True
    own = facts(run)
    return all(name in own and _word(own[name]) == value for name, value in only.items())


def facts(run: RunResult) -> dict[str, Any]:
    """Everything that a run can be chosen by, in dotted form."""
    versions = {f"versions.{name}": value for name, value in run.versions.items()}
    return {**settings_of(run.config), **versions, "engine": run.engine, "status": run.status, "machine": machine(run)}


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _entries(runs: Sequence[RunResult], studies: Sequence[StudyRecord]) -> list[Entry]:
    """All entries; runs of a study's trials, and others on its tuning seeds with the winner's settings, are in none."""
    by_id = {run.run_id: run for run in runs}
    trials = {run_id for study in studies for run_id in study.run_ids}
    winners: dict[tuple[str, str, str], list[StudyRecord]] = {}
    for study in studies:
        winner = by_id.get(study.winner or "")
        if winner is not None:
            winners.setdefault(_place(winner), []).append(study)
    problems: dict[str, Problem] = {}
    entries: dict[tuple[str, str, str], Entry] = {}
    for run in runs:
        place = key, opt, options = _place(run)
        won = winners.get(place, [])
        tuning_seed = any(run.config["seed"] in study.seeds for study in won)
        if run.run_id in trials or tuning_seed:
            continue
        if place not in entries:
            problem = problems.setdefault(key, _problem(key, run))
            entries[place] = Entry(problem, opt, run.config["opt_options"], _kind(opt, options, bool(won)))
            won = sorted(won, key=lambda study: (-len(study.trials), study.name))
            entries[place].study = won[0] if won else None
        _add(entries[place], run)
        if run.tuned_by and entries[place].kind == "by hand":
            entries[place].kind, entries[place].tuned_elsewhere = "tuned", True
    return [entry for _, entry in sorted(entries.items(), key=lambda item: item[0])]


def _add(entry: Entry, run: RunResult) -> None:
    if run.status not in FINISHED:
        entry.others[run.status] += 1
        return
    seed = run.config["seed"], run.config["data_seed"]
    there = entry.runs.get(seed)
    entry.twice += there is not None
    # Of two, the newest versions; else the first by name, so that the order of files decides nothing.
    if there is None or (_age(run), there.run_id) > (_age(there), run.run_id):
        entry.runs[seed] = run


def _age(run: RunResult) -> list[Any]:
    return [int(run.versions.get("task") or 0), int(run.versions.get("opt") or 0)]


def _text(value: Any) -> str:
    return json.dumps(plain(value), sort_keys=True, default=str)


def _place(run: RunResult) -> tuple[str, str, str]:
    """Problem, optimizer and settings, as keys."""
    config = run.config
    trainer = {k: v for k, v in config["trainer"].items() if k not in _SAME_RESULT}
    key = _text([config["task"], config["task_options"], trainer, config["precision"], run.part])
    return key, config["opt"], _text(config["opt_options"])


def _kind(opt: str, options: str, won: bool) -> str:
    if won:
        return "tuned"
    if opt not in OPTIMIZERS:
        return "by hand"
    defaults = {option.name: option.default for option in optimizer_options(OPTIMIZERS[opt]).values()}
    return "default" if _text(defaults) == options else "by hand"


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
    return Problem(key, ", ".join([config["task"], *words]), config["task"], run.part)


def _chosen(entries: Sequence[Entry], settings: str, notes: list[str]) -> list[Entry]:
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.problem.key, entry.opt), []).append(entry)
    chosen: list[Entry] = []
    for group in groups.values():
        own = [entry for entry in group if entry.runs]
        if settings == "all":
            chosen += own
            continue
        kinds = KINDS if settings == "best" else (settings,)
        kind = next((kind for kind in kinds if any(entry.kind == kind for entry in own)), None)
        best = [entry for entry in own if entry.kind == kind]
        if len(best) > 1 and kind == "tuned":
            best.sort(key=lambda entry: entry.study.order() if entry.study else (0, ""), reverse=True)
            best[0].others_tuned = [entry.study.name for entry in best[1:] if entry.study]
            best = best[:1]
        if len(best) == 1:
            chosen += best
        elif best:
            notes.append(
                f"{best[0].problem.name}: {best[0].opt} is not shown, since it has {len(best)} settings by hand and none of them is"
                f" chosen: tune it (bench tune --task {best[0].problem.task} --opt {best[0].opt}), or show all with --settings all"
            )
    return chosen


def _refuse_mixed(entries: Sequence[Entry]) -> None:
    for (name, _), own in _by_problem(entries).items():
        for what in (*_VERSIONS, "opt"):
            for group in [[e] for e in own] if what == "opt" else [own]:
                count = Counter(str(run.versions.get(what, "unknown")) for e in group for run in e.runs.values())
                if len(count) > 1:
                    of = f"optimizer {group[0].opt}" if what == "opt" else what
                    found = ", ".join(f"{version} ({n} runs)" for version, n in sorted(count.items()))
                    raise UserError(
                        f"{name} has runs of several versions of {of}: {found}; choose one with --only versions.{what}="
                        f"{max(count)}, or compare them all the same with --mixed-versions"
                    )


def _by_problem(entries: Sequence[Entry]) -> dict[tuple[str, str], list[Entry]]:
    found: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        found.setdefault((entry.problem.name, entry.problem.key), []).append(entry)
    return found


def _differing(entry: Entry, own: Sequence[Entry]) -> str:
    """The hyperparameters that tell an entry from others of its optimizer, in words."""
    others = [other.options for other in own if other.opt == entry.opt]
    names = [name for name in entry.options if len({_text(other.get(name)) for other in others}) > 1]
    return ", ".join(f"{name} {_word(entry.options[name])}" for name in names)
