"""Options of optimizers and tasks: the arguments of their constructors, with name, type, default and meaning.

Those of the suite's own classes are stored in `options.json`, since importing torch takes seconds.
"""

import inspect
import json
import re
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass, replace
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from bench.errors import UserError, check_known, nearest, unknown_option
from bench.text import listed, options_text, why_wrong
from optimizers import OPTIMIZERS, TASK_VALUE
from optimizers.groups import REST, ROLES
from optimizers.plugins import load

STORED = Path(__file__).with_name("options.json")
"""Data of this module, by section (`stored`); `python -m tests.test_options` writes all but the glossary."""

MISSING = "(required)"
UNSET = "(not set)"
"""As a default: the option has no value unless given, and the constructor's default applies, or that of all roles."""
_SIMPLE = (int, float, bool, str, type(None))


@dataclass(frozen=True)
class Option:
    """One keyword argument: its name, Python type, default (`MISSING` or `UNSET` if it has none) and help text."""

    name: str
    type: Any
    default: Any
    help: str

    @property
    def type_name(self) -> str:
        """The type in words: `float`, `int or none`."""
        return _type_name(self.type)

    @property
    def takes(self) -> str:
        """The type in a sentence: `a whole number or none`."""
        words = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "text"}
        return " or ".join(words.get(name, name) for name in self.type_name.split(" or "))

    @property
    def default_text(self) -> str:
        """The default in words."""
        return {None: "none", TASK_VALUE: "from the task"}.get(self.default, str(self.default))


def _type_name(kind: Any) -> str:
    if len(members := _members(kind)) > 1:
        return " or ".join(map(_type_name, members))
    if typing.get_origin(members[0]) in (tuple, typing.Literal):
        names = [item if isinstance(item, str) else _type_name(item) for item in typing.get_args(members[0])]
        return ("," if typing.get_origin(members[0]) is tuple else " or ").join(names)
    names = {type(None): "none", Any: "int or float or YAML"}
    return names.get(members[0], getattr(members[0], "__name__", str(members[0])))


def _members(kind: Any) -> list[Any]:
    """The members of a union, without their limits; for another type, itself."""
    if typing.get_origin(kind) is typing.Annotated:
        return _members(typing.get_args(kind)[0])
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return [part for member in typing.get_args(kind) for part in _members(member)] if is_union else [kind]


def documented(doc: str | None, section: str = "Args") -> dict[str, str]:
    """Texts by name of a section of a Google-style docstring."""
    match = re.search(rf"^{section}:\n((?:[ ]{{4}}.*\n?|\n)+)", doc or "", re.MULTILINE)
    items = re.split(r"^ {4}(?=\w)", match[1], flags=re.MULTILINE)[1:] if match else []
    parts = [item.partition(":") for item in items]
    return {name: " ".join(text.split()) for names, _, text in parts for name in names.split(", ")}


def imported_options(cls: Any, skip: int = 1, given: Iterable[str] = ()) -> dict[str, Option]:
    """The keyword arguments of an imported class after the first `skip` ones, which are not options.

    With `**keywords`, those of base classes count too, and any that is given; required ones only with `*arguments`.
    """
    options, passes_all = dict[str, Option](), True
    docs = {k: v for base in cls.__mro__[::-1] for k, v in documented(inspect.cleandoc(base.__doc__ or "")).items()}
    constructors = [base.__init__ for base in cls.__mro__[:-1] if "__init__" in vars(base)]
    for constructor in constructors:
        parameters = list(inspect.signature(constructor).parameters.values())
        kinds = {parameter.kind for parameter in parameters}
        for p in (p for p in parameters[1 + skip :] if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)):
            if p.name not in options and (passes_all or p.default is not p.empty):
                annotation = None if p.annotation is p.empty else p.annotation
                if isinstance(annotation, str):
                    annotation = _evaluated(annotation, inspect.unwrap(constructor))
                default = MISSING if p.default is p.empty else p.default
                options[p.name] = _option(p.name, annotation, default, docs)
        passes_all &= inspect.Parameter.VAR_POSITIONAL in kinds
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            given = () if constructor is constructors[0] else given
            break
    more = [name for name in given if "." not in name and name not in (*options, REST)]
    return options | {name: Option(name, Any, UNSET, "passed on to the constructor") for name in more}


def _evaluated(annotation: str, function: Any) -> Any:
    """The type that an annotation names; None for one that only a type checker can read."""
    with suppress(Exception):
        return eval(annotation, function.__globals__)
    return None


def _option(name: str, annotation: Any, default: Any, docs: Mapping[str, str]) -> Option:
    kind = _kind(annotation, default)
    if default != MISSING and (kind is Any or not isinstance(default, (*_SIMPLE, tuple, list))):
        default = UNSET  # cannot be written in a file of settings
    text = docs.get(name, stored("glossary").get(name, ""))
    return Option(name, kind | None if default is None else kind, default, text)


