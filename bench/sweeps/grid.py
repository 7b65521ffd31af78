"""The runs of a sweep: from arguments such as `--opt.lr 1e-3:1e1:16` to configurations."""

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

from bench.config.options import Option, all_optimizer_options, hyperparameters_of, task_options
from bench.config.run_config import RunConfig, decided, resolve
from bench.config.strict_yaml import flatten_yaml
from bench.config.tuned import tuned_settings
from bench.config.values import DEFAULT_POINTS, log_grid, parts, read_grid, refuse_too_many
from bench.errors import UserError, check_known, unknown
from bench.near import nearest
from optimizers import OPTIMIZERS, LogUniform
from optimizers.groups import RESERVED, REST
from optimizers.plugins import slug
from tasks import TASKS

MOST_NAME = 60
"""Maximum characters of optimizer names in a folder's name. Ours."""


def configurations(
    words: Mapping[str, Any],
    seeds: Sequence[int],
    fallback: Mapping[str, Any],
    *,
    config: Path | None = None,
    tuned: bool = False,
) -> tuple[list[RunConfig], list[str]]:
    """All runs of a sweep, and the dotted names of the settings that vary.

    Args:
        words: settings in dotted form. `opt` may name several optimizers; `opt.NAME.lr` is for that one alone. A value
            may be a range (`low:high` or `low:high:points`, log-spaced) or a list (`a,b,c`). An optimizer without a
            varied hyperparameter gets a grid over its search range.
        seeds: each setting is run with each of them.
        fallback: defaults that all others override.
        config: a YAML file with settings, ranges and lists; `words` override it.
        tuned: use the hyperparameters tuned for this task and optimizer unless they are set otherwise.

    Raises:
        UserError: a name is unknown, a value is illegal, or an optimizer lacks a hyperparameter.
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
    common, own = by_optimizer(words, names)
    grids: list[tuple[str, dict[str, list[Any]]]] = []
    swept: dict[str, int] = {}
    by_rest = {name: _by_rest(common | own[name]) for name in names}
    for name, settings in ((opt, each) for opt in names for each in by_rest[opt]):
        known = _options(name, settings)
        for option in sorted(k for k in common if k.startswith("opt.") and k[4:] not in known):
            having = [n for n in names for each in by_rest[n] if option[4:] in _options(n, each)]
            if not having:
                continue  # `resolve` raises, with the nearest name
            if name in having:
                rest = f"--opt.{REST} {settings[f'opt.{REST}']}"
                raise UserError(f"--{option}: {name} has no such option with {rest}; sweep each {REST} separately")
            raise UserError(
                f"--{option}: {name} has no such option; write --opt.{having[0]}{option[3:]} to give it to"
                f" {having[0]} alone"
            )
        values = {key: _once(values_of(key, value, task, known)) for key, value in settings.items()}
        if len(by_rest[name]) > 1:
            swept[f"opt.{REST}"] = len(by_rest[name])
        elif not any(key.startswith("opt.") and len(several) > 1 for key, several in values.items()):
            fixed = tuned_settings(task, name) if tuned and task else {}
            key, axis = next(iter(OPTIMIZERS[name].search.items()), ("", None))
            if isinstance(axis, LogUniform) and f"opt.{key}" not in fixed:
                values.setdefault(f"opt.{key}", log_grid(axis.low, axis.high, DEFAULT_POINTS))
        grids.append((name, values))
    sizes = swept | {key: len(several) for _, values in grids for key, several in values.items() if len(several) > 1}
    shape = [*(f"{size:,} values of --{key}" for key, size in sizes.items()), f"{len(seeds):,} seeds"]
    runs = len(seeds) * sum(math.prod(map(len, values.values())) for _, values in grids)
    refuse_too_many(f"this sweep has {' x '.join(shape)}", runs)
    first = [
        resolve(
            {**dict(zip(values, point, strict=True)), "opt": name, "seed": seeds[0]}, tuned=tuned, fallback=fallback
        )
        for name, values in grids
        for point in itertools.product(*values.values())
    ]
    device = decided(first[0]).device
    follows = "data_seed" not in words
    configs = [
        config.model_copy(update={"device": device, "seed": seed, **({"data_seed": seed} if follows else {})})
        for config in first
        for seed in seeds
    ]
    return list({config.run_id: config for config in configs}.values()), list(sizes)


def folder_of(configs: Sequence[RunConfig]) -> Path:
    """`TASK/OPT-HASH`: the folder of a sweep's table and plot; the hash identifies the set of runs."""
    digest = hashlib.sha256(" ".join(sorted(config.run_id for config in configs)).encode()).hexdigest()
    names = "-".join(dict.fromkeys(slug(config.opt) for config in configs))
    return Path(slug(configs[0].task)) / f"{names[:MOST_NAME].rstrip('-')}-{digest[:8]}"


