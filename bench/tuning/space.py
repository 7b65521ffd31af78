"""Search spaces: the tuned settings, from arguments such as `--opt.lr 1e-3:1e1`, and their points."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from bench.config.options import (
    Option,
    all_optimizer_options,
    hyperparameters_of,
    no_such_option,
    optimizer_options,
    parse_options,
)
from bench.config.values import ends_of_range
from bench.errors import UserError, check_known
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
    """The searched settings, and the fixed ones as given.

    The search covers the hyperparameters in `OptimizerSpec.search` that `words` does not fix, and those with a range
    (`LOW:HIGH`), a grid of values (`LOW:HIGH:POINTS`) or a list (`A,B`) in `words`. Those in `OptimizerSpec.search`
    come first, in its order.

    Args:
        words: settings in dotted form.
        opt: the optimizer.

    Raises:
        UserError: a hyperparameter is unknown; a range, grid or list is malformed; a setting other than a
            hyperparameter has several values; or nothing is left to search.
    """
    check_known("optimizer", [opt], OPTIMIZERS)
    spec, task = OPTIMIZERS[opt], str(words.get("task", ""))
    given = hyperparameters_of(words)
    options = all_optimizer_options(spec, given)
    other_rest = given.get(REST, spec.rest) != spec.rest  # its search ranges differ
    own: Space = {
        f"opt.{name}": axis for name, axis in spec.search.items() if not (other_rest and name.startswith(f"{REST}."))
    }
    space: Space = {name: span for name, span in own.items() if name not in words}
    fixed: dict[str, Any] = {}
    for key, raw in words.items():
        group, _, name = key.partition(".")
        if group != "opt" or not name:
            if name and _several(key, raw, task if task in TASKS else ""):
                raise UserError(f"--{key} {raw}: only hyperparameters (--opt.NAME) are tuned; give one value")
            fixed[key] = raw
            continue
        if name not in options:
            raise no_such_option(spec, given, name)
        if isinstance(raw, str) and raw.count(":") == 1:
            space[key] = _range(key, raw, options[name])
            continue
        values = values_of(key, raw, "", options)
        if len(values) > 1:
            space[key] = _values(key, raw, values, options[name])
        else:
            fixed[key] = values[0]
    space = {name: space[name] for name in dict.fromkeys([*own, *space]) if name in space}
    if not space:
        said = " ".join(f"--{name} {fixed[name]}" for name in own) or f"--opt {opt}"
        numbers = [f"opt.{name}" for name, o in optimizer_options(spec).items() if _takes_range(o)]
        name = next(iter([*own, *numbers]), "opt.NAME")
        why = "" if own else f", since it declares no range; its numbers are {', '.join(numbers) or 'none'}"
        raise UserError(
            f"{said}: no setting of {opt} is left to tune{why}; give a range (--{name} LOW:HIGH) or values (--{name}"
            " A,B)"
        )
    return space, fixed


def _takes_range(option: Option) -> bool:
    return "float" in option.type_name.split(" or ")


def _several(key: str, raw: Any, task: str) -> bool:
    return isinstance(raw, str) and values_of(key, raw, task, {}) != [raw]


def _range(key: str, raw: str, option: Option) -> LogUniform:
    try:
        ends = LogUniform(*ends_of_range(*raw.split(":")))
    except ValueError:
        raise UserError(
            f"--{key} {raw}: a range is LOW:HIGH with 0 < LOW < HIGH, both between 1e-100 and 1e100, such as 1e-3:1e1"
        ) from None
    if not _takes_range(option):
        raise UserError(f"--{key} {raw}: it takes {option.takes}, which has no range; give values such as A,B")
    return ends


def _values(key: str, raw: str, values: Sequence[Any], option: Option) -> tuple[Any, ...]:
    several = tuple(parse_options("opt", {option.name: option}, {option.name: value})[option.name] for value in values)
    for i, value in enumerate(several):
        if value in several[:i]:
            raise UserError(f"--{key} {raw}: {value} is given twice; give each value once")
    return several


def space_as_json(space: Space) -> list[dict[str, Any]]:
    """The space in a form for strict JSON, in its order."""
    return [
        {"name": name, "low": axis.low, "high": axis.high}
        if isinstance(axis, LogUniform)
        else {"name": name, "values": [{"number": str(v)} if v in (math.inf, -math.inf) else v for v in axis]}
        for name, axis in space.items()
    ]


def space_from_json(stored: Sequence[Mapping[str, Any]]) -> Space:
    """The inverse of `space_as_json`."""
    return {
        axis["name"]: tuple(float(v["number"]) if isinstance(v, Mapping) else v for v in axis["values"])
        if "values" in axis
        else LogUniform(axis["low"], axis["high"])
        for axis in stored
    }