def _kind(annotation: Any, default: Any) -> Any:
    """The type for the command line: of the annotation, else of the default, else Any."""
    members = _members(annotation)
    if isinstance(default, Enum):
        return Any  # also for an `int`, whose default is a member of an IntEnum
    if annotation is not None and all(map(_is_plain, members)):
        return annotation
    if {getattr(member, "__name__", "") for member in members} == {"float", "Tensor"}:
        return float  # torch's own: a number, or a tensor with one
    if isinstance(default, tuple | list) and default and all(isinstance(item, _SIMPLE) for item in default):
        return tuple[tuple(_kind(None, item) for item in default)]
    kind = None if default == MISSING else type(default)
    return int | float if kind is int else kind if kind in (float, bool, str) else Any


def _is_plain(kind: Any) -> bool:
    if typing.get_origin(kind) in (tuple, list):
        return all(item is ... or all(map(_is_plain, _members(item))) for item in typing.get_args(kind))
    return typing.get_origin(kind) is typing.Literal or kind in (*_SIMPLE, tuple, list)


@lru_cache
def stored(section: str) -> dict[str, Any]:
    """A section of `STORED`: `options` and `measurements` by class; `glossary` for arguments without a docstring."""
    return json.loads(STORED.read_text("utf-8"))[section]


def _options_of(target: Any, skip: int, given: Iterable[str] = ()) -> dict[str, Option]:
    """The options of a class or of `module:Class`, without importing the suite's own."""
    if not isinstance(target, str) or target not in stored("options"):
        return imported_options(load(target) if isinstance(target, str) else target, skip, given)
    options = dict[str, Option]()
    for name, (kind, default, text) in stored("options")[target].items():
        default = tuple(default) if isinstance(default, list) else default
        options[name] = Option(name, eval(kind, {**vars(typing)}), default, text)
    return options


def optimizer_options(spec: Any, given: Iterable[str] = ()) -> dict[str, Option]:
    """The options of an OptimizerSpec, with the suite's defaults; `**keywords` take all given ones."""
    options = _options_of(spec.target, 1, given)
    return {k: replace(o, default=spec.defaults.get(k, o.default)) for k, o in options.items()}


def all_optimizer_options(spec: Any, given: Mapping[str, Any]) -> dict[str, Option]:
    """The options of an OptimizerSpec, by role too, and those of the optimizer for the rest, in dotted form."""
    rest, others = rest_of(spec, given), [role for role in ROLES if role != "matrix"]
    # With a rest, the first method has only the role `matrix`.
    options = _with_roles(optimizer_options(spec, given), ROLES if rest is None else ["matrix"])
    what = f"another optimizer for all parameters except matrices ({listed(others)})"
    default = UNSET if spec.rest is None and rest is None else spec.rest
    options[REST] = Option(REST, str | None, default, f"{what}; --opt.{REST}.NAME sets its options")
    if rest is not None:
        defaults = spec.defaults if rest == spec.rest else {}  # for another optimizer they mean nothing
        for name, option in _with_roles(optimizer_options(OPTIMIZERS[rest].on(spec.family)), others).items():
            key = f"{REST}.{name}"
            options[key] = replace(option, name=key, default=defaults.get(key, option.default))
    return options


def _with_roles(options: Mapping[str, Option], roles: Iterable[str]) -> dict[str, Option]:
    """Options, and the same by role; those fall back to the options of all parameters."""
    by_role = {f"{role}.{name}": option for role in roles for name, option in options.items()}
    return {**options, **{name: replace(option, name=name, default=UNSET) for name, option in by_role.items()}}


def hyperparameters_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters, by name, among settings in dotted form."""
    return {name.removeprefix("opt."): value for name, value in settings.items() if name.startswith("opt.")}


def is_none(value: Any) -> bool:
    """Whether a value, possibly a word of the command line, is None."""
    return value is None or (isinstance(value, str) and value.lower() in ("none", "null"))


def rest_of(spec: Any, given: Mapping[str, Any]) -> str | None:
    """The name of the optimizer for the rest: the given one, else the spec's default; None if there is none.

    It must be one of the suite's own, without a rest itself: records name it too, and must not cause imports.
    """
    name = given.get(REST, spec.rest)
    if is_none(name):
        return None
    check_known(f"--opt.{REST}", [str(name)], [known for known, s in OPTIMIZERS.built_in.items() if s.rest is None])
    return str(name)


def optimizer_values(spec: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every option of an optimizer and of the one for the rest; options by role only if given."""
    values = parse_options("opt", all_optimizer_options(spec, given), given)
    if spec.rest is None and values.get(REST, "") is None:
        del values[REST]  # `--opt.rest none` where there is none by default: the same run
    return values


def task_options(spec: Any) -> dict[str, Option]:
    """The options of a TaskSpec: those of its data, then those of its module, then `preset` if it has presets."""
    options = _options_of(spec.data, 2) | _options_of(spec.module, 1)
    if spec.presets:
        texts = (f"{name}: {options_text(values) or 'the defaults'}" for name, values in spec.presets.items())
        kind, first = typing.Literal[tuple(spec.presets)], next(iter(spec.presets))
        options["preset"] = Option("preset", kind, first, f"defaults for options ({'; '.join(texts)})")
    return options


