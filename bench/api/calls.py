"""What a public function is: flat parameters with their meaning, checked values, and a session."""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bench.api.arguments import effort_of, path_of, places_of, session, settings_of_call
from bench.api.parameters import MEANINGS, Which
from bench.errors import UserError, unknown
from bench.progress import silenced

F = TypeVar("F", bound=Callable[..., Any])

_WORDS: Mapping[Any, str] = {
    bool: "True or False", int: "a whole number", float: "a number", str: "text", type: "a class", Path: "a path",
    Sequence: "a list", Mapping: "a dictionary {NAME: VALUE}",
}  # fmt: skip

_surrogate = re.compile("[\ud800-\udfff]")
"""Of bytes of a command line that are not UTF-8."""


def public(function: F) -> F:
    """Complete a function: its shared parameters appear one by one, and their values have the declared types."""
    signature = _flat(inspect.signature(function))

    @wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        try:
            bound = signature.bind(*args, **more)
        except TypeError as error:
            raise UserError(f"bench.{function.__name__.rstrip('_')}: {error}") from None
        for name, value in bound.arguments.items():
            parameter = signature.parameters[name]
            for item in value if parameter.kind is parameter.VAR_POSITIONAL else [value]:
                if parameter.kind is not parameter.VAR_KEYWORD:
                    _check(name, item, parameter.annotation)
        with silenced(not more.get("progress", True)):
            if "torch" not in sys.modules:
                with session():
                    return function(*args, **more)
            from bench.api.training import training

            with training(True):  # which leaves torch's threads as they were
                return function(*args, **more)

    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__doc__ = _documented(function, signature)
    return call  # type: ignore[return-value]


def _flat(signature: inspect.Signature) -> inspect.Signature:
    """The signature with the keys of `**more: Unpack[...]` as parameters."""
    *parameters, last = signature.parameters.values()
    if last.kind is not last.VAR_KEYWORD:
        return signature
    (shared,) = get_args(last.annotation)
    kinds = get_type_hints(shared)
    for name in sorted(kinds, key=list(MEANINGS).index):
        kind = kinds[name]
        default = name == "progress" if kind is bool else None
        parameters.append(inspect.Parameter(name, last.KEYWORD_ONLY, default=default, annotation=kind))
    if getattr(shared, "__extra_items__", None) is Any:
        parameters.append(last.replace(name="hyperparameters", annotation=Any))
    return signature.replace(parameters=parameters)


def _documented(function: Callable[..., Any], signature: inspect.Signature) -> str:
    """The docstring, with the meaning of shared parameters at the end of its section `Args:`."""
    head, mark, tail = (inspect.getdoc(function) or "").partition("\n\nRaises:")
    kinds = {"which" if kind.annotation is Which else name: name for name, kind in signature.parameters.items()}
    lines = [f"    {kinds[key]}: {text}" for key, text in MEANINGS.items() if key in kinds and key != "command"]
    lines = [line for line in lines if f"\n{line.partition(': ')[0]}: " not in head]
    if lines and "\n\nArgs:\n" not in head:
        lines = ["\nArgs:", *lines]
    return "\n".join([head, *lines]) + mark + tail


def meaning(function: Callable[..., Any], name: str) -> str:
    """The meaning of a parameter, from a docstring."""
    found = re.search(rf"^    {name}: (.*(?:\n     .*)*)", function.__doc__ or "", re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def _check(name: str, value: Any, kind: Any) -> None:
    """Refuse a value of another type, and an empty word.

    Raises:
        UserError: it is one.
    """
    for text in value if isinstance(value, list) and name != "command" else [value]:
        if isinstance(text, str) and not text.strip() and name not in ("data", "store"):
            raise UserError(f"--{name} {text!r}: it is empty; write a value, or leave it out")
        if isinstance(text, str | Path) and _surrogate.search(str(text)):
            raise UserError(f"--{name} {text!r}: it is not text in UTF-8; rename it")
    plain: Any = value
    if _fits(plain.tolist() if hasattr(plain, "tolist") else plain, kind):
        return
    members = [member for member in get_args(kind) or (kind,) if member is not NoneType]
    for member in (kind, *members):
        if get_origin(member) is Literal:
            raise unknown(name, str(value), get_args(member))
    words = dict.fromkeys(_WORDS[get_origin(member) or member] for member in members)
    raise UserError(f"{name}={value!r}: write {' or '.join(words)}")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value has a type; `bench.api.source.name_of` judges what may also be a class."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return type in args or any(_fits(value, member) for member in args)
    if origin is Literal:
        return value in args
    if origin is Sequence:
        return (
            isinstance(value, Sequence) and not isinstance(value, str) and all(_fits(item, args[0]) for item in value)
        )
    if origin is Mapping:
        return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


class Call:
    """The shared arguments of a call, read.

    Args:
        more: by name; what is no shared parameter is a hyperparameter.
        task: name of the task, if settings need it.
        opts: optimizers.
        top: further settings without a group, such as `seed`.

    Attributes:
        places: folders of data and store.
        effort: how runs are executed.
        words: settings in dotted form.
        config: file of settings.
        dry_run, progress: as given.
        command: words of the command line; None in Python.
    """

    def __init__(self, more: Mapping[str, Any], task: Any = None, opts: Iterable[Any] = (), **top: Any) -> None:
        given = dict(more)

        def taken(*names: str) -> dict[str, Any]:
            return {name: given.pop(name, None) for name in names}

        folders = taken("data", "store")
        self.places = places_of(**folders)
        self.efforts = taken("engine", "workers", "cluster", "width", "budget")
        self.effort = effort_of(**self.efforts)
        self.dry_run, self.progress = bool(given.pop("dry_run", False)), given.pop("progress", True)
        self.config, self.command = path_of("config", given.pop("config", None)), given.pop("command", None)
        top |= taken("data_seed", "precision", "device")
        named = taken("task_options", "trainer", "settings")
        self.words = settings_of_call(task, list(opts), **named, hyperparameters=given, **top)
        self.folders = {name: path for name, path in self.places.items() if folders[name] is not None}
