"""Suites: tasks x optimizers, tuned with equal budgets and run on fresh seeds, as one resumable plan."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

from bench.config.files import flattened, read_yaml
from bench.config.values import read_seeds, refuse_too_many, suites
from bench.errors import UserError, check_known, unknown
from bench.progress import doing
from bench.results.render import shown
from bench.results.table import Column, Table
from bench.text import counted, duration, listed, why_wrong
from bench.tuning.design import Sampler
from bench.tuning.spec import StudySpec, make_spec, trials_of, tuning_seeds
from bench.tuning.study import Study, common_trials, results_of


def _dotted(settings: Any, place: str = "settings") -> Any:
    """Settings in dotted form, also from nested ones; anything else as it is."""
    dotted = flattened(settings, place) if isinstance(settings, dict) else settings
    if isinstance(dotted, dict) and (names := [name for name in ("task", "opt") if name in dotted]):
        raise UserError(f"{place}: {names[0]} {dotted[names[0]]}: name it in `tasks` or `optimizers` instead")
    return dotted


Settings = Annotated[dict[str, Any], BeforeValidator(_dotted)]


def _by_name(entries: Any, field: ValidationInfo) -> Any:
    """Settings by name in dotted form, also from a list of names; anything else as it is."""
    if isinstance(entries, list) and all(isinstance(name, str) for name in entries):
        entries = dict.fromkeys(entries)
    if not isinstance(entries, dict):
        return entries
    return {name: _dotted(settings, f"{field.field_name}.{name}") for name, settings in entries.items()}


Named = Annotated[dict[str, Settings | None], BeforeValidator(_by_name), Field(min_length=1)]


class Tune(BaseModel):
    """How each optimizer is tuned: number of trials, seeds of each (how many, or which), sampler.

    `total` is the minimum number of trials for each optimizer whose design can grow, such as that of a stored baseline.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    trials: int | None = Field(default=None, ge=1)
    seeds: int | list[int] = 2
    sampler: Sampler | None = None
    total: int = 0


class Rung(BaseModel):
    """A size of a ladder: the settings that make it, of all runs and by optimizer (its own ranges), and its trials."""

    model_config = ConfigDict(extra="forbid")

    size: float = Field(gt=0, allow_inf_nan=False)
    settings: Settings = {}
    optimizers: Annotated[dict[str, Settings | None], BeforeValidator(_by_name)] = {}
    trials: int | None = Field(default=None, ge=1)


class Suite(BaseModel):
    """The content of a file in `configs/suites`.

    `tasks` and `optimizers` are names, or settings by name, of which a range or a list of values is searched;
    `settings` are of all runs; `seeds` are the fresh ones of each winner: how many, or which. A ladder repeats its
    suite on each of its `rungs`, whose sizes are numbers of `axis`.
    """

    model_config = ConfigDict(extra="forbid")

    title: str
    tasks: Named
    optimizers: Named
    settings: Settings = {}
    tune: Tune = Tune()
    seeds: int | list[int] = 7
    axis: str = "parameters"
    rungs: list[Rung] = []

    @property
    def parts(self) -> "list[Suite]":
        """The suite of each rung; itself if it is no ladder."""
        sizes = [rung.size for rung in self.rungs]
        if sizes and (len(self.tasks) > 1 or len(self.optimizers) < 2 or len({*sizes}) < len(sizes)):
            got = f"{listed([*self.tasks])}; {listed([*self.optimizers])}; {listed([f'{size:.15g}' for size in sizes])}"
            raise UserError(f"a ladder takes one task, two or more optimizers, and different sizes; got {got}")
        return [self._at(rung) for rung in self.rungs] or [self]

    def _at(self, rung: Rung) -> "Suite":
        check_known("optimizer of the ladder", rung.optimizers, self.optimizers)
        opts = {name: {**(of or {}), **(rung.optimizers.get(name) or {})} for name, of in self.optimizers.items()}
        tasks = {name: {**(of_task or {}), **rung.settings} for name, of_task in self.tasks.items()}
        tune = self.tune.model_copy(update={"trials": rung.trials or self.tune.trials})
        return self.model_copy(update={"tasks": tasks, "optimizers": opts, "tune": tune, "rungs": [rung]})

    def specs(self, places: Mapping[str, Any]) -> list[StudySpec]:
        """The studies, task by task; `UserError` if a setting is unknown or illegal.

        Beside an optimizer with lists of values only, which cannot get more trials, grids must not grow: the others
        have the sampler `qmc` then, if none is given.
        """
        seeds, fresh, specs = tuning_seeds(self.tune.seeds), read_seeds(self.seeds, "--report_seeds"), list[StudySpec]()

        def spec(task: str, opt: str, sampler: Sampler | None) -> StudySpec:
            words = {
                **self.settings,
                **(self.tasks[task] or {}),
                **(self.optimizers[opt] or {}),
                "task": task,
                "opt": opt,
            }
            return make_spec(words, sampler=sampler, seeds=seeds, report_seeds=fresh, places=places)

        for task in self.tasks:
            of_task = {opt: spec(task, opt, self.tune.sampler) for opt in self.optimizers}
            if self.tune.sampler is None and not all(made.design.ranges for made in of_task.values()):
                of_task |= {opt: spec(task, opt, "qmc") for opt, made in of_task.items() if made.design.ranges}
            specs += of_task.values()
        return specs

    def studies(self, places: Mapping[str, Any]) -> list[list[Study]]:
        """The studies of each task, `UserError` if budgets cannot be made equal."""
        tasks: dict[str, list[Study]] = {}
        for spec in self.specs(places):
            trials = trials_of(spec.design, self.tune.trials, len(spec.seeds))
            tasks.setdefault(spec.task, []).append(Study(spec, trials, places, self.tune.total))
        every = [study for studies in tasks.values() for study in studies]
        runs = sum(study.trials * len(study.spec.seeds) + len(study.spec.report_seeds) for study in every)
        refuse_too_many("this suite", runs)
        for study in every:
            study.spec.design.wanted(study.trials, common_trials(tasks[study.spec.task]))  # raises if impossible
        problems = [(study.spec.opt, study.spec.typical(places).problem) for study in every if self.rungs]
        for opt, problem in problems[1:]:
            first, usual = problems[0]
            if names := [name for name in {**usual, **problem} if usual.get(name) != problem.get(name)]:
                why = f"{first} and {opt} differ in {listed(names)}, so steps are not comparable"
                raise UserError(f"size {self.rungs[0].size:,.15g}: {why}; give all optimizers the same")
        return list(tasks.values())