def task_values(spec: Any, given: Mapping[str, Any], *, recorded: bool = False) -> dict[str, Any]:
    """The value of every option of a task: the given one, else the preset's, else the default, else the derived one.

    The preset, and an option whose derived value is None, are left out. One that a record lacks is None.
    """
    options = task_options(spec)
    values = parse_options("task", options, given)
    if spec.presets:
        given = {**spec.presets[values["preset"]], **given}
        values = parse_options("task", options, given)
        del values["preset"]
    before = dict(values)
    for name in spec.derived.keys() - given.keys():
        try:
            value = spec.derived[name](before)
        except Exception as error:  # it is the plug-in's code
            raise UserError(f"{spec.name}: derived[{name!r}] raises {type(error).__name__}: {error}") from error
        if value is None:
            values.pop(name, None)
        elif not recorded:
            values |= parse_options("task", {name: options[name]}, {name: value})
    return values


def parse_options(prefix: str, options: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert given values (words of the command line or YAML values), and fill in the defaults (UserError)."""
    start = f"{prefix}.".removeprefix(".")
    given = _nested(options, given)
    for name in sorted(given.keys() - options.keys()):
        raise unknown_option(f"--{start}{name}", [f"--{start}{known}" for known in options])
    values = [(option, given.get(name, option.default)) for name, option in options.items()]
    return {o.name: _parsed(f"--{start}{o.name}", o, value) for o, value in values if value is not UNSET}


def _nested(options: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given values; those below an option that takes any YAML (`conf.alpha`) are one mapping."""
    values = dict[str, Any]()
    for name, value in given.items():
        head, _, key = name.partition(".")
        if name not in options and head in options and options[head].type is Any:
            values[head] = {**values.get(head, {}), key: _from_word(value, Any)}
        else:
            values[name] = value
    return values


def _parsed(flag: str, option: Option, raw: Any) -> Any:
    if raw is MISSING:
        raise UserError(f"{flag} is required")
    if isinstance(raw, str) and raw == option.default:
        return raw  # a word such as `task`, which does not have the option's type
    try:  # strictly, since a boolean is no number; defaults are converted too, so that 0 and 0.0 are one value
        value = _adapter(option.type).validate_python(_from_word(raw, option.type), strict=True)
    except ValidationError as error:
        first, shown = error.errors()[0], "needs a value" if raw is True else repr(raw)
        of_type = ("_type", "_from_float", "literal_error", "missing", "too_long")
        problem = "" if first["type"].endswith(of_type) else f"{why_wrong(first['msg'])}; "
        meaning = f" ({option.help})" if problem and option.help else ""
        near = nearest(str(raw), option.type_name.split(" or ")) if first["type"] == "literal_error" else None
        meaning += f"; did you mean {near!r}?" if near else ""
        raise UserError(f"{flag} {shown}: {problem}it takes {option.takes}{meaning}") from None
    if value != value or (isinstance(value, int) and abs(value) >= 2**63):
        raise UserError(f"{flag} {raw!r}: it must be a number{' below 2^63' * (value == value)}")
    return value


_adapter = lru_cache(TypeAdapter[Any])


def _written(value: Any) -> Any:
    """A member of an enum, a dtype, a class or a dataclass as a setting (`optimizers.adapters.adapted` reads it)."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, type):
        return f"{value.__module__}:{value.__qualname__}"
    if is_dataclass(value):
        return asdict(typing.cast(Any, value))
    return str(value) if type(value).__name__ == "dtype" else value


def _from_word(raw: Any, kind: Any) -> Any:
    """A word of the command line, or a value of YAML or Python, as a setting."""
    members, raw = _members(kind), _written(raw)
    containers = [typing.get_origin(member) or member for member in members]
    if is_none(raw) and (type(None) in members or kind is Any):
        return None
    if container := next((kind for kind in (tuple, list) if kind in containers), None):
        raw = [part.strip() for part in raw.strip("()[] ").split(",")] if isinstance(raw, str) else raw
        return container(_scalar(item) for item in raw) if isinstance(raw, list | tuple) else raw
    value = raw if {*containers} <= {str, typing.Literal, type(None)} else _scalar(raw, kind)
    is_whole = isinstance(value, float) and value.is_integer() and int in members and float not in members
    return int(value) if is_whole else value  # of a grid


def _scalar(raw: Any, kind: Any = None) -> Any:
    """A word as a number or a boolean, or else as it is; as any YAML if the type is Any."""
    if isinstance(raw, str):
        for number in (int, float):
            with suppress(ValueError):
                return number(raw)
        with suppress(yaml.YAMLError, ValueError):
            value = yaml.safe_load(raw)
            return value if kind is Any or isinstance(value, bool) else raw
    return raw
