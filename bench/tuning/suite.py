"""Suites: tasks x optimizers, tuned with equal budgets and run on fresh seeds, as one resumable plan."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from bench.text import counted, duration, options_text, why_wrong
from bench.tuning import tuned
from bench.tuning.design import Sampler
from bench.tuning.spec import StudySpec, default_trials, make_spec, reporting_seeds, trials_of, tuning_seeds
from bench.tuning.study import Study, StudyResult
from optimizers.plugins import slug

Settings = dict[str, Any]


def _by_name(entries: object, field: ValidationInfo) -> object:
    """Settings by name in dotted form, also from a list of names; anything else as it is."""
    if isinstance(entries, dict):
        where = field.field_name
        return {n: flattened(x, f"{where}.{n}") if isinstance(x, dict) else x for n, x in entries.items()}
    if isinstance(entries, list) and all(isinstance(name, str) for name in entries):
        return dict.fromkeys(entries)
    return entries


Named = Annotated[dict[str, Settings | None], BeforeValidator(_by_name), Field(min_length=1)]


class Tune(NoBooleans):
    """How each optimizer is tuned: number of trials, seeds of each (how many, or which), sampler.

    `total` is the minimum number of trials for each optimizer whose design can grow, such as that of a stored baseline.
    """

    model_config = ConfigDict(extra="forbid")

    trials: int | None = None
    seeds: int | list[int] = 2
    sampler: Sampler | None = None
    total: int = 0


class Suite(NoBooleans, BaseModel):
    """The content of a file in `configs/suites`.

    `tasks` and `optimizers` are names, or settings by name, of which a range or a list of values is searched;
    `settings` are of all runs; `seeds` are the fresh ones of each winner: how many, or which.
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
                {**self.settings, **(of_task or {}), **(of_opt or {}), "task": task, "opt": opt},
                sampler=self.tune.sampler,
                seeds=tuning_seeds(_text(self.tune.seeds)),
                report_seeds=reporting_seeds(_text(self.seeds)),
                places=places,
            )
            for task, of_task in self.tasks.items()
            for opt, of_opt in self.optimizers.items()
        ]
        runs = 0
        for spec in specs:
            trials = trials_of(spec.design, self.tune.trials, len(spec.seeds))  # raises if invalid
            runs += trials * len(spec.seeds) + len(spec.report_seeds)
            if spec.design.ranges:  # raises if equal budgets are impossible
                spec.design.wanted(trials, self.common(other for other in specs if other.task == spec.task))
        refuse_too_many(f"this suite of {len(specs)} studies", runs)
        fixed = [spec for spec in specs if not spec.design.ranges]
        if fixed and (len(fixed) < len(specs) or len({default_trials(spec.design) for spec in specs}) > 1):
            why = "a list of values cannot be extended to the number of trials of the others"
            raise UserError(f"{fixed[0].opt}: {why}; give a range (LOW:HIGH), or lists of equal length to all")
        return specs

    def studies(self, places: Mapping[str, Any]) -> list[list[Study]]:
        """The studies of each task (`specs`), before their budgets are made equal and their winners run."""
        tasks: dict[str, list[Study]] = {}
        specs = self.specs(places)
        for spec in specs:
            total = self.common(other for other in specs if other.task == spec.task) if spec.design.ranges else 0
            study = Study(spec, trials_of(spec.design, self.tune.trials), places, total=total, report=False)
            tasks.setdefault(spec.task, []).append(study)
        return list(tasks.values())

    def advance(self, studies: Sequence[Study]) -> None:
        """Let the studies of a task have as many trials as the largest, and run the winners, as far as runs are stored.

        A grid whose best is at an edge grows, so budgets become equal only once trials have ended.
        """
        while True:
            results = [study.result() for study in studies]
            if any(result.missing for result in results):
                return
            counts = {len(result.trials) for result in results}
            total = self.common((study.spec for study in studies), max(counts))
            for study in studies:
                study.report, study.total = len(counts) == 1, study.total if len(counts) == 1 else total
            if len(counts) == 1:
                return

    def common(self, specs: Iterable[StudySpec], least: int = 0) -> int:
        """The smallest number of trials, at least `least`, that all optimizers of a task can have."""
        designs = [spec.design for spec in specs]
        wanted = max(least, self.tune.total, *(trials_of(design, self.tune.trials) for design in designs))
        step = math.lcm(*(design.step for design in designs))
        return -(-wanted // step) * step


def narrowed(parts: Sequence[Suite], tasks: Sequence[str] | None, opts: Sequence[str] | None) -> list[Suite]:
    """The parts of a suite with these tasks and optimizers (all if None); `UserError` if no part has them."""
    kept = []
    for what, names, of in (("task", tasks, "tasks"), ("optimizer", opts, "optimizers")):
        check_known(f"{what} of the suite", names or (), {name: 0 for part in parts for name in getattr(part, of)})
    for part in parts:
        of_tasks = {name: settings for name, settings in part.tasks.items() if tasks is None or name in tasks}
        of_opts = {name: settings for name, settings in part.optimizers.items() if opts is None or name in opts}
        if of_tasks and of_opts:
            kept.append(part.model_copy(update={"tasks": of_tasks, "optimizers": of_opts}))
    if not kept:
        raise UserError(f"no part of the suite has {', '.join(opts or ())} on {', '.join(tasks or ())}")
    return kept


def _text(seeds: int | list[int]) -> str:
    return str(seeds) if isinstance(seeds, int) else ",".join(map(str, seeds)) + ","


def load(name: str) -> list[Suite]:
    """The parts of a suite from a file or by the name of a shipped one; `UserError` if there is no valid one."""
    path = suite_file(name)
    content = read_yaml(path)
    if isinstance(content, dict) and "parts" in content:
        parts, known = content["parts"], {*suites()}
        if len(content) > 1 or not isinstance(parts, list) or not parts or not known.issuperset(map(str, parts)):
            raise UserError(f"{path}: `parts` takes names of shipped suites, such as [theory, lm]; got {parts!r}")
        return [suite for part in parts for suite in load(part)]
    try:
        return [Suite.model_validate(content)]
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path}: {'.'.join(map(str, first['loc']))}: {why_wrong(first['msg'])}") from None


