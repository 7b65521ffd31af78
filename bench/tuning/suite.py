"""Suites: tasks x optimizers, tuned with equal budgets and run on fresh seeds, as one resumable plan."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

from bench.config.run_config import NoBooleans
from bench.config.strict_yaml import flattened, read_yaml
from bench.config.values import refuse_too_many, suite_file, suites
from bench.errors import UserError, check_known
from bench.progress import doing
from bench.results.render import shown
from bench.results.selection import score_text
from bench.results.table import Column, Table
from bench.sweeps import sensitivity
from bench.text import counted, duration, listed, options_text, why_wrong
from bench.tuning import tuned
from bench.tuning.design import Sampler
from bench.tuning.spec import (
    StudySpec,
    default_trials,
    make_spec,
    refuse_twice,
    reporting_seeds,
    trials_of,
    tuning_seeds,
)
from bench.tuning.study import Study, StudyResult
from optimizers import OPTIMIZERS
from optimizers.plugins import slug
from tasks import TASKS

Settings = dict[str, Any]


def _by_name(entries: object, field: ValidationInfo) -> object:
    """Settings by name in dotted form, also from a list of names; anything else as it is."""
    if isinstance(entries, dict):
        where = field.field_name
        return {n: flattened(x, f"{where}.{n}") if isinstance(x, dict) else x for n, x in entries.items()}
    if not isinstance(entries, list) or not entries or not all(isinstance(name, str) for name in entries):
        return entries
    refuse_twice(str(field.field_name), entries)
    return dict.fromkeys(entries)


Named = Annotated[dict[str, Settings | None], BeforeValidator(_by_name), Field(min_length=1)]
"""Settings by name; a file may have a list of names."""


class Tune(NoBooleans):
    """How each optimizer is tuned.

    Attributes:
        trials: number of points of each design (`bench.tuning.spec.default_trials` by default).
        seeds: of a trial: how many, or which.
        sampler: of the design.
        total: minimum number of trials for each optimizer whose design can grow, such as that of a stored baseline.
    """

    model_config = ConfigDict(extra="forbid")

    trials: int | None = None
    seeds: int | list[int] = 2
    sampler: Sampler | None = None
    total: int = 0


class Suite(NoBooleans, BaseModel):
    """The content of a file in `configs/suites`.

    Attributes:
        title: one line.
        tasks: settings by name, or names.
        optimizers: settings by name, or names; a range or a list of values is searched.
        settings: of all runs.
        tune: how each optimizer is tuned.
        seeds: fresh seeds of each winner: how many, or which.
    """

    model_config = ConfigDict(extra="forbid")

    title: str
    tasks: Named
    optimizers: Named
    settings: Settings = {}
    tune: Tune = Tune()
    seeds: int | list[int] = 7

    def specs(self, places: Mapping[str, Any]) -> list[StudySpec]:
        """The studies, task by task.

        Raises:
            UserError: a setting is unknown or illegal, or budgets cannot be made equal.
        """
        specs = [
            make_spec(
                {**self.settings, **(own_task or {}), **(own_opt or {}), "task": task, "opt": opt},
                sampler=self.tune.sampler,
                seeds=tuning_seeds(_text(self.tune.seeds)),
                report_seeds=reporting_seeds(_text(self.seeds)),
                places=places,
            )
            for task, own_task in self.tasks.items()
            for opt, own_opt in self.optimizers.items()
        ]
        runs = 0
        for spec in specs:
            trials = trials_of(spec.design, self.tune.trials, len(spec.seeds))  # raises if invalid
            runs += trials * len(spec.seeds) + len(spec.report_seeds)
            if spec.design.can_grow:  # raises if equal budgets are impossible
                spec.design.wanted(trials, self.common(other for other in specs if other.task == spec.task))
        refuse_too_many(f"this suite of {len(specs)} studies", runs)
        fixed = [spec for spec in specs if not spec.design.can_grow]
        if fixed and len({(default_trials(spec.design), spec.design.can_grow) for spec in specs}) > 1:
            raise UserError(
                f"{fixed[0].opt}: a list of values cannot be extended to the number of trials of the others; give a"
                " range (LOW:HIGH), or lists of equal length to all"
            )
        return specs

    def studies(self, places: Mapping[str, Any]) -> list[list[Study]]:
        """The studies of each task, before their budgets are made equal and their winners run.

        Raises:
            UserError: as for `specs`.
        """
        tasks: dict[str, list[StudySpec]] = {}
        for spec in self.specs(places):
            tasks.setdefault(spec.task, []).append(spec)
        return [
            [
                Study(
                    spec,
                    trials_of(spec.design, self.tune.trials),
                    places,
                    total=self.common(specs) * spec.design.can_grow,
                    report=False,
                )
                for spec in specs
            ]
            for specs in tasks.values()
        ]

    def advance(self, studies: Sequence[Study]) -> None:
        """Let the studies of a task have as many trials as the largest, and run the winners, as far as runs are stored.

        A grid whose best is at an edge grows, so budgets become equal only once trials have ended.
        """
        while True:
            results = [study.result() for study in studies]
            if any(result.missing for result in results):
                return
            most = max(len(result.trials) for result in results)
            if all(len(result.trials) == most for result in results):
                for study in studies:
                    study.report = True
                return
            total = self.common((study.spec for study in studies), most)
            for study in studies:
                study.total = total

    def common(self, specs: Iterable[StudySpec], least: int = 0) -> int:
        """The smallest number of trials, at least `least`, that all optimizers of a task can have."""
        designs = [spec.design for spec in specs]
        wanted = max(least, self.tune.total, *(trials_of(design, self.tune.trials) for design in designs))
        step = math.lcm(*(design.step for design in designs))
        return -(-wanted // step) * step


def narrowed(parts: Sequence[Suite], tasks: Sequence[str] | None, opts: Sequence[str] | None) -> list[Suite]:
    """The parts of a suite, restricted to these tasks and optimizers (all if None); empty parts are dropped.

    Raises:
        UserError: no part has a task or an optimizer with that name.
    """
    for what, wanted, of in (("task", tasks, "tasks"), ("optimizer", opts, "optimizers")):
        known = list(dict.fromkeys(name for part in parts for name in getattr(part, of)))
        check_known(f"{what} of the suite", wanted or (), known)
    kept = [
        part.model_copy(update={"tasks": _only(part.tasks, tasks), "optimizers": _only(part.optimizers, opts)})
        for part in parts
    ]
    if not (left := [part for part in kept if part.tasks and part.optimizers]):
        raise UserError(f"no part of the suite has {', '.join(opts or ())} on {', '.join(tasks or ())}")
    return left


def _only(entries: Mapping[str, Settings | None], names: Sequence[str] | None) -> dict[str, Settings | None]:
    return {name: settings for name, settings in entries.items() if names is None or name in names}


def _text(seeds: int | list[int]) -> str:
    return str(seeds) if isinstance(seeds, int) else ",".join(map(str, seeds)) + ","


def load(name: str) -> list[Suite]:
    """Load a suite from a file or by the name of a shipped one, as a list of its parts.

    Raises:
        UserError: it does not exist or is invalid.
    """
    shipped, path = suites(), suite_file(name)
    content = read_yaml(path)
    if isinstance(content, dict) and "parts" in content:
        parts = content["parts"]
        known = isinstance(parts, list) and all(isinstance(part, str) and part in shipped for part in parts)
        whole = [load(part) for part in parts] if known else []
        if len(content) > 1 or not whole or any(len(part) > 1 for part in whole):
            raise UserError(f"{path}: `parts` takes names of suites without parts, such as [theory, lm]; got {parts!r}")
        return [suite for part in whole for suite in part]
    try:
        return [Suite.model_validate(content)]
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {where}: {why_wrong(first['msg'])}") from None


# -- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A study of the plan.

    Attributes:
        spec: its specification.
        trials: number of points wanted so far, and of those with a score.
        fresh: number of fresh seeds, and of those that have run.
        seconds: estimated time of the remaining runs on one worker.
    """

    spec: StudySpec
    trials: tuple[int, int]
    fresh: tuple[int, int]
    seconds: float

    @property
    def runs_left(self) -> int:
        """Number of remaining runs."""
        return (self.trials[0] - self.trials[1]) * len(self.spec.seeds) + self.fresh[0] - self.fresh[1]


