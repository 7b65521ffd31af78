"""Options of optimizers and tasks, read from constructors' signatures without importing them.

The signature is the only place with a hyperparameter's name, type and default. Importing torch for it takes seconds, so
the source file is parsed instead: help and usage errors appear at once.
"""

import ast
import importlib.machinery
import importlib.util
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

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
    """One keyword argument: its name, Python type, default (`MISSING` if it has none) and help text."""

    name: str
    type: Any
    default: Any
    help: str

    @property
    def type_name(self) -> str:
        """The type in words: `float`, `int or none`."""
        return type_name(self.type)

    @property
    def takes(self) -> str:
        """The type in a sentence: `a number or none`."""
        return taken(self.type)

    @property
    def default_text(self) -> str:
        """The default in words."""
        return {None: "none", TASK_VALUE: "from the task"}.get(self.default, str(self.default))


MISSING = "(required)"
UNSET = "(that of all parameters)"
"""As a default: the option has no value unless given."""
NO_BOOLEAN = "no boolean (true, false; in YAML yes, no, on and off too, unless in quotes)"


def type_name(kind: Any) -> str:
    """A type in words: `float`, `int or none`."""
    return " or ".join(map(_type_name, _members(kind)))


_TAKEN = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}


def taken(kind: Any) -> str:
    """A type in a sentence: `a number or none`."""
    return " or ".join(_TAKEN.get(member) or _type_name(member) for member in _members(kind))


def is_stray_boolean(value: Any, kind: Any) -> bool:
    """Whether a value is a boolean, or a list with one, and the type allows none (pydantic converts it to 0 or 1)."""
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(each, bool) for each in values) and not _takes_boolean(kind)


def _takes_boolean(kind: Any) -> bool:
    return kind in (bool, Any) or isinstance(kind, bool) or any(map(_takes_boolean, typing.get_args(kind)))


def _type_name(kind: Any) -> str:
    if typing.get_origin(kind) is tuple:
        return ",".join(map(_type_name, typing.get_args(kind)))
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(map(str, typing.get_args(kind)))
    return "none" if kind is type(None) else getattr(kind, "__name__", str(kind))


def _members(kind: Any) -> tuple[Any, ...]:
    """The members of a union; for another type, itself."""
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


@lru_cache
def read_options(target: str, skip: tuple[str, ...] = ()) -> dict[str, Option]:
    """The keyword arguments of a class, from its source.

    Args:
        target: `package.module:Class`.
        skip: arguments that are not options (`params`, `data`, ...).

    Returns:
        Options by name, in the order of the signature.

    Raises:
        UserError: the class or its `__init__` cannot be found.
    """
    module, _, name = target.partition(":")
    tree = _parse(_source(module))
    return {option.name: option for option in _class_options(tree, module, name) if option.name not in skip}


def _class_options(tree: ast.Module, module: str, name: str) -> list[Option]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            break
    else:
        raise UserError(f"there is no class {name!r} in {module}")
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return _arguments(item, ast.get_docstring(node) or "")
    for base in node.bases:  # inherited: from a base in the same module, or imported by name
        if isinstance(base, ast.Name):
            for item in tree.body:
                if not isinstance(item, ast.ImportFrom) or not item.module:
                    continue
                names = {alias.asname or alias.name: alias.name for alias in item.names}
                if base.id in names:
                    return _class_options(_parse(_source(item.module)), item.module, names[base.id])
            return _class_options(tree, module, base.id)
    raise UserError(f"class {name!r} in {module} has no constructor of its own")


