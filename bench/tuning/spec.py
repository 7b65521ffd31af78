"""What a study searches: its tuned settings, fixed settings, seeds and sampler."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from bench.config.options import Option, all_optimizer_options, hyperparameters_of, parse_options
from bench.config.run_config import RunConfig, on_device, resolve, settings_of, take_name
from bench.config.values import Seeds, counts_seeds, read_range, read_seeds, refuse_too_many
from bench.errors import UserError, check_known, unknown_option
from bench.results.selection import Mode
from bench.sweeps.grid import values_of
from bench.text import counted, plain
from bench.tuning.design import Design, Point, Sampler, Space
from optimizers import OPTIMIZERS, LogUniform
from optimizers.groups import REST
from optimizers.plugins import slug
from tasks import TASKS

GRID_POINTS = 9
"""Default number of trials, before growth and refinement: four decades in half decades. Ours."""
VERSIONS = ("task", "opt", "rest", "task_package", "opt_package")  # in the order of the hash
TUNING_SEEDS = 1000
"""First seed of trials if only the number of seeds is given; reports begin with 0. Ours."""


def space_as_json(space: Space) -> list[dict[str, Any]]:
    """The space in a form for strict JSON, in its order."""
    return [
        {"name": name, "low": axis.low, "high": axis.high}
        if isinstance(axis, LogUniform)
        else {"name": name, "values": [{"number": str(v)} if v in (math.inf, -math.inf) else v for v in axis]}
        for name, axis in space.items()
    ]


class StudySpec(BaseModel):
    """The specification of a study; its name is a hash of all fields, so those of shipped studies stay.

    `versions` are of the task, the optimizer, and the optimizer for the `rest`, and packages of plug-ins; `settings`
    are all that are not searched, in dotted form, and `chosen` names the non-default ones among them; `axes` is the
    search space (`bench.tuning.design.Space`); the winner is run on `report_seeds`, disjoint from `seeds`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    task: str
    opt: str
    versions: dict[str, int | str]
    metric: str
    mode: Mode
    settings: dict[str, Any]
    chosen: list[str]
    axes: Annotated[Any, PlainSerializer(space_as_json), Field(serialization_alias="space")]
    sampler: Sampler
    seeds: list[int]
    report_seeds: list[int]
    prune: Literal[False] = False

    @cached_property
    def name(self) -> str:
        """`task-opt-hash`: the name of the study."""
        digest = hashlib.sha256(self.model_dump_json(by_alias=True).encode()).hexdigest()
        return f"{slug(self.task)}-{slug(self.opt)}-{digest[:8]}"

    @cached_property
    def design(self) -> Design:
        """The order in which points are tried."""
        return Design(self.axes, self.sampler)

    def config(self, point: Point, seed: int, places: Mapping[str, Any]) -> RunConfig:
        """The configuration of a point with a seed and paths of data and store; `UserError` if it is illegal here."""
        words = {**self.settings, **point, "task": self.task, "opt": self.opt, "seed": seed, **places}
        return on_device(resolve(words, recorded=True))

    def typical(self, places: Mapping[str, Any]) -> RunConfig:
        """A run from the middle of the space; `UserError` if the device does not exist."""
        middle = {name: axis.middle if isinstance(axis, LogUniform) else axis[0] for name, axis in self.axes.items()}
        return self.config(middle, self.seeds[0], places)