def plan(studies: Sequence[Study], measure: Callable[[StudySpec], float]) -> list[Step]:
    """What studies want, and what is stored; `measure` estimates the seconds of a run of a study without any."""
    steps = []
    for study in studies:
        result, spec = study.result(), study.spec
        trials = max(len(result.trials) + result.missing, study.total), len(result.trials)
        fresh = [] if result.missing else result.fresh
        step = Step(spec, trials, (len(spec.report_seeds), len(fresh)), 0.0)
        times = [run.wall_s for run in (*result.runs, *fresh)]
        seconds = median(times) if times else measure(spec) if step.runs_left else 0.0
        steps.append(replace(step, seconds=seconds * step.runs_left))
    return steps


def measured(places: Mapping[str, Any], threads: int) -> Callable[[StudySpec], float]:
    """A function that estimates the seconds of a study's run by timing some steps; one estimate for all optimizers.

    Evaluation counts as forward passes, each taken to be a third of a step (ours).
    """
    with doing("importing torch"):
        from bench.execute.choice import seconds_of, single_step
        from bench.train.runner import build
        from bench.train.threads import set_threads
        from bench.train.training_plan import val_every

    set_threads(threads)
    known: dict[str, float] = {}

    def measure(spec: StudySpec) -> float:
        key = f"{spec.task} {sorted((k, str(v)) for k, v in spec.settings.items() if not k.startswith('opt.'))}"
        if key not in known:
            config = spec.typical(places)
            with doing(f"timing a step of {spec.task}"):
                task, training = build(config)
                rows = min(training.batch_size, training.micro_batch_size)
                steps = math.ceil(training.batch_size / rows) * training.total_steps
                data, looks = task.data, training.total_steps // val_every(config, task)
                reported = 2 * sum(data.sizes[split] for split in (data.report, *data.also))  # best and final
                evaluated = looks * data.sizes[data.select] + reported
                known[key] = seconds_of(single_step(config, task)) * (steps + evaluated / rows / 3)
        return known[key]

    return measure


