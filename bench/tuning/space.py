"""Search spaces: the tuned settings, from arguments such as `--opt.lr 1e-3:1e1`, and their points."""

import json
import math
from collections.abc import Mapping
from typing import Any

from bench.config.options import (
    Option,
    all_optimizer_options,
    hyperparameters_of,
    parse_options,
)
from bench.config.values import ends_of_range
from bench.errors import UserError, check_known, unknown_setting
from bench.sweeps.grid import values_of
from bench.text import is_number
from optimizers import OPTIMIZERS, LogUniform
from optimizers.groups import REST
from tasks import TASKS

Axis = LogUniform | tuple[Any, ...]
"""A range, or a list of values."""
Space = dict[str, Axis]
"""The searched settings, by dotted name (`opt.lr`)."""
Point = Mapping[str, Any]
"""A value for each name of a space."""
Key = str
"""A point as text (`point_key`)."""


def point_key(point: Point) -> Key:
    """The point as JSON, equal for equal points: sorted names, numbers as floats without -0."""
    plain = {name: value + 0.0 if is_number(value) else value for name, value in point.items()}
    return json.dumps(plain, sort_keys=True)


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
            raise unknown_setting(key, [f"--opt.{option}" for option in options])
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
    try:
        ends = LogUniform(*ends_of_range(*raw.split(":")))
    except ValueError:
        raise UserError(
            f"--{key} {raw}: a range is LOW:HIGH with 0 < LOW < HIGH, both between 1e-100 and 1e100, such as 1e-3:1e1"
        ) from None
    if "float" not in option.type_name.split(" or "):
        raise UserError(f"--{key} {raw}: it takes {option.takes}, which has no range; give values such as A,B")
    return ends


def space_as_json(space: Space) -> list[dict[str, Any]]:
    """The space in a form for strict JSON, in its order."""
    return [
        {"name": name, "low": axis.low, "high": axis.high}
        if isinstance(axis, LogUniform)
        else {"name": name, "values": [{"number": str(v)} if v in (math.inf, -math.inf) else v for v in axis]}
        for name, axis in space.items()
    ]
