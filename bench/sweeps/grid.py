"""The runs of a sweep: from arguments such as `--opt.lr 1e-3:1e1:16` to configurations."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

from bench.config.files import flatten_yaml, tuned_settings
from bench.config.options import Option, all_optimizer_options, hyperparameters_of, task_options
from bench.config.run_config import RunConfig, resolve, with_device
from bench.config.values import DEFAULT_POINTS, log_grid, parts, read_range, refuse_too_many
from bench.errors import UserError, check_known, unknown
from optimizers import OPTIMIZERS, LogUniform
from optimizers.groups import RESERVED
from tasks import TASKS


def configurations(
    words: Mapping[str, Any],
    seeds: Sequence[int],
    fallback: Mapping[str, Any],
    *,
    config: Path | None = None,
    tuned: bool = False,
) -> tuple[list[RunConfig], list[str]]:
    """All runs of a sweep, and the dotted names of the settings that vary.

    `words` are settings in dotted form, which override those of the YAML file `config`. `opt` may name several
    optimizers; `opt.NAME.lr` is for that one alone. A value may be a log-spaced range (`low:high`, `low:high:points`)
    or a list (`a,b,c`). An optimizer without a varied hyperparameter gets a grid over its search range.
    """
    words = settings_in(config) | dict(words)
    task, names = str(words.get("task", "")), parts(words.pop("opt", ""))
    check_known("task", [task] if task else [], TASKS)
    check_known("optimizer", names, OPTIMIZERS)
    if not names:
        raise UserError("--opt is missing: name one or more optimizers, such as --opt ngd,adam")
    if "seed" in words:
        raise UserError(
            f"--seed {words['seed']}: a sweep has several; write --seeds {words['seed']},... or --seeds COUNT"
        )
    common, by_opt = by_optimizer(words, names)
    grids = [(name, _axes(task, name, common | by_opt[name], tuned=tuned)) for name in names]
    varied = {key: 0 for _, axes in grids for key, values in axes.items() if len(values) > 1}
    refuse_too_many("this sweep", len(seeds) * sum(math.prod(map(len, axes.values())) for _, axes in grids))
    first = [
        resolve({**dict(zip(axes, point, strict=True)), "opt": name, "seed": seeds[0]}, tuned=tuned, fallback=fallback)
        for name, axes in grids
        for point in itertools.product(*axes.values())
    ]
    device, seeded = with_device(first[0]).device, ["seed"] if "data_seed" in words else ["seed", "data_seed"]
    changes = [{"device": device, **dict.fromkeys(seeded, seed)} for seed in seeds]
    configs = [one.model_copy(update=change) for one in first for change in changes]
    return list({config.run_id: config for config in configs}.values()), list(varied)


def _axes(task: str, opt: str, settings: Mapping[str, Any], *, tuned: bool) -> dict[str, list[Any]]:
    """The values of each setting of an optimizer; a range of its own if no hyperparameter has several."""
    options = all_optimizer_options(OPTIMIZERS[opt], hyperparameters_of(settings))
    axes = {key: values_of(key, value, task, options) for key, value in settings.items()}
    key, span = next(iter(OPTIMIZERS[opt].search.items()), ("", None))
    fixed = tuned_settings(task, opt) if tuned and task else {}
    varies = any(key.startswith("opt.") and len(values) > 1 for key, values in axes.items())
    if not varies and isinstance(span, LogUniform) and f"opt.{key}" not in fixed:
        axes.setdefault(f"opt.{key}", log_grid(span.low, span.high, DEFAULT_POINTS))
    return axes


def by_optimizer(words: Mapping[str, Any], names: Sequence[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Settings for all optimizers, and those for one alone: `opt.NAME.OPTION`, NAME also the class of a file."""
    titles = {name.rpartition(":")[2]: name for name in names} | {name.replace("-", "_"): name for name in names}
    common: dict[str, Any] = {}
    by_opt: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, value in words.items():
        group, _, rest = key.partition(".")
        first, dot, _ = rest.partition(".")
        title = max((title for title in titles if rest.startswith(f"{title}.")), key=len, default="")
        if title and group == "opt":
            by_opt[titles[title]][f"opt.{rest.removeprefix(f'{title}.')}"] = value
        elif group == "opt" and dot and first not in RESERVED:
            raise unknown("optimizer or role of --opt", rest.rpartition(".")[0], [*names, *sorted(RESERVED)])
        else:
            common[key] = value
    return common, by_opt


def values_of(key: str, raw: Any, task: str, hyperparameters: Mapping[str, Option]) -> list[Any]:
    """The values of a setting: of a grid or a list, or else the single value; `UserError` if malformed or empty."""
    group, _, name = key.partition(".")
    if not isinstance(raw, str | list) or not name:
        return [raw]
    options = {"opt": hyperparameters, "task": task_options(TASKS[task]) if task else {}}.get(group, {})
    if ":" in raw and (name not in options or {"int", "float"} & {*options[name].type_name.split(" or ")}):
        return log_grid(*read_range(key, str(raw)))
    if (name in options and get_origin(options[name].type) is tuple) or (isinstance(raw, str) and "," not in raw):
        return [raw]
    if not (values := parts(raw, f"--{key}") if isinstance(raw, str) else raw):
        raise UserError(f"--{key} {raw}: the list is empty")
    return list(dict.fromkeys(values))


def settings_in(path: Path | None) -> dict[str, Any]:
    """The settings of a YAML file for several runs, without seed and paths, which commands set; none without file."""
    settings = flatten_yaml(path) if path else {}
    return {key: value for key, value in settings.items() if key not in ("seed", "data", "store") and value is not None}
