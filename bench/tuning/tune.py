"""Tuning: from settings to a study, and from a study to its workers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bench.config.checks import check_places
from bench.config.run_config import resolve, settings_of
from bench.config.settings import chosen_of
from bench.errors import UserError, check_known
from bench.execute import Effort, Engine
from bench.execute.slots import slots
from bench.grammar.values import counts_seeds, read_seeds, refuse_too_many
from bench.text import counted, plain
from bench.tuning.design import Design, Sampler
from bench.tuning.progress import TuningProgress
from bench.tuning.space import read_space, space_as_json
from bench.tuning.study import Study
from bench.tuning.trials import Request, StudySpec, versions_of
from bench.tuning.workers import Workers
from optimizers import OPTIMIZERS, LogUniform
from tasks import TASKS

GRID_POINTS = 9
"""Default number of values of a searched range: four decades in half decades. Ours."""
TUNING_SEEDS = 1000
"""First seed of trials if only the number of seeds is given; reports begin with 0. Ours."""


def make_spec(
    words: Mapping[str, Any],
    *,
    sampler: Sampler | None,
    seeds: Sequence[int],
    report_seeds: Sequence[int],
    places: Mapping[str, Any],
) -> StudySpec:
    """The specification of a new study; words may have ranges and lists of values (`bench.tuning.space.read_space`).

    Raises:
        UserError: a setting is unknown or illegal, there is nothing to search, or a seed is in both lists.
    """
    if "," in str(words.get("opt")):
        raise UserError(
            f"--opt {words['opt']}: a study tunes one optimizer; `bench compare` and `bench suite` tune several"
        )
    for name, known in (("task", TASKS), ("opt", OPTIMIZERS)):
        if not words.get(name):
            raise UserError(f"--{name} is missing; see `bench list {'tasks' if name == 'task' else 'optimizers'}`")
        check_known("task" if name == "task" else "optimizer", [str(words[name])], known)
    if "seed" in words:
        raise UserError(
            f"--seed {words['seed']}: trials have several; write --seeds {words['seed']},... or --seeds COUNT"
        )
    if "logger" in words:
        raise UserError("--logger: trials have none; their curves are in the store")
    both = sorted(set(seeds) & set(report_seeds))
    if both:
        raise UserError(
            f"--seeds and --report_seeds share {', '.join(map(str, both))}:"
            " the seeds that choose a winner give optimistic scores; use different seeds"
        )
    space, fixed = read_space(words, str(words["opt"]))
    design = Design(space, sampler or "grid")
    refuse_too_many(f"this search with {counted(len(seeds), 'seed')}", default_trials(design) * len(seeds))
    first = design.wanted(default_trials(design))[0].point
    config = resolve({**fixed, **first, "seed": seeds[0]}, fallback=places)
    settings = plain(settings_of(config.model_dump(exclude={"data", "store", "logger", "seed"})))
    left_out = {"task", "opt", *space} | ({"data_seed"} - fixed.keys())
    settings = {name: value for name, value in settings.items() if name not in left_out}
    chosen = chosen_of(config).keys() | {"data_seed"} | ({"device"} if config.device != "auto" else set())
    return StudySpec(
        task=config.task,
        opt=config.opt,
        versions=versions_of(config.task_spec, config.opt_spec, config.rest_spec),
        metric=config.task_spec.metric,
        mode=config.task_spec.mode,
        settings=settings,
        chosen=[name for name in settings if name in chosen],
        space=space_as_json(space),
        sampler=design.sampler,
        seeds=list(seeds),
        report_seeds=list(report_seeds),
    )


def tuning_seeds(text: str) -> list[int]:
    """Seeds of trials: how many (`2`: 1000 and 1001, which no report uses by default), or which (`5,6` or `10:15`).

    Raises:
        UserError: it is neither, or a seed is given twice.
    """
    seeds = reporting_seeds(text, "--seeds")
    return [TUNING_SEEDS + seed for seed in seeds] if counts_seeds(text) else seeds


def reporting_seeds(text: str, option: str = "--report_seeds") -> list[int]:
    """Seeds of a report: how many (`5`: 0 to 4), or which (`5,6` or `10:15`).

    Raises:
        UserError: it is neither, or a seed is given twice.
    """
    seeds = read_seeds(text, option, 5)
    if "," in text:
        refuse_twice(f"{option} {text}", [part.strip() for part in text.split(",") if part.strip()])
    return seeds


def refuse_twice(where: str, values: Sequence[Any]) -> None:
    """Refuse a list with duplicates.

    Raises:
        UserError: a value is given twice.
    """
    there = set()
    for value in values:
        if value in there:
            raise UserError(f"{where}: {value} is given twice; give each once")
        there.add(value)


def default_trials(design: Design) -> int:
    """The default number of points of a design: nine, rounded up to whole combinations of the listed values.

    It is the same for all methods: one with more hyperparameters must not get more trials. A design of lists alone has
    all their combinations.
    """
    if not design.ranges:
        return design.combinations
    return (
        math.ceil(GRID_POINTS / design.combinations) * design.combinations if design.sampler == "grid" else GRID_POINTS
    )


def make_request(
    design: Design,
    trials: int | None,
    *,
    tpe: bool = False,
    retries: int = 2,
    report: bool = True,
    engine: Engine | None = None,
    seeds: int = 1,
) -> Request:
    """The request to a study; with `tpe`, trials beyond the default number are refinements.

    Raises:
        UserError: no design has such numbers.
    """
    if retries < 0:
        raise UserError(f"--retries {retries}: it must be at least 0")
    usual = default_trials(design)
    if tpe and (trials is None or trials <= usual):
        raise UserError(
            f"--sampler tpe refines a design of {usual} trials: write --trials {usual + 3} for three more,"
            " or remove --sampler"
        )
    trials = usual if trials is None else trials
    refuse_too_many(f"{counted(trials, 'trial')} of {counted(seeds, 'seed')}", trials * seeds)
    refine = trials - usual if tpe else 0
    design.wanted(trials - refine)  # raises before the study is created
    return Request(trials=trials - refine, refine=refine, retries=retries, report=report, engine=engine)


def promise(spec: StudySpec, trials: int) -> str:
    """What a study will try, in words; a grid is centred on its range and may exceed it."""
    text = f"{counted(trials, 'trial')} of {counted(len(spec.seeds), 'seed')}"
    steps = iter(("half decades", *["decades"] * len(spec.axes)))
    for name, axis in spec.axes.items():
        if isinstance(axis, LogUniform) and spec.sampler == "grid":
            tried = [each.point[name] for each in spec.design.wanted(trials)]
            text += (
                f", {name} {min(tried):g} to {max(tried):g}, {next(steps)} around the middle of"
                f" {axis.low:g}:{axis.high:g}"
            )
    more = spec.design.may_grow_by(trials)
    return text + f"; up to {more} more beyond an edge, while the best point is there" * bool(more)


def work(study: Study, workers: str, places: Mapping[str, Any], effort: Effort, progress: TuningProgress) -> bool:
    """Complete a study with workers on this machine; False if a signal asked to stop.

    Raises:
        UserError: there are too few devices, or trials cannot be trained here.
        RunFailed: workers die at start.
    """
    cut = slots(workers, study.spec.typical(places), study.request.trials)
    if study.finished():
        return True
    check_places([study.spec.typical(places)])
    progress.say(f"study {study.name}: {promise(study.spec, study.request.trials)}")
    with Workers(cut, places, effort) as pool:
        return pool.work([study], progress)