def plan_lines(steps: Sequence[Step], workers: int) -> list[str]:
    """The plan for a terminal."""
    rows = [
        (
            step.spec.task,
            step.spec.opt,
            step.spec.name,
            f"{step.trials[1]}/{step.trials[0]}",
            f"{step.fresh[1]}/{step.fresh[0]}",
            step.runs_left,
            duration(step.seconds / workers),
        )
        for step in steps
    ]
    heads = ("task", "optimizer", "study", "trials stored", "fresh seeds stored", "runs to do", "about")
    seconds = sum(step.seconds for step in steps) / workers
    runs = sum(step.runs_left for step in steps)
    on_batches = [step.spec.opt for step in steps if TASKS[step.spec.task].batch_size != "full"]
    whole = list(dict.fromkeys(opt for opt in on_batches if OPTIMIZERS[opt].traits.full_batch))
    note = "all samples at each step; sgd, sngd and sps are gd, ngd and ps on mini-batches"
    return [
        *shown(Table.of(heads, rows)),
        f"{runs} runs to do, about {duration(seconds)} with {counted(workers, 'worker')},"
        " one run at a time in each (less with lanes), start not included"
        + "; more if the best point of a grid is at its edge"
        * any(step.spec.design.may_grow_by(step.trials[0]) for step in steps),
        *[f"{listed(whole)}: {note}"] * bool(whole),
    ]


def by_task(results: Sequence[StudyResult]) -> dict[str, list[StudyResult]]:
    """The results by task."""
    tasks = dict.fromkeys(result.spec.task for result in results)
    return {task: [result for result in results if result.spec.task == task] for task in tasks}


def result_lines(results: Sequence[StudyResult]) -> list[str]:
    """Results of the studies, task by task."""
    lines: list[str] = []
    for task, of_task in by_task(results).items():
        metric = f"{of_task[0].spec.metric}{of_task[0].metric_suffix}"
        rows = [
            (
                result.spec.opt,
                len(result.trials),
                "none" if result.best is None else options_text(result.best.point),
                None if result.score is None else score_text(result.score, result.spec.metric),
                result.fresh_interval,
                result.lr_at_boundary,
                result.cost["trial_gradient_evaluations"],
            )
            for result in of_task
        ]
        heads = ["optimizer", "trials", "best", f"selection {metric}", f"fresh seeds: {metric} [95 % t-interval]"]
        gradients = Column("gradients", "gradients", form=lambda count: f"{count:,}")
        lines += [task, *shown(Table.of([*heads, "at edge", gradients], rows)), ""]
    return lines


def write(out: Path, results: Sequence[StudyResult], command: str) -> list[Path]:
    """Write the settings of all studies and, for each task, one figure with all optimizers: `TASK/sensitivity.*`.

    Raises:
        UserError: the folder cannot be written.
    """
    paths: list[Path] = []
    for task, of_task in by_task([result for result in results if result.best is not None]).items():
        for result in of_task:
            paths += tuned.write(out, result, command)
        varied = dict.fromkeys(name for result in of_task for name in result.spec.axes)
        shown = sensitivity.analyse(
            [run for result in of_task for run in result.runs], list(varied), of_task[0].spec.mode
        )
        paths += sensitivity.write(out / slug(task), shown, command)
    return paths
