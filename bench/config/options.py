"""Options of optimizers and tasks: the arguments of their constructors, with name, type, default and meaning.

Those of the suite's own classes are read from their sources: importing torch or lightning for a help text or a usage
error would take seconds. Classes of plug-ins are imported.
"""

import ast
import importlib.machinery
import importlib.util
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from bench.errors import UserError, unknown, unknown_setting
from bench.text import why_wrong
from optimizers import OPTIMIZERS, TASK_VALUE
from optimizers.groups import REST, ROLES
from optimizers.plugins import load
from tasks import TASKS

# Meaning of the arguments that torch's own optimizers share; a class's docstring takes precedence.
GLOSSARY = {
    "lr": "learning rate: step per unit of the update, in [0, inf)",
    "momentum": "heavy-ball factor, in [0, 1]",
    "dampening": "dampening of momentum, in [0, 1]",
    "weight_decay": "strength of weight decay, in [0, inf)",
    "nesterov": "Nesterov momentum",
    "betas": "decay rates of the averages of gradient and squared gradient, each in [0, 1): --opt.betas 0.9,0.999",
    "eps": "added to the denominator, in [0, inf)",
    "amsgrad": "use the maximum of past second moments",
    "maximize": "ascend instead of descend",
    "foreach": "use torch's foreach kernels",
    "fused": "use torch's fused kernel",
    "capturable": "safe to capture in a CUDA graph",
    "differentiable": "make the step differentiable by autograd",
    "decoupled_weight_decay": "decay the weights directly, as AdamW does",
}


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
        return " or ".join(map(_type_name, _members(self.type)))

    @property
    def default_text(self) -> str:
        """The default in words."""
        return {None: "none", TASK_VALUE: "from the task"}.get(self.default, str(self.default))


MISSING = "(required)"
UNSET = "(not set)"
"""As a default: the option has no value unless given, and the constructor's default applies, or that of all roles."""
NO_BOOLEAN = "no boolean (true, false; in YAML yes, no, on and off too, unless in quotes)"
_TAKEN = {float: "a number", int: "a whole number", bool: "true or false", str: "text", Any: "a number, text or YAML"}
_SIMPLE = (int, float, bool, str, type(None))


def taken(kind: Any) -> str:
    """A type in a sentence: `a number or none`."""
    members = [member for member in _members(kind) if not (member is int and float in _members(kind))]
    return " or ".join(_TAKEN.get(member) or _type_name(member) for member in members)


def is_stray_boolean(value: Any, kind: Any) -> bool:
    """Whether a value is a boolean, or a list with one, and the type allows none (pydantic converts it to 0 or 1)."""
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(item, bool) for item in values) and not _takes_boolean(kind)


def _takes_boolean(kind: Any) -> bool:
    return kind in (bool, Any) or isinstance(kind, bool) or any(map(_takes_boolean, typing.get_args(kind)))


def _type_name(kind: Any) -> str:
    if typing.get_origin(kind) is tuple:
        return ",".join(" or ".join(map(_type_name, _members(item))) for item in typing.get_args(kind))
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(map(str, typing.get_args(kind)))
    return {type(None): "none", Any: "int or float or YAML"}.get(kind, getattr(kind, "__name__", str(kind)))


def _members(kind: Any) -> tuple[Any, ...]:
    """The members of a union, without their limits; for another type, itself."""
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    return tuple(typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind for kind in kinds)


# -- constructors -----------------------------------------------------------------------------------------------------


@lru_cache
def read_options(target: str, skip: tuple[str, ...] = ()) -> dict[str, Option]:
    """The keyword arguments of `package.module:Class` without those to skip, from its source."""
    functions = ((node, method_node(node, "__init__")) for node in class_nodes(*target.split(":")))
    node, function = next((node, function) for node, function in functions if function is not None)
    docs, args = documented(ast.get_docstring(node)), function.args
    defaults = [*[None] * (len(args.args) - len(args.defaults)), *args.defaults, *args.kw_defaults]
    return {
        arg.arg: _option(arg.arg, _annotation(arg), MISSING if default is None else _value(default), docs)
        for arg, default in zip([*args.args, *args.kwonlyargs], defaults, strict=True)
        if arg.arg not in ("self", *skip)
    }


def class_nodes(module: str, name: str) -> Iterator[ast.ClassDef]:
    """The definition of a class and then those of its base classes, from their sources."""
    tree = _parsed(module)
    node = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if node is None:
        return
    yield node
    places = {
        alias.asname or alias.name: (item.module, alias.name)
        for item in tree.body
        if isinstance(item, ast.ImportFrom) and item.module
        for alias in item.names
    }
    for base in node.bases:
        if isinstance(base, ast.Name):
            yield from class_nodes(*places.get(base.id, (module, base.id)))