def _arguments(function: ast.FunctionDef, doc: str) -> list[Option]:
    args = function.args
    positional = args.args[1:]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
    pairs = [*zip(positional, defaults, strict=True), *zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    docs = _documented(doc)
    options = []
    for arg, default in pairs:
        value = MISSING if default is None else _value(default)
        kind = _type(arg.annotation, value)
        options.append(Option(arg.arg, kind, value, docs.get(arg.arg, GLOSSARY.get(arg.arg, ""))))
    return options


def _documented(doc: str) -> dict[str, str]:
    """Texts of the `Args:` section of a Google-style docstring."""
    section = re.search(r"^Args:\n((?:[ ]{4}.*\n?|\n)+)", doc, re.MULTILINE)
    if not section:
        return {}
    items = re.split(r"^ {4}(?=\w+:)", section[1], flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, _, text in (item.partition(":") for item in items)}


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and ast.unparse(node) in ("float('inf')", "math.inf"):
        return float("inf")
    return ast.literal_eval(node)


def _type(annotation: ast.expr | None, default: Any) -> Any:
    if annotation is not None:
        names: dict[str, Any] = {
            **{kind.__name__: kind for kind in (int, float, bool, str, tuple, list)},
            "Union": typing.Union,
            "Optional": typing.Optional,
            "Literal": typing.Literal,
            "Tensor": float,
        }
        try:
            return eval(ast.unparse(annotation), {"__builtins__": {}}, names)
        except (NameError, TypeError, AttributeError):
            pass  # not a type for the command line
    return type(default) if default is not None else str


@lru_cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@lru_cache
def _source(module: str) -> Path:
    """The file of a module, found without importing its parents."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    name = top
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            break
        name = f"{name}.{part}"
        spec = importlib.machinery.PathFinder.find_spec(name, list(spec.submodule_search_locations))
    if spec is None or not spec.origin:
        raise UserError(f"there is no module {module!r}")
    return Path(spec.origin)


def imported_options(cls: Any, skip: int = 1) -> dict[str, Option]:
    """The keyword arguments of an imported class, in the form of `read_options`.

    If the constructor passes `**keywords` on, those of its base classes count as well; their required arguments count
    only if it passes `*arguments` on too, since it sets them itself otherwise. Arguments whose types or defaults cannot
    be written on the command line (functions, modules) are left out and keep their defaults.

    Args:
        cls: a class.
        skip: leading arguments that are not options (`params`).
    """
    docs, options = _documented(inspect.getdoc(cls) or ""), {}
    passes_all = True
    for base in cls.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        parameters = list(inspect.signature(base.__init__).parameters.values())
        try:
            hints = typing.get_type_hints(base.__init__)
        except (NameError, TypeError):  # annotations that only a type checker can read
            hints = {}
        for parameter in parameters[1 + skip :]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name in options:
                continue
            required = parameter.default is parameter.empty
            if required and not passes_all:
                continue
            kind = _plain(hints.get(parameter.name), parameter.default)
            if not required and (kind is None or not isinstance(parameter.default, _SIMPLE | tuple | list)):
                continue
            default = MISSING if required else parameter.default
            if default is None:
                kind = kind | None
            text = docs.get(parameter.name, GLOSSARY.get(parameter.name, ""))
            unknown_type = str if parameter.name in hints else _ANY
            options[parameter.name] = Option(parameter.name, kind or unknown_type, default, text)
        kinds = {parameter.kind for parameter in parameters}
        passes_all &= inspect.Parameter.VAR_POSITIONAL in kinds
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            break
    return options


def _without_tensors(kind: Any) -> Any:
    """The type with numbers in place of tensors, which cannot be written on the command line."""
    if f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', '')}" == "torch.Tensor":
        return float
    arguments = tuple(map(_without_tensors, typing.get_args(kind)))
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.Union[arguments]  # noqa: UP007 - made of a list
    return tuple[arguments] if typing.get_origin(kind) is tuple else kind


_SIMPLE = int | float | bool | str | None
_ANY = int | float | str
"""Type of an argument with neither annotation nor default: a number if it reads as one, else text."""


def _plain(kind: Any, default: Any) -> Any:
    """The type for the command line; None if it cannot be written there."""
    kind = _without_tensors(kind)

    def fine(member: Any) -> bool:
        if typing.get_origin(member) is typing.Literal:
            return True
        if typing.get_origin(member) in (tuple, list):
            return all(fine(each) or each is ... for each in typing.get_args(member))
        return member in typing.get_args(_SIMPLE)

    if kind is not None:
        members = [member for member in _members(kind) if fine(member)]
        if len(members) == len(_members(kind)):
            return kind
    if isinstance(default, tuple | list) and default and all(isinstance(each, _SIMPLE) for each in default):
        return tuple[tuple(type(each) for each in default)]
    return type(default) if type(default) in (int, float, bool, str) else None


def _options_of(target: Any, skip: tuple[str, ...], *, own: bool) -> dict[str, Option]:
    """The options of a class or of `module:Class`, without importing the suite's own.

    Raises:
        UserError: its constructor does not begin with the arguments to skip.
    """
    if isinstance(target, str) and (own or re.match(r"(optimizers|tasks)\.(?!py:)", target)):
        return read_options(target, skip)
    cls = load(target) if isinstance(target, str) else target
    first = [*inspect.signature(cls.__init__).parameters.values()][1:2]
    if first and isinstance(first[0].default, int | float | str):
        raise UserError(
            f"class {cls.__qualname__}: the first argument of __init__ after self is {first[0]}; put {skip[0]} first"
        )
    return imported_options(cls, len(skip))


def optimizer_options(spec: Any) -> dict[str, Option]:
    """The options of an OptimizerSpec, with the suite's defaults in place of the signature's.

    Raises:
        UserError: its constructor does not take the parameters first.
    """
    options = _options_of(spec.target, ("params",), own=spec.name in OPTIMIZERS.own)
    return {k: replace(o, default=spec.defaults.get(k, o.default)) for k, o in options.items()}


def all_optimizer_options(spec: Any, given: Mapping[str, Any]) -> dict[str, Option]:
    """The options of an OptimizerSpec, its options by role, and those of the optimizer for the rest, in dotted form.

    With a rest, the first method has only the role `matrix`, and the other one has all others.

    Args:
        spec: of the first optimizer.
        given: hyperparameters by name; they may name the optimizer for the rest.

    Raises:
        UserError: as for `rest_of`.
    """
    rest, own = rest_of(spec, given), optimizer_options(spec)
    others = [role for role in ROLES if role != "matrix"]
    found = own | _by_role(own, ROLES if rest is None else ["matrix"])
    help_ = (
        f"another optimizer for all parameters except matrices ({' and '.join(others)}); --opt.{REST}.NAME sets its"
        " options"
    )
    found[REST] = Option(REST, str | None, spec.rest if spec.rest is not None or rest is not None else UNSET, help_)
    if rest is not None:
        theirs = optimizer_options(OPTIMIZERS[rest].on(spec.family))
        set_here = spec.defaults if rest == spec.rest else {}  # for another optimizer they mean nothing
        usual = {k: replace(o, default=set_here.get(f"{REST}.{k}", o.default)) for k, o in theirs.items()}
        found |= {f"{REST}.{k}": replace(o, name=f"{REST}.{k}") for k, o in (usual | _by_role(usual, others)).items()}
    return found


def _by_role(options: Mapping[str, Option], roles: Iterable[str]) -> dict[str, Option]:
    """Options by role; without a value they fall back to those of all parameters."""
    return {
        f"{role}.{name}": replace(option, name=f"{role}.{name}", default=UNSET)
        for role in roles
        for name, option in options.items()
    }


def hyperparameters_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters, by name, among settings in dotted form."""
    return {name.removeprefix("opt."): value for name, value in settings.items() if name.startswith("opt.")}


def is_none(value: Any) -> bool:
    """Whether a value, possibly a word of the command line, is None."""
    return value is None or (isinstance(value, str) and value.lower() in ("none", "null"))


def rest_of(spec: Any, given: Mapping[str, Any]) -> str | None:
    """The name of the optimizer for the rest: the given one, else the spec's default; None if there is none.

    It must be one of the suite's own: records and tuned files name it too, and must not cause imports.

    Args:
        spec: of the first optimizer.
        given: hyperparameters by name.

    Raises:
        UserError: there is no such optimizer, or it has a rest itself.
    """
    name = given.get(REST, spec.rest)
    if is_none(name):
        return None
    known = [each for each, other in OPTIMIZERS.own.items() if other.rest is None]
    if "," in str(name):
        raise UserError(f"--opt.{REST} {name}: a run has one optimizer for the rest; write one")
    if isinstance(name, bool):
        raise UserError(f"--opt.{REST} needs a value: --opt.{REST} OPTIMIZER; known: {', '.join(known)}")
    if name not in known:
        raise unknown(f"--opt.{REST}", str(name), known)
    return str(name)


def no_such_option(spec: Any, given: Mapping[str, Any], name: str, others: Iterable[str] = ()) -> UserError:
    """The error for a hyperparameter that an optimizer does not have here, with advice on what to write.

    Args:
        spec: of the first optimizer.
        given: hyperparameters by name; they may name the optimizer for the rest.
        name: of the hyperparameter, with neither dashes nor group.
        others: further options, with dashes, that may be meant.
    """
    rest, known = rest_of(spec, given), all_optimizer_options(spec, given)
    first, _, tail = name.partition(".")
    if rest is None and first == REST:
        return UserError(
            f"--opt.{name}: {spec.name} needs an optimizer for the rest; name it first: --opt.{REST} adamw"
        )
    if rest is not None and first in ROLES and (other := f"{REST}.{name}") in known:
        why = f"with --opt.{REST} {rest}, {spec.name} moves only the matrices"
        return UserError(f"--opt.{name}: {why}; write --opt.{other} for {rest}'s value")
    if first in OPTIMIZERS and tail in known:
        return UserError(f"unknown option '--opt.{name}'; did you mean '--opt.{tail}'? A run has one optimizer")
    own = tail if first in OPTIMIZERS and tail else name
    return unknown_setting(f"opt.{own}", [*others, *(f"--opt.{each}" for each in known)])


def optimizer_values(spec: Any, given: Mapping[str, Any], others: Callable[[], Iterable[str]] = list) -> dict[str, Any]:
    """The value of every option of an optimizer and of the one for the rest; options by role only if given.

    Args:
        spec: of the optimizer.
        given: values by name.
        others: further options, with dashes, that a wrong name may mean.

    Raises:
        UserError: as for `parse_options`.
    """
    plain = spec.rest is None and not any("." in name or name == REST for name in given)
    options = optimizer_options(spec) if plain else all_optimizer_options(spec, given)
    for name in sorted(given.keys() - options.keys()):
        raise no_such_option(spec, given, name, others())
    values = parse_options("opt", options, given)
    if spec.rest is None and values.get(REST, "") is None:
        del values[REST]  # `--opt.rest none` where there is none by default: the same run
    return values


def task_options(spec: Any) -> dict[str, Option]:
    """The options of a TaskSpec: those of its data, then those of its module, then `preset` if it has presets."""
    own, options = spec.name in TASKS.own, dict[str, Option]()
    for target, skip in ((spec.data, ("root", "seed")), (spec.module, ("data",))):
        options |= _options_of(target, skip, own=own)
    if spec.presets:
        sets = [
            f"{k}: {', '.join(f'{o} {v}' for o, v in values.items()) or 'the defaults'}"
            for k, values in spec.presets.items()
        ]
        help_ = f"defaults for options ({'; '.join(sets)})"
        options |= {"preset": Option("preset", typing.Literal[tuple(spec.presets)], next(iter(spec.presets)), help_)}
    for name in spec.derived:
        if name not in options or options[name].default is not None:
            raise UserError(f"{spec.name}: derived[{name!r}] needs an option of this name whose default is None")
    return options


def task_values(spec: Any, given: Mapping[str, Any], *, recorded: bool = False) -> dict[str, Any]:
    """The value of every option of a task: the given one, else the preset's, else the default, else the derived one.

    An option whose derived value is None is left out, so that studies made before it was added keep their names. The
    preset is left out too: it only names values.

    Args:
        spec: of the task.
        given: values by option.
        recorded: they are from a record: an option that it lacks was added later and is None.

    Raises:
        UserError: as for `parse_options`.
    """
    options = task_options(spec)
    values = parse_options("task", options, given)
    if spec.presets:
        given = {**spec.presets[values["preset"]], **given}
        values = parse_options("task", options, given)
        del values["preset"]
    derived = {name: _derived(spec, name, options[name], values) for name in spec.derived if name not in given}
    for name, value in derived.items():
        if value is None:
            del values[name]
        elif not recorded:
            values[name] = value
    return values


def _derived(spec: Any, name: str, option: Option, values: Mapping[str, Any]) -> Any:
    """The default that a task's own function gives, as its option's type.

    Raises:
        UserError: the function raises, or gives an illegal value.
    """
    try:
        value = spec.derived[name](values)
    except Exception as error:  # it is the plug-in's code
        raise UserError(f"{spec.name}: derived[{name!r}] raises {type(error).__name__}: {error}") from error
    return None if value is None else parse_options("task", {name: option}, {name: value})[name]


@lru_cache
def trainer_options() -> dict[str, Option]:
    """The options `--trainer.*`, from the source of `run_config.TrainerOptions`, which is slow to import."""
    tree = _parse(Path(__file__).with_name("run_config.py"))
    (fields,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "TrainerOptions")
    options = {}
    for node in fields.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Call):
            text = next((_value(k.value) for k in node.value.keywords if k.arg == "description"), "")
            default = _value(node.value.args[0])
            options[node.target.id] = Option(node.target.id, _type(node.annotation, default), default, text)
    return options


