"""From a class or a spec to a name for `--opt` or `--task`, and a digest of the source of one that has no file."""

import dataclasses
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from bench.errors import UserError
from optimizers import OptimizerSpec
from optimizers.plugins import SESSION, session
from tasks import TaskSpec


def name_of(value: Any) -> str:
    """The name of an optimizer or a task: the given one, or that of a class or a spec (UserError for anything else).

    A class of a package is `module:Class`, one of a file `file.py:Class`. Any other, such as one of a notebook or the
    running script, is kept under `__main__:Class` for this process and its workers, with a digest of its source.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, type | OptimizerSpec | TaskSpec):
        raise UserError(f"{value!r} is no optimizer or task: pass a name, 'file.py:MyClass', a class or a spec")
    if isinstance(value, type) and not _is_of_session(value):
        module, file = value.__module__, getattr(sys.modules[value.__module__], "__file__", None)
        folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        in_package = sys.modules[module].__package__ or file is None
        if in_package or any(Path(str(file)).is_relative_to(folder) for folder in folders):
            return f"{module}:{value.__qualname__}"
        path = Path(str(file)).resolve()
        short = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        return f"{short}:{value.__qualname__}"
    name = f"{SESSION}:{value.__name__ if isinstance(value, type) else value.name}"
    try:
        session[name] = f"source {digest_of(value)}", value
    except Exception as error:  # no source, or no pickle
        way_out = "write it into a file and pass 'file.py:NAME'"
        raise UserError(f"{name} has no source that Python can find ({error}); {way_out}") from None
    return name


def _is_of_session(value: Any) -> bool:
    """Whether a class or a function cannot be imported by its name in another process."""
    at: Any = sys.modules.get(value.__module__) if value.__module__ != "__main__" else None
    for part in value.__qualname__.split("."):
        at = getattr(at, part, None)
    return at is not value


def digest_of(value: Any) -> str:
    """A digest of the source of a class or a spec, with all that it uses of its session; OSError without a source."""
    texts: list[str] = []
    known: dict[int, Any] = {}

    def add(piece: Any) -> None:
        piece = getattr(piece, "fget", getattr(piece, "__func__", piece))
        piece = inspect.unwrap(piece) if callable(piece) else piece
        if isinstance(piece, int | float | complex | str | bytes | None):
            texts.append(repr(piece))
        elif id(piece) not in known:
            known[id(piece)] = piece
            text, parts = _content(piece)
            texts.append(text)
            for part in parts:
                add(part)

    add(value)
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def _content(piece: Any) -> tuple[str, Iterable[Any]]:
    """What stands for an object, and the parts that it consists of or uses."""
    if isinstance(piece, FunctionType) and _is_of_session(piece):
        names = sorted(_names(piece.__code__) & piece.__globals__.keys())
        cells = [cell.cell_contents for cell in piece.__closure__ or ()]
        return inspect.getsource(piece), [*(piece.__globals__[name] for name in names), *cells]
    if isinstance(piece, type | FunctionType | ModuleType):
        text = f"{getattr(piece, '__module__', '')}.{getattr(piece, '__qualname__', '')}.{piece.__name__}"
        if isinstance(piece, type) and _is_of_session(piece):
            return text, [*piece.__bases__, *_members(piece)]
        return text, ()
    if dataclasses.is_dataclass(piece):
        return type(piece).__name__, [getattr(piece, field.name) for field in dataclasses.fields(piece)]
    if isinstance(piece, Mapping):
        return type(piece).__name__, [part for item in piece.items() for part in item]
    if isinstance(piece, list | tuple):
        return type(piece).__name__, piece
    if hasattr(piece, "tolist"):  # an array or a tensor, whose pickle is not always the same
        return f"{getattr(piece, 'dtype', '')} {piece.tolist()}", ()
    return hashlib.sha256(cloudpickle.dumps(piece)).hexdigest(), ()


def _names(code: CodeType) -> set[str]:
    """The global names that code may use."""
    return {*code.co_names}.union(*(_names(const) for const in code.co_consts if isinstance(const, CodeType)))


def _members(cls: type) -> list[Any]:
    """Names and values of what a class defines; torch adds a wrapped `step` to a class that inherits it."""
    step = [inspect.unwrap(cls.step)] if "step" in vars(cls) else []
    steps = [function for function in step if function.__qualname__ == f"{cls.__qualname__}.step"]
    named = {k: v for k, v in vars(cls).items() if k not in ("step", "_abc_impl") and (k[:2] != "__" or callable(v))}
    return [*steps, *(item for pair in named.items() for item in pair)]