def method_node(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """The definition of a method in that of its class."""
    return next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == name), None)


@lru_cache
def _parsed(module: str) -> ast.Module:
    """The source of a module, found without importing its parents."""
    name, *rest = module.split(".")
    spec = importlib.util.find_spec(name) if name != "__main__" else None
    for part in rest:
        name = f"{name}.{part}"
        spec = spec and importlib.machinery.PathFinder.find_spec(name, list(spec.submodule_search_locations or ()))
    return ast.parse(Path(spec.origin).read_text("utf-8") if spec and spec.has_location and spec.origin else "")


def _value(node: ast.expr) -> Any:
    return float("inf") if ast.unparse(node) in ("float('inf')", "math.inf") else ast.literal_eval(node)


def _annotation(arg: ast.arg) -> Any:
    """The type of an argument; None if it has none that the command line knows."""
    names: dict[str, Any] = {kind.__name__: kind for kind in (int, float, bool, str, tuple, list)}
    names |= {name: getattr(typing, name) for name in ("Union", "Optional", "Literal")}
    with suppress(NameError, TypeError, AttributeError):
        return arg.annotation and eval(ast.unparse(arg.annotation), {"__builtins__": {}}, names | {"Tensor": float})
    return None


def documented(doc: str | None, section: str = "Args") -> dict[str, str]:
    """Texts by name of a section of a Google-style docstring."""
    match = re.search(rf"^{section}:\n((?:[ ]{{4}}.*\n?|\n)+)", doc or "", re.MULTILINE)
    items = re.split(r"^ {4}(?=\w)", match[1], flags=re.MULTILINE)[1:] if match else []
    parts = [item.partition(":") for item in items]
    return {name: " ".join(text.split()) for names, _, text in parts for name in names.split(", ")}


def imported_options(cls: Any, skip: int = 1, given: Iterable[str] = ()) -> dict[str, Option]:
    """The keyword arguments of an imported class after the first `skip` ones, which are not options.

    If the constructor passes `**keywords` on, those of its base classes count as well, and any other that is given;
    required ones of base classes count only if it passes `*arguments` on too, since it sets them itself otherwise.
    """
    options = dict[str, Option]()
    docs = {k: v for base in cls.__mro__[::-1] for k, v in documented(inspect.cleandoc(base.__doc__ or "")).items()}
    constructors = [base.__init__ for base in cls.__mro__[:-1] if "__init__" in vars(base)]
    passes_all = True
    for constructor in constructors:
        parameters = list(inspect.signature(constructor).parameters.values())
        hints: dict[str, Any] = {}
        with suppress(NameError, TypeError):  # annotations that only a type checker can read
            hints = typing.get_type_hints(constructor)
        for parameter in parameters[1 + skip :]:
            is_required, name = parameter.default is parameter.empty, parameter.name
            several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if not (several or name in options or (is_required and not passes_all)):
                default = MISSING if is_required else parameter.default
                options[name] = _option(name, hints.get(name), default, docs)
        kinds = {parameter.kind for parameter in parameters}
        passes_all &= inspect.Parameter.VAR_POSITIONAL in kinds
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            given = () if constructor is constructors[0] else given
            break
    more = [name for name in given if "." not in name and name not in (*options, REST)]
    return options | {name: Option(name, Any, UNSET, "passed on to the constructor") for name in more}


def _option(name: str, annotation: Any, default: Any, docs: Mapping[str, str]) -> Option:
    kind = _kind(annotation, default)
    if default != MISSING and (kind is Any or not isinstance(default, (*_SIMPLE, tuple, list))):
        default = UNSET  # cannot be written in a file of settings
    return Option(name, kind | None if default is None else kind, default, docs.get(name, GLOSSARY.get(name, "")))


def _kind(annotation: Any, default: Any) -> Any:
    """The type for the command line: of the annotation, else of the default, else Any."""
    annotation = _without_tensors(annotation)
    if annotation is not None and all(map(_is_plain, _members(annotation))):
        return annotation
    if isinstance(default, tuple | list) and default and all(isinstance(item, _SIMPLE) for item in default):
        return tuple[tuple(_kind(None, item) for item in default)]
    kind = None if default == MISSING else type(default)
    return int | float if kind is int else kind if kind in (float, bool, str) else Any


def _is_plain(kind: Any) -> bool:
    if typing.get_origin(kind) in (tuple, list):
        return all(item is ... or all(map(_is_plain, _members(item))) for item in typing.get_args(kind))
    return typing.get_origin(kind) is typing.Literal or kind in (*_SIMPLE, tuple, list)