@dataclass(frozen=True)
class Step:
    """A study of the plan: numbers of trials and fresh seeds, wanted and stored; estimated seconds on one worker."""

    spec: StudySpec
    trials: tuple[int, int]
    fresh: tuple[int, int]
    runs_left: int
    seconds: float


def plan(studies: Sequence[Study], measure: Callable[[StudySpec], float]) -> list[Step]:
    """What studies want, and what is stored; `measure` estimates the seconds of a run of a study without any."""
    steps = []
    for study in studies:
        result, spec = study.result(), study.spec
        trials = max(len(result.trials) + result.missing, study.total), len(result.trials)
        fresh = [] if result.missing else result.fresh
        left = (trials[0] - trials[1]) * len(spec.seeds) + len(spec.report_seeds) - len(fresh)
        times = [run.wall_s for run in (*result.runs, *fresh)]
        seconds = median(times) if times else measure(spec) if left else 0.0
        steps.append(Step(spec, trials, (len(spec.report_seeds), len(fresh)), left, seconds * left))
    return steps


def measured(places: Mapping[str, Any], threads: int) -> Callable[[StudySpec], float]:
    """A function that estimates the seconds of a study's run by timing some steps, without its evaluation."""
    with doing("importing torch"):
        from bench.execute.choice import seconds_of, single_step
        from bench.train.runner import build
        from bench.train.threads import set_threads

    set_threads(threads)
    known: dict[str, float] = {}

    def measure(spec: StudySpec) -> float:
        key = f"{spec.task} {sorted((k, str(v)) for k, v in spec.settings.items() if not k.startswith('opt.'))}"
        if key not in known:
            config = spec.typical(places)
            with doing(f"timing a step of {spec.task}"):
                task, training = build(config)
                micro_batches = math.ceil(training.batch_size / training.micro_batch_size)
                known[key] = seconds_of(single_step(config, task)) * micro_batches * training.total_steps
        return known[key]

    return measure


def plan_lines(steps: Sequence[Step], workers: int) -> list[str]:
    """The plan for a terminal."""
    heads = ("task", "optimizer", "study", "trials stored", "fresh seeds stored", "runs to do", "about")
    rows = [
        (
            *(step.spec.task, step.spec.opt, step.spec.name),
            *(f"{stored}/{wanted}" for wanted, stored in (step.trials, step.fresh)),
            *(step.runs_left, duration(step.seconds / workers)),
        )
        for step in steps
    ]
    seconds, runs = sum(step.seconds for step in steps) / workers, sum(step.runs_left for step in steps)
    about = f"{runs} runs to do, about {duration(seconds)} with {counted(workers, 'worker')}, one at a time in each"
    about += " (less with lanes); more if the best point of a grid is at its edge"
    return [*shown(Table.of(heads, rows)), about]


def by_task(results: Sequence[StudyResult]) -> dict[str, list[StudyResult]]:
    """The results by task."""
    tasks = dict.fromkeys(result.spec.task for result in results)
    return {task: [result for result in results if result.spec.task == task] for task in tasks}


def result_lines(results: Sequence[StudyResult]) -> list[str]:
    """Results of the studies, task by task."""
    lines: list[str] = []
    for task, of_task in by_task(results).items():
        metric = f"{of_task[0].spec.metric}{of_task[0].metric_suffix}"
        heads = ["optimizer", "trials", "best", f"selection {metric}", f"fresh seeds: {metric} [95 % t-interval]"]
        gradients = Column("gradients", "gradients", form=lambda count: f"{count:,}")
        rows = []
        for result in of_task:
            best = "none" if result.best is None else options_text(result.best.point)
            score = None if result.score is None else score_text(result.score, result.spec.metric)
            steps = sum(run.steps for run in result.runs)
            row = result.spec.opt, len(result.trials), best, score, result.fresh_interval, result.lr_at_boundary, steps
            rows.append(row)
        lines += [task, *shown(Table.of([*heads, "at edge", gradients], rows)), ""]
    return lines


def write(out: Path, results: Sequence[StudyResult], command: str) -> list[Path]:
    """Write the settings of all studies and, for each task, one figure with all optimizers: `TASK/sensitivity.*`."""
    paths: list[Path] = []
    for task, of_task in by_task([result for result in results if result.best is not None]).items():
        for result in of_task:
            paths += tuned.write(out, result, command)
        varied = dict.fromkeys(name for result in of_task for name in result.spec.axes)
        runs = [run for result in of_task for run in result.runs]
        together = sensitivity.analyse(runs, list(varied), of_task[0].spec.mode)
        paths += sensitivity.write(out / slug(task), together, command)
    return paths