def by_optimizer(words: Mapping[str, Any], names: Sequence[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Settings for all optimizers, and those for one alone."""
    common: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, value in words.items():
        group, _, rest = key.partition(".")
        name, dot, option = rest.partition(".")
        if group != "opt" or not dot or name in RESERVED:
            common[key] = value
        elif (found := _addressed(rest, names)) is not None:
            own[found[0]][f"opt.{found[1]}"] = value
        elif role := nearest(name, RESERVED):
            raise UserError(f"unknown option '--{key}'; did you mean '--opt.{role}.{option}'?")
        else:
            raise unknown("optimizer of --opt", rest.rpartition(".")[0], names)
    return common, own


def _addressed(rest: str, names: Sequence[str]) -> tuple[str, str] | None:
    """The optimizer that `NAME.OPTION` addresses, by its name or by the class of a file, and the option."""
    classes = [name.rpartition(":")[2] for name in names]
    words = {name: name for name in names}
    words |= {own: name for own, name in zip(classes, names, strict=True) if classes.count(own) == 1}
    for word in sorted(words, key=len, reverse=True):
        if rest.startswith(prefix := f"{word.replace('-', '_')}."):
            return words[word], rest[len(prefix) :]
    return None


def _options(opt: str, settings: Mapping[str, Any]) -> dict[str, Option]:
    return all_optimizer_options(OPTIMIZERS[opt], hyperparameters_of(settings))


def _by_rest(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings for each optimizer of the rest separately, since the options differ."""
    raw = settings.get(key := f"opt.{REST}")
    several = raw if isinstance(raw, list) else parts(raw) if isinstance(raw, str) else []
    return [{**settings, key: rest} for rest in dict.fromkeys(several)] or [dict(settings)]


def values_of(key: str, raw: Any, task: str, hyperparameters: Mapping[str, Option]) -> list[Any]:
    """The values of a setting: those of a grid or a list, or else the single value.

    Args:
        key: the setting, in dotted form.
        raw: its text, or a value of another type.
        task: the task with the options `task.*`; empty if unknown.
        hyperparameters: the options `opt.*`.

    Raises:
        UserError: a grid is malformed, or a list empty.
    """
    group, _, name = key.partition(".")
    if not isinstance(raw, str | list) or not name:
        return [raw]
    options = {"opt": hyperparameters, "task": task_options(TASKS[task]) if task else {}}.get(group, {})
    if ":" in raw and (name not in options or {"int", "float"} & {*options[name].type_name.split(" or ")}):
        return read_grid(key, str(raw))
    if (name in options and get_origin(options[name].type) is tuple) or (isinstance(raw, str) and "," not in raw):
        return [raw]
    values = raw if isinstance(raw, list) else parts(raw)
    if not values:
        raise UserError(f"--{key} {raw}: the list is empty")
    return values


def settings_in(path: Path | None) -> dict[str, Any]:
    """The settings of a YAML file for several runs, without seed and paths, which the command sets; none without file.

    Raises:
        UserError: it is invalid.
    """
    found = flatten_yaml(path) if path else {}
    return {name: value for name, value in found.items() if name not in ("seed", "data", "store") and value is not None}


def _once(values: list[Any]) -> list[Any]:
    return list(dict.fromkeys(values)) if len(values) > 1 else values