def load(name: str) -> list[Suite]:
    """The parts of a suite from a file or by the name of a shipped one; `UserError` if there is no valid one."""
    path = suites().get(name, Path(name))
    if not path.exists() and path.suffix not in (".yaml", ".yml"):
        raise unknown("suite", name, suites())
    content = read_yaml(path)
    if isinstance(content, dict) and "parts" in content:
        parts = content["parts"]
        known = isinstance(parts, list) and len(content) == 1 and {*map(str, parts)} <= suites().keys()
        members = [suite for part in parts for suite in load(str(part))] if known else []
        if not members or any(suite.rungs for suite in members):
            why = "takes names of shipped suites but ladders, such as [theory, lm], and stands alone"
            raise UserError(f"{path}: `parts` {why}; got {content!r}")
        return members
    try:
        return Suite.model_validate(content).parts
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path}: {'.'.join(map(str, first['loc']))}: {why_wrong(first['msg'])}") from None


def plan(todo: Iterable[Sequence[Study]]) -> list[dict[str, Any]]:
    """For each study the stored and wanted trials and fresh seeds, runs to do, and their seconds on one worker."""
    rows = []
    for studies in todo:
        measured = None  # optimizers hardly differ
        for result in results_of(studies):
            spec, tried, fresh = result.spec, len(result.trials), [] if result.missing else result.fresh
            wanted = len(spec.report_seeds) if result.missing or result.best is not None else 0
            left = result.missing * len(spec.seeds) + wanted - len(fresh)
            times = [run.wall_s for run in (*result.runs, *fresh)]
            if left and not times and measured is None:
                measured = seconds_of_run(spec, result.study.places)
            seconds = median(times) if times else measured or 0.0
            row = {"task": spec.task, "opt": spec.opt, "study": spec.name, "trials": [tried, tried + result.missing]}
            rows.append(row | {"fresh": [len(fresh), wanted], "runs": left, "seconds": seconds * left})
    return rows


def seconds_of_run(spec: StudySpec, places: Mapping[str, Any]) -> float:
    """The seconds of a study's run without its evaluation, by timing some steps."""
    with doing(f"timing a step of {spec.task}"):
        from bench.execute.choice import seconds_of, single_step
        from bench.train.runner import build

        config = spec.typical(places)
        task, training = build(config)
        micro_batches = math.ceil(training.batch_size / training.micro_batch_size)
        return seconds_of(single_step(config, task)) * micro_batches * training.total_steps


def plan_lines(rows: Sequence[Mapping[str, Any]], workers: int) -> list[str]:
    """The plan for a terminal."""
    study, stored = Column("study", "study", names=True), ["trials stored", "fresh seeds stored"]
    ratios = [[f"{v[0]}/{v[1]}" if isinstance(v, list) else v for v in row.values()][:-1] for row in rows]
    times = [row["seconds"] / workers for row in rows]
    runs, crew = counted(sum(row["runs"] for row in rows), "run"), counted(workers, "worker")
    about = f"{runs} to do, about {duration(sum(times))} with {crew} (less with lanes, more for growth and refinement)"
    cells = ([*ratio, duration(time)] for ratio, time in zip(ratios, times, strict=True))
    return [*shown(Table.of(["task", "optimizer", study, *stored, "runs to do", "about"], cells)), about]