def _without_tensors(kind: Any) -> Any:
    """The type with numbers in place of tensors, which cannot be written on the command line."""
    if f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', '')}" == "torch.Tensor":
        return float
    arguments = tuple(map(_without_tensors, typing.get_args(kind)))
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.Union[arguments]  # noqa: UP007 - made of a list
    return tuple[arguments] if typing.get_origin(kind) is tuple else kind


def _options_of(target: Any, skip: tuple[str, ...], given: Iterable[str] = (), *, own: bool) -> dict[str, Option]:
    """The options of a class or of `module:Class`, without importing the suite's own."""
    if isinstance(target, str) and (own or re.match(r"(optimizers|tasks)\.(?!py:)", target)):
        return read_options(target, skip)
    cls = load(target) if isinstance(target, str) else target
    first = [*inspect.signature(cls.__init__).parameters.values()][1:2]
    if first and isinstance(first[0].default, int | float | str):
        why = f"the first argument of __init__ after self is {first[0]}; put {skip[0]} first"
        raise UserError(f"class {cls.__qualname__}: {why}")
    return imported_options(cls, len(skip), given)


# -- optimizers -------------------------------------------------------------------------------------------------------


def optimizer_options(spec: Any, given: Iterable[str] = ()) -> dict[str, Option]:
    """The options of an OptimizerSpec, with the suite's defaults; `**keywords` take all given ones."""
    options = _options_of(spec.target, ("params",), given, own=spec.name in OPTIMIZERS.own)
    return {k: replace(o, default=spec.defaults.get(k, o.default)) for k, o in options.items()}


def all_optimizer_options(spec: Any, given: Mapping[str, Any]) -> dict[str, Option]:
    """The options of an OptimizerSpec, its options by role, and those of the optimizer for the rest, in dotted form.

    With a rest, which `given` hyperparameters may name, the first method has only the role `matrix`.
    """
    rest, options = rest_of(spec, given), optimizer_options(spec, given)
    others = [role for role in ROLES if role != "matrix"]
    options |= _by_role(options, ROLES if rest is None else ["matrix"])
    what = f"another optimizer for all parameters except matrices ({' and '.join(others)})"
    default = UNSET if spec.rest is None and rest is None else spec.rest
    options[REST] = Option(REST, str | None, default, f"{what}; --opt.{REST}.NAME sets its options")
    if rest is not None:
        set_here = spec.defaults if rest == spec.rest else {}  # for another optimizer they mean nothing
        of_rest = {
            k: replace(o, default=set_here.get(f"{REST}.{k}", o.default))
            for k, o in optimizer_options(OPTIMIZERS[rest].on(spec.family)).items()
        }
        of_rest |= _by_role(of_rest, others)
        options |= {f"{REST}.{k}": replace(o, name=f"{REST}.{k}") for k, o in of_rest.items()}
    return options


def _by_role(options: Mapping[str, Option], roles: Iterable[str]) -> dict[str, Option]:
    """Options by role; without a value they fall back to those of all parameters."""
    names = [(f"{role}.{name}", option) for role in roles for name, option in options.items()]
    return {name: replace(option, name=name, default=UNSET) for name, option in names}


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
    known = [known for known, other in OPTIMIZERS.own.items() if other.rest is None]
    if name is True:
        raise UserError(f"--opt.{REST} needs a value: one of {', '.join(known)}")
    if not is_none(name) and name not in known:
        raise unknown(f"--opt.{REST}", str(name), known)
    return None if is_none(name) else str(name)


def no_such_option(spec: Any, given: Mapping[str, Any], name: str, others: Iterable[str] = ()) -> UserError:
    """The error for a hyperparameter that an optimizer does not have here; `others` are further known options."""
    rest, known = rest_of(spec, given), all_optimizer_options(spec, given)
    first, _, tail = name.partition(".")
    if rest is None and first == REST:
        why = f"{spec.name} needs an optimizer for the rest; name it first: --opt.{REST} adamw"
        return UserError(f"--opt.{name}: {why}")
    if f"{REST}.{name}" in known:
        why = f"with --opt.{REST} {rest}, {spec.name} moves only the matrices"
        return UserError(f"--opt.{name}: {why}; write --opt.{REST}.{name} for {rest}'s value")
    if first in OPTIMIZERS and tail in known:
        return UserError(f"unknown option '--opt.{name}'; did you mean '--opt.{tail}'? A run has one optimizer")
    return unknown_setting(f"opt.{name}", [*others, *(f"--opt.{option}" for option in known)])


def optimizer_values(spec: Any, given: Mapping[str, Any], others: Callable[[], Iterable[str]] = list) -> dict[str, Any]:
    """The value of every option of an optimizer and of the one for the rest; options by role only if given."""
    is_plain = spec.rest is None and not any("." in name or name == REST for name in given)
    options = optimizer_options(spec, given) if is_plain else all_optimizer_options(spec, given)
    for name in sorted(given.keys() - options.keys()):
        raise no_such_option(spec, given, name, others())
    values = parse_options("opt", options, given)
    if spec.rest is None and values.get(REST, "") is None:
        del values[REST]  # `--opt.rest none` where there is none by default: the same run
    return values