def parse_options(prefix: str, options: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Check and convert given values (words of the command line or YAML values) and fill in the defaults.

    Args:
        prefix: `opt` or `task`, for messages.
        options: the options by name.
        given: the given values by name.

    Raises:
        UserError: a name is unknown, a value has the wrong type, or a required option is missing.
    """
    from pydantic import TypeAdapter, ValidationError

    for name in sorted(given.keys() - options.keys()):
        raise unknown("option", f"--{prefix}.{name}", [f"--{prefix}.{known}" for known in options])
    values = {}
    for name, option in options.items():
        raw = given.get(name, option.default)
        if raw is UNSET:
            continue
        if raw is MISSING:
            raise UserError(f"--{prefix}.{name} is required")
        if isinstance(raw, str) and raw == option.default:
            values[name] = raw  # a word such as `task`, which does not have the option's type
            continue
        if is_stray_boolean(raw, option.type):
            needs = "needs a value" if isinstance(raw, bool) else f"{raw!r}"
            raise UserError(f"--{prefix}.{name} {needs}; it takes {option.takes}, and {NO_BOOLEAN}")
        # Defaults are converted too, so that 0 and 0.0 are one value.
        try:
            values[name] = TypeAdapter(option.type).validate_python(_words(raw, option.type))
        except ValidationError as error:
            wrong = error.errors()[0]
            said = ("_parsing", "_type", "_from_float", "literal_error", "missing", "too_long")
            named = wrong["type"].endswith(said)  # by what it takes
            problem = "" if named else f"{why_wrong(wrong['msg'])}; "
            raise UserError(f"--{prefix}.{name} {raw!r}: {problem}it takes {option.takes}") from None
        if values[name] != values[name]:
            raise UserError(f"--{prefix}.{name} {raw!r}: not a number; it takes {option.takes}")
        if isinstance(values[name], int) and abs(values[name]) >= 2**63:
            raise UserError(f"--{prefix}.{name} {raw!r}: it must be below 2^63")
    return values


def _words(raw: Any, kind: Any) -> Any:
    if not isinstance(raw, str):
        return raw
    members = _members(kind)
    if is_none(raw) and type(None) in members:
        return None
    if any(m in (tuple, list) or typing.get_origin(m) in (tuple, list) for m in members):
        return [part.strip() for part in raw.strip("()[] ").split(",")]
    if str in members:  # pydantic would keep a number as text
        for kind in (int, float):
            if kind in members:
                with suppress(ValueError):
                    return kind(raw)
    return raw