def make_spec(
    words: Mapping[str, Any],
    *,
    sampler: Sampler | None,
    seeds: Sequence[int],
    report_seeds: Sequence[int],
    places: Mapping[str, Any],
) -> StudySpec:
    """The specification of a study; words may have ranges and lists of values (`read_space`).

    `UserError` if a setting is unknown or illegal, there is nothing to search, or a seed is in both lists.
    """
    task, opt = (take_name(key, dict(words)) for key in ("task", "opt"))
    check_known("task", [task], TASKS)
    for name in {"seed", "logger"} & words.keys():
        raise UserError(f"--{name} {words[name]}: a study has several runs, with --seeds and without loggers")
    if both := ", ".join(map(str, sorted(set(seeds) & set(report_seeds)))):
        why = "the seeds that choose a winner give optimistic scores; use different seeds"
        raise UserError(f"--seeds and --report_seeds share {both}: {why}")
    space, fixed = read_space(words, opt)
    design = Design(space, sampler)
    first = design.wanted(trials_of(design, None, len(seeds)))[0].point
    config = resolve({**fixed, **first, "seed": seeds[0]}, fallback=places)
    settings = plain(settings_of(config.model_dump(exclude={"data", "store", "logger", "seed"})))
    searched = {"task", "opt", *space} | ({"data_seed"} - fixed.keys())
    settings = {name: value for name, value in settings.items() if name not in searched}
    chosen = {*config.chosen, "data_seed", *(["device"] if config.device != "auto" else [])}
    versions = config.spec_versions
    return StudySpec(
        task=config.task,
        opt=config.opt,
        versions={name: versions[name] for name in VERSIONS if name in versions},
        metric=config.task_spec.metric,
        mode=config.task_spec.mode,
        settings=settings,
        chosen=[name for name in settings if name in chosen],
        axes=space,
        sampler=design.sampler,
        seeds=list(seeds),
        report_seeds=list(report_seeds),
    )


def read_space(words: Mapping[str, Any], opt: str) -> tuple[Space, dict[str, Any]]:
    """The searched settings, and the fixed ones as given, of settings in dotted form.

    The search covers the hyperparameters in `OptimizerSpec.search` that `words` does not fix, in their order, then
    others with a range (`LOW:HIGH`), a grid of values (`LOW:HIGH:POINTS`) or a list (`A,B`) in `words`. `UserError`
    if one is unknown or malformed, another setting has several values, or nothing is left to search.
    """
    check_known("optimizer", [opt], OPTIMIZERS)
    spec, given = OPTIMIZERS[opt], hyperparameters_of(words)
    options = all_optimizer_options(spec, given)
    task = str(words.get("task", ""))
    skipped = f"{REST}." if given.get(REST, spec.rest) != spec.rest else "-"  # another one has other search ranges
    declared: Space = {f"opt.{name}": axis for name, axis in spec.search.items() if not name.startswith(skipped)}
    space: Space = {name: axis for name, axis in declared.items() if name not in words}
    fixed: dict[str, Any] = {}
    for key, raw in words.items():
        group, _, name = key.partition(".")
        if group == "opt" and name and name not in options:
            raise unknown_option(f"--{key}", [f"--opt.{option}" for option in options])
        option = options.get(name) if group == "opt" else None
        if option is None:
            if name and isinstance(raw, str) and values_of(key, raw, task if task in TASKS else "", {}) != [raw]:
                raise UserError(f"--{key} {raw}: only hyperparameters (--opt.NAME) are tuned; give one value")
            fixed[key] = raw
        elif isinstance(raw, str) and raw.count(":") == 1:
            space[key] = _range(key, raw, option)
        elif len(values := values_of(key, raw, "", options)) > 1:
            typed = [parse_options("opt", {name: option}, {name: value})[name] for value in values]
            space[key] = tuple(dict.fromkeys(typed))
        else:
            fixed[key] = values[0]
    if not space:
        raise UserError(f"no setting of {opt} is left to tune: give a range (--opt.NAME LOW:HIGH) or values (A,B)")
    return {name: space[name] for name in dict.fromkeys([*declared, *space]) if name in space}, fixed


def _range(key: str, raw: str, option: Option) -> LogUniform:
    low, high, _ = read_range(key, raw)
    if "float" not in option.type_name.split(" or "):
        raise UserError(f"--{key} {raw}: it takes {option.takes}, which has no range; give values such as A,B")
    return LogUniform(low, high)


def tuning_seeds(given: Seeds) -> list[int]:
    """Seeds of trials: how many (`2`: 1000, 1001, which no report uses), or which (`5,6`, `10:15`), or `UserError`."""
    return [TUNING_SEEDS * counts_seeds(given) + seed for seed in read_seeds(given)]


def trials_of(design: Design, trials: int | None, seeds: int = 1) -> int:
    """The number of points; by default nine, rounded up to whole combinations of values, or all of lists alone.

    A method with more hyperparameters must not get more trials. `UserError` if no design has such a number.
    """
    if trials is None:
        trials = math.ceil(GRID_POINTS / design.step) * design.step if design.ranges else design.combinations
    refuse_too_many(f"{counted(trials, 'trial')} of {counted(seeds, 'seed')}", trials * seeds)
    design.wanted(trials)
    return trials