# -- tasks ------------------------------------------------------------------------------------------------------------


def task_options(spec: Any) -> dict[str, Option]:
    """The options of a TaskSpec: those of its data, then those of its module, then `preset` if it has presets."""
    own, options = spec.name in TASKS.own, dict[str, Option]()
    for target, skip in ((spec.data, ("root", "seed")), (spec.module, ("data",))):
        options |= _options_of(target, skip, own=own)
    if spec.presets:
        texts = (
            f"{k}: {', '.join(f'{o} {v}' for o, v in x.items()) or 'the defaults'}" for k, x in spec.presets.items()
        )
        kind, first = typing.Literal[tuple(spec.presets)], next(iter(spec.presets))
        options["preset"] = Option("preset", kind, first, f"defaults for options ({'; '.join(texts)})")
    for name in spec.derived:
        if name not in options or options[name].default is not None:
            raise UserError(f"{spec.name}: derived[{name!r}] needs an option of this name whose default is None")
    return options


def task_values(spec: Any, given: Mapping[str, Any], *, recorded: bool = False) -> dict[str, Any]:
    """The value of every option of a task: the given one, else the preset's, else the default, else the derived one.

    An option whose derived value is None is left out, so that studies made before it was added keep their names. The
    preset is left out too: it only names values. An option that a record lacks was added later and is None.
    """
    options = task_options(spec)
    values = parse_options("task", options, given)
    if spec.presets:
        given = {**spec.presets[values["preset"]], **given}
        values = parse_options("task", options, given)
        del values["preset"]
    before = dict(values)
    for name, derive in spec.derived.items():
        if name in given:
            continue
        try:
            value = derive(before)
        except Exception as error:  # it is the plug-in's code
            raise UserError(f"{spec.name}: derived[{name!r}] raises {type(error).__name__}: {error}") from error
        if value is None:
            del values[name]
        elif not recorded:
            values |= parse_options("task", {name: options[name]}, {name: value})
    return values


# -- values -----------------------------------------------------------------------------------------------------------


def parse_options(prefix: str, options: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Check and convert given values (words of the command line or YAML values) and fill in the defaults.

    Raises:
        UserError: a name is unknown, a value has the wrong type, or a required option is missing.
    """
    for name in sorted(given.keys() - options.keys()):
        raise unknown("option", f"--{prefix}.{name}", [f"--{prefix}.{known}" for known in options])
    raw = {name: given.get(name, option.default) for name, option in options.items()}
    return {
        name: _parsed_value(f"--{prefix}.{name}", options[name], value)
        for name, value in raw.items()
        if value is not UNSET
    }


def _parsed_value(flag: str, option: Option, raw: Any) -> Any:
    from pydantic import TypeAdapter, ValidationError

    if raw is MISSING:
        raise UserError(f"{flag} is required")
    if isinstance(raw, str) and raw == option.default:
        return raw  # a word such as `task`, which does not have the option's type
    takes = f"it takes {taken(option.type)}"
    if is_stray_boolean(raw, option.type):
        needs = "needs a value" if isinstance(raw, bool) else f"{raw!r}"
        raise UserError(f"{flag} {needs}; {takes}, and {NO_BOOLEAN}")
    try:  # defaults are converted too, so that 0 and 0.0 are one value
        value = TypeAdapter(option.type).validate_python(_words(raw, option.type))
    except ValidationError as error:
        wrong = error.errors()[0]
        of_type = ("_parsing", "_type", "_from_float", "literal_error", "missing", "too_long")
        problem = "" if wrong["type"].endswith(of_type) else f"{why_wrong(wrong['msg'])}; "
        raise UserError(f"{flag} {raw!r}: {problem}{takes}") from None
    if value != value:
        raise UserError(f"{flag} {raw!r}: not a number; {takes}")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise UserError(f"{flag} {raw!r}: it must be below 2^63")
    return value


def _words(raw: Any, kind: Any) -> Any:
    """A word of the command line as a value for pydantic."""
    members = _members(kind)
    if not isinstance(raw, str):
        return raw
    if is_none(raw) and (type(None) in members or kind is Any):
        return None
    if any(m in (tuple, list) or typing.get_origin(m) in (tuple, list) for m in members):
        return [part.strip() for part in raw.strip("()[] ").split(",")]
    for number in (int, float):  # pydantic would keep a number as text
        if kind is Any or (str in members and number in members):
            with suppress(ValueError):
                return number(raw)
    with suppress(yaml.YAMLError):
        return yaml.safe_load(raw) if kind is Any else raw
    return raw
